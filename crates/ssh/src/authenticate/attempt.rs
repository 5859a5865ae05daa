//! Steps of a log-in as data: `penstock ssh explain` prints them, and a failure lists them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hosts::ssh::key::Fingerprint;

use text::terminal::escaped;

/// One step: the thing tried, its source and the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    pub what: What,
    pub source: Source,
    pub answer: Answer,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The request `none`, which asks for the methods that the server accepts (RFC 4252 section 5.2).
    Methods,
    AgentKeys,
    /// A key file that cannot be read, or whose public key is known only after the file is opened.
    File,
    Key {
        /// Public key algorithm, such as `ssh-ed25519`.
        algorithm: String,
        fingerprint: Fingerprint,
    },
    Certificate {
        /// Certificate type, such as `ssh-ed25519-cert-v01@openssh.com`.
        algorithm: String,
        /// Fingerprint of the key that is certified.
        fingerprint: Fingerprint,
        /// Key id of the certificate, safe to print on a terminal.
        id: String,
        /// Reason why the server may refuse the certificate, if this program sees one.
        doubt: Option<String>,
    },
    Interactive,
}

/// Source of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Nothing,
    File(PathBuf),
    Agent {
        socket: PathBuf,
        /// Comment of the key in the agent, safe to print on a terminal.
        comment: String,
        /// Key file or configuration file that names the same key.
        named_by: Option<PathBuf>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Accepted,
    /// The server accepted the key, and wants one of the methods in `next` too.
    Partial {
        next: Vec<&'static str>,
    },
    /// The server refused the key before a signature.
    Refused {
        next: Vec<&'static str>,
    },
    /// The server accepted the key, received the signature, and then refused the log-in.
    RefusedSigned {
        next: Vec<&'static str>,
    },
    /// Number of keys in an agent.
    Holds(usize),
    /// Reason why the key was not offered.
    NotOffered(String),
    /// The key or agent could not be used.
    Unusable {
        why: String,
        advice: Option<String>,
    },
    /// The server ended the connection, perhaps with this message.
    HungUp(Option<String>),
    /// The server sent no answer within this time.
    Silent(Duration),
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (What::Methods, Answer::Refused { next }) = (&self.what, &self.answer) {
            // The request `none` is not an attempt to log in; its answer is a list of methods.
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
    escaped(&path.to_string_lossy(), 200)
}

/// Returns the usual short name of a key type.
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
