//! A TSIG key (RFC 8945) as `tsig-keygen` of BIND writes it into a file:
//! `key "NAME" { algorithm hmac-sha256; secret "BASE64"; };`

use std::fmt;

use base64ct::{Base64, Encoding};

/// A key shared with a name server.
#[derive(Clone, PartialEq, Eq)]
pub struct TsigKey {
    pub name: String,
    pub algorithm: Algorithm,
    pub secret: Vec<u8>,
}

/// Without the secret, which belongs in no log.
impl fmt::Debug for TsigKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TsigKey").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The algorithms that RFC 8945 section 6 requires or recommends, without those of SHA-1 and MD5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    HmacSha256,
    HmacSha384,
    HmacSha512,
}

/// Reason why a text is no key. Never contains a part of the text: it may be the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyFault {
    #[error(
        "holds no key of the form `key \"NAME\" {{ algorithm hmac-sha256; secret \"BASE64\"; }};`, as `tsig-keygen` writes it"
    )]
    Form,
    #[error("holds more than one key")]
    Several,
    #[error("its algorithm is none of hmac-sha256, hmac-sha384 and hmac-sha512")]
    Algorithm,
    #[error("its secret is not base64")]
    Secret,
}

impl TsigKey {
    /// Reads the text of a file. Comments are those of BIND: `#`, `//` and `/* */`.
    pub fn parse(text: &str) -> Result<Self, KeyFault> {
        let words = words(text).ok_or(KeyFault::Form)?;
        let mut words = words.iter().map(String::as_str);
        let mut expect = |wanted: &str| (words.next() == Some(wanted)).then_some(()).ok_or(KeyFault::Form);
        expect("key")?;
        let name = words.next().filter(|name| is_value(name)).ok_or(KeyFault::Form)?.to_owned();
        let mut expect = |wanted: &str| (words.next() == Some(wanted)).then_some(()).ok_or(KeyFault::Form);
        expect("{")?;
        let (mut algorithm, mut secret) = (None, None);
        loop {
            let word = words.next().ok_or(KeyFault::Form)?;
            if word == "}" {
                break;
            }
            let value = words.next().filter(|value| is_value(value)).ok_or(KeyFault::Form)?;
            match word {
                "algorithm" if algorithm.is_none() => algorithm = Some(Algorithm::of(value)?),
                "secret" if secret.is_none() => {
                    secret = Some(Base64::decode_vec(value).map_err(|_| KeyFault::Secret)?);
                }
                _ => return Err(KeyFault::Form),
            }
            (words.next() == Some(";")).then_some(()).ok_or(KeyFault::Form)?;
        }
        // BIND wants a semicolon here; a file without it is clear as well.
        match words.next() {
            None => {}
            Some(";") => match words.next() {
                None => {}
                Some("key") => return Err(KeyFault::Several),
                Some(_) => return Err(KeyFault::Form),
            },
            Some(_) => return Err(KeyFault::Form),
        }
        let (Some(algorithm), Some(secret)) = (algorithm, secret) else { return Err(KeyFault::Form) };
        if secret.is_empty() { Err(KeyFault::Secret) } else { Ok(Self { name, algorithm, secret }) }
    }
}

impl Algorithm {
    fn of(word: &str) -> Result<Self, KeyFault> {
        match word.trim_end_matches('.').to_ascii_lowercase().as_str() {
            "hmac-sha256" => Ok(Self::HmacSha256),
            "hmac-sha384" => Ok(Self::HmacSha384),
            "hmac-sha512" => Ok(Self::HmacSha512),
            _ => Err(KeyFault::Algorithm),
        }
    }
}

fn is_value(word: &str) -> bool {
    !matches!(word, "{" | "}" | ";" | "")
}

/// Splits a text into words, quoted texts and `{`, `}`, `;`. `None` if a quotation or a comment has no end.
fn words(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = if rest.starts_with('#') || rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/")? + 2
        } else if let Some(quoted) = rest.strip_prefix('"') {
            let end = quoted.find('"')?;
            words.push(quoted[..end].to_owned());
            end + 2
        } else if matches!(first, '{' | '}' | ';') {
            words.push(first.to_string());
            1
        } else {
            let end = rest.find(|c: char| c.is_whitespace() || "{};\"#".contains(c)).unwrap_or(rest.len());
            words.push(rest[..end].to_owned());
            end
        };
        rest = rest[end..].trim_start();
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "key \"penstock\" {\n\talgorithm hmac-sha256;\n\tsecret \"AAEC\";\n};\n";

    #[test]
    fn a_key_is_read_as_tsig_keygen_and_people_write_it() {
        let key = TsigKey::parse(KEY).unwrap();
        assert_eq!(
            (&*key.name, key.algorithm, &*key.secret),
            ("penstock", Algorithm::HmacSha256, &[0, 1, 2][..])
        );
        let other = "# mine\nkey a.example. { secret AAEC; /* long */ algorithm HMAC-SHA512; } // end";
        assert_eq!(TsigKey::parse(other).unwrap().algorithm, Algorithm::HmacSha512);
        assert!(!format!("{key:?}").contains('1'), "{key:?}");
    }

    #[test]
    fn what_is_no_key_is_refused_and_its_text_is_not_repeated() {
        let twice = format!("{KEY}{KEY}");
        for (text, fault) in [
            ("", KeyFault::Form),
            ("AAEC", KeyFault::Form),
            ("key \"a", KeyFault::Form),
            ("key a { secret AAEC; };", KeyFault::Form),
            ("key a { algorithm hmac-sha256; secret AAEC; secret AAEC; };", KeyFault::Form),
            ("key a { algorithm hmac-sha256 secret AAEC; };", KeyFault::Form),
            ("/* key", KeyFault::Form),
            (&twice, KeyFault::Several),
            ("key a { algorithm hmac-md5; secret AAEC; };", KeyFault::Algorithm),
            ("key a { algorithm hmac-sha256; secret \"A\"; };", KeyFault::Secret),
            ("key a { algorithm hmac-sha256; secret \"\"; };", KeyFault::Form),
        ] {
            assert_eq!(TsigKey::parse(text), Err(fault), "{text}");
            assert!(!fault.to_string().contains("AAEC"));
        }
        for at in 0..KEY.len() {
            let _ = TsigKey::parse(&KEY[..at]);
        }
    }
}
