//! Asks a server for its key, to compare it with a proof. Only the handshake is done; nothing secret is sent.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use hosts::fleet::ending::{Failure, Phase, Reason};
use hosts::ssh::key::PublicKey;

use crate::client::Client;
use crate::judge::{BoxFuture, HostVerifier, Offered, Place, Verdict};
use crate::keys::Keys;
use crate::target::{Proxy, Target};

/// The key that a server showed.
#[derive(Debug, Clone)]
pub struct Shown {
    /// The host key; for a certificate, the certified key.
    pub key: PublicKey,
    pub offered: hosts::identity::Offered,
    pub address: Option<SocketAddr>,
}

/// Groups of host key algorithms that are asked for one after another: a server has at most one key of each group.
pub const TYPES: &[&[&str]] = &[
    &["ssh-ed25519"],
    &["ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"],
    &["rsa-sha2-512", "rsa-sha2-256"],
];

/// Fetches the key or certificate that a server shows for `algorithms` (empty: the usual ones). `others` judges the
/// jump hosts, and penstock logs in to these.
///
/// # Errors
/// The server cannot be reached, or has no key for `algorithms`.
pub async fn fetch(
    target: &Target,
    algorithms: &[&str],
    others: Arc<dyn HostVerifier>,
) -> Result<Shown, Failure> {
    let is_on_the_way = |name: &str| match &target.proxy {
        Proxy::Jump(hops) => hops.iter().any(|hop| hop.name == name),
        _ => false,
    };
    if is_on_the_way(&target.name) {
        let detail = format!("{} is reached through itself", target.name);
        return Err(crate::trouble::failure(Phase::Connect, Reason::BadConfiguration, detail));
    }
    let catch = Arc::new(Recorder {
        name: target.name.clone(),
        others,
        algorithms: algorithms.iter().map(|name| (*name).to_owned()).collect(),
        caught: Mutex::new(None),
    });
    let client = Client::new(Arc::clone(&catch) as Arc<dyn HostVerifier>, Arc::new(Keys::new()));
    let result = client.connect(target, &|_| {}).await;
    let caught = catch.caught.lock().unwrap_or_else(PoisonError::into_inner).take();
    match (caught, result) {
        (Some(shown), _) => Ok(shown),
        (None, Err(failure)) => Err(failure),
        (None, Ok(_)) => Err(crate::trouble::failure(
            Phase::Identity,
            Reason::ProtocolError,
            format!("{} showed no key", target.name),
        )),
    }
}

/// Whether [`fetch`] failed because the server has no key for the algorithms: any other failure says nothing of its keys.
#[must_use]
pub fn has_no_such_key(failure: &Failure) -> bool {
    crate::trouble::has_no_such_key(failure)
}

/// A judge that records the key of one host and refuses the host.
struct Recorder {
    name: String,
    others: Arc<dyn HostVerifier>,
    algorithms: Vec<String>,
    caught: Mutex<Option<Shown>>,
}

impl HostVerifier for Recorder {
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
