//! GS2-KRB5 and GS2-KRB5-PLUS (RFC 5801): what stands around the tokens of GSSAPI, and what must be true of a context.

use super::gs2::{Header, HeaderError, TokenForm};

/// Header of an initial token of Kerberos behind its length (RFC 2743 section 3.1): OBJECT IDENTIFIER 1.2.840.113554.1.2.2.
const OID: &[u8] = &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02];

/// GSS_C_MUTUAL_FLAG
pub const MUTUAL: u32 = 2;

/// GSS_C_CHANNEL_BOUND_FLAG: the initiator has sent channel bindings, and they are the acceptor's. Without it MIT Kerberos
/// since 1.19 accepts a token that was made without bindings, for another header or another protocol.
pub const CHANNEL_BOUND: u32 = 0x800;

/// What an initiator of ours asks for: MUTUAL, REPLAY, SEQUENCE and INTEG. Cyrus SASL refuses a context without SEQUENCE.
pub const INITIATOR_FLAGS: u32 = MUTUAL | 4 | 8 | 0x20;

/// Longest token in bytes, decoded.
pub const LONGEST: usize = 48 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Krb5Refusal {
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error("the GS2 header begins with F,, but tokens of Kerberos always have the header of RFC 2743")]
    NonStandard,
    #[error("the message has no token")]
    NoToken,
    #[error("the token has more than {LONGEST} bytes")]
    TooLong,
    #[error("GSSAPI made a token without the header of RFC 2743 for Kerberos")]
    NoTokenHeader,
    #[error(
        "the ticket was not made for this connection and this GS2 header: its channel bindings are missing"
    )]
    NotBound,
    #[error("the context has no mutual authentication")]
    NotMutual,
}

/// The first message of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct First {
    pub header: Header,
    /// The token with its header, for `gss_accept_sec_context`.
    pub token: Vec<u8>,
}

impl First {
    pub fn parse(message: &[u8]) -> Result<Self, Krb5Refusal> {
        if message.len() > LONGEST {
            return Err(Krb5Refusal::TooLong);
        }
        let (header, length) = Header::parse(message)?;
        if header.form == TokenForm::NonStandard {
            return Err(Krb5Refusal::NonStandard);
        }
        match &message[length..] {
            [] => Err(Krb5Refusal::NoToken),
            token => Ok(Self { header, token: wrap(token) }),
        }
    }

    /// The first message of a client of ours, of the token that `gss_init_sec_context` made.
    pub fn encode(header: &Header, token: &[u8]) -> Result<Vec<u8>, Krb5Refusal> {
        let token = strip(token).ok_or(Krb5Refusal::NoTokenHeader)?;
        Ok([header.encode().as_bytes(), token].concat())
    }
}

/// Application data of the channel bindings of GSSAPI (RFC 5801 section 5.1): they protect the header too, so they are never
/// left out.
pub fn application_data(header: &Header, bindings: Option<&[u8]>) -> Vec<u8> {
    [header.bound().as_bytes(), bindings.unwrap_or_default()].concat()
}

/// Whether a whole context of the acceptor is good, by its flags.
pub fn judge(flags: u32) -> Result<(), Krb5Refusal> {
    if flags & CHANNEL_BOUND == 0 {
        return Err(Krb5Refusal::NotBound);
    }
    if flags & MUTUAL == 0 {
        return Err(Krb5Refusal::NotMutual);
    }
    Ok(())
}

fn wrap(token: &[u8]) -> Vec<u8> {
    let length = OID.len() + token.len();
    let mut out = vec![0x60];
    match length {
        0..=0x7f => out.push(length as u8),
        _ => {
            let bytes = length.to_be_bytes();
            let bytes = &bytes[bytes.iter().take_while(|byte| **byte == 0).count()..];
            out.push(0x80 | bytes.len() as u8);
            out.extend_from_slice(bytes);
        }
    }
    out.extend_from_slice(OID);
    out.extend_from_slice(token);
    out
}

fn strip(token: &[u8]) -> Option<&[u8]> {
    let (first, rest) = token.strip_prefix(&[0x60])?.split_first()?;
    let (length, rest) = match first {
        short @ 0..=0x7f => (usize::from(*short), rest),
        long @ 0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(long & 0x7f))?;
            (length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    rest.strip_prefix(OID).filter(|_| rest.len() == length)
}

#[cfg(test)]
mod tests {
    use super::super::gs2::BindingFlag;
    use super::*;

    fn header(authzid: Option<&str>) -> Header {
        let authzid = authzid.map(str::to_owned);
        Header { form: TokenForm::Standard, flag: BindingFlag::Cannot, authzid }
    }

    #[test]
    fn tokens_of_every_length_lose_their_header_and_get_it_again() {
        for length in [1, 2, 100, 116, 117, 118, 244, 245, 246, 1000, 40_000] {
            let token = vec![7; length];
            let whole = wrap(&token);
            assert_eq!(strip(&whole), Some(&token[..]), "{length}");
            let sent = First::encode(&header(Some("alice")), &whole).unwrap();
            assert_eq!(&sent[..10], b"n,a=alice,");
            let read = First::parse(&sent).unwrap();
            assert_eq!((read.header, read.token), (header(Some("alice")), whole));
        }
        // As MIT Kerberos writes it.
        assert_eq!(wrap(&[1, 0])[..4], [0x60, 13, 6, 9]);
        assert_eq!(wrap(&[0; 200])[..4], [0x60, 0x81, 211, 6]);
    }

    #[test]
    fn what_is_no_token_of_kerberos_is_refused() {
        assert_eq!(First::parse(b"n,,"), Err(Krb5Refusal::NoToken));
        assert_eq!(First::parse(b"F,n,,x"), Err(Krb5Refusal::NonStandard));
        assert_eq!(First::parse(&vec![b'n'; 64 * 1024]), Err(Krb5Refusal::TooLong));
        let whole = wrap(&[1, 0, 0x6e]);
        for cut in 0..whole.len() {
            assert_eq!(strip(&whole[..cut]), None, "{cut}");
        }
        let mut other = whole.clone();
        other[3] = 8;
        assert_eq!(First::encode(&header(None), &other), Err(Krb5Refusal::NoTokenHeader));
        assert_eq!(strip(&[0x60, 0x85, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn a_context_that_is_not_bound_is_refused() {
        assert_eq!(judge(MUTUAL | CHANNEL_BOUND), Ok(()));
        assert_eq!(judge(MUTUAL), Err(Krb5Refusal::NotBound));
        assert_eq!(judge(CHANNEL_BOUND), Err(Krb5Refusal::NotMutual));
        assert_eq!(application_data(&header(Some("root")), None), b"n,a=root,");
        assert_eq!(application_data(&header(None), Some(&[1, 2])), b"n,,\x01\x02");
    }
}
