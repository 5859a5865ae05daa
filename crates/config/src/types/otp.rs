use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use logic::peers::PeerSet;

/// `[otp]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Otp {
    /// Directory of the store.
    pub store: PathBuf,
    /// File with the key that seals its secrets.
    pub key_file: PathBuf,
    /// Names of the listeners that answer as a validation server.
    pub answering: HashSet<Arc<str>>,
    /// Socket on which PAM modules ask.
    pub auth_socket: Option<PathBuf>,
    /// Other validation servers with the same tokens.
    pub validators: Vec<SocketAddr>,
    /// Who may tell what other servers accepted.
    pub sync_from: PeerSet,
    /// Part of the other servers that must agree, in percent.
    pub sync_level: u8,
    /// Time for them to answer.
    pub sync_timeout: Duration,
    /// File of users whose passwords PAM modules may ask about.
    pub users: Option<PathBuf>,
    /// What a log-in through PAM must prove at least; `None`: what the module asks for.
    pub log_in: Option<LogIn>,
}

text::words! {
    /// What a log-in must prove.
    pub enum LogIn: "log-in" {
        /// A one-time password.
        Otp = "otp",
        /// A password.
        Password = "password",
        /// One of both.
        Either = "either",
        /// Both.
        Both = "both",
    }
}
