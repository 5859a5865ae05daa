//! The configuration as the program uses it: if a value exists here, it is good.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use logic::account::Shares;
use logic::balance::{HashKey, Policy};
use logic::health::{Check, PassiveRule, Rule};
use logic::http1::request::Limits;
use logic::peers::PeerSet;
use logic::proxy_header;
use logic::route::{HeaderEdits, PoolId, Route};
use logic::tunnel::plan::{Endpoint, Tunnel};
use rustls_pki_types::ServerName;

mod acme;
mod tls;

pub(crate) use acme::certificates_directory;
pub use acme::{Acme, AcmeCertificate, AcmeChallenge, ExternalAccount};
pub use tls::{
    AcmeSource, BackendTls, Cipher, CipherOrder, ClientCertificateMode, ClientCertificates, ClientHeader,
    Group, Identity, MinVersion, Ocsp, TlsPolicy, TlsSettings, UnknownRevocation, Verify,
};

/// A whole, valid configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The process itself: threads, user, limits.
    pub process: Process,
    /// Where finished sessions are written.
    pub access_log: AccessLog,
    /// The control socket; `None` switches `penstock ctl` off.
    pub control: Option<Control>,
    /// The admin listener (metrics, health, status); `None` switches it off.
    pub admin: Option<Admin>,
    /// Where clients arrive, in file order. Empty only in a file that has tunnels.
    pub listeners: Vec<Listener>,
    /// Sets of equal backends; a [`PoolId`] is an index into this.
    pub pools: Vec<Pool>,
    /// Where certificates are ordered.
    pub acme: Vec<Acme>,
    /// Tunnels, for `penstock tunnel`.
    pub tunnels: Vec<Tunnel>,
}

/// `[process]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Worker threads, each with its own runtime and listeners.
    pub workers: Workers,
    /// User to become after binding; `None` stays who we are.
    pub user: Option<String>,
    /// Group to become; `None` takes the user's own.
    pub group: Option<String>,
    /// How long sessions may go on after SIGTERM.
    pub drain_timeout: Duration,
    /// Client connections at once, over all listeners.
    pub max_connections: MaxConnections,
    /// How many descriptors one client connection, and one address, may hold.
    pub shares: Shares,
    /// An IPv6 source counts by its network of this prefix length.
    pub source_ipv6_prefix: u8,
    /// Where things are kept that outlive the process; `None`: where the usual place is there.
    pub state_directory: Option<PathBuf>,
}

/// How many workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// One per core that this process may use.
    Auto,
    /// Exactly so many.
    Count(NonZeroUsize),
}

/// Limit of client connections over all listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxConnections {
    /// As many as there are descriptors for.
    Auto,
    /// Exactly so many.
    Count(usize),
}

/// `[access-log]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLog {
    /// Where lines go.
    pub target: LogTarget,
    /// How a line looks.
    pub format: LogFormat,
}

/// Where the access log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Nowhere.
    Off,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// Appended to a file, reopened on SIGHUP and SIGUSR1.
    File(PathBuf),
}

/// How an access-log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people: `key=value`.
    Text,
    /// One JSON object a line.
    Json,
}

/// `[control]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    /// Path of the Unix socket, made with mode 0600.
    pub socket: PathBuf,
}

/// `[admin]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Address of the metrics, health and status endpoints.
    pub bind: BindAddress,
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BindAddress {
    /// `:80`: every address, IPv6 and IPv4 (IPv4 alone where the kernel has no IPv6).
    AnyIp(u16),
    /// One address and port; port 0 lets the kernel choose.
    Ip(SocketAddr),
    /// `unix:/path`.
    Unix(PathBuf),
    /// `systemd:NAME`: every socket that systemd passes under this name.
    Systemd(String),
}

/// `[listener.NAME]`
#[derive(Clone, Debug)]
pub struct Listener {
    /// NAME.
    pub name: Arc<str>,
    /// Addresses, at least one.
    pub binds: Vec<BindAddress>,
    /// Permission bits of Unix sockets that we make.
    pub unix_mode: u32,
    /// TLS, if this listener terminates it.
    pub tls: Option<TlsSettings>,
    /// From whom a PROXY header is expected (and then required).
    pub proxy_protocol_from: PeerSet,
    /// Client connections of this listener at once; `None`: only the process limit.
    pub max_connections: Option<usize>,
    /// What is spoken.
    pub protocol: Protocol,
}

/// What a listener speaks.
#[derive(Clone, Debug)]
pub enum Protocol {
    /// Bytes.
    Tcp(TcpSettings),
    /// HTTP/1.1.
    Http(Box<HttpSettings>),
    /// TLS that backends terminate.
    TlsPassthrough(PassthroughSettings),
}

/// A `protocol = "tls-passthrough"` listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassthroughSettings {
    /// Routes in file order: they look at nothing but the host, and lead to pools.
    pub routes: Vec<Route>,
    /// Where clients go that no route takes; `None`: they are refused.
    pub pool: Option<PoolId>,
    /// For a whole ClientHello.
    pub handshake_timeout: Duration,
    /// A session without a byte in either direction for so long is ended.
    pub idle_timeout: Duration,
}

/// A `protocol = "tcp"` listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpSettings {
    /// Where sessions go.
    pub pool: PoolId,
    /// A session without a byte in either direction for so long is ended.
    pub idle_timeout: Duration,
}

/// Whether clients may speak HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http2 {
    /// They may.
    On {
        /// Streams at once on one connection.
        streams: u32,
        /// Bytes of responses that may wait for a client, over all streams of a connection.
        send_buffer: usize,
        /// Bytes of requests that may wait for backends, over all streams of a connection.
        receive_window: u32,
    },
    /// HTTP/1.1 only.
    Off,
}

