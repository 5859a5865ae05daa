//! Errors of the start of a lab.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use crate::fault::FaultError;

#[derive(Debug, thiserror::Error)]
pub enum LabError {
    #[error("the lab cannot {doing} {path}")]
    File { doing: &'static str, path: String, source: io::Error },
    /// A key file in the directory cannot be parsed, or a key cannot be made.
    #[error("the lab cannot make the keys in {path}: {why}")]
    Keys { path: String, why: String },
    /// The directory has files of another program.
    #[error(
        "the lab would replace files in {path}, which is not the directory of a lab: it has `{file}`\n  \
         hint: name an empty directory, or one that is not there yet"
    )]
    Foreign { path: String, file: String },
    /// Other users can create links and files in the directory.
    #[error("the lab would write to {path}, which {how}\n  hint: {hint}")]
    Unsafe {
        /// The directory, a directory in it, or a parent of it.
        path: String,
        /// The owner, or who can write to the directory.
        how: String,
        hint: String,
    },
    #[error("a lab runs in {path} already\n  hint: end it, or start this one in another directory")]
    Busy { path: String },
    /// An invalid `--fault`.
    #[error(transparent)]
    Fault(#[from] FaultError),
    #[error("the lab cannot listen on {address}")]
    Bind { address: SocketAddr, source: io::Error },
    #[error(
        "the lab cannot listen on {address}: {source}\n  hint: without --port, the lab chooses a port that is free on all its addresses"
    )]
    PortTaken { address: SocketAddr, source: io::Error },
    #[error(
        "{hosts} hosts need {hosts} open files and one for each connection; this process may have {limit}\n  \
         hint: fewer hosts, or more with ulimit -n"
    )]
    Descriptors {
        hosts: usize,
        /// Limit of open descriptors.
        limit: u64,
    },
    /// The range of addresses exceeds 127.0.0.0/8.
    #[error(
        "{hosts} hosts from {first} on do not fit into 127.0.0.0/8; a lab listens on loopback addresses only"
    )]
    Addresses { hosts: usize, first: Ipv4Addr },
}
