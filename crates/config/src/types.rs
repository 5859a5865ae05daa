//! The configuration as the program uses it: every value of these types is valid.

use access::policy::Role;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hosts::tunnel::plan::{Endpoint, Tunnel};
use logic::account::Shares;
use logic::acl::AccessList;
pub use logic::balance::AllDown;
use logic::balance::{Bound, HashKey, Policy, Prefixes};
use logic::bandwidth::Bandwidth;
pub use logic::discovery::Standing;
use logic::dsr::quic::ServerId;
use logic::health::{Check, PassiveRule, Rule};
use logic::http1::forward::ForwardedHeaders;
use logic::http1::request::Limits;
use logic::http2::flood::Allowances;
use logic::peers::PeerSet;
use logic::proxy_header;
use logic::rate::Rate;
use logic::retry_budget;
use logic::route::{HeaderEdits, PoolId, Route};
use rustls_pki_types::ServerName;

use crate::environment::VariableFile;

mod acme;
mod bind_address;
mod control;
mod dns_name;
mod dsr;
mod engine;
mod fast_close;
mod geoip;
mod otp;
mod syslog;
mod tarpit;
mod tls;
mod udp;

pub(crate) use acme::certificates_directory;
pub use acme::{Acme, AcmeCertificate, AcmeChallenge, AcmeTlsa, DnsCommand, DnsUpdates, ExternalAccount};
pub use bind_address::BindAddress;
pub use control::{Kerberos, RemoteControl, StepUp, TlsStart};
pub use dns_name::DnsName;
pub use dsr::DsrSettings;
pub use engine::Engine;
pub use fast_close::FastClose;
pub use geoip::GeoIp;
pub use otp::{LogIn, Otp};
pub use syslog::{Syslog, SyslogAddress};
pub use tarpit::Tarpit;
pub use tls::{
    AcmeSource, BackendTls, Cipher, CipherOrder, ClientCertificateMode, ClientCertificates, ClientHeader,
    Group, Identity, MinVersion, Ocsp, TlsPolicy, TlsSettings, UnknownRevocation, Verify,
};
pub use udp::{Transport, UdpSettings};

/// A whole, valid configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The process itself: threads, user, limits.
    pub process: Process,
    /// Destination of the lines about finished sessions.
    pub access_log: AccessLog,
    /// Destination of the events besides the process log.
    pub events: Events,
    /// The control socket; `None` switches `penstock ctl` off.
    pub control: Option<Control>,
    /// The admin listener (metrics, health, status); `None` switches it off.
    pub admin: Option<Admin>,
    /// Listeners in file order. Empty only in a file that has tunnels.
    pub listeners: Vec<Listener>,
    /// Sets of equal backends; a [`PoolId`] is an index into this list.
    pub pools: Vec<Pool>,
    /// Access lists.
    pub acls: Vec<Acl>,
    /// Countries of addresses, for access lists.
    pub geoip: Option<GeoIp>,
    /// The store of one-time-password tokens, and who answers for it; `None` without one.
    pub otp: Option<Otp>,
    /// Sections that order certificates.
    pub acme: Vec<Acme>,
    /// Tunnels, for `penstock tunnel`.
    pub tunnels: Vec<Tunnel>,
    /// Files that variables of the environment name, and that hold values of this configuration.
    pub variable_files: Vec<VariableFile>,
    /// Files of `include`, and the directories of its patterns.
    pub included: Vec<std::path::PathBuf>,
}

impl Config {
    /// TLS of all that clients connect to: listeners, control over the network, and the admin listener.
    pub fn tls(&self) -> impl Iterator<Item = &TlsSettings> {
        self.tls_sections().map(|(_, tls)| tls)
    }

    /// The same with the section of each: `listener.web`.
    pub fn tls_sections(&self) -> impl Iterator<Item = (String, &TlsSettings)> {
        let listeners = self.listeners.iter();
        let listeners = listeners
            .filter_map(|listener| Some((format!("listener.{}", listener.name), listener.tls.as_ref()?)));
        let control = self.remote_control().map(|remote| ("control".to_owned(), &remote.tls));
        let admin = self.admin.as_ref().and_then(|admin| Some(("admin".to_owned(), admin.tls.as_ref()?)));
        listeners.chain(control).chain(admin)
    }

    pub fn remote_control(&self) -> Option<&RemoteControl> {
        self.control.as_ref()?.remote.as_ref()
    }
}

