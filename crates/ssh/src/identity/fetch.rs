//! Asks a server for its key, to compare it with a proof: the handshake only, nothing of ours is sent.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use logic::fleet::ending::{Failure, Phase, Reason};
use logic::ssh::key::PublicKey;

use crate::client::Client;
use crate::judge::{BoxFuture, Judge, Offered, Place, Verdict};
use crate::keys::Keys;
use crate::target::{Proxy, Target};

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

/// Fetches what a server shows when it is asked for these algorithms (none: the usual ones). Hosts on the way to it are
/// judged by `others`, and logged in to.
///
/// # Errors
/// It could not be reached, or has no key of such a type.
pub async fn fetch(target: &Target, algorithms: &[&str], others: Arc<dyn Judge>) -> Result<Shown, Failure> {
    let is_on_the_way = |name: &str| match &target.proxy {
        Proxy::Jump(hops) => hops.iter().any(|hop| hop.name == name),
        _ => false,
    };
    if is_on_the_way(&target.name) {
        let detail = format!("{} is reached through itself", target.name);
        return Err(crate::trouble::failure(Phase::Connect, Reason::Configuration, detail));
    }
    let catch = Arc::new(Catch {
        name: target.name.clone(),
        others,
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
            Phase::Identity,
            Reason::Protocol,
            format!("{} showed no key", target.name),
        )),
    }
}

/// A judge that refuses one host and keeps what it saw of it.
struct Catch {
    name: String,
    others: Arc<dyn Judge>,
    algorithms: Vec<String>,
    caught: Mutex<Option<Shown>>,
}

impl Judge for Catch {
    fn wanted(&self, name: &str) -> Vec<String> {
        if name == self.name { self.algorithms.clone() } else { self.others.wanted(name) }
    }

    fn judge<'a>(&'a self, name: &'a str, at: &'a Place, offered: &'a Offered) -> BoxFuture<'a, Verdict> {
        if name != self.name {
            return self.others.judge(name, at, offered);
        }
        Box::pin(async move {
            let address = match at {
                Place::Address(address) => Some(*address),
                _ => None,
            };
            let (Offered::Key(blob) | Offered::Certificate(blob)) = offered;
            let offered = super::shown(blob);
            let shown = Shown { key: offered.key().clone(), offered, address };
            *self.caught.lock().unwrap_or_else(PoisonError::into_inner) = Some(shown);
            Verdict::Refused {
                reason: Reason::UnknownHost,
                message: "only its key was wanted; nothing was sent".into(),
                advice: String::new(),
            }
        })
    }

    fn announced(&self, name: &str, keys: Vec<PublicKey>) {
        self.others.announced(name, keys);
    }
}
