//! `[pool.NAME]` as the file has it.

use logic::balance::{ChoosesBy, Policy};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{BackendText, DurationText, PathText, RawBackendHttp2, TextOr};
use crate::de::{At, Key};

/// `[pool.NAME]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawPool {
    /// The servers: `"10.0.0.11:8000"`, `"[2001:db8::1]:8000"`, `"app.internal:8000"` (resolved repeatedly),
    /// `"unix:/run/app.sock"`, `"ssh:HOST/127.0.0.1:8000"` or `"ssh:HOST/unix:/run/app.sock"` (through that SSH host),
    /// `"dns:app.internal:8000"` (each address of the name is a backend of its own),
    /// `"srv:_http._tcp.app.internal"` (the same for the targets of SRV records, with their ports, weights and priorities),
    /// or a table with more settings. A URL without a path means its address; `"https://app.internal"` also sets
    /// `tls = "on"`, and then all backends of the pool are https.
    #[schemars(extend("x-required" = true, "x-list-example" = "[\"10.0.0.11:8000\"]", "x-example" = r#"[pool.app]
backends = [
  "10.0.0.11:8000",
  { address = "10.0.0.12:8000", weight = 2, max-connections = 100 },
]
"#))]
    pub(crate) backends: Key<Vec<At<TextOr<BackendText, RawBackend>>>>,
    #[schemars(
        description = format!("How a backend is chosen: {}.", Policy::choices()),
        extend("default" = Policy::default().as_str(), "enum" = Policy::WORDS)
    )]
    pub(crate) balance: Key<String>,
    /// Input of the hash: `"client"` (address), `"host"`, `"path"` or `"header:NAME"`.
    #[schemars(extend("default" = "client", "x-effect" = json!({ "balance": Policy::words_by(ChoosesBy::Key) })))]
    pub(crate) hash_key: Key<String>,
    /// Largest load of a backend, as a multiple of its share of all sessions of the pool, from 1.01 to 100: beyond it, keys
    /// of this backend go to the others, so that a few keys with many sessions do not overload it. 1.25 is usual. Without
    /// it only `max-connections` limits a backend.
    #[schemars(extend("x-default" = "none", "examples" = [1.25], "x-effect" = json!({ "balance": Policy::words_by(ChoosesBy::Key) })))]
    pub(crate) balance_bound: Key<f64>,
    /// Memory of clients and their backends.
    #[schemars(extend("default" = json!({}), "x-effect" = json!({ "balance": Policy::words_by(ChoosesBy::Client) })))]
    pub(crate) sticky: Key<RawSticky>,
    /// Largest number of sessions of each backend without its own limit; without it there is no limit.
    #[schemars(extend("minimum" = 1, "maximum" = 100_000_000))]
    pub(crate) max_connections: Key<i64>,
    /// Active checks: `"tcp"` (a connection opens), `"off"`, or a table.
    #[schemars(extend("default" = "off", "x-words" = ["tcp", "off"], "x-example" = r#"[pool.app]
backends = ["10.0.0.11:8000"]
health = { http = "/healthz", host = "app.example.com", expect = "200", interval = "5s" }
"#))]
    pub(crate) health: Key<TextOr<String, RawHealth>>,
    /// Ejection of backends that fail with real traffic: a table, or `"off"`. The last working backend is never
    /// ejected.
    #[schemars(extend("default" = json!({}), "x-words" = ["off"]))]
    pub(crate) passive: Key<TextOr<String, RawPassive>>,
    /// Behaviour while no backend is healthy: `"error-page"` answers 503 (TCP: closes; UDP: drops), `"fail-open"` uses all as if
    /// up.
    #[schemars(extend("default" = "error-page", "enum" = ["error-page", "fail-open"]))]
    pub(crate) when_all_down: Key<String>,
    /// Pool that gets the sessions while no backend of this one is available: all are down, ejected or drained, or none of
    /// them can be connected to. Sessions wait for busy ones (`queue`). With a fallback also the last backend may be
    /// ejected. A fallback may have one itself. Events say when it begins and ends.
    #[schemars(extend("x-default" = "none", "x-example" = r#"[pool.app]
backends = ["10.0.0.11:8000", "10.0.0.12:8000"]
health = "tcp"
fallback = "sorry"

