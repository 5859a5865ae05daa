//! Authorities: keys that sign host certificates, each limited to patterns of host names.

use std::fmt;

use super::date::Date;
use super::line::{Fault, whole_lines, words};
use super::name::Name;
use super::pattern::Patterns;
use super::proof::Proof;
use crate::ssh::key::PublicKey;

/// Content of the file of one authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    /// Name of the authority: `@NAME` in files of hosts.
    pub name: Name,
    /// Host names that the authority may certify. `None`: only a host accepts the authority whose own file lists it.
    pub names: Option<Patterns>,
    /// Keys of the authority: several during a change of keys.
    pub keys: Vec<PublicKey>,
}

/// Text of an authority file: `id`, `names`, and one `ca` line per key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorityFile {
    pub authority: Authority,
    /// Proof of the keys.
    pub proof: Proof,
    pub date: Date,
}

impl Authority {
    /// True if the authority may certify the host `name`.
    #[must_use]
    pub fn speaks_for(&self, name: &str) -> bool {
        self.names.as_ref().is_some_and(|names| names.matches(name))
    }

    /// Parses the file of the authority `name`.
    ///
    /// # Errors
    /// All faults of the file.
    pub fn parse(name: &Name, text: &str) -> Result<Self, Vec<Fault>> {
        let mut authority = Self { name: name.clone(), names: None, keys: Vec::new() };
        let mut faults = Vec::new();
        for (at, line) in whole_lines(text).map_err(|fault| vec![fault])?.iter().enumerate() {
            if let Err(message) = authority.read_line(&words(line)) {
                faults.push(Fault { line: at + 1, message });
            }
        }
        if authority.keys.is_empty() && faults.is_empty() {
            faults.push(Fault {
                line: 0,
                message: "there is no key: add a line such as ca ssh-ed25519 AAAA…".into(),
            });
        }
        if faults.is_empty() { Ok(authority) } else { Err(faults) }
    }

    fn read_line(&mut self, words: &[&str]) -> Result<(), String> {
        match words {
            ["id", id] if *id == self.name.as_str() => {}
            ["id", ..] => return Err(format!("the file is that of {}, but its id is another", self.name)),
            ["names", list] => {
                let list = Patterns::parse(list);
                self.names = Some(list.ok_or("names takes one list: *.example.com,!db.example.com")?);
            }
            ["names", ..] => return Err("names takes one list: *.example.com,!db.example.com".into()),
            ["ca", key @ ..] => self.keys.push(super::host_key(key)?),
            ["revoked" | "@revoked", ..] => {
                return Err(
                    "nothing is revoked here: such keys are in the file `revoked` beside this directory"
                        .into(),
                );
            }
            _ => {}
        }
        Ok(())
    }
}

impl fmt::Display for AuthorityFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "id      {}", self.authority.name)?;
        if let Some(names) = &self.authority.names {
            writeln!(f, "names   {names}")?;
        }
        let line = |key: &PublicKey| {
            format!("ca      {key} {} from={} {}", key.fingerprint(), self.proof, self.date)
        };
        self.authority.keys.iter().try_for_each(|key| writeln!(f, "{}", line(key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJKRYUVfuEFUGyOJ4Ub4j8kXhVwPkN7SrvI9QeYwHyEq";

    #[test]
    fn authority_reads_back_as_it_was_written_and_speaks_only_for_its_names() {
        let name: Name = "fleet-ca".parse().unwrap();
        let names = Patterns::parse("*.example.com,!db.example.com");
        let authority = Authority { name: name.clone(), names, keys: vec![KEY.parse().unwrap()] };
        let file = AuthorityFile { authority, proof: Proof::Key, date: "2026-11-20".parse().unwrap() };
        let read = Authority::parse(&name, &file.to_string()).unwrap();
        assert_eq!(read, file.authority);
        assert!(read.speaks_for("web1.example.com"));
        assert!(!read.speaks_for("db.example.com") && !read.speaks_for("web1"));
    }

    #[test]
    fn damaged_authority_says_which_line() {
        let name: Name = "fleet-ca".parse().unwrap();
        let faults = Authority::parse(&name, "id fleet-ca\nca ssh-ed25519 AAAA\n").unwrap_err();
        assert_eq!(faults[0].line, 2);
        assert!(Authority::parse(&name, "id fleet-ca\n").is_err(), "an authority without a key");
        assert!(Authority::parse(&name, "").is_err());
        for line in [format!("@revoked * {KEY}"), format!("revoked {KEY}")] {
            let faults = Authority::parse(&name, &format!("ca {KEY}\n{line}\n")).unwrap_err();
            assert!(faults[0].line == 2 && faults[0].message.contains("are in the file"), "{faults:?}");
        }
    }
}
