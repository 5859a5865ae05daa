//! The configuration as the file has it. The comments here are the reference page: `schema.rs` makes it from them.
//!
//! Attributes besides the comments: `default` is the value that is filled in when nobody gives one (text, so that it
//! goes the same way as a value of the file), `x-required` marks keys that must be given, `x-words` the words that a
//! text may be, `x-later` words that are known but not available yet, `x-only` and `x-effect` what else must be set
//! for a key to be allowed or to do anything, `x-default` what the page says of a default that depends,
//! `x-also` the words that a text of some form may be as well.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

mod acme;
mod clients;
mod forms;
mod pool;
mod tunnel;

use crate::de::{At, Named};
pub(crate) use acme::RawAcme;
pub(crate) use clients::RawClientCertificates;
pub(crate) use forms::{
    BackendText, BindText, DurationText, ModeText, NetworkText, OneOrMany, PathText, Scalar, SizeText, TextOr,
};
pub(crate) use pool::{
    RawBackend, RawBackendTls, RawHealth, RawPassive, RawPool, RawPoolTimeouts, RawSticky,
};
pub(crate) use tunnel::{RawForward, RawTunnel};

/// A key that may be absent.
pub(crate) type Key<T> = Option<At<T>>;

/// A Penstock configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawConfig {
    /// The process itself: threads, user, limits.
    #[schemars(extend("default" = json!({}), "x-example" = r#"[process]
workers = "auto"
user = "penstock"
drain-timeout = "30s"
"#))]
    pub(crate) process: Key<RawProcess>,
    /// Where a line about every finished session goes.
    #[schemars(extend("default" = json!({}), "x-example" = r#"[access-log]
target = "/var/log/penstock/access.log"
format = "json"
"#))]
    pub(crate) access_log: Key<RawAccessLog>,
    /// The socket on which `penstock ctl` reaches the running process. Without this section there is none.
    #[schemars(extend("x-example" = r#"[control]
socket = "/run/penstock/control.sock"
"#))]
    pub(crate) control: Key<RawControl>,
    /// Metrics, health and status over HTTP. Without this section there is no such listener.
    #[schemars(extend("x-example" = r#"[admin]
bind = "127.0.0.1:9900"
"#))]
    pub(crate) admin: Key<RawAdmin>,
    /// A place where clients arrive. NAME is up to 64 of `A-Z a-z 0-9 _ -`; at least one listener is needed to
    /// serve.
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
    /// A set of servers that are equal. NAME is up to 64 of `A-Z a-z 0-9 _ -`.
    #[schemars(extend("default" = json!({}), "x-example" = r#"[pool.app]
balance = "least-connections"
backends = ["10.0.0.11:8000", { address = "unix:/run/app.sock", weight = 2 }]
health = { http = "/healthz", interval = "2s", rise = 2, fall = 3 }
"#))]
    pub(crate) pool: Key<Named<RawPool>>,
    /// Certificates that are ordered and renewed by themselves, from an authority that speaks ACME (RFC 8555), such as
    /// Let's Encrypt. Listeners serve them by `tls.acme = "NAME"`. It needs `process.state-directory`. NAME is up to 64
    /// of `A-Z a-z 0-9 _ -`.
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
    /// Forwards over one SSH connection that is supervised and proved, and what is mounted through them: for `penstock tunnel`.
    /// `penstock serve` does not read it. NAME is up to 64 of `A-Z a-z 0-9 _ -`.
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
    /// User to become once all sockets are bound. Without it the process stays who it is.
    pub(crate) user: Key<String>,
    /// Group to become; without it the user's own.
    pub(crate) group: Key<String>,
    /// How long sessions may go on after SIGTERM.
    #[schemars(extend("default" = "30s"))]
    pub(crate) drain_timeout: Key<DurationText>,
    /// Client connections at once, over all listeners. `"auto"`: as many as there are descriptors for. The process keeps
    /// back what it needs for itself (listeners, admin, control, checks, logs); of the rest, each client connection takes
    /// one descriptor for itself and one for a backend (two if any backend is behind SSH). `penstock ctl status` shows
    /// the account. Of a limit (LimitNOFILE) above 1048576, `"auto"` uses 1048576; a number here uses as many as it needs.
    #[schemars(schema_with = "forms::word_or_integer")]
    #[schemars(extend("default" = "auto", "x-words" = ["auto"], "minimum" = 1, "maximum" = 100_000_000))]
    pub(crate) max_connections: Key<Scalar>,
    /// How many of the descriptors for traffic one client may hold, so that no client takes them from the others.
    #[schemars(extend("default" = json!({}), "x-example" = r#"[process]
