//! What is wrong with a file of ours, and what to do about it.

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::ask::AskError;
use crate::harmless::shell_word;

/// A key or certificate that cannot be used.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[error("{}: {fault}", crate::harmless::harmless(&path.to_string_lossy(), 4096))]
pub struct KeyFault {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub fault: Fault,
}

/// What is wrong with a key or certificate.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is there.
    #[error("no such file")]
    Missing,
    /// We may not read it.
    #[error("we may not read it")]
    Denied,
    /// Reading failed otherwise.
    #[error("reading it failed: {0}")]
    Unreadable(String),
    /// A directory, a FIFO, ...
    #[error("it is {0}, not a key file")]
    NotAFile(&'static str),
    /// Nothing is in it.
    #[error("it is empty")]
    Empty,
    /// Too long for a key.
    #[error("it is longer than {longest} bytes: that is no key")]
    TooLong {
        /// The limit, in bytes.
        longest: u64,
    },
    /// Others can read it, or change it.
    #[error("others can read or change it (mode {mode:04o}), so it is not used")]
    Exposed {
        /// Permission bits.
        mode: u32,
        /// Permission bits that are safe.
        keep: u32,
    },
    /// PuTTY's own form.
    #[error("it is a key in PuTTY's form")]
    Putty,
    /// It ends in the middle.
    #[error("it is cut off: its last line (-----END ...) is missing")]
    CutOff,
    /// A FIDO key: the private half is in a device.
    #[error("it is a FIDO key, which needs its security key: we use those through an agent only")]
    Fido,
    /// DSA.
    #[error("it is a DSA key: no server accepts those any more")]
    Dsa,
    /// A public key, but not in OpenSSH's form.
    #[error("it is a public key, not a private one")]
    PublicPem,
    /// An X.509 certificate.
    #[error("it is an X.509 certificate, not an SSH key")]
    X509,
    /// PEM with a cipher from before 2014.
    #[error("it is encrypted in an old form that we do not open")]
    OldEncryption,
    /// Damaged, or of a kind we do not know.
    #[error("it cannot be read as a key: {0}")]
    Broken(String),
    /// No key of any form.
    #[error("it is not a key in any form we know (OpenSSH, PKCS#8, PKCS#1, SEC1)")]
    NoKey,
    /// The passphrase was wrong, each time.
    #[error("the passphrase is wrong")]
    WrongPassphrase,
    /// No passphrase to be had.
    #[error("it is encrypted, and {0}")]
    NoPassphrase(AskError),
    /// The `.pub` beside it belongs to another key.
    #[error("the public key beside it ({}.pub) belongs to another key", .0.display())]
    OtherHalf(PathBuf),
    /// A certificate file that is none.
    #[error("it is not an SSH certificate")]
    NoCertificate,
    /// The private half is nowhere.
    #[error("it is a public key, and no agent holds its private half")]
    NoPrivateHalf,
}

impl Fault {
    /// The same, with its file.
    pub(crate) fn at(self, path: &Path) -> KeyFault {
        KeyFault { path: path.to_owned(), fault: self }
    }
}

impl KeyFault {
    /// What to do about it, where we know.
    #[must_use]
    pub fn advice(&self) -> Option<String> {
        let path = shell_word(&self.path);
        Some(match &self.fault {
            Fault::Missing => {
                format!("make a key (ssh-keygen -t ed25519 -f {path}), or correct IdentityFile")
            }
            Fault::Denied | Fault::Unreadable(_) => format!("look at its owner and mode: ls -l {path}"),
            Fault::NotAFile(_) | Fault::TooLong { .. } | Fault::NoKey | Fault::X509 => {
                "name the private key file in IdentityFile".to_owned()
            }
            Fault::Empty | Fault::CutOff | Fault::Broken(_) => {
                format!("restore it from a backup; ssh-keygen -y -f {path} shows whether it is whole")
            }
            Fault::Exposed { keep, .. } => {
                format!("chmod {keep:o} {path} (and replace the key if somebody may have read it)")
            }
            Fault::Putty => format!("convert it: puttygen {path} -O private-openssh -o {path}.openssh"),
            Fault::Fido => format!("plug the security key in and give it to the agent: ssh-add {path}"),
            Fault::Dsa => "make a new key: ssh-keygen -t ed25519".to_owned(),
            Fault::PublicPem | Fault::NoPrivateHalf => {
                "name the private key file, or load it into the agent with ssh-add".to_owned()
            }
            Fault::OldEncryption => {
                format!("rewrite it in today's form, with the same passphrase: ssh-keygen -p -f {path}")
            }
            Fault::WrongPassphrase => format!("ssh-keygen -y -f {path} tells whether you have the right one"),
            Fault::NoPassphrase(AskError::Nobody) => {
                format!(
                    "load it into an agent first: ssh-add {path}; or set SSH_ASKPASS and SSH_ASKPASS_REQUIRE=force"
                )
            }
            Fault::NoPassphrase(_) => format!("try again, or load it into an agent first: ssh-add {path}"),
            Fault::OtherHalf(key) => {
                let key = shell_word(key);
                format!("write it anew: ssh-keygen -y -f {key} > {key}.pub")
            }
            Fault::NoCertificate => {
                "name a file that ssh-keygen -s made (…-cert.pub) in CertificateFile".to_owned()
            }
        })
    }
}
