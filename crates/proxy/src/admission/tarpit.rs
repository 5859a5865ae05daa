//! Holds clients that the access list of a listener denies: they get no byte, and nothing that they send is kept.
//!
//! A held client is registered as idle since the start of the process, so the worker closes it before any other client
//! when connections or descriptors run out, and when the process ends.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use config::types::Tarpit;
use logic::access_log::Kind;
use logic::peers::Peer;
use state::ListenerState;
use state::account::Share;
use state::ending::Ending;
use tls::plain::Plain;
use tokio::time::sleep;

use super::{ConnectionPermit, Limit, deny};
use crate::live::{Accepted, Live};
use crate::outcome::Outcome;
use crate::snapshot::ListenerPlan;
use crate::worker::{Registration, Worker};

/// Time between two reads of what a held client sends.
const READ_EVERY: Duration = Duration::from_secs(1);

/// Holds a denied client, as far as the listener says so and there is room; closes it otherwise.
pub(crate) fn hold_or_deny(worker: &Rc<Worker>, plan: &ListenerPlan, plain: Plain, peer: Peer) {
    let (socket, at) = (plain.as_fd().as_raw_fd(), worker.front.state.started.elapsed());
    let accepted = Accepted { peer, socket, at, age: Duration::ZERO };
    let take = |tarpit: Tarpit| Some((Held::take(worker, plan, tarpit, &accepted)?, tarpit.time));
    let Some((held, time)) = plan.settings.tarpit.and_then(take) else { return deny(worker, plan, peer) };
    let handle = held.registration.handle().clone();
    let task = tokio::task::spawn_local(hold(worker.clone(), held, plain, peer, time));
    handle.live.served_by(task.abort_handle());
}

/// A client in the tarpit, until this value is dropped.
struct Held {
    registration: Registration,
    listener: Arc<ListenerState>,
}

impl Held {
    /// `None` if the tarpit is full, or a client without a fault might need the room.
    fn take(worker: &Rc<Worker>, plan: &ListenerPlan, tarpit: Tarpit, accepted: &Accepted) -> Option<Self> {
        let permit = ConnectionPermit::take(worker, Limit::Holds)?;
        let one_more = |held: usize| (held < tarpit.clients).then_some(held + 1);
        plan.state.tarpit.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        let live = Live::new(plan.state.clone(), accepted);
        let registration = worker.register(Share::new(None, permit.hand_over()), live);
        Some(Self { registration, listener: plan.state.clone() })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.listener.tarpit.fetch_sub(1, Relaxed);
    }
}

async fn hold(worker: Rc<Worker>, held: Held, plain: Plain, peer: Peer, time: Duration) {
    let mut outcome = Outcome::new(&worker, &held.listener, Kind::Tcp, peer, None);
    outcome.end(Ending::Tarpit);
    let since = worker.front.state.started;
    let handle = held.registration.handle().clone();
    worker.leaves_first(since, &handle);
    let mut over = pin!(async {
        tokio::select! {
            () = sleep(time) => {}
            () = left(&plain) => {}
        }
    });
    poll_fn(|cx| handle.poll_idle(cx, since, |cx| over.as_mut().poll(cx)).map(drop)).await;
}

/// Waits until the client has left.
async fn left(plain: &Plain) {
    let mut scratch = [0; 512];
    loop {
        let read = match plain {
            Plain::Tcp(tcp) => tcp.readable().await.and_then(|()| tcp.try_read(&mut scratch)),
            Plain::Unix(unix) => unix.readable().await.and_then(|()| unix.try_read(&mut scratch)),
        };
        match read {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
        sleep(READ_EVERY).await;
    }
}