shares = { source = 20 }
"#, "x-instead" = json!({
        "integer": "write shares = { connection = {}, source = {} }: both are percent, from 1 to 100",
        "string": "write shares = { connection = 10, source = 50 }: both are percent, from 1 to 100",
    })))]
    pub(crate) shares: Key<RawShares>,
    /// Directory for what must outlive the process: what `[acme]` orders, with its keys, and OCSP responses that were
    /// fetched. It is made with mode 0700 if it is not there. `[acme]` needs one; without one, OCSP responses are kept in
    /// memory only, and fetched again after a restart.
    #[schemars(extend(
        "x-default" = "`STATE_DIRECTORY` of the environment, which systemd sets; else `\"/var/lib/penstock\"` if it is there",
        "examples" = ["/var/lib/penstock"]
    ))]
    pub(crate) state_directory: Key<PathText>,
}

/// `shares`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawShares {
    /// How many backend connections the requests of one HTTP/2 client connection may use at once beyond the first one, in
    /// percent of the descriptors for traffic that other clients do not hold. A request beyond that waits until another
    /// request of its connection ends, at most for `timeouts.queue` of its pool; then its stream is refused
    /// (REFUSED_STREAM: the client may ask again). In each worker, no more requests wait than `queue` of the pool allows,
    /// and of one connection half of what the others leave of these; one more is refused at once. The same holds for
    /// connections to backends that speak HTTP/2, beyond the first of each worker to each backend and the first of each
    /// client: such a connection counts for one client whose requests it carries, and a request beyond the share goes to
    /// another backend, or waits at the last one until there is room.
    #[schemars(extend("default" = 10, "minimum" = 1, "maximum" = 100))]
    pub(crate) connection: Key<i64>,
    /// How many descriptors all client connections from one address may hold together, with the backend connections that
    /// they use, in percent of the descriptors for traffic that other addresses do not hold. A new connection beyond that
    /// is closed; an HTTP client without TLS gets 503 with `Retry-After` first. Where no descriptor is free, an idle
    /// connection of the same address is closed for it instead. Each address may hold 16 descriptors
    /// (eight connections with a backend each) in any case, and the last quarter of all is kept for addresses that hold no
    /// more than that. Of the descriptors for further backend connections of HTTP/2 clients an address has the same share.
    /// Clients behind one NAT or load balancer count as one address:
    /// raise this number for them (100: addresses have no limit), or name the load balancer in `trusted-proxies` of
    /// the listener, or let it send a PROXY header (`proxy-protocol-from`). Those load balancers and Unix sockets have no
    /// such limit; behind a PROXY header the address in the header counts, unless it is in `trusted-proxies`.
    #[schemars(extend("default" = 50, "minimum" = 1, "maximum" = 100))]
    pub(crate) source: Key<i64>,
    /// Prefix length of IPv6 networks: all IPv6 addresses of one network count as one address.
    #[schemars(extend("default" = 64, "minimum" = 1, "maximum" = 128))]
    pub(crate) ipv6_prefix: Key<i64>,
}

/// `[access-log]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawAccessLog {
    /// `"stdout"`, `"stderr"`, `"off"`, or the absolute path of a file. A file is opened again on SIGHUP and SIGUSR1.
    #[schemars(extend("default" = "stdout", "x-also" = ["stdout", "stderr", "off"]))]
    pub(crate) target: Key<PathText>,
    /// `"text"` is `key=value` pairs for people, `"json"` one object a line for programs.
    #[schemars(extend("default" = "text", "enum" = ["text", "json"]))]
    pub(crate) format: Key<String>,
}

