//! `ProxyJump`: jump hosts as `user@host:port` or `ssh://user@host:port`.

use std::fmt;

use super::value;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// Login on the jump host; `None` to use the configuration of the jump host.
    pub user: Option<String>,
    /// Name of the jump host, which has its own configuration.
    pub host: String,
    /// Port of the jump host; `None` to use the configuration of the jump host.
    pub port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Jump {
    None,
    /// Jump hosts, the nearest first; never empty.
    Through(Vec<Hop>),
}

impl Jump {
    /// Parses the argument of `ProxyJump` or `-J`.
    ///
    /// # Errors
    /// The part that is no host.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.trim_end().eq_ignore_ascii_case("none") {
            return Ok(Self::None);
        }
        let text = text.split('#').next().unwrap_or_default().trim_end();
        let hops = text.split(',').map(|part| Hop::parse(part).ok_or_else(|| part.to_owned()));
        hops.collect::<Result<_, _>>().map(Self::Through)
    }
}

impl Hop {
    /// Parses `[user@]host[:port]` or `ssh://[user@]host[:port]`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix("ssh://") {
            Some(uri) => Self::from_uri(uri),
            None => Self::from_words(text),
        }
    }

    fn from_words(text: &str) -> Option<Self> {
        let (user, place) = match text.rsplit_once('@') {
            Some((user, place)) => (Some(user.to_owned()), place),
            None => (None, text),
        };
        let (host, port) = host_and_port(place)?;
        let hop = Self { user, host, port: port.map(|port| some_port(port).ok_or(())).transpose().ok()? };
        hop.plausible()
    }

    fn from_uri(uri: &str) -> Option<Self> {
        let (user, place) = match uri.split_once('@') {
            Some((user, place)) => (Some(unescaped(user.split(';').next()?)?), place),
            None => (None, uri),
        };
        let (place, path) = place.split_once('/').unwrap_or((place, ""));
        let (host, port) = host_and_port(place)?;
        let is_name = host.starts_with(|c: char| c.is_ascii_alphanumeric())
            && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
            && !host.contains("..");
        if !path.is_empty() || !is_name {
            return None;
        }
        let host = host.strip_suffix('.').map_or(host.clone(), str::to_owned);
        let hop = Self { user, host, port: port.map(|port| some_port(port).ok_or(())).transpose().ok()? };
        hop.plausible()
    }

    /// True if login and host are not empty and contain no special characters of a shell.
    pub(super) fn is_plausible(&self) -> bool {
        is_safe_host(&self.host) && self.user.as_deref().is_none_or(is_safe_user)
    }

    fn plausible(self) -> Option<Self> {
        self.is_plausible().then_some(self)
    }
}

/// Writes the format of `ssh -G`, with IPv6 addresses in brackets.
impl fmt::Display for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        let numeric = self.host.contains(':') || self.host.chars().all(|c| c.is_ascii_digit() || c == '.');
        match numeric {
            true => write!(f, "[{}]", self.host)?,
            false => f.write_str(&self.host)?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl fmt::Display for Jump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Through(hops) = self else { return f.write_str("none") };
        for (at, hop) in hops.iter().enumerate() {
            write!(f, "{}{hop}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// True for a valid host name that is safe in a command line.
pub(super) fn is_safe_host(host: &str) -> bool {
    !host.is_empty()
        && !host.starts_with('-')
        && host.len() < 1025
        && !host.chars().any(|c| "'`\"$\\;&<>|(){}".contains(c) || c.is_whitespace() || c.is_control())
}

/// True for a valid login that is safe in a command line.
pub(super) fn is_safe_user(user: &str) -> bool {
    !user.is_empty()
        && !user.starts_with('-')
        && !user.ends_with('\\')
        && !user.contains(" -")
        && !user.chars().any(|c| "'`\";&<>|(){}".contains(c) || c.is_control())
}

/// Splits `host`, `host:port`, `[host]` or `[host]:port`. Without brackets only one colon is valid.
fn host_and_port(text: &str) -> Option<(String, Option<&str>)> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(inside) => inside.split_once(']')?,
        None => text.split_at(text.find([':', '/']).unwrap_or(text.len())),
    };
    let port = match rest {
        "" => None,
        rest => rest.strip_prefix([':', '/']).map(Some)?,
    };
    (!host.is_empty()).then(|| (host.to_owned(), port.filter(|port| !port.is_empty())))
}

/// Parses `[2001:db8::1]` and `[2001:db8::1]:22`, which no host name looks like. The result has no brackets.
pub(super) fn bracketed(text: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = host_and_port(text.starts_with('[').then_some(text)?)?;
    let address = host.split_once('%').map_or(host.as_str(), |(address, _)| address);
    address.parse::<std::net::Ipv6Addr>().ok()?;
    Some((host, port.map(|port| some_port(port).ok_or(())).transpose().ok()?))
}

fn some_port(text: &str) -> Option<u16> {
    value::port(text).filter(|port| *port > 0)
}

/// Decodes `%40` and `+` of URIs.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let digit = |c: u8| char::from(c).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => digit(rest.next()?)? << 4 | digit(rest.next()?)?,
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Error message for a host name with special characters of a shell, or with the form of an option.
pub(super) fn host_fault(host: &str) -> Option<String> {
    (!is_safe_host(host)).then(|| format!("hostname: \"{host}\" is not a valid host name"))
}

/// Error message and advice for a login with special characters of a shell, or with the form of an option.
pub(super) fn user_fault(user: &str) -> Option<(String, Option<String>)> {
    if user.contains('%') || user.contains("${") {
        let what = format!("user: \"{user}\": OpenSSH before 10.1 takes it as it is, later ones replace it");
        return Some((what, Some("write the login itself".to_owned())));
    }
    (!is_safe_user(user)).then(|| (format!("user: \"{user}\" is not a login"), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(user: Option<&str>, host: &str, port: Option<u16>) -> Option<Hop> {
        Some(Hop { user: user.map(str::to_owned), host: host.to_owned(), port })
    }

    #[test]
    fn hosts_are_read_with_login_port_and_brackets() {
        assert_eq!(Hop::parse("gate"), hop(None, "gate", None));
        assert_eq!(Hop::parse("me@gate:2222"), hop(Some("me"), "gate", Some(2222)));
        assert_eq!(Hop::parse("a@b@gate"), hop(Some("a@b"), "gate", None));
        assert_eq!(Hop::parse("[::1]:2222"), hop(None, "::1", Some(2222)));
        assert_eq!(Hop::parse("ssh://me%40x;fingerprint=1@gate:22/"), hop(Some("me@x"), "gate", Some(22)));
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for text in [
            "",
            "@gate",
            ":22",
            "gate:0",
            "gate:x",
            "[::1",
            "::1",
            "-gate",
            "a b",
            "ssh://gate/path",
            "g`id`",
        ] {
            assert_eq!(Hop::parse(text), None, "{text}");
        }
    }

    #[test]
    fn none_is_no_jump_and_a_comment_ends_the_list() {
        assert_eq!(Jump::parse("NONE"), Ok(Jump::None));
        assert_eq!(Jump::parse("a,b # c,d").unwrap().to_string(), "a,b");
        assert_eq!(Jump::parse("a,,b"), Err(String::new()));
        assert_eq!(Jump::parse("u@10.0.0.1:22,b").unwrap().to_string(), "u@[10.0.0.1]:22,b");
    }
}
