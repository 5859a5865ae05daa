//! Lists of algorithms: defaults of OpenSSH, and lists that append (`+`), remove (`-`) or prepend (`^`) algorithms.

use super::pattern::{Listed, listed, matches};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    Ciphers,
    Macs,
    Kex,
    /// `HostKeyAlgorithms`, `PubkeyAcceptedAlgorithms`, `HostbasedAcceptedAlgorithms`.
    Keys,
    Signatures,
}

/// Algorithms of one kind of list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    pub all: Vec<String>,
    /// Default list, preferred algorithms first: `+`, `-` and `^` change the default.
    pub default: Vec<String>,
}

/// Algorithms of a version of OpenSSH.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownAlgorithms {
    pub ciphers: Known,
    pub macs: Known,
    pub kex: Known,
    /// Types of keys and certificates, and signature algorithms.
    pub keys: Known,
    pub signatures: Known,
}

impl KnownAlgorithms {
    /// Algorithms of OpenSSH 10 and earlier versions.
    #[must_use]
    pub fn openssh() -> Self {
        Self {
            ciphers: known(CIPHERS, CIPHERS_DEFAULT),
            macs: known(MACS, MACS_DEFAULT),
            kex: known(KEX, KEX_DEFAULT),
            keys: known(KEYS, KEYS_DEFAULT),
            signatures: known(SIGNATURES, SIGNATURES_DEFAULT),
        }
    }

    #[must_use]
    pub fn of(&self, list: List) -> &Known {
        match list {
            List::Ciphers => &self.ciphers,
            List::Macs => &self.macs,
            List::Kex => &self.kex,
            List::Keys => &self.keys,
            List::Signatures => &self.signatures,
        }
    }

    /// Returns the first unknown name in a configured list.
    pub(super) fn stranger<'a>(&self, list: List, text: &'a str) -> Option<&'a str> {
        let names = match text.strip_prefix(['+', '^']) {
            Some(names) => names,
            None if text.starts_with('-') => return None,
            None => text,
        };
        let known = self.of(list);
        let is_known = |name: &str| match list {
            List::Keys | List::Signatures => self.keys.all.iter().any(|one| listed(one, name) != Listed::No),
            List::Ciphers | List::Macs | List::Kex => known.all.iter().any(|one| one == name),
        };
        if names.is_empty() {
            return Some(names);
        }
        // OpenSSH ignores the rest of a list after an empty name.
        names.split(',').take_while(|name| !name.is_empty()).find(|name| !is_known(name))
    }

    /// Resolves a configured list; `None` if the result is empty or a name is negated.
    pub(super) fn assemble(&self, list: List, text: &str) -> Option<Vec<String>> {
        let known = self.of(list);
        let wanted = if let Some(more) = text.strip_prefix('+') {
            joined(known.default.iter().map(String::as_str), more.split(','))
        } else if let Some(less) = text.strip_prefix('-') {
            return Some(
                known.default.iter().filter(|name| listed(name, less) != Listed::Yes).cloned().collect(),
            );
        } else if let Some(first) = text.strip_prefix('^') {
            joined(first.split(','), known.default.iter().map(String::as_str))
        } else {
            text.split(',').collect()
        };
        if wanted.iter().any(|name| name.starts_with('!')) {
            return None;
        }
        let mut names: Vec<String> = Vec::new();
        for pattern in wanted {
            for name in known.all.iter().filter(|name| matches(name, pattern)) {
                if !names.contains(name) {
                    names.push(name.clone());
                }
            }
        }
        (!names.is_empty()).then_some(names)
    }
}

