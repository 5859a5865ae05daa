//! The GS2 header (RFC 5801 section 4), with which the first message of a client begins in SCRAM (RFC 5802 section 7) and in
//! GS2: what the client knows of channel bindings, and as whom it wants to act.

use super::saslname::{self, NameError};

/// Bindings of RFC 9266: both sides derive them from the TLS connection.
pub const TLS_EXPORTER: &str = "tls-exporter";

/// Longest name of a type of channel bindings.
const LONGEST_TYPE: usize = 64;

/// What the client says of channel bindings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindingFlag {
    /// `n`: the client cannot use them.
    Cannot,
    /// `y`: the client can, and has seen no -PLUS mechanism at the server. If the server had offered one, an attacker between
    /// them has removed it.
    NotOffered,
    /// `p=`: the client uses bindings of this type.
    Uses(String),
}

/// Whether the token behind the header had the usual header of RFC 2743 section 3.1, which GS2 removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenForm {
    Standard,
    /// `F,`
    NonStandard,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub form: TokenForm,
    pub flag: BindingFlag,
    /// As whom the client wants to act; `None`: as himself.
    pub authzid: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("the GS2 header is not whole")]
    Cut,
    #[error("the GS2 header begins with neither n, y nor p=")]
    BadFlag,
    #[error(
        "the type of channel bindings is no word of at most {LONGEST_TYPE} letters, digits, dots and hyphens"
    )]
    BadType,
    #[error("the GS2 header has something else than a= in its second field")]
    BadField,
    #[error("the authorization identity {0}")]
    BadAuthzid(NameError),
}

impl Header {
    /// Reads the header. Returns its length too: the message goes on behind it. Each header has one spelling only.
    pub fn parse(message: &[u8]) -> Result<(Self, usize), HeaderError> {
        let (form, rest) = match message.strip_prefix(b"F,") {
            Some(rest) => (TokenForm::NonStandard, rest),
            None => (TokenForm::Standard, message),
        };
        let (flag, rest) = field(rest)?;
        let flag = match flag {
            b"n" => BindingFlag::Cannot,
            b"y" => BindingFlag::NotOffered,
            other => match other.strip_prefix(b"p=") {
                Some(name) => BindingFlag::Uses(binding_type(name)?),
                None => return Err(HeaderError::BadFlag),
            },
        };
        let (authzid, rest) = field(rest)?;
        let authzid = match authzid {
            b"" => None,
            // GNU SASL's client writes an empty one where its user names none.
            b"a=" => Some(String::new()),
            other => {
                let name = other.strip_prefix(b"a=").ok_or(HeaderError::BadField)?;
                Some(saslname::decode(name).map_err(HeaderError::BadAuthzid)?)
            }
        };
        Ok((Self { form, flag, authzid }, message.len() - rest.len()))
    }

    /// The header as it is sent.
    pub fn encode(&self) -> String {
        let form = match self.form {
            TokenForm::Standard => "",
            TokenForm::NonStandard => "F,",
        };
        format!("{form}{}", self.bound())
    }

    /// The part that channel bindings protect: all but `F,` (RFC 5801 section 5.1).
    pub fn bound(&self) -> String {
        let flag = match &self.flag {
            BindingFlag::Cannot => "n".to_owned(),
            BindingFlag::NotOffered => "y".to_owned(),
            BindingFlag::Uses(name) => format!("p={name}"),
        };
        let authzid = self.authzid.as_deref().map(|name| format!("a={}", saslname::encode(name)));
        format!("{flag},{},", authzid.unwrap_or_default())
    }
}

/// Takes what stands before the next comma. A message without one is cut, or is longer than any header.
fn field(rest: &[u8]) -> Result<(&[u8], &[u8]), HeaderError> {
    let end = rest.iter().position(|byte| *byte == b',').ok_or(HeaderError::Cut)?;
    Ok((&rest[..end], &rest[end + 1..]))
}

fn binding_type(name: &[u8]) -> Result<String, HeaderError> {
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b".-".contains(byte);
    if !(1..=LONGEST_TYPE).contains(&name.len()) || !name.iter().all(fits) {
        return Err(HeaderError::BadType);
    }
    String::from_utf8(name.to_vec()).map_err(|_| HeaderError::BadType)
}

/// Channel bindings of a connection, by their type. Empty without TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Channel(Vec<(&'static str, Vec<u8>)>);

impl Channel {
    #[must_use]
    pub fn with(mut self, kind: &'static str, data: Vec<u8>) -> Self {
        self.0.push((kind, data));
        self
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn data(&self, kind: &str) -> Option<&[u8]> {
        self.0.iter().find(|(known, _)| *known == kind).map(|(_, data)| data.as_slice())
    }

    /// The type that a client of ours uses.
    pub fn best(&self) -> Option<(&'static str, &[u8])> {
        self.0.first().map(|(kind, data)| (*kind, data.as_slice()))
    }
}

/// Whether the name of the mechanism ends in -PLUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    Plain,
    Plus,
}

/// Whether the server has offered the -PLUS variant of a mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlusOffer {
    Offered,
    NotOffered,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindingRefusal {
    #[error(
        "the client saw no -PLUS mechanism, but it was offered: an attacker between us has removed it from the list"
    )]
    Downgrade,
    #[error("the client chose a -PLUS mechanism and uses no channel bindings")]
    PlusWithout,
    #[error("the client uses channel bindings with a mechanism that is not -PLUS")]
    PlainWith,
    #[error("channel bindings of the type \"{0}\" are not known for this connection")]
    UnknownType(String),
}

