//! Decision about the identity of a host. Input: the name, the address and the host key of a connection. Output: a
//! verdict with its message, and facts to record after the connection. `decide/message.rs` holds the messages.

use std::net::IpAddr;

use super::certificate::{CertificateError, HostCertificate};
use super::date::{Date, Moment};
use super::host::{HostFile, Pin, Sshfp};
use super::index::{Damage, Found, Index};
use super::name::Name;
use super::proof::Proof;
use super::sshfp::SshfpAnswer;
use super::strength;
use crate::fleet::ending::Reason;
use crate::ssh::key::PublicKey;

mod message;

use message::{RefusalText, ambiguous, damaged, shown};
pub use message::{changed_anew, known_to_ssh, same_machine, swapped, unqueued};

/// Key or certificate that the server offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Offered {
    Key(PublicKey),
    Certificate(Box<HostCertificate>),
    /// A blob with a certificate type that cannot be parsed as a certificate. Always refused.
    Unreadable(PublicKey, CertificateError),
}

impl Offered {
    /// Host key: for a certificate the key inside, for an unreadable certificate the whole blob.
    #[must_use]
    pub fn key(&self) -> &PublicKey {
        match self {
            Self::Key(key) | Self::Unreadable(key, _) => key,
            Self::Certificate(certificate) => &certificate.key,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Question<'q> {
    /// Name that the operator uses for the host.
    pub name: &'q str,
    /// Address of the server; `None` through a jump host or a proxy command.
    pub address: Option<IpAddr>,
    pub port: u16,
    pub offered: &'q Offered,
    pub sshfp: &'q SshfpAnswer,
    /// Results of the other hosts of a run on many hosts.
    pub run: Option<Run>,
    /// Date of the last connection with a pinned key.
    pub last_good: Option<Date>,
    pub now: Moment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Run {
    /// Number of hosts that showed another key than the pinned one.
    pub changed: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Accepted {
        note: Option<String>,
    },
    /// The server is not the host, or its identity cannot be verified. Nothing was sent.
    Refused {
        /// Group of the host in the summary.
        reason: Reason,
        message: String,
        advice: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub verdict: Verdict,
    pub effects: Vec<Effect>,
    pub host: Option<Name>,
}

/// Fact to record after the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The host proved its identity at this address.
    Good(Name, Option<IpAddr>),
    /// The host has the same key at another address.
    Moved { host: Name, from: IpAddr, to: IpAddr },
    /// The host is back at the address before its last move. Penstock does not report the return: a host with two
    /// addresses would cause a report on every second connection.
    WentBack { host: Name, from: IpAddr, to: IpAddr },
    /// The host has the same key at another address, the first of its address family.
    AddressFound(Name, IpAddr),
    /// A key was proved during the connection: a new key, or a key trusted on first use.
    Pin(Name, Box<Pin>),
    /// The host showed another key; [`Run::changed`] counts the hosts.
    Changed { host: Name, key: Box<PublicKey> },
    /// The host showed the key of another host.
    ShowedKeyOf { host: Name, other: Name },
    /// The host is unknown, and is added to the enrolment queue.
    Queue { name: String, address: Option<IpAddr>, port: u16, key: Box<PublicKey> },
}

#[must_use]
pub fn decide(question: Question<'_>, index: &Index) -> Decision {
    // A `Name` is in lower case: a name as the operator typed it must get the same verdict as a parsed name.
    let name = question.name.to_ascii_lowercase();
    let question = Question { name: &name, ..question };
    let host = match index.find(question.name, question.port) {
        Found::Host(host) => Some(host),
        Found::Unknown => None,
        Found::Damaged(damage) => {
            return Decision {
                verdict: refuse_damaged(question.name, damage),
                host: None,
                effects: Vec::new(),
            };
        }
        Found::Ambiguous(names) => {
            return refuse(None, Reason::BadConfiguration, ambiguous(question.name, &names));
        }
    };
    Case { question, index, host, key: question.offered.key() }.decide()
}

/// Verdict on host `name` whose file is damaged, for any host key.
#[must_use]
pub fn refuse_damaged(name: &str, damage: &Damage) -> Verdict {
    let RefusalText { message, advice } = damaged(name, damage);
    Verdict::Refused { reason: Reason::BadConfiguration, message, advice }
}

/// A question whose name belongs to at most one host.
struct Case<'c> {
    question: Question<'c>,
    index: &'c Index,
    host: Option<&'c HostFile>,
    key: &'c PublicKey,
}

impl Case<'_> {
    fn decide(&self) -> Decision {
        let Question { name, offered, .. } = self.question;
        if let Offered::Unreadable(_, why) = offered {
            return self.refuse(Reason::KeyRefused, self.bad_certificate(&why.to_string()));
        }
        if let Some(said) = self.revoked() {
            return self.refuse(Reason::KeyRefused, said);
        }
        if let Some(since) = self.host.and_then(HostFile::retired) {
            return self.refuse(Reason::KeyRefused, self.retired_host(since));
        }
        let bound = match self.index.bound(name, self.host) {
            Ok(bound) => bound,
            Err(missing) => return self.refuse(Reason::BadConfiguration, self.missing_authority(missing)),
        };
        // Without a known authority only the key in a certificate counts, as in OpenSSH. With an authority, an invalid
        // certificate is refused, and never treated as a plain key.
        if let Offered::Certificate(certificate) = offered
            && !bound.is_empty()
        {
            return self.certificate(certificate, &bound);
        }
        if self.host.is_some_and(|host| host.pin(self.key).is_some()) {
            return self.accept(Vec::new());
        }
        // Revocations in files of other hosts come last: pins and authorities depend only on the files of this host, so
        // one host of thousands can be checked without reading the others.
        if self.index.is_revoked(self.key) {
            return self.refuse(Reason::KeyRefused, self.revoked_key("the revoked key", self.key));
        }
        if let Some(other) = self.owner() {
            return match self.host {
                Some(host) => {
                    let mut decision = self.refuse(Reason::WrongHost, self.wrong_host(other));
                    let (host, other) = (host.name().clone(), other.name().clone());
                    decision.effects.push(Effect::ShowedKeyOf { host, other });
                    decision
                }
                None => self.refuse(Reason::UnknownHost, self.known_elsewhere(other)),
            };
        }
        if !bound.is_empty() {
            return self.refuse(Reason::KeyRefused, self.bare_key());
        }
        match self.host {
            Some(host) if !host.is_elsewhere(self.question.port) => self.another_key(host),
            _ => self.queued(),
        }
    }

    fn certificate(&self, certificate: &HostCertificate, bound: &[super::index::Bound<'_>]) -> Decision {
        let signed = bound.iter().filter(|one| *one.key == certificate.authority);
        let mut fault = None;
        for one in signed {
            let mut names: Vec<&str> =
                self.host.into_iter().flat_map(HostFile::names).map(Name::as_str).collect();
            if !names.contains(&self.question.name) {
                names.push(self.question.name);
            }
            if let Some(principals) = one.principals {
                // For a list of plain names each name is valid; for patterns, the names of the host that match.
                match principals.are_names() {
                    true => names = principals.parts().collect(),
                    false => names.retain(|name| principals.matches(name)),
                }
            }
            match certificate.speaks_for(&names, self.question.now) {
                Ok(()) => return self.accept(self.proved(certificate, one)),
                Err(error) => fault = Some(error.to_string()),
            }
        }
        let fault = fault.unwrap_or_else(|| {
            format!(
                "it is signed by {}, which is not an authority for it",
                certificate.authority.fingerprint()
            )
        });
        self.refuse(Reason::KeyRefused, self.bad_certificate(&fault))
    }

    /// Effects of a valid certificate: a key that was trusted on first use is proved now.
    fn proved(&self, certificate: &HostCertificate, by: &super::index::Bound<'_>) -> Vec<Effect> {
        let known = self.host.and_then(|host| Some((host, host.pin(&certificate.key)?)));
        let proof = Proof::Authority(match by.authority {
            Some(name) => name.to_string(),
            None => by.key.fingerprint().to_string(),
        });
        match known {
            Some((host, pin)) if proof.settles(&pin.proof) => {
                let pin = Pin { proof, date: self.question.now.date(), by: None, ..pin.clone() };
                vec![Effect::Pin(host.name().clone(), Box::new(pin))]
            }
            _ => Vec::new(),
        }
    }

    /// Decides about a known host that shows a key which no host has pinned.
    fn another_key(&self, host: &HostFile) -> Decision {
        // Retired keys come first, because DNS records can outlive keys.
        if let Some((_, since)) = host.retired_keys().find(|(key, _)| *key == self.key) {
            return self.refuse(Reason::KeyRefused, self.retired_key(since));
        }
        if host.sshfp() == Sshfp::RequireSecure {
            if self.question.sshfp.vouches_for(self.key) {
                let date = self.question.now.date();
                let pin = Pin { key: self.key.clone(), proof: Proof::Sshfp, date, by: None, absent: None };
                return self.accept(vec![Effect::Pin(host.name().clone(), Box::new(pin))]);
            }
            if let SshfpAnswer::Bogus(why) = self.question.sshfp {
                return self.refuse(Reason::KeyRefused, self.bogus(why));
            }
        }
        let Some(strongest) = host.pins().max_by_key(|pin| strength(pin.key.algorithm())) else {
            return self.queued();
        };
        let weakest = host.pins().map(|pin| strength(pin.key.algorithm())).min().unwrap_or(0);
        if strength(self.key.algorithm()) < weakest {
            return self.refuse(Reason::KeyRefused, self.weaker_key_message(strongest));
        }
        let same_type = host.pins().find(|pin| pin.key.algorithm() == self.key.algorithm());
        let mut decision = self.refuse(Reason::KeyChanged, self.changed(same_type.unwrap_or(strongest)));
        decision.effects.push(Effect::Changed { host: host.name().clone(), key: Box::new(self.key.clone()) });
        decision
    }

    fn accept(&self, mut effects: Vec<Effect>) -> Decision {
        let Some(host) = self.host else {
            return Decision { verdict: Verdict::Accepted { note: None }, effects, host: None };
        };
        let mut note = None;
        if let Some(to) = self.question.address
            && !host.address().addresses.contains(&to)
        {
            let of_family = |known: &IpAddr| known.is_ipv4() == to.is_ipv4();
            match host.address().addresses.into_iter().rev().find(of_family) {
                Some(from) if host.was_at(to) => {
                    effects.push(Effect::WentBack { host: host.name().clone(), from, to });
                }
                Some(from) => {
                    note = Some(format!("{} moved {from} -> {to}, same key", host.name()));
                    effects.push(Effect::Moved { host: host.name().clone(), from, to });
                }
                None => effects.push(Effect::AddressFound(host.name().clone(), to)),
            }
        }
        if let Some(Effect::Pin(_, pin)) = effects.first()
            && host.pin(&pin.key).is_some()
        {
            let proved = format!(
                "{}: {}, trusted on first use so far, is proved now: from={}",
                host.name(),
                shown(&pin.key),
                pin.proof
            );
            note = Some(note.map_or_else(|| proved.clone(), |moved| format!("{moved}; {proved}")));
        }
        effects.push(Effect::Good(host.name().clone(), self.question.address));
        Decision { verdict: Verdict::Accepted { note }, effects, host: Some(host.name().clone()) }
    }

    fn refuse(&self, reason: Reason, said: RefusalText) -> Decision {
        refuse(self.host, reason, said)
    }

    /// Finds another host that has or had this key; hosts that have the key come first.
    fn owner(&self) -> Option<&HostFile> {
        let is_this = |host: &HostFile| self.host.is_some_and(|this| this.name() == host.name());
        let owners: Vec<&HostFile> = self.index.owners(self.key).filter(|host| !is_this(host)).collect();
        owners.iter().find(|host| host.pin(self.key).is_some()).or(owners.first()).copied()
    }

    fn queued(&self) -> Decision {
        let mut decision = self.refuse(Reason::UnknownHost, self.unknown());
        decision.effects.push(Effect::Queue {
            name: self.enrol_as(),
            address: self.question.address,
            port: self.question.port,
            key: Box::new(self.key.clone()),
        });
        decision
    }

    /// Name to use in the advice to enrol the host.
    fn enrol_as(&self) -> String {
        match self.host {
            // OpenSSH writes no brackets for port 22, and finds no name with them.
            Some(host) if host.is_elsewhere(self.question.port) && self.question.port != 22 => {
                format!("[{}]:{}", self.question.name, self.question.port)
            }
            Some(host) => host.name().to_string(),
            None => self.question.name.to_owned(),
        }
    }
}

fn refuse(host: Option<&HostFile>, reason: Reason, said: RefusalText) -> Decision {
    let RefusalText { message, advice } = said;
    let host = host.map(|host| host.name().clone());
    Decision { verdict: Verdict::Refused { reason, message, advice }, effects: Vec::new(), host }
}

#[cfg(test)]
mod tests;
