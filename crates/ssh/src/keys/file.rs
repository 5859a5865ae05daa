//! Private key files: reads a file, finds its public key, and decrypts it with a passphrase. The functions block; they
//! neither ask questions nor keep data.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64ct::{Base64, Encoding};
use russh::keys::ssh_key::{self, Algorithm, PrivateKey, PublicKey};
use russh::keys::{Error as DecodeError, decode_secret_key};
use zeroize::Zeroizing;

use super::fault::KeyFault;

pub(crate) struct KeyFile {
    pub(crate) path: PathBuf,
    /// Public key, from the file itself or from the `.pub` file beside it. `None` if only the decrypted file contains
    /// it.
    pub(crate) public: Option<PublicKey>,
    pub(crate) private: Private,
}

pub(crate) enum Private {
    Open(Arc<PrivateKey>),
    /// Text of an encrypted file.
    Locked(Zeroizing<String>),
    /// The file contains only a public key, which names a key of the agent.
    Elsewhere,
}

/// Identifies a state of a file, to detect changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp([i64; 6]);

impl KeyFile {
    pub(crate) fn read(path: &Path) -> Result<Self, KeyFault> {
        let (text, metadata) = read_text(path, LONGEST_FILE)?;
        let kind = Kind::of(&text).map_err(|fault| fault.at(path))?;
        if let Kind::Public(public) = kind {
            return Ok(Self { path: path.to_owned(), public: Some(*public), private: Private::Elsewhere });
        }
        if let Some(fault) = exposed(path, &metadata, nix::unistd::geteuid().as_raw()) {
            return Err(fault);
        }
        let beside = || public_beside(path);
        let (public, private) = match kind {
            Kind::OpenSsh => {
                let key = openssh(&text).map_err(|fault| fault.at(path))?;
                let public = PublicKey::new(key.public_key().key_data().clone(), "");
                if key.is_encrypted() {
                    (Some(public), Private::Locked(text))
                } else {
                    (Some(public), Private::Open(Arc::new(key)))
                }
            }
            Kind::EncryptedPem => (beside(), Private::Locked(text)),
            Kind::Pem | Kind::Public(_) => {
                let key = decode_secret_key(&text, None).map_err(|error| broken(&error).at(path))?;
                (Some(PublicKey::new(key.public_key().key_data().clone(), "")), Private::Open(Arc::new(key)))
            }
        };
        Ok(Self { path: path.to_owned(), public, private })
    }

    /// Returns the current state of the file, without reading its content.
    pub(crate) fn stamp(path: &Path) -> Option<Stamp> {
        let data = std::fs::metadata(path).ok()?;
        let word = |number: u64| i64::from_ne_bytes(number.to_ne_bytes());
        let (inode, size) = (word(data.ino()), word(data.size()));
        Some(Stamp([inode, size, data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec()]))
    }
}

/// A key in a file, for those who publish it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyInFile {
    pub public: hosts::ssh::key::PublicKey,
    pub private: PrivatePart,
}

/// Whether a file has a private key that a program can use without a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrivatePart {
    Open,
    /// It is encrypted with a passphrase.
    Locked,
    /// It has only the public key.
    Absent,
}

/// Reads the key in a file: a private one that other users cannot read, or a public one.
///
/// # Errors
/// There is no key that can be used.
pub fn key_in_file(path: &Path) -> Result<KeyInFile, KeyFault> {
    let file = KeyFile::read(path)?;
    let blob = file.public.ok_or_else(|| Fault::NoKey.at(path))?.to_bytes();
    let public = blob.ok().and_then(|blob| hosts::ssh::key::PublicKey::from_blob(&blob).ok());
    let private = match file.private {
        Private::Open(_) => PrivatePart::Open,
        Private::Locked(_) => PrivatePart::Locked,
        Private::Elsewhere => PrivatePart::Absent,
    };
    Ok(KeyInFile { public: public.ok_or_else(|| Fault::NoKey.at(path))?, private })
}