/// `[process]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Worker threads, each with its own runtime and listeners.
    pub workers: Workers,
    /// How they move the bytes of TCP sessions.
    pub engine: Engine,
    /// User after binding; `None`: root becomes the default user, if it can.
    pub user: Option<String>,
    /// Group after binding; `None`: the user's own.
    pub group: Option<String>,
    /// Time for open sessions to end after SIGTERM.
    pub drain_timeout: Duration,
    /// Limit of client connections over all listeners.
    pub max_connections: MaxConnections,
    /// Largest parts of the descriptors for one client connection and for one address.
    pub shares: Shares,
    /// Networks whose addresses count as one source.
    pub source_prefixes: Prefixes,
    /// File with the number of the process.
    pub pid_file: Option<PathBuf>,
    /// Directory for data that outlives the process; `None`: the default directory if it exists.
    pub state_directory: Option<PathBuf>,
    /// Time between two stores of the state that a restart keeps.
    pub state_interval: Duration,
}

/// Number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// One per core that this process may use.
    Auto,
    /// Exactly this number.
    Count(NonZeroUsize),
}

/// Limit of client connections over all listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxConnections {
    /// Limited by the number of descriptors.
    Auto,
    /// Exactly this number.
    Count(usize),
}

/// `[access-log]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLog {
    /// Destination of the lines.
    pub target: LogTarget,
    /// Format of a line.
    pub format: LogFormat,
}

/// `[events]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Events {
    /// Receiver that gets the events as well.
    pub syslog: Option<Syslog>,
}

/// Destination of the access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// No access log.
    Off,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// Appended to a file, reopened on SIGHUP and SIGUSR1.
    File(PathBuf),
    /// Sent to a receiver of syslog messages.
    Syslog(Syslog),
}

/// Format of an access-log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people: `key=value`.
    Text,
    /// One JSON object per line.
    Json,
}

/// `[control]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    /// Path of the Unix socket.
    pub socket: PathBuf,
    /// Who may use it besides root and the user of the process.
    pub access: logic::control_access::Rules,
    /// Control over the network.
    pub remote: Option<RemoteControl>,
}

/// `[admin]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Address of the metrics, health and status endpoints.
    pub bind: BindAddress,
    /// Clients that may connect; `None`: all.
    pub acl: Option<Arc<AccessList>>,
    /// TLS; `None`: clients use no encryption.
    pub tls: Option<TlsSettings>,
    /// File of users, for the roles below.
    pub users: Option<PathBuf>,
    /// Roles that clients need.
    pub access: AdminAccess,
}

/// `access` of `[admin]`: the role that a client needs for a page; `None`: none, it need not log in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdminAccess {
    pub metrics: Option<Role>,
    pub status: Option<Role>,
}

/// `[acl.NAME]`
#[derive(Clone, Debug)]
pub struct Acl {
    /// The compiled list, with its name.
    pub list: Arc<AccessList>,
    /// File that a part of the entries came from. A reload reads it again.
    pub file: Option<PathBuf>,
}

/// `[listener.NAME]`
#[derive(Clone, Debug)]
pub struct Listener {
    /// NAME of the section.
    pub name: Arc<str>,
    /// Addresses, at least one.
    pub binds: Vec<BindAddress>,
    /// Permission bits of the Unix sockets of this listener.
    pub unix_mode: u32,
    /// TLS, if this listener terminates it.
    pub tls: Option<TlsSettings>,
    /// Peers that must send a PROXY header.
    pub proxy_protocol_from: PeerSet,
    /// Clients that may connect; `None`: all.
    pub acl: Option<Arc<AccessList>>,
    /// Pool that serves the clients that `acl` denies; `None`: they are closed.
    pub denied_pool: Option<PoolId>,
    /// How denied clients are held; `None`: they are closed.
    pub tarpit: Option<Tarpit>,
    /// Limits of bytes a second.
    pub bandwidth: Option<Bandwidth>,
    /// Connections that one source may open.
    pub connection_rate: Option<Rate>,
    /// Largest number of open connections of one source.
    pub connections_per_source: Option<u32>,
    /// Length of the queue of connections that wait to be accepted, for each address and worker.
    pub backlog: u32,
    /// Largest number of client connections of this listener; `None`: only the process limit.
    pub max_connections: Option<usize>,
    /// Protocol with its settings.
    pub protocol: Protocol,
}

text::words! {
    /// `protocol` of a listener, without the settings of that protocol.
    #[derive(Default)]
    pub enum ProtocolName: "protocol" {
        /// HTTP/1.1 and HTTP/2.
        #[default]
        Http = "http",
        /// Bytes without a known protocol.
        Tcp = "tcp",
        /// TLS that backends terminate.
        TlsPassthrough = "tls-passthrough",
        /// Datagrams without a known protocol.
        Udp = "udp",
        /// Packets that are forwarded to backends, which reply straight to the client.
        Dsr = "dsr",
    }
}

