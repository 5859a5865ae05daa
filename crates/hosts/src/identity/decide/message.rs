//! Messages and advice about the identity of hosts.

use super::{Case, Offered, Verdict};
use crate::fleet::ending::Reason;
use crate::identity::date::Date;
use crate::identity::host::{HostFile, Pin};
use crate::identity::index::Damage;
use crate::identity::known_hosts::{KnownLine, Names};
use crate::identity::name::Name;
use crate::ssh::key::PublicKey;
use text::terminal::escaped;

pub(super) struct RefusalText {
    pub(super) message: String,
    pub(super) advice: String,
}

/// End of the advice for a host in the enrolment queue.
const LISTED: &str = " (all hosts that wait for enrolment: penstock host pending)";

/// Removes `LISTED` from the advice, for a host that was not added to the queue.
#[must_use]
pub fn unqueued(advice: &str) -> &str {
    advice.strip_suffix(LISTED).unwrap_or(advice)
}

/// Advice for an unknown host whose key is in the user's `known_hosts`, on `line` under `name`.
#[must_use]
pub fn known_to_ssh(advice: &str, line: &KnownLine, name: &Name) -> String {
    // The import finds a hashed name only if it is given.
    let option = match line.names {
        Names::Plain(_) => String::new(),
        Names::Hashed { .. } => format!(" --name {}", text::shell::word(name.as_str())),
    };
    format!(
        "~/.ssh/known_hosts has this key for it in line {}; to trust that: penstock host import{option}; else {advice}",
        line.number
    )
}

/// Note about two hosts of a run that showed each other's keys.
#[must_use]
pub fn swapped(one: &Name, other: &Name) -> String {
    format!(
        "{one} and {other} are swapped: each showed the key of the other; exchange their addresses where they are given"
    )
}

/// Note about hosts of a run that showed the same key.
#[must_use]
pub fn same_machine(names: &[&str], key: &PublicKey) -> String {
    format!(
        "{} are one machine, or clones: all showed the host key {}",
        crate::fleet::nodeset::fold(names.iter().copied()),
        shown(key)
    )
}

