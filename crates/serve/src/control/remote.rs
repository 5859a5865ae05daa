//! Control over the network: `control.listen`. A client logs in by SASL in the grammar of SMTP (RFC 4954) over TLS, then speaks
//! as at the control socket.
//!
//! It shares the thread of the control socket, with slots and a limit of CPU time of its own: a client that floods this port delays
//! neither traffic nor those at the socket.
//!
//! - `crates/serve/src/control/remote/conversation.rs`: one client, from its connection to its log-in.
//! - `crates/serve/src/control/remote/logins.rs`: the file of users, and those who guess.
//! - `crates/serve/src/control/remote/kerberos.rs`: calls of GSSAPI.
//!
//! `crates/access/src/sasl.rs` decides.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use config::types::{BindAddress, Transport};
use logic::client_slots::Party;
use state::client_slots::Size;
use state::listen::{self, Holder};
use sys::cpu::thread_time;
use sys::socket::{DualStack, listen_tcp, probe_tcp};
use tokio::time::sleep;

pub(crate) use kerberos::files as kerberos_files;

use super::client::Shared;
use crate::client_slots::ClientSlotSet;
use crate::pace::{Pace, Paced};

mod conversation;
pub(super) mod kerberos;
pub(super) mod logins;

/// Largest number of clients; of one address three quarters. Those that have not sent AUTH lose their slots first.
pub(crate) const SIZE: Size = Size { slots: 64, following: 32 };

/// Descriptors of log-ins: the file of users; of each call of GSSAPI its keys, its configuration and the tokens that were seen.
pub(crate) const OF_LOG_IN: usize = 1 + 4 * kerberos::CALLS;

/// Time that a new client waits for a slot while all other clients are in the middle of a command.
const PLACE_LIMIT: Duration = Duration::from_secs(5);

/// Pause after a failed accept, for example when descriptors are exhausted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Length of the kernel's accept queue.
const BACKLOG: u32 = 1024;

/// The listening socket.
#[derive(Debug)]
pub struct RemoteListener(TcpListener);

#[derive(Debug, thiserror::Error)]
#[error("listen on {address}: {why}")]
pub struct BindError {
    address: BindAddress,
    why: String,
}

impl RemoteListener {
    pub(super) fn bind(address: &BindAddress) -> Result<Self, BindError> {
        let tcp = |socket: SocketAddr, dual: DualStack| {
            // Without SO_REUSEPORT: a process that already listens on the port is an error.
            let free = if socket.port() == 0 { Ok(()) } else { probe_tcp(socket, dual) };
            free.and_then(|()| listen_tcp(socket, dual, BACKLOG))
        };
        let listener = match address {
            BindAddress::Ip(socket) => tcp(*socket, DualStack::V6Only),
            BindAddress::AnyIp(port) => match tcp((Ipv6Addr::UNSPECIFIED, *port).into(), DualStack::Both) {
                // The kernel has no IPv6.
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                    tcp((Ipv4Addr::UNSPECIFIED, *port).into(), DualStack::V6Only)
                }
                result => result,
            },
            // `config` refuses these.
            BindAddress::Unix(_) | BindAddress::Systemd(_) | BindAddress::EveryPort(_) => {
                Err(io::ErrorKind::Unsupported.into())
            }
        };
        listener.map(Self).map_err(|error| {
            let why = listen::explain(&error, Holder::NoProcess, Transport::Stream);
            BindError { address: address.clone(), why }
        })
    }

    /// That of the process before, at an upgrade.
    pub(super) fn passed_on(listener: TcpListener) -> Self {
        Self(listener)
    }

    pub(super) fn share(&self) -> io::Result<TcpListener> {
        self.0.try_clone()
    }

    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.0.local_addr().ok()
    }
}

/// Serves clients until the future is dropped; without a listener it never ends.
pub(super) async fn accept(listener: Option<RemoteListener>, shared: Arc<Shared>, part: u32) {
    let listener = listener.map(|RemoteListener(listener)| {
        listener.set_nonblocking(true)?;
        tokio::net::TcpListener::from_std(listener)
    });
    let listener = match listener {
        Some(Ok(listener)) => listener,
        Some(Err(error)) => {
            shared.front.state.degrade("control.listen", &error.to_string());
            return std::future::pending().await;
        }
        None => return std::future::pending().await,
    };
    let slots = {
        let state = &shared.front.state;
        ClientSlotSet::new(state.account.size_of(SIZE), state.control_evicted.clone())
    };
    let work = Pace::one_part_in(part);
    let mut accepting = Pace::one_part_in(part).client();
    loop {
        accepting.turn().await;
        let Ok((stream, peer)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let start = thread_time();
        let party = Party::source(peer.ip());
        // An address that has guessed too often gets no handshake, and one that has its share of the slots does not wait.
        if shared.logins.is_held_off(peer.ip()) || slots.over_share(party).is_some() {
            shared.front.state.control_evicted.fetch_add(1, Relaxed);
            drop(stream);
            accepting.charge(thread_time().saturating_sub(start));
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
