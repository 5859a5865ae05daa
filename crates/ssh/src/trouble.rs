//! What went wrong on a connection, in our words: no message of the SSH library reaches a user.

use std::io;
use std::time::Duration;

use logic::fleet::ending::{Failure, Phase, Reason, Remote};
use russh::{AlgorithmKind, ChannelOpenFailure, Error};

use crate::wire::Heard;

/// A failure with what is known of the remote process in that phase.
pub(crate) fn failure(phase: Phase, reason: Reason, detail: String) -> Failure {
    let remote = if phase < Phase::Start { Remote::NeverStarted } else { Remote::Unknown };
    Failure { phase, reason, detail, advice: None, remote }
}

/// A failure with advice.
pub(crate) fn advised(phase: Phase, reason: Reason, detail: String, advice: &str) -> Failure {
    Failure { advice: Some(advice.to_owned()), ..failure(phase, reason, detail) }
}

/// Whether this machine has too little of something: with fewer at once it would have done.
pub(crate) fn is_exhaustion(fault: &io::Error) -> bool {
    use nix::libc::{EAGAIN, EMFILE, ENFILE, ENOBUFS, ENOMEM};
    matches!(fault.raw_os_error(), Some(EMFILE | ENFILE | ENOMEM | ENOBUFS | EAGAIN))
}

/// `phase` took longer than `limit`.
pub(crate) fn late(phase: Phase, name: &str, what: &str, limit: Duration) -> Failure {
    let seconds = limit.as_secs_f32();
    let mut late = failure(phase, Reason::TimedOut, format!("{name}: {what} within {seconds} s"));
    late.advice = match phase {
        Phase::Connect => Some("is it up? A firewall that drops packets looks the same"),
        Phase::Identity => {
            Some("something took the connection and went silent: is sshd there, or a machine that hangs?")
        }
        _ => None,
    }
    .map(str::to_owned);
    late
}

/// What the library says went wrong in `phase`, on a connection to `name`.
pub(crate) fn of(phase: Phase, fault: &Error, name: &str) -> Failure {
    let protocol = |what: &str| failure(phase, Reason::Protocol, format!("{name} {what}"));
    match fault {
        Error::NoCommonAlgo { kind, theirs, .. } => no_algorithm(phase, kind, theirs, name),
        Error::Version => protocol("does not speak SSH 2"),
        Error::PacketSize(size) => {
            protocol(&format!("sent a packet that claims {size} bytes: damaged, or not SSH"))
        }
        Error::PacketAuth | Error::DecryptionError => {
            protocol("sent a packet that was damaged or forged on its way")
        }
        Error::WrongServerSig => advised(
            phase,
            Reason::KeyRefused,
            format!("{name} could not prove that it holds the key it showed"),
            "somebody may stand between, or its host key file is damaged: ssh-keygen -y -f on the server tells",
        ),
        Error::StrictKeyExchangeViolation { .. } => protocol(
            "sent, or somebody on the way inserted, a message that does not belong in a key exchange",
        ),
        Error::Kex | Error::KexInit | Error::Signature(_) | Error::UnknownAlgo => {
            protocol("broke the rules of the key exchange")
        }
        Error::SshKey(_) | Error::CouldNotReadKey | Error::Keys(_) => {
            protocol("sent a key or a certificate that cannot be read")
        }
        Error::Inconsistent
        | Error::IndexOutOfBounds
        | Error::SshEncoding(_)
        | Error::Utf8(_)
        | Error::Pending
        | Error::WrongChannel
        | Error::NotAuthenticated
        | Error::UnsupportedAuthMethod
        | Error::NoAuthMethod => protocol("sent a message that breaks the rules of SSH"),
        Error::UnknownKey | Error::KeyChanged { .. } => {
            failure(phase, Reason::KeyRefused, format!("the key of {name} was refused"))
        }
        Error::ChannelOpenFailure(why) => channel_refused(phase, why, name),
        Error::RequestDenied => failure(phase, Reason::ChannelRefused, format!("{name} refused the request")),
        Error::KeepaliveTimeout => {
            failure(phase, Reason::Lost, format!("{name} no longer answers: the connection is dead"))
        }
        Error::ConnectionTimeout | Error::InactivityTimeout | Error::Elapsed(_) => {
            failure(phase, Reason::TimedOut, format!("{name} took too long"))
        }
        Error::Disconnect | Error::HUP | Error::SendError | Error::RecvError => {
            failure(phase, Reason::Lost, format!("{name} closed the connection"))
        }
        Error::IO(fault) => lost(phase, fault, name),
        Error::Join(_) => failure(
            phase,
            Reason::Internal,
            format!("the connection to {name} ended by a fault of this program"),
        ),
        Error::NoHomeDir | Error::InvalidConfig(_) => {
            failure(phase, Reason::Configuration, format!("the configuration of {name} cannot be used"))
        }
        // The library says that more kinds may come.
        #[allow(unreachable_patterns)]
        _ => protocol("did something unexpected"),
    }
}