[pool.sorry]
backends = ["127.0.0.1:8099"]
"#))]
    pub(crate) fallback: Key<String>,
    /// Largest number of sessions that wait for a busy backend, in each worker; 0: none wait.
    #[schemars(extend("default" = 100, "minimum" = 0, "maximum" = 1_000_000))]
    pub(crate) queue: Key<i64>,
    /// Time in which the share of a recovered backend grows to its full value; `"0s"`: at once.
    #[schemars(extend("default" = "0s"))]
    pub(crate) slow_start: Key<DurationText>,
    /// Use TLS to the backends: `"on"`, `"off"`, or a table with more settings. Their certificates are verified against
    /// the certificate authorities of this machine, and must be for the name (or address) by which a backend is
    /// configured. Checks, WebSockets and `tcp` use it too.
    #[schemars(extend("default" = "off", "x-words" = ["on", "off"], "x-example" = r#"[pool.app]
backends = ["app1.internal:8443", "app2.internal:8443"]
tls = { ca = "/etc/penstock/internal-ca.pem" }
"#))]
    pub(crate) tls: Key<TextOr<String, RawBackendTls>>,
    /// Use HTTP/2 to the backends, as gRPC needs it: with `tls` by ALPN, without it by prior knowledge. Many requests
    /// share one connection. WebSockets go to backends that offer them over HTTP/2 (RFC 8441). For `http` listeners only.
    /// A table means `"on"`, and limits what a backend may send and what is held of it.
    #[schemars(extend("default" = "off", "x-words" = ["on", "off"], "x-example" = r#"[pool.app]
backends = ["10.0.0.21:50051", "10.0.0.22:50051"]
http2 = "on"
"#))]
    pub(crate) http2: Key<TextOr<String, RawBackendHttp2>>,
    /// Address of this machine from which backends are connected to, by traffic and checks; without it the kernel chooses
    /// one. Backends at names need an address of the same family. Unix sockets and backends behind SSH have none.
    /// `"client"`: each session comes from the address of its client (behind a PROXY header, the one in the header), and
    /// the backend's answers must be routed back through this machine: see [the clients' own
    /// addresses](serve.md#the-clients-own-addresses). It needs CAP_NET_RAW, and is not for `http2`.
    #[schemars(extend("x-default" = "the kernel chooses", "x-also" = ["client"], "examples" = ["10.0.0.5"]))]
    pub(crate) source_address: Key<String>,
    /// Silence on a connection to a backend after which the kernel probes whether the backend is still there (TCP
    /// keep-alive): up to three times, in a third of this time each. Without an answer the connection ends.
    #[schemars(extend("default" = "off", "x-also" = ["off"]))]
    pub(crate) tcp_keepalive: Key<DurationText>,
    /// Write a PROXY header of this version to backends; without this none. Version 2 also contains facts about the
    /// client's TLS: the server name and, if this listener terminates TLS, ALPN, version, cipher, and the common name
    /// of a verified certificate. For `udp` listeners only version 2: each datagram begins with the header.
    #[schemars(extend("enum" = ["v1", "v2"]))]
    pub(crate) send_proxy: Key<String>,
    /// Largest number of further backends tried for a request that may be repeated: one of which nothing was sent yet, that
    /// an HTTP/2 backend did not process (RFC 9113 section 8.7), or a GET, HEAD, OPTIONS, TRACE, PUT or DELETE (RFC 9110
    /// section 9.2.2); of its body at most 4 KiB may have been read. Before a PUT or DELETE is sent elsewhere, its
    /// connection is reset; a backend that was frozen may execute it later all the same, after newer requests. Where that
    /// must not be, its application compares versions (`If-Match`), or `retries` is 0.
    #[schemars(extend("default" = 2, "minimum" = 0, "maximum" = 100))]
    pub(crate) retries: Key<i64>,
    /// Largest part of the requests that may be tried again, in percent of the requests of the last ten seconds, so that
    /// retries cannot multiply the load when a whole pool fails. Each worker counts for itself. A request beyond it ends as
    /// its last attempt did, or goes to the `fallback` if that attempt could not connect; it waits where it would have left
    /// a backend that is judged down. Without this key only `retries` limits them.
    #[schemars(extend("x-default" = "none", "minimum" = 0, "maximum" = 100, "x-example" = r#"[pool.app]
