//! The DNS: questions to one server or along the validating path, and signed updates of zones. Decisions about keys in the
//! DNS are in `crates/access/src/keys.rs`; this crate asks and changes.
//!
//! - `crates/dns/src/signed.rs`: messages signed with a key that is shared with a server (TSIG).
//! - `crates/dns/src/update.rs`: changes of a zone at its primary server (RFC 2136).
//! - `crates/dns/src/ask.rs`: one question to one server, over UDP and, if it is truncated, TCP.
//! - `crates/dns/src/resolver.rs`: look-ups that are validated here, up to a trust anchor.
//! - `crates/dns/src/authority.rs`: the servers of a zone, and what each of them says.
//! - `crates/dns/src/roll.rs`: the way of a new key through the gate; `crates/dns/src/turns.rs` counts its sockets.
//! - `crates/dns/src/service.rs`: the certificates that a TLS service shows; `crates/dns/src/starttls.rs` where a command comes first.

mod ask;
mod authority;
mod name;
mod resolver;
mod roll;
mod service;
mod signed;
mod starttls;
mod turns;
mod update;

pub use ask::Silence;
pub use authority::{Authorities, NoZone, Server, ZoneKeys};
pub use resolver::{Anchor, Answer, Resolver, ResolverFault};
pub use roll::{Look, Looked, Plan, Roll, RollFault, Services, TlsLook, Waiting, too_many};
pub use service::chains;
pub use signed::{SignedFault, SignedServer};
pub use starttls::{Dialect, TlsStart};
pub use turns::{Turns, Unlimited};
pub use update::{Primary, Push, PushFault, Write};
