//! Host certificates of OpenSSH (PROTOCOL.certkeys): parser and validity for a name and a time. `crates/ssh` verifies
//! the signature and passes the result.

use thiserror::Error;

use super::date::Moment;
use super::plain_algorithm;
use crate::ssh::key::PublicKey;

/// Limit of principals in one certificate, the same as in OpenSSH.
const PRINCIPALS_TAKEN: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostCertificate {
    pub key: PublicKey,
    pub serial: u64,
    pub usage: Use,
    /// Key id. Its text is chosen by others, so it is unsafe for terminals.
    pub id: String,
    pub principals: Vec<String>,
    /// Start of the validity, in seconds since 1970.
    pub valid_after: u64,
    /// End of the validity (exclusive), in seconds since 1970.
    pub valid_before: u64,
    /// Names of critical options.
    pub critical: Vec<String>,
    pub authority: PublicKey,
    pub signed_with: String,
    pub signature: Signature,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// A user certificate, not valid for a server.
    User,
    Host,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signature {
    Holds,
    /// The signature is wrong, or was not verified.
    Wrong,
}

/// Reason why a certificate is not valid for a host.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CertificateError {
    #[error("it cannot be read: {0}")]
    Unreadable(&'static str),
    #[error("its signature is invalid")]
    Signature,
    /// The signature algorithm is weak, such as SHA-1.
    #[error("it is signed with {0}, which is too weak")]
    WeakSignature(String),
    /// The certificate is a user certificate.
    #[error("it is for users, not for hosts")]
    NotForHosts,
    #[error("it is for {named}, not for {wanted}")]
    OtherPrincipal {
        /// The first principals of the certificate, for the message.
        named: String,
        /// Names that would be valid.
        wanted: String,
    },
    #[error("it is not valid before {0}")]
    NotYet(String),
    #[error("it expired on {0}")]
    Expired(String),
    /// A critical option; OpenSSH defines none for hosts.
    #[error("it has the critical option {0}, which penstock does not know")]
    Critical(String),
}

impl HostCertificate {
    /// Parses a certificate in the wire format.
    ///
    /// # Errors
    /// The blob is no certificate of a known type.
    pub fn from_blob(blob: &[u8], signature: Signature) -> Result<Self, CertificateError> {
        let whole = PublicKey::from_blob(blob)
            .map_err(|_| CertificateError::Unreadable("no algorithm at its head"))?;
        let plain = plain_algorithm(whole.algorithm());
        if plain == whole.algorithm() {
            return Err(CertificateError::Unreadable("its type is not one of OpenSSH's"));
        }
        let mut wire = WireReader(blob);
        wire.string()?;
        wire.string()?; // the nonce
        let mut key = Vec::new();
        push_string(&mut key, plain.as_bytes());
        for _ in 0..fields_of(plain) {
            push_string(&mut key, wire.string()?);
        }
        let key =
            PublicKey::from_blob(&key).map_err(|_| CertificateError::Unreadable("it has no public key"))?;
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
        let mut options = WireReader(wire.string()?);
        let mut critical = Vec::new();
        while !options.0.is_empty() && critical.len() < PRINCIPALS_TAKEN {
            critical.push(String::from_utf8_lossy(options.string()?).into_owned());
            options.string()?;
        }
        wire.string()?; // extensions: none is defined for hosts, and unknown ones are to be ignored
        wire.string()?; // reserved
        let authority = PublicKey::from_blob(wire.string()?);
        let authority = authority.map_err(|_| CertificateError::Unreadable("no authority in it"))?;
        let signed_with = String::from_utf8_lossy(WireReader(wire.string()?).string()?).into_owned();
        if !wire.0.is_empty() {
            return Err(CertificateError::Unreadable("it has bytes after its signature"));
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

    /// Checks that the certificate is valid for one of `names` at the time `now`. The caller checks if the authority
    /// may certify the names.
    ///
    /// # Errors
    /// The first failed check, in an order from a forged signature to a wrong name.
    pub fn speaks_for(&self, names: &[&str], now: Moment) -> Result<(), CertificateError> {
        if self.signature == Signature::Wrong {
            return Err(CertificateError::Signature);
        }
        // As CASignatureAlgorithms of OpenSSH: no SHA-1, no DSA.
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
        // As OpenSSH: a certificate without principals is for all hosts, and a principal is no pattern. OpenSSH writes
        // names of hosts in lower case before it compares them.
        let takes =
            |name: &str| self.principals.iter().any(|principal| *principal == name.to_ascii_lowercase());
        if self.principals.is_empty() || names.iter().any(|name| takes(name)) {
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

/// Number of strings in the public key of this type in a certificate.
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
    // A certificate, and so each string in it, is shorter than 64 KiB.
    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(0).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// Unread rest of a blob (RFC 4251 section 5).
struct WireReader<'b>(&'b [u8]);

impl<'b> WireReader<'b> {
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
        let mut list = WireReader(self.string()?);
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
