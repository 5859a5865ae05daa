//! The summary at the end of a run, on standard error.

use std::fmt::Write as _;
use text::units;

use hosts::fleet::ending::{Ending, Remote};
use hosts::fleet::nodeset;
use hosts::fleet::verdict::{Status, groups};
use serde_json::{Value, json};

use super::{Again, Done, Outcome, Shown};

/// The summary as text.
#[must_use]
pub fn text(names: &[String], outcome: &Outcome) -> String {
    let mut text = endings(names, outcome);
    let left = outcome.endings.iter().any(|ending| ending.remote() == Remote::NotStarted);
    let how = match outcome.again {
        Again::Fine => Some("again"),
        Again::InWaves => Some("again, in the same waves"),
        Again::NotOffered => None,
    };
    // The hint names the run: another run may have started since, so the newest run need not be this one.
    let id = outcome.id.as_ref().map(|id| format!(" --id {id}")).unwrap_or_default();
    if let Some(how) = how.filter(|_| left) {
        let _ = writeln!(text, "{how}: penstock {} --again not-started{id}", command(outcome.done));
    }
    let failed =
        outcome.endings.iter().any(|ending| !ending.is_success() && ending.remote() == Remote::Ended);
    // A copy of one directory to many hosts may be refused, depending on its destination.
    let is_repeatable = failed && !matches!(outcome.done, Done::Put(_));
    if let Some(how) = how.filter(|_| is_repeatable) {
        let how = if left { "again, also where it failed" } else { how };
        let _ = writeln!(text, "{how}: penstock {} --again failed{id}", command(outcome.done));
    }
    if !outcome.unwatched.is_empty() {
        let hosts: Vec<String> = outcome.unwatched.iter().map(|host| names[*host].clone()).collect();
        let _ = writeln!(
            text,
            "note: if penstock is killed, the command keeps running on {}: there is no POSIX shell, or /proc is not mounted; --no-watcher \
             turns the watcher off",
            fold(&hosts)
        );
    }
    for (host, why) in &outcome.lost {
        let _ = writeln!(text, "output of {} lost: {why}", names[*host]);
    }
    match outcome.output {
        Shown::Complete => {}
        Shown::Truncated => text.push_str(
            "output lost: its reader did not take it after the run was stopped; the end is missing, and files of -o may be incomplete\n",
        ),
        Shown::InternalError => text.push_str(
            "output lost: internal error: the thread that writes it failed; files of -o may be incomplete; please report this\n",
        ),
    }
    if let Some(why) = &outcome.record_error {
        let _ = writeln!(
            text,
            "note: the record of this run is incomplete ({why}): --last and --again show hosts without a recorded end as \"may have run\""
        );
    }
    text
}

/// The summary as one JSON object.
#[must_use]
pub fn json(names: &[String], outcome: &Outcome) -> Value {
    let groups = groups(names.iter().map(String::as_str).zip(&outcome.endings));
    let groups: Vec<Value> = groups
        .into_iter()
        .map(|group| {
            json!({
                "ending": group.title,
                "exit_code": group.status.code(),
                "phase": group.phase.map(|phase| phase.word()),
                "detail": group.detail,
                "advice": group.advice,
                "hosts": group.hosts,
            })
        })
        .collect();
    let unwatched: Vec<&str> = outcome.unwatched.iter().map(|host| names[*host].as_str()).collect();
    let output_lost: Vec<Value> =
        outcome.lost.iter().map(|(host, why)| json!({ "host": names[*host], "reason": why })).collect();
    let Counts { ok, failed, not_started, may_have_run } = Counts::of(&outcome.endings);
    let mut value = json!({
        "event": "summary",
        "hosts": names.len(),
        "ok": ok,
        "failed": failed,
        "not_started": not_started,
        "may_have_run": may_have_run,
        "exit_code": outcome.status.code(),
        "seconds": outcome.elapsed.as_secs_f64(),
        "groups": groups,
        "unwatched": unwatched,
        "output_lost": output_lost,
        "output": match outcome.output {
            Shown::Complete => "complete",
            Shown::Truncated => "truncated",
            Shown::InternalError => "internal-error",
        },
    });
    if let (Some(value), Some(why)) = (value.as_object_mut(), &outcome.record_error) {
        value.insert("record_error".to_owned(), json!(why.to_string()));
    }
    if let (Some(value), Done::Put(moved) | Done::Got(moved)) = (value.as_object_mut(), outcome.done) {
        value.insert("files".to_owned(), json!(moved.files));
        value.insert("bytes".to_owned(), json!(moved.bytes));
    }
    value
}

