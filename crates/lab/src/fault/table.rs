//! The table of faults: the phase in which a client meets each fault, the behaviour of the host, and the result of a
//! correct client.

use std::borrow::Cow;

use hosts::fleet::ending::Phase::{self, Authenticate, Connect, Identity, Run, Start};
use hosts::fleet::ending::Reason;
use hosts::fleet::ending::Remote::{self, Ended, MayHaveRun, NotStarted};

use super::kind::Parameter::{Bytes, Every, Milliseconds, None as Nothing, Number};
use super::kind::{Entry, Expected, Kind, Parameter};

/// All faults, in the order of their phases.
#[rustfmt::skip]
pub const FAULTS: &[Entry] = &[
    fault(Kind::Refuse, Nothing, Connect, failed(Reason::ConnectionRefused, NotStarted),
        "refuses connections (ECONNREFUSED)"),
    fault(Kind::Blackhole, Nothing, Connect, failed(Reason::TimedOut, NotStarted),
        "packets of new connections are dropped"),
    fault(Kind::Silent, Nothing, Identity, failed(Reason::TimedOut, NotStarted),
        "accepts, and never sends anything"),
    fault(Kind::TurnAway, Nothing, Identity, failed(Reason::ClosedByServer, NotStarted),
        "sends `Exceeded MaxStartups` and closes the connection"),
    fault(Kind::HangUp, Nothing, Identity, failed(Reason::ClosedByServer, NotStarted),
        "closes the connection without a word"),
    fault(Kind::BannerGarbage, Nothing, Identity, failed(Reason::ProtocolError, NotStarted),
        "sends 4 KiB that are not SSH, and closes the connection"),
    fault(Kind::BannerEndless, Nothing, Identity, failed(Reason::ProtocolError, NotStarted),
        "an endless first line"),
    fault(Kind::BannerLines, Nothing, Identity, failed(Reason::ProtocolError, NotStarted),
        "endless lines before its version"),
    fault(Kind::BannerSlow, Milliseconds(1000), Identity, failed(Reason::TimedOut, NotStarted),
        "sends one byte of its version every MS milliseconds"),
    fault(Kind::HangKex, Nothing, Identity, failed(Reason::TimedOut, NotStarted),
        "sends its version, then nothing"),
    fault(Kind::GarbageKex, Nothing, Identity, failed(Reason::ProtocolError, NotStarted),
        "sends its version, then an invalid key exchange"),
    fault(Kind::GiganticPacket, Nothing, Identity, failed(Reason::ProtocolError, NotStarted),
        "sends its version, then announces a packet of 4 GiB"),
    fault(Kind::NoAlgorithm, Nothing, Identity, failed(Reason::NoCommonAlgorithm, NotStarted),
        "knows no key exchange but diffie-hellman-group1-sha1"),
    fault(Kind::ChangeKey, Every(1), Identity, failed(Reason::KeyChanged, NotStarted),
        "another host key at EVERY-th connection"),
    fault(Kind::WrongHost, Parameter::Host(None), Identity, failed(Reason::WrongHost, NotStarted),
        "answers with the key of HOST, or of the next one"),
    fault(Kind::ForgedKey, Nothing, Identity, failed(Reason::KeyRefused, NotStarted),
        "shows its key, but cannot sign with it"),
    fault(Kind::HangService, Nothing, Authenticate, failed(Reason::TimedOut, NotStarted),
        "silent after the key exchange"),
    fault(Kind::HangAuth, Nothing, Authenticate, failed(Reason::TimedOut, NotStarted),
        "never answers whether a key is accepted"),
    fault(Kind::SlowAuth, Milliseconds(2000), Authenticate, Expected::Exited(0),
        "answers after MS whether a key is accepted"),
    fault(Kind::Deny, Nothing, Authenticate, failed(Reason::PermissionDenied, NotStarted),
        "accepts no key"),
    fault(Kind::HangUpAuth, Nothing, Authenticate, failed(Reason::ConnectionLost, NotStarted),
        "closes the connection when a key is offered"),
    fault(Kind::Disconnect, Nothing, Authenticate, failed(Reason::ConnectionLost, NotStarted),
        "a disconnect message with terminal escapes when a key is offered"),
    fault(Kind::HostileBanner, Nothing, Authenticate, Expected::Exited(0),
        "a message with terminal escapes before the log-in"),
    fault(Kind::RefuseChannel, Nothing, Start, failed(Reason::ChannelRefused, NotStarted),
        "opens no session"),
    fault(Kind::HangChannel, Nothing, Start, failed(Reason::TimedOut, NotStarted),
        "never answers a request for a session"),
    fault(Kind::RefuseExec, Nothing, Start, failed(Reason::ChannelRefused, NotStarted),
        "runs no command"),
    fault(Kind::HangExec, Nothing, Start, failed(Reason::TimedOut, MayHaveRun),
        "never answers a request for a command"),
    fault(Kind::HangRun, Nothing, Run, failed(Reason::TimedOut, Ended),
        "commands never end; any signal ends them"),
    fault(Kind::IgnoreTerm, Nothing, Run, failed(Reason::TimedOut, Ended),
        "commands never end; only KILL ends them"),
    fault(Kind::Deaf, Nothing, Run, failed(Reason::TimedOut, MayHaveRun),
        "commands never end, and no signal ends them"),
    fault(Kind::Reset, Bytes(1000), Run, failed(Reason::ConnectionLost, MayHaveRun),
        "resets the connection after BYTES of output"),
    fault(Kind::Cut, Bytes(1000), Run, failed(Reason::ConnectionLost, MayHaveRun),
        "ends the connection after BYTES of output"),
    fault(Kind::DisconnectRun, Bytes(1000), Run, failed(Reason::ConnectionLost, MayHaveRun),
        "a disconnect message with terminal escapes after BYTES of output"),
    fault(Kind::NoStatus, Nothing, Run, failed(Reason::NoExitStatus, MayHaveRun),
        "runs the command, but sends no exit status"),
    fault(Kind::HangClose, Nothing, Run, failed(Reason::TimedOut, Ended),
        "sends the exit status, but closes nothing: as if a process kept its output open"),
    fault(Kind::Flood, Nothing, Run, failed(Reason::TimedOut, Ended),
        "output without end; any signal ends it"),
    fault(Kind::FloodStderr, Nothing, Run, failed(Reason::TimedOut, Ended),
        "error output without end; any signal ends it"),
    fault(Kind::Escapes, Nothing, Run, Expected::Exited(0),
        "output with terminal escapes, broken UTF-8, CR and NUL"),
    fault(Kind::LongLine, Bytes(10_000_000), Run, Expected::Exited(0),
        "one line of BYTES"),
    fault(Kind::Drip, Milliseconds(20), Run, Expected::Exited(0),
        "a byte of output each MS, 64 of them"),
    fault(Kind::Exit, Number(u32::MAX), Run, Expected::Exited(u32::MAX),
        "commands end with STATUS"),
    fault(Kind::Signal, Parameter::Signal(Cow::Borrowed("SEGV")), Run, Expected::Signalled("SEGV"),
        "SIGNAL ends each command"),
    fault(Kind::Rekey, Bytes(65_536), Run, Expected::Exited(0),
        "new keys for the connection after each BYTES"),
];

const fn failed(reason: Reason, remote: Remote) -> Expected {
    Expected::Failed(reason, remote)
}

const fn fault(
    kind: Kind,
    parameter: Parameter,
    phase: Phase,
    expected: Expected,
    does: &'static str,
) -> Entry {
    Entry { name: kind.as_str(), kind, parameter, phase, does, expected }
}
