//! Certificates of hosts (OpenSSH's PROTOCOL.certkeys): reading one, and whether it speaks for a name at a time.
//! Whether its signature holds is checked by `crates/ssh` and passed in.

use thiserror::Error;

use super::date::Moment;
use super::pattern::wildcard;
use super::plain_algorithm;
use crate::ssh::key::PublicKey;

/// More names than this in one certificate are refused; OpenSSH stops at 256 too.
const PRINCIPALS_TAKEN: usize = 256;

/// What a certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostCertificate {
    /// The key it speaks of.
    pub key: PublicKey,
    /// A number that its authority gave it.
    pub serial: u64,
    /// What it may be used for.
    pub usage: Use,
    /// What its authority calls it; others chose this text.
    pub id: String,
    /// The names it is for.
    pub principals: Vec<String>,
    /// Valid from here, in seconds since 1970.
    pub valid_after: u64,
    /// Valid until here, exclusively.
    pub valid_before: u64,
    /// Names of options that must be understood.
    pub critical: Vec<String>,
    /// The key that signed it.
    pub authority: PublicKey,
    /// The algorithm of the signature.
    pub signed_with: String,
    /// Whether the signature holds.
    pub signature: Signature,
}

/// What a certificate may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Logging in: not a server's.
    User,
    /// A server's.
    Host,
}

/// Whether the signature of a certificate holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signature {
    /// It does.
    Holds,
    /// It does not, or was not checked.
    Wrong,
}

/// Why a certificate does not speak for a host.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CertificateError {
    /// The bytes are no certificate.
    #[error("it cannot be read: {0}")]
    Unreadable(&'static str),
    /// Bad signature.
    #[error("its signature does not hold")]
    Signature,
    /// SHA-1 and the like.
    #[error("it is signed with {0}, which is too weak")]
    WeakSignature(String),
    /// A user's certificate.
    #[error("it is for users, not for hosts")]
    NotForHosts,
    /// It names nobody.
    #[error("it names no host, and so none of them")]
    NoPrincipals,
    /// It names others.
    #[error("it is for {named}, not for {wanted}")]
    OtherPrincipal {
        /// The names in it, some of them.
        named: String,
        /// The names that would do.
        wanted: String,
    },
    /// Too early.
    #[error("it is valid only from {0} on")]
    NotYet(String),
    /// Too late.
    #[error("it expired on {0}")]
    Expired(String),
    /// OpenSSH defines none for hosts.
    #[error("it has the critical option {0}, which nobody here understands")]
    Critical(String),
}

impl HostCertificate {
    /// Reads a blob as the wire carries it.
    ///
    /// # Errors
    /// It is no certificate of a type we know.
    pub fn from_blob(blob: &[u8], signature: Signature) -> Result<Self, CertificateError> {
        let whole = PublicKey::from_blob(blob)
            .map_err(|_| CertificateError::Unreadable("no algorithm at its head"))?;
        let plain = plain_algorithm(whole.algorithm());
        if plain == whole.algorithm() {
            return Err(CertificateError::Unreadable("its type is not one of OpenSSH's"));
        }
        let mut wire = Wire(blob);
        wire.string()?;
        wire.string()?; // the nonce
        let mut key = Vec::new();
        push_string(&mut key, plain.as_bytes());
        for _ in 0..fields_of(plain) {
            push_string(&mut key, wire.string()?);
        }
        let key = PublicKey::from_blob(&key).map_err(|_| CertificateError::Unreadable("no key in it"))?;
        let serial = wire.number::<8>().map(u64::from_be_bytes)?;
        let usage = match wire.number::<4>().map(u32::from_be_bytes)? {
            1 => Use::User,
            2 => Use::Host,
            _ => return Err(CertificateError::Unreadable("neither for users nor for hosts")),
        };
        let id = String::from_utf8_lossy(wire.string()?).into_owned();
        let principals = wire.list(PRINCIPALS_TAKEN)?;
        let valid_after = wire.number::<8>().map(u64::from_be_bytes)?;
        let valid_before = wire.number::<8>().map(u64::from_be_bytes)?;
        let mut options = Wire(wire.string()?);
        let mut critical = Vec::new();
        while !options.0.is_empty() && critical.len() < PRINCIPALS_TAKEN {
            critical.push(String::from_utf8_lossy(options.string()?).into_owned());
            options.string()?;
        }
        wire.string()?; // extensions: none is defined for hosts, and unknown ones are to be ignored
        wire.string()?; // reserved
        let authority = PublicKey::from_blob(wire.string()?);
        let authority = authority.map_err(|_| CertificateError::Unreadable("no authority in it"))?;
        let signed_with = String::from_utf8_lossy(Wire(wire.string()?).string()?).into_owned();
        if !wire.0.is_empty() {
            return Err(CertificateError::Unreadable("something follows its signature"));
        }
        Ok(Self {
            key,
            serial,
            usage,
            id,
            principals,
            valid_after,
            valid_before,
            critical,
            authority,
            signed_with,
            signature,
        })
    }

