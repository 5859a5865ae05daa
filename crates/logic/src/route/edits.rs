//! Header changes of a route or a listener.

use crate::http1::field::Field;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderEdits {
    /// Applied in this order to requests before the proxy sends them to a backend.
    pub request: Vec<HeaderEdit>,
    /// Applied in this order to responses before the proxy sends them to the client.
    pub response: Vec<HeaderEdit>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderEdit {
    /// Replaces all lines of this name by one.
    Set {
        /// Field name as written on the wire.
        name: Box<str>,
        value: Box<str>,
    },
    /// Removes all lines of this name.
    Remove {
        /// Field name, in any case.
        name: Box<str>,
    },
}

impl HeaderEdit {
    /// Validates and creates a [`HeaderEdit::Set`].
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

    /// Validates and creates a [`HeaderEdit::Remove`].
    pub fn remove(name: &str) -> Result<Self, HeaderEditError> {
        check_name(name)?;
        if name.eq_ignore_ascii_case("host") {
            return Err(HeaderEditError::Host);
        }
        Ok(HeaderEdit::Remove { name: name.into() })
    }

    pub fn name(&self) -> &str {
        match self {
            HeaderEdit::Set { name, .. } | HeaderEdit::Remove { name } => name,
        }
    }
}

/// Fields that frame a message or apply to one connection (RFC 9110 section 7.6.1, RFC 9112 section 6): a route that
/// changed one would change where the message ends.
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

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderEditError {
    /// The name is not a token (RFC 9110 section 5.6.2).
    #[error("`{}` is not a valid header name: letters, digits and -_. are usual, spaces and colons are not", .0.escape_debug())]
    Name(Box<str>),
    /// A field that only the proxy may write.
    #[error("`{0}` decides where a message or a connection ends, so routes may not touch it")]
    Framing(Box<str>),
    /// A field that backends trust, or that only Penstock may write.
    #[error("`{0}` is always written by penstock, so it cannot be set")]
    Ours(Box<str>),
    /// Without `CDN-Loop`, Penstock could not detect a request loop (RFC 8586).
    #[error("`CDN-Loop` stops request loops: it may be neither set nor removed")]
    CdnLoop,
    /// Every request needs a `Host` (RFC 9112 section 3.2).
    #[error("`Host` may be set but not removed: a request without it is refused by every server")]
    Host,
    #[error("the value of `{name}` holds the control character 0x{byte:02x}")]
    Control { name: Box<str>, byte: u8 },
    /// Receivers remove white space around a value.
    #[error("the value of `{name}` begins or ends with white space")]
    Space { name: Box<str> },
}
