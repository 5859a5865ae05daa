//! Makes the signature that a server asked for, with a key file or with an agent.

use std::sync::Arc;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{RSA_PKCS1_SHA256, RSA_PKCS1_SHA512, RsaKeyPair};
use russh::keys::agent::{AgentIdentity, AgentSessionBinding};
use russh::keys::signature::Signer as _;
use russh::keys::ssh_encoding::Encode;
use russh::keys::{HashAlg, PrivateKey};
use zeroize::Zeroizing;

use super::Signed;
use super::candidate::With;
use super::patience::QuestionTimeout;
use crate::agent::{AgentFault, SignRequest};
use crate::keys::{KeyFault, KeyFileFault, Keys};

pub(super) struct Signing<'a> {
    pub(super) with: &'a With,
    pub(super) keys: &'a Keys,
    pub(super) algorithm: String,
    pub(super) hash: Option<HashAlg>,
    pub(super) binding: Option<&'a AgentSessionBinding>,
    pub(super) patience: &'a QuestionTimeout,
    pub(super) signed: Signed,
}

#[derive(Debug)]
pub(super) enum SignFault {
    Key(KeyFault),
    Agent(AgentFault),
    /// The server asked for a second signature with one key: without this limit, it could ask for signatures and
    /// touches for ever.
    Twice,
    Gone,
}

impl From<russh::SendError> for SignFault {
    fn from(_: russh::SendError) -> Self {
        Self::Gone
    }
}

impl russh::Signer for Signing<'_> {
    type Error = SignFault;

    async fn auth_sign(
        &mut self,
        _: &AgentIdentity,
        _: Option<HashAlg>,
        mut data: Vec<u8>,
    ) -> Result<Vec<u8>, SignFault> {
        if self.signed == Signed::Once {
            return Err(SignFault::Twice);
        }
        let blob = self.patience.ours(self.signature(&data)).await?;
        self.signed = Signed::Once;
        blob.encode(&mut data).map_err(|_| SignFault::Gone)?;
        Ok(data)
    }
}

impl Signing<'_> {
    async fn signature(&self, data: &[u8]) -> Result<Vec<u8>, SignFault> {
        match self.with {
            With::Agent { agent, key, .. } => {
                let request = SignRequest { key, algorithm: &self.algorithm, data, binding: self.binding };
                agent.sign(request).await.map_err(SignFault::Agent)
            }
            With::File(file) => {
                let private = self.keys.open(file).await.map_err(SignFault::Key)?;
                let fault = |what: &str| {
                    let fault = KeyFileFault::Broken(what.to_owned());
                    SignFault::Key(KeyFault { path: file.file.path.clone(), fault })
                };
                let (data, hash, algorithm) = (data.to_vec(), self.hash, self.algorithm.clone());
                // A signature with a long RSA key takes milliseconds.
                let work = move || local(&private, &data, hash, &algorithm);
                let signed = match self.hash {
                    Some(_) => tokio::task::spawn_blocking(work).await.ok().flatten(),
                    None => work(),
                };
                signed.ok_or_else(|| fault("it does not sign"))
            }
        }
    }
}

/// Makes a signature blob (RFC 4253 section 6.6).
fn local(key: &Arc<PrivateKey>, data: &[u8], hash: Option<HashAlg>, algorithm: &str) -> Option<Vec<u8>> {
    let Some(hash) = hash else {
        let mut blob = Vec::new();
        key.try_sign(data).ok()?.encode(&mut blob).ok()?;
        return Some(blob);
    };
    // aws-lc signs five times as fast as the SSH library, and in constant time.
    let document = Zeroizing::new(russh::keys::pkcs8::encode_pkcs8(key).ok()?);
    let pair = RsaKeyPair::from_pkcs8(&document).ok()?;
    let padding = match hash {
        HashAlg::Sha512 => &RSA_PKCS1_SHA512,
        _ => &RSA_PKCS1_SHA256,
    };
    let mut signature = vec![0; pair.public_modulus_len()];
    pair.sign(padding, &SystemRandom::new(), data, &mut signature).ok()?;
    let mut blob = Vec::new();
    algorithm.encode(&mut blob).ok()?;
    signature.encode(&mut blob).ok()?;
    Some(blob)
}