/// Decides about the flag of a client, at the server. Returns the bindings that the client must have used, if any.
pub fn bindings<'a>(
    flag: &BindingFlag,
    variant: Variant,
    offer: PlusOffer,
    channel: &'a Channel,
) -> Result<Option<&'a [u8]>, BindingRefusal> {
    match (variant, flag) {
        (Variant::Plus, BindingFlag::Uses(kind)) => match channel.data(kind) {
            Some(data) => Ok(Some(data)),
            None => Err(BindingRefusal::UnknownType(kind.clone())),
        },
        (Variant::Plus, _) => Err(BindingRefusal::PlusWithout),
        (Variant::Plain, BindingFlag::Uses(_)) => Err(BindingRefusal::PlainWith),
        (Variant::Plain, BindingFlag::NotOffered) if offer == PlusOffer::Offered => {
            Err(BindingRefusal::Downgrade)
        }
        (Variant::Plain, _) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(flag: BindingFlag, authzid: Option<&str>) -> Header {
        Header { form: TokenForm::Standard, flag, authzid: authzid.map(str::to_owned) }
    }

    #[test]
    fn headers_are_read_and_written_exactly() {
        let exporter = BindingFlag::Uses(TLS_EXPORTER.to_owned());
        for (text, expected) in [
            ("n,,", header(BindingFlag::Cannot, None)),
            ("n,a=,", header(BindingFlag::Cannot, Some(""))),
            ("y,a=al=2Cice=3D,", header(BindingFlag::NotOffered, Some("al,ice="))),
            ("p=tls-exporter,a=\u{e9},", header(exporter.clone(), Some("\u{e9}"))),
            ("F,n,,", Header { form: TokenForm::NonStandard, ..header(BindingFlag::Cannot, None) }),
        ] {
            let message = format!("{text}rest,of,it");
            assert_eq!(Header::parse(message.as_bytes()).unwrap(), (expected.clone(), text.len()));
            assert_eq!(expected.encode(), text);
        }
        assert_eq!(header(exporter, None).bound(), "p=tls-exporter,,");
        let odd = Header { form: TokenForm::NonStandard, ..header(BindingFlag::Cannot, Some("a")) };
        assert_eq!(odd.bound(), "n,a=a,");
    }

    #[test]
    fn every_other_spelling_is_refused() {
        use HeaderError::{BadAuthzid, BadField, BadFlag, BadType, Cut};
        for (text, error) in [
            ("", Cut),
            ("n", Cut),
            ("n,", Cut),
            ("n,a=x", Cut),
            ("p=tls-exporter", Cut),
            ("N,,", BadFlag),
            (" n,,", BadFlag),
            ("x,,", BadFlag),
            (",,", BadFlag),
            ("p,,", BadFlag),
            ("nn,,", BadFlag),
            ("f,n,,", BadFlag),
            ("F,F,n,,", BadFlag),
            ("p=,,", BadType),
            ("p=tls exporter,,", BadType),
            ("p=tls_exporter,,", BadType),
            ("n,b=x,", BadField),
            ("n,A=x,", BadField),
            ("n,alice,", BadField),
            ("n,a=x=2c,", BadAuthzid(NameError::BadEscape)),
            ("n,a=x\0,", BadAuthzid(NameError::Forbidden)),
        ] {
            assert_eq!(Header::parse(text.as_bytes()), Err(error), "{text:?}");
        }
        assert_eq!(Header::parse(format!("p={},,", "x".repeat(65)).as_bytes()), Err(BadType));
        assert_eq!(Header::parse(&[b'n'; 64 * 1024]), Err(Cut));
    }

    #[test]
    fn a_downgrade_and_bindings_without_a_match_are_refused() {
        use BindingFlag::{Cannot, NotOffered};
        let channel = Channel::default().with(TLS_EXPORTER, vec![7; 32]);
        let uses = |kind: &str| BindingFlag::Uses(kind.to_owned());
        let ask = |flag, variant, offer| bindings(&flag, variant, offer, &channel).map(|it| it.is_some());
        use PlusOffer::Offered;
        assert_eq!(ask(Cannot, Variant::Plain, Offered), Ok(false));
        assert_eq!(ask(NotOffered, Variant::Plain, PlusOffer::NotOffered), Ok(false));
        assert_eq!(ask(NotOffered, Variant::Plain, Offered), Err(BindingRefusal::Downgrade));
        assert_eq!(ask(uses(TLS_EXPORTER), Variant::Plus, Offered), Ok(true));
        assert_eq!(ask(uses(TLS_EXPORTER), Variant::Plain, Offered), Err(BindingRefusal::PlainWith));
        assert_eq!(ask(Cannot, Variant::Plus, Offered), Err(BindingRefusal::PlusWithout));
        assert_eq!(ask(NotOffered, Variant::Plus, Offered), Err(BindingRefusal::PlusWithout));
        let unknown = BindingRefusal::UnknownType("tls-unique".to_owned());
        assert_eq!(ask(uses("tls-unique"), Variant::Plus, Offered), Err(unknown));
    }
}