impl Protocol {
    /// Name of the protocol.
    #[must_use]
    pub fn name(&self) -> ProtocolName {
        match self {
            Protocol::Tcp(_) => ProtocolName::Tcp,
            Protocol::Http(_) => ProtocolName::Http,
            Protocol::TlsPassthrough(_) => ProtocolName::TlsPassthrough,
            Protocol::Udp(_) => ProtocolName::Udp,
            Protocol::Dsr(_) => ProtocolName::Dsr,
        }
    }

    /// Reports whether Penstock reads the requests.
    #[must_use]
    pub fn is_http(&self) -> bool {
        match self {
            Protocol::Http(_) => true,
            Protocol::Tcp(_) | Protocol::TlsPassthrough(_) | Protocol::Udp(_) | Protocol::Dsr(_) => false,
        }
    }

    /// Returns what carries the protocol.
    #[must_use]
    pub fn transport(&self) -> Transport {
        match self {
            Protocol::Tcp(_) | Protocol::Http(_) | Protocol::TlsPassthrough(_) => Transport::Stream,
            Protocol::Udp(_) => Transport::Datagram,
            Protocol::Dsr(_) => Transport::Packet,
        }
    }
}

/// Protocol of a listener.
#[derive(Clone, Debug)]
pub enum Protocol {
    /// Bytes without a known protocol.
    Tcp(TcpSettings),
    /// HTTP/1.1 and HTTP/2.
    Http(Box<HttpSettings>),
    /// TLS that backends terminate.
    TlsPassthrough(PassthroughSettings),
    /// Datagrams without a known protocol.
    Udp(UdpSettings),
    /// Packets that are forwarded to backends, which reply straight to the client.
    Dsr(DsrSettings),
}

/// A `protocol = "tls-passthrough"` listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassthroughSettings {
    /// Routes in file order. They have only hosts as conditions, and lead to pools.
    pub routes: Vec<Route>,
    /// Pool of clients that match no route; `None`: such clients are refused.
    pub pool: Option<PoolId>,
    /// Time limit of a whole ClientHello.
    pub handshake_timeout: Duration,
    /// Idle timeout: a session without a byte in either direction for this time is ended.
    pub idle_timeout: Duration,
    /// Sides whose end ends the session.
    pub fast_close: FastClose,
}

/// A `protocol = "tcp"` listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpSettings {
    /// Pool of all sessions.
    pub pool: PoolId,
    /// Idle timeout: a session without a byte in either direction for this time is ended.
    pub idle_timeout: Duration,
    /// Sides whose end ends the session.
    pub fast_close: FastClose,
}

/// Whether clients may speak HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http2 {
    /// Clients may use HTTP/2.
    On {
        /// Largest number of parallel streams of one connection.
        streams: u32,
        /// Bytes of responses that may wait for a client, over all streams of a connection.
        send_buffer: usize,
        /// Bytes of requests that may wait for backends, over all streams of a connection.
        receive_window: u32,
        /// Bytes of one request that may wait for its backend.
        stream_window: u32,
        /// Largest cost of heads and trailers of a connection that wait to be read.
        held_heads: usize,
        /// Allowances for frames that cost work but transfer no data.
        flood: Allowances,
        /// Longest time that a connection waits whose address has flooded.
        flood_delay: Duration,
    },
    /// HTTP/1.1 only.
    Off,
}

/// Strict-Transport-Security (RFC 6797) in answers over TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hsts {
    Off,
    /// [`Hsts::DEFAULT`], but only with a certificate whose issuer this system trusts. A browser that remembers the
    /// header lets its user no longer pass the warning about any other certificate (RFC 6797 section 12.1).
    IfIssuerTrusted,
    /// This value, with every certificate.
    Always(Box<str>),
}

impl Hsts {
    /// One year, which is enough for every test of a site.
    pub const DEFAULT: &'static str = "max-age=31536000";

    /// Returns the value of the header. `None` if it is never sent.
    pub fn value(&self) -> Option<&str> {
        match self {
            Self::Off => None,
            Self::IfIssuerTrusted => Some(Self::DEFAULT),
            Self::Always(value) => Some(value),
        }
    }
}

