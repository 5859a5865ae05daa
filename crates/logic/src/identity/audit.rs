//! What is weak about the identities of a fleet, from their files and from what ordinary connections saw.

use std::collections::HashMap;

use super::date::{Date, Moment};
use super::host::{HostFile, Sshfp};
use super::index::Index;
use super::name::Name;
use super::proof::Root;
use super::sshfp::{SshfpAnswer, matches};
use super::strength;
use crate::ssh::key::PublicKey;

/// RSA keys shorter than this are weak (NIST SP 800-57: 112 bits of strength end in 2030).
const RSA_BITS: usize = 3072;
/// Certificates that expire within so many days are told.
const SOON_DAYS: i64 = 30;

/// What the last connection to a host saw.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// The key exchange.
    pub kex: Option<String>,
    /// Whether strict key exchange was agreed (CVE-2023-48795).
    pub strict: Option<Strict>,
    /// When the certificate it showed expires, in seconds since 1970.
    pub certificate_until: Option<u64>,
    /// What the DNS says.
    pub sshfp: Option<SshfpAnswer>,
}

/// Whether strict key exchange was agreed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strict {
    /// It was.
    Yes,
    /// It was not.
    No,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Somebody could pose as the host, or it cannot be reached.
    Bad,
    /// Weaker than it could be.
    Weak,
    /// Worth knowing.
    Note,
}

impl Severity {
    /// The word in tables.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Bad => "bad",
            Self::Weak => "weak",
            Self::Note => "note",
        }
    }
}

/// One thing to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Whom it concerns.
    pub host: String,
    /// What is so, and what to do.
    pub text: String,
}

/// Looks at everything. Findings come worst first, then by name.
#[must_use]
pub fn audit(index: &Index, facts: &HashMap<Name, Facts>, now: Moment) -> Vec<Finding> {
    let mut all = Findings(Vec::new());
    for (name, damage) in index.damaged() {
        for fault in &damage.faults {
            all.note(
                Severity::Bad,
                name.as_str(),
                format!("its file is damaged and it is refused: {}: {fault}", damage.path),
            );
        }
    }
    for (name, damage) in index.damaged_authorities() {
        for fault in &damage.faults {
            all.note(
                Severity::Bad,
                &format!("@{name}"),
                format!("its file is damaged: {}: {fault}", damage.path),
            );
        }
    }
    let mut seen: HashMap<&PublicKey, Vec<&Name>> = HashMap::new();
    for host in index.hosts() {
        for (line, text) in host.unknown_lines() {
            let word = text.split_whitespace().next().unwrap_or_default();
            all.note(
                Severity::Weak,
                host.name().as_str(),
                format!("line {line} begins with \"{word}\", which means nothing here"),
            );
        }
        if host.retired().is_some() {
            continue;
        }
        for pin in host.pins() {
            seen.entry(&pin.key).or_default().push(host.name());
        }
        of_host(host, index, now.date(), &mut all);
        if let Some(facts) = facts.get(host.name()) {
            of_facts(host, facts, now, &mut all);
        }
    }
    for (key, names) in seen.into_iter().filter(|(_, names)| names.len() > 1) {
        let text = |name: &Name| {
            let others: Vec<&str> =
                names.iter().filter(|other| **other != name).map(|other| other.as_str()).take(4).collect();
            format!(
                "{} {} is also a key of {}: each can pose as the other",
                key.algorithm(),
                key.fingerprint(),
                others.join(", ")
            )
        };
        names.iter().for_each(|name| all.note(Severity::Bad, name.as_str(), text(name)));
    }
    all.0.sort_by(|a, b| (a.severity, &a.host, &a.text).cmp(&(b.severity, &b.host, &b.text)));
    all.0
}

struct Findings(Vec<Finding>);

impl Findings {
    fn note(&mut self, severity: Severity, host: &str, text: String) {
        self.0.push(Finding { severity, host: host.to_owned(), text });
    }
}

