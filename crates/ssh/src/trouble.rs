//! Converts errors of a connection into messages of penstock: no message of the SSH library reaches a user.

use std::io;
use std::time::Duration;

use hosts::fleet::ending::{Failure, Phase, Reason, Remote};
use russh::{AlgorithmKind, ChannelOpenFailure, Error};

use crate::wire::ServerText;

/// Makes a failure, with the state of the remote process that follows from the phase.
pub(crate) fn failure(phase: Phase, reason: Reason, detail: String) -> Failure {
    let remote = if phase < Phase::Start { Remote::NotStarted } else { Remote::MayHaveRun };
    Failure { phase, reason, detail, advice: None, remote }
}

pub(crate) fn advised(phase: Phase, reason: Reason, detail: String, advice: &str) -> Failure {
    Failure { advice: Some(advice.to_owned()), ..failure(phase, reason, detail) }
}

/// Returns true if this machine lacked a resource: with fewer connections at the same time, the call would succeed.
pub(crate) fn is_exhaustion(fault: &io::Error) -> bool {
    use nix::libc::{EAGAIN, EMFILE, ENFILE, ENOBUFS, ENOMEM};
    matches!(fault.raw_os_error(), Some(EMFILE | ENFILE | ENOMEM | ENOBUFS | EAGAIN))
}

/// Makes the failure of a `phase` that took longer than `limit`.
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

/// Converts an error of the library in `phase`, on a connection to `name`.
pub(crate) fn of(phase: Phase, fault: &Error, name: &str) -> Failure {
    let protocol = |what: &str| failure(phase, Reason::ProtocolError, format!("{name} {what}"));
    match fault {
        Error::NoCommonAlgo { kind, theirs, .. } => no_algorithm(phase, kind, theirs, name),
        Error::Version => protocol("does not speak SSH 2"),
        Error::PacketSize(0) => protocol("sent an empty packet: damaged, or not SSH"),
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
            "an attacker may be in between, or its host key file is damaged: check it on the server with ssh-keygen -y -f",
        ),
        // The library's limit for RSA keys, which the vendored copy tells apart from a wrong signature.
        Error::SshKey(russh::keys::ssh_key::Error::Crypto) => advised(
            phase,
            Reason::NoCommonAlgorithm,
            format!(
                "{name} showed an RSA key that is too long to verify here: the most are {LONGEST_RSA} bits"
            ),
            "let it show an Ed25519 key as well, or use --engine openssh",
        ),
        Error::StrictKeyExchangeViolation { .. } => protocol(
            "sent, or an attacker on the path inserted, a message that does not belong in a key exchange",
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
        Error::KeepaliveTimeout => failure(
            phase,
            Reason::ConnectionLost,
            format!("{name} no longer answers: the connection is dead"),
        ),
        Error::ConnectionTimeout | Error::InactivityTimeout | Error::Elapsed(_) => {
            failure(phase, Reason::TimedOut, format!("{name} took too long"))
        }
        Error::Disconnect | Error::HUP | Error::SendError | Error::RecvError => {
            failure(phase, Reason::ConnectionLost, format!("{name} closed the connection"))
        }
        Error::IO(fault) => lost(phase, fault, name),
        Error::Join(_) => failure(
            phase,
            Reason::Internal,
            format!("the connection to {name} ended by a fault of this program"),
        ),
        Error::NoHomeDir | Error::InvalidConfig(_) => {
            failure(phase, Reason::BadConfiguration, format!("the configuration of {name} cannot be used"))
        }
        // The library's documentation says that the enum may get more variants.
        #[allow(unreachable_patterns)]
        _ => protocol("sent a message that does not belong here"),
    }
}

/// Converts an error of the library from before the host proved its identity. The host's unencrypted text helps to
/// explain it, and the text of its disconnect message, if one came.
pub(crate) fn handshake(
    fault: &Error,
    heard: &ServerText,
    parting: Option<&str>,
    name: &str,
    place: &str,
) -> Failure {
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
            Reason::ClosedByServer,
            format!("{name} at {place} turned us away: {}", quoted(&said)),
            BUSY,
        );
    }
    if let Some(parting) = parting {
        return failure(
            Phase::Identity,
            Reason::ClosedByServer,
            format!("{name} at {place} ended the connection during the key exchange: {}", quoted(parting)),
        );
    }
    match (heard.version(), hung_up) {
        (None, _) if !said.is_empty() => advised(
            Phase::Identity,
            Reason::ProtocolError,
            format!("what answers for {name} at {place} does not speak SSH: it said {}", quoted(&said)),
            "check the port",
        ),
        (Some(version), _) if !heard.may_be_ssh_2() => failure(
            Phase::Identity,
            Reason::ProtocolError,
            format!("{name} at {place} does not speak SSH 2: it said {}", quoted(&version)),
        ),
        (None, true) => advised(
            Phase::Identity,
            Reason::ClosedByServer,
            format!("{name} at {place} hung up before it said anything"),
            BUSY,
        ),
        (Some(version), true) => advised(
            Phase::Identity,
            Reason::ClosedByServer,
            format!("{name} at {place} ({}) hung up during the key exchange", quoted(&version)),
            BUSY,
        ),
        _ => of(Phase::Identity, fault, name),
    }
}

/// Quotes the text of a peer, safe to print on a terminal.
pub(crate) fn quoted(text: &str) -> String {
    text::terminal::quoted(text.trim(), LONGEST_QUOTE)
}

/// What both sides have no common algorithm for, if the server has no host key of the types that were asked for.
const HOST_KEY: &str = "kind of host key";

/// Whether the server has no host key of the types that were asked for.
pub(crate) fn has_no_such_key(failure: &Failure) -> bool {
    failure.reason == Reason::NoCommonAlgorithm
        && failure.detail.starts_with(&format!("no {HOST_KEY} in common"))
}

fn no_algorithm(phase: Phase, kind: &AlgorithmKind, theirs: &[String], name: &str) -> Failure {
    let (what, option) = match kind {
        AlgorithmKind::Kex => ("key exchange", "KexAlgorithms"),
        AlgorithmKind::Key => (HOST_KEY, "HostKeyAlgorithms"),
        AlgorithmKind::Cipher => ("cipher", "Ciphers"),
        AlgorithmKind::Compression => ("compression", "Compression"),
        AlgorithmKind::Mac => ("MAC", "MACs"),
    };
    let theirs = quoted(&theirs.join(", "));
    advised(
        phase,
        Reason::NoCommonAlgorithm,
        format!("no {what} in common with {name}: it offers {theirs}"),
        &format!("update the server; or allow one of these with {option}, if we have it at all"),
    )
}

fn channel_refused(phase: Phase, why: &ChannelOpenFailure, name: &str) -> Failure {
    let (said, advice) = match why {
        ChannelOpenFailure::AdministrativelyProhibited => (
            "its configuration forbids it",
            // This advice is for a session; the code that opens a forward gives other advice.
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
        // If the timeout is not the kernel's, the error names what was waited for.
        io::ErrorKind::TimedOut if fault.get_ref().is_none() => "nothing came back".to_owned(),
        _ => fault.to_string(),
    };
    failure(phase, Reason::ConnectionLost, format!("the connection to {name} broke: {what}"))
}

/// Longest RSA key whose signatures the library verifies, in bits.
const LONGEST_RSA: usize = 8192;

const BUSY: &str = "sshd does so when too many connect at once (MaxStartups) or after failures from this address \
                    (PerSourcePenalties); a firewall may do it too: fewer at once, or wait a minute";

/// Maximum length of a quoted text, in characters as shown.
const LONGEST_QUOTE: usize = 300;