/// `[control]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawControl {
    /// Absolute path of the Unix socket, made with mode 0600. The variable `PENSTOCK_CONTROL_SOCKET` sets it, and is
    /// also where `penstock ctl` looks.
    #[schemars(extend("x-required" = true, "examples" = ["/run/penstock/control.sock"]))]
    pub(crate) socket: Key<PathText>,
}

/// `[admin]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawAdmin {
    /// Address to listen on, in the forms of a listener's `bind`.
    #[schemars(extend("x-required" = true, "examples" = ["127.0.0.1:9900"]))]
    pub(crate) bind: Key<BindText>,
}

/// `[listener.NAME]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawListener {
    /// Where to listen: `":80"` (every address, IPv6 and IPv4; `"*:80"` is the same), `"192.0.2.1:80"`,
    /// `"[2001:db8::1]:80"`, `"unix:/path"`, or `"systemd:NAME"` for the sockets that systemd passes under that name.
    #[schemars(extend("x-required" = true, "examples" = [":80"]))]
    pub(crate) bind: Key<OneOrMany<BindText>>,
    /// What clients speak. `"tls-passthrough"` is TLS that backends terminate: the server name that a client asks for
    /// decides where its connection goes, and every byte goes on as it came. Later versions add `"udp"` and `"dsr"`.
    #[schemars(extend(
        "default" = "http", "enum" = ["http", "tcp", "tls-passthrough"], "x-later" = ["udp", "dsr"]
    ))]
    pub(crate) protocol: Key<String>,
    /// Where sessions go. With HTTP: requests that no route takes; without a pool these get 404. With `tls-passthrough`:
    /// clients that ask for a name that no route takes, or for none; without a pool these get an alert.
    #[schemars(extend("x-default" = "none; needed with `tcp`"))]
    pub(crate) pool: Key<String>,
    /// Terminate TLS. Without it clients speak in the clear.
    #[schemars(extend("x-only" = json!({ "protocol": ["http", "tcp"] }), "x-example" = r#"[listener.secure]
bind = ":443"
tls = { certificates = "/etc/penstock/certs", handshake-timeout = "5s" }
pool = "app"
"#))]
    pub(crate) tls: Key<RawTls>,
    /// Permission bits of the Unix sockets that are made, in octal.
    #[schemars(extend("default" = "0660"))]
    pub(crate) unix_mode: Key<ModeText>,
    /// From whom a PROXY header (version 1 or 2) is expected, and then required: networks, addresses, or `"unix"`.
    /// Its addresses are believed; additions of version 2 are checked for their form and not used.
    #[schemars(extend("default" = json!([])))]
    pub(crate) proxy_protocol_from: Key<Vec<At<NetworkText>>>,
    /// Client connections of this listener at once; without it only the limit of the process counts.
    #[schemars(extend("minimum" = 1, "maximum" = 100_000_000))]
    pub(crate) max_connections: Key<i64>,
    /// A session in which no byte moves for so long is ended.
    #[schemars(extend("default" = "1h", "x-only" = json!({ "protocol": ["tcp", "tls-passthrough"] })))]
    pub(crate) idle_timeout: Key<DurationText>,
    /// Longest time for a client to say which server it wants.
    #[schemars(extend("default" = "10s", "x-only" = json!({ "protocol": ["tls-passthrough"] })))]
    pub(crate) handshake_timeout: Key<DurationText>,
    /// Answer every request with a redirect to `https`; a number is the port to name there, `true` is 443.
    #[schemars(schema_with = "forms::switch_or_integer")]
    #[schemars(extend(
        "default" = false, "minimum" = 1, "maximum" = 65535, "x-only" = json!({ "protocol": ["http"] })
    ))]
    pub(crate) redirect_to_https: Key<Scalar>,
    /// Strict-Transport-Security on TLS connections: a duration, `"off"`, `"preload"`, or a whole value with `max-age`.
    /// `"preload"` is two years for this name and every name below it, and asks browsers to know that before the first
    /// visit: there is no quick way back. A backend's own header goes before this.
    #[schemars(extend(
        "x-default" = "`\"365d\"` with `tls`", "x-also" = ["off", "preload"], "x-only" = json!({ "protocol": ["http"] })
    ))]
    pub(crate) hsts: Key<String>,
    /// Whose `X-Forwarded-*`, `Forwarded` and request id are believed: networks, addresses, or `"unix"`.
    /// What anybody else sends of these is dropped.
    #[schemars(extend("default" = json!([]), "x-only" = json!({ "protocol": ["http"] })))]
    pub(crate) trusted_proxies: Key<Vec<At<NetworkText>>>,
    /// Header that carries the id of a request, to the backend and back to the client.
    #[schemars(extend("default" = "X-Request-Id", "x-only" = json!({ "protocol": ["http"] })))]
    pub(crate) request_id_header: Key<String>,
    /// Whether clients may speak HTTP/2: with `tls` those that negotiate it (ALPN), without it those that begin with it
    /// (prior knowledge). For connections to backends, `http2` of the pool decides. A table means `"on"`, and limits what
    /// one client connection may hold in memory.
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
    /// Requests on one connection before it is closed; without it any number.
    #[schemars(extend("minimum" = 1, "x-only" = json!({ "protocol": ["http"] })))]
    pub(crate) max_requests: Key<i64>,
    /// Largest sizes of requests, and their most hops. What exceeds one is refused with 413, 414, 431 or 508.
    #[schemars(extend("default" = json!({}), "x-only" = json!({ "protocol": ["http"] })))]
    pub(crate) limits: Key<RawLimits>,
    /// Longest times of a client connection.
    #[schemars(extend("default" = json!({}), "x-only" = json!({ "protocol": ["http"] })))]
    pub(crate) timeouts: Key<RawHttpTimeouts>,
    /// Changes of every request before it goes to a backend.
    #[schemars(extend("x-only" = json!({ "protocol": ["http"] }), "x-example" = r#"[listener.web]