    /// Whether it speaks for one of these names now. Whether its authority may is not asked here.
    ///
    /// # Errors
    /// The first reason why not, in an order from "forged" to "not for you".
    pub fn speaks_for(&self, names: &[&str], now: Moment) -> Result<(), CertificateError> {
        if self.signature == Signature::Wrong {
            return Err(CertificateError::Signature);
        }
        // The list of OpenSSH's CASignatureAlgorithms: no SHA-1, no DSA.
        if matches!(self.signed_with.as_str(), "ssh-rsa" | "ssh-dss") {
            return Err(CertificateError::WeakSignature(self.signed_with.clone()));
        }
        if self.usage == Use::User {
            return Err(CertificateError::NotForHosts);
        }
        if let Some(option) = self.critical.first() {
            return Err(CertificateError::Critical(option.clone()));
        }
        if now.0 < self.valid_after {
            return Err(CertificateError::NotYet(Moment(self.valid_after).date().to_string()));
        }
        if now.0 >= self.valid_before {
            return Err(CertificateError::Expired(Moment(self.valid_before).date().to_string()));
        }
        if self.principals.is_empty() {
            return Err(CertificateError::NoPrincipals);
        }
        let takes = |name: &str| self.principals.iter().any(|principal| wildcard(principal, name));
        if names.iter().any(|name| takes(name)) {
            return Ok(());
        }
        let some = |all: &[&str]| {
            let more = if all.len() > 4 { ", ..." } else { "" };
            format!("{}{more}", all[..all.len().min(4)].join(", "))
        };
        let principals: Vec<&str> = self.principals.iter().map(String::as_str).collect();
        Err(CertificateError::OtherPrincipal { named: some(&principals), wanted: some(names) })
    }
}

/// How many strings make up the key of this type in a certificate.
fn fields_of(plain: &str) -> usize {
    match plain {
        "ssh-ed25519" => 1,
        "ssh-dss" => 4,
        "sk-ecdsa-sha2-nistp256@openssh.com" => 3,
        // RSA: exponent and modulus; ECDSA: curve and point; FIDO Ed25519: key and application.
        _ => 2,
    }
}

fn push_string(out: &mut Vec<u8>, bytes: &[u8]) {
    // A certificate is shorter than 64 KiB, and so is each of its strings.
    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(0).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// What is left to read (RFC 4251 section 5).
struct Wire<'b>(&'b [u8]);

impl<'b> Wire<'b> {
    fn number<const N: usize>(&mut self) -> Result<[u8; N], CertificateError> {
        let (number, rest) = self.0.split_first_chunk().ok_or(CertificateError::Unreadable("it is cut"))?;
        self.0 = rest;
        Ok(*number)
    }

    fn string(&mut self) -> Result<&'b [u8], CertificateError> {
        let length = u32::from_be_bytes(self.number()?) as usize;
        let (string, rest) =
            self.0.split_at_checked(length).ok_or(CertificateError::Unreadable("it is cut"))?;
        self.0 = rest;
        Ok(string)
    }

    fn list(&mut self, most: usize) -> Result<Vec<String>, CertificateError> {
        let mut list = Wire(self.string()?);
        let mut all = Vec::new();
        while !list.0.is_empty() {
            if all.len() == most {
                return Err(CertificateError::Unreadable("it has too many names"));
            }
            all.push(String::from_utf8_lossy(list.string()?).into_owned());
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests;
