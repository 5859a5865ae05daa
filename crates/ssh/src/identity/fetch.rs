//! Asks a server for its key, to compare it with a proof: the handshake only, nothing of ours is sent.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use logic::fleet::ending::{Failure, Reason};
use logic::ssh::key::PublicKey;

use crate::client::Client;
use crate::judge::{BoxFuture, Judge, Offered, Place, Verdict};
use crate::keys::Keys;
use crate::target::Target;

/// What a server showed.
#[derive(Debug, Clone)]
pub struct Shown {
    /// The key, or that of its certificate.
    pub key: PublicKey,
    /// All of it.
    pub offered: logic::identity::Offered,
    /// Where.
    pub address: Option<SocketAddr>,
}

/// Key types, one after the other: a server has one of each at most.
pub const TYPES: &[&[&str]] = &[
    &["ssh-ed25519"],
    &["ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"],
    &["rsa-sha2-512", "rsa-sha2-256"],
];

/// Fetches what a server shows when it is asked for these algorithms (none: the usual ones).
///
/// # Errors
/// It could not be reached, or has no key of such a type.
pub async fn fetch(target: &Target, algorithms: &[&str]) -> Result<Shown, Failure> {
    let catch = Arc::new(Catch {
        algorithms: algorithms.iter().map(|name| (*name).to_owned()).collect(),
        caught: Mutex::new(None),
    });
    let client = Client::new(Arc::clone(&catch) as Arc<dyn Judge>, Arc::new(Keys::new()));
    let result = client.connect(target, &|_| {}).await;
    let caught = catch.caught.lock().unwrap_or_else(PoisonError::into_inner).take();
    match (caught, result) {
        (Some(shown), _) => Ok(shown),
        (None, Err(failure)) => Err(failure),
        (None, Ok(_)) => Err(crate::trouble::failure(
            logic::fleet::ending::Phase::Identity,
            Reason::Protocol,
            format!("{} showed no key", target.name),
        )),
    }
}

/// A judge that refuses everybody and keeps what it saw.
struct Catch {
    algorithms: Vec<String>,
    caught: Mutex<Option<Shown>>,
}

impl Judge for Catch {
    fn wanted(&self, _: &str) -> Vec<String> {
        self.algorithms.clone()
    }

    fn judge<'a>(&'a self, _: &'a str, at: &'a Place, offered: &'a Offered) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let address = match at {
                Place::Address(address) => Some(*address),
                _ => None,
            };
            let offered = match offered {
                Offered::Key(key) => Some(logic::identity::Offered::Key(key.clone())),
                Offered::Certificate(blob) => super::certificate(blob)
                    .ok()
                    .map(|certificate| logic::identity::Offered::Certificate(Box::new(certificate))),
            };
            let shown = offered.map(|offered| Shown { key: offered.key().clone(), offered, address });
            *self.caught.lock().unwrap_or_else(PoisonError::into_inner) = shown;
            Verdict::Refused {
                reason: Reason::UnknownHost,
                message: "only its key was wanted; nothing was sent".into(),
                advice: String::new(),
            }
        })
    }

    fn announced(&self, _: &str, _: Vec<PublicKey>) {}
}
