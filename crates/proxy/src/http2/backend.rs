//! Keeps one worker's connections to backends that speak HTTP/2. Each connection carries many concurrent requests.
//! `backend/line.rs` is one connection, `backend/permit.rs` counts its slots, `backend/opening.rs` opens one,
//! `backend/wire.rs` counts its frames, `backend/room.rs` queues requests that wait for one, `backend/call.rs` is one request as the exchange sees it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use logic::account::Refusal;
use logic::health::Cause;
use state::BackendState;
use state::account::{PAUSE, SlotCache};

use crate::connect::{ConnectFault, Freshness, Shortage};
use crate::http2::rules::{Rules, Width};
use crate::snapshot::{BackendPlan, Snapshot};
use crate::stream::Stream;
use crate::worker::ConnectionHandle;

mod call;
mod line;
mod opening;
mod permit;
mod room;
mod wire;

pub use call::Call;
use line::Line;
use opening::{Opening, Told};
use permit::{Additional, ConnectionPermit};
use room::{Room, Waiting};

/// The request that needs a stream on a connection.
#[derive(Clone, Copy)]
pub struct Asker<'a> {
    /// The client connection whose share of descriptors is charged.
    pub client: &'a Rc<ConnectionHandle>,
    pub width: Width,
}

/// Whether a request asks for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// First attempt: fails if the client's share allows no connection, waits if one is being opened.
    New,
    /// The request was refused before, and waits until the share of its client allows a connection.
    Waited,
}

/// A request in the queue for a stream. Dropping it leaves the queue.
pub struct Asking {
    rules: Rules,
    waiting: Waiting,
}

impl Asking {
    /// Records the refusal and wakes the next request. This request keeps its position in the queue.
    pub fn refused(&self, why: Refusal) {
        self.waiting.refused(why);
    }

    /// Returns the reason of the last refusal.
    pub fn refusal(&self) -> Option<Refusal> {
        self.waiting.refusal()
    }
}

/// The connections by backend and `Width`. The first connection of each key uses a descriptor that the process
/// reserves, so that clients cannot use it up; each further connection takes slots in the account of descriptors.
pub struct Lines {
    kept: Rc<RefCell<HashMap<Key, Kept>>>,
    slot_cache: Rc<SlotCache>,
}

type Key = (usize, Width);

struct Kept {
    backend: Arc<BackendState>,
    rules: Rules,
    lines: Vec<Rc<Line>>,
    /// Alive as long as the first connection, the one without slots in the account.
    first: Weak<()>,
    /// Only one connection is opened at a time; other requests wait for it.
    is_opening: bool,
    room: Rc<Room>,
}

impl Lines {
    pub fn new(slot_cache: Rc<SlotCache>) -> Self {
        Self { kept: Rc::default(), slot_cache }
    }

    /// Takes a free stream on an open connection. `None` if no stream is free, or if other requests already wait.
    pub fn take(&self, plan: &BackendPlan, asker: Asker<'_>) -> Option<Stream> {
        self.take_as(Asked::New, plan, asker).ok().flatten()
    }

    /// Takes a free stream on an open connection. An error if the client's share does not allow it.
    fn take_as(&self, asked: Asked, plan: &BackendPlan, asker: Asker<'_>) -> Result<Option<Stream>, Refusal> {
        let kept = self.kept.borrow();
        let Some(kept) = kept.get(&key(plan, asker.width)) else { return Ok(None) };
        let is_called = asked == Asked::Waited || kept.room.is_empty();
        if !is_called && kept.room.has(asker.client) {
            return Ok(None);
        }
        // While requests wait, a new request may not take a free stream on a connection that carries requests: it
        // belongs to the waiting ones. It may take an idle connection, as it could also open a new one.
        let may_have = |line: &&Rc<Line>| is_called || line.spare() > 0;
        let with_room = kept.lines.iter().filter(may_have).filter(|line| line.has_room(plan.tls.as_ref()));
        let mut refused = Ok(None);
        for line in with_room {
            match line.place(asker.client) {
                Ok(place) => return Ok(Some(Stream::call(Call::new(place)))),
                Err(why) => refused = Err(why),
            }
        }
        refused
    }

