//! The ending of a host as a JSON object, for `--json` and for the journal.

use hosts::fleet::ending::{Ending, Remote};
use hosts::fleet::verdict::{Status, title};
use serde_json::{Value, json};

/// `status` is the exit status that this host contributes to the exit status of the run.
#[must_use]
pub(super) fn as_json(ending: &Ending) -> Value {
    let mut value = json!({ "result": result(ending), "ending": title(ending), "exit_code": Status::of(ending).code(), "remote": remote(ending.remote()) });
    let extra = match ending {
        Ending::Exited(code) => json!({ "exit_status": code }),
        Ending::Signalled { signal, .. } => json!({ "signal": signal }),
        Ending::Failed(failure) => json!({
            "phase": failure.phase.word(),
            "reason": failure.reason.word(),
            "detail": failure.detail,
            "advice": failure.advice,
        }),
    };
    if let (Some(value), Value::Object(extra)) = (value.as_object_mut(), extra) {
        value.extend(extra);
    }
    value
}

#[must_use]
pub(super) fn remote(remote: Remote) -> &'static str {
    match remote {
        Remote::NotStarted => "not-started",
        Remote::Ended => "ended",
        Remote::MayHaveRun => "may-have-run",
    }
}

/// The word for the result of a host; `--again` chooses hosts by it.
fn result(ending: &Ending) -> &'static str {
    match ending.remote() {
        _ if ending.is_success() => "ok",
        Remote::Ended => "failed",
        unclear => remote(unclear),
    }
}