backends = ["10.0.0.11:8000", "10.0.0.12:8000"]
retries = 2
retry-budget = 20
"#))]
    pub(crate) retry_budget: Key<i64>,
    /// Retries a second that `retry-budget` allows also if there are few requests, as a mean of ten seconds. The workers
    /// share them.
    #[schemars(extend("default" = 3, "minimum" = 0, "maximum" = 1_000_000))]
    pub(crate) retry_least_rate: Key<i64>,
    /// Send a slow request to a second backend as well, and use the response that begins first: `"p95"` waits for the
    /// time in which 95 % of the latest responses of this pool began (`"p50"` to `"p99"`; each worker measures for itself,
    /// begins anew at a reload, and sends no copy before it has seen 100 responses), a duration such as `"200ms"` always that
    /// long. The time counts from when the connection to the backend is open. For GET, HEAD, OPTIONS and TRACE without a
    /// body, once for each request, and only while another backend may take the request at once. A request whose copy was
    /// faster goes on until its response begins or `timeouts.response` ends, so that a backend that never answers is ejected
    /// (`passive`) and one that is slow is not; of each backend as many at a time as eject it, 16 at most. For `http`
    /// listeners. Not with `balance = "sticky"`.
    #[schemars(extend("default" = "off", "x-example" = r#"[pool.app]
backends = ["10.0.0.11:8000", "10.0.0.12:8000"]
hedge = "p95"
"#))]
    pub(crate) hedge: Key<String>,
    /// Largest part of the requests that `hedge` sends twice, in percent of the requests that may be sent twice: a pool
    /// that is slow as a whole gets at most this much additional load. Each worker may save up ten copies for each pool,
    /// and has ten after a reload. A copy is no retry: neither `retries` nor `retry-budget` counts it.
    #[schemars(extend("default" = 5, "minimum" = 1, "maximum" = 100))]
    pub(crate) hedge_budget: Key<i64>,
    /// Largest number of idle connections to each backend, in each worker.
    #[schemars(extend("default" = 64, "minimum" = 0, "maximum" = 100_000))]
    pub(crate) keep_alive: Key<i64>,
    /// Timeouts of a session with a backend.
    #[schemars(extend("default" = json!({})))]
    pub(crate) timeouts: Key<RawPoolTimeouts>,
    /// Interval of the look-ups of backends' names. A name that does not resolve is looked up again after a second, and
    /// then after twice as long each time, up to this.
    #[schemars(extend("default" = "30s"))]
    pub(crate) resolve_interval: Key<DurationText>,
    /// Number of consecutive answers without an address after which a backend that was found there (`dns:`, `srv:`) gets
    /// no new sessions; it is removed when it has none. More than one helps where each answer is only a part of all
    /// addresses.
    #[schemars(extend("default" = 2, "minimum" = 1, "maximum" = 1000))]
    pub(crate) resolve_misses: Key<i64>,
}

/// An entry of `backends`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawBackend {
    /// Address of the backend. Each backend of `dns:` and `srv:` has the other settings of this table; `weight` multiplies
    /// the weights of SRV records, and `priority` is added to theirs, which are counted from 0.
    #[schemars(extend("x-required" = true, "examples" = ["10.0.0.11:8000"]))]
    pub(crate) address: Key<BackendText>,
    /// Share relative to the pool's other backends; 0 takes no new sessions. `penstock ctl weight` takes the same
    /// numbers.
    #[schemars(extend("default" = 1, "minimum" = 0, "maximum" = 1000))]
    pub(crate) weight: Key<i64>,
    /// Largest number of sessions; without it the pool's setting applies.
    #[schemars(extend("minimum" = 1, "maximum" = 100_000_000))]
    pub(crate) max_connections: Key<i64>,
    /// Number of sessions from which on the backend takes only clients that it has served before, up to
    /// `max-connections`: those that the table of `balance = "sticky"` knows. Without that, it is the limit for all.
    #[schemars(extend("minimum" = 1, "maximum" = 100_000_000))]
    pub(crate) soft_max_connections: Key<i64>,
    /// Backends with the lowest number take all sessions, as long as one of them is available and below its limit; then
    /// those with the next number. A client that `sticky` knows stays where it is.
    #[schemars(extend("default" = 0, "minimum" = 0, "maximum" = 1000))]
    pub(crate) priority: Key<i64>,
    /// NAME of the section `[acl.NAME]` that says whose sessions this backend takes. Others go to the other backends; a
    /// client that no backend takes gets 403, and no connection without HTTP. Behind `trusted-proxies` the client counts
    /// as for `acl` of a route.
    #[schemars(extend("x-default" = "every client"))]
    pub(crate) acl: Key<String>,
    /// Number of this server in connection ids of QUIC, in hexadecimal digits: for `dsr` listeners with `quic-id`, which need
    /// one of each backend.
    #[schemars(extend("x-default" = "none", "examples" = ["0a01"]))]
    pub(crate) quic_id: Key<String>,
}