/// A `protocol = "http"` listener.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Routes in file order.
    pub routes: Vec<Route>,
    /// Pool of requests that match no route; `None`: 404.
    pub pool: Option<PoolId>,
    /// Whether every request is answered with a redirect to https.
    pub redirect_to_https: RedirectToHttps,
    pub hsts: Hsts,
    /// Peers whose X-Forwarded-*, Forwarded and request id are trusted.
    pub trusted_proxies: PeerSet,
    /// Whether backends get `X-Forwarded-*` and `Forwarded`.
    pub forwarded_headers: ForwardedHeaders,
    /// Name of the header that contains the request id, as written in the file; `None`: it is sent to nobody.
    pub request_id_header: Option<Box<str>>,
    /// HTTP/2 settings.
    pub http2: Http2,
    /// Header changes for every request and response of this listener.
    pub edits: HeaderEdits,
    /// Size limits.
    pub limits: Limits,
    /// Number of times that a request may pass through Penstock, including this time.
    pub hops: u32,
    /// Requests that one source may send.
    pub request_rate: Option<Rate>,
    /// Largest number of requests on one connection; `None`: no limit.
    pub max_requests: Option<u64>,
    /// Timeouts.
    pub timeouts: HttpTimeouts,
}

/// Treatment of a request before routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirectToHttps {
    /// No redirect: the request is routed.
    Off,
    /// 308 to the same host and target under https, with this port.
    Port(u16),
}

/// Timeouts of an HTTP client connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpTimeouts {
    /// Time limit of a whole head, from its first byte (for the first head from the connection's start).
    pub head: Duration,
    /// Idle timeout between requests.
    pub idle: Duration,
    /// Timeout between two reads of a request body.
    pub body: Duration,
    /// Timeout of a client that reads no byte of the response.
    pub write: Duration,
}

/// `[pool.NAME]`
#[derive(Clone, Debug)]
pub struct Pool {
    /// NAME of the section.
    pub name: Arc<str>,
    /// Method of choosing a backend.
    pub balance: Policy,
    /// Input of the hash for `hash` and `maglev`.
    pub hash_key: HashKey,
    /// Limit of a backend's load for `hash` and `maglev`.
    pub balance_bound: Option<Bound>,
    /// Settings of `sticky`.
    pub sticky: Sticky,
    /// Backends, at least one; addresses are unique within the pool.
    pub backends: Vec<Backend>,
    /// Active checks, if any.
    pub health: Option<ActiveCheck>,
    /// Ejection because of failures of real traffic.
    pub passive: PassiveRule,
    /// Cookie by which clients keep their backends, instead of a table of their addresses.
    pub sticky_cookie: Option<StickyCookie>,
    /// Limit of the retries, as a share of the requests.
    pub retry_budget: Option<retry_budget::Rule>,
    /// Behaviour while no backend is healthy.
    pub all_down: AllDown,
    /// Pool of the sessions while no backend is available. These form no circle.
    pub fallback: Option<PoolId>,
    /// Largest number of sessions that wait for a busy backend, per worker and pool; 0: none wait.
    pub queue_length: usize,
    /// Time in which the share of a recovered backend grows to its full value; zero disables slow start.
    pub slow_start: Duration,
    /// TLS to backends; `None`: connections are plain.
    pub tls: Option<BackendTls>,
    /// Local address of connections to backends.
    pub source_address: SourceAddress,
    /// Silence after which the kernel probes whether a backend is still there.
    pub tcp_keepalive: Option<Duration>,
    /// HTTP version for backends.
    pub http: BackendHttp,
    /// Limits of HTTP/2 connections to backends.
    pub http2: BackendHttp2,
    /// PROXY header written to backends.
    pub send_proxy: Option<proxy_header::Version>,
    /// Largest number of further backends tried for a request that may be repeated.
    pub retries: u32,
    /// When a slow request is sent to a second backend as well, if ever.
    pub hedge: Option<logic::hedge::Rule>,
    /// Largest number of idle connections per backend and worker.
    pub keep_alive: usize,
    /// Timeouts.
    pub timeouts: PoolTimeouts,
    /// Interval of the look-ups of backends' names.
    pub resolve_interval: Duration,
    /// Number of consecutive answers without an address after which the backend at it leaves.
    pub resolve_misses: u32,
}

/// `source-address` of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceAddress {
    /// The kernel chooses an address of this machine.
    Any,
    /// An address of this machine.
    Ours(IpAddr),
    /// The address of the client. Checks use one of this machine.
    Client,
}

impl SourceAddress {
    /// The address of this machine, if the configuration names one.
    #[must_use]
    pub fn ours(self) -> Option<IpAddr> {
        match self {
            Self::Ours(source) => Some(source),
            Self::Any | Self::Client => None,
        }
    }
}