impl Case<'_> {
    /// Identity of the host, or the name of the question.
    fn name(&self) -> &str {
        self.host.map_or(self.question.name, |host| host.name().as_str())
    }

    /// Key type and fingerprint: `ssh-ed25519 SHA256:…`
    fn shown(&self) -> String {
        shown(self.key)
    }

    fn at(&self) -> String {
        self.question.address.map_or_else(String::new, |address| format!(" at {address}"))
    }

    pub(super) fn wrong_host(&self, other: &HostFile) -> RefusalText {
        let (name, other) = (self.name(), other.name());
        let address =
            self.question.address.map_or_else(|| "the address".into(), |address| address.to_string());
        RefusalText {
            message: format!("it showed the key of {other}, not of {name}; nothing was sent"),
            advice: format!(
                "{address} now belongs to {other}; if {name} moved: penstock host move {name} ADDRESS"
            ),
        }
    }

    pub(super) fn known_elsewhere(&self, other: &HostFile) -> RefusalText {
        let (name, other) = (self.name(), other.name());
        // A shell would expand brackets as a pattern.
        let quote = |name: &str| if name.contains('[') { format!("'{name}'") } else { name.to_owned() };
        RefusalText {
            message: format!("{name} is not enrolled, and showed the key of {other}; nothing was sent"),
            advice: format!(
                "if it is the same host: penstock host alias {} {}; to import all names of ssh_config and known_hosts: \
                 penstock host import",
                quote(other.as_str()),
                quote(name)
            ),
        }
    }

    pub(super) fn changed(&self, pin: &Pin) -> RefusalText {
        let name = self.name();
        let last = self
            .question
            .last_good
            .map_or_else(|| "not seen since".into(), |date| format!("last accepted {date}"));
        let others = match self.question.run.map(|run| run.changed) {
            None => String::new(),
            Some(0) => "; no other host changed its key in this run".to_owned(),
            Some(1) => "; 1 other host changed its key in this run".to_owned(),
            Some(many) => format!("; {many} other hosts changed their key in this run"),
        };
        RefusalText {
            message: format!(
                "{name} showed {new}, but {old} is pinned (from={proof} {date}, {last}){others}; nothing was sent",
                new = self.shown(),
                old = shown(&pin.key),
                proof = pin.proof,
                date = pin.date,
            ),
            advice: format!(
                "if {name} was reinstalled, read the fingerprint on its console, then: \
                 penstock host add {name} --replace --fingerprint SHA256:..."
            ),
        }
    }

    pub(super) fn unknown(&self) -> RefusalText {
        if let Some(host) = self.host
            && let Some(own) = host.port().filter(|own| *own != self.question.port)
        {
            return self.on_another_port(host, own);
        }
        let name = self.enrol_as();
        let known = if self.host.is_some() { "has no pinned key" } else { "is not enrolled" };
        // A shell would expand brackets as a pattern.
        let (quoted, port) = match self.question.port {
            _ if name.starts_with('[') => (format!("'{name}'"), String::new()),
            22 => (name.clone(), String::new()),
            port => (name.clone(), format!(" --port {port}")),
        };
        RefusalText {
            message: format!(
                "{name}{at} {known}; it showed {key}; nothing was sent",
                at = self.at(),
                key = self.shown()
            ),
            advice: format!(
                "read the fingerprint on its console, then: penstock host add {quoted}{port} --fingerprint SHA256:...{LISTED}"
            ),
        }
    }

    /// Refusal on a port that is not the port of the host: another server, or the host on a new port with a new key.
    /// Only the operator knows which.
    fn on_another_port(&self, host: &HostFile, own: u16) -> RefusalText {
        let (name, port) = (host.name(), self.question.port);
        let place = match self.question.address {
            Some(address) => format!("{address}, port {port},"),
            None => format!("port {port}"),
        };
        let another = match port {
            22 => "give it a name of its own with HostKeyAlias in ~/.ssh/config".to_owned(),
            _ => format!("penstock host add '{}' --fingerprint SHA256:...", self.enrol_as()),
        };
        let itself = match name.split_port().1 {
            // The port is part of the name.
            Some(_) => String::new(),
            None => format!(
                "; if it is {name}, moved there with a new key: penstock host add {name} --port {port} --replace \
                 --fingerprint SHA256:..."
            ),
        };
        RefusalText {
            message: format!(
                "{name} is enrolled at port {own}; what answered at {place} showed {key}; nothing was sent",
                key = self.shown()
            ),
            advice: format!(
                "read the fingerprint on its console; if it is another server: {another}{itself}{LISTED}"
            ),
        }
    }

    pub(super) fn revoked(&self) -> Option<RefusalText> {
        let authority = match self.question.offered {
            Offered::Certificate(certificate) => Some(&certificate.authority),
            Offered::Key(_) | Offered::Unreadable(..) => None,
        };
        let is_revoked = |key: &PublicKey| self.index.revokes(key, self.host);
        let (what, key) = match authority.filter(|key| is_revoked(key)) {
            Some(key) => ("a certificate of the revoked authority", key),
            None if is_revoked(self.key) => ("the revoked key", self.key),
            None => return None,
        };
        Some(self.revoked_key(what, key))
    }

    pub(super) fn revoked_key(&self, what: &str, key: &PublicKey) -> RefusalText {
        let name = self.name();
        RefusalText {
            message: format!("{name} showed {what} {}; nothing was sent", shown(key)),
            advice: format!(
                "a thief of that key can pose as {name}: give the host new keys, then enrol them"
            ),
        }
    }

    pub(super) fn retired_host(&self, since: Date) -> RefusalText {
        let name = self.name();
        RefusalText {
            message: format!("{name} is retired since {since}; nothing was sent"),
            advice: format!("if it is in service again: penstock host retire {name} --undo"),
        }
    }

    pub(super) fn retired_key(&self, since: Date) -> RefusalText {
        let name = self.name();
        RefusalText {
            message: format!(
                "{name} showed {}, which is retired since {since}; nothing was sent",
                self.shown()
            ),
            advice: format!(
                "if it was restored from a backup, read the fingerprint on its console, then: \
                 penstock host add {name} --revive --replace --fingerprint SHA256:..."
            ),
        }
    }

    pub(super) fn weaker_key_message(&self, pin: &Pin) -> RefusalText {
        let name = self.name();
        RefusalText {
            message: format!(
                "{name} showed {new}, a weaker type than the pinned {old}; nothing was sent",
                new = self.shown(),
                old = shown(&pin.key)
            ),
            advice: format!(
                "an attacker may be forcing a weaker key; if {name} really lost its {old} key: \
                 penstock host add {name} --replace --fingerprint SHA256:...",
                old = pin.key.algorithm()
            ),
        }
    }

    pub(super) fn bare_key(&self) -> RefusalText {
        let name = self.name();
        RefusalText {
            message: format!(
                "{name} showed {} without a certificate, but a certificate of its authority is required; nothing was sent",
                self.shown()
            ),
            advice: format!(
                "check that HostCertificate is set in sshd_config of {name}, and that the file exists"
            ),
        }
    }

    pub(super) fn bad_certificate(&self, fault: &str) -> RefusalText {
        let name = self.name();
        RefusalText {
            message: format!(
                "the certificate of {name} is refused: {}; nothing was sent",
                escaped(fault, LONGEST)
            ),
            advice: format!(
                "have the authority sign a new one for {name}: ssh-keygen -s CA -h -I {name} -n {name} KEY.pub"
            ),
        }
    }

    pub(super) fn bogus(&self, why: &str) -> RefusalText {
        let name = self.name();
        RefusalText {
            message: format!(
                "{name} showed {}, and its SSHFP records fail DNSSEC validation: {}; nothing was sent",
                self.shown(),
                escaped(why, LONGEST)
            ),
            advice: "the DNS answer is forged, or the zone is signed wrongly: check its DNSSEC signatures"
                .into(),
        }
    }

    pub(super) fn missing_authority(&self, missing: &Name) -> RefusalText {
        let name = self.name();
        RefusalText {
            message: format!(
                "the file of {name} names the authority @{missing}, which is missing or damaged; nothing was sent"
            ),
            advice: "restore its file in the directory authorities; details: penstock host audit".into(),
        }
    }
}

