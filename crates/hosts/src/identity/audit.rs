//! Audit of the identities of all hosts, from identity files and from facts of ordinary connections.

use std::collections::HashMap;

use super::date::{Date, Moment};
use super::host::{HostFile, Sshfp};
use super::index::Index;
use super::name::Name;
use super::proof::Root;
use super::sshfp::{SshfpAnswer, matches};
use super::strength;
use crate::ssh::key::{Fingerprint, PublicKey};

/// RSA keys below this number of bits are weak (NIST SP 800-57: 112 bits of strength end in 2030).
const RSA_BITS: usize = 3072;
/// Certificates that expire within this number of days are reported.
const SOON_DAYS: i64 = 30;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    pub kex: Option<String>,
    /// Use of strict key exchange (CVE-2023-48795).
    pub strict: Option<Strict>,
    /// Expiry of the certificate of the host, in seconds since 1970.
    pub certificate_until: Option<u64>,
    pub sshfp: Option<SshfpAnswer>,
    /// Key for which the host was refused since its last good connection.
    pub refused: Option<RefusedKey>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedKey {
    pub fingerprint: Fingerprint,
    pub date: Date,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strict {
    Yes,
    No,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// An attacker could impersonate the host, or the host cannot be reached.
    Bad,
    Weak,
    Note,
}

impl Severity {
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Bad => "bad",
            Self::Weak => "weak",
            Self::Note => "note",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    pub host: String,
    /// Problem and advice.
    pub text: String,
}

/// Audits all identities. Findings are sorted by severity, worst first, then by name.
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
            all.note(Severity::Bad, name, "no key is enrolled: it is refused until one is".into());
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
        // Another proved key of the host proves nothing: an attacker who answered the first connection may hold this
        // key.
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
        all.note(Severity::Weak, name, "only RSA is pinned: create an Ed25519 key on it".into());
    }
    for pin in &pins {
        if let Some(bits) = pin.key.rsa_bits().filter(|bits| *bits < RSA_BITS) {
            all.note(
                Severity::Weak,
                name,
                format!("its RSA key has {bits} bits: {RSA_BITS} are the minimum today"),
            );
        }
        if let Some(since) = pin.absent.filter(|since| since.days_until(today) >= 0) {
            let text = format!(
                "{} {} has not been announced by the host since {since}",
                pin.key.algorithm(),
                pin.key.fingerprint()
            );
            all.note(Severity::Note, name, text);
        }
    }
}

fn of_facts(host: &HostFile, facts: &Facts, now: Moment, all: &mut Findings) {
    let name = host.name().as_str();
    let is_pinned =
        |refused: &RefusedKey| host.pins().any(|pin| pin.key.fingerprint() == refused.fingerprint);
    if let Some(refused) = facts.refused.filter(|refused| !is_pinned(refused)) {
        all.note(
            Severity::Bad,
            name,
            format!(
                "it was refused on {}: it showed {}, which is not pinned; if it was reinstalled, read the fingerprint on its \
                 console, then: penstock host add {name} --replace --fingerprint SHA256:...",
                refused.date, refused.fingerprint
            ),
        );
    }
    if let Some(kex) = &facts.kex
        && !kex.contains("mlkem")
        && !kex.contains("sntrup")
    {
        all.note(
            Severity::Weak,
            name,
            format!("key exchange {kex} is not post-quantum: OpenSSH 9.9 has mlkem768x25519-sha256"),
        );
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
            all.note(Severity::Bad, name, format!("its SSHFP records fail DNSSEC validation: {why}"));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
