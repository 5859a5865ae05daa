//! Connections to backends that speak HTTP/2, of one worker: each carries many requests at once.
//! `backend/line.rs` is one of them, `backend/line_place.rs` what it is counted in, `backend/opening.rs` one that is being opened,
//! `backend/room.rs` those who wait for room on them, `backend/call.rs` one request as the exchange sees it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use logic::account::Refusal;
use logic::health::Cause;

use crate::account::{PAUSE, PlaceCache};
use crate::connect::{ConnectFault, Freshness, Shortage};
use crate::http2::rules::{Rules, Width};
use crate::snapshot::{BackendPlan, Snapshot};
use crate::state::BackendState;
use crate::stream::Stream;
use crate::worker::Control;

mod call;
mod line;
mod line_place;
mod opening;
mod room;

pub use call::Call;
use line::Line;
use line_place::{Further, LinePlace};
use opening::{Opening, Told};
use room::{Room, Waiting};

/// Who asks for a place on a connection.
#[derive(Clone, Copy)]
pub struct Asker<'a> {
    /// The client whose share counts.
    pub client: &'a Rc<Control>,
    /// Of the connection.
    pub width: Width,
}

/// How a request asks for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It is refused where the share of its client allows no connection; it waits for one that is being opened.
    New,
    /// It was refused, and waits until its share allows what it asks for.
    Waited,
}

/// A request that asks for a place, until it is dropped.
pub struct Asking {
    rules: Rules,
    waiting: Waiting,
}

impl Asking {
    /// It was refused, and those behind it may look. It keeps its turn.
    pub fn refused(&self, why: Refusal) {
        self.waiting.refused(why);
    }

    /// Why it was refused when it last looked.
    pub fn refusal(&self) -> Option<Refusal> {
        self.waiting.refusal()
    }
}

/// The connections, by backend and width. The first of each is counted in what the process keeps for itself, so that clients
/// cannot use up its place; each further one takes places in the account.
pub struct Lines {
    kept: Rc<RefCell<HashMap<Key, Kept>>>,
    place_cache: Rc<PlaceCache>,
}

type Key = (usize, Width);

struct Kept {
    backend: Arc<BackendState>,
    rules: Rules,
    lines: Vec<Rc<Line>>,
    /// Lives as long as the connection that takes no place does.
    first: Weak<()>,
    /// One at a time: those who come meanwhile wait for it.
    is_opening: bool,
    room: Rc<Room>,
}

impl Lines {
    /// None so far.
    pub fn new(place_cache: Rc<PlaceCache>) -> Self {
        Self { kept: Rc::default(), place_cache }
    }

    /// A request on a connection that is there and has room, if none waits for that.
    pub fn take(&self, plan: &BackendPlan, asker: Asker<'_>) -> Option<Stream> {
        self.take_as(Asked::New, plan, asker).ok().flatten()
    }

    /// An error: there is room, and the share of the client does not allow it.
    fn take_as(&self, asked: Asked, plan: &BackendPlan, asker: Asker<'_>) -> Result<Option<Stream>, Refusal> {
        let kept = self.kept.borrow();
        let Some(kept) = kept.get(&key(plan, asker.width)) else { return Ok(None) };
        let is_called = asked == Asked::Waited || kept.room.is_empty();
        if !is_called && kept.room.has(asker.client) {
            return Ok(None);
        }
        // Beside requests that one carries already there is room for those that wait. One that carries none is as good as one
        // that is opened.
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

    /// A request that asks for a place, after those that ask already.
    pub fn ask(&self, plan: &BackendPlan, rules: Rules, asker: Asker<'_>) -> Asking {
        let rules = Rules { width: asker.width, ..rules };
        Asking { rules, waiting: self.entry(plan, rules, |kept| kept.room.clone()).stand(asker.client) }
    }

    /// Waits for a place on a connection, and opens one within `limit` if that is allowed.
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
        // It has looked at the connections that there are.
        let mut own = self.begin(plan, asking, limit).map_err(ConnectFault::NoDescriptors)?;
        loop {
            tokio::select! {
                biased;
                opened = come_of(&mut own) => return opened,
                () = waiting.called() => {}
                // What it opens itself has a time of its own: the backend is not late because others were waited for.
                () = tokio::time::sleep_until(deadline.into()), if own.is_none() => {
                    // Other requests have filled what was opened meanwhile: the backend did all that it was asked.
                    return Err(match waiting.room().opened() > opened_before {
                        true => ConnectFault::NoDescriptors(Shortage::OfShare(Refusal::Full)),
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

    /// As soon as there is room on a connection, or the share of the client allows one more.
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
                    // Others hold the places, and do not notify.
                    true => drop(tokio::time::timeout(PAUSE, waiting.called()).await),
                    false => waiting.called().await,
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
                    asking.refused(Refusal::Full);
                    self.place_cache.account().want();
                }
            }
        }
    }

    /// Takes what there is, or begins to open a connection.
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
            // There is room, for others.
            Some(why) if own.is_none() => Err(Shortage::OfShare(why)),
            Some(_) => {
                waiting.pass_on();
                Ok(None)
            }
            None => Ok(None),
        }
    }

    /// Begins to open a connection, unless one is being opened or the turn is that of another request.
    fn begin(&self, plan: &BackendPlan, asking: &Asking, limit: Duration) -> Result<Option<Told>, Shortage> {
        let Asking { rules, waiting } = asking;
        if !waiting.is_first_of_client() {
            // What holds for the request before it holds for this one.
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
            rules: *rules,
            worker: self.place_cache.worker(),
            client: waiting.client().clone(),
            limit,
        };
        Ok(Some(opening.begin(place)))
    }

    /// The place of one more connection.
    fn place_of_line(
        &self,
        plan: &BackendPlan,
        rules: Rules,
        client: &Rc<Control>,
    ) -> Result<LinePlace, Shortage> {
        let first = self.entry(plan, rules, |kept| match kept.first.strong_count() {
            0 => {
                let first = Rc::new(());
                kept.first = Rc::downgrade(&first);
                Some(LinePlace::First(first))
            }
            _ => None,
        });
        if let Some(first) = first {
            return Ok(first);
        }
        Further::take(&self.place_cache, client, plan.state.places()).map(LinePlace::Further)
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

    /// Lets go of connections that have ended, or were idle for too long, or whose backend is gone.
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

    /// Closes connections without requests until `places` are given up, or none is left but the first ones. Returns how many
    /// were; they come back to the account when the connections have ended, a moment later.
    pub fn give_up(&self, places: usize) -> usize {
        let (mut given, mut connections) = (0, 0);
        for line in self.kept.borrow().values().flat_map(|kept| &kept.lines) {
            let spare = line.spare();
            if given < places && spare > 0 {
                line.close();
                given += spare;
                connections += 1;
            }
        }
        self.place_cache.account().given_up.fetch_add(connections, Relaxed);
        given
    }

    /// Lets go of all of them; requests that are on their way go on.
    pub fn clear(&self) {
        self.kept.borrow_mut().clear();
    }
}

/// What comes of the connection that a request opens; never without one.
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
