//! Names in SCRAM and GS2 (`saslname`, RFC 5801 section 4): a comma is `=2C`, an equals sign `=3D`, both in upper case.

/// Longest name in bytes, in its encoded form. Principals and mail addresses are shorter.
pub const LONGEST: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("is empty")]
    Empty,
    #[error("has more than {LONGEST} bytes")]
    TooLong,
    #[error("is not UTF-8 text")]
    NotText,
    #[error("has a NUL or a comma")]
    Forbidden,
    #[error("has an equals sign that does not begin =2C or =3D")]
    BadEscape,
}

pub fn encode(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for char in name.chars() {
        match char {
            ',' => out.push_str("=2C"),
            '=' => out.push_str("=3D"),
            other => out.push(other),
        }
    }
    out
}

pub fn decode(encoded: &[u8]) -> Result<String, NameError> {
    if encoded.is_empty() {
        return Err(NameError::Empty);
    }
    if encoded.len() > LONGEST {
        return Err(NameError::TooLong);
    }
    let text = std::str::from_utf8(encoded).map_err(|_| NameError::NotText)?;
    if text.contains(['\0', ',']) {
        return Err(NameError::Forbidden);
    }
    let mut parts = text.split('=');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (char, rest) = match (part.strip_prefix("2C"), part.strip_prefix("3D")) {
            (Some(rest), _) => (',', rest),
            (_, Some(rest)) => ('=', rest),
            (None, None) => return Err(NameError::BadEscape),
        };
        out.push(char);
        out.push_str(rest);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_escapes_of_the_standard_are_read() {
        assert_eq!(decode(b"a=2Cb=3Dc").unwrap(), "a,b=c");
        assert_eq!(encode("a,b=c"), "a=2Cb=3Dc");
        for bad in [&b"=2c"[..], b"=3d", b"=", b"a=", b"=2", b"=41", b"=2 C", b"=="] {
            assert_eq!(decode(bad), Err(NameError::BadEscape), "{bad:?}");
        }
        assert_eq!(decode(b"a\0"), Err(NameError::Forbidden));
        assert_eq!(decode(b"a,b"), Err(NameError::Forbidden));
        assert_eq!(decode(b"\xff"), Err(NameError::NotText));
        assert_eq!(decode(b""), Err(NameError::Empty));
        assert_eq!(decode(&[b'a'; 1025]), Err(NameError::TooLong));
    }
}