bind = ":80"
pool = "app"
request-headers = { set = { "X-Site" = "north" }, remove = ["X-Debug"] }
"#))]
    pub(crate) request_headers: Key<RawEdits>,
    /// Changes of every response before it goes to the client.
    #[schemars(extend("x-only" = json!({ "protocol": ["http"] }), "x-example" = r#"[listener.web]
bind = ":80"
pool = "app"
response-headers = { set = { "X-Frame-Options" = "DENY" }, remove = ["Server"] }
"#))]
    pub(crate) response_headers: Key<RawEdits>,
    /// Where a request goes, by its host, path, method and headers. All conditions of a route must hold. The most
    /// specific route decides: exact host before wildcard before any, then the longer path, then more conditions,
    /// then the order of the file. Exactly one of `pool` and `redirect` is needed. With `tls-passthrough` a route has a host,
    /// which is the server name that the client asks for, and a pool.
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

/// `tls`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawTls {
    /// Directory of certificates, watched while it is served: what is added, renewed or taken away there holds within
    /// a second. It takes `NAME.crt` and `NAME.key` (with `NAME.ca` for the rest of the chain, `NAME.ocsp` for an OCSP
    /// response and `NAME.pass` for the passphrase of the key), `NAME.pem` with key and chain, and certbot's
    /// `NAME/fullchain.pem` and `NAME/privkey.pem`, also as `/etc/letsencrypt` as a whole. Clients get the certificate
    /// that is for the server name that they ask for, ECDSA before RSA where they can take both.
    #[schemars(extend("x-default" = "none; needed without `acme`", "examples" = ["/etc/penstock/certs"]))]
    pub(crate) certificates: Key<PathText>,
    /// NAME of the section `[acme.NAME]` whose certificates are served, instead of a directory or beside it. Where both
    /// have one for a name, the directory counts.
    #[schemars(extend("x-default" = "none", "examples" = ["letsencrypt"]))]
    pub(crate) acme: Key<String>,
    /// Certificate for clients that name no server, or one that no certificate is for: NAME of its files, or a name
    /// that it is for. Without it the files named `default` are that; without these, unknown names are refused, and
    /// clients that name no server get the only certificate if there is just one.
    #[schemars(extend("x-default" = "`\"default\"`, if there are such files"))]
    pub(crate) default: Key<String>,
    /// File with the passphrase of encrypted keys that have no `NAME.pass` beside them.
    pub(crate) key_passphrase_file: Key<PathText>,
    /// Whether a certificate's OCSP responder is asked for a response to staple, if the certificate names one. The response
    /// is checked, kept in `process.state-directory`, and renewed before it ends. A `NAME.ocsp` is sent either way.
    /// With a certificate that is revoked none is sent any more, and `penstock ctl status` says so.
    #[schemars(extend("default" = "on", "enum" = ["on", "off"]))]
    pub(crate) ocsp: Key<String>,
    /// What is negotiated, after Mozilla's guideline: `"intermediate"` is TLS 1.2 and 1.3 with forward secrecy and keys of 256
    /// bits, `"modern"` the same with TLS 1.3 only, `"compatible"` is `"intermediate"` with AES-128, as Mozilla has it and
    /// RFC 8446 and RFC 9113 want it: for clients that have nothing else, such as Java 8 before 8u161. It is as safe, and
    /// graders give four points less. All prefer a key exchange that quantum computers cannot break. Renegotiation does not
    /// exist here: Pen's `ssl_client_renegotiation_interval` has nothing to limit. `penstock tls-grade` rates the result.
    #[schemars(extend("default" = "intermediate", "enum" = ["intermediate", "modern", "compatible"]))]
    pub(crate) policy: Key<String>,
    /// Oldest version of TLS.
    #[schemars(extend("x-default" = "`\"1.2\"`, with `policy = \"modern\"` `\"1.3\"`", "enum" = ["1.2", "1.3"]))]
    pub(crate) min_version: Key<String>,
    /// Ciphers, best first, as OpenSSL or IANA spell them: `TLS_AES_128_GCM_SHA256`, `ECDHE-RSA-AES128-GCM-SHA256`.
    #[schemars(extend("x-default" = "those of the policy"))]
    pub(crate) ciphers: Key<Vec<At<String>>>,
    /// Groups of the key exchange, best first: `X25519MLKEM768`, `SecP256r1MLKEM768`, `X25519`, `P-256`, `P-384`.
    #[schemars(extend("x-default" = "those of the policy"))]
    pub(crate) groups: Key<Vec<At<String>>>,
    /// Whose order of ciphers counts. Clients know whether their processor is fast at AES.
    #[schemars(extend("default" = "client", "enum" = ["client", "server"]))]
    pub(crate) cipher_order: Key<String>,
    /// Longest time for a handshake.
    #[schemars(extend("default" = "10s"))]
    pub(crate) handshake_timeout: Key<DurationText>,
    /// Keys of session tickets, for several nodes that resume each other's sessions: a file with 32 to 1024 random bytes
    /// (`umask 077; openssl rand 48 > FILE`: one that others can read is refused), or a directory of such files, of which
    /// the last by name encrypts and all open. Read again every two seconds. A ticket is good for twelve hours at most, whatever the keys do. Without this key each process
    /// has its own and replaces them every six hours. Early data (0-RTT) is never taken.
    #[schemars(extend("x-default" = "keys of our own, replaced every six hours", "examples" = ["/etc/penstock/ticket-keys"]))]
    pub(crate) ticket_keys: Key<PathText>,
    /// Unfinished handshakes at once, over all workers. When one more begins, the oldest is cut off: a client that
    /// stalls makes room for one that does not.
    #[schemars(extend("default" = 8192, "minimum" = 1, "maximum" = 1_000_000))]
    pub(crate) handshakes: Key<i64>,
    /// Ask clients for certificates. Without it nobody is asked.
    #[schemars(extend("x-example" = r#"[listener.secure]