/// `health`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawHealth {
    /// Path to request with GET. One of `http`, `tcp`, `dns` and `udp-send` is needed.
    pub(crate) http: Key<String>,
    /// Only open a connection.
    pub(crate) tcp: Key<bool>,
    /// Ask for the addresses of this name over UDP, as a DNS client does. Every answer to the question passes, also that
    /// there is no such name.
    pub(crate) dns: Key<String>,
    /// Send a datagram with this text, or with these bytes: `"hex:0a0b0c"`. An answer passes.
    pub(crate) udp_send: Key<String>,
    /// Text or bytes with which an answer to `udp-send` must begin.
    #[schemars(extend("x-default" = "any answer passes"))]
    pub(crate) udp_expect: Key<String>,
    /// `Host` of the request; without it the address of the backend.
    pub(crate) host: Key<String>,
    /// Status of a passing check, or a range of them.
    #[schemars(extend("x-default" = "`\"200-399\"` with `http`"))]
    pub(crate) expect: Key<String>,
    /// Time between two checks; a tenth of it is random.
    #[schemars(extend("default" = "2s"))]
    pub(crate) interval: Key<DurationText>,
    /// Time limit of a check, at most `interval`.
    #[schemars(extend("default" = "1s"))]
    pub(crate) timeout: Key<DurationText>,
    /// Number of consecutive passed checks after which a backend is up again.
    #[schemars(extend("default" = 2, "minimum" = 1, "maximum" = 100))]
    pub(crate) rise: Key<i64>,
    /// Number of consecutive failed checks after which a backend is down.
    #[schemars(extend("default" = 3, "minimum" = 1, "maximum" = 100))]
    pub(crate) fall: Key<i64>,
}

/// `tls` of a pool
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawBackendTls {
    /// `"off"` accepts any certificate: an attacker on the path can then read and change everything.
    #[schemars(extend("default" = "on", "enum" = ["on", "off"]))]
    pub(crate) verify: Key<String>,
    /// File with the certificates (PEM) of the authorities that are trusted instead of those of this machine. A
    /// backend's own self-signed certificate is trusted if the file contains it.
    #[schemars(extend("x-default" = "the authorities that this machine trusts"))]
    pub(crate) ca: Key<PathText>,
    /// Name or address that the certificates must be for; a name is also sent to backends as the server name (SNI).
    #[schemars(extend("x-default" = "the host of each backend; needed for Unix sockets"))]
    pub(crate) server_name: Key<String>,
    /// File with the certificate (PEM, with the rest of its chain) that Penstock shows to backends.
    pub(crate) certificate: Key<PathText>,
    /// File with the key of `certificate`.
    #[schemars(extend("x-default" = "the file of `certificate`"))]
    pub(crate) key: Key<PathText>,
    /// File with the passphrase of an encrypted key.
    pub(crate) key_passphrase_file: Key<PathText>,
    /// Oldest version of TLS.
    #[schemars(extend("default" = "1.2", "enum" = ["1.2", "1.3"]))]
    pub(crate) min_version: Key<String>,
}

/// `passive`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawPassive {
    /// Number of consecutive failures after which a backend is ejected.
    #[schemars(extend("default" = 5, "minimum" = 1, "maximum" = 10000))]
    pub(crate) failures: Key<i64>,
    /// Without `health`: duration of an ejection; each following ejection doubles it. With `health` a backend returns as
    /// soon as `rise` checks pass; one that is ejected again within a minute although its checks pass, or within 5 s of its
    /// return whatever they saw, stays out for this time at least, and each further time twice as long.
    #[schemars(extend("default" = "10s"))]
    pub(crate) ejection: Key<DurationText>,
    /// Share of failed sessions and answers of class 5xx within `window` from which on a backend is ejected, in percent.
    #[schemars(extend("x-default" = "none", "minimum" = 1, "maximum" = 100, "x-example" = r#"[pool.app]
