//! Result of one host: exit status, signal, or reason of the failure.

use std::fmt;

/// Phase in which a host is. The command can only have run from [`Phase::Start`] on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// The host waits for its turn.
    Queued,
    Resolve,
    /// TCP connection, directly or through jump hosts.
    Connect,
    /// SSH version exchange and key exchange, until the host key is accepted or refused.
    Identity,
    Authenticate,
    /// The client is logged in, opens a channel and sends the command. The server has not confirmed the command.
    Start,
    /// The server has confirmed that the command runs.
    Run,
    Copy,
}

impl Phase {
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

/// Reason why a host failed. The summary of a run groups failed hosts by the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The host list or the configuration of the host is wrong; no connection was tried.
    BadConfiguration,
    NoAddress,
    /// No program listens on the port (ECONNREFUSED).
    ConnectionRefused,
    /// No route to the host, or the network or the host is down.
    Unreachable,
    /// A timeout of Penstock expired; [`Failure::phase`] says in which phase.
    TimedOut,
    /// The server closed the connection before or during the version exchange (OpenSSH: MaxStartups,
    /// PerSourcePenalties).
    ClosedByServer,
    /// The server does not speak SSH, or breaks the SSH protocol.
    ProtocolError,
    NoCommonAlgorithm,
    /// No pin, certificate or record identifies the host.
    UnknownHost,
    /// The host key is not the pinned key.
    KeyChanged,
    /// The server answered with the key of another known host.
    WrongHost,
    /// The host key is revoked or weaker than the pinned key, its certificate is not valid, or the server did not prove
    /// that it has the private key.
    KeyRefused,
    /// The server accepted no key of the client.
    PermissionDenied,
    /// A key of the client cannot be used: the file is unreadable or readable by others, the passphrase is wrong, the
    /// agent is gone.
    KeyUnusable,
    /// The client is logged in, but the server refused the channel, the command or the forward.
    ChannelRefused,
    ConnectionLost,
    /// The server closed the channel without an exit status or a signal.
    NoExitStatus,
    /// A file cannot be read or written on the host, or the client cannot accept the data that the host sent.
    CopyFailed,
    /// Penstock stopped the host: Ctrl-C, or the stop condition of a wave.
    Stopped,
    /// A local error: a full disk, a program that cannot be started, an address family that the machine lacks.
    LocalError,
    /// The local machine lacks descriptors, memory or processes. The host can succeed with fewer hosts at once.
    OutOfResources,
    /// A bug in Penstock.
    Internal,
}

impl Reason {
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::BadConfiguration => "bad-configuration",
            Self::NoAddress => "no-address",
            Self::ConnectionRefused => "connection-refused",
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed-out",
            Self::ClosedByServer => "closed-by-server",
            Self::ProtocolError => "protocol-error",
            Self::NoCommonAlgorithm => "no-common-algorithm",
            Self::UnknownHost => "unknown-host",
            Self::KeyChanged => "key-changed",
            Self::WrongHost => "wrong-host",
            Self::KeyRefused => "key-refused",
            Self::PermissionDenied => "permission-denied",
            Self::KeyUnusable => "key-unusable",
            Self::ChannelRefused => "channel-refused",
            Self::ConnectionLost => "connection-lost",
            Self::NoExitStatus => "no-exit-status",
            Self::CopyFailed => "copy-failed",
            Self::Stopped => "stopped",
            Self::LocalError => "local-error",
            Self::OutOfResources => "out-of-resources",
            Self::Internal => "internal-error",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Reason why a host has no exit status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Phase in which the host failed.
    pub phase: Phase,
    /// Group of the host in the summary.
    pub reason: Reason,
    /// Details for people: the action, its target and the error text; safe for terminals.
    pub detail: String,
    /// Advice to the operator, if there is any.
    pub advice: Option<String>,
    pub remote: Remote,
}

impl Failure {
    /// Failure of a host on which nothing was started. Another try is safe.
    #[must_use]
    pub fn not_started(phase: Phase, reason: Reason, detail: String) -> Self {
        Self { phase, reason, detail, advice: None, remote: Remote::NotStarted }
    }
}

/// State of the remote process when the client gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Remote {
    /// The process was never started. Another try is safe.
    NotStarted,
    /// The process ended: the server reported an exit status, or the end by a signal that the client sent.
    Ended,
    /// The process may have run, and may still run.
    MayHaveRun,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    Exited(u32),
    /// A signal ended the command, as the server reports (RFC 4254 section 6.10): `TERM`, `KILL`, `SEGV`, ...
    Signalled {
        /// Name of the signal without `SIG`.
        signal: String,
        core: Core,
    },
    Failed(Failure),
}

/// Core file of a process that a signal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Core {
    Dumped,
    None,
}

impl Ending {
    #[must_use]
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Exited(0))
    }

    #[must_use]
    pub fn remote(&self) -> Remote {
        match self {
            Self::Exited(_) | Self::Signalled { .. } => Remote::Ended,
            Self::Failed(failure) => failure.remote,
        }
    }
}