/// Decrypts the text of an encrypted key.
///
/// # Errors
/// [`Fault::WrongPassphrase`], or another fault of the file.
pub(crate) fn open(text: &str, path: &Path, passphrase: &str) -> Result<PrivateKey, KeyFault> {
    let key = decode_secret_key(text, Some(passphrase)).map_err(|error| match error {
        DecodeError::SshKey(ssh_key::Error::Crypto | ssh_key::Error::AlgorithmUnsupported { .. })
        | DecodeError::Unpad(_) => Fault::WrongPassphrase.at(path),
        DecodeError::Pkcs8(ref inner) if inner.to_string().contains("unsupported") => broken(&error).at(path),
        // A wrong passphrase decrypts to random bytes, for which the library reports one of these errors.
        DecodeError::Pkcs8(_) | DecodeError::Pkcs1(_) | DecodeError::Der(_) | DecodeError::Rsa(_) => {
            Fault::WrongPassphrase.at(path)
        }
        error => broken(&error).at(path),
    })?;
    match key.algorithm() {
        Algorithm::SkEd25519 | Algorithm::SkEcdsaSha2NistP256 => Err(Fault::Fido.at(path)),
        _ => Ok(key),
    }
}

/// Reads a regular file as text. The function never waits for a FIFO or a device.
pub(crate) fn read_text(path: &Path, longest: u64) -> Result<(Zeroizing<String>, Metadata), KeyFault> {
    let io = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Fault::Missing.at(path),
        io::ErrorKind::PermissionDenied => Fault::Denied.at(path),
        _ => Fault::Unreadable(source.to_string()).at(path),
    };
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY | nix::libc::O_CLOEXEC)
        .open(path)
        .map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    let kind = metadata.file_type();
    let other = [
        (kind.is_dir(), "a directory"),
        (kind.is_fifo(), "a FIFO"),
        (kind.is_socket(), "a socket"),
        (kind.is_char_device() || kind.is_block_device(), "a device"),
    ];
    if let Some((_, what)) = other.iter().find(|(is, _)| *is) {
        return Err(Fault::NotAFile(what).at(path));
    }
    if metadata.len() > longest {
        return Err(Fault::TooLong { longest }.at(path));
    }
    let bytes = whole(file, longest).map_err(io)?;
    if bytes.len() as u64 > longest {
        return Err(Fault::TooLong { longest }.at(path));
    }
    if bytes.is_empty() {
        return Err(Fault::Empty.at(path));
    }
    let Ok(text) = std::str::from_utf8(&bytes) else {
        return Err(Fault::NoKey.at(path));
    };
    Ok((Zeroizing::new(text.to_owned()), metadata))
}

