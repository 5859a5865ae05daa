//! Expansion of tokens such as `%h`, of `${NAME}`, and of `~`.

use sha1::{Digest, Sha1};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tokens {
    /// `%d`.
    pub home: String,
    /// `%h`.
    pub host: String,
    /// `%i`.
    pub uid: u32,
    /// `%j`.
    pub jump: String,
    /// `%k`.
    pub key_alias: String,
    /// `%l`, and up to its first dot `%L`.
    pub here: String,
    /// `%n`.
    pub typed: String,
    /// `%p`.
    pub port: u16,
    /// `%r`.
    pub user: String,
    /// `%u`.
    pub local_user: String,
}

impl Tokens {
    pub(super) fn expand(&self, text: &str) -> Result<String, String> {
        expand(text, |token| {
            Some(match token {
                'C' => self.connection(),
                'L' => self.here.split('.').next().unwrap_or_default().to_owned(),
                'd' => self.home.clone(),
                'h' => self.host.clone(),
                'i' => self.uid.to_string(),
                'j' => self.jump.clone(),
                'k' => self.key_alias.clone(),
                'l' => self.here.clone(),
                'n' => self.typed.clone(),
                'p' => self.port.to_string(),
                'r' => self.user.clone(),
                'u' => self.local_user.clone(),
                _ => return None,
            })
        })
    }

    /// `%C`: hash of local host name, host, port, login and jump host.
    fn connection(&self) -> String {
        let mut hash = Sha1::new();
        for part in [&self.here, &self.host, &self.port.to_string(), &self.user, &self.jump] {
            hash.update(part.as_bytes());
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Expands the tokens that `of` knows; `%%` is always `%`.
pub(super) fn expand(text: &str, mut of: impl FnMut(char) -> Option<String>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '%' => match chars.next() {
                Some('%') => out.push('%'),
                Some(token) => {
                    let known = of(token).ok_or_else(|| {
                        format!("\"%{token}\" in \"{text}\" is not a token that can be used here")
                    })?;
                    out.push_str(&known);
                }
                None => {
                    return Err(format!(
                        "\"{text}\" ends with an incomplete token: write %% for a percent sign"
                    ));
                }
            },
            c => out.push(c),
        }
    }
    Ok(out)
}

pub(super) fn environment(text: &str, of: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, after) =
            after.split_once('}').ok_or_else(|| format!("\"${{\" in \"{text}\" is not closed"))?;
        let value = of(name).filter(|_| !name.is_empty());
        out.push_str(before);
        out.push_str(&value.ok_or_else(|| format!("the variable {name} in \"{text}\" is not set"))?);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// Expands `~` at the start. Home directories of other users are unknown.
pub(super) fn tilde(text: &str, home: &str) -> Result<String, String> {
    let Some(rest) = text.strip_prefix('~') else { return Ok(text.to_owned()) };
    if !rest.is_empty() && !rest.starts_with('/') {
        return Err(format!("\"{text}\" is in another user's home: give the whole path"));
    }
    Ok(format!("{}/{}", home.trim_end_matches('/'), rest.trim_start_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_replaced_once_and_unknown_ones_refused() {
        let of = |token| (token == 'h').then(|| "100%h".to_owned());
        assert_eq!(expand("a%%h%h", of), Ok("a%h100%h".to_owned()));
        assert!(expand("%z", of).is_err() && expand("x%", of).is_err());
    }

    #[test]
    fn variables_must_be_set() {
        let of = |name: &str| (name == "HOME").then(|| "/h/${X}".to_owned());
        assert_eq!(environment("a${HOME}$HOME", &of), Ok("a/h/${X}$HOME".to_owned()));
        assert!(environment("${NO}", &of).is_err() && environment("${HOME", &of).is_err());
        assert!(environment("${}", &of).is_err());
    }

    #[test]
    fn a_tilde_is_the_home_only_at_the_beginning() {
        assert_eq!(tilde("~/x", "/home/me/"), Ok("/home/me/x".to_owned()));
        assert_eq!(tilde("~", "/home/me"), Ok("/home/me/".to_owned()));
        assert_eq!(tilde("/~/x", "/home/me"), Ok("/~/x".to_owned()));
        assert!(tilde("~root/x", "/home/me").is_err());
    }
}
