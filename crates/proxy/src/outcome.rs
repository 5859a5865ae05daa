//! Record of one session: filled in while the session runs, and finished exactly once, when it is dropped. The access
//! log and the counters both read it.

use std::cell::OnceCell;
use std::num::NonZeroU32;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use logic::access_log::{Entry, Kind, Timings};
use logic::attempts::Failed;
use logic::balance::view::View;
use logic::http1::request::{RequestHead, Version};
use logic::http1::span::Span;
use logic::peers::Peer;
use state::ending::{ClientProtocol, Ending, Received};
use state::{BackendState, ListenerState};

use crate::http::RequestId;
use crate::live::{Cut, Entry as LiveEntry, Killed, NO_SOCKET, Totals};
use crate::snapshot::PoolPlan;
use crate::stream::Stream;
use crate::worker::{ConnectionHandle, Worker};

pub struct Outcome {
    worker: Rc<Worker>,
    listener: Arc<ListenerState>,
    kind: Kind,
    client: Peer,
    tls: Option<&'static str>,
    started: Instant,
    stopped: Option<Instant>,
    pub spoken: ClientProtocol,
    /// The request, after its head was read.
    pub received: Option<Rc<Received>>,
    pub request_id: RequestId,
    /// Status that the client received; 0 for none.
    pub status: u16,
    /// `grpc-status` of the backend's response.
    pub grpc_status: Option<u8>,
    /// Pool that the route selected.
    pub pool: Option<Arc<PoolPlan>>,
    /// Index in the pool of the last backend tried.
    pub backend: Option<usize>,
    /// What the choice of that backend saw.
    pub view: View,
    /// Index of the backend whose response the client received. `None` if there is none yet, or the response was
    /// penstock's own.
    pub answered_by: Option<u32>,
    pub attempts: u32,
    /// Why attempts failed.
    pub failed: Failed,
    /// How often the request left a backend that was judged down.
    pub moved: u16,
    /// Copies of the request that were sent to another backend because the first was slow.
    pub hedged: u16,
    /// In a box: few sessions have one, and every open session has an outcome.
    pub tls_detail: Option<Box<TlsDetail>>,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Bytes that a relay of the session has moved so far; counted even if the session is cut.
    relayed: OnceCell<Rc<Totals>>,
    /// The client connection of the session, if operators see it there, and its key in the worker's table.
    connection: Option<Rc<ConnectionHandle>>,
    key: u32,
    /// Time spent waiting for a busy backend.
    pub queued: Option<Duration>,
    /// Time to open the connection; `None` if a connection was reused.
    pub connect: Option<Brief>,
    /// Time from the session's start to the first byte of the backend's response.
    pub first_byte: Option<Duration>,
    /// Time from the begin of the attempt that was answered to the first byte of its response.
    pub response_time: Option<Brief>,
    ending: Option<Ending>,
    line: LogLine,
}

/// Duration in microseconds, of at most 71 minutes: an option of it has four bytes, and every open session has some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brief(NonZeroU32);

impl From<Duration> for Brief {
    fn from(took: Duration) -> Self {
        let micros = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        Self(NonZeroU32::MIN.saturating_add(micros))
    }
}

impl From<Brief> for Duration {
    fn from(Brief(above_one): Brief) -> Self {
        Duration::from_micros(u64::from(above_one.get() - 1))
    }
}

/// Whether a session gets a line in the access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogLine {
    Written,
    LeftOut,
    /// Another process goes on with the session, and counts and logs it.
    Elsewhere,
}