bind = ":443"
tls.certificates = "/etc/penstock/certs"
tls.client-certificates = { ca = "/etc/penstock/client-ca.pem", names = ["dns:*.partner.example"] }
pool = "app"
"#))]
    pub(crate) client_certificates: Key<RawClientCertificates>,
}

/// `limits`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawLimits {
    /// Request line and header fields together; also for responses of backends.
    #[schemars(extend("default" = "32KiB"))]
    pub(crate) head: Key<SizeText>,
    /// Number of header fields.
    #[schemars(extend("default" = 100, "minimum" = 1, "maximum" = 10000))]
    pub(crate) headers: Key<i64>,
    /// Request target (path and query).
    #[schemars(extend("default" = "8KiB"))]
    pub(crate) target: Key<SizeText>,
    /// Requests at once on one HTTP/2 connection. Together, their heads may be eight times as large as `head` allows for
    /// one, and 1 MiB in any case; a request beyond that is refused (REFUSED_STREAM). `http2` limits what their bodies hold.
    #[schemars(extend("default" = 100, "minimum" = 1, "maximum" = 10000))]
    pub(crate) streams: Key<i64>,
    /// Times that a request may pass through Penstock, this one counted. One more is a circle, and gets 508.
    /// Each adds `penstock` to the request's `CDN-Loop` (RFC 8586), also for backends that are no Penstock.
    #[schemars(extend("default" = 8, "minimum" = 1, "maximum" = 100))]
    pub(crate) hops: Key<i64>,
    /// Request body; `"none"` is no limit: bodies are streamed, never held in memory.
    #[schemars(extend("default" = "none", "x-also" = ["none"]))]
    pub(crate) body: Key<SizeText>,
}

