//! Control over the network: `control.listen`. A client logs in by SASL in the grammar of SMTP (RFC 4954) over TLS, then speaks
//! as at the control socket.
//!
//! It shares the thread of the control socket, with slots and a limit of CPU time of its own: a client that floods this port delays
//! neither traffic nor those at the socket.
//!
//! - `crates/serve/src/control/remote/conversation.rs`: one client, from its connection to its log-in.
//! - `crates/serve/src/control/remote/kerberos.rs`: calls of GSSAPI.
//! - `crates/serve/src/logins.rs`: the file of users, and those who guess.
//!
//! `crates/access/src/sasl.rs` decides.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use config::types::BindAddress;
use logic::client_slots::Party;
use state::client_slots::Size;
use sys::cpu::thread_time;
use tokio::task::yield_now;

pub(crate) use kerberos::files as kerberos_files;

use super::client::Shared;
use crate::acceptor::{Arrival, Bound, refuse};
use crate::client_slots::ClientSlotSet;
use crate::pace::{Pace, Paced};

mod conversation;
pub(super) mod kerberos;

/// Largest number of clients; of one address three quarters. Those that have not sent AUTH lose their slots first.
pub(crate) const SIZE: Size = Size { slots: 64, following: 32 };

/// Descriptors of log-ins: the file of users; of each call of GSSAPI its keys, its configuration and the tokens that were seen.
pub(crate) const OF_LOG_IN: usize = 1 + 4 * kerberos::CALLS;

/// Time that a new client waits for a slot while all other clients are in the middle of a command.
const PLACE_LIMIT: Duration = Duration::from_secs(5);

/// Length of the kernel's accept queue.
const BACKLOG: u32 = 1024;

#[derive(Debug, thiserror::Error)]
#[error("listen on {address}: {why}")]
pub struct BindError {
    address: BindAddress,
    why: String,
}

pub(super) fn bind(address: &BindAddress) -> Result<Bound, BindError> {
    Bound::tcp(address, BACKLOG).map_err(|why| BindError { address: address.clone(), why: why.to_string() })
}

/// Serves clients until the future is dropped; without a listener it never ends.
pub(super) async fn accept(bound: Option<Bound>, shared: Arc<Shared>, part: u32) {
    let Some(bound) = bound else { return std::future::pending().await };
    let acceptor = match bound.register("control.listen", shared.front.state.clone()) {
        Ok(acceptor) => acceptor,
        Err(error) => {
            shared.front.state.degrade("control.listen", &error.to_string());
            return std::future::pending().await;
        }
    };
    let slots = {
        let state = &shared.front.state;
        ClientSlotSet::new(state.account.size_of(SIZE), state.control_evicted.clone())
    };
    let work = Pace::one_part_in(part);
    let mut accepting = Pace::one_part_in(part).client();
    loop {
        accepting.turn().await;
        let Arrival::Tcp(stream, peer) = acceptor.next().await else { continue };
        let start = thread_time();
        let party = Party::source(peer.ip());
        // An address that has guessed too often gets no handshake, and one that has its share of the slots does not wait.
        if shared.logins.is_held_off(peer.ip()) || slots.over_share(party).is_some() {
            shared.front.state.control_evicted.fetch_add(1, Relaxed);
            refuse(stream);
            accepting.charge(thread_time().saturating_sub(start));
            // Without this a hundred more would be refused before an operator's command is looked at.
            yield_now().await;
            continue;
        }
        if let Ok(slot) = slots.slot_within(party, PLACE_LIMIT).await {
            let id = slot.id();
            let slot = Arc::new(slot);
            let client = conversation::run(shared.clone(), stream, peer, slot.clone());
            let task = Paced::new(work.client(), client).tells(slot);
            slots.keep(id, tokio::spawn(task).abort_handle());
        }
        accepting.charge(thread_time().saturating_sub(start));
    }
}
