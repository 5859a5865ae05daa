//! The kinds of faults: name, parameter, and effect on a client.

use hosts::fleet::ending::{Phase, Reason, Remote};

/// One line of the table of faults.
#[derive(Debug)]
pub struct Entry {
    pub name: &'static str,
    pub kind: Kind,
    /// Type of the text after the colon, with its default.
    pub parameter: Parameter,
    /// Phase of the client in which the fault occurs.
    pub phase: Phase,
    pub does: &'static str,
    /// Result of the command `true` on this host for a correct client with a timeout of a few seconds.
    pub expected: Expected,
}

/// Result of a correct client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// The command ends normally, with this exit status.
    Exited(u32),
    /// The command ends by the signal that the host reports.
    Signalled(&'static str),
    /// A failure in the phase of the entry, without an exit status.
    Failed(Reason, Remote),
}

text::words! {
    /// A fault without its parameter; [`Entry::does`] describes it.
    pub enum Kind: "fault" {
        Refuse = "refuse",
        Blackhole = "blackhole",
        Silent = "silent",
        TurnAway = "turn-away",
        HangUp = "hang-up",
        BannerGarbage = "banner-garbage",
        BannerEndless = "banner-endless",
        BannerLines = "banner-lines",
        BannerSlow = "banner-slow",
        HangKex = "hang-kex",
        GarbageKex = "garbage-kex",
        GiganticPacket = "gigantic-packet",
        NoAlgorithm = "no-algorithm",
        ChangeKey = "change-key",
        WrongHost = "wrong-host",
        ForgedKey = "forged-key",
        HangService = "hang-service",
        HangAuth = "hang-auth",
        SlowAuth = "slow-auth",
        Deny = "deny",
        HangUpAuth = "hang-up-auth",
        Disconnect = "disconnect",
        HostileBanner = "hostile-banner",
        RefuseChannel = "refuse-channel",
        HangChannel = "hang-channel",
        RefuseExec = "refuse-exec",
        HangExec = "hang-exec",
        HangRun = "hang-run",
        IgnoreTerm = "ignore-term",
        Deaf = "deaf",
        Reset = "reset",
        Cut = "cut",
        DisconnectRun = "disconnect-run",
        NoStatus = "no-status",
        HangClose = "hang-close",
        Flood = "flood",
        FloodStderr = "flood-stderr",
        Escapes = "escapes",
        LongLine = "long-line",
        Drip = "drip",
        Exit = "exit",
        Signal = "signal",
        Rekey = "rekey",
    }
}

impl Kind {
    /// Whether the kernel ends the connections, so that the host cannot count them.
    pub(super) fn is_unseen(self) -> bool {
        matches!(self, Self::Refuse | Self::Blackhole)
    }
}

/// The parameter of a fault, with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parameter {
    None,
    Milliseconds(u64),
    Bytes(u64),
    Number(u32),
    /// Each connection whose number, counted from 1, is a multiple of this number.
    Every(u64),
    /// Name of another host; `None` means the next host.
    Host(Option<String>),
    /// Name of a signal without `SIG`.
    Signal(std::borrow::Cow<'static, str>),
}
