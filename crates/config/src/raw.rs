//! The configuration as written in the file. `schema.rs` generates the reference page from the doc comments here.
//!
//! Attributes besides the comments: `default` is the value of an absent key (as text, so that it is parsed like a value
//! of the file), `x-required` marks required keys, `x-words` lists the allowed words of a text, `x-later` words that
//! are known but not available yet, `x-only` and `x-effect` the settings that a key needs to be allowed or to have an
//! effect, `x-default` describes a default that depends on other settings, `x-also` words that are allowed too.

use logic::dsr::Transports;
use logic::dsr::path::{AtStop, DataPath};
use logic::dsr::tunnel::Mode;
use logic::room;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

mod acl;
mod acme;
mod bandwidth;
mod clients;
mod control;
mod events;
mod forms;
mod geoip;
mod http2;
mod limits;
mod otp;
mod pool;
mod quic_id;
mod route;
mod syslog;
mod tarpit;
mod tls;
mod tunnel;

use crate::de::{At, Key, Named};
use crate::types::{Engine, FastClose, ProtocolName};
pub(crate) use acl::RawAcl;
pub(crate) use acme::{RawAcme, RawAcmeTlsa, RawDnsUpdates};
pub(crate) use bandwidth::{RawBandwidth, RawRouteBandwidth};
pub(crate) use clients::RawClientCertificates;
pub(crate) use control::{RawAdminAccess, RawKerberos, RawRoles};
pub(crate) use events::{RawEventSyslog, RawEvents};
pub(crate) use forms::{
    BackendText, BindText, DurationText, ModeText, NetworkText, OneOrMany, PathText, PatternText, RateText,
    Scalar, SizeText, TextOr,
};
pub(crate) use geoip::RawGeoIp;
pub(crate) use http2::{RawBackendHttp2, RawFlood, RawHttp2};
pub(crate) use limits::{RawHttpTimeouts, RawLimits};
pub(crate) use otp::RawOtp;
pub(crate) use pool::{
    RawBackend, RawBackendTls, RawHealth, RawPassive, RawPool, RawPoolTimeouts, RawSticky,
};
pub(crate) use quic_id::RawQuicId;
pub(crate) use route::{RawEdits, RawRespond, RawRoute};
pub(crate) use syslog::RawSyslog;
pub(crate) use tarpit::RawTarpit;
pub(crate) use tls::RawTls;
pub(crate) use tunnel::{RawForward, RawTunnel};

/// A Penstock configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawConfig {
    /// Further files: a path, or several, from the directory of this file or absolute. Their names may have `*` and `?`,
    /// as in `conf.d/*.toml`: such files are read in the order of their names, and there may be none; a file without a
    /// wildcard must exist. See [several files](#several-files).
    #[expect(dead_code, reason = "it is for the schema: include.rs has read the files before this is made")]
    pub(crate) include: Key<OneOrMany<PatternText>>,
    /// The process itself: threads, user, limits.
    #[schemars(extend("default" = json!({}), "x-example" = r#"[process]
workers = "auto"
user = "penstock"
drain-timeout = "30s"
"#))]
    pub(crate) process: Key<RawProcess>,
    /// Destination of the line about every finished session.
    #[schemars(extend("default" = json!({}), "x-example" = r#"[access-log]
target = "/var/log/penstock/access.log"
format = "json"
"#))]
    pub(crate) access_log: Key<RawAccessLog>,
    /// Destination of the events that `penstock ctl events` shows, besides the process log at standard error.
    #[schemars(extend("default" = json!({}), "x-example" = r#"[events]
target = "syslog+unix:/dev/log"
"#))]
    pub(crate) events: Key<RawEvents>,
    /// Unix socket on which `penstock ctl` reaches the running process. Without this section there is none.
    #[schemars(extend("x-example" = r#"[control]
socket = "/run/penstock/control.sock"
"#))]
    pub(crate) control: Key<RawControl>,
    /// Metrics, health and status over HTTP. Without this section there is no such listener.
    #[schemars(extend("x-example" = r#"[admin]
bind = "127.0.0.1:9900"
"#))]
    pub(crate) admin: Key<RawAdmin>,
    /// Addresses and protocol for clients. NAME is up to 64 of `A-Z a-z 0-9 _ -`. A server needs a listener.
    #[schemars(extend("default" = json!({}), "x-example" = r#"[listener.web]
bind = [":80", "unix:/run/penstock/web.sock"]
redirect-to-https = true

[listener.secure]
bind = ":443"
tls = { certificates = "/etc/penstock/certs" }
pool = "app"

[listener.database]
bind = "10.0.0.1:5432"
protocol = "tcp"
pool = "app"
"#))]
    pub(crate) listener: Key<Named<RawListener>>,
    /// A set of equal servers. NAME is up to 64 of `A-Z a-z 0-9 _ -`.
    #[schemars(extend("default" = json!({}), "x-example" = r#"[pool.app]
balance = "least-connections"
backends = ["10.0.0.11:8000", { address = "unix:/run/app.sock", weight = 2 }]
health = { http = "/healthz", interval = "2s", rise = 2, fall = 3 }
"#))]
    pub(crate) pool: Key<Named<RawPool>>,
    /// A list of clients that may come, or may not: for `acl` of listeners, routes, backends and `[admin]`. NAME is up to
    /// 64 of `A-Z a-z 0-9 _ -`.
    #[schemars(extend("default" = json!({}), "x-example" = r#"[acl.office]
entries = ["deny 10.7.0.0/16", "permit 10.0.0.0/8", "permit 2001:db8::/32"]
default = "deny"

[acl.abuse]
entries = ["deny 192.0.2.0/24"]
default = "permit"