impl Outcome {
    /// Starts the record of a session.
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
            spoken: ClientProtocol::Http1,
            received: None,
            request_id: RequestId::None,
            status: 0,
            grpc_status: None,
            pool: None,
            backend: None,
            view: View::default(),
            answered_by: None,
            attempts: 0,
            failed: Failed::default(),
            moved: 0,
            hedged: 0,
            tls_detail: None,
            bytes_in: 0,
            bytes_out: 0,
            relayed: OnceCell::new(),
            connection: None,
            key: 0,
            queued: None,
            connect: None,
            first_byte: None,
            response_time: None,
            ending: None,
            line: LogLine::Written,
        }
    }

    /// Sets how the session ended; only the first call counts.
    pub fn end(&mut self, ending: Ending) {
        self.ending.get_or_insert(ending);
    }

    /// Shows the session to operators, as one of this client connection.
    pub fn belong(&mut self, handle: &Rc<ConnectionHandle>) {
        self.key = self.worker.running.begin(&handle.live);
        self.connection = Some(handle.clone());
    }

    /// Lets an operator end the session without the others of its connection.
    pub(crate) fn can_be_cut(&self, cut: Rc<Cut>) {
        self.show(|entry| entry.cut = Some(cut));
    }

    fn is_killed(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| {
            connection.live.killed.get() == Killed::Yes || self.worker.running.is_cut(self.key)
        })
    }

    fn show(&self, change: impl FnOnce(&mut LiveEntry)) {
        if self.connection.is_some() {
            self.worker.running.change(self.key, change);
        }
    }

    /// Entry of the session in the worker's table of open sessions.
    pub(crate) fn place(&self) -> Option<u32> {
        self.connection.as_ref().map(|_| self.key)
    }

    /// Shows which backend the session has, without a connection yet.
    pub fn show_backend(&self, backend: &Arc<BackendState>) {
        self.show(|entry| {
            entry.socket = NO_SOCKET;
            if !entry.backend.as_ref().is_some_and(|before| Arc::ptr_eq(before, backend)) {
                entry.backend = Some(backend.clone());
            }
        });
    }

    /// Shows the connection that the session has to its backend. Unless the session ends in the same poll,
    /// [`Self::hide_socket`] is to be called before another session can get the connection.
    pub fn show_socket(&self, backend: &Stream) {
        self.show(|entry| entry.socket = backend.descriptor());
    }

    /// Like [`Self::show_socket`], by the number of the descriptor.
    pub(crate) fn show_descriptor(&self, backend: RawFd) {
        self.show(|entry| entry.socket = backend);
    }

    pub fn hide_socket(&self) {
        self.show(|entry| entry.socket = NO_SOCKET);
    }

    /// Counts what a relay of the session moves.
    pub fn relayed(&self) -> &Totals {
        self.relayed.get_or_init(|| {
            let totals = Rc::new(Totals::default());
            self.show(|entry| entry.totals = Some(totals.clone()));
            totals
        })
    }

    /// Sets the request id, and shows it.
    pub fn set_request_id(&mut self, id: RequestId) {
        self.show(|entry| entry.request_id = id.clone());
        self.request_id = id;
    }

    /// Leaves the session out of the access log. It is counted all the same.
    pub fn leave_out_of_log(&mut self) {
        self.line = LogLine::LeftOut;
    }

    /// Another process goes on with the session: its end here is none.
    pub(crate) fn hand_over(&mut self) {
        self.line = LogLine::Elsewhere;
    }

    /// Goes on with a session that began so long ago.
    pub(crate) fn begun_before(&mut self, age: Duration) {
        self.started = self.started.checked_sub(age).unwrap_or(self.started);
    }

    /// Returns the worker that serves the session.
    pub fn worker(&self) -> &Rc<Worker> {
        &self.worker
    }

    pub(crate) fn listener_name(&self) -> &Arc<str> {
        &self.listener.name
    }

    pub fn started(&self) -> Instant {
        self.started
    }

    /// The session was over at this time, unless its clock stands already.
    pub fn stop_clock_at(&mut self, at: Instant) {
        self.stopped.get_or_insert(at);
    }

    /// Stops the session's clock if it still runs, and returns the time when it was stopped.
    pub fn stop_clock(&mut self) -> Instant {
        *self.stopped.get_or_insert_with(Instant::now)
    }
}

/// What the log says of a client's TLS that became no connection here.
pub enum TlsDetail {
    /// Server name that the client sent, if its TLS is passed through or no certificate is for the name.
    Sni(Box<[u8]>),
    /// Subject of a client certificate that was refused.
    RefusedCertificate(Box<str>),
    /// Alert with which the client ended the handshake.
    Alert(u8),
}

impl Drop for Outcome {
    fn drop(&mut self) {
        let ending = match self.ending {
            _ if std::thread::panicking() => {
                self.worker.front.state.panics.fetch_add(1, Relaxed);
                Ending::InternalError
            }
            Some(ending) => ending,
            // Dropped without an ending: the task was cancelled because the process ends or the client's connection is
            // being closed.
            None if self.is_killed() => Ending::Killed,
            None if self.worker.is_cutting() => Ending::DrainTimeout,
            None => Ending::ClientClosed,
        };
        if let Some(relayed) = self.relayed.get() {
            self.bytes_in += relayed.up.get();
            self.bytes_out += relayed.down.get();
        }
        if let Some(connection) = &self.connection {
            self.worker.running.end(&connection.live, self.key, self.bytes_in, self.bytes_out);
        }
        if self.line == LogLine::Elsewhere {
            return;
        }
        let took = self.stop_clock().duration_since(self.started);
        if let Some(fault) = ending.failed_attempt().filter(|_| self.failed.is_empty()) {
            // The last attempt ended the session where attempts are not noted one by one.
            self.failed.note(self.backend.unwrap_or(usize::MAX), fault);
        }
        self.count(ending, took);
        self.log(ending, took);
        self.keep(ending, took);
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
        if ending.is_fault() {
            self.listener.count_ending(self.worker.index, ending.word());
        }
        if let (Some(pool), Some(backend)) = (&self.pool, self.backend) {
            let counters = pool.backends[backend].state.counters.of(self.worker.index);
            counters.bytes_in.add(self.bytes_in);
            counters.bytes_out.add(self.bytes_out);
            if let Some(status) = self.grpc_status.filter(|_| self.is_answered_by(backend)) {
                counters.grpc_statuses[usize::from(status)].add(1);
            }
            // Only the backend's own response counts as its response time.
            let took = self.response_time.map(Duration::from).or(self.first_byte);
            if let Some(took) = took.filter(|_| self.is_answered_by(backend)) {
                counters.latency.observe(took);
                if (1..=5).contains(&class) {
                    counters.statuses[class - 1].add(1);
                }
            }
        }
    }

