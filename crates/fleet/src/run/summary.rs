//! What is said at the end of a run, on standard error.

use std::fmt::Write as _;

use logic::fleet::ending::{Ending, Remote};
use logic::fleet::nodeset;
use logic::fleet::verdict::{Status, groups};
use serde_json::{Value, json};

use super::progress::{bytes, seconds};
use super::{Again, Done, Outcome, Shown};

/// How a run ended, for a human.
#[must_use]
pub fn text(names: &[String], outcome: &Outcome) -> String {
    let mut text = endings(names, outcome);
    let left = outcome.endings.iter().any(|ending| ending.remote() == Remote::NeverStarted);
    let how = match outcome.again {
        Again::Fine => Some("again"),
        Again::InWaves => Some("again, in the same waves"),
        Again::NotOffered => None,
    };
    if let Some(how) = how.filter(|_| left) {
        // Another run may have begun meanwhile: the last one is not always ours.
        let id = outcome.id.as_ref().map(|id| format!(" --id {id}")).unwrap_or_default();
        let _ = writeln!(text, "{how}: penstock {} --again never-started{id}", command(outcome.done));
    }
    if !outcome.unleashed.is_empty() {
        let hosts: Vec<String> = outcome.unleashed.iter().map(|host| names[*host].clone()).collect();
        let _ = writeln!(
            text,
            "note: if penstock is killed, nothing ends the command on {}: no POSIX shell took it there, or /proc is not mounted; --no-leash \
             sends it without the watcher",
            fold(&hosts)
        );
    }
    for (host, why) in &outcome.lost {
        let _ = writeln!(text, "output lost of {}: {why}", names[*host]);
    }
    match outcome.output {
        Shown::Whole => {}
        Shown::GivenUp => text.push_str(
            "output lost: nobody took it after the run was stopped; the end is missing, and files of -o may be unfinished\n",
        ),
        Shown::Broken => text.push_str(
            "output lost: internal error: what writes it broke; files of -o may be unfinished; please report this\n",
        ),
    }
    if let Some(why) = &outcome.unrecorded {
        let _ = writeln!(
            text,
            "note: not all of this run is on record ({why}): for --last and --again it may have run where the end is missing"
        );
    }
    text
}

/// The same as one JSON object.
#[must_use]
pub fn json(names: &[String], outcome: &Outcome) -> Value {
    let groups = groups(names.iter().map(String::as_str).zip(&outcome.endings));
    let groups: Vec<Value> = groups
        .into_iter()
        .map(|group| {
            json!({
                "ended": group.title,
                "status": group.status.code(),
                "phase": group.phase.map(|phase| phase.word()),
                "detail": group.detail,
                "advice": group.advice,
                "hosts": group.hosts,
            })
        })
        .collect();
    let named =
        |hosts: &[usize]| hosts.iter().map(|host| names[*host].as_str()).collect::<Vec<_>>().join(",");
    let lost: Vec<Value> =
        outcome.lost.iter().map(|(host, why)| json!({ "host": names[*host], "why": why })).collect();
    let Counts { well, failed, never_started, unknown } = Counts::of(&outcome.endings);
    let mut value = json!({
        "event": "summary",
        "hosts": names.len(),
        "well": well,
        "failed": failed,
        "never_started": never_started,
        "status": outcome.status.code(),
        "seconds": outcome.elapsed.as_secs_f64(),
        "groups": groups,
        "unleashed": named(&outcome.unleashed),
        "lost": lost,
        "output": match outcome.output {
            Shown::Whole => "whole",
            Shown::GivenUp => "given-up",
            Shown::Broken => "broken",
        },
    });
    value[match outcome.done {
        Done::Ran => "may_have_run",
        Done::Put(_) | Done::Got(_) => "may_have_changed",
    }] = json!(unknown);
    if let (Some(value), Some(why)) = (value.as_object_mut(), &outcome.unrecorded) {
        value.insert("unrecorded".to_owned(), json!(why.to_string()));
    }
    if let (Some(value), Done::Put(moved) | Done::Got(moved)) = (value.as_object_mut(), outcome.done) {
        value.insert("files".to_owned(), json!(moved.files));
        value.insert("bytes".to_owned(), json!(moved.bytes));
    }
    value
}

/// Which command of ours does that.
fn command(done: Done) -> &'static str {
    match done {
        Done::Ran => "run",
        Done::Put(_) => "put",
        Done::Got(_) => "get",
    }
}

/// How many hosts ended how: the exit status names only the worst of it.
#[derive(Default)]
struct Counts {
    well: usize,
    failed: usize,
    never_started: usize,
    unknown: usize,
}

impl Counts {
    fn of(endings: &[Ending]) -> Self {
        let mut counts = Self::default();
        for ending in endings {
            *match ending.remote() {
                _ if ending.is_success() => &mut counts.well,
                Remote::Ended => &mut counts.failed,
                Remote::NeverStarted => &mut counts.never_started,
                Remote::Unknown => &mut counts.unknown,
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
    let Counts { well, failed, never_started, unknown } = Counts::of(endings);
    let mut text = format!("{} {}: {well} well", endings.len(), plural(endings.len()));
    for (count, words) in [(failed, "failed"), (never_started, "never started"), (unknown, unclear)] {
        if count > 0 {
            let _ = write!(text, ", {count} {words}");
        }
    }
    if let Done::Put(moved) | Done::Got(moved) = outcome.done {
        let files = if moved.files == 1 { "file" } else { "files" };
        let _ = write!(text, ", {} {files}, {}", moved.files, bytes(moved.bytes));
    }
    let _ = writeln!(text, "  ({})", seconds(outcome.elapsed));
    let groups = groups(names.iter().map(String::as_str).zip(endings));
    let mut headline = None;
    for group in &groups {
        let about = match group.status {
            Status::Unknown if outcome.done == Done::Ran => {
                "may have run, and may still run: look before you run it again"
            }
            Status::Unknown => "may have changed: copy again, or look there",
            Status::NeverStarted => "never started: safe to run again",
            Status::Identity => "not who they should be, or unknown: nothing was sent",
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
            let causes = if group.untold == 1 { "cause" } else { "causes" };
            let _ = write!(text, "\n    ... and {} other {causes}", group.untold);
        }
        text.push('\n');
    }
    text
}

fn fold(hosts: &[String]) -> String {
    nodeset::fold(hosts.iter().map(String::as_str))
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "host" } else { "hosts" }
}