/// The subcommand of penstock that made the run.
fn command(done: Done) -> &'static str {
    match done {
        Done::Ran => "run",
        Done::Put(_) => "put",
        Done::Got(_) => "get",
    }
}

/// Number of hosts with each result; the exit status covers only the worst result.
#[derive(Default)]
struct Counts {
    ok: usize,
    failed: usize,
    not_started: usize,
    may_have_run: usize,
}

impl Counts {
    fn of(endings: &[Ending]) -> Self {
        let mut counts = Self::default();
        for ending in endings {
            *match ending.remote() {
                _ if ending.is_success() => &mut counts.ok,
                Remote::Ended => &mut counts.failed,
                Remote::NotStarted => &mut counts.not_started,
                Remote::MayHaveRun => &mut counts.may_have_run,
            } += 1;
        }
        counts
    }
}

fn endings(names: &[String], outcome: &Outcome) -> String {
    let endings = &outcome.endings;
    let unclear = match outcome.done {
        Done::Ran => "may have run",
        Done::Put(_) | Done::Got(_) => "may have changed",
    };
    let Counts { ok, failed, not_started, may_have_run } = Counts::of(endings);
    let mut text = format!("{}: {ok} ok", units::count(endings.len(), "host"));
    for (count, words) in [(failed, "failed"), (not_started, "not started"), (may_have_run, unclear)] {
        if count > 0 {
            let _ = write!(text, ", {count} {words}");
        }
    }
    if let Done::Put(moved) | Done::Got(moved) = outcome.done {
        let files = usize::try_from(moved.files).unwrap_or(usize::MAX);
        let _ = write!(text, ", {}, {}", units::count(files, "file"), units::bytes(moved.bytes));
    }
    let _ = writeln!(text, "  ({})", units::elapsed(outcome.elapsed));
    let groups = groups(names.iter().map(String::as_str).zip(endings));
    let mut headline = None;
    for group in &groups {
        let about = match group.status {
            Status::MayHaveRun if outcome.done == Done::Ran => {
                "may have run, and may still run: check before you run it again"
            }
            Status::MayHaveRun => "may have changed: copy again, or check there",
            Status::NotStarted => "not started: safe to run again",
            Status::Identity => "identity not verified: nothing was sent",
            _ => "failed",
        };
        if headline != Some(about) {
            let _ = writeln!(text, "{about}");
            headline = Some(about);
        }
        let _ = write!(text, "  {} ({}): {}", group.title, group.hosts.len(), fold(&group.hosts));
        if let Some(detail) = &group.detail {
            let first = if group.hosts.len() > 1 && !detail.contains(&group.hosts[0]) {
                format!("{}: ", group.hosts[0])
            } else {
                String::new()
            };
            let _ = write!(text, "\n    {first}{detail}");
        }
        let mut advised = Vec::from_iter(&group.advice);
        if let Some(advice) = &group.advice {
            let _ = write!(text, "\n    {advice}");
        }
        for cause in &group.others {
            let first = if cause.detail.contains(&cause.host) { "" } else { &format!("{}: ", cause.host) };
            let _ = write!(text, "\n    {first}{}", cause.detail);
            if let Some(advice) = cause.advice.as_ref().filter(|advice| !advised.contains(advice)) {
                let _ = write!(text, "\n    {advice}");
                advised.push(advice);
            }
        }
        if group.untold > 0 {
            let _ = write!(text, "\n    ... and {}", units::count(group.untold, "other cause"));
        }
        text.push('\n');
    }
    text
}

fn fold(hosts: &[String]) -> String {
    nodeset::fold(hosts.iter().map(String::as_str))
}
