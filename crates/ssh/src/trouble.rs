//! What went wrong on a connection, in our words: no message of the SSH library reaches a user.

use logic::fleet::ending::{Failure, Phase, Reason, Remote};

use crate::target::Target;

/// The failure that `fault` is in `phase`.
pub(crate) fn of(phase: Phase, fault: &russh::Error, target: &Target) -> Failure {
    let reason = match fault {
        russh::Error::NoCommonAlgo { .. } => Reason::NoAlgorithm,
        russh::Error::Disconnect | russh::Error::HUP | russh::Error::IO(_) if phase < Phase::Authenticate => {
            Reason::TurnedAway
        }
        russh::Error::ChannelOpenFailure(_) | russh::Error::RequestDenied => Reason::ChannelRefused,
        russh::Error::Disconnect | russh::Error::HUP | russh::Error::IO(_) | russh::Error::SendError => {
            Reason::Lost
        }
        _ => Reason::Protocol,
    };
    failure(phase, reason, format!("{}: {fault}", target.name))
}

/// A failure with what is known of the remote process in that phase.
pub(crate) fn failure(phase: Phase, reason: Reason, detail: String) -> Failure {
    let remote = if phase < Phase::Start { Remote::NeverStarted } else { Remote::Unknown };
    Failure { phase, reason, detail, advice: None, remote }
}
