//! The steps of a log-in, as data: `penstock ssh explain` narrates them, and a failure sums them up.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use logic::ssh::key::Fingerprint;

use crate::harmless::harmless;

/// One step: what was tried, where it came from, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// What was tried.
    pub what: What,
    /// Where it came from.
    pub source: Source,
    /// What came of it.
    pub answer: Answer,
}

/// What was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The request `none`, which asks what the server accepts (RFC 4252 section 5.2).
    Methods,
    /// The list of keys of an agent.
    AgentKeys,
    /// A key file whose key shows only when it is open, or that cannot be read.
    File,
    /// A key.
    Key {
        /// Such as `ssh-ed25519`.
        algorithm: String,
        /// Its fingerprint.
        fingerprint: Fingerprint,
    },
    /// A user certificate.
    Certificate {
        /// Such as `ssh-ed25519-cert-v01@openssh.com`.
        algorithm: String,
        /// The fingerprint of the key it is for.
        fingerprint: Fingerprint,
        /// Its key id, harmless on a terminal.
        id: String,
        /// Why it may be refused, as far as can be seen from here.
        doubt: Option<String>,
    },
    /// The server's questions to a person.
    Interactive,
}

/// Where a key came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// It is no key.
    Nothing,
    /// A file.
    File(PathBuf),
    /// An agent.
    Agent {
        /// Its socket.
        socket: PathBuf,
        /// What it says about the key; harmless on a terminal.
        comment: String,
        /// The file or the configuration that names the same key.
        named_by: Option<PathBuf>,
    },
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Logged in.
    Accepted,
    /// Accepted, and more is wanted: one of these methods.
    Partial {
        /// Methods that can go on.
        next: Vec<&'static str>,
    },
    /// The server does not want it.
    Refused {
        /// Methods that can go on.
        next: Vec<&'static str>,
    },
    /// The server wanted it, got the signature, and then refused all the same.
    RefusedSigned {
        /// Methods that can go on.
        next: Vec<&'static str>,
    },
    /// An agent holds so many keys.
    Holds(usize),
    /// Not offered: why.
    NotOffered(String),
    /// It could not be used: why, and what to do.
    Unusable {
        /// Why.
        why: String,
        /// What to do.
        advice: Option<String>,
    },
    /// The server ended the connection: what it said.
    HungUp(Option<String>),
    /// The server said nothing for so long.
    Silent(Duration),
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (What::Methods, Answer::Refused { next }) = (&self.what, &self.answer) {
            // A question, not a try: the answer is a list.
            let accepted =
                if next.is_empty() { "nothing that we can do".to_owned() } else { next.join(", ") };
            return write!(f, "asked what the server accepts: {accepted}");
        }
        match (&self.what, &self.source) {
            (What::Methods, _) => f.write_str("asked what the server accepts")?,
            (What::Interactive, _) => f.write_str("keyboard-interactive")?,
            (What::AgentKeys, Source::Agent { socket, .. }) => write!(f, "agent {}", path(socket))?,
            (What::AgentKeys | What::File, source) => write!(f, "{source}")?,
            (What::Key { algorithm, fingerprint }, source) => {
                write!(f, "{source} ({} {fingerprint})", short(algorithm))?;
            }
            (What::Certificate { algorithm, id, doubt, .. }, source) => {
                write!(f, "{source} (certificate \"{id}\", {})", short(algorithm))?;
                if let Some(doubt) = doubt {
                    write!(f, " ({doubt})")?;
                }
            }
        }
        write!(f, ": {}", self.answer)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("no key"),
            Self::File(file) => f.write_str(&path(file)),
            Self::Agent { named_by: Some(file), .. } => write!(f, "{} from the agent", path(file)),
            Self::Agent { comment, .. } if comment.is_empty() => f.write_str("a key of the agent"),
            Self::Agent { comment, .. } => write!(f, "\"{comment}\" of the agent"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted => f.write_str("accepted"),
            Self::Partial { next } => write!(f, "accepted, and the server wants {} too", next.join(" or ")),
            Self::Refused { .. } => f.write_str("refused"),
            Self::RefusedSigned { .. } => f.write_str("wanted, but refused after we signed"),
            Self::Holds(1) => f.write_str("holds 1 key"),
            Self::Holds(count) => write!(f, "holds {count} keys"),
            Self::NotOffered(why) => write!(f, "not offered: {why}"),
            Self::Unusable { why, .. } => f.write_str(why),
            Self::HungUp(Some(said)) => write!(f, "the connection ended ({said})"),
            Self::HungUp(None) => f.write_str("the server ended the connection"),
            Self::Silent(limit) => write!(f, "the server did not answer within {} s", limit.as_secs_f32()),
        }
    }
}

fn path(path: &Path) -> String {
    harmless(&path.to_string_lossy(), 200)
}

/// The kind of a key as people say it.
fn short(algorithm: &str) -> &str {
    let plain = algorithm.trim_end_matches("-cert-v01@openssh.com").trim_end_matches("@openssh.com");
    match plain {
        "ssh-ed25519" => "ED25519",
        "ssh-rsa" | "rsa-sha2-256" | "rsa-sha2-512" => "RSA",
        "sk-ssh-ed25519" => "ED25519-SK",
        "sk-ecdsa-sha2-nistp256" => "ECDSA-SK",
        name if name.starts_with("ecdsa-") => "ECDSA",
        name => name,
    }
}