[listener.web]
bind = ":80"
acl = "abuse"
pool = "app"

[[listener.web.route]]
path = "/internal"
acl = "office"
pool = "app"
"#))]
    pub(crate) acl: Key<Named<RawAcl>>,
    /// Countries of addresses, for entries of access lists such as `deny country:DE`. Without this section there are none.
    pub(crate) geoip: Key<RawGeoIp>,
    /// One-time passwords: the store of tokens that `penstock otp` fills, and who answers for it. Without this section there is
    /// none.
    #[schemars(extend("x-example" = r#"[listener.web]
bind = ":80"
pool = "app"

[otp]
listeners = ["web"]
"#))]
    pub(crate) otp: Key<RawOtp>,
    /// Certificates that Penstock orders and renews automatically, from an ACME authority (RFC 8555) such as Let's
    /// Encrypt. Listeners serve them by `tls.acme = "NAME"`. It needs `process.state-directory`. NAME is up to 64 of
    /// `A-Z a-z 0-9 _ -`.
    #[schemars(extend("x-example" = r#"[process]
state-directory = "/var/lib/penstock"

[acme.letsencrypt]
names = [["example.org", "www.example.org"], "shop.example"]
contact = "admin@example.org"
terms-agreed = true

[listener.web]
bind = ":80"
redirect-to-https = true

[listener.secure]
bind = ":443"
tls = { acme = "letsencrypt" }
pool = "app"
"#))]
    pub(crate) acme: Key<Named<RawAcme>>,
    /// Forwards over one supervised SSH connection to a host with a verified identity, and a mount through them: for
    /// `penstock tunnel`. `penstock serve` does not read it. NAME is up to 64 of `A-Z a-z 0-9 _ -`.
    #[schemars(extend("default" = json!({}), "x-example" = r#"[tunnel.nas]
host = "nas"
mount-point = "/mnt/nas"
mount = ["mount", "-t", "nfs4", "-o", "port={nfs.port},noatime", "127.0.0.1:/storage", "{mount-point}"]
job = ["rsnapshot", "weekly"]

[tunnel.nas.forward.nfs]
connect = "127.0.0.1:2049"
check = "nfs-null"
"#))]
    pub(crate) tunnel: Key<Named<RawTunnel>>,
}

/// `[process]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawProcess {
    /// Worker threads; `"auto"` is one for each core that the process may use.
    #[schemars(schema_with = "forms::word_or_integer")]
    #[schemars(extend("default" = "auto", "x-words" = ["auto"], "minimum" = 1, "maximum" = 1024))]
    pub(crate) workers: Key<Scalar>,
    /// How the bytes of TCP sessions are moved. `"epoll"`: by a system call for each step. `"io-uring"`: sessions of plain `tcp`
    /// listeners begin in an io_uring(7) of their worker, which costs less CPU for short ones; what moves more than 64 KiB, is
    /// open for longer than 250 ms, or meets anything unusual goes on as with `"epoll"`. So do sessions of other protocols, and of
    /// `tcp` listeners with `tls`, `proxy-protocol-from`, `bandwidth` or Unix sockets, or whose pool has `tls`,
    /// `send-proxy`, `source-address = "client"` or backends behind SSH. It needs Linux 6.0 or newer; where the kernel or a
    /// container forbids it, an event says so, and all are served by epoll. `"auto"`: `"io-uring"` where it is allowed and a listener that
    /// the process starts with can use it, else `"epoll"`, without an event. `penstock ctl status` shows what is in use, and why.
    #[schemars(extend("default" = Engine::default().as_str(), "enum" = Engine::WORDS))]
    pub(crate) engine: Key<String>,
    /// User of the process after all sockets are bound. Without it root becomes user `penstock`, if that exists and may use the files that the configuration names.
    pub(crate) user: Key<String>,
    /// Group of the process after all sockets are bound; without it the user's own.
    pub(crate) group: Key<String>,
    /// Time for open sessions to end after SIGTERM.
    #[schemars(extend("default" = "30s"))]
    pub(crate) drain_timeout: Key<DurationText>,
    /// Largest number of client connections over all listeners. `"auto"`: as many as there are descriptors for. The
    /// process reserves descriptors for itself (listeners, admin, control, checks, logs); of the rest, each client
    /// connection takes one descriptor for itself and one for a backend (two if any backend is behind SSH). `penstock
    /// ctl status` shows the account. Of a limit (LimitNOFILE) above 1048576, `"auto"` uses 1048576; a number here uses
    /// as many as it needs.
    #[schemars(schema_with = "forms::word_or_integer")]
    #[schemars(extend("default" = "auto", "x-words" = ["auto"], "minimum" = 1, "maximum" = 100_000_000))]
    pub(crate) max_connections: Key<Scalar>,
    /// Largest part of the descriptors for traffic that one client may hold.
    #[schemars(extend("default" = json!({}), "x-example" = r#"[process]
