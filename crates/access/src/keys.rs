//! Keys in the DNS: which records a key needs, what an update of a zone changes, what is wrong with a zone, and when a
//! new key may be used. Never asks the DNS: `crates/dns` does.
//!
//! - `crates/access/src/keys/owner.rs`: names of records.
//! - `crates/access/src/keys/record.rs`: SSHFP, TLSA, OPENPGPKEY and CERT on the wire and as text.
//! - `crates/access/src/keys/tlsa.rs`: records of certificates, and whether a chain fits them.
//! - `crates/access/src/keys/openpgp.rs`: OpenPGP keys, and the smallest form of one for the DNS.
//! - `crates/access/src/keys/revoked.rs`: records that must not be there.
//! - `crates/access/src/keys/difference.rs`: what an update changes.
//! - `crates/access/src/keys/check.rs`: what is wrong with what the DNS says.
//! - `crates/access/src/keys/gate.rs`: when a new key may be used, and when the record of the old one may go.

mod check;
mod difference;
mod gate;
pub mod openpgp;
mod owner;
mod record;
mod revoked;
mod tlsa;

pub use check::{
    Finding, Live, MOST_ALIASES, Observation, Problem, Proved, Seen, Severity, Signature, judge,
};
pub use difference::{Change, Others, PresentSet, difference};
pub use gate::{Gate, Glance, Shown, Step};
pub use owner::{Owner, OwnerFault};
pub use record::{Kind, MOST_DATA, Record, RecordFault, Set, sets};
pub use revoked::Revoked;
pub use tlsa::{Association, CertificateFault, fits, spki};
