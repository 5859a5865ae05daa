//! `[pool.NAME]` as the file has it.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{BackendText, DurationText, Key, PathText, TextOr};
use crate::de::At;

/// `[pool.NAME]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawPool {
    /// The servers: `"10.0.0.11:8000"`, `"[2001:db8::1]:8000"`, `"app.internal:8000"` (looked up again and again),
    /// `"unix:/run/app.sock"`, `"ssh:HOST/127.0.0.1:8000"` or `"ssh:HOST/unix:/run/app.sock"` (through that SSH host), or a
    /// table with more about it.
    #[schemars(extend("x-required" = true, "x-list-example" = "[\"10.0.0.11:8000\"]", "x-example" = r#"[pool.app]
backends = [
  "10.0.0.11:8000",
  { address = "10.0.0.12:8000", weight = 2, max-connections = 100 },
]
"#))]
    pub(crate) backends: Key<Vec<At<TextOr<BackendText, RawBackend>>>>,
    /// How a backend is chosen: in turn, the one with the fewest sessions, the better of two random ones, by hash of
    /// `hash-key` (with little or, under `maglev`, equal spread on every node), or the one that a client had before.
    #[schemars(extend("default" = "round-robin", "enum" = [
        "round-robin", "least-connections", "two-choices", "hash", "maglev", "sticky"
    ]))]
    pub(crate) balance: Key<String>,
    /// What is hashed: `"client"` (address), `"host"`, `"path"` or `"header:NAME"`.
    #[schemars(extend("default" = "client", "x-effect" = json!({ "balance": ["hash", "maglev"] })))]
    pub(crate) hash_key: Key<String>,
    /// How clients are remembered.
    #[schemars(extend("default" = json!({}), "x-effect" = json!({ "balance": ["sticky"] })))]
    pub(crate) sticky: Key<RawSticky>,
    /// Sessions at once for each backend that does not say otherwise; without it any number.
    #[schemars(extend("minimum" = 1, "maximum" = 100_000_000))]
    pub(crate) max_connections: Key<i64>,
    /// Active checks: `"tcp"` (a connection opens), `"off"`, or a table.
    #[schemars(extend("default" = "off", "x-words" = ["tcp", "off"], "x-example" = r#"[pool.app]
backends = ["10.0.0.11:8000"]
health = { http = "/healthz", host = "app.example.com", expect = "200", interval = "5s" }
"#))]
    pub(crate) health: Key<TextOr<String, RawHealth>>,
    /// Ejection of backends on which real traffic fails: a table, or `"off"`. The last backend that serves is never
    /// ejected.
    #[schemars(extend("default" = json!({}), "x-words" = ["off"]))]
    pub(crate) passive: Key<TextOr<String, RawPassive>>,
    /// What happens when no backend is healthy: `"error-page"` answers 503 (TCP: closes), `"fail-open"` uses all of
    /// them as if they were up.
    #[schemars(extend("default" = "error-page", "enum" = ["error-page", "fail-open"]))]
    pub(crate) when_all_down: Key<String>,
    /// Sessions that may wait for a busy backend, in each worker; 0: none wait.
    #[schemars(extend("default" = 100, "minimum" = 0, "maximum" = 1_000_000))]
    pub(crate) queue: Key<i64>,
    /// A backend that came back gets its full share only after so long; `"0s"`: at once.
    #[schemars(extend("default" = "0s"))]
    pub(crate) slow_start: Key<DurationText>,
    /// Speak TLS to the backends: `"on"`, `"off"`, or a table with more about it. Their certificates are verified against
    /// the certificate authorities of this machine, and must be for the name (or address) by which a backend is
    /// configured. Checks, WebSockets and `tcp` use it too.
    #[schemars(extend("default" = "off", "x-words" = ["on", "off"], "x-example" = r#"[pool.app]
backends = ["app1.internal:8443", "app2.internal:8443"]
tls = { ca = "/etc/penstock/internal-ca.pem" }
"#))]
    pub(crate) tls: Key<TextOr<String, RawBackendTls>>,
    /// Speak HTTP/2 to the backends, as gRPC needs it: with `tls` by ALPN, without it by prior knowledge. Many requests share
    /// one connection. For `http` listeners only.
    #[schemars(extend("default" = "off", "enum" = ["on", "off"], "x-example" = r#"[pool.grpc]
backends = ["10.0.0.21:50051", "10.0.0.22:50051"]
http2 = "on"
"#))]
    pub(crate) http2: Key<String>,
    /// Write a PROXY header of this version to backends; without this none. Version 2 also tells of the client's TLS: server
    /// name, and where it is terminated ALPN, version, cipher, and the common name of a verified certificate.
    #[schemars(extend("enum" = ["v1", "v2"]))]
    pub(crate) send_proxy: Key<String>,
    /// Further backends tried for a request that may safely be sent again.
    #[schemars(extend("default" = 2, "minimum" = 0, "maximum" = 100))]
    pub(crate) retries: Key<i64>,
    /// Idle connections kept to each backend, in each worker.
    #[schemars(extend("default" = 64, "minimum" = 0, "maximum" = 100_000))]
    pub(crate) keep_alive: Key<i64>,
    /// Longest times of a session with a backend.
    #[schemars(extend("default" = json!({})))]
    pub(crate) timeouts: Key<RawPoolTimeouts>,
    /// How often names of backends are looked up again.
    #[schemars(extend("default" = "30s"))]
    pub(crate) resolve_interval: Key<DurationText>,
}