shares = { source = 20 }
"#, "x-instead" = json!({
        "integer": "write shares = { connection = {}, source = {} }: both are percent, from 1 to 100",
        "string": "write shares = { connection = 10, source = 50 }: both are percent, from 1 to 100",
    })))]
    pub(crate) shares: Key<RawShares>,
    /// File with the number of the process, made with mode 0644 before its user changes, locked (flock(2)) while the
    /// process lives, and removed at its end. One that another process left is replaced; if a process that lives holds
    /// it, the start is refused. The directory should belong to the user of the process: else the file is emptied at the
    /// end, not removed.
    #[schemars(extend("examples" = ["/run/penstock/penstock.pid"]))]
    pub(crate) pid_file: Key<PathText>,
    /// Directory for data that must outlive the process: certificates and keys of `[acme]`, OCSP responses from
    /// responders, and the state that a restart keeps: sticky clients, counters, health, drained backends, the history of
    /// live changes. Penstock makes it with mode 0700 if it is missing. Each process needs one of its own. `[acme]` needs
    /// one; without one, everything else is kept in memory only.
    #[schemars(extend(
        "x-default" = "`STATE_DIRECTORY` of the environment, which systemd sets; else `\"/var/lib/penstock\"` if it is there and a file configures the process",
        "examples" = ["/var/lib/penstock"]
    ))]
    pub(crate) state_directory: Key<PathText>,
    /// Time between two stores of what a restart keeps: sticky clients, counters, health and marks of operators. They are
    /// also stored at the end of the process, and most of it after each command that changes it.
    #[schemars(extend("default" = "10s"))]
    pub(crate) state_interval: Key<DurationText>,
}

/// `shares`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawShares {
    /// Largest number of backend connections that the requests of one HTTP/2 client connection may use at the same time
    /// beyond the first one, in percent of the descriptors for traffic that other clients do not hold. A request beyond
    /// that waits until another request of its connection ends, at most for `timeouts.queue` of its pool; then its
    /// stream is refused (REFUSED_STREAM: the client may retry). In each worker, no more requests wait than `queue` of
    /// the pool allows, and those of one connection at most half of the places that other connections leave free; one
    /// more is refused at once. The same limit applies to connections to HTTP/2 backends, beyond the first of each
    /// worker to each backend and the first of each client: such a connection counts for one client whose requests it
    /// carries, and a request beyond the share goes to another backend, or waits at the last one until a connection is
    /// free.
    #[schemars(extend("default" = 10, "minimum" = 1, "maximum" = 100))]
    pub(crate) connection: Key<i64>,
    /// Largest number of descriptors that all client connections from one address may hold together, with the backend
    /// connections that they use, in percent of the descriptors for traffic that other addresses do not hold. A new
    /// connection beyond that is closed; an HTTP client without TLS gets 503 with `Retry-After` first. If no descriptor
    /// is free, an idle connection of the same address is closed instead. Each address may always hold 16 descriptors
    /// (eight connections with a backend each), and the last quarter of all is reserved for addresses that hold no more
    /// than that. An address has the same share of the descriptors for further backend connections of HTTP/2 clients.
    /// Clients behind one NAT or load balancer count as one address: raise this number for them (100: addresses have no
    /// limit), or name the load balancer in `trusted-proxies` of the listener, or let it send a PROXY header
    /// (`proxy-protocol-from`). Those load balancers and Unix sockets have no such limit; behind a PROXY header the
    /// address in the header counts, unless it is in `trusted-proxies`.
    #[schemars(extend("default" = 50, "minimum" = 1, "maximum" = 100))]
    pub(crate) source: Key<i64>,
    /// Prefix length of IPv4 networks: all IPv4 addresses of one network count as one address, for these shares and for the
    /// limits of a source that a listener has.
    #[schemars(extend("default" = 32, "minimum" = 1, "maximum" = 32))]
    pub(crate) ipv4_prefix: Key<i64>,
    /// Prefix length of IPv6 networks: all IPv6 addresses of one network count as one address.
    #[schemars(extend("default" = 64, "minimum" = 1, "maximum" = 128))]
    pub(crate) ipv6_prefix: Key<i64>,
}

/// `[access-log]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawAccessLog {
    /// `"stdout"`, `"stderr"`, `"off"`, or the absolute path of a file, which is reopened on SIGHUP and SIGUSR1. Or a
    /// receiver of syslog messages (RFC 5424): `"syslog+udp://10.0.0.9:514"` (RFC 5426), `"syslog+tcp://10.0.0.9:601"`
    /// (RFC 6587, counted) or `"syslog+unix:/dev/log"` (datagrams or a stream). A receiver that is away delays no traffic:
    /// up to 1 MiB of lines wait for it, others are counted (`log_lines_failed`), and an event says when it went and came.
    #[schemars(extend("default" = "stdout", "x-also" = ["stdout", "stderr", "off"]))]
    pub(crate) target: Key<PathText>,
    /// `"text"` is `key=value` pairs for people, `"json"` one object per line for programs.
    #[schemars(extend("default" = "text", "enum" = ["text", "json"]))]
    pub(crate) format: Key<String>,
    /// Facility, severity and name of the program in the messages for `target = "syslog+..."`.
    #[schemars(extend("default" = json!({}), "x-example" = r#"[access-log]
target = "syslog+tcp://10.0.0.9:601"
format = "json"
syslog = { facility = "local3", app-name = "edge" }
"#))]
    pub(crate) syslog: Key<RawSyslog>,
}

/// `[control]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawControl {
    /// Absolute path of the Unix socket. Only root and the user of the process may use it (mode 0600), and whom
    /// `operators` and `readers` name: then everyone may connect (mode 0666), and the kernel says who it is. The variable
    /// `PENSTOCK_CONTROL_SOCKET` overrides it for the server; `penstock ctl` uses it where neither `--socket` nor `--config`
    /// names a socket.
    #[schemars(extend("x-required" = true, "examples" = ["/run/penstock/control.sock"]))]
    pub(crate) socket: Key<PathText>,
    /// Users and groups that may read and change everything, by name or number in /etc/passwd and /etc/group: `"ann"`,
    /// `"1000"`, `"group:ops"`.
    #[schemars(extend("default" = json!([]), "examples" = [["ann", "group:ops"]]))]
    pub(crate) operators: Key<Vec<At<String>>>,
    /// Users and groups that may read only: `status`, `backends`, `certs`, `clients`, `sessions`, `health`, `events`, `why`
    /// (with the targets of past requests), and `history` without a number. Texts of the configuration are for operators.
    #[schemars(extend("default" = json!([]), "examples" = [["monitor"]]))]
    pub(crate) readers: Key<Vec<At<String>>>,
    /// Address for `penstock ctl --host` and other clients over the network: `":4040"`, `"192.0.2.1:4040"`. They log in by
    /// SASL in the grammar of SMTP (RFC 4954), always over TLS. The page [control over the network](control-access.md) tells how.
    #[schemars(extend("x-default" = "none", "x-example" = r#"[control]
