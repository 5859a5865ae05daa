//! The table of decisions: a name, an address and what was offered go in; a verdict with its message comes out, and what
//! is to be recorded after the connection. Every message about identity is written here and nowhere else.

use std::net::IpAddr;

use super::certificate::HostCertificate;
use super::date::{Date, Moment};
use super::host::{HostFile, Pin, Sshfp};
use super::index::{Damage, Found, Index};
use super::name::Name;
use super::proof::Proof;
use super::sshfp::SshfpAnswer;
use super::strength;
use crate::fleet::ending::Reason;
use crate::ssh::key::PublicKey;

/// What a server showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Offered {
    /// A bare key.
    Key(PublicKey),
    /// A certificate.
    Certificate(Box<HostCertificate>),
}

impl Offered {
    /// The key: that of the certificate, if it is one.
    #[must_use]
    pub fn key(&self) -> &PublicKey {
        match self {
            Self::Key(key) => key,
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
    /// The rest of the fleet.
    pub run: Run,
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
    let host = match index.find(question.name, question.port) {
        Found::Host(host) => Some(host),
        Found::Nobody => None,
        Found::Damaged(damage) => return refuse(None, Reason::Configuration, damaged(question.name, damage)),
        Found::Ambiguous(names) => {
            return refuse(None, Reason::Configuration, ambiguous(question.name, &names));
        }
    };
    Case { question, index, host, key: question.offered.key() }.decide()
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
        if let Some((_, since)) = host.retired_keys().find(|(key, _)| *key == self.key) {
            return self.refuse(Reason::KeyRefused, self.retired_key(since));
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
            && !host.known_addresses().any(|known| known == to)
        {
            let of_family = |known: &IpAddr| known.is_ipv4() == to.is_ipv4();
            match host.address().addresses.into_iter().rev().find(of_family) {
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
            Some(host) if host.is_elsewhere(self.question.port) => {
                format!("[{}]:{}", self.question.name, self.question.port)
            }
            Some(host) => host.name().to_string(),
            None => self.question.name.to_owned(),
        }
    }
}

/// What is said of a refusal: what was found, and what to do.
struct Said {
    message: String,
    advice: String,
}

fn refuse(host: Option<&HostFile>, reason: Reason, said: Said) -> Decision {
    let Said { message, advice } = said;
    let host = host.map(|host| host.name().clone());
    Decision { verdict: Verdict::Refused { reason, message, advice }, effects: Vec::new(), host }
}

/// The messages.
impl Case<'_> {
    /// The host as the user knows it.
    fn name(&self) -> &str {
        self.host.map_or(self.question.name, |host| host.name().as_str())
    }

    /// `ssh-ed25519 SHA256:…`
    fn shown(&self) -> String {
        shown(self.key)
    }

    fn at(&self) -> String {
        self.question.address.map_or_else(String::new, |address| format!(" at {address}"))
    }

    fn impostor(&self, other: &HostFile) -> Said {
        let (name, other) = (self.name(), other.name());
        let address =
            self.question.address.map_or_else(|| "the address".into(), |address| address.to_string());
        Said {
            message: format!("answered as {other}, not {name}; nothing was sent"),
            advice: format!(
                "{address} is {other} now: when you know where {name} is, penstock host move {name} ADDRESS"
            ),
        }
    }

    fn known_elsewhere(&self, other: &HostFile) -> Said {
        let (name, other) = (self.name(), other.name());
        // A shell would take brackets for a pattern.
        let quote = |name: &str| if name.contains('[') { format!("'{name}'") } else { name.to_owned() };
        Said {
            message: format!("{name} is not enrolled, and answered as {other}; nothing was sent"),
            advice: format!(
                "if that is the same host: penstock host alias {} {}; for all that ssh_config names and known_hosts knows: \
                 penstock host import",
                quote(other.as_str()),
                quote(name)
            ),
        }
    }

    fn changed(&self, pin: &Pin) -> Said {
        let name = self.name();
        let last = self
            .question
            .last_good
            .map_or_else(|| "never seen since".into(), |date| format!("last good {date}"));
        let others = match self.question.run.changed {
            0 => "no other host changed its key in this run".to_owned(),
            1 => "1 other host changed its key in this run".to_owned(),
            many => format!("{many} other hosts changed their key in this run"),
        };
        Said {
            message: format!(
                "{name} showed {new}, but {old} is pinned (from={proof} {date}, {last}); {others}; nothing was sent",
                new = self.shown(),
                old = shown(&pin.key),
                proof = pin.proof,
                date = pin.date,
            ),
            advice: format!(
                "if {name} was installed anew, read the fingerprint on its console, then: \
                 penstock host add {name} --replace --fingerprint SHA256:..."
            ),
        }
    }

    fn unknown(&self) -> Said {
        let name = self.enrol_as();
        let known = match self.host {
            Some(host) if !host.is_elsewhere(self.question.port) => "has no pinned key",
            _ => "is not enrolled",
        };
        // A shell would take brackets for a pattern.
        let (quoted, port) = match self.question.port {
            _ if name.starts_with('[') => (format!("'{name}'"), String::new()),
            22 => (name.clone(), String::new()),
            port => (name.clone(), format!(" --port {port}")),
        };
        Said {
            message: format!(
                "{name}{at} {known}; it showed {key}; nothing was sent",
                at = self.at(),
                key = self.shown()
            ),
            advice: format!(
                "read the fingerprint on its console, then: penstock host add {quoted}{port} --fingerprint SHA256:... \
                 (penstock host pending lists all that wait)"
            ),
        }
    }

    fn revoked(&self) -> Option<Said> {
        let name = self.name();
        let authority = match self.question.offered {
            Offered::Certificate(certificate) => Some(&certificate.authority),
            Offered::Key(_) => None,
        };
        let (what, key) = match authority.filter(|key| self.index.is_revoked(key)) {
            Some(key) => ("a certificate of the revoked authority", key),
            None if self.index.is_revoked(self.key) => ("the revoked key", self.key),
            None => return None,
        };
        Some(Said {
            message: format!("{name} showed {what} {}; nothing was sent", shown(key)),
            advice: format!(
                "whoever stole that key can pose as {name}: give the host new keys, then enrol them"
            ),
        })
    }

    fn retired_host(&self, since: Date) -> Said {
        let name = self.name();
        Said {
            message: format!("{name} is retired since {since}; nothing was sent"),
            advice: format!("if it is in service again: penstock host retire {name} --undo"),
        }
    }

    fn retired_key(&self, since: Date) -> Said {
        let name = self.name();
        Said {
            message: format!(
                "{name} showed {}, which is retired since {since}; nothing was sent",
                self.shown()
            ),
            advice: format!(
                "if it was restored from a backup, read the fingerprint on its console, then: \
                 penstock host add {name} --replace --fingerprint SHA256:..."
            ),
        }
    }

    fn weaker(&self, pin: &Pin) -> Said {
        let name = self.name();
        Said {
            message: format!(
                "{name} showed {new}, a weaker type than the pinned {old}; nothing was sent",
                new = self.shown(),
                old = shown(&pin.key)
            ),
            advice: format!(
                "somebody may be forcing a weaker key; if {name} really lost its {old} key: \
                 penstock host add {name} --replace --fingerprint SHA256:...",
                old = pin.key.algorithm()
            ),
        }
    }

    fn bare_key(&self) -> Said {
        let name = self.name();
        Said {
            message: format!(
                "{name} showed the bare key {}, but an authority speaks for it: a certificate is required; nothing was sent",
                self.shown()
            ),
            advice: format!(
                "see that HostCertificate is set in sshd_config of {name}, and that the file is there"
            ),
        }
    }

    fn bad_certificate(&self, fault: &str) -> Said {
        let name = self.name();
        Said {
            message: format!("the certificate of {name} is refused: {}; nothing was sent", harmless(fault)),
            advice: format!(
                "have the authority sign a new one for {name}: ssh-keygen -s CA -h -I {name} -n {name} KEY.pub"
            ),
        }
    }

    fn bogus(&self, why: &str) -> Said {
        let name = self.name();
        Said {
            message: format!(
                "{name} showed {}, and DNSSEC of its SSHFP records does not hold: {}; nothing was sent",
                self.shown(),
                harmless(why)
            ),
            advice: "somebody forges the DNS, or the zone is signed badly: have its signatures looked at"
                .into(),
        }
    }

    fn missing_authority(&self, missing: &Name) -> Said {
        let name = self.name();
        Said {
            message: format!(
                "the file of {name} names the authority @{missing}, which is missing or damaged; nothing was sent"
            ),
            advice: "restore its file in the directory authorities; penstock host audit says what is wrong"
                .into(),
        }
    }
}

fn damaged(name: &str, damage: &Damage) -> Said {
    let fault = damage.faults.first().map_or_else(|| "it cannot be read".into(), ToString::to_string);
    Said {
        message: format!(
            "the identity of {name} cannot be read: {}: {}; nothing was sent",
            damage.path,
            harmless(&fault)
        ),
        advice: format!(
            "repair that file or restore it; the other hosts are not concerned (penstock host show {name})"
        ),
    }
}

fn ambiguous(name: &str, names: &[&Name]) -> Said {
    let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    Said {
        message: format!(
            "{name} is a hint of {}: it names none of them alone; nothing was sent",
            names.join(" and ")
        ),
        advice: format!("ask for the host by its name, or take {name} out of the other files"),
    }
}

fn shown(key: &PublicKey) -> String {
    format!("{} {}", key.algorithm(), key.fingerprint())
}

/// Others chose parts of this text; a terminal gets to see it.
fn harmless(text: &str) -> String {
    let is_fine = |c: char| {
        !c.is_control()
            && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    text.chars().map(|c| if is_fine(c) { c } else { '\u{fffd}' }).take(300).collect()
}

#[cfg(test)]
mod tests;
