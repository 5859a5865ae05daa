//! The front door: the only listeners of the program, and everything between a client's byte and a backend.
//!
//! Workers (`worker.rs`) own traffic: one thread, one single-threaded runtime, own sockets and own idle backend
//! connections per core. Everything slow (control socket, admin, health checks, name look-ups, reload) runs on the
//! main runtime in `start.rs` and reaches workers only through a swapped [`snapshot::Snapshot`], atomics in
//! [`state::State`] and one command channel per worker.
//!
//! # The path of a byte
//!
//! 1. `crates/penstock/src/cmd/serve.rs` reads arguments and calls `serve::run`.
//! 2. `crates/serve/src/start.rs` binds everything (`crates/serve/src/listen.rs`), drops privileges
//!    (`crates/sys/src/privilege.rs`), starts the workers.
//! 3. `crates/serve/src/accept.rs` accepts within the limits (`crates/serve/src/admission.rs`) and starts a task. Each client takes places in the account of
//!    descriptors (`crates/serve/src/account.rs`): its own, and that of one backend. Whether a client may have more is decided in
//!    `crates/logic/src/account.rs` by shares of what the others leave, of its connection (`crates/serve/src/account/share.rs`) and of
//!    its address (`crates/serve/src/account/source.rs`); what the process keeps for itself is in
//!    `crates/serve/src/needs.rs`. Idle backend connections and pipes (`crates/serve/src/pipes.rs`) are given up first, then
//!    idle clients (`crates/serve/src/worker/eviction.rs`).
//! 4. `crates/serve/src/connection.rs` reads a PROXY header where one is due (`crates/logic/src/proxy_header.rs`) and makes the TLS
//!    handshake (`crates/serve/src/tls.rs`). From here on a connection is a `Stream` (`crates/serve/src/stream.rs`), with TLS, HTTP/2 or neither below
//!    it; reads go through one scratch buffer per worker, so an idle connection holds none. One task polls both
//!    directions of a `Stream`, and no borrow of its cell outlives a poll: that is why a `RefCell` is enough.
//! 5. `protocol = "tcp"`: `crates/serve/src/tcp.rs`, which takes a backend as in step 6 and relays as in step 7. `protocol = "http"`: `crates/serve/src/http.rs` reads a head
//!    (`crates/logic/src/http1/request.rs`: what is ambiguous is refused here) and hands it to
//!    `crates/serve/src/http/exchange.rs`, which asks `crates/logic/src/route.rs` for a pool and writes the request anew
//!    (`crates/logic/src/http1/forward.rs`, with one hop more in `crates/logic/src/http1/hops.rs`, by which a request that
//!    goes in a circle is refused). Answers that we give ourselves, error pages and redirects, are written by
//!    `crates/serve/src/http/answer.rs`.
//!    `protocol = "tls-passthrough"`: `crates/serve/src/passthrough.rs` reads the ClientHello (`crates/logic/src/client_hello.rs`),
//!    takes a pool by its server name, and goes on as TCP.
//!    HTTP/2 is `crates/serve/src/http2.rs` on the `h2` crate: each stream is checked and written as a request of HTTP/1.1
//!    (`crates/logic/src/http2/downgrade.rs`) and goes the same way in a task of its own, with a `Stream` whose other side is
//!    `crates/serve/src/http2/side.rs`. Frames that cost much and move nothing are counted as they pass
//!    (`crates/serve/src/http2/wire.rs`, `crates/logic/src/http2/flood.rs`). How much is read from backends for a client that takes
//!    little is decided in `crates/serve/src/http2/backlog.rs`.
//! 6. `crates/serve/src/upstream.rs` asks `crates/logic/src/balance/mod.rs` for a backend, waits for a busy one (`crates/serve/src/queue.rs`), reuses an idle
//!    connection or opens one (`crates/serve/src/connect.rs`), with TLS where the pool says so (`crates/serve/src/tls/backend.rs`).
//!    A pool with `http2 = "on"` shares connections (`crates/serve/src/http2/backend.rs`); each request is then a `Stream` whose
//!    other side is `crates/serve/src/http2/backend/call.rs`, and heads are converted by `crates/logic/src/http2/upgrade.rs`.
//! 7. `crates/serve/src/http/reply.rs` sends the request and passes the answer on, both at once; bodies move through
//!    `crates/serve/src/http/body.rs`, whose chunks are read by `crates/logic/src/http1/chunked.rs`. What failed may be tried
//!    elsewhere only as `crates/logic/src/retry.rs` says. TCP sessions and upgraded connections go through
//!    `crates/serve/src/relay.rs`, which splices bulk (`crates/sys/src/splice.rs`). A TCP session in which neither side speaks
//!    gives up its task and its place in the runtime, and lies in `crates/serve/src/dormitory.rs` until one of its sides does. All limits of an HTTP connection share one
//!    timer (`crates/serve/src/timer.rs`).
//! 8. Every session and request ends in one `Outcome` (`crates/serve/src/outcome.rs`), finished in its `Drop` on every way out, a panic
//!    included. The access log (`crates/logic/src/access_log.rs` formats, `crates/serve/src/access_log.rs` writes) and the counters
//!    (`crates/serve/src/metrics.rs`, shown by `crates/serve/src/metrics/exposition.rs`) are two views of it.

pub mod accept;
pub mod access_log;
pub mod account;
pub mod acme;
pub mod admin;
mod admission;
pub mod arrival;
mod causes;
pub mod connect;
pub mod connection;
pub mod control;
pub mod dormitory;
pub mod ending;
mod events;
pub mod file;
pub mod front;
pub mod health;
pub mod http;
pub mod http2;
mod idle;
mod linger;
pub mod listen;
mod lock;
mod look_up;
pub mod metrics;
mod needs;
pub mod outcome;
mod pace;
mod passthrough;
mod per_backend;
pub mod pipes;
mod places;
pub mod plain;
mod plural;
mod queue;
pub mod relay;
pub mod reload;
pub mod report;
pub mod resolve;
pub mod snapshot;
pub mod start;
pub mod state;
pub mod state_directory;
pub mod stream;
pub mod tcp;
pub mod through;
mod timer;
pub mod tls;
pub mod upstream;
pub mod worker;

pub use start::{Options, StartError, run};
