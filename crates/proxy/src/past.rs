//! The last sessions of a worker, for `penstock ctl why --session`: a ring of a fixed size, of which each entry is used
//! again. It costs a session no allocation and no shared reference count.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use logic::access_log::Kind;
use logic::attempts::{Failed, Fault};
use logic::balance::view::{How, Seen, View};
use logic::peers::Peer;
use state::ListenerState;
use state::ending::Received;

use crate::http::RequestId;
use crate::snapshot::PoolPlan;

/// Sessions that the process remembers, over all workers.
const MOST: usize = 4096;

/// Sessions that each worker remembers at least.
const LEAST: usize = 64;

/// Bytes of a request's target that are kept.
const TARGET: usize = 160;

/// The ring of one worker.
pub struct Past {
    entries: Vec<Entry>,
    /// Index of the oldest entry, once the ring is full.
    next: usize,
    most: usize,
}

/// One session, as its outcome leaves it.
#[derive(Default)]
pub struct Entry {
    pub id: RequestId,
    pub client: Option<Peer>,
    pub listener: Option<Arc<ListenerState>>,
    pub kind: Option<Kind>,
    /// Taken out at the next reload, so that old configurations are freed.
    pub pool: Option<Arc<PoolPlan>>,
    pub backend: Option<usize>,
    pub view: View,
    pub status: u16,
    pub attempts: u32,
    pub failed: Failed,
    pub moved: u32,
    pub hedged: u32,
    pub started: Option<Instant>,
    pub took: Duration,
    pub queued: Option<Duration>,
    pub ending: &'static str,
    names: Option<Rc<Names>>,
    request: Request,
}

/// Names in a pool of an earlier configuration.
struct Names {
    pool: Arc<str>,
    backends: Vec<Arc<str>>,
}

impl Names {
    fn of(plan: &PoolPlan) -> Self {
        let backends = plan.backends.iter().map(|backend| backend.state.name.clone()).collect();
        Self { pool: plan.settings.name.clone(), backends }
    }
}

/// Method, host and target of a request, one after the other.
#[derive(Default)]
struct Request {
    text: Vec<u8>,
    method: usize,
    host: usize,
    is_cut: bool,
}

impl Entry {
    /// Keeps the parts of a request that a person asks about.
    pub fn keep_request(&mut self, received: Option<&Received>) {
        let Request { text, method, host, is_cut } = &mut self.request;
        text.clear();
        let Some(received) = received else {
            (*method, *host, *is_cut) = (0, 0, false);
            return;
        };
        let (head, request) = (&received.head[..], &received.request);
        let (words, named) = (request.method.of(head), request.authority.of(head));
        let target = request.target.of(head);
        *is_cut = target.len() > TARGET;
        let target = &target[..target.len().min(TARGET)];
        (*method, *host) = (words.len(), words.len() + named.len());
        text.reserve_exact(*host + target.len());
        text.extend_from_slice(words);
        text.extend_from_slice(named);
        text.extend_from_slice(target);
    }

    fn is_of(&self, id: &str) -> bool {
        match (self.id.is_none(), self.client) {
            (false, _) if self.id.as_str() == id => true,
            (_, Some(client)) => client != Peer::Unix && client.to_string() == id,
            _ => false,
        }
    }

    fn session(&self) -> Option<PastSession> {
        let names = match &self.pool {
            Some(plan) => Some(Rc::new(Names::of(plan))),
            None => self.names.clone(),
        };
        let request = &self.request;
        let part = |range: std::ops::Range<usize>| {
            Some(String::from_utf8_lossy(request.text.get(range)?).into_owned())
                .filter(|part| !part.is_empty())
        };
        let name = |at: usize| names.as_ref()?.backends.get(at).cloned();
        let names_seen = names.iter().flat_map(|names| names.backends.iter()).enumerate();
        let seen = names_seen.filter(|_| self.view.how() != How::NotChosen);
        Some(PastSession {
            id: (!self.id.is_none()).then(|| self.id.as_str().to_owned()),
            client: self.client?,
            listener: self.listener.as_ref()?.name.clone(),
            kind: self.kind?,
            method: part(0..request.method),
            host: part(request.method..request.host),
            target: part(request.host..request.text.len()),
            is_target_cut: request.is_cut,
            status: (self.status != 0).then_some(self.status),
            pool: names.as_ref().map(|names| names.pool.clone()),
            backend: self.backend.and_then(name),
            how: self.view.how(),
            backends: seen.map_while(|(at, name)| Some((name.clone(), self.view.backend(at)?))).collect(),
            attempts: self.attempts,
            failed: self.failed.iter().map(|(at, fault)| (at.and_then(name), fault)).collect(),
            moved: self.moved,
            hedged: self.hedged,
            started: self.started?,
            took: self.took,
            queued: self.queued,
            ending: self.ending,
        })
    }
}