fn of_host(host: &HostFile, index: &Index, today: Date, all: &mut Findings) {
    let name = host.name().as_str();
    let pins: Vec<_> = host.pins().collect();
    let has_authority = index.bound(name, Some(host)).map_or(true, |bound| !bound.is_empty());
    if index.bound(name, Some(host)).is_err() {
        all.note(
            Severity::Bad,
            name,
            "it names an authority that is missing or damaged, and is refused".into(),
        );
    }
    if pins.is_empty() {
        if !has_authority && host.sshfp() == Sshfp::Off {
            all.note(
                Severity::Bad,
                name,
                "nothing proves who it is: it is refused until a key is enrolled".into(),
            );
        }
        return;
    }
    if pins.iter().all(|pin| pin.root() == Root::FirstUse) {
        all.note(
            Severity::Bad,
            name,
            format!(
                "its keys were trusted on first use and never proved: penstock host add {name} --console FILE"
            ),
        );
    } else {
        // A proved key beside it says nothing for it: whoever answered the first time may hold it.
        for pin in pins.iter().filter(|pin| pin.root() == Root::FirstUse) {
            let key = &pin.key;
            all.note(
                Severity::Bad,
                name,
                format!(
                    "{} {} was trusted on first use and never proved: prove it (penstock host add {name} --fingerprint \
                     SHA256:...), or penstock host retire {name} --key {1}",
                    key.algorithm(),
                    key.fingerprint()
                ),
            );
        }
    }
    for pin in &pins {
        let key = &pin.key;
        if index.revokes(key, Some(host)) {
            let text =
                format!("{} {} is pinned and revoked: it is refused", key.algorithm(), key.fingerprint());
            all.note(Severity::Note, name, text);
        } else if index.is_revoked(key) {
            all.note(
                Severity::Bad,
                name,
                format!(
                    "{} {} is pinned here, and revoked in the file of another host alone: penstock host revoke {name} {1}",
                    key.algorithm(),
                    key.fingerprint()
                ),
            );
        }
    }
    if pins.iter().all(|pin| strength(pin.key.algorithm()) <= 1) {
        all.note(Severity::Weak, name, "only RSA is pinned: let it have an Ed25519 key".into());
    }
    for pin in &pins {
        if let Some(bits) = pin.key.rsa_bits().filter(|bits| *bits < RSA_BITS) {
            all.note(
                Severity::Weak,
                name,
                format!("its RSA key has {bits} bits: {RSA_BITS} are the least today"),
            );
        }
        if let Some(since) = pin.absent.filter(|since| since.days_until(today) >= 0) {
            let text = format!(
                "{} {} is no longer announced since {since}",
                pin.key.algorithm(),
                pin.key.fingerprint()
            );
            all.note(Severity::Note, name, text);
        }
    }
}

fn of_facts(host: &HostFile, facts: &Facts, now: Moment, all: &mut Findings) {
    let name = host.name().as_str();
    if let Some(kex) = &facts.kex
        && !kex.contains("mlkem")
        && !kex.contains("sntrup")
    {
        all.note(Severity::Weak, name, format!("key exchange {kex} is not safe from quantum computers: OpenSSH 9.9 brings mlkem768x25519-sha256"));
    }
    if facts.strict == Some(Strict::No) {
        all.note(
            Severity::Weak,
            name,
            "no strict key exchange (CVE-2023-48795): update its SSH server".into(),
        );
    }
    if let Some(until) = facts.certificate_until {
        let days = now.date().days_until(Moment(until).date());
        if now.0 >= until {
            all.note(Severity::Bad, name, format!("its certificate expired on {}", Moment(until).date()));
        } else if days <= SOON_DAYS {
            all.note(
                Severity::Weak,
                name,
                format!("its certificate expires on {}, in {days} days", Moment(until).date()),
            );
        }
    }
    match &facts.sshfp {
        Some(SshfpAnswer::Secure(records)) if !host.pins().any(|pin| matches(records, &pin.key)) => {
            all.note(
                Severity::Bad,
                name,
                "its SSHFP records are signed, but none is of a pinned key: correct the zone".into(),
            );
        }
        Some(SshfpAnswer::Insecure(_)) => {
            all.note(Severity::Weak, name, "its SSHFP records are not signed: they prove nothing".into());
        }
        Some(SshfpAnswer::None) => all.note(Severity::Note, name, "it has no SSHFP records".into()),
        Some(SshfpAnswer::Bogus(why)) => {
            all.note(Severity::Bad, name, format!("DNSSEC of its SSHFP records does not hold: {why}"));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