/// `timeouts` of a listener
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawHttpTimeouts {
    /// For a whole request head.
    #[schemars(extend("default" = "10s"))]
    pub(crate) head: Key<DurationText>,
    /// Waiting for the next request on a connection.
    #[schemars(extend("default" = "60s"))]
    pub(crate) idle: Key<DurationText>,
    /// Between two pieces of a request body.
    #[schemars(extend("default" = "30s"))]
    pub(crate) body: Key<DurationText>,
    /// The client takes nothing of the response for so long.
    #[schemars(extend("default" = "30s"))]
    pub(crate) write: Key<DurationText>,
}

/// `http2` of a listener
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawHttp2 {
    /// Bytes of responses that may wait in memory for a client that does not read them, over all requests of its
    /// connection. When so many wait, Penstock reads no more from the backends of these requests, except 4 KiB for each,
    /// so that one request cannot stop the others. Requests whose flow-control windows are closed may together hold a
    /// sixteenth of it.
    #[schemars(extend("default" = "768KiB"))]
    pub(crate) send_buffer: Key<SizeText>,
    /// Bytes of request bodies that may wait in memory for backends, over all requests of a connection: the flow-control
    /// window of the connection. One request may hold 64 KiB of it. Uploads to slow backends that hold all of it stop the
    /// other uploads of that connection.
    #[schemars(extend("default" = "1MiB"))]
    pub(crate) receive_window: Key<SizeText>,
}

/// `request-headers` and `response-headers`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawEdits {
    /// Header fields and their values; each replaces what was there under that name.
    #[schemars(extend("default" = json!({})))]
    pub(crate) set: Key<Named<String>>,
    /// Header fields that are taken away.
    #[schemars(extend("default" = json!([])))]
    pub(crate) remove: Key<Vec<At<String>>>,
}

/// `[[listener.NAME.route]]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawRoute {
    /// Host of the request: a name, `"*.example.com"` for every name below one, or `"*"`.
    #[schemars(extend("default" = "*"))]
    pub(crate) host: Key<OneOrMany<String>>,
    /// Beginning of the path, in whole segments: `"/api"` holds `/api` and `/api/x`, not `/apix`; `"/api/"` only what
    /// is below it. There are no wildcards.
    #[schemars(extend("default" = "/"))]
    pub(crate) path: Key<OneOrMany<String>>,
    /// Methods, in capitals; without this any.
    pub(crate) method: Key<OneOrMany<String>>,
    /// Header fields that must have this value, or with `true` only be there.
    #[schemars(schema_with = "forms::header_conditions")]
    #[schemars(extend("default" = json!({})))]
    pub(crate) header: Key<Named<Scalar>>,
    /// Where such requests go.
    pub(crate) pool: Key<String>,
    /// Answer such requests with a redirect to this URL, in which `{host}`, `{path}` and `{query}` (with its `?`)
    /// stand for those of the request.
    pub(crate) redirect: Key<String>,
    /// Status of the redirect: 301, 302, 303, 307 or 308.
    #[schemars(extend("x-default" = "`308` with `redirect`"))]
    pub(crate) status: Key<i64>,
    /// Changes of such requests, after those of the listener.
    pub(crate) request_headers: Key<RawEdits>,
    /// Changes of the responses, after those of the listener.
    pub(crate) response_headers: Key<RawEdits>,
}
