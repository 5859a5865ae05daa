//! Proving who we are.

use std::sync::Arc;

use logic::fleet::ending::{Failure, Phase, Reason, Remote};
use russh::client::{AuthResult, Handle};
use russh::keys::{PrivateKeyWithHashAlg, load_secret_key};

use crate::handler::Handler;
use crate::keys::Keys;
use crate::target::Target;
use crate::trouble;

/// Which key the server accepted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Login {
    /// As the user knows it: a file, or the comment of an agent's key.
    pub(crate) key: String,
}

/// Logs in to `target`, whose identity has been proved.
///
/// # Errors
/// None of our keys was accepted, or one could not be used.
pub(crate) async fn authenticate(
    handle: &mut Handle<Handler>,
    target: &Target,
    _keys: &Keys,
) -> Result<Login, Failure> {
    let mut tried = Vec::new();
    for file in &target.keys.files {
        let path = file.clone();
        let loaded = tokio::task::spawn_blocking(move || load_secret_key(path, None)).await;
        let key = match loaded {
            Ok(Ok(key)) => Arc::new(key),
            Ok(Err(fault)) => {
                tried.push(format!("{} could not be read ({fault})", file.display()));
                continue;
            }
            Err(_) => continue,
        };
        let hash = match handle.best_supported_rsa_hash().await {
            _ if !key.algorithm().is_rsa() => None,
            Ok(hash) => hash.flatten(),
            Err(fault) => return Err(trouble::of(Phase::Authenticate, &fault, &target.name)),
        };
        match handle.authenticate_publickey(target.user.clone(), PrivateKeyWithHashAlg::new(key, hash)).await
        {
            Ok(AuthResult::Success) => return Ok(Login { key: file.display().to_string() }),
            Ok(AuthResult::Failure { .. }) => tried.push(file.display().to_string()),
            Err(fault) => return Err(trouble::of(Phase::Authenticate, &fault, &target.name)),
        }
    }
    Err(Failure {
        phase: Phase::Authenticate,
        reason: Reason::Denied,
        detail: format!(
            "{} accepted none of our keys for user {}: {}",
            target.name,
            target.user,
            tried.join(", ")
        ),
        advice: None,
        remote: Remote::NeverStarted,
    })
}