socket = "/run/penstock/control.sock"
listen = ":4040"
tls = { certificates = "/etc/penstock/certs" }
users = "/etc/penstock/users"
roles = { operate = ["group:ops"] }
"#))]
    pub(crate) listen: Key<BindText>,
    /// Certificates for `listen`, as `tls` of a listener. With `client-certificates` clients can log in by `EXTERNAL`.
    #[schemars(extend("x-default" = "none; needed with `listen`"))]
    pub(crate) tls: Key<RawTls>,
    /// When TLS begins: at once, or by the command `STARTTLS`, as some clients want it. No client logs in before.
    #[schemars(extend("default" = "implicit", "enum" = ["implicit", "starttls"]))]
    pub(crate) tls_start: Key<String>,
    /// File of users with passwords and roles, which `penstock user` writes. It is read at each log-in; others than its owner
    /// must not read it (mode 0600), and the user of the process must.
    #[schemars(extend("x-default" = "none", "examples" = ["/etc/penstock/users"]))]
    pub(crate) users: Key<PathText>,
    /// Mechanisms that clients may use, the best first: `"EXTERNAL"`, `"GS2-KRB5-PLUS"`, `"SCRAM-SHA-256-PLUS"`, `"GS2-KRB5"`, `"SCRAM-SHA-256"`,
    /// `"OAUTHBEARER"` (bearer tokens). Those ending in `-PLUS` are bound to the TLS connection, so that an attacker in the middle cannot use them. Only what works is offered.
    #[schemars(extend("x-default" = "all of them", "examples" = [["SCRAM-SHA-256-PLUS"]]))]
    pub(crate) mechanisms: Key<Vec<At<String>>>,
    /// Log-ins by Kerberos (`GS2-KRB5`, MIT Kerberos 1.19 or newer). A log-in that is not bound to its connection needs
    /// `process.state-directory` too, so that its token cannot be used again.
    #[schemars(extend("x-default" = "none"))]
    pub(crate) kerberos: Key<RawKerberos>,
    /// Who may do what, beside the roles in the file `users`.
    #[schemars(extend("x-default" = "nobody"))]
    pub(crate) roles: Key<RawRoles>,
    /// With `writes`, a client over the network that changes something must give a one-time password of its user too (`[otp]`;
    /// the owner of the token is the user). Reading needs none.
    #[schemars(extend("default" = "never", "enum" = ["never", "writes"]))]
    pub(crate) step_up: Key<String>,
    /// Time for which one password is enough, for a user at an address (IPv6: a /64), over all connections.
    #[schemars(extend("default" = "5m"))]
    pub(crate) step_up_for: Key<DurationText>,
    /// Who changes things without a one-time password, because no person is there to type one: as in `roles`.
    #[schemars(extend("default" = json!([]), "examples" = [["token:deploy"]]))]
    pub(crate) step_up_except: Key<Vec<At<String>>>,
}

/// `[admin]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawAdmin {
    /// Address to listen on, in the forms of a listener's `bind`.
    #[schemars(extend("x-required" = true, "examples" = ["127.0.0.1:9900"]))]
    pub(crate) bind: Key<BindText>,
    /// NAME of the section `[acl.NAME]` that says which clients may connect; others are closed at once. A reload changes it.
    #[schemars(extend("x-default" = "every client"))]
    pub(crate) acl: Key<String>,
    /// Certificates, as `tls` of a listener: then clients must use TLS.
    #[schemars(extend("x-default" = "none"))]
    pub(crate) tls: Key<RawTls>,
    /// File of users and tokens, for the roles that `access` asks for. Clients log in with a bearer token
    /// (`penstock user token`), or over TLS with a password (`Basic`).
    #[schemars(extend("x-default" = "`users` of `[control]`", "examples" = ["/etc/penstock/users"]))]
    pub(crate) users: Key<PathText>,
    /// Roles that clients need. `/healthz` needs none: it says `ok` or `draining`. Roles come from the file of users, and
    /// from `roles` of `[control]` with its `listen`.
    #[schemars(extend("x-default" = "every client may read everything"))]
    pub(crate) access: Key<RawAdminAccess>,
}

/// `[listener.NAME]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawListener {
    /// Listening addresses: `":80"` (every address, IPv6 and IPv4; `"*:80"` is the same), `"192.0.2.1:80"`,
    /// `"[2001:db8::1]:80"`, `"unix:/path"`, or `"systemd:NAME"` for the sockets that systemd passes under that name.
    /// With `dsr` it is the virtual address of the service, which no interface of this machine may have; `"192.0.2.10:*"` is
    /// every port of it that no other `dsr` listener has.
    #[schemars(extend("x-required" = true, "examples" = [":80"]))]
    pub(crate) bind: Key<OneOrMany<BindText>>,
    #[schemars(description = protocol(), extend(
        "default" = ProtocolName::default().as_str(), "enum" = ProtocolName::WORDS
    ))]
    pub(crate) protocol: Key<String>,
    /// Pool of sessions. With HTTP: for requests that match no route; without a pool these get 404. With
    /// `tls-passthrough`: for clients whose server name matches no route, or is missing; without a pool these get an
    /// alert.
    #[schemars(extend("x-default" = "none; needed with `tcp`, `udp` and `dsr`"))]
    pub(crate) pool: Key<String>,
    /// Terminate TLS. Without it clients use no encryption.
    #[schemars(extend("x-only" = json!({ "protocol": ["http", "tcp"] }), "x-example" = r#"[listener.secure]
