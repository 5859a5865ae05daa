//! What happened to one session: filled in along its way, finished exactly once, on every way out, when it is dropped.
//! The access log and the counters are two views of it.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use logic::access_log::{Entry, Kind, Timings};
use logic::account::Refusal;
use logic::http1::refusal::Refusal as HttpRefusal;
use logic::http1::request::{RequestHead, Version};
use logic::http1::span::Span;
use logic::http2::flood::Flood;
use logic::http2::malformed::Malformed;
use logic::peers::Peer;

use crate::http::RequestId;
use crate::relay::Totals;
use crate::snapshot::PoolPlan;
use crate::state::ListenerState;
use crate::worker::Worker;

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// As both sides wanted.
    Ok,
    /// We answered by configuration: a redirect.
    Redirected,
    /// We showed an authority that a name is ours.
    AcmeChallenge,
    /// The request was ambiguous, broken or over a limit.
    Refused(HttpRefusal),
    /// The request was malformed in HTTP/2.
    Malformed(Malformed),
    /// The client broke HTTP/2 itself: its connection was closed.
    Http2Fault,
    /// The client sent too many frames that move nothing: its connection was closed.
    Flood(Flood),
    /// The same, but seen by the frame layer in what the frames hold.
    FrameFlood,
    /// The heads of the open requests of its connection are too large together.
    HeadsTooLarge,
    /// The request's body broke its framing.
    BodyFault,
    /// The request's body is longer than the limit.
    BodyTooLarge,
    /// The client did not send its request in time.
    ClientTimeout,
    /// The client went away.
    ClientClosed,
    /// No route takes this request.
    NoRoute,
    /// Routes go by path, and this path can be read in two ways.
    AmbiguousPath,
    /// The request has passed through Penstock too often: it goes in a circle.
    Loop,
    /// No backend of the pool is healthy.
    AllDown,
    /// Every backend is at its limit and so is the queue.
    QueueFull,
    /// No backend became free in time.
    QueueTimeout,
    /// No backend could be connected to.
    ConnectFailed,
    /// The backend closed before its answer.
    BackendClosed,
    /// The backend did not answer in time.
    BackendTimeout,
    /// The backend's answer was not HTTP as it must be.
    BackendBad,
    /// The backend broke off in the middle of its answer.
    BackendAborted,
    /// Nothing moved for the whole limit.
    Idle,
    /// TLS handshake failed.
    TlsFailed(TlsFault),
    /// TLS handshake took too long.
    TlsTimeout,
    /// A PROXY header was due and did not come right.
    ProxyHeader,
    /// The listener is at its limit.
    ListenerFull,
    /// It got no descriptor: its connection or its address has its share, or all descriptors are taken.
    NoDescriptors(Refusal),
    /// The process ended and the session was not over at the drain limit.
    Cut,
    /// The session panicked: our fault.
    Panicked,
}

impl Ending {
    /// One word for logs and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Redirected => "redirected",
            Self::AcmeChallenge => "acme-challenge",
            Self::Refused(refusal) => refusal.reason(),
            Self::Malformed(malformed) => malformed.reason(),
            Self::Http2Fault => "h2-protocol",
            Self::Flood(flood) => flood.reason(),
            Self::FrameFlood => "h2-flood",
            Self::HeadsTooLarge => "h2-heads",
            Self::BodyFault => "body-fault",
            Self::BodyTooLarge => "body-too-large",
            Self::ClientTimeout => "client-timeout",
            Self::ClientClosed => "client-closed",
            Self::NoRoute => "no-route",
            Self::AmbiguousPath => "ambiguous-path",
            Self::Loop => "loop",
            Self::AllDown => "all-down",
            Self::QueueFull => "queue-full",
            Self::QueueTimeout => "queue-timeout",
            Self::ConnectFailed => "connect-failed",
            Self::BackendClosed => "backend-closed",
            Self::BackendTimeout => "backend-timeout",
            Self::BackendBad => "backend-bad",
            Self::BackendAborted => "backend-aborted",
            Self::Idle => "idle",
            Self::TlsFailed(fault) => fault.word(),
            Self::TlsTimeout => "tls-timeout",
            Self::ProxyHeader => "proxy-header",
            Self::ListenerFull => "listener-full",
            Self::NoDescriptors(why) => match why {
                // Among the endings of all kinds, "full" alone would not say what is.
                Refusal::Full => "no-descriptors",
                Refusal::Connection | Refusal::Source => why.reason(),
            },
            Self::Cut => "cut",
            Self::Panicked => "panicked",
        }
    }
}

/// Why a TLS handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFault {
    /// What came is not TLS: plain HTTP, mostly.
    NotTls,
    /// There is no certificate for the name that the client asked for, or it named none.
    NoCertificate,
    /// The client offers no version or cipher that we speak.
    Incompatible,
    /// The client broke off with an alert: it does not trust the certificate, mostly.
    Alert,
    /// The client closed.
    Closed,
    /// Anything else that breaks the protocol.
    Protocol,
    /// It was not finished when too many others began.
    Crowded,
    /// The client's certificate is not good, or missing.
    Client(ClientFault),
}

/// What is wrong with a client's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientFault {
    /// There is none.
    Missing,
    /// It cannot be understood, or asks for something unknown.
    Malformed,
    /// It is of no CA that is trusted.
    UnknownAuthority,
    /// Its time is over.
    Expired,
    /// Its time has not come.
    NotYetValid,
    /// A list says that it is revoked.
    Revoked,
    /// No list says anything about it.
    RevocationUnknown,
    /// The list that would say something is out of date.
    OldRevocationList,
    /// It has none of the names that are let in.
    Name,
    /// It is not for clients, or is a CA's own.
    Purpose,
    /// A signature is wrong, or made in a way that is not accepted.
    Signature,
}

impl TlsFault {
    fn word(self) -> &'static str {
        match self {
            Self::NotTls => "tls-not-tls",
            Self::NoCertificate => "tls-no-certificate",
            Self::Incompatible => "tls-incompatible",
            Self::Alert => "tls-client-alert",
            Self::Crowded => "tls-crowded",
            Self::Closed => "tls-closed",
            Self::Protocol => "tls-failed",
            Self::Client(fault) => fault.word(),
        }
    }
}

impl ClientFault {
    fn word(self) -> &'static str {
        match self {
            Self::Missing => "client-certificate-missing",
            Self::Malformed => "client-certificate-malformed",
            Self::UnknownAuthority => "client-certificate-unknown-ca",
            Self::Expired => "client-certificate-expired",
            Self::NotYetValid => "client-certificate-not-yet-valid",
            Self::Revoked => "client-certificate-revoked",
            Self::RevocationUnknown => "client-certificate-revocation-unknown",
            Self::OldRevocationList => "client-certificate-revocation-list-old",
            Self::Name => "client-certificate-name",
            Self::Purpose => "client-certificate-purpose",
            Self::Signature => "client-certificate-signature",
        }
    }
}

/// What the client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoken {
    /// HTTP/1.0 or HTTP/1.1, as the request says.
    Http1,
    /// HTTP/2; the request was written as one of HTTP/1.1.
    Http2,
}

/// A request head: its bytes, and the spans into them.
pub struct Received {
    /// The bytes, without those of the body.
    pub head: Vec<u8>,
    /// What they mean.
    pub request: RequestHead,
}

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
