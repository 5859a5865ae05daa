//! The path of a connection from its accept to its `Outcome`, and the configuration snapshot that serves it.
//!
//! This crate lies above `state` and `tls` and below `serve`. It does not start, reload or report anything. Workers
//! (`worker.rs`) serve the traffic: each core has one thread with a single-threaded runtime, its own sockets and its
//! own idle backend connections.
//!
//! # The path of a byte
//!
//! 1. `crates/penstock/src/cmd/serve.rs` reads the arguments and calls `serve::run`.
//! 2. `crates/serve/src/start.rs` binds the sockets (`crates/state/src/listen.rs`), drops privileges
//!    (`crates/sys/src/privilege.rs`) and starts the workers.
//! 3. `crates/proxy/src/accept.rs` accepts within the limits (`crates/proxy/src/admission.rs`) and starts a task. Each
//!    client takes slots in the account of descriptors (`crates/state/src/account.rs`) for its own connection and for
//!    one to a backend. `crates/logic/src/account.rs` decides whether a client may take more, by the shares of its
//!    connection (`crates/state/src/account/share.rs`) and its address (`crates/state/src/account/source.rs`) in the
//!    free slots. `crates/serve/src/needs.rs` reserves descriptors for the process. When slots run out, idle backend
//!    connections and pipes (`crates/proxy/src/pipes.rs`) are closed first, then idle clients
//!    (`crates/proxy/src/worker/eviction.rs`).
//! 4. `crates/proxy/src/connection.rs` reads a PROXY header if one is configured (`crates/logic/src/proxy_header.rs`)
//!    and does the TLS handshake (`crates/tls/src/lib.rs`). From then on the connection is a `Stream`
//!    (`crates/proxy/src/stream.rs`) over TLS, HTTP/2 or neither. Reads use one scratch buffer per worker, so an idle
//!    connection holds none. One task polls both directions of a `Stream`, and no borrow outlives a poll: a `RefCell`
//!    is enough.
//! 5. `protocol = "tcp"`: `crates/proxy/src/tcp.rs` takes a backend as in step 6 and relays as in step 7.
//!    `protocol = "http"`: `crates/proxy/src/http.rs` reads a head (`crates/logic/src/http1/request.rs` rejects an
//!    ambiguous one) and passes it to `crates/proxy/src/http/exchange.rs`, which chooses a pool with
//!    `crates/logic/src/route.rs` and writes a new request (`crates/logic/src/http1/forward.rs`;
//!    `crates/logic/src/http1/hops.rs` counts the hops, so that a request in a loop is rejected).
//!    `crates/proxy/src/http/answer.rs` writes our own responses: error pages and redirects.
//!    `protocol = "tls-passthrough"`: `crates/proxy/src/passthrough.rs` reads the ClientHello
//!    (`crates/logic/src/client_hello.rs`), chooses a pool by its server name, and continues as TCP.
//!    HTTP/2: `crates/proxy/src/http2.rs` uses the `h2` crate. Each stream is checked, converted to an HTTP/1.1 request
//!    (`crates/logic/src/http2/downgrade.rs`) and served by a task of its own; the transport of its `Stream` is
//!    `crates/proxy/src/http2/side.rs`. `crates/proxy/src/http2/wire.rs` and `crates/logic/src/http2/flood.rs` count
//!    frames that cost much and carry no data. `crates/proxy/src/http2/backlog.rs` limits reads from backends for slow
//!    clients.
//!    `protocol = "udp"` has no connections: `crates/proxy/src/udp.rs` serves all flows of a socket in one task, by the
//!    table of `crates/logic/src/udp.rs`. A flow has its own socket to its backend; the steps 3 to 5 and 7 do not apply.
//!    `protocol = "dsr"` has packets: `crates/proxy/src/dsr.rs` forwards them, and only their backends are chosen by what
//!    step 6 knows of health and weights.
//!    With `engine = "io-uring"` the beginning of plain TCP sessions is in `crates/proxy/src/tcp/ring.rs`.
//! 6. `crates/proxy/src/fallback.rs` takes another pool while no backend of this one is available,
//!    `crates/proxy/src/upstream.rs` chooses a backend with `crates/logic/src/balance/mod.rs`, waits for a busy one
//!    (`crates/state/src/queue.rs`), and reuses an idle connection or opens one (`crates/proxy/src/connect.rs`), with
//!    TLS if configured (`crates/tls/src/backend.rs`). Requests of a pool with `http2 = "on"` share connections
//!    (`crates/proxy/src/http2/backend.rs`); the transport of each `Stream` is then
//!    `crates/proxy/src/http2/backend/call.rs`, and `crates/logic/src/http2/upgrade.rs` converts heads, those of
//!    WebSockets with `crates/logic/src/http2/web_socket.rs`.
//! 7. `crates/proxy/src/http/reply.rs` sends the request and forwards the response, both concurrently. Bodies pass
//!    through `crates/proxy/src/http/body.rs`, which reads chunks with `crates/logic/src/http1/chunked.rs`.
//!    `crates/logic/src/retry.rs` decides whether a failed request is retried,
//!    `crates/proxy/src/bandwidth.rs` holds back what a limit does not allow yet. `crates/proxy/src/relay.rs` relays TCP
//!    sessions and upgraded connections, and splices bulk data (`crates/sys/src/splice.rs`). An idle TCP session or WebSocket
//!    keeps only its record and two descriptors, in `crates/proxy/src/idle_sessions.rs`, and an HTTP/1.1 connection without TLS
//!    its record and its descriptor, after a second without a request. All timeouts of an HTTP connection share one timer
//!    (`crates/proxy/src/timer.rs`).
//!    At an upgrade another process goes on with TCP sessions and WebSockets: `crates/proxy/src/given.rs`.
//! 8. Every session and request ends in one `Outcome` (`crates/proxy/src/outcome.rs`). Its `Drop` finishes it in every
//!    case, also after a panic. The access log (formatted by `crates/logic/src/access_log.rs`, written by
//!    `crates/state/src/access_log.rs`) and the counters (`crates/state/src/metrics.rs`, exported by
//!    `crates/serve/src/exposition.rs`) show its content. While it runs, `crates/proxy/src/live.rs` has what operators see of
//!    it, and `crates/proxy/src/worker/sessions.rs` tells it and ends the sessions that they name.

pub mod accept;
mod admission;
pub mod arrival;
mod bandwidth;
mod boxed;
pub mod connect;
pub mod connection;
mod dsr;
pub mod ejection;
pub mod fallback;
pub mod front;
pub mod given;
pub mod http;
pub mod http2;
mod idle;
pub mod idle_sessions;
pub mod listing;
pub mod live;
pub mod outcome;
mod passthrough;
pub mod past;
pub mod pipes;
pub mod question;
pub mod relay;
mod restart;
mod retry_budget;
pub mod snapshot;
pub mod sticky_cookie;
pub mod stream;
mod tap;
pub mod tcp;
mod timer;
mod udp;
pub mod upstream;
mod waits;
pub mod why;
pub mod worker;