/// Reads a file into a buffer of full size, so that no copy of a secret is left in memory when the buffer grows.
fn whole(file: File, longest: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    let size = usize::try_from(longest + 1).map_err(io::Error::other)?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(size));
    file.take(longest + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns a fault if other users can read or change the file.
///
/// OpenSSH checks only the user's own files. This function also refuses a file of another owner if every user can read
/// it. The group may read such a file, because otherwise this user could not.
fn exposed(path: &Path, metadata: &Metadata, we: u32) -> Option<KeyFault> {
    let mode = metadata.mode() & 0o777;
    let bad = if metadata.uid() == we { mode & 0o077 } else { mode & 0o027 };
    (bad != 0)
        .then(|| Fault::Exposed { mode, keep: if metadata.uid() == we { 0o600 } else { 0o640 } }.at(path))
}

/// Format of a file, by its first lines.
enum Kind {
    OpenSsh,
    Pem,
    EncryptedPem,
    Public(Box<PublicKey>),
}

impl Kind {
    fn of(text: &str) -> Result<Self, Fault> {
        let begin = text.lines().map(str::trim_end).find(|line| line.starts_with("-----BEGIN "));
        let Some(begin) = begin else {
            if text.trim_start().starts_with("PuTTY-User-Key-File-") {
                return Err(Fault::Putty);
            }
            return public_line(text).map(|key| Self::Public(Box::new(key))).ok_or(Fault::NoKey);
        };
        let kind = match begin.trim_start_matches("-----BEGIN ").trim_end_matches('-') {
            "OPENSSH PRIVATE KEY" => Self::OpenSsh,
            "ENCRYPTED PRIVATE KEY" => Self::EncryptedPem,
            "RSA PRIVATE KEY" | "EC PRIVATE KEY" => {
                match text.lines().find(|line| line.starts_with("DEK-Info:")) {
                    // This is the only old cipher that the library supports, and only for RSA.
                    Some(line) if line.contains("AES-128-CBC") && begin.contains("RSA") => Self::EncryptedPem,
                    Some(_) => return Err(Fault::OldEncryption),
                    None => Self::Pem,
                }
            }
            "PRIVATE KEY" => Self::Pem,
            "DSA PRIVATE KEY" => return Err(Fault::Dsa),
            "PUBLIC KEY" | "RSA PUBLIC KEY" | "SSH2 PUBLIC KEY" | "---- BEGIN SSH2 PUBLIC KEY" => {
                return Err(Fault::PublicPem);
            }
            "CERTIFICATE" => return Err(Fault::X509),
            _ => return Err(Fault::NoKey),
        };
        let end = begin.replacen("BEGIN", "END", 1);
        if text.lines().any(|line| line.trim_end() == end) { Ok(kind) } else { Err(Fault::CutOff) }
    }
}

/// Parses the text of a `.pub` file.
fn public_line(text: &str) -> Option<PublicKey> {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'))?;
    // The parser of `hosts` comes first: the library's parser recurses into certificates without a limit.
    let key: hosts::ssh::key::PublicKey = line.parse().ok()?;
    russh::keys::key::parse_public_key(key.blob()).ok()
}

fn public_beside(path: &Path) -> Option<PublicKey> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".pub");
    let (text, _) = read_text(Path::new(&beside), LONGEST_FILE).ok()?;
    public_line(&text)
}

/// Parses a key in OpenSSH's format, in which the public key is not encrypted.
fn openssh(text: &str) -> Result<PrivateKey, Fault> {
    let mut body = Zeroizing::new(String::with_capacity(text.len()));
    let lines = text.lines().map(str::trim).skip_while(|line| !line.starts_with("-----BEGIN ")).skip(1);
    lines.take_while(|line| !line.starts_with("-----END ")).for_each(|line| body.push_str(line));
    let bytes = Base64::decode_vec(&body)
        .map(Zeroizing::new)
        .map_err(|_| Fault::Broken("it is not base64".into()))?;
    // The key type is in the clear part of the file: so a type that the library does not know is not reported as
    // damage.
    let named = |name: &[u8]| bytes.windows(name.len()).take(512).any(|window| window == name);
    if named(b"sk-ssh-ed25519@openssh.com") || named(b"sk-ecdsa-sha2-nistp256@openssh.com") {
        return Err(Fault::Fido);
    }
    if named(b"ssh-dss") {
        return Err(Fault::Dsa);
    }
    PrivateKey::from_bytes(&bytes).map_err(|error| match error {
        ssh_key::Error::AlgorithmUnknown | ssh_key::Error::AlgorithmUnsupported { .. } => {
            Fault::Broken("its algorithm or its cipher is not one we know".into())
        }
        error => Fault::Broken(error.to_string()),
    })
}

fn broken(error: &DecodeError) -> Fault {
    match error {
        DecodeError::UnknownAlgorithm(oid) => {
            Fault::Broken(format!("its algorithm ({oid}) is none that SSH has: use Ed25519, ECDSA or RSA"))
        }
        error => Fault::Broken(text::terminal::escaped(&error.to_string(), 200)),
    }
}

use super::fault::Fault;

/// Maximum size of a key file in bytes: an RSA key of 16,384 bits has 13 KB.
const LONGEST_FILE: u64 = 64 * 1024;

#[cfg(test)]
mod tests;
