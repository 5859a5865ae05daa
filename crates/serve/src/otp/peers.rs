//! Validation servers that keep their counters in step: each tells the others what it accepted, and before it says that an OTP is
//! good, as many of them as the configuration or the client asks for must say that it is news.
//!
//! `crates/serve/src/otp/peers/catch_up.rs` tells a server what it missed, `crates/serve/src/otp/peers/link.rs` has the messages.

mod catch_up;
mod link;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use access::otp::ledger::{Accepted, Ledger};
use access::otp::sync::{self, Poll, Verdict};
use access::otp::token::Moved;
use credentials::job;
use state::State;
use state::lock::lock;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::tokens::Tokens;
use catch_up::catch_up;
use link::Link;

/// The other servers.
pub(super) struct Peers {
    all: Vec<Arc<Peer>>,
    tokens: Arc<Tokens>,
    runtime: Handle,
    catching_up: Vec<JoinHandle<()>>,
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.catching_up.iter().for_each(JoinHandle::abort);
    }
}

/// What was accepted here and must be known elsewhere.
#[derive(Clone, Debug)]
pub(super) struct News {
    /// Number of the change in the store.
    pub(super) change: u64,
    pub(super) state: sync::State,
    pub(super) sent: Moved,
    pub(super) otp: String,
}

impl News {
    /// Of an OTP that was accepted. `now` is in seconds since 1970.
    pub(super) fn of(accepted: Accepted, otp: &str, now: u64) -> Self {
        let Accepted { id, moved, change, .. } = accepted;
        let state = sync::State { name: id, last: Some(moved.clone()), modified: now };
        Self { change, state, sent: moved, otp: otp.to_owned() }
    }
}

#[derive(Debug)]
struct Peer {
    /// As the store remembers it.
    name: String,
    link: Link,
    /// Changes that it was told as they happened.
    at_once: Mutex<BTreeSet<u64>>,
}

impl Peers {
    /// Begins to tell the servers what they do not know yet. Call it in the runtime.
    pub(super) fn start(addresses: &[SocketAddr], tokens: &Arc<Tokens>, state: &Arc<State>) -> Self {
        let peer = |address: &SocketAddr| {
            let (name, link) = (address.to_string(), Link::new(*address));
            Arc::new(Peer { name, link, at_once: Mutex::default() })
        };
        let all: Vec<_> = addresses.iter().map(peer).collect();
        let catch_up = |peer: &Arc<Peer>| tokio::spawn(catch_up(peer.clone(), tokens.clone(), state.clone()));
        let catching_up = all.iter().map(catch_up).collect();
        Self { all, tokens: tokens.clone(), runtime: Handle::current(), catching_up }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Asks all servers, and tells the verdict as soon as it is certain, at the latest after `limit`.
    pub(super) fn ask(
        &self,
        news: News,
        percent: u8,
        limit: Duration,
        tell: impl FnOnce(Verdict) + Send + 'static,
    ) {
        let mut poll = Poll::new(news.sent.clone(), self.all.len(), percent);
        let (answers, mut answered) = mpsc::channel(self.all.len().max(1));
        for peer in &self.all {
            let (peer, news, answers, tokens) =
                (peer.clone(), news.clone(), answers.clone(), self.tokens.clone());
            self.runtime.spawn(async move {
                let answer = peer.link.tell(&news.state, &news.otp).await.ok().map(|known| known.state);
                // Without an answer it is told later: the store has the change.
                if let Some(state) = &answer {
                    lock(&peer.at_once).insert(news.change);
                    follow(&tokens, state);
                }
                // The request that waited may have its answer already.
                let _ = answers.send(answer).await;
            });
        }
        drop(answers);
        self.runtime.spawn(async move {
            let heard = async {
                while poll.verdict() == Verdict::Wait {
                    let Some(answer) = answered.recv().await else { break };
                    poll.handle(answer.as_ref());
                }
            };
            // At the limit, what was heard until then counts.
            let _ = timeout(limit, heard).await;
            tell(poll.end());
        });
    }
}

/// Takes over what another server knows better.
fn follow(tokens: &Tokens, theirs: &sync::State) {
    let Some(last) = theirs.last.clone() else { return };
    let name = theirs.name.clone();
    let decide = move |ledger: &mut Ledger, now: u64| {
        let record = ledger.follow(&name, last, now / 1000).and_then(|(_, record)| record);
        ((), record.into_iter().collect())
    };
    // If it fails, the next answer tells it again.
    tokens.submit(job(decide, drop));
}