    /// Leaves the session to the worker's past. The reference counts that it holds go there, for those of the oldest entry.
    fn keep(&mut self, ending: Ending, took: Duration) {
        self.worker.keep_past(|entry| {
            entry.id = std::mem::take(&mut self.request_id);
            entry.client = Some(self.client);
            entry.kind = Some(self.kind);
            match &mut entry.listener {
                Some(oldest) => std::mem::swap(oldest, &mut self.listener),
                None => entry.listener = Some(self.listener.clone()),
            }
            std::mem::swap(&mut entry.pool, &mut self.pool);
            (entry.backend, entry.view, entry.status) = (self.backend, self.view, self.status);
            (entry.attempts, entry.moved, entry.hedged) =
                (self.attempts, u32::from(self.moved), u32::from(self.hedged));
            entry.failed = self.failed;
            (entry.started, entry.took, entry.queued) = (Some(self.started), took, self.queued);
            entry.ending = ending.word();
            entry.keep_request(self.received.as_deref());
        });
    }

    /// Notes that the client got the response of the last backend tried.
    pub fn note_answered(&mut self) {
        self.answered_by = self.backend.and_then(|backend| u32::try_from(backend).ok());
    }

    fn is_answered_by(&self, backend: usize) -> bool {
        self.answered_by.is_some_and(|by| by as usize == backend)
    }

    /// Counts a line about a client that was turned away, if it is left out.
    fn is_line_too_much(&self) -> bool {
        let state = &self.worker.front.state;
        let may = self.listener.turned_away_lines.take(self.started.duration_since(state.started));
        if !may {
            state.log_lines_left_out.fetch_add(1, Relaxed);
        }
        !may
    }

    fn log(&self, ending: Ending, took: Duration) {
        let Some(format) = self.worker.log_format().filter(|_| self.line == LogLine::Written) else { return };
        let is_turned_away = match ending {
            Ending::Denied | Ending::Tarpit | Ending::ConnectionRate | Ending::SourceFull => {
                self.pool.is_none() && self.received.is_none()
            }
            _ => false,
        };
        if is_turned_away && self.is_line_too_much() {
            return;
        }
        let at =
            state::events::timestamp(SystemTime::now().checked_sub(took).unwrap_or(SystemTime::UNIX_EPOCH));
        let received = self.received.as_deref();
        let part = |span: fn(&RequestHead) -> Span| {
            received.map(|received| span(&received.request).of(&received.head))
        };
        let header = |name| received.and_then(|received| received.request.header(&received.head, name));
        let (sni, refused_certificate, tls_alert) = match self.tls_detail.as_deref() {
            None => (None, None, None),
            Some(TlsDetail::Sni(name)) => (Some(&**name), None, None),
            Some(TlsDetail::RefusedCertificate(subject)) => (None, Some(&**subject), None),
            Some(TlsDetail::Alert(description)) => (None, None, Some(*description)),
        };
        let failed = (!self.failed.is_empty()).then(|| self.failed.list());
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
                (ClientProtocol::Http2, _) => "HTTP/2",
                (ClientProtocol::Http1, Version::Http10) => "HTTP/1.0",
                (ClientProtocol::Http1, Version::Http11) => "HTTP/1.1",
            }),
            status: (self.status != 0).then_some(self.status),
            grpc_status: self.grpc_status,
            pool: self.pool.as_ref().map(|pool| &*pool.settings.name),
            backend: self
                .pool
                .as_ref()
                .zip(self.backend)
                .map(|(pool, backend)| &*pool.backends[backend].state.name),
            attempts: self.attempts,
            failed: failed.as_deref(),
            moved: u32::from(self.moved),
            hedged: u32::from(self.hedged),
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
            duration: took,
            timings: Timings {
                queue: self.queued,
                connect: self.connect.map(Duration::from),
                first_byte: self.first_byte,
            },
            user_agent: header("user-agent"),
            referer: header("referer"),
            tls: self.tls,
            sni,
            refused_certificate,
            tls_alert,
            outcome: ending.word(),
        };
        self.worker.log(|line| match format {
            config::types::LogFormat::Text => logic::access_log::text(&entry, line),
            config::types::LogFormat::Json => logic::access_log::json(&entry, line),
        });
    }
}
