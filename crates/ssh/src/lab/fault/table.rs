//! The table of faults: where a client meets each of them, what the host does, and how a good client ends.

use std::borrow::Cow;

use logic::fleet::ending::Phase::{self, Authenticate, Connect, Identity, Run, Start};
use logic::fleet::ending::Reason;
use logic::fleet::ending::Remote::{self, Ended, NeverStarted, Unknown};

use super::Parameter::{Bytes, Every, Milliseconds, None as Nothing, Number};
use super::{Entry, Expected, Kind, Parameter};

/// All faults, in the order in which a client meets them.
#[rustfmt::skip]
pub const FAULTS: &[Entry] = &[
    fault("refuse", Kind::Refuse, Nothing, Connect, failed(Reason::Refused, NeverStarted),
        "nobody listens"),
    fault("blackhole", Kind::Blackhole, Nothing, Connect, failed(Reason::TimedOut, NeverStarted),
        "packets of new connections are dropped"),
    fault("silent", Kind::Silent, Nothing, Identity, failed(Reason::TimedOut, NeverStarted),
        "accepts, and never says a word"),
    fault("turn-away", Kind::TurnAway, Nothing, Identity, failed(Reason::TurnedAway, NeverStarted),
        "says `Exceeded MaxStartups` and hangs up"),
    fault("hang-up", Kind::HangUp, Nothing, Identity, failed(Reason::TurnedAway, NeverStarted),
        "hangs up without a word"),
    fault("banner-garbage", Kind::BannerGarbage, Nothing, Identity, failed(Reason::Protocol, NeverStarted),
        "says 4 KiB of anything but SSH, and hangs up"),
    fault("banner-endless", Kind::BannerEndless, Nothing, Identity, failed(Reason::Protocol, NeverStarted),
        "its first line never ends"),
    fault("banner-lines", Kind::BannerLines, Nothing, Identity, failed(Reason::Protocol, NeverStarted),
        "lines before its greeting, without end"),
    fault("banner-slow", Kind::BannerSlow, Milliseconds(1000), Identity, failed(Reason::TimedOut, NeverStarted),
        "one byte of its greeting each MS"),
    fault("hang-kex", Kind::HangKex, Nothing, Identity, failed(Reason::TimedOut, NeverStarted),
        "greets, and is silent"),
    fault("garbage-kex", Kind::GarbageKex, Nothing, Identity, failed(Reason::Protocol, NeverStarted),
        "greets, then a key exchange without sense"),
    fault("gigantic-packet", Kind::GiganticPacket, Nothing, Identity, failed(Reason::Protocol, NeverStarted),
        "greets, and announces a packet of 4 GiB"),
    fault("no-algorithm", Kind::NoAlgorithm, Nothing, Identity, failed(Reason::NoAlgorithm, NeverStarted),
        "knows no key exchange but diffie-hellman-group1-sha1"),
    fault("change-key", Kind::ChangeKey, Every(1), Identity, failed(Reason::KeyChanged, NeverStarted),
        "another host key at EVERY-th connection"),
    fault("impostor", Kind::Impostor, Parameter::Host(None), Identity, failed(Reason::Impostor, NeverStarted),
        "answers with the key of HOST, or of the next one"),
    fault("forged-key", Kind::ForgedKey, Nothing, Identity, failed(Reason::KeyRefused, NeverStarted),
        "shows its right key, and cannot sign with it"),
    fault("hang-service", Kind::HangService, Nothing, Authenticate, failed(Reason::TimedOut, NeverStarted),
        "silent after the key exchange"),
    fault("hang-auth", Kind::HangAuth, Nothing, Authenticate, failed(Reason::TimedOut, NeverStarted),
        "never says whether a key is good"),
    fault("slow-auth", Kind::SlowAuth, Milliseconds(2000), Authenticate, Expected::Exited(0),
        "says after MS whether a key is good"),
    fault("deny", Kind::Deny, Nothing, Authenticate, failed(Reason::Denied, NeverStarted),
        "no key is good"),
    fault("hang-up-auth", Kind::HangUpAuth, Nothing, Authenticate, failed(Reason::Lost, NeverStarted),
        "hangs up when a key is shown"),
    fault("disconnect", Kind::Disconnect, Nothing, Authenticate, failed(Reason::Lost, NeverStarted),
        "a farewell with terminal escapes when a key is shown"),
    fault("hostile-banner", Kind::HostileBanner, Nothing, Authenticate, Expected::Exited(0),
        "a message with terminal escapes before the log-in"),
    fault("refuse-channel", Kind::RefuseChannel, Nothing, Start, failed(Reason::ChannelRefused, NeverStarted),
        "opens no session"),
    fault("hang-channel", Kind::HangChannel, Nothing, Start, failed(Reason::TimedOut, NeverStarted),
        "never says whether it opens a session"),
    fault("refuse-exec", Kind::RefuseExec, Nothing, Start, failed(Reason::ChannelRefused, NeverStarted),
        "runs no command"),
    fault("hang-exec", Kind::HangExec, Nothing, Start, failed(Reason::TimedOut, Unknown),
        "never says whether it runs a command"),
    fault("hang-run", Kind::HangRun, Nothing, Run, failed(Reason::TimedOut, Ended),
        "commands never end; any signal ends them"),
    fault("ignore-term", Kind::IgnoreTerm, Nothing, Run, failed(Reason::TimedOut, Ended),
        "commands never end; only KILL ends them"),
    fault("deaf", Kind::Deaf, Nothing, Run, failed(Reason::TimedOut, Unknown),
        "commands never end, and no signal ends them"),
    fault("reset", Kind::Reset, Bytes(1000), Run, failed(Reason::Lost, Unknown),
        "resets the connection after BYTES of output"),
    fault("cut", Kind::Cut, Bytes(1000), Run, failed(Reason::Lost, Unknown),
        "ends the connection after BYTES of output"),
    fault("disconnect-run", Kind::DisconnectRun, Bytes(1000), Run, failed(Reason::Lost, Unknown),
        "a farewell with terminal escapes after BYTES of output"),
    fault("no-status", Kind::NoStatus, Nothing, Run, failed(Reason::NoStatus, Unknown),
        "runs the command, and does not say how it ended"),
    fault("hang-close", Kind::HangClose, Nothing, Run, failed(Reason::TimedOut, Ended),
        "says how the command ended, and closes nothing: as if something held its output open"),
    fault("flood", Kind::Flood, Nothing, Run, failed(Reason::TimedOut, Ended),
        "output without end; any signal ends it"),
    fault("flood-stderr", Kind::FloodStderr, Nothing, Run, failed(Reason::TimedOut, Ended),
        "error output without end; any signal ends it"),
    fault("escapes", Kind::Escapes, Nothing, Run, Expected::Exited(0),
        "output with terminal escapes, broken UTF-8, CR and NUL"),
    fault("long-line", Kind::LongLine, Bytes(10_000_000), Run, Expected::Exited(0),
        "one line of BYTES"),
    fault("drip", Kind::Drip, Milliseconds(20), Run, Expected::Exited(0),
        "a byte of output each MS, 64 of them"),
    fault("exit", Kind::Exit, Number(u32::MAX), Run, Expected::Exited(u32::MAX),
        "commands end with STATUS"),
    fault("signal", Kind::Signal, Parameter::Signal(Cow::Borrowed("SEGV")), Run, Expected::Signalled("SEGV"),
        "SIGNAL ends each command"),
    fault("rekey", Kind::Rekey, Bytes(65_536), Run, Expected::Exited(0),
        "new keys for the connection after each BYTES"),
];

const fn failed(reason: Reason, remote: Remote) -> Expected {
    Expected::Failed(reason, remote)
}

const fn fault(
    name: &'static str,
    kind: Kind,
    parameter: Parameter,
    phase: Phase,
    expected: Expected,
    does: &'static str,
) -> Entry {
    Entry { name, kind, parameter, phase, does, expected }
}
