//! OAUTHBEARER (RFC 7628): a bearer token as the log-in of a program. Clients of mail that know it, such as curl, send ours as
//! they would send one of OAuth. It has no channel bindings: TLS alone protects it.

use super::gs2::{BindingFlag, Header, HeaderError, TokenForm};

/// Longest message in bytes.
const LONGEST: usize = 8192;

/// Stands between the fields of a message, and alone in the answer of a client that was refused.
const SEPARATOR: u8 = 1;

/// What a client is told whose token is refused (RFC 7628 section 3.2.2), before the log-in fails.
pub const REFUSED: &str = r#"{"status":"invalid_token","scope":"control"}"#;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BearerError {
    #[error("the message has more than {LONGEST} bytes")]
    TooLong,
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error("the GS2 header begins with F,")]
    NonStandard,
    #[error("the client asks for channel bindings, which OAUTHBEARER does not have")]
    Bindings,
    #[error("the fields of the message are malformed")]
    Fields,
    #[error("the message has no field auth=Bearer TOKEN, or two of them")]
    NoToken,
}

/// The message of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub authzid: Option<String>,
    /// As the client has sent it.
    pub token: zeroize::Zeroizing<String>,
}

impl Message {
    pub fn parse(message: &[u8]) -> Result<Self, BearerError> {
        if message.len() > LONGEST {
            return Err(BearerError::TooLong);
        }
        let (header, length) = Header::parse(message)?;
        match header {
            Header { form: TokenForm::NonStandard, .. } => return Err(BearerError::NonStandard),
            Header { flag: BindingFlag::Uses(_), .. } => return Err(BearerError::Bindings),
            _ => {}
        }
        // ^A *(KEY "=" VALUE ^A) ^A
        let fields = message[length..].strip_prefix(&[SEPARATOR]).ok_or(BearerError::Fields)?;
        let fields = fields.strip_suffix(&[SEPARATOR]).ok_or(BearerError::Fields)?;
        let fields = std::str::from_utf8(fields).map_err(|_| BearerError::Fields)?;
        if !fields.is_empty() && !fields.ends_with(char::from(SEPARATOR)) {
            return Err(BearerError::Fields);
        }
        let mut token = None;
        for field in fields.split_terminator(char::from(SEPARATOR)) {
            let (key, value) = field.split_once('=').ok_or(BearerError::Fields)?;
            let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphabetic());
            let is_value = value.bytes().all(|byte| matches!(byte, b'\t' | b'\r' | b'\n' | 0x20..=0x7e));
            if !is_key || !is_value {
                return Err(BearerError::Fields);
            }
            if key == "auth" && token.replace(bearer(value).ok_or(BearerError::NoToken)?).is_some() {
                return Err(BearerError::NoToken);
            }
        }
        let token = token.ok_or(BearerError::NoToken)?.to_owned().into();
        Ok(Self { authzid: header.authzid, token })
    }
}

/// The message of a client of ours.
pub fn encode(token: &str) -> zeroize::Zeroizing<Vec<u8>> {
    format!("n,,\x01auth=Bearer {token}\x01\x01").into_bytes().into()
}

/// The token of a value `Bearer TOKEN`, as HTTP has it too (RFC 6750 section 2.1).
pub fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim_start_matches(' ');
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && !token.contains(' ')).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_clients_are_read() {
        let read = |text: &str| Message::parse(text.as_bytes()).map(|it| (it.authzid, it.token.to_string()));
        let ours = encode("abc");
        assert_eq!(read(std::str::from_utf8(&ours).unwrap()), Ok((None, "abc".to_owned())));
        let curl = "n,a=ci,\x01host=gw\x01port=4040\x01auth=Bearer abc\x01\x01";
        assert_eq!(read(curl), Ok((Some("ci".to_owned()), "abc".to_owned())));
        for (text, error) in [
            ("", BearerError::Header(HeaderError::Cut)),
            ("n,,", BearerError::Fields),
            ("n,,\x01", BearerError::Fields),
            ("n,,\x01\x01", BearerError::NoToken),
            ("n,,\x01auth=Bearer abc\x01", BearerError::Fields),
            ("n,,auth=Bearer abc\x01\x01", BearerError::Fields),
            ("n,,\x01auth=Basic abc\x01\x01", BearerError::NoToken),
            ("n,,\x01auth=Bearer \x01\x01", BearerError::NoToken),
            ("n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01", BearerError::NoToken),
            ("n,,\x01auth=Bearer a\0\x01\x01", BearerError::Fields),
            ("n,,\x01=x\x01\x01", BearerError::Fields),
            ("F,n,,\x01auth=Bearer a\x01\x01", BearerError::NonStandard),
            ("p=tls-exporter,,\x01auth=Bearer a\x01\x01", BearerError::Bindings),
        ] {
            let read = read(text);
            // A message that is cut in the middle of its end is malformed, or lacks its token.
            assert_eq!(read, Err(error), "{text:?}");
        }
        assert_eq!(Message::parse(&[b'n'; 64 * 1024]), Err(BearerError::TooLong));
    }
}
