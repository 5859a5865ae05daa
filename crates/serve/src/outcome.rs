//! What happened to one session: filled in along its way, finished exactly once, on every way out, when it is dropped.
//! The access log and the counters are two views of it.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use logic::access_log::{Entry, Kind, Timings};
use logic::http1::request::{RequestHead, Version};
use logic::http1::span::Span;
use logic::peers::Peer;

use crate::ending::{Ending, Received, Spoken};
use crate::http::RequestId;
use crate::relay::Totals;
use crate::snapshot::PoolPlan;
use crate::state::ListenerState;
use crate::worker::Worker;

/// The record of one session.
pub struct Outcome {
    worker: Rc<Worker>,
    listener: Arc<ListenerState>,
    kind: Kind,
    client: Peer,
    tls: Option<&'static str>,
    started: Instant,
    stopped: Option<Instant>,
    /// What the client speaks.
    pub spoken: Spoken,
    /// The request, once its head was read.
    pub received: Option<Rc<Received>>,
    /// Request id, if it has one.
    pub request_id: RequestId,
    /// Status that the client saw; 0 for none.
    pub status: u16,
    /// Pool that the route chose.
    pub pool: Option<Arc<PoolPlan>>,
    /// Index of the backend in the pool, the last one tried.
    pub backend: Option<usize>,
    /// Index of the backend whose answer the client saw; `None` while there is none, or when it was our own.
    pub answered_by: Option<usize>,
    /// Backends tried.
    pub attempts: u32,
    /// Server name that the client asked for, if its TLS is passed through.
    pub sni: Option<Box<[u8]>>,
    /// Bytes from the client.
    pub bytes_in: u64,
    /// Bytes to the client.
    pub bytes_out: u64,
    /// What a relay of this session moves, as it moves it: counted even if the session is cut.
    pub relayed: Totals,
    /// Time spent waiting for a busy backend.
    pub queued: Option<Duration>,
    /// Time to open the connection; `None` if one was reused.
    pub connect: Option<Duration>,
    /// From the session's start to the first byte of the backend's answer.
    pub first_byte: Option<Duration>,
    ending: Option<Ending>,
}

impl Outcome {
    /// A session that starts now.
    pub fn new(
        worker: &Rc<Worker>,
        listener: &Arc<ListenerState>,
        kind: Kind,
        client: Peer,
        tls: Option<&'static str>,
    ) -> Self {
        Self {
            worker: worker.clone(),
            listener: listener.clone(),
            kind,
            client,
            tls,
            started: Instant::now(),
            stopped: None,
            spoken: Spoken::Http1,
            received: None,
            request_id: RequestId::None,
            status: 0,
            pool: None,
            backend: None,
            answered_by: None,
            attempts: 0,
            sni: None,
            bytes_in: 0,
            bytes_out: 0,
            relayed: Totals::default(),
            queued: None,
            connect: None,
            first_byte: None,
            ending: None,
        }
    }

    /// Says how it ended; the first word stands.
    pub fn end(&mut self, ending: Ending) {
        self.ending.get_or_insert(ending);
    }

    /// Where the session is served.
    pub fn worker(&self) -> &Rc<Worker> {
        &self.worker
    }

    /// When the session started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Ends the measured time of the session, if it has not ended yet, and says when that was.
    pub fn stop_clock(&mut self) -> Instant {
        *self.stopped.get_or_insert_with(Instant::now)
    }
}

impl Drop for Outcome {
    fn drop(&mut self) {
        let ending = match self.ending {
            _ if std::thread::panicking() => {
                self.worker.front.state.panics.fetch_add(1, Relaxed);
                Ending::Panicked
            }
            Some(ending) => ending,
            // Dropped without a word: the task was cancelled, by the end of the process or because the client's side is
            // being torn down.
            None if self.worker.is_cutting() => Ending::Cut,
            None => Ending::ClientClosed,
        };
        self.bytes_in += self.relayed.up.get();
        self.bytes_out += self.relayed.down.get();
        let took = self.stop_clock().duration_since(self.started);
        self.count(ending, took);
        self.log(ending, took);
    }
}

impl Outcome {
    fn count(&self, ending: Ending, took: Duration) {
        let counters = self.listener.counters.of(self.worker.index);
        counters.sessions.add(1);
        counters.bytes_in.add(self.bytes_in);
        counters.bytes_out.add(self.bytes_out);
        counters.latency.observe(took);
        let class = usize::from(self.status / 100);
        if (1..=5).contains(&class) {
            counters.statuses[class - 1].add(1);
        }
        if !matches!(ending, Ending::Ok) {
            self.listener.count_ending(self.worker.index, ending.word());
        }
        if let (Some(pool), Some(backend)) = (&self.pool, self.backend) {
            let counters = pool.backends[backend].state.counters.of(self.worker.index);
            counters.bytes_in.add(self.bytes_in);
            counters.bytes_out.add(self.bytes_out);
            // Only what the backend itself answered counts as its answer.
            if let Some(first_byte) = self.first_byte.filter(|_| self.answered_by == Some(backend)) {
                counters.latency.observe(first_byte);
                if (1..=5).contains(&class) {
                    counters.statuses[class - 1].add(1);
                }
            }
        }
    }

    fn log(&self, ending: Ending, took: Duration) {
        let Some(format) = self.worker.log_format() else { return };
        let at =
            crate::events::timestamp(SystemTime::now().checked_sub(took).unwrap_or(SystemTime::UNIX_EPOCH));
        let received = self.received.as_deref();
        let part = |span: fn(&RequestHead) -> Span| {
            received.map(|received| span(&received.request).of(&received.head))
        };
        let header = |name| received.and_then(|received| received.request.header(&received.head, name));
        let entry = Entry {
            at: &at,
            listener: &self.listener.name,
            client: self.client,
            kind: self.kind,
            request_id: (!self.request_id.is_none()).then(|| self.request_id.as_str()),
            method: part(|request| request.method),
            host: part(|request| request.authority),
            target: part(|request| request.target),
            version: received.map(|received| match (self.spoken, received.request.version) {
                (Spoken::Http2, _) => "HTTP/2",
                (Spoken::Http1, Version::Http10) => "HTTP/1.0",
                (Spoken::Http1, Version::Http11) => "HTTP/1.1",
            }),
            status: (self.status != 0).then_some(self.status),
            pool: self.pool.as_ref().map(|pool| &*pool.settings.name),
            backend: self
                .pool
                .as_ref()
                .zip(self.backend)
                .map(|(pool, backend)| &*pool.backends[backend].state.name),
            attempts: self.attempts,
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
            duration: took,
            timings: Timings { queue: self.queued, connect: self.connect, first_byte: self.first_byte },
            user_agent: header("user-agent"),
            referer: header("referer"),
            tls: self.tls,
            sni: self.sni.as_deref(),
            outcome: ending.word(),
        };
        self.worker.log(|line| match format {
            config::types::LogFormat::Text => logic::access_log::text(&entry, line),
            config::types::LogFormat::Json => logic::access_log::json(&entry, line),
        });
    }
}