bind = ":443"
tls = { certificates = "/etc/penstock/certs", handshake-timeout = "5s" }
pool = "app"
"#))]
    pub(crate) tls: Key<RawTls>,
    /// Permission bits of the Unix sockets that are made, in octal.
    #[schemars(extend("default" = "0660", "x-only" = json!({ "protocol": ["http", "tcp", "tls-passthrough"] })))]
    pub(crate) unix_mode: Key<ModeText>,
    /// Peers that must send a PROXY header (version 1 or 2): networks, addresses, or `"unix"`. Penstock trusts the
    /// addresses in the header; it checks the format of version 2's additions but does not use them. With `udp` each
    /// datagram of such a peer begins with a header of version 2: name only peers whose addresses no other host can
    /// forge.
    #[schemars(extend("default" = json!([]), "x-only" = json!({ "protocol": ["http", "tcp", "tls-passthrough", "udp"] })))]
    pub(crate) proxy_protocol_from: Key<Vec<At<NetworkText>>>,
    /// NAME of the section `[acl.NAME]` that says which clients may connect. A client that it denies is closed at once,
    /// before TLS and without an answer (`denied` in the access log), or served by `denied-pool`. Behind a PROXY header the
    /// address in the header counts, without one the address of the proxy. Of `trusted-proxies` the address of the proxy
    /// counts here; a route's `acl` sees the client behind it. With `udp` the datagrams of denied clients are dropped.
    #[schemars(extend("x-default" = "every client", "x-only" = json!({ "protocol": ["http", "tcp", "tls-passthrough", "udp"] })))]
    pub(crate) acl: Key<String>,
    /// Pool that serves the clients that `acl` denies, for all of their requests; without it they are closed.
    #[schemars(extend("x-only" = json!({ "protocol": ["http", "tcp", "tls-passthrough"] })))]
    pub(crate) denied_pool: Key<String>,
    /// Holds the clients that `acl` denies instead of closing them: they get no byte, and who tries one address after the
    /// other loses time. Such a client costs two descriptors and no backend, is logged as `tarpit` at its end, and is the
    /// first to be closed when connections or descriptors run out.
    #[schemars(extend("x-only" = json!({ "protocol": ["http", "tcp", "tls-passthrough"] }), "x-example" = r#"[acl.abuse]
entries = ["deny 192.0.2.0/24"]
default = "permit"

[listener.web]
bind = ":80"
acl = "abuse"
tarpit = { time = "30s" }
pool = "app"
"#))]
    pub(crate) tarpit: Key<RawTarpit>,
    /// Largest number of client connections of this listener; without it only the limit of the process applies.
    #[schemars(extend(
        "minimum" = 1, "maximum" = 100_000_000, "x-only" = json!({ "protocol": ["http", "tcp", "tls-passthrough"] })
    ))]
    pub(crate) max_connections: Key<i64>,
    /// Connections that one source may open: `burst` at once, then `per-second`. One more is closed; an HTTP client without
    /// TLS gets 429 with `Retry-After` first. A source is an address, or a network of `process.shares.ipv4-prefix` or
    /// `ipv6-prefix`: behind a PROXY header that of the address in it. `trusted-proxies` and Unix sockets have no such
    /// limit. The last 65,536 sources are remembered.
    #[schemars(extend("x-only" = json!({ "protocol": ["http", "tcp", "tls-passthrough"] }), "x-example" = r#"[listener.web]
bind = ":80"
pool = "app"
connection-rate = { burst = 40, per-second = 10 }
request-rate = { burst = 100, per-second = 50 }
connections-per-source = 20
"#))]
    pub(crate) connection_rate: Key<RawRate>,
    /// Largest number of open connections of one source, counted like those of `connection-rate`. One more is closed; an
    /// HTTP client without TLS gets 429 with `Retry-After` first.
    #[schemars(extend(
        "minimum" = 1, "maximum" = 100_000_000, "x-only" = json!({ "protocol": ["http", "tcp", "tls-passthrough"] })
    ))]
    pub(crate) connections_per_source: Key<i64>,
    /// Requests that one source may send: `burst` at once, then `per-second`. One more gets 429 with `Retry-After`. Behind
    /// one of `trusted-proxies` the client counts as for `acl` of a route, and the proxy itself if that is not known.
    #[schemars(extend("x-only" = json!({ "protocol": ["http"] })))]
    pub(crate) request_rate: Key<RawRate>,
    /// Bytes a second: heads and bodies of HTTP, or the bytes of connections, after TLS. A session beyond its limit is
    /// slowed: Penstock reads from the side that sends only what may go on, and no timeout of idleness or of a body counts
    /// the time. Responses that Penstock writes itself have no limit. A reload changes the limit of new sessions; a new
    /// session brings it to all that share it.
    #[schemars(extend("x-only" = json!({ "protocol": ["http", "tcp", "tls-passthrough"] }), "x-example" = r#"[listener.downloads]
