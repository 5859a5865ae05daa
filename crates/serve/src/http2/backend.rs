//! Connections to backends that speak HTTP/2, of one worker: each carries many requests at once.
//! `backend/line.rs` is one of them, `backend/line_place.rs` what it is counted in, `backend/room.rs` those who wait for room on
//! them, `backend/call.rs` one request as the exchange sees it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use logic::account::Refusal;
use logic::health::Cause;
use sys::socket::Opening;
use tokio::sync::watch;

use crate::account::{PAUSE, PlaceCache};
use crate::connect::{self, ConnectFault, Shortage};
use crate::http2::rules::{Rules, Width};
use crate::snapshot::{BackendPlan, Snapshot};
use crate::state::BackendState;
use crate::stream::Stream;
use crate::worker::Control;

mod call;
mod line;
mod line_place;
mod room;

pub use call::Call;
use line::Line;
use line_place::{Further, LinePlace};
use room::Room;

/// Who asks for a place on a connection.
#[derive(Clone, Copy)]
pub struct Asker<'a> {
    /// The client whose share counts.
    pub client: &'a Rc<Control>,
    /// Of the connection.
    pub width: Width,
}

/// Whether a request has waited.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Those that wait come first.
    New,
    /// It is the first of its client.
    First,
}

/// The connections, by backend and width. The first of each is counted in what the process keeps for itself, so that clients
/// cannot use up its place; each further one takes places in the account.
pub struct Lines {
    kept: RefCell<HashMap<Key, Kept>>,
    place_cache: Rc<PlaceCache>,
}

type Key = (usize, Width);

struct Kept {
    backend: Arc<BackendState>,
    rules: Rules,
    lines: Vec<Rc<Line>>,
    /// Lives as long as the connection that takes no place does.
    first: Weak<()>,
    /// What came of the connection that is being opened now: those who come meanwhile wait for it.
    opening: Option<watch::Receiver<Option<Opened>>>,
    room: Rc<Room>,
}

/// Whether a connection could be opened.
type Opened = Result<(), Cause>;

impl Lines {
    /// None so far.
    pub fn new(place_cache: Rc<PlaceCache>) -> Self {
        Self { kept: RefCell::default(), place_cache }
    }

    /// A request on a connection that is there and has room, if none waits for that.
    pub fn take(&self, plan: &BackendPlan, asker: Asker<'_>) -> Option<Stream> {
        self.take_in(plan, asker, Turn::New)
    }

    fn take_in(&self, plan: &BackendPlan, asker: Asker<'_>, turn: Turn) -> Option<Stream> {
        let kept = self.kept.borrow();
        let kept = kept.get(&key(plan, asker.width))?;
        if turn == Turn::New && kept.room.refusal_of(asker.client).is_some() {
            return None;
        }
        // Beside requests that one carries already there is room for those that wait. One that carries none is as good as one
        // that is opened.
        let may_have = |line: &&Rc<Line>| turn == Turn::First || kept.room.is_empty() || line.spare() > 0;
        let mut with_room =
            kept.lines.iter().filter(may_have).filter(|line| line.has_room(plan.tls.as_ref()));
        let place = with_room.find_map(|line| line.place(asker.client).ok())?;
        Some(Stream::call(Call::new(place)))
    }

    /// A request on a connection that was opened for it, or by others meanwhile.
    pub async fn open(
        &self,
        plan: &BackendPlan,
        rules: Rules,
        asker: Asker<'_>,
        limit: Duration,
    ) -> Result<Stream, ConnectFault> {
        self.open_in(plan, rules, asker, limit, Turn::New).await
    }

    /// The same after requests that wait already, as soon as there is room on a connection or the share of the client allows one
    /// more. `last` is why that is not so.
    pub async fn open_in_turn(
        &self,
        plan: &BackendPlan,
        rules: Rules,
        asker: Asker<'_>,
        limit: Duration,
        last: &Rc<Cell<Refusal>>,
    ) -> Result<Stream, ConnectFault> {
        let standing = self.entry(plan, rules, |kept| kept.room.clone()).stand(asker.client, last);
        loop {
            if standing.is_first_of_client() {
                // Others hold the places, and do not notify.
                let _ = tokio::time::timeout(PAUSE, standing.called()).await;
            } else {
                standing.called().await;
                continue;
            }
            if let Some(stream) = self.take_in(plan, asker, Turn::First) {
                return Ok(stream);
            }
            if let Err(why) = self.may_open(plan, rules, asker) {
                last.set(why);
                continue;
            }
            match self.open_in(plan, rules, asker, limit, Turn::First).await {
                Err(ConnectFault::NoDescriptors(Shortage::OfShare(why))) => last.set(why),
                Err(ConnectFault::NoDescriptors(Shortage::OfPlaces)) => {
                    last.set(Refusal::Full);
                    self.place_cache.account().want();
                }
                opened => return opened,
            }
        }
    }

