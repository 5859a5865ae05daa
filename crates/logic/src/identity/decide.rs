//! The table of decisions: a name, an address and what was offered go in; a verdict with its message comes out, and what
//! is to be recorded after the connection. The messages are in `decide/message.rs`.

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

use message::{Said, ambiguous, damaged, shown};
pub use message::{changed_anew, unqueued};

/// What a server showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Offered {
    /// A bare key.
    Key(PublicKey),
    /// A certificate.
    Certificate(Box<HostCertificate>),
    /// A blob with the type of a certificate that cannot be read as one: it is always refused.
    Unreadable(PublicKey, CertificateError),
}

impl Offered {
    /// The key: that of the certificate, if it is one. Of what cannot be read: all of it.
    #[must_use]
    pub fn key(&self) -> &PublicKey {
        match self {
            Self::Key(key) | Self::Unreadable(key, _) => key,
            Self::Certificate(certificate) => &certificate.key,
        }
    }
}

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub struct Question<'q> {
    /// What the user calls the host.
    pub name: &'q str,
    /// The address that answered; `None` through a jump host or a proxy command.
    pub address: Option<IpAddr>,
    /// Its port.
    pub port: u16,
    /// What it showed.
    pub offered: &'q Offered,
    /// What the DNS says, where it was asked.
    pub sshfp: &'q SshfpAnswer,
    /// The rest of the fleet, where many hosts are asked at once.
    pub run: Option<Run>,
    /// When the host last showed a pinned key.
    pub last_good: Option<Date>,
    /// Now.
    pub now: Moment,
}

/// What happened with the other hosts of this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Run {
    /// How many of them showed another key than the pinned one.
    pub changed: usize,
}

/// Whether we go on, and what is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is the host.
    Accepted {
        /// One line worth saying.
        note: Option<String>,
    },
    /// It is not, or we cannot know: nothing was sent.
    Refused {
        /// The group it belongs to.
        reason: Reason,
        /// What was found.
        message: String,
        /// What to do about it.
        advice: String,
    },
}

/// A verdict and what it leaves behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Whether we go on.
    pub verdict: Verdict,
    /// What is to be recorded.
    pub effects: Vec<Effect>,
    /// The identity, where the name stands for one.
    pub host: Option<Name>,
}

/// Something to record after the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The host showed that it is itself, here.
    Good(Name, Option<IpAddr>),
    /// The same key at another address.
    Moved {
        /// Who.
        host: Name,
        /// Where it was.
        from: IpAddr,
        /// Where it is.
        to: IpAddr,
    },
    /// The same key where it was before its last move. Nobody is told: a host that two addresses lead to would be told of
    /// with every other connection.
    WentBack {
        /// Who.
        host: Name,
        /// Where it was last.
        from: IpAddr,
        /// Where it is again.
        to: IpAddr,
    },
    /// The same key at one more address, the first of its family.
    AddressFound(Name, IpAddr),
    /// A key was proved on the way: a new one, or one that was trusted on first use.
    Pin(Name, Box<Pin>),
    /// The key changed: counts for the messages of the other hosts.
    Changed(Name),
    /// Nobody knows this host: it goes into the enrolment queue.
    Queue {
        /// What it was called.
        name: String,
        /// Where it was.
        address: Option<IpAddr>,
        /// Its port.
        port: u16,
        /// What it showed.
        key: Box<PublicKey>,
    },
}

/// Decides.
#[must_use]
pub fn decide(question: Question<'_>, index: &Index) -> Decision {
    // A `Name` is in lower case: so a caller that hands over the name as it was typed gets the same verdict
    // as one that parsed it.
    let name = question.name.to_ascii_lowercase();
    let question = Question { name: &name, ..question };
    let host = match index.find(question.name, question.port) {
        Found::Host(host) => Some(host),
        Found::Nobody => None,
        Found::Damaged(damage) => {
            return Decision {
                verdict: refuse_damaged(question.name, damage),
                host: None,
                effects: Vec::new(),
            };
        }
        Found::Ambiguous(names) => {
            return refuse(None, Reason::Configuration, ambiguous(question.name, &names));
        }
    };
    Case { question, index, host, key: question.offered.key() }.decide()
}

/// What is decided about the host that is called `name`, whose file is damaged, whatever it shows.
#[must_use]
pub fn refuse_damaged(name: &str, damage: &Damage) -> Verdict {
    let Said { message, advice } = damaged(name, damage);
    Verdict::Refused { reason: Reason::Configuration, message, advice }
}

/// A question about a name that is clear.
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
            return self.refuse(Reason::Configuration, self.retired_host(since));
        }
        let bound = match self.index.bound(name, self.host) {
            Ok(bound) => bound,
            Err(missing) => return self.refuse(Reason::Configuration, self.missing_authority(missing)),
        };
        // A certificate of whom we know no authority is worth the key in it, as OpenSSH has it. Where there is one, a bad
        // certificate is refused, and never looked at as a mere key.
        if let Offered::Certificate(certificate) = offered
            && !bound.is_empty()
        {
            return self.certificate(certificate, &bound);
        }
        if self.host.is_some_and(|host| host.pin(self.key).is_some()) {
            return self.accept(Vec::new());
        }
        // What another host's file revokes is read last: a pin or an authority was judged by the files that speak of this host,
        // so that one of thousands can be asked without the others.
        if self.index.is_revoked(self.key) {
            return self.refuse(Reason::KeyRefused, self.revoked_key("the revoked key", self.key));
        }
        if let Some(other) = self.owner() {
            return match self.host {
                Some(_) => self.refuse(Reason::Impostor, self.impostor(other)),
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
                // Of a plain list every name will do; of patterns those names of the host that match.
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
            format!("it is signed by {}, which is no authority for it", certificate.authority.fingerprint())
        });
        self.refuse(Reason::KeyRefused, self.bad_certificate(&fault))
    }

    /// What a good certificate leaves behind: if its key was trusted on first use so far, it is proved now.
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

    /// A key that is nobody's, from a host we know.
    fn another_key(&self, host: &HostFile) -> Decision {
        // First: records in the DNS outlive keys.
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
            return self.refuse(Reason::KeyRefused, self.weaker(strongest));
        }
        let same_type = host.pins().find(|pin| pin.key.algorithm() == self.key.algorithm());
        let mut decision = self.refuse(Reason::KeyChanged, self.changed(same_type.unwrap_or(strongest)));
        decision.effects.push(Effect::Changed(host.name().clone()));
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

    fn refuse(&self, reason: Reason, said: Said) -> Decision {
        refuse(self.host, reason, said)
    }

    /// Another host that has or had this key; one that has it comes first.
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

    /// The name under which a host is to be enrolled.
    fn enrol_as(&self) -> String {
        match self.host {
            // OpenSSH has no brackets for port 22, and looks nobody up who is called so.
            Some(host) if host.is_elsewhere(self.question.port) && self.question.port != 22 => {
                format!("[{}]:{}", self.question.name, self.question.port)
            }
            Some(host) => host.name().to_string(),
            None => self.question.name.to_owned(),
        }
    }
}

fn refuse(host: Option<&HostFile>, reason: Reason, said: Said) -> Decision {
    let Said { message, advice } = said;
    let host = host.map(|host| host.name().clone());
    Decision { verdict: Verdict::Refused { reason, message, advice }, effects: Vec::new(), host }
}

#[cfg(test)]
mod tests;
