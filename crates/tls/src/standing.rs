//! State of a certificate in a directory, for reports to operators.

use std::path::PathBuf;
use std::sync::Arc;

use super::pair::Pair;

#[derive(Clone, Debug)]
pub struct Certificate {
    pub name: String,
    /// Files of the certificate: certificate, key, chain, staple and passphrase, as far as they exist.
    pub files: Vec<PathBuf>,
    pub pair: Option<Arc<Pair>>,
    pub standing: CertificateState,
    /// Reason for any state other than [`CertificateState::Ok`].
    pub reason: Option<String>,
    /// Warnings.
    pub notes: Vec<String>,
}

text::meanings! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum CertificateState {
        /// The current contents of the files are used.
        Ok = "ok",
        /// The files are faulty; their previous contents are used.
        OldInUse = "old-in-use",
        /// The files are faulty; the certificate is not used.
        Refused = "refused",
        /// The certificate is used although it has expired.
        Expired = "expired",
        /// The certificate is used although it is not valid yet.
        NotYetValid = "not-yet-valid",
        /// The certificate is used although its issuer reports by OCSP (RFC 6960) that it is revoked.
        Revoked = "revoked",
    }
}

impl CertificateState {
    pub const ALL: [Self; 6] =
        [Self::Ok, Self::OldInUse, Self::Refused, Self::Expired, Self::NotYetValid, Self::Revoked];
}