    fn may_open(&self, plan: &BackendPlan, rules: Rules, asker: Asker<'_>) -> Result<(), Refusal> {
        match self.entry(plan, rules, |kept| kept.first.strong_count()) {
            0 => Ok(()),
            _ => asker.client.share.may_have_line(&self.place_cache, plan.state.places()),
        }
    }

    async fn open_in(
        &self,
        plan: &BackendPlan,
        rules: Rules,
        asker: Asker<'_>,
        limit: Duration,
        turn: Turn,
    ) -> Result<Stream, ConnectFault> {
        let deadline = Instant::now() + limit;
        let mut has_answered = false;
        loop {
            let opening = self.entry(plan, rules, |kept| kept.opening.clone());
            let Some(mut opening) = opening else { break };
            let told = tokio::time::timeout_at(deadline.into(), opening.wait_for(Option::is_some)).await;
            match told {
                Ok(Ok(opened)) => {
                    if let Some(Err(cause)) = &*opened {
                        return Err(ConnectFault::Backend(cause.clone()));
                    }
                    has_answered = opened.is_some();
                }
                // The request that opened it was given up; the next one tries.
                Ok(Err(_)) => {}
                // Other requests have filled what was opened meanwhile: the backend did all that it was asked.
                Err(_) if has_answered => {
                    return Err(ConnectFault::NoDescriptors(Shortage::OfShare(Refusal::Full)));
                }
                Err(_) => return Err(ConnectFault::Backend(Cause::ConnectTimeout { after: limit })),
            }
            if let Some(stream) = self.take_in(plan, asker, turn) {
                return Ok(stream);
            }
        }
        if turn == Turn::New
            && let Some(why) = self.entry(plan, rules, |kept| kept.room.refusal_of(asker.client))
        {
            return Err(ConnectFault::NoDescriptors(Shortage::OfShare(why)));
        }
        let place = self.place_of_line(plan, rules, asker)?;
        let (tell, told) = watch::channel(None);
        self.entry(plan, rules, |kept| kept.opening = Some(told));
        let _done = Done { lines: self, key: key(plan, rules.width) };
        let opened = self.connect(plan, rules, asker, place, limit).await;
        tell.send_replace(match &opened {
            Ok(_) => Some(Ok(())),
            Err(ConnectFault::Backend(cause)) => Some(Err(cause.clone())),
            // It says nothing about the backend: the next one tries for itself.
            Err(ConnectFault::Ours(_) | ConnectFault::NoDescriptors(_)) => None,
        });
        opened
    }

    async fn connect(
        &self,
        plan: &BackendPlan,
        rules: Rules,
        asker: Asker<'_>,
        place: LinePlace,
        limit: Duration,
    ) -> Result<Stream, ConnectFault> {
        // Its own time to connect: the backend is not late because others were waited for.
        let deadline = Instant::now() + limit;
        let room = self.entry(plan, rules, |kept| kept.room.clone());
        let tls = plan.tls.as_ref();
        let link = connect::establish(&plan.state, tls, Opening::WeSpeak, &[], limit).await?;
        let begun = Line::begin(link, tls, &rules, deadline, place, room.clone()).await;
        let line = begun.map_err(ConnectFault::Backend)?;
        let place = line.place_of_opener(asker.client);
        self.entry(plan, rules, |kept| kept.lines.push(line));
        room.freed(None);
        Ok(Stream::call(Call::new(place)))
    }

    /// The place of one more connection.
    fn place_of_line(
        &self,
        plan: &BackendPlan,
        rules: Rules,
        asker: Asker<'_>,
    ) -> Result<LinePlace, ConnectFault> {
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
        Further::take(&self.place_cache, asker.client, plan.state.places())
            .map(LinePlace::Further)
            .map_err(ConnectFault::NoDescriptors)
    }

    fn entry<T>(&self, plan: &BackendPlan, rules: Rules, with: impl FnOnce(&mut Kept) -> T) -> T {
        let mut all = self.kept.borrow_mut();
        let kept = all.entry(key(plan, rules.width)).or_insert_with(|| Kept {
            backend: plan.state.clone(),
            rules,
            lines: Vec::new(),
            first: Weak::new(),
            opening: None,
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
                || kept.opening.is_some()
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

/// The connection that was being opened is there, or not, also when whoever opened it was given up.
struct Done<'a> {
    lines: &'a Lines,
    key: Key,
}

impl Drop for Done<'_> {
    fn drop(&mut self) {
        if let Some(kept) = self.lines.kept.borrow_mut().get_mut(&self.key) {
            kept.opening = None;
        }
    }
}

fn key(plan: &BackendPlan, width: Width) -> Key {
    (Arc::as_ptr(&plan.state) as usize, width)
}