/// Verdict on a host that shows another key at a rekey of an open connection. The verdict is a refusal even if the new
/// key is pinned: no server has a reason to change its host key during a connection.
#[must_use]
pub fn changed_anew(name: &str, before: &PublicKey, now: &PublicKey) -> Verdict {
    Verdict::Refused {
        reason: Reason::KeyChanged,
        message: format!(
            "{name} showed {} at a rekey, and {} before; nothing more was sent",
            shown(now),
            shown(before)
        ),
        advice: format!(
            "another machine may have taken over the connection to {name}: check the network path"
        ),
    }
}

pub(super) fn damaged(name: &str, damage: &Damage) -> RefusalText {
    let fault = damage.faults.first().map_or_else(|| "it cannot be read".into(), ToString::to_string);
    RefusalText {
        message: format!(
            "the identity of {name} cannot be read: {}: {}; nothing was sent",
            damage.path,
            escaped(&fault, LONGEST)
        ),
        advice: format!(
            "repair that file or restore it; the other hosts are not affected (penstock host show {name})"
        ),
    }
}

pub(super) fn ambiguous(name: &str, names: &[&Name]) -> RefusalText {
    let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    RefusalText {
        message: format!("{name} is a hint of {}, so it is ambiguous; nothing was sent", names.join(" and ")),
        advice: format!("use the name of the host, or remove {name} from the other files"),
    }
}

pub(super) fn shown(key: &PublicKey) -> String {
    format!("{} {}", key.algorithm(), key.fingerprint())
}

/// Limit in characters of text that others chose.
const LONGEST: usize = 300;