impl Pool {
    /// Whether each connection to a backend belongs to one client: it is not kept for another one.
    #[must_use]
    pub fn connects_per_client(&self) -> bool {
        self.send_proxy.is_some() || self.source_address == SourceAddress::Client
    }
}

/// HTTP version for backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendHttp {
    /// HTTP/1.1, one request at a time on a connection.
    Http1,
    /// HTTP/2, many parallel requests on a connection.
    Http2,
}

/// Limits of the HTTP/2 connections to the backends of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendHttp2 {
    /// Largest number of concurrent requests on one connection.
    pub streams: u32,
    /// Bytes of one response that may wait for its client.
    pub stream_window: u32,
    /// The same for the further concurrent requests of a client connection.
    pub narrow_window: u32,
    /// Bytes of one request that may wait for a backend that reads nothing.
    pub send_buffer: usize,
    /// Largest response head, counted as in RFC 9113 section 6.5.2.
    pub response_head: u32,
    /// Largest cost of heads and trailers of a connection that wait to be read.
    pub held_heads: usize,
    /// Largest size of all interim responses to one request.
    pub interim: usize,
    /// Allowances for frames that cost work but transfer no data.
    pub flood: Allowances,
}

/// One server of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Address of the backend.
    pub address: BackendAddress,
    /// Share relative to the other backends of the pool; 0 takes no new sessions.
    pub weight: u32,
    /// Largest number of sessions over all workers.
    pub max_connections: Option<u32>,
    /// Largest number of sessions, unless the client is known to the sticky table; at most `max_connections`.
    pub soft_max_connections: Option<u32>,
    /// Only the lowest number of which a backend has room takes sessions.
    pub priority: u32,
    /// Clients whose sessions the backend takes; `None`: all.
    pub acl: Option<Arc<AccessList>>,
    /// Name that the backend's certificate must contain; `None` without TLS.
    pub server_name: Option<ServerName<'static>>,
    /// Its number in connection ids of QUIC, and how many bytes that has.
    pub quic_id: Option<(ServerId, u8)>,
    /// Whether the DNS still has it; a file's backends are always here.
    pub standing: Standing,
}

/// Address of a backend. `Display` gives the configured spelling, its identity everywhere (hash, logs, metrics).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BackendAddress {
    /// `10.0.0.1:80`, `[::1]:80`
    Ip(SocketAddr),
    /// `app.internal:80`, resolved repeatedly.
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
        /// The SSH host, by the name that is its identity.
        host: String,
        /// Address to which the SSH host opens the forwarded connection.
        connect: Endpoint,
    },
    /// `dns:app.internal:80`, `srv:_http._tcp.app.internal`: stands for the backends that the name has. While none is
    /// known it is a backend without an address.
    Dns(DnsName),
    /// `app.internal@10.0.0.1:80`: one of the backends that a name has.
    Discovered {
        /// The name.
        name: Arc<DnsName>,
        /// Where the backend is.
        address: SocketAddr,
    },
}

impl std::fmt::Display for BackendAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Ssh { host, connect } => write!(f, "ssh:{host}/{connect}"),
            Self::Dns(name) => name.fmt(f),
            Self::Discovered { name, address } => write!(f, "{}@{address}", name.name()),
        }
    }
}

/// Active checks of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveCheck {
    /// Protocol and contents of a check.
    pub check: Check,
    /// Interval, timeout, and the numbers of verdicts.
    pub rule: Rule,
}

/// Settings of `balance = "sticky"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sticky {
    /// Largest number of remembered clients.
    pub entries: usize,
    /// Time without a session after which a client is forgotten.
    pub ttl: Duration,
    /// Prefix length of IPv6 networks: clients of one network count as one.
    pub ipv6_prefix: u8,
}

/// `sticky.cookie` of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StickyCookie {
    pub name: Box<str>,
    /// File with the key of its values.
    pub key_file: PathBuf,
}

/// Timeouts of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolTimeouts {
    /// Time limit of opening a connection.
    pub connect: Duration,
    /// Timeout from the request's end to the response's first byte.
    pub response: Duration,
    /// How long a request waits for the response of a backend that was judged down or ejected meanwhile.
    pub down: Duration,
    /// Timeout between two reads of a response body, and for a backend that reads no byte.
    pub body: Duration,
    /// Time limit of a whole response body.
    pub transfer: Option<Duration>,
    /// Timeout between two reads of a gRPC stream.
    pub grpc: Duration,
    /// Time limit of waiting for a busy backend.
    pub queue: Duration,
    /// Lifetime of an idle connection.
    pub keep_alive: Duration,
    /// Idle timeout of an upgraded connection (WebSocket).
    pub tunnel: Duration,
}
