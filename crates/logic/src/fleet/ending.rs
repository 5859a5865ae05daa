//! What happened on one host, told apart as finely as a native client can see it.

use std::fmt;

/// How far a host got. A command can only have run from [`Phase::Start`] on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Its turn has not come.
    Queued,
    /// Looking for its addresses.
    Resolve,
    /// TCP, and the connection through jump hosts.
    Connect,
    /// Banners and key exchange, up to the verdict on the host's key.
    Identity,
    /// Proving who we are.
    Authenticate,
    /// We are logged in: a channel is opened and the command sent, and the server has not said that it runs.
    Start,
    /// The server said that it runs.
    Run,
    /// Files are on their way.
    Copy,
}

impl Phase {
    /// The word in tables, logs and JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Resolve => "resolve",
            Self::Connect => "connect",
            Self::Identity => "identity",
            Self::Authenticate => "authenticate",
            Self::Start => "start",
            Self::Run => "run",
            Self::Copy => "copy",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Why a host failed: the words under which failed hosts are grouped at the end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The host list or the configuration of this host is wrong; nothing was tried.
    Configuration,
    /// Its name has no address.
    NoAddress,
    /// Nobody listens there (connection refused).
    Refused,
    /// No route, network down, host down.
    Unreachable,
    /// A limit of ours ran out; the phase says which.
    TimedOut,
    /// The server hung up before or while it said hello, as OpenSSH does at MaxStartups and with PerSourcePenalties.
    TurnedAway,
    /// What answered does not speak SSH, or breaks its rules.
    Protocol,
    /// No algorithm in common.
    NoAlgorithm,
    /// No pin, certificate or record says who this host is.
    UnknownHost,
    /// Another key than the pinned one.
    KeyChanged,
    /// It answered with the key of another known host.
    Impostor,
    /// The key is revoked, or weaker than what is pinned, or its certificate is no good, or the server does not hold it.
    KeyRefused,
    /// The server accepted none of our keys.
    Denied,
    /// A key of ours could not be used: unreadable, others can read it, wrong passphrase, agent gone.
    OurKey,
    /// The server logged us in, but refused the channel, the command or the forward.
    ChannelRefused,
    /// The connection broke.
    Lost,
    /// The other side closed the channel without saying how the command ended.
    NoStatus,
    /// A file could not be read or written on the host, or what it sent cannot be taken.
    NotCopied,
    /// Stopped by us: Ctrl-C, or the stop condition of a wave.
    Stopped,
    /// Something on this machine: a full disk, a program that cannot be started, a kind of address that it does not have.
    Local,
    /// This machine has no descriptor, memory or process left: with fewer at once it would have done.
    Exhausted,
    /// A fault of this program.
    Internal,
}

impl Reason {
    /// The word in summaries and JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::NoAddress => "no-address",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed-out",
            Self::TurnedAway => "turned-away",
            Self::Protocol => "protocol",
            Self::NoAlgorithm => "no-algorithm",
            Self::UnknownHost => "unknown-host",
            Self::KeyChanged => "key-changed",
            Self::Impostor => "impostor",
            Self::KeyRefused => "key-refused",
            Self::Denied => "denied",
            Self::OurKey => "our-key",
            Self::ChannelRefused => "channel-refused",
            Self::Lost => "lost",
            Self::NoStatus => "no-status",
            Self::NotCopied => "not-copied",
            Self::Stopped => "stopped",
            Self::Local => "local",
            Self::Exhausted => "exhausted",
            Self::Internal => "internal-error",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Why there is no exit status: where it stopped, why, the details, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// How far it got.
    pub phase: Phase,
    /// The group it belongs to.
    pub reason: Reason,
    /// What we were doing, to what, and what was said; harmless on a terminal.
    pub detail: String,
    /// What to do about it, if we know.
    pub advice: Option<String>,
    /// What became of the remote process, where one may have been started.
    pub remote: Remote,
}

impl Failure {
    /// Nothing was started on the host: safe to try again.
    #[must_use]
    pub fn never_started(phase: Phase, reason: Reason, detail: String) -> Self {
        Self { phase, reason, detail, advice: None, remote: Remote::NeverStarted }
    }
}

/// What is known of the remote process when the client is done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Remote {
    /// Never started: safe to try again.
    NeverStarted,
    /// Ended: its status came, or it was ended by a signal of ours and the server said so.
    Ended,
    /// It may have run, and may still run.
    Unknown,
}

/// How one host ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The command ended by itself, with this status.
    Exited(u32),
    /// A signal ended the command, as the server says (RFC 4254 section 6.10): `TERM`, `KILL`, `SEGV`, ...
    Signalled {
        /// Without `SIG`.
        signal: String,
        /// Whether it left a core file.
        core: Core,
    },
    /// There is no status.
    Failed(Failure),
}

/// Whether a process that a signal ended left a core file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Core {
    /// It did.
    Dumped,
    /// It did not.
    None,
}

impl Ending {
    /// Whether the command did what it was asked: exit status 0.
    #[must_use]
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Exited(0))
    }

    /// What is known of the remote process.
    #[must_use]
    pub fn remote(&self) -> Remote {
        match self {
            Self::Exited(_) | Self::Signalled { .. } => Remote::Ended,
            Self::Failed(failure) => failure.remote,
        }
    }
}