backends = ["10.0.0.11:8000", "10.0.0.12:8000", "10.0.0.13:8000"]
passive = { error-rate = 50, latency-factor = 5.0, most-ejected = 34 }
"#))]
    pub(crate) error_rate: Key<i64>,
    /// Response time from which on a backend is ejected, as a multiple of that of the pool's other backends: the median within
    /// `window` is compared with the median of theirs. From 1.5 to 1000. A response time below 5 ms is never too long; with
    /// `tcp` the time to connect counts.
    #[schemars(extend("x-default" = "none", "examples" = [5.0]))]
    pub(crate) latency_factor: Key<f64>,
    /// Time over which `error-rate` and `latency-factor` look back.
    #[schemars(extend("default" = "10s"))]
    pub(crate) window: Key<DurationText>,
    /// Number of sessions within `window` that `error-rate` and `latency-factor` need to judge a backend.
    #[schemars(extend("default" = 20, "minimum" = 1, "maximum" = 1_000_000))]
    pub(crate) least_sessions: Key<i64>,
    /// A backend that was ejected by `error-rate` or `latency-factor` returns half-open, as a circuit breaker does, after
    /// `ejection` and `rise` checks: it gets at most this number of sessions at a time. One that fails ejects it again; when
    /// this number of them went well, it gets its full share. Clients wait in the queue for the last backend while it is
    /// half-open and has this number.
    #[schemars(extend("default" = 5, "minimum" = 1, "maximum" = 10_000))]
    pub(crate) trial_sessions: Key<i64>,
    /// Largest share of the pool's backends that may be ejected at a time, in percent; one may be in any case. An event and
    /// a counter say that a backend stays for this reason. Backends that checks call down do not count.
    #[schemars(extend("default" = 100, "minimum" = 1, "maximum" = 100))]
    pub(crate) most_ejected: Key<i64>,
}

/// `sticky`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawSticky {
    /// Largest number of remembered clients; beyond it the client whose last session is oldest is forgotten.
    #[schemars(extend("default" = 65536, "minimum" = 1, "maximum" = 100_000_000))]
    pub(crate) entries: Key<i64>,
    /// Time without a session after which a client is forgotten.
    #[schemars(extend("default" = "1h"))]
    pub(crate) ttl: Key<DurationText>,
    /// Prefix length of IPv6 networks: clients of one network count as one.
    #[schemars(extend("default" = 64, "minimum" = 1, "maximum" = 128))]
    pub(crate) ipv6_prefix: Key<i64>,
    /// Name of a cookie by which a client keeps its backend, instead of the table of addresses that the keys above are for.
    /// Its value is a keyed hash (HMAC-SHA-256) of the address of the backend: it is the same after a restart and on every
    /// node with this key, needs no memory, and says nothing. A client gets it with its first response (`Path=/; HttpOnly;
    /// SameSite=Lax`, and `Secure` over TLS), for the time that its browser runs, and again when its backend takes no
    /// sessions or the value is unknown. Backends do not see it. Pools behind one host name need different names. For
    /// `http` listeners.
    #[schemars(extend("x-default" = "none", "x-example" = r#"[pool.app]
backends = ["10.0.0.11:8000", "10.0.0.12:8000"]
balance = "sticky"
sticky = { cookie = "lb", key-file = "/etc/penstock/sticky.key" }
"#))]
    pub(crate) cookie: Key<String>,
    /// File with the key of `cookie`: 32 to 4096 bytes, which other users must not be able to read. Nodes with the same key
    /// know each other's cookies. A reload reads it again; a new key makes all cookies unknown.
    pub(crate) key_file: Key<PathText>,
}

/// `timeouts` of a pool
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawPoolTimeouts {
    /// Time limit of opening a connection.
    #[schemars(extend("default" = "2s"))]
    pub(crate) connect: Key<DurationText>,
    /// Timeout from the end of a request to the first byte of its response.
    #[schemars(extend("default" = "60s"))]
    pub(crate) response: Key<DurationText>,
    /// How long a request waits for the response of a backend that was judged down or ejected meanwhile. A request that
    /// may be repeated goes to another backend at once.
    #[schemars(extend("default" = "5s"))]
    pub(crate) down: Key<DurationText>,
    /// Timeout between two reads of a response body, and for a backend that reads no byte of the request.
    #[schemars(extend("default" = "60s"))]
    pub(crate) body: Key<DurationText>,
    /// Time limit of a whole response body, however steadily it arrives; without it there is none.
    pub(crate) transfer: Key<DurationText>,
    /// Timeout between two reads of a gRPC message stream, of either direction, instead of `body`: such a stream may be
    /// silent for long. For requests with `content-type: application/grpc` to backends with `http2`.
    #[schemars(extend("default" = "1h"))]
    pub(crate) grpc: Key<DurationText>,
    /// Time limit of waiting for a busy backend.
    #[schemars(extend("default" = "5s"))]
    pub(crate) queue: Key<DurationText>,
    /// Lifetime of an idle connection. Set it below the limit of the backends.
    #[schemars(extend("default" = "4s"))]
    pub(crate) keep_alive: Key<DurationText>,
    /// Idle timeout of an upgraded connection (WebSocket).
    #[schemars(extend("default" = "1h"))]
    pub(crate) tunnel: Key<DurationText>,
}
