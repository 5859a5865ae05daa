//! What is said of each refusal, and what to do about it: every message about the identity of hosts.

use super::{Case, Offered, Verdict};
use crate::fleet::ending::Reason;
use crate::harmless::escaped;
use crate::identity::date::Date;
use crate::identity::host::{HostFile, Pin};
use crate::identity::index::Damage;
use crate::identity::name::Name;
use crate::ssh::key::PublicKey;

/// What is said of a refusal: what was found, and what to do.
pub(super) struct Said {
    pub(super) message: String,
    pub(super) advice: String,
}

/// Behind the advice for a host that is put into the queue.
const LISTED: &str = " (penstock host pending lists all that wait)";

/// The same advice where the host was not put into the queue.
#[must_use]
pub fn unqueued(advice: &str) -> &str {
    advice.strip_suffix(LISTED).unwrap_or(advice)
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

    pub(super) fn impostor(&self, other: &HostFile) -> Said {
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

    pub(super) fn known_elsewhere(&self, other: &HostFile) -> Said {
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

    pub(super) fn changed(&self, pin: &Pin) -> Said {
        let name = self.name();
        let last = self
            .question
            .last_good
            .map_or_else(|| "never seen since".into(), |date| format!("last good {date}"));
        let others = match self.question.run.map(|run| run.changed) {
            None => String::new(),
            Some(0) => "; no other host changed its key in this run".to_owned(),
            Some(1) => "; 1 other host changed its key in this run".to_owned(),
            Some(many) => format!("; {many} other hosts changed their key in this run"),
        };
        Said {
            message: format!(
                "{name} showed {new}, but {old} is pinned (from={proof} {date}, {last}){others}; nothing was sent",
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

    pub(super) fn unknown(&self) -> Said {
        if let Some(host) = self.host
            && let Some(own) = host.port().filter(|own| *own != self.question.port)
        {
            return self.on_another_port(host, own);
        }
        let name = self.enrol_as();
        let known = if self.host.is_some() { "has no pinned key" } else { "is not enrolled" };
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
                "read the fingerprint on its console, then: penstock host add {quoted}{port} --fingerprint SHA256:...{LISTED}"
            ),
        }
    }

    /// Another server, or the host itself at a new port with a new key: whoever asks knows which.
    fn on_another_port(&self, host: &HostFile, own: u16) -> Said {
        let (name, port) = (host.name(), self.question.port);
        let place = match self.question.address {
            Some(address) => format!("{address}, port {port},"),
            None => format!("port {port}"),
        };
        let another = match port {
            22 => "it needs a name of its own: HostKeyAlias in ~/.ssh/config".to_owned(),
            _ => format!("penstock host add '{}' --fingerprint SHA256:...", self.enrol_as()),
        };
        let itself = match name.split_port().1 {
            // Its port is a part of its name.
            Some(_) => String::new(),
            None => format!(
                "; if it is {name}, moved there with a new key: penstock host add {name} --port {port} --replace \
                 --fingerprint SHA256:..."
            ),
        };
        Said {
            message: format!(
                "{name} is enrolled at port {own}; what answered at {place} showed {key}; nothing was sent",
                key = self.shown()
            ),
            advice: format!(
                "read the fingerprint on its console; if it is another server: {another}{itself}{LISTED}"
            ),
        }
    }

    pub(super) fn revoked(&self) -> Option<Said> {
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

    pub(super) fn revoked_key(&self, what: &str, key: &PublicKey) -> Said {
        let name = self.name();
        Said {
            message: format!("{name} showed {what} {}; nothing was sent", shown(key)),
            advice: format!(
                "whoever stole that key can pose as {name}: give the host new keys, then enrol them"
            ),
        }
    }

    pub(super) fn retired_host(&self, since: Date) -> Said {
        let name = self.name();
        Said {
            message: format!("{name} is retired since {since}; nothing was sent"),
            advice: format!("if it is in service again: penstock host retire {name} --undo"),
        }
    }

    pub(super) fn retired_key(&self, since: Date) -> Said {
        let name = self.name();
        Said {
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

    pub(super) fn weaker(&self, pin: &Pin) -> Said {
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

    pub(super) fn bare_key(&self) -> Said {
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

    pub(super) fn bad_certificate(&self, fault: &str) -> Said {
        let name = self.name();
        Said {
            message: format!(
                "the certificate of {name} is refused: {}; nothing was sent",
                escaped(fault, LONGEST)
            ),
            advice: format!(
                "have the authority sign a new one for {name}: ssh-keygen -s CA -h -I {name} -n {name} KEY.pub"
            ),
        }
    }

    pub(super) fn bogus(&self, why: &str) -> Said {
        let name = self.name();
        Said {
            message: format!(
                "{name} showed {}, and DNSSEC of its SSHFP records does not hold: {}; nothing was sent",
                self.shown(),
                escaped(why, LONGEST)
            ),
            advice: "somebody forges the DNS, or the zone is signed badly: have its signatures looked at"
                .into(),
        }
    }

    pub(super) fn missing_authority(&self, missing: &Name) -> Said {
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

/// What is decided about a host that shows another key when keys are exchanged anew on a connection that is
/// up. It is refused also where the new key is pinned: no server has a reason to change its host key there.
#[must_use]
pub fn changed_anew(name: &str, before: &PublicKey, now: &PublicKey) -> Verdict {
    Verdict::Refused {
        reason: Reason::KeyChanged,
        message: format!(
            "{name} showed {} when keys were exchanged anew, and {} before; nothing more was sent",
            shown(now),
            shown(before)
        ),
        advice: format!("another machine answers for {name} now: look for what took over the connection"),
    }
}

pub(super) fn damaged(name: &str, damage: &Damage) -> Said {
    let fault = damage.faults.first().map_or_else(|| "it cannot be read".into(), ToString::to_string);
    Said {
        message: format!(
            "the identity of {name} cannot be read: {}: {}; nothing was sent",
            damage.path,
            escaped(&fault, LONGEST)
        ),
        advice: format!(
            "repair that file or restore it; the other hosts are not concerned (penstock host show {name})"
        ),
    }
}

pub(super) fn ambiguous(name: &str, names: &[&Name]) -> Said {
    let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    Said {
        message: format!(
            "{name} is a hint of {}: it names none of them alone; nothing was sent",
            names.join(" and ")
        ),
        advice: format!("ask for the host by its name, or take {name} out of the other files"),
    }
}

pub(super) fn shown(key: &PublicKey) -> String {
    format!("{} {}", key.algorithm(), key.fingerprint())
}

/// Of what others chose.
const LONGEST: usize = 300;
