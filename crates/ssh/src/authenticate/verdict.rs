//! Makes one failure, with advice, from the steps of a log-in that failed.

use std::fmt::Write as _;

use hosts::fleet::ending::{Failure, Phase, Reason, Remote};

use super::attempt::{Answer, Attempt, Source, What};
use crate::keys::{Method, Named, OtherKeys};
use crate::target::Target;
use text::shell;
use text::terminal::escaped;

pub(super) fn failure(target: &Target, attempts: &[Attempt]) -> Failure {
    Failure {
        phase: Phase::Authenticate,
        reason: reason(target, attempts),
        detail: detail(target, attempts),
        advice: advice(target, attempts),
        remote: Remote::NotStarted,
    }
}

fn reason(target: &Target, attempts: &[Attempt]) -> Reason {
    let refused = attempts.iter().filter(|attempt| was_refused(attempt)).count();
    match attempts.last().map(|attempt| &attempt.answer) {
        Some(Answer::Silent(_)) => return Reason::TimedOut,
        Some(Answer::HungUp(_)) if refused == 0 => return Reason::ConnectionLost,
        Some(Answer::HungUp(_)) => return Reason::PermissionDenied,
        _ => {}
    }
    let ours = attempts.iter().filter(|attempt| matches!(attempt.answer, Answer::Unusable { .. }));
    // The reason is KeyUnusable if the user named the unusable key, or if the server accepted it. Other unusable keys
    // do not matter if the server refused a key that was offered.
    let missed = ours.clone().any(|attempt| names(target, attempt) || wanted(attempt));
    if missed || (refused == 0 && ours.count() > 0) { Reason::KeyUnusable } else { Reason::PermissionDenied }
}

fn detail(target: &Target, attempts: &[Attempt]) -> String {
    let (name, user) = (&target.name, escaped(&target.user, 64));
    let mut text = format!("log in to {name} as {user}: ");
    let offered = attempts.iter().filter(|attempt| was_offered(attempt)).count();
    match offered {
        0 => text.push_str("no key was offered"),
        1 => text.push_str("offered 1 key"),
        count => {
            let _ = write!(text, "offered {count} keys");
        }
    }
    let told = attempts.iter().filter(|attempt| is_worth_telling(attempt));
    // Keys that were not offered get their own list.
    let is_apart = |attempt: &&Attempt| offered > 0 && !was_offered(attempt) && attempt.what != What::Methods;
    let (apart, told): (Vec<&Attempt>, Vec<&Attempt>) = told.partition(is_apart);
    list(&mut text, ": ", &told);
    list(&mut text, "; not offered: ", &apart);
    if let Some(methods) = methods(attempts) {
        let _ = write!(text, "; the server accepts {}", methods.join(","));
    }
    text
}

/// Appends `before` and the first [`TOLD`] steps to the text.
fn list(text: &mut String, before: &str, told: &[&Attempt]) {
    for (at, attempt) in told.iter().take(TOLD).enumerate() {
        let _ = write!(text, "{}{attempt}", if at == 0 { before } else { ", " });
    }
    if told.len() > TOLD {
        let _ = write!(text, ", and {} more", told.len() - TOLD);
    }
}