fn joined<'a>(first: impl Iterator<Item = &'a str>, then: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut all: Vec<&str> = first.collect();
    for name in then {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

fn known(all: &str, default: &str) -> Known {
    let list = |names: &str| names.split_whitespace().map(str::to_owned).collect();
    Known { all: list(all), default: list(default) }
}

const CIPHERS: &str = "3des-cbc aes128-cbc aes192-cbc aes256-cbc aes128-ctr aes192-ctr aes256-ctr \
    aes128-gcm@openssh.com aes256-gcm@openssh.com chacha20-poly1305@openssh.com";
const CIPHERS_DEFAULT: &str = "chacha20-poly1305@openssh.com aes128-gcm@openssh.com aes256-gcm@openssh.com aes128-ctr \
    aes192-ctr aes256-ctr";
const MACS: &str = "hmac-sha1 hmac-sha1-96 hmac-sha2-256 hmac-sha2-512 hmac-md5 hmac-md5-96 umac-64@openssh.com \
    umac-128@openssh.com hmac-sha1-etm@openssh.com hmac-sha1-96-etm@openssh.com hmac-sha2-256-etm@openssh.com \
    hmac-sha2-512-etm@openssh.com hmac-md5-etm@openssh.com hmac-md5-96-etm@openssh.com umac-64-etm@openssh.com \
    umac-128-etm@openssh.com";
const MACS_DEFAULT: &str = "umac-64-etm@openssh.com umac-128-etm@openssh.com hmac-sha2-256-etm@openssh.com \
    hmac-sha2-512-etm@openssh.com hmac-sha1-etm@openssh.com umac-64@openssh.com umac-128@openssh.com hmac-sha2-256 \
    hmac-sha2-512 hmac-sha1";
const KEX: &str = "diffie-hellman-group1-sha1 diffie-hellman-group14-sha1 diffie-hellman-group14-sha256 \
    diffie-hellman-group16-sha512 diffie-hellman-group18-sha512 diffie-hellman-group-exchange-sha1 \
    diffie-hellman-group-exchange-sha256 ecdh-sha2-nistp256 ecdh-sha2-nistp384 ecdh-sha2-nistp521 curve25519-sha256 \
    curve25519-sha256@libssh.org sntrup761x25519-sha512 sntrup761x25519-sha512@openssh.com mlkem768x25519-sha256";
const KEX_DEFAULT: &str = "mlkem768x25519-sha256 sntrup761x25519-sha512 sntrup761x25519-sha512@openssh.com \
    curve25519-sha256 curve25519-sha256@libssh.org ecdh-sha2-nistp256 ecdh-sha2-nistp384 ecdh-sha2-nistp521 \
    diffie-hellman-group-exchange-sha256 diffie-hellman-group16-sha512 diffie-hellman-group18-sha512 \
    diffie-hellman-group14-sha256";
const KEYS: &str = "ssh-ed25519 ssh-ed25519-cert-v01@openssh.com sk-ssh-ed25519@openssh.com \
    sk-ssh-ed25519-cert-v01@openssh.com ecdsa-sha2-nistp256 ecdsa-sha2-nistp256-cert-v01@openssh.com \
    ecdsa-sha2-nistp384 ecdsa-sha2-nistp384-cert-v01@openssh.com ecdsa-sha2-nistp521 \
    ecdsa-sha2-nistp521-cert-v01@openssh.com sk-ecdsa-sha2-nistp256@openssh.com \
    sk-ecdsa-sha2-nistp256-cert-v01@openssh.com webauthn-sk-ecdsa-sha2-nistp256@openssh.com ssh-dss \
    ssh-dss-cert-v01@openssh.com ssh-rsa ssh-rsa-cert-v01@openssh.com rsa-sha2-256 \
    rsa-sha2-256-cert-v01@openssh.com rsa-sha2-512 rsa-sha2-512-cert-v01@openssh.com";
const KEYS_DEFAULT: &str = "ssh-ed25519-cert-v01@openssh.com ecdsa-sha2-nistp256-cert-v01@openssh.com \
    ecdsa-sha2-nistp384-cert-v01@openssh.com ecdsa-sha2-nistp521-cert-v01@openssh.com \
    sk-ssh-ed25519-cert-v01@openssh.com sk-ecdsa-sha2-nistp256-cert-v01@openssh.com \
    rsa-sha2-512-cert-v01@openssh.com rsa-sha2-256-cert-v01@openssh.com ssh-ed25519 ecdsa-sha2-nistp256 \
    ecdsa-sha2-nistp384 ecdsa-sha2-nistp521 sk-ssh-ed25519@openssh.com sk-ecdsa-sha2-nistp256@openssh.com \
    rsa-sha2-512 rsa-sha2-256";
const SIGNATURES: &str = "ssh-ed25519 sk-ssh-ed25519@openssh.com ecdsa-sha2-nistp256 ecdsa-sha2-nistp384 \
    ecdsa-sha2-nistp521 sk-ecdsa-sha2-nistp256@openssh.com webauthn-sk-ecdsa-sha2-nistp256@openssh.com ssh-dss \
    ssh-rsa rsa-sha2-256 rsa-sha2-512";
const SIGNATURES_DEFAULT: &str = "ssh-ed25519 ecdsa-sha2-nistp256 ecdsa-sha2-nistp384 ecdsa-sha2-nistp521 \
    sk-ssh-ed25519@openssh.com sk-ecdsa-sha2-nistp256@openssh.com rsa-sha2-512 rsa-sha2-256";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_add_to_the_default_take_away_from_it_or_come_first() {
        let all = KnownAlgorithms::openssh();
        let of = |text| all.assemble(List::Ciphers, text).unwrap();
        assert_eq!(of("aes256-ctr"), ["aes256-ctr"]);
        assert_eq!(of("+3des-cbc").last().unwrap(), "3des-cbc");
        assert_eq!(of("+3des-cbc").len(), all.ciphers.default.len() + 1);
        assert_eq!(of("-aes*"), ["chacha20-poly1305@openssh.com"]);
        assert_eq!(of("^aes256-ctr")[..2], ["aes256-ctr", "chacha20-poly1305@openssh.com"]);
        assert_eq!(of("^aes256-ctr").len(), all.ciphers.default.len());
    }

    #[test]
    fn unknown_names_are_found_and_patterns_are_names_of_keys_only() {
        let all = KnownAlgorithms::openssh();
        assert_eq!(all.stranger(List::Ciphers, "aes256-ctr,rot13"), Some("rot13"));
        assert_eq!(all.stranger(List::Ciphers, "aes*"), Some("aes*"));
        assert_eq!(all.stranger(List::Ciphers, "-rot13"), None);
        assert_eq!(all.stranger(List::Keys, "+ssh-*"), None);
        assert_eq!(all.stranger(List::Keys, "^nothing*"), Some("nothing*"));
    }
}