/// A `protocol = "http"` listener.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Routes in file order.
    pub routes: Vec<Route>,
    /// Where requests go that no route takes; `None`: 404.
    pub pool: Option<PoolId>,
    /// Answer everything with a redirect to https.
    pub redirect_to_https: RedirectToHttps,
    /// Value of Strict-Transport-Security on TLS connections; `None` switches it off.
    pub hsts: Option<Box<str>>,
    /// Whose X-Forwarded-*, Forwarded and request id are believed.
    pub trusted_proxies: PeerSet,
    /// Name of the header that carries the request id, as written.
    pub request_id_header: Box<str>,
    /// Whether HTTP/2 is spoken, too.
    pub http2: Http2,
    /// Header changes for every request and response of this listener.
    pub edits: HeaderEdits,
    /// Sizes.
    pub limits: Limits,
    /// Times that a request may pass through Penstock, this one counted.
    pub hops: u32,
    /// Requests on one connection before it is closed; `None`: any number.
    pub max_requests: Option<u64>,
    /// Times.
    pub timeouts: HttpTimeouts,
}

/// What happens to a request on this listener before routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirectToHttps {
    /// Nothing: it is routed.
    Off,
    /// 308 to the same host and target under https, at this port.
    Port(u16),
}

/// Times of an HTTP client connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpTimeouts {
    /// For the whole head, from its first byte (or from the connection's start for the first).
    pub head: Duration,
    /// Waiting for the next request.
    pub idle: Duration,
    /// Between two reads of a request body.
    pub body: Duration,
    /// The client takes no byte of the response for so long.
    pub write: Duration,
}

/// `[pool.NAME]`
#[derive(Clone, Debug)]
pub struct Pool {
    /// NAME.
    pub name: Arc<str>,
    /// How a backend is chosen.
    pub balance: Policy,
    /// What `hash` and `maglev` look at.
    pub hash_key: HashKey,
    /// `sticky`: how the table behaves.
    pub sticky: Sticky,
    /// At least one; addresses are unique within the pool.
    pub backends: Vec<Backend>,
    /// Active checks, if any.
    pub health: Option<ActiveCheck>,
    /// Ejection by real traffic.
    pub passive: PassiveRule,
    /// What to do when no backend is healthy.
    pub all_down: AllDown,
    /// Sessions that may wait for a busy backend, per worker and pool; 0: none wait.
    pub queue_length: usize,
    /// A backend that came back gets its full share after so long; zero switches it off.
    pub slow_start: Duration,
    /// TLS to backends; without it the connection is plain.
    pub tls: Option<BackendTls>,
    /// What is spoken to backends under HTTP.
    pub http: BackendHttp,
    /// PROXY header written to backends.
    pub send_proxy: Option<proxy_header::Version>,
    /// Further backends tried for a request that may be tried again.
    pub retries: u32,
    /// Idle connections kept per backend and worker.
    pub keep_alive: usize,
    /// Times.
    pub timeouts: PoolTimeouts,
    /// How often backend names are looked up again.
    pub resolve_interval: Duration,
}

/// What is spoken to backends under HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendHttp {
    /// HTTP/1.1, one request at a time on a connection.
    Http1,
    /// HTTP/2, many.
    Http2,
}

/// One server of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Where it is.
    pub address: BackendAddress,
    /// Share, relative to its neighbours; 0 takes no new sessions.
    pub weight: u32,
    /// Sessions at once, over all workers.
    pub max_connections: Option<u32>,
    /// What its certificate must be for; where its pool speaks TLS.
    pub server_name: Option<ServerName<'static>>,
}

/// Where a backend is. `Display` gives the configuration's spelling, its identity everywhere (hash, logs, metrics).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BackendAddress {
    /// `10.0.0.1:80`, `[::1]:80`
    Ip(SocketAddr),
    /// `app.internal:80`, looked up again and again.
    Name {
        /// Host name.
        host: String,
        /// Port.
        port: u16,
    },
    /// `unix:/path`
    Unix(PathBuf),
    /// `ssh:nas/127.0.0.1:8000`, `ssh:nas/unix:/run/app.sock`: reached through an SSH host.
    Ssh {
        /// The host, by the name that is its identity.
        host: String,
        /// Where the host connects.
        connect: Endpoint,
    },
}

impl std::fmt::Display for BackendAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Ssh { host, connect } => write!(f, "ssh:{host}/{connect}"),
        }
    }
}

impl std::fmt::Display for BindAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AnyIp(port) => write!(f, ":{port}"),
            Self::Ip(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Systemd(name) => write!(f, "systemd:{name}"),
        }
    }
}

/// Active checks of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveCheck {
    /// What is asked.
    pub check: Check,
    /// How often, how long, how many verdicts.
    pub rule: Rule,
}

/// What happens when no backend of a pool is healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllDown {
    /// Use all of them as if they were up, and say so.
    FailOpen,
    /// HTTP: 503 page; TCP: close.
    ErrorPage,
}

/// How `balance = "sticky"` remembers clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sticky {
    /// Clients remembered at most.
    pub entries: usize,
    /// A client is forgotten after so long without a session.
    pub ttl: Duration,
    /// IPv6 clients are one per network of this prefix length.
    pub ipv6_prefix: u8,
}

/// Times of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolTimeouts {
    /// To open a connection.
    pub connect: Duration,
    /// From the request's end to the response's first byte.
    pub response: Duration,
    /// Between two reads of a response body, and for the backend to take a byte.
    pub body: Duration,
    /// Waiting for a busy backend.
    pub queue: Duration,
    /// An idle connection is kept for so long.
    pub keep_alive: Duration,
    /// A tunnel (upgrade) without a byte for so long is ended.
    pub tunnel: Duration,
}