fn advice(target: &Target, attempts: &[Attempt]) -> Option<String> {
    let user = escaped(&target.user, 64);
    let refused = attempts.iter().filter(|attempt| was_refused(attempt)).count();
    let hung_up = matches!(attempts.last().map(|attempt| &attempt.answer), Some(Answer::HungUp(_)));
    let too_many = matches!(attempts.last().map(|attempt| &attempt.answer),
        Some(Answer::HungUp(Some(said))) if said.contains("Too many authentication failures"));
    if too_many || (hung_up && refused >= 2) {
        return Some(
            "the server counts each key as a try and gave up: name the right one with IdentityFile, and set \
             IdentitiesOnly yes"
                .to_owned(),
        );
    }
    if matches!(attempts.last().map(|attempt| &attempt.answer), Some(Answer::Silent(_))) {
        return Some(
            "the server stopped answering while it checked who we are: it may wait for a directory, the DNS or a disk; \
             journalctl -u ssh there says"
                .to_owned(),
        );
    }
    if hung_up {
        return Some("the server's log says why: journalctl -u ssh".to_owned());
    }
    // Advice for a key that the user named or that the server accepted comes first, then advice for any key, then
    // general advice.
    let advised = |attempt: &&Attempt| matches!(&attempt.answer, Answer::Unusable { advice: Some(_), .. });
    let of_ours = attempts.iter().filter(advised);
    let named = of_ours.clone().find(|attempt| names(target, attempt) || wanted(attempt));
    if let Some(Answer::Unusable { advice, .. }) = named.map(|attempt| &attempt.answer) {
        return advice.clone();
    }
    let methods = methods(attempts);
    let asks_questions = target.keys.interactive == Method::Off
        && methods.is_some_and(|methods| methods.contains(&"keyboard-interactive"));
    let questions =
        Some("the server asks questions: set KbdInteractiveAuthentication yes for this host".to_owned());
    if let Some(methods) = &methods
        && !methods.contains(&"publickey")
    {
        if asks_questions {
            return questions;
        }
        return Some(format!(
            "the server accepts only {}: allow PubkeyAuthentication there (passwords are not used here)",
            methods.join(", ")
        ));
    }
    if let Some(attempt) =
        attempts.iter().find(|attempt| matches!(attempt.answer, Answer::RefusedSigned { .. }))
    {
        return Some(format!(
            "the server knows {} and refused the log-in all the same: is {user} locked, expired, or not in AllowUsers \
             there? journalctl -u ssh on the server says",
            attempt.source
        ));
    }
    let doubt = attempts.iter().find_map(|attempt| match &attempt.what {
        What::Certificate { doubt: Some(doubt), .. } if was_refused(attempt) => Some(doubt),
        _ => None,
    });
    if let Some(doubt) = doubt {
        return Some(format!("have the certificate signed anew: {doubt}"));
    }
    if attempts.iter().any(|attempt| matches!(attempt.answer, Answer::Partial { .. })) {
        if asks_questions {
            return questions;
        }
        return Some("the server wants more than one proof, and no other one of ours fits".to_owned());
    }
    if refused > 0 {
        let public = attempts.iter().find_map(|attempt| match (&attempt.what, &attempt.source) {
            (What::Key { .. }, Source::File(path)) if was_refused(attempt) => Some(path),
            (What::Key { .. }, Source::Agent { named_by: Some(path), .. }) if was_refused(attempt) => {
                Some(path)
            }
            _ => None,
        });
        let (host, port) = (escaped(&target.host, 255), target.port);
        let key = public.map(|path| format!("-i {} ", shell::path(path))).unwrap_or_default();
        return Some(format!(
            "is {user} the right user? If so, put the key there: ssh-copy-id {key}-p {port} {user}@{host}; if it is there \
             already, journalctl -u ssh on the server says what it dislikes (often the mode of ~/.ssh)"
        ));
    }
    if let Some(Answer::Unusable { advice, .. }) = of_ours.map(|attempt| &attempt.answer).next() {
        return advice.clone();
    }
    match target.keys.others {
        OtherKeys::Ignored => Some("IdentitiesOnly is set, and no IdentityFile can be used".to_owned()),
        OtherKeys::Offered => Some(
            "there is no key: make one with ssh-keygen -t ed25519, or start an agent that holds one"
                .to_owned(),
        ),
    }
}

/// Returns the methods that the server named in its last answer.
fn methods(attempts: &[Attempt]) -> Option<&Vec<&'static str>> {
    attempts.iter().rev().find_map(|attempt| match &attempt.answer {
        Answer::Refused { next } | Answer::RefusedSigned { next } | Answer::Partial { next } => Some(next),
        _ => None,
    })
}

fn was_refused(attempt: &Attempt) -> bool {
    attempt.what != What::Methods
        && matches!(attempt.answer, Answer::Refused { .. } | Answer::RefusedSigned { .. })
}

fn was_offered(attempt: &Attempt) -> bool {
    let is_key = matches!(attempt.what, What::Key { .. } | What::Certificate { .. } | What::File);
    let answered =
        was_refused(attempt) || matches!(attempt.answer, Answer::Partial { .. } | Answer::HungUp(_));
    is_key && (answered || wanted(attempt) || matches!(attempt.answer, Answer::Silent(_)))
}

/// Returns true if the server accepted the key, but penstock could not sign.
fn wanted(attempt: &Attempt) -> bool {
    let is_known = matches!(attempt.what, What::Key { .. } | What::Certificate { .. });
    is_known && matches!(attempt.answer, Answer::Unusable { .. })
}

fn is_worth_telling(attempt: &Attempt) -> bool {
    match attempt.what {
        What::Methods => matches!(attempt.answer, Answer::HungUp(_) | Answer::Silent(_)),
        What::AgentKeys => matches!(attempt.answer, Answer::Unusable { .. } | Answer::Holds(0)),
        _ => true,
    }
}

/// Returns true if the user named the file of this step.
fn names(target: &Target, attempt: &Attempt) -> bool {
    let Source::File(path) = &attempt.source else { return false };
    let named = |identity: &crate::keys::Identity| identity.named == Named::ByUser && identity.path == *path;
    target.keys.identities.iter().any(named) || target.keys.certificates.contains(path)
}

/// Maximum number of steps in one message.
const TOLD: usize = 8;