bind = ":80"
pool = "app"
bandwidth = { down = "1MiB/s", burst = "4MiB", per = "source" }
"#))]
    pub(crate) bandwidth: Key<RawBandwidth>,
    /// Length of the queue of TCP connections that wait to be accepted, for each address in `bind` and each worker. The
    /// kernel cuts it to `net.core.somaxconn`. An address that is open keeps its queue until the next start.
    #[schemars(extend(
        "default" = 4096, "minimum" = 1, "maximum" = 1_000_000, "x-only" = json!({ "protocol": ["http", "tcp", "tls-passthrough"] })
    ))]
    pub(crate) backlog: Key<i64>,
    /// Idle timeout of a session: a session without a byte (`udp`: a flow without a datagram) in this time is ended. With
    /// `dsr`: time without a packet of the client after which the backend of a flow is forgotten; of UDP flows only with
    /// `transport = "udp"`, else they have 30 s.
    #[schemars(extend(
        "x-default" = "`\"1h\"`, with `udp` and `transport = \"udp\"` `\"30s\"`",
        "x-only" = json!({ "protocol": ["tcp", "tls-passthrough", "udp", "dsr"] })
    ))]
    pub(crate) idle_timeout: Key<DurationText>,
    /// Sides whose end ends the whole session: `"up"` the backend, `"down"` the client, `"both"` whichever ends first. The
    /// other side gets what was read until then, and is closed; what it still sends is lost. With `"off"` an end is passed
    /// on, and the other direction goes on until it ends itself.
    #[schemars(extend(
        "default" = FastClose::default().as_str(), "enum" = FastClose::WORDS, "x-only" = json!({ "protocol": ["tcp", "tls-passthrough"] })
    ))]
    pub(crate) fast_close: Key<String>,
    /// Number of replies that a backend sends for each datagram of a client, such as 1 for DNS: a flow ends with the last
    /// reply that is due, and the next datagram may go to another backend. 0: no reply is expected (syslog). Without this
    /// key any number, and a flow ends when it is idle.
    #[schemars(extend("minimum" = 0, "maximum" = 1_000_000, "x-only" = json!({ "protocol": ["udp"] }), "x-example" = r#"[listener.dns]
bind = ":53"
protocol = "udp"
pool = "resolvers"
replies = 1

[pool.resolvers]
backends = ["10.0.0.53:53", "10.0.1.53:53"]
health = { dns = "example.org" }
"#))]
    pub(crate) replies: Key<i64>,
    /// Largest number of flows of this listener. Each worker has an equal part of it, for each address in `bind`, and at
    /// least one flow. A flow takes one descriptor and one local UDP port (`net.ipv4.ip_local_port_range`: 28232 ports by
    /// default, which other programs need too). When a worker has its part, or no descriptor or port is left for flows, a new
    /// flow takes the place of the flow that was silent for longest among those that no backend has answered, then among
    /// those whose client has sent nothing after a reply. If there is none, its datagrams are dropped. Source addresses can
    /// be forged: a flood of them takes no place of a flow whose client has sent something after a reply. With `dsr`: flows
    /// whose backends are remembered, for each address in `bind`; they take no descriptors. A new one takes the place of one
    /// that has ended, then of the one that was silent for longest, whose next packet goes where that of a new flow goes.
    #[schemars(extend(
        "x-default" = "16384, with `dsr` 1000000", "minimum" = 1, "maximum" = 16_777_216, "x-only" = json!({ "protocol": ["udp", "dsr"] })
    ))]
    pub(crate) max_flows: Key<i64>,
    /// Largest number of flows of one source: of an address, or a network of `process.shares.ipv4-prefix` or
    /// `ipv6-prefix`. Each worker has an equal part of it, for each address in `bind`, and at least one flow: the kernel distributes the
    /// source's ports among workers. One more flow takes the place of another one of the same source, as with `max-flows`,
    /// or is dropped.
    #[schemars(extend("default" = 1024, "minimum" = 1, "maximum" = 16_777_216, "x-only" = json!({ "protocol": ["udp"] })))]
    pub(crate) flows_per_source: Key<i64>,
    /// Network interface where packets of clients come in, and go out to the backends. Of a VLAN, bond or bridge name its own
    /// interface.
    #[schemars(extend(
        "x-default" = "none; needed with `dsr`", "examples" = ["eth0"], "x-only" = json!({ "protocol": ["dsr"] }), "x-example" = r#"[listener.video]
bind = ["192.0.2.10:80", "[2001:db8::10]:80"]
protocol = "dsr"
interface = "eth0"
pool = "video"

