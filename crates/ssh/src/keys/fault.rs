//! Faults of key and certificate files, with advice.

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::ask::AskError;
use text::shell;

/// A key or certificate file that cannot be used.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[error("{}: {fault}", text::terminal::escaped(&path.to_string_lossy(), 4096))]
pub struct KeyFault {
    pub path: PathBuf,
    pub fault: Fault,
}

/// Fault of a key or certificate file.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum Fault {
    #[error("no such file")]
    Missing,
    #[error("permission denied")]
    Denied,
    #[error("reading it failed: {0}")]
    Unreadable(String),
    /// A directory or a FIFO, for example.
    #[error("it is {0}, not a key file")]
    NotAFile(&'static str),
    #[error("it is empty")]
    Empty,
    #[error("it is longer than {longest} bytes: not a key")]
    TooLong { longest: u64 },
    /// Other users can read or change the file.
    #[error("others can read or change it (mode {mode:04o}), so it is not used")]
    Exposed {
        mode: u32,
        /// Mask of the permission bits that are safe.
        keep: u32,
    },
    #[error("it is in PuTTY's format")]
    Putty,
    #[error("it is truncated: its last line (-----END ...) is missing")]
    CutOff,
    /// A FIDO key: its private key is in a device.
    #[error("it is a FIDO key: those are used only through an agent")]
    Fido,
    #[error("it is a DSA key: no server accepts those any more")]
    Dsa,
    /// A public key in another format than OpenSSH's.
    #[error("it is a public key, not a private one")]
    PublicPem,
    #[error("it is an X.509 certificate, not an SSH key")]
    X509,
    /// PEM with a cipher from before 2014.
    #[error("it is encrypted in an old format, which is not supported")]
    OldEncryption,
    /// The file is damaged, or its key type is unknown.
    #[error("it cannot be read as a key: {0}")]
    Broken(String),
    #[error("it is not in a known key format (OpenSSH, PKCS#8, PKCS#1, SEC1)")]
    NoKey,
    /// Every passphrase that the person typed was wrong.
    #[error("the passphrase is wrong")]
    WrongPassphrase,
    #[error("it is encrypted, and {0}")]
    NoPassphrase(AskError),
    /// The `.pub` file beside the key file belongs to another key.
    #[error("the public key beside it ({}.pub) belongs to another key", .0.display())]
    OtherHalf(PathBuf),
    #[error("it is not an SSH certificate")]
    NoCertificate,
    #[error("it is a public key, and no agent holds its private half")]
    NoPrivateHalf,
}

impl Fault {
    /// Adds the path of the file.
    pub(crate) fn at(self, path: &Path) -> KeyFault {
        KeyFault { path: path.to_owned(), fault: self }
    }
}

impl KeyFault {
    /// Returns advice for the user, if there is any.
    #[must_use]
    pub fn advice(&self) -> Option<String> {
        let path = shell::path(&self.path);
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
                format!("chmod {keep:o} {path} (and replace the key if another user may have read it)")
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
            Fault::NoPassphrase(AskError::NoPrompt) => {
                format!(
                    "load it into an agent first: ssh-add {path}; or set SSH_ASKPASS and SSH_ASKPASS_REQUIRE=force"
                )
            }
            Fault::NoPassphrase(_) => format!("try again, or load it into an agent first: ssh-add {path}"),
            Fault::OtherHalf(key) => {
                let key = shell::path(key);
                format!("write it anew: ssh-keygen -y -f {key} > {key}.pub")
            }
            Fault::NoCertificate => {
                "name a file that ssh-keygen -s made (…-cert.pub) in CertificateFile".to_owned()
            }
        })
    }
}