/// An entry of `backends`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawBackend {
    /// Where it is.
    #[schemars(extend("x-required" = true, "examples" = ["10.0.0.11:8000"]))]
    pub(crate) address: Key<BackendText>,
    /// Share relative to its neighbours; 0 takes no new sessions. `penstock ctl weight` takes the same numbers.
    #[schemars(extend("default" = 1, "minimum" = 0, "maximum" = 1000))]
    pub(crate) weight: Key<i64>,
    /// Sessions at once; without it what the pool says.
    #[schemars(extend("minimum" = 1, "maximum" = 100_000_000))]
    pub(crate) max_connections: Key<i64>,
}

/// `health`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawHealth {
    /// Ask for this path with GET. One of `http` and `tcp` is needed.
    pub(crate) http: Key<String>,
    /// Only open a connection.
    pub(crate) tcp: Key<bool>,
    /// Host of the question; without it the address of the backend.
    pub(crate) host: Key<String>,
    /// Status that passes, or a range of them.
    #[schemars(extend("x-default" = "`\"200-399\"` with `http`"))]
    pub(crate) expect: Key<String>,
    /// Time between two checks; a tenth of it is random.
    #[schemars(extend("default" = "2s"))]
    pub(crate) interval: Key<DurationText>,
    /// Longest time for a check; cut off at `interval`.
    #[schemars(extend("default" = "1s"))]
    pub(crate) timeout: Key<DurationText>,
    /// Passes in a row after which a backend is up again.
    #[schemars(extend("default" = 2, "minimum" = 1, "maximum" = 100))]
    pub(crate) rise: Key<i64>,
    /// Failures in a row after which a backend is down.
    #[schemars(extend("default" = 3, "minimum" = 1, "maximum" = 100))]
    pub(crate) fall: Key<i64>,
}

/// `tls` of a pool
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawBackendTls {
    /// `"off"` takes any certificate: whoever stands in between can then read and change everything.
    #[schemars(extend("default" = "on", "enum" = ["on", "off"]))]
    pub(crate) verify: Key<String>,
    /// File with the certificates (PEM) of the authorities that are trusted instead of those of this machine. A backend's
    /// own self-signed certificate is trusted if it is in there.
    #[schemars(extend("x-default" = "the authorities that this machine trusts"))]
    pub(crate) ca: Key<PathText>,
    /// Name or address that the certificates must be for; a name is also what backends are told that we look for (SNI).
    #[schemars(extend("x-default" = "the host of each backend; needed for Unix sockets"))]
    pub(crate) server_name: Key<String>,
    /// File with the certificate (PEM, with the rest of its chain) that shows backends who we are.
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
    /// Failures in a row after which a backend is ejected.
    #[schemars(extend("default" = 5, "minimum" = 1, "maximum" = 10000))]
    pub(crate) failures: Key<i64>,
    /// For how long; doubled at each ejection that follows.
    #[schemars(extend("default" = "10s"))]
    pub(crate) ejection: Key<DurationText>,
}

/// `sticky`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawSticky {
    /// Clients remembered at most; beyond that the one that came longest ago is forgotten.
    #[schemars(extend("default" = 65536, "minimum" = 1, "maximum" = 100_000_000))]
    pub(crate) entries: Key<i64>,
    /// A client is forgotten after so long without a session.
    #[schemars(extend("default" = "1h"))]
    pub(crate) ttl: Key<DurationText>,
    /// IPv6 clients whose addresses share so many bits count as one.
    #[schemars(extend("default" = 64, "minimum" = 1, "maximum" = 128))]
    pub(crate) ipv6_prefix: Key<i64>,
}

/// `timeouts` of a pool
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawPoolTimeouts {
    /// To open a connection.
    #[schemars(extend("default" = "2s"))]
    pub(crate) connect: Key<DurationText>,
    /// From the end of a request to the first byte of its response.
    #[schemars(extend("default" = "60s"))]
    pub(crate) response: Key<DurationText>,
    /// Between two pieces of a response body, and for the backend to take a byte.
    #[schemars(extend("default" = "60s"))]
    pub(crate) body: Key<DurationText>,
    /// Waiting for a busy backend.
    #[schemars(extend("default" = "5s"))]
    pub(crate) queue: Key<DurationText>,
    /// For how long an idle connection is kept. Keep it below what the backends allow.
    #[schemars(extend("default" = "4s"))]
    pub(crate) keep_alive: Key<DurationText>,
    /// An upgraded connection (WebSocket) in which no byte moves for so long is ended.
    #[schemars(extend("default" = "1h"))]
    pub(crate) tunnel: Key<DurationText>,
}