[pool.video]
backends = ["192.0.2.21:80", "192.0.2.22:80"]
balance = "maglev"
"#
    ))]
    pub(crate) interface: Key<String>,
    /// How packets reach the backends. `"l2"` writes the Ethernet address of the backend into each, and nothing else: backends are
    /// on the network of `interface`. `"ipip"` puts each into a packet to the address of the backend, IPv4 into IPv4 (protocol 4)
    /// and IPv6 into IPv6 (protocol 41): backends may be behind routers, and have a tunnel device. See
    /// [dsr.md](dsr.md#backends-on-other-networks).
    #[schemars(extend("default" = Mode::default().as_str(), "enum" = Mode::WORDS, "x-only" = json!({ "protocol": ["dsr"] })))]
    pub(crate) mode: Key<String>,
    /// Transport protocols that are forwarded.
    #[schemars(extend("default" = Transports::default().as_str(), "enum" = Transports::WORDS, "x-only" = json!({ "protocol": ["dsr"] })))]
    pub(crate) transport: Key<String>,
    /// Where packets are forwarded: `"tc"` by a program in the kernel where they leave the driver of the network card,
    /// `"xdp"` by one in the driver, `"xdp-generic"` the same where the driver has none, `"af_packet"` by this process.
    /// `"proxy"` forwards none: this process takes connections and datagrams, as `tcp` and `udp` listeners do.
    /// `"auto"` takes the best that works: `xdp` on physical cards, then `tc`, `af_packet`, `proxy`; `penstock ctl status --json`
    /// says which one, and why no better one. Another word takes that one, or the start fails. See [dsr.md](dsr.md#data-paths).
    #[schemars(extend("default" = DataPath::default().as_str(), "enum" = DataPath::WORDS, "x-only" = json!({ "protocol": ["dsr"] })))]
    pub(crate) data_path: Key<String>,
    /// What becomes of a program in the kernel when this process is stopped: it is taken away, or it goes on with what it knows,
    /// without checks of health, until the next start. After a crash it goes on in any case.
    #[schemars(extend("default" = AtStop::default().as_str(), "enum" = AtStop::WORDS, "x-only" = json!({ "protocol": ["dsr"] })))]
    pub(crate) at_stop: Key<String>,
    /// This machine answers for the address of the service only while it also has this one, on any interface, which keepalived
    /// or the like moves between machines with the same listener. Packets that come in are forwarded in any case. See [dsr.md](dsr.md#two-balancers).
    #[schemars(extend("x-default" = "none: it always answers", "examples" = ["169.254.77.10"], "x-only" = json!({ "protocol": ["dsr"] })))]
    pub(crate) owner_address: Key<String>,
    /// File with a secret of 32 to 4096 bytes: the key of the hash that gives flows to backends. Nodes with the same file and
    /// the same backends give a flow to the same one, also after a restart. Without it the key is chosen at each start.
    /// `head -c 32 /dev/urandom | base64 > FILE` writes one, which only the user of the process may be able to read.
    #[schemars(extend("x-only" = json!({ "protocol": ["dsr"] })))]
    pub(crate) hash_key_file: Key<PathText>,
    /// Place of the number of a server in the connection ids of QUIC: packets with the number of a backend (`quic-id` of
    /// `backends`) go to that one, also when the address of the client changes. The servers must put their numbers there. A
    /// packet without such a number (the first ones of a connection, and all that are not QUIC) goes where its flow does. With
    /// `transport = "udp"` alone. See [dsr.md](dsr.md#quic).
    #[schemars(extend("x-default" = "none: connection ids are not looked at", "x-only" = json!({ "protocol": ["dsr"] }), "x-example" = r#"[listener.video]
bind = "192.0.2.10:443"
protocol = "dsr"
transport = "udp"
interface = "eth0"
quic-id = { offset = 1, length = 2 }
pool = "video"

[pool.video]
backends = [
  { address = "192.0.2.21:443", quic-id = "0a01" },
  { address = "192.0.2.22:443", quic-id = "0a02" },
]
balance = "maglev"
"#))]
    pub(crate) quic_id: Key<RawQuicId>,
    /// Networks whose unused addresses answer connections, and hold who opens them: scanners lose time, and worms. For an
    /// address that no machine answers for, Penstock answers ARP and neighbour discovery, and SYNs with a window of 0: the
    /// client is connected and can send nothing, and its window probes are answered, nothing else. Nothing is kept of a
    /// client. A machine that has an address, or comes to take it, keeps it. Networks are /16 to /32, of IPv6 /64 to /128;
    /// no other machine may have a tarpit for them, and no DHCP server may give their addresses out. See
    /// [dsr.md](dsr.md#unused-addresses-that-hold-clients).
    #[schemars(extend("default" = json!([]), "x-only" = json!({ "protocol": ["dsr"] }), "x-example" = r#"[listener.video]
bind = "192.0.2.10:80"
protocol = "dsr"
interface = "eth0"
tarpit-networks = ["192.0.2.128/25"]
pool = "video"

[pool.video]
backends = ["192.0.2.21:80"]
balance = "maglev"
"#))]
    pub(crate) tarpit_networks: Key<Vec<At<NetworkText>>>,
    /// Packets a second that `tarpit-networks` sends, at most: answers to clients, whose addresses may be forged, to questions
    /// who has an address, and its own questions. A second's share may leave at once.
    #[schemars(extend("default" = 100, "minimum" = 1, "maximum" = 100_000, "x-only" = json!({ "protocol": ["dsr"] })))]
    pub(crate) tarpit_rate: Key<i64>,
    /// Time limit for a client to send the server name.
    #[schemars(extend("default" = "10s", "x-only" = json!({ "protocol": ["tls-passthrough"] })))]
    pub(crate) handshake_timeout: Key<DurationText>,
    /// Answer every request with a redirect to `https`; a number is the port to name there, `true` is 443.
    #[schemars(schema_with = "forms::switch_or_integer")]
    #[schemars(extend(
        "default" = false, "minimum" = 1, "maximum" = 65535, "x-only" = json!({ "protocol": ["http"] })
    ))]
    pub(crate) redirect_to_https: Key<Scalar>,
    /// Strict-Transport-Security on TLS connections: a duration, `"off"`, `"preload"`, or a whole value with `max-age`.
    /// `"preload"` is two years for this name and every name below it, and asks browsers to include it in their preload
    /// lists: this cannot be undone quickly. A header from the backend has priority. The default is sent only with a
    /// certificate that leads to an authority that this system trusts: browsers that remember it let their users no
    /// longer pass the warning about any other certificate.
    #[schemars(extend(
        "x-default" = "`\"365d\"` with `tls` and a trusted certificate", "x-also" = ["off", "preload"], "x-only" = json!({ "protocol": ["http"] })
    ))]
    pub(crate) hsts: Key<String>,
    /// Peers whose `X-Forwarded-*`, `Forwarded` and request id are trusted: networks, addresses, or `"unix"`. The same
    /// headers from other clients are removed.
    #[schemars(extend("default" = json!([]), "x-only" = json!({ "protocol": ["http"] })))]
    pub(crate) trusted_proxies: Key<Vec<At<NetworkText>>>,
    /// Whether backends are told about the client: `X-Forwarded-For`, `X-Forwarded-Proto`, `X-Forwarded-Host` and
    /// `Forwarded`. `"off"` sends none of them, and removes those that clients and trusted proxies send.
    #[schemars(extend("default" = "on", "enum" = ["on", "off"], "x-only" = json!({ "protocol": ["http"] })))]
    pub(crate) forwarded_headers: Key<String>,
    /// Header that contains the request id, sent to the backend and back to the client. With `"off"` only the access log
    /// and Penstock's own error pages have the id, and a header of the client is sent on like any other.
    #[schemars(extend("default" = "X-Request-Id", "x-also" = ["off"], "x-only" = json!({ "protocol": ["http"] })))]
    pub(crate) request_id_header: Key<String>,
    /// Whether clients may use HTTP/2: with `tls` by ALPN, without it by prior knowledge. For connections to backends,
    /// `http2` of the pool decides. A table means `"on"`, and limits the memory of one client connection.
    #[schemars(extend(
        "default" = "on", "x-words" = ["on", "off"], "x-only" = json!({ "protocol": ["http"] }),
        "x-example" = r#"[listener.web]
