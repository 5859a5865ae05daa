//! One-time passwords: formats, checks, and what a store of tokens remembers of each. No I/O: `crates/credentials` keeps
//! the store on a disk, `crates/serve/src/otp.rs` answers for it.
//!
//! - `crates/access/src/otp/modhex.rs`: the alphabet of YubiKeys, and what other keyboard layouts make of it
//! - `crates/access/src/otp/yubico.rs`: the OTP of YubiKeys: one encrypted block with counters
//! - `crates/access/src/otp/oath.rs`: HOTP (RFC 4226) and TOTP (RFC 6238)
//! - `crates/access/src/otp/challenge.rs`: HMAC-SHA1 challenge-response of a key at this machine
//! - `crates/access/src/otp/token.rs`: a token with its state, and whether an OTP is good for it
//! - `crates/access/src/otp/ledger.rs`: all tokens and API clients
//! - `crates/access/src/otp/record.rs`: the records that change them
//! - `crates/access/src/otp/journal.rs`: the lines in which records are stored, and what is wrong with damaged ones
//! - `crates/access/src/otp/seal.rs`: secrets at rest
//! - `crates/access/src/otp/query.rs`: the query of a request
//! - `crates/access/src/otp/validation.rs`: the validation protocol 2.0 of Yubico, for servers
//! - `crates/access/src/otp/sync.rs`: the messages by which validation servers keep counters in step
//! - `crates/access/src/otp/import.rs`: exports of YK-KSM, and files of oathtool and pam_oath
//! - `crates/access/src/otp/uri.rs`: what authenticator apps scan

pub mod base32;
pub mod challenge;
mod hex;
pub mod import;
pub mod journal;
pub mod ledger;
pub mod modhex;
pub mod oath;
pub mod query;
pub mod record;
pub mod seal;
pub mod sync;
pub mod token;
pub mod uri;
pub mod validation;
pub mod yubico;