/// What the library says went wrong before the host proved its identity, read together with what the host said in clear.
pub(crate) fn handshake(fault: &Error, heard: &Heard, name: &str, place: &str) -> Failure {
    let hung_up = match fault {
        Error::Disconnect | Error::HUP => true,
        Error::IO(fault) => matches!(
            fault.kind(),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
        ),
        _ => false,
    };
    let said = heard.before();
    let full = ["exceeded maxstartups", "not allowed at this time", "too many connections"];
    if full.iter().any(|words| said.to_ascii_lowercase().contains(words)) {
        return advised(
            Phase::Identity,
            Reason::TurnedAway,
            format!("{name} at {place} turned us away: {}", harmless(&said)),
            BUSY,
        );
    }
    match (heard.version(), hung_up) {
        (None, _) if !said.is_empty() => advised(
            Phase::Identity,
            Reason::Protocol,
            format!("what answers for {name} at {place} does not speak SSH: it said {}", harmless(&said)),
            "check the port",
        ),
        (Some(version), _) if !["SSH-2.0-", "SSH-1.99-"].iter().any(|known| version.starts_with(known)) => {
            failure(
                Phase::Identity,
                Reason::Protocol,
                format!("{name} at {place} does not speak SSH 2: it said {}", harmless(&version)),
            )
        }
        (None, true) => advised(
            Phase::Identity,
            Reason::TurnedAway,
            format!("{name} at {place} hung up before it said anything"),
            BUSY,
        ),
        (Some(version), true) => advised(
            Phase::Identity,
            Reason::TurnedAway,
            format!("{name} at {place} ({}) hung up during the key exchange", harmless(&version)),
            BUSY,
        ),
        _ => of(Phase::Identity, fault, name),
    }
}

/// What other side said, as one line that a terminal can show: control characters escaped, cut to a readable length.
pub(crate) fn harmless(text: &str) -> String {
    let text = text.trim();
    let mut shown = String::new();
    for character in text.chars() {
        // What counts is what is read: an escape is up to ten characters for one.
        if shown.chars().count() + escaped(character).count() > LONGEST_QUOTE {
            return format!("\"{shown}...\"");
        }
        shown.extend(escaped(character));
    }
    format!("\"{shown}\"")
}

fn escaped(character: char) -> impl Iterator<Item = char> {
    let plain = character != '\\' && character != '"';
    let (kept, escape) =
        if plain && (character.is_alphanumeric() || character.is_ascii_graphic() || character == ' ') {
            (Some(character), None)
        } else {
            (None, Some(character.escape_default()))
        };
    kept.into_iter().chain(escape.into_iter().flatten())
}

fn no_algorithm(phase: Phase, kind: &AlgorithmKind, theirs: &[String], name: &str) -> Failure {
    let (what, option) = match kind {
        AlgorithmKind::Kex => ("key exchange", "KexAlgorithms"),
        AlgorithmKind::Key => ("kind of host key", "HostKeyAlgorithms"),
        AlgorithmKind::Cipher => ("cipher", "Ciphers"),
        AlgorithmKind::Compression => ("compression", "Compression"),
        AlgorithmKind::Mac => ("MAC", "MACs"),
    };
    let theirs = harmless(&theirs.join(", "));
    advised(
        phase,
        Reason::NoAlgorithm,
        format!("no {what} in common with {name}: it offers {theirs}"),
        &format!("update the server; or allow one of these with {option}, if we have it at all"),
    )
}

fn channel_refused(phase: Phase, why: &ChannelOpenFailure, name: &str) -> Failure {
    let (said, advice) = match why {
        ChannelOpenFailure::AdministrativelyProhibited => (
            "its configuration forbids it",
            // Of a session; whoever opens a forward says otherwise.
            Some("look at MaxSessions in its sshd_config (0 allows no command at all)"),
        ),
        ChannelOpenFailure::ConnectFailed => ("it could not connect there", None),
        ChannelOpenFailure::UnknownChannelType => ("it does not know this kind of channel", None),
        ChannelOpenFailure::ResourceShortage => {
            ("it has no room for another", Some("fewer at once, or later"))
        }
        ChannelOpenFailure::Other { .. } => ("it gave no reason that we know", None),
    };
    let mut refused = failure(phase, Reason::ChannelRefused, format!("{name} refused the channel: {said}"));
    refused.advice = advice.map(str::to_owned);
    refused
}

fn lost(phase: Phase, fault: &io::Error, name: &str) -> Failure {
    let what = match fault.kind() {
        io::ErrorKind::UnexpectedEof => "the other side closed it without a word".to_owned(),
        io::ErrorKind::ConnectionReset => "the other side, or something between, reset it".to_owned(),
        io::ErrorKind::BrokenPipe => "the other side was gone".to_owned(),
        // Where it is not the kernel that gave up, whoever did says what it waited for.
        io::ErrorKind::TimedOut if fault.get_ref().is_none() => "nothing came back".to_owned(),
        _ => fault.to_string(),
    };
    failure(phase, Reason::Lost, format!("the connection to {name} broke: {what}"))
}

const BUSY: &str = "sshd does so when too many connect at once (MaxStartups) or after failures from this address \
                    (PerSourcePenalties); a firewall may do it too: fewer at once, or wait a minute";

/// Longer texts of others are cut; in characters as shown.
const LONGEST_QUOTE: usize = 300;
