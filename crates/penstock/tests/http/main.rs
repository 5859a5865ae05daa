//! HTTP/1.1 and HTTP/2, from client to backend, through the real binary.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod backend_floods;
mod backend_http2;
mod backend_websockets;
mod budgets;
mod early_response;
mod failed_attempts;
mod failover;
mod fairness;
mod faults;
mod flapping;
mod flood_delay;
mod framing;
mod freezing;
mod grpc;
mod hedge;
mod held_fields;
mod http2;
mod kill_backend;
mod loops;
mod not_processed;
mod respond;
mod retry_budget;
mod semantics;
mod silent_backend;
mod silent_http2;
mod sticky_cookie;
mod upstream;
