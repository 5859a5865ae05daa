//! Connections to backends that speak HTTP/2, of one worker: each carries many requests at once.
//! `backend/line.rs` is one of them, `backend/call.rs` one request as the exchange sees it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::types::Pool;
use logic::health::Cause;
use sys::socket::Opening;
use tokio::sync::watch;

use crate::account::{Kind, PlaceCache, Taken};
use crate::connect::{self, ConnectFault, Shortage};
use crate::snapshot::{BackendPlan, Snapshot};
use crate::state::BackendState;
use crate::stream::Stream;

mod call;
mod line;

pub use call::{Call, Fate};
use line::Line;

/// How much of each response a backend may send ahead of what its client takes. A connection has one width for all its
/// requests, as HTTP/2 has one initial window for all streams of a connection (RFC 9113 section 6.9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// As much as a fast download needs.
    Wide,
    /// Little: for those of many requests of one client.
    Narrow,
}

/// How a pool speaks HTTP/2 to its backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Of the connection.
    pub width: Width,
    /// For how long a connection without requests is kept.
    pub keep_alive: Duration,
    /// Largest response head, as HTTP/2 counts (RFC 9113 section 6.5.2).
    pub header_list: u32,
}

impl Rules {
    /// Those of a pool.
    pub fn of(pool: &Pool) -> Self {
        Self { width: Width::Wide, keep_alive: pool.timeouts.keep_alive, header_list: HEADER_LIST }
    }
}

/// The limits of listeners hold as well, and are smaller unless they were made large.
const HEADER_LIST: u32 = 256 * 1024;

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
}

/// What a connection is counted in, given back with it.
enum LinePlace {
    /// What the process keeps for itself.
    First(#[expect(dead_code, reason = "it lives as long as the connection")] Rc<()>),
    /// The account.
    Further { place_cache: Rc<PlaceCache>, places: usize },
}

impl Drop for LinePlace {
    fn drop(&mut self) {
        if let Self::Further { place_cache, places } = self {
            place_cache.give_of(Kind::Lines, *places);
        }
    }
}

/// Whether a connection could be opened.
type Opened = Result<(), Cause>;

impl Lines {
    /// None so far.
    pub fn new(place_cache: Rc<PlaceCache>) -> Self {
        Self { kept: RefCell::default(), place_cache }
    }

    /// A request on a connection that is there and has room.
    pub fn take(&self, plan: &BackendPlan, width: Width) -> Option<Stream> {
        let kept = self.kept.borrow();
        let kept = kept.get(&key(plan, width))?;
        let line = kept.lines.iter().find(|line| line.has_room(plan.tls.as_ref()))?;
        Some(Stream::call(Call::new(line.place())))
    }

    /// A request on a connection that was opened for it, or by others meanwhile.
    pub async fn open(
        &self,
        plan: &BackendPlan,
        rules: Rules,
        limit: Duration,
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
                Err(_) if has_answered => return Err(ConnectFault::NoDescriptors(Shortage::OfShare)),
                Err(_) => return Err(ConnectFault::Backend(Cause::ConnectTimeout { after: limit })),
            }
            if let Some(stream) = self.take(plan, rules.width) {
                return Ok(stream);
            }
        }
        let (tell, told) = watch::channel(None);
        self.entry(plan, rules, |kept| kept.opening = Some(told));
        let _done = Done { lines: self, key: key(plan, rules.width) };
        // Its own time to connect: the backend is not late because others were waited for.
        let opened = self.connect(plan, rules, Instant::now() + limit, limit).await;
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
        deadline: Instant,
        limit: Duration,
    ) -> Result<Stream, ConnectFault> {
        let place = self.place_of_line(plan, rules)?;
        let tls = plan.tls.as_ref();
        let link = connect::establish(&plan.state, tls, Opening::WeSpeak, &[], limit).await?;
        let line = Line::begin(link, tls, &rules, deadline, place).await.map_err(ConnectFault::Backend)?;
        let place = line.place();
        self.entry(plan, rules, |kept| kept.lines.push(line));
        Ok(Stream::call(Call::new(place)))
    }

    /// The place of one more connection.
    fn place_of_line(&self, plan: &BackendPlan, rules: Rules) -> Result<LinePlace, ConnectFault> {
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
        let places = plan.state.places();
        if self.place_cache.account().usage().beside_clients(places).is_err() {
            return Err(ConnectFault::NoDescriptors(Shortage::OfShare));
        }
        match self.place_cache.take_of(Kind::Lines, places) {
            Taken::Yes => Ok(LinePlace::Further { place_cache: self.place_cache.clone(), places }),
            Taken::No => Err(ConnectFault::NoDescriptors(Shortage::OfPlaces)),
        }
    }

    fn entry<T>(&self, plan: &BackendPlan, rules: Rules, with: impl FnOnce(&mut Kept) -> T) -> T {
        let mut all = self.kept.borrow_mut();
        let kept = all.entry(key(plan, rules.width)).or_insert_with(|| Kept {
            backend: plan.state.clone(),
            rules,
            lines: Vec::new(),
            first: Weak::new(),
            opening: None,
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
            (served && !kept.lines.is_empty()) || kept.opening.is_some() || kept.first.strong_count() > 0
        });
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