/// A session of the past, for an operator.
#[derive(Clone, Debug)]
pub struct PastSession {
    pub id: Option<String>,
    pub client: Peer,
    pub listener: Arc<str>,
    pub kind: Kind,
    pub method: Option<String>,
    pub host: Option<String>,
    pub target: Option<String>,
    pub is_target_cut: bool,
    pub status: Option<u16>,
    pub pool: Option<Arc<str>>,
    pub backend: Option<Arc<str>>,
    pub how: How,
    /// What the last choice saw of the pool's first 15 backends.
    pub backends: Vec<(Arc<str>, Seen)>,
    pub attempts: u32,
    /// Attempts that failed: the backend, unless it is one of another pool, and why.
    pub failed: Vec<(Option<Arc<str>>, Fault)>,
    pub moved: u32,
    pub hedged: u32,
    pub started: Instant,
    pub took: Duration,
    pub queued: Option<Duration>,
    pub ending: &'static str,
}

impl Past {
    pub fn new(workers: usize) -> Self {
        let most = (MOST / workers.max(1)).max(LEAST);
        // The kernel gives the memory when an entry is first written.
        Self { entries: Vec::with_capacity(most), next: 0, most }
    }

    /// Lets `fill` write the newest entry over the oldest one.
    pub fn push(&mut self, fill: impl FnOnce(&mut Entry)) {
        if self.entries.len() < self.most {
            self.entries.push(Entry::default());
            self.next = 0;
            if let Some(entry) = self.entries.last_mut() {
                fill(entry);
            }
            return;
        }
        let entry = &mut self.entries[self.next];
        entry.names = None;
        fill(entry);
        self.next = (self.next + 1) % self.most;
        // This entry was last written a whole round ago, and has left the cache since: the next session to end would wait for memory.
        sys::cache::prefetch(&self.entries[self.next]);
    }

    /// The last session with this request id, or else of the client with this address and port.
    pub fn find(&self, id: &str) -> Option<PastSession> {
        let (newer, older) = self.entries.split_at(self.next);
        newer.iter().rev().chain(older.iter().rev()).find(|entry| entry.is_of(id))?.session()
    }

    /// Lets go of the pools of the configuration that was served until now; their names stay.
    pub fn freeze(&mut self) {
        let mut known: HashMap<*const PoolPlan, Rc<Names>> = HashMap::new();
        for entry in &mut self.entries {
            let Some(plan) = entry.pool.take() else { continue };
            let names = match known.entry(Arc::as_ptr(&plan)) {
                Slot::Occupied(known) => known.get().clone(),
                Slot::Vacant(new) => new.insert(Rc::new(Names::of(&plan))).clone(),
            };
            entry.names = Some(names);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn filled(port: u16, ending: &'static str) -> impl FnOnce(&mut Entry) {
        move |entry| {
            entry.client = Some(Peer::Ip(SocketAddr::from(([192, 0, 2, 1], port))));
            entry.ending = ending;
        }
    }

    fn ending(past: &Past, port: u16) -> Option<&'static str> {
        let id = format!("192.0.2.1:{port}");
        let (newer, older) = past.entries.split_at(past.next);
        newer.iter().rev().chain(older.iter().rev()).find(|entry| entry.is_of(&id)).map(|entry| entry.ending)
    }

    /// With the text of a request, all entries of a process take about 1.5 MB.
    #[test]
    fn an_entry_takes_no_more_memory_than_is_said() {
        assert!(size_of::<Entry>() <= 320, "{}", size_of::<Entry>());
    }

    #[test]
    fn newest_sessions_are_found_and_the_oldest_is_overwritten() {
        let mut past = Past::new(usize::MAX);
        for port in 1..=100 {
            past.push(filled(port, "ok"));
        }
        assert_eq!(past.entries.len(), LEAST);
        assert_eq!(
            (ending(&past, 36), ending(&past, 37), ending(&past, 100)),
            (None, Some("ok"), Some("ok"))
        );
        past.push(filled(90, "queue-full"));
        assert_eq!(ending(&past, 90), Some("queue-full"), "the newest of a client");
    }
}