    /// Adds a request to the end of the queue.
    pub fn ask(&self, plan: &BackendPlan, rules: Rules, asker: Asker<'_>) -> Asking {
        let rules = Rules { width: asker.width, ..rules };
        Asking { rules, waiting: self.entry(plan, rules, |kept| kept.room.clone()).stand(asker.client) }
    }

    /// Waits for a stream on an existing connection or, where allowed, opens a connection within the timeout `limit`.
    pub async fn open(
        &self,
        plan: &BackendPlan,
        asking: &Asking,
        asked: Asked,
        limit: Duration,
    ) -> Result<(Stream, Freshness), ConnectFault> {
        match asked {
            Asked::New => self.open_new(plan, asking, limit).await,
            Asked::Waited => self.open_in_turn(plan, asking, limit).await,
        }
    }

    async fn open_new(
        &self,
        plan: &BackendPlan,
        asking: &Asking,
        limit: Duration,
    ) -> Result<(Stream, Freshness), ConnectFault> {
        let waiting = &asking.waiting;
        let (deadline, opened_before) = (Instant::now() + limit, waiting.room().opened());
        // The caller has already looked for a free stream with `take`.
        let mut own = self.begin(plan, asking, limit).map_err(ConnectFault::NoDescriptors)?;
        loop {
            tokio::select! {
                biased;
                opened = come_of(&mut own) => return opened,
                () = waiting.wait_for_turn() => {}
                // A connection that this request opens has its own timeout: waiting is not the backend's fault.
                () = tokio::time::sleep_until(deadline.into()), if own.is_none() => {
                    // If connections were opened since and other requests use them, the backend did not time out.
                    return Err(match waiting.room().opened() > opened_before {
                        true => ConnectFault::NoDescriptors(Shortage::OfShare(Refusal::NoDescriptors)),
                        false => ConnectFault::Backend(Cause::ConnectTimeout { after: limit }),
                    });
                }
            }
            if let Some(cause) = waiting.failure() {
                return Err(ConnectFault::Backend(cause));
            }
            let found = self.look(plan, asking, &mut own, limit).map_err(ConnectFault::NoDescriptors)?;
            if let Some(stream) = found {
                return Ok((stream, Freshness::Kept));
            }
        }
    }

    /// Waits until a stream is free or the share of the client allows one more connection.
    async fn open_in_turn(
        &self,
        plan: &BackendPlan,
        asking: &Asking,
        limit: Duration,
    ) -> Result<(Stream, Freshness), ConnectFault> {
        let waiting = &asking.waiting;
        let mut own = None;
        loop {
            let called = async {
                match waiting.is_first_of_client() {
                    // Clients of other workers may free slots without waking this request, so it polls.
                    true => drop(tokio::time::timeout(PAUSE, waiting.wait_for_turn()).await),
                    false => waiting.wait_for_turn().await,
                }
            };
            tokio::select! {
                biased;
                opened = come_of(&mut own) => return opened,
                () = called => {}
            }
            match self.look(plan, asking, &mut own, limit) {
                Ok(Some(stream)) => return Ok((stream, Freshness::Kept)),
                Ok(None) => {}
                Err(Shortage::OfShare(why)) => asking.refused(why),
                Err(Shortage::OfPlaces | Shortage::OfKernel) => {
                    asking.refused(Refusal::NoDescriptors);
                    self.slot_cache.account().want();
                }
            }
        }
    }