bind = ":443"
tls = { certificates = "/etc/penstock/certs" }
pool = "app"
http2 = { receive-window = "4MiB" }
"#
    ))]
    pub(crate) http2: Key<TextOr<String, RawHttp2>>,
    /// Largest number of requests on one connection, which is then closed; without it there is no limit.
    #[schemars(extend("minimum" = 1, "x-only" = json!({ "protocol": ["http"] })))]
    pub(crate) max_requests: Key<i64>,
    /// Size limits of requests, and the limit of hops. A request beyond one is refused with 413, 414, 431 or 508.
    #[schemars(extend("default" = json!({}), "x-only" = json!({ "protocol": ["http"] })))]
    pub(crate) limits: Key<RawLimits>,
    /// Timeouts of a client connection.
    #[schemars(extend("default" = json!({}), "x-only" = json!({ "protocol": ["http"] })))]
    pub(crate) timeouts: Key<RawHttpTimeouts>,
    /// Changes of every request before it is sent to a backend. CGI and WSGI read `X_Site` and `X-Site` as one name: a
    /// field that they would read as a changed one is removed, too. The same applies, without this key, to every field
    /// that Penstock sets itself, such as `X-Forwarded-For` and the request id.
    #[schemars(extend("x-only" = json!({ "protocol": ["http"] }), "x-example" = r#"[listener.web]
bind = ":80"
pool = "app"
request-headers = { set = { "X-Site" = "north" }, remove = ["X-Debug"] }
"#))]
    pub(crate) request_headers: Key<RawEdits>,
    /// Changes of every response before it is sent to the client.
    #[schemars(extend("x-only" = json!({ "protocol": ["http"] }), "x-example" = r#"[listener.web]
bind = ":80"
pool = "app"
response-headers = { set = { "X-Frame-Options" = "DENY" }, remove = ["Server"] }
"#))]
    pub(crate) response_headers: Key<RawEdits>,
    /// Routes of requests by host, path, method and headers. A request must meet all conditions of a route. Of several,
    /// the most specific route applies: exact host before wildcard before any, then the longer path, then more
    /// conditions, then the order of the file. Exactly one of `pool` and `redirect` is needed. With `tls-passthrough` a
    /// route has a host, which is the server name in the client's handshake, and a pool.
    #[schemars(extend("default" = json!([]), "x-only" = json!({ "protocol": ["http", "tls-passthrough"] }), "x-example" = r#"[listener.web]
bind = ":80"

[[listener.web.route]]
host = "app.example.com"
path = "/api/"
pool = "app"

[[listener.web.route]]
host = ["example.com", "www.example.com"]
redirect = "https://app.example.com{path}{query}"
status = 301

[listener.by-name]
bind = ":443"
protocol = "tls-passthrough"

[[listener.by-name.route]]
host = "*.example.com"
pool = "app"
"#))]
    pub(crate) route: Key<Vec<At<RawRoute>>>,
}

fn protocol() -> String {
    let (after, pipe) = (room::SPLICE_AFTER / 1024, room::PIPE / (1024 * 1024));
    format!(
        "Protocol of the clients. `\"tls-passthrough\"` is TLS that backends terminate: the server name in the client's \
         handshake decides where its connection goes, and bytes are forwarded unchanged. `\"udp\"` forwards datagrams: all \
         datagrams between one address and port of a client and a backend are a flow, which is one session. `\"dsr\"` (direct \
         server return) forwards packets of clients to backends on the same network, which reply straight to the clients: \
         see [dsr.md](dsr.md). What a side does not read waits in the buffers of the kernel's sockets; after {after} KiB in one \
         direction without TLS also in a pipe of at most {pipe} MiB, the same for tunnels (WebSocket) of `\"http\"`."
    )
}

/// `connection-rate` and `request-rate`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawRate {
    /// Number that may come at once, after a time without any.
    #[schemars(extend("x-required" = true, "minimum" = 1, "maximum" = 1_000_000, "examples" = [20]))]
    pub(crate) burst: Key<i64>,
    /// Number in each second after that.
    #[schemars(extend("x-required" = true, "minimum" = 1, "maximum" = 1_000_000, "examples" = [10]))]
    pub(crate) per_second: Key<i64>,
}
