//! What a list shows of one host, without its keys. `crates/ssh/src/identity/listing.rs` keeps it between two lists.

use super::date::Date;
use super::host::{Address, HostFile, read_address};
use super::name::Name;
use super::proof::Root;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    pub name: Name,
    /// Kinds of the keys, separated by blanks; empty without a key.
    pub keys: String,
    /// How the keys were proved, separated by commas; empty without a key.
    pub proofs: String,
    pub address: Address,
    /// Date since which the host is retired.
    pub retired: Option<Date>,
}

impl Summary {
    #[must_use]
    pub fn of(host: &HostFile) -> Self {
        let (name, address, retired) = (host.name().clone(), host.address(), host.retired());
        Self { name, keys: keys(host), proofs: proofs(host), address, retired }
    }

    /// Returns the summary as fields of one line, separated by tabs; `None` if a text has a tab or a newline.
    #[must_use]
    pub fn to_line(&self) -> Option<String> {
        let retired = self.retired.map(|date| date.to_string()).unwrap_or_default();
        let line = format!("{}\t{}\t{}\t{}\t{retired}", self.name, self.keys, self.proofs, self.address);
        let is_plain = !line.contains('\n') && line.matches('\t').count() == FIELDS - 1;
        is_plain.then_some(line)
    }

    /// Parses a line of [`Self::to_line`].
    #[must_use]
    pub fn from_line(line: &str) -> Option<Self> {
        let mut fields = line.split('\t');
        let name = fields.next()?.parse().ok()?;
        let (keys, proofs) = (fields.next()?.to_owned(), fields.next()?.to_owned());
        let words: Vec<&str> = fields.next()?.split_ascii_whitespace().collect();
        let address = read_address(&words).ok()?;
        let retired = match fields.next()? {
            "" => None,
            date => Some(date.parse().ok()?),
        };
        fields.next().is_none().then_some(Self { name, keys, proofs, address, retired })
    }
}

fn keys(host: &HostFile) -> String {
    let short = |algorithm: &str| match algorithm {
        "ssh-ed25519" => "ed25519".to_owned(),
        "ssh-rsa" => "rsa".to_owned(),
        other if other.starts_with("ecdsa") => "ecdsa".to_owned(),
        other => other.to_owned(),
    };
    let mut keys: Vec<String> = host.pins().map(|pin| short(pin.key.algorithm())).collect();
    keys.extend(host.signers().next().map(|_| "ca".to_owned()));
    keys.sort();
    keys.dedup();
    keys.join(" ")
}

fn proofs(host: &HostFile) -> String {
    let mut all: Vec<String> = Vec::new();
    for pin in host.pins() {
        let mut proof = pin.proof.to_string();
        if proof.starts_with("rotation") {
            proof =
                if pin.root() == Root::FirstUse { "rotation (first-use)".into() } else { "rotation".into() };
        }
        if !all.contains(&proof) {
            all.push(proof);
        }
    }
    all.join(", ")
}

/// Number of fields of a line.
const FIELDS: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Entry, Pin, Proof};
    use crate::ssh::key::PublicKey;

    #[test]
    fn a_line_gives_back_the_summary_it_was_made_of() {
        let mut blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20".to_vec();
        blob.extend([7; 32]);
        let key = PublicKey::from_blob(&blob).unwrap();
        let date: Date = "2026-11-20".parse().unwrap();
        let plain = HostFile::new("web1".parse().unwrap());
        let mut whole = HostFile::new("[web2]:2222".parse().unwrap());
        let witness = Proof::Witness(vec!["a".parse().unwrap(), "b".parse().unwrap()]);
        whole.pin_key(Pin { key, proof: witness, date, by: None, absent: None });
        whole.add_address("2001:db8::9".parse().unwrap());
        whole.add_dns("web2.example.com".parse().unwrap());
        whole.set_port(2222);
        whole.add(Entry::RetiredHost(date));
        for host in [plain, whole] {
            let summary = Summary::of(&host);
            let line = summary.to_line().unwrap();
            assert_eq!(Summary::from_line(&line), Some(summary), "{line}");
            for wrong in [line.clone() + "\t", line.replacen('\t', " ", 1), format!("/{line}"), line + "x"] {
                assert_eq!(Summary::from_line(&wrong), None, "{wrong}");
            }
        }
        let mut odd = Summary::of(&HostFile::new("web1".parse().unwrap()));
        odd.keys = "a\tb".into();
        assert_eq!(odd.to_line(), None);
        odd.keys = "a\nb".into();
        assert_eq!(odd.to_line(), None);
    }
}
