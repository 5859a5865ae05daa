//! Header changes that a route or a listener makes.

use crate::http1::field::Field;

/// Header changes of a route or a listener, applied to requests and to responses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderEdits {
    /// Applied to requests before they go to a backend, in this order.
    pub request: Vec<HeaderEdit>,
    /// Applied to responses before they go to the client, in this order.
    pub response: Vec<HeaderEdit>,
}

/// One header change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderEdit {
    /// Replaces every line of that name by one.
    Set {
        /// Field name as it is written on the wire.
        name: Box<str>,
        /// Field value.
        value: Box<str>,
    },
    /// Takes away every line of that name.
    Remove {
        /// Field name, in any case.
        name: Box<str>,
    },
}

impl HeaderEdit {
    /// A checked [`HeaderEdit::Set`].
    pub fn set(name: &str, value: &str) -> Result<Self, HeaderEditError> {
        check_name(name)?;
        if matches!(Field::of(name.as_bytes()), Ok(Field::Dropped)) {
            return Err(HeaderEditError::Ours(name.into()));
        }
        let trimmed = value.trim_matches([' ', '\t']);
        if trimmed.len() != value.len() {
            return Err(HeaderEditError::Space { name: name.into() });
        }
        // RFC 9110 section 5.5: visible characters, obs-text, space and tab.
        if let Some(byte) = value.bytes().find(|byte| (*byte < 0x20 && *byte != b'\t') || *byte == 0x7f) {
            return Err(HeaderEditError::Control { name: name.into(), byte });
        }
        Ok(HeaderEdit::Set { name: name.into(), value: value.into() })
    }

    /// A checked [`HeaderEdit::Remove`].
    pub fn remove(name: &str) -> Result<Self, HeaderEditError> {
        check_name(name)?;
        if name.eq_ignore_ascii_case("host") {
            return Err(HeaderEditError::Host);
        }
        Ok(HeaderEdit::Remove { name: name.into() })
    }

    /// The name of the field that changes.
    pub fn name(&self) -> &str {
        match self {
            HeaderEdit::Set { name, .. } | HeaderEdit::Remove { name } => name,
        }
    }
}

/// Fields that frame a message or belong to one connection (RFC 9110 section 7.6.1, RFC 9112 section 6): a
/// route that changed them would change where the message ends.
const FRAMING: [&str; 9] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

fn check_name(name: &str) -> Result<(), HeaderEditError> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(token) {
        return Err(HeaderEditError::Name(name.into()));
    }
    if matches!(Field::of(name.as_bytes()), Ok(Field::CdnLoop)) {
        return Err(HeaderEditError::CdnLoop);
    }
    if FRAMING.iter().any(|framing| name.eq_ignore_ascii_case(framing)) {
        return Err(HeaderEditError::Framing(name.into()));
    }
    Ok(())
}

/// Why a header change is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderEditError {
    /// Not a token of RFC 9110 section 5.6.2.
    #[error("`{}` is no header name: letters, digits and -_. are usual, spaces and colons are not", .0.escape_debug())]
    Name(Box<str>),
    /// A field that only the proxy itself may write.
    #[error("`{0}` decides where a message or a connection ends, so routes may not touch it")]
    Framing(Box<str>),
    /// A field that backends believe, or that is for us alone.
    #[error("`{0}` is never passed on as somebody wrote it, so it cannot be set")]
    Ours(Box<str>),
    /// Without it a request that goes in a circle would not be found (RFC 8586).
    #[error("`CDN-Loop` ends requests that go in a circle: it may be neither set nor removed")]
    CdnLoop,
    /// Every request needs a host (RFC 9112 section 3.2).
    #[error("`Host` may be set but not removed: a request without it is refused by every server")]
    Host,
    /// A control character in the value.
    #[error("the value of `{name}` holds the control character 0x{byte:02x}")]
    Control {
        /// The field.
        name: Box<str>,
        /// The character.
        byte: u8,
    },
    /// White space around the value would be lost on the way.
    #[error("the value of `{name}` begins or ends with white space")]
    Space {
        /// The field.
        name: Box<str>,
    },
}