    /// Takes a free stream on an open connection, or starts opening a connection.
    fn look(
        &self,
        plan: &BackendPlan,
        asking: &Asking,
        own: &mut Option<Told>,
        limit: Duration,
    ) -> Result<Option<Stream>, Shortage> {
        let waiting = &asking.waiting;
        let mut refused = None;
        if waiting.is_first_of_client() {
            let asker = Asker { client: waiting.client(), width: asking.rules.width };
            match self.take_as(Asked::Waited, plan, asker) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(why) => refused = Some(why),
            }
        }
        if own.is_none() {
            *own = self.begin(plan, asking, limit)?;
        }
        match refused {
            // A stream is free, but only a request of another client may take it.
            Some(why) if own.is_none() => Err(Shortage::OfShare(why)),
            Some(_) => {
                waiting.pass_on();
                Ok(None)
            }
            None => Ok(None),
        }
    }

    /// Starts opening a connection. `None` if one is being opened or another request is first in the queue.
    fn begin(&self, plan: &BackendPlan, asking: &Asking, limit: Duration) -> Result<Option<Told>, Shortage> {
        let Asking { rules, waiting } = asking;
        if !waiting.is_first_of_client() {
            // A refusal of the client's first waiting request applies to its later requests too.
            return waiting.refusal_of_client().map_or(Ok(None), |why| Err(Shortage::OfShare(why)));
        }
        if self.entry(plan, *rules, |kept| kept.is_opening) || !waiting.is_next() {
            return Ok(None);
        }
        let place = self.place_of_line(plan, *rules, waiting.client())?;
        self.entry(plan, *rules, |kept| kept.is_opening = true);
        let opening = Opening {
            kept: self.kept.clone(),
            key: key(plan, rules.width),
            room: waiting.room().clone(),
            backend: plan.state.clone(),
            tls: plan.tls.clone(),
            outgoing: plan.outgoing,
            rules: *rules,
            worker: self.slot_cache.worker(),
            client: waiting.client().clone(),
            limit,
        };
        Ok(Some(opening.begin(place)))
    }

    /// Takes the reserved descriptor for the first connection to a backend, or slots in the account for any other.
    fn place_of_line(
        &self,
        plan: &BackendPlan,
        rules: Rules,
        client: &Rc<ConnectionHandle>,
    ) -> Result<ConnectionPermit, Shortage> {
        let first = self.entry(plan, rules, |kept| match kept.first.strong_count() {
            0 => {
                let first = Rc::new(());
                kept.first = Rc::downgrade(&first);
                Some(ConnectionPermit::First(first))
            }
            _ => None,
        });
        if let Some(first) = first {
            return Ok(first);
        }
        Additional::take(&self.slot_cache, client, plan.state.slots()).map(ConnectionPermit::Additional)
    }

    fn entry<T>(&self, plan: &BackendPlan, rules: Rules, with: impl FnOnce(&mut Kept) -> T) -> T {
        let mut all = self.kept.borrow_mut();
        let kept = all.entry(key(plan, rules.width)).or_insert_with(|| Kept {
            backend: plan.state.clone(),
            rules,
            lines: Vec::new(),
            first: Weak::new(),
            is_opening: false,
            room: Rc::default(),
        });
        kept.rules = rules;
        with(kept)
    }

    /// Drops connections that have ended, exceeded the idle timeout, or whose backend is no longer configured.
    pub fn sweep(&self, now: Instant, snapshot: &Snapshot) {
        self.kept.borrow_mut().retain(|_, kept| {
            kept.lines.retain(|line| !line.is_over(now, kept.rules.keep_alive));
            let served = snapshot.pools.iter().any(|pool| {
                *pool.settings.name == *kept.backend.pool
                    && pool.backends.iter().any(|backend| Arc::ptr_eq(&backend.state, &kept.backend))
            });
            (served && !kept.lines.is_empty())
                || kept.is_opening
                || kept.first.strong_count() > 0
                || !kept.room.is_empty()
        });
    }

    /// Closes idle connections until `slots` slots are freed; the first connection of each backend stays. Returns the
    /// number of slots, which return to the account only when the connections have ended, a moment later.
    pub fn give_up(&self, slots: usize) -> usize {
        let (mut given, mut connections) = (0, 0);
        for line in self.kept.borrow().values().flat_map(|kept| &kept.lines) {
            let spare = line.spare();
            if given < slots && spare > 0 {
                line.close();
                given += spare;
                connections += 1;
            }
        }
        self.slot_cache.account().idle_closed.fetch_add(connections, Relaxed);
        given
    }

    /// Drops all connections. Requests that are being served continue.
    pub fn clear(&self) {
        self.kept.borrow_mut().clear();
    }
}

/// Waits for the connection that this request opens. Never completes if the request opens none.
async fn come_of(own: &mut Option<Told>) -> Result<(Stream, Freshness), ConnectFault> {
    let Some(told) = own else { return std::future::pending().await };
    match told.await {
        Ok(opened) => opened.map(|(place, took)| (Stream::call(Call::new(place)), Freshness::Fresh(took))),
        Err(_) => Err(ConnectFault::Ours(std::io::Error::other("the worker ends"))),
    }
}

fn key(plan: &BackendPlan, width: Width) -> Key {
    (Arc::as_ptr(&plan.state) as usize, width)
}
