//! `penstock user audit`: which keys are on the hosts, and what is wrong with them.

use std::fmt::Write as _;
use std::path::Path;

use clap::Args;
use hosts::authorized::audit::{Finding, Level, audit, fold};
use hosts::authorized::script::{Scope, Task, Work};
use hosts::fleet::verdict::Status;
use serde_json::{Value, json};
use text::units;

use super::file;
use super::fleet::{Fleet, Host, Ran, folded};
use super::owners::Owners;
use crate::output::{Failure, plain, print, print_failed, print_json};

/// Which SSH keys are on the hosts, whose are they, and do servers accept passwords?
///
/// Reads the files of keys of all accounts (as root, or with --sudo; else of the account of the log-in), at the places that `sshd -T`
/// names, and changes nothing. It says what it could not see.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct Arguments {
    /// Hosts, as with -w; without any those of `penstock host list`
    #[arg(value_name = "HOSTS")]
    sets: Vec<String>,
    #[command(flatten)]
    fleet: Fleet,
    /// One JSON object: the findings, and the hosts that were not looked at
    #[arg(long, help_heading = "Output")]
    json: bool,
}

const HELP: &str = "\
Examples:
  penstock user audit
  penstock user audit 'web[1-3],db1' -l root
  penstock user audit -g web -l ops --sudo --json

A line is a finding: hosts, account (* for all), FILE:LINE, what, and what to do; equal findings of several hosts are one line.
  fault     revoked-owner, unknown-owner, shared-key, wrong-account, weak-key (DSA, RSA below 2048 bits), passwords
  warning   no-key (a line without a key), small-key (RSA below 3072 bits), root-login
  not-seen  accounts, files, settings, and other sources of keys that could not be looked at

Exit codes, a higher one hides those below it:
    0  all was seen, and there is no fault
    1  there are faults
    2  wrong usage; no host was contacted
    3  not all was seen: see the lines with not-seen, and the hosts that were not reached
    4  the identity of some hosts is not verified; nothing was sent to them
    5  some host did not answer to the end
  130  Ctrl-C or SIGTERM";

pub(super) fn run(file: &Path, arguments: &Arguments) -> Result<(), Failure> {
    let users = file::read_owners(file)?;
    let owners = Owners::of(&users)?;
    let mut fleet = arguments.fleet.clone();
    fleet.hosts.set.extend(arguments.sets.iter().cloned());
    let names = fleet.names()?;
    let task = Task { work: Work::Look, scope: Scope::All, becomes: fleet.becomes() };
    let ran = fleet.run(
        &names,
        &task,
        "stopping: no more is read from the hosts; press Ctrl-C again to quit immediately",
    )?;
    let mut all = Vec::new();
    for host in &ran.hosts {
        all.extend(audit(&host.name, &host.report, &owners).into_iter().map(|one| (host.name.clone(), one)));
    }
    let folded = fold(all);
    let status = status(&ran, &folded);
    let keys = ran.hosts.iter().map(keys).sum();
    let text = match arguments.json {
        true => as_json(&ran, &folded, status, keys),
        false => as_text(&ran, &folded, keys),
    };
    match (status, arguments.json) {
        (Status::Ok, true) => print_json(&text),
        (Status::Ok, false) => print(&text),
        (status, true) => Err(print_failed(&text::terminal::json(&text), status.code())),
        (status, false) => Err(print_failed(&text, status.code())),
    }
}

type Folded = [(Vec<String>, Finding)];

fn status(ran: &Ran, findings: &Folded) -> Status {
    let worst = findings.iter().map(|(_, finding)| match finding.kind.level() {
        Level::Fault => Status::Failed,
        Level::Warning => Status::Ok,
        Level::NotSeen => Status::NotStarted,
    });
    // What a host refused, such as sudo, is not seen either.
    let own = if ran.status == Status::Failed { Status::NotStarted } else { ran.status };
    worst.max().unwrap_or(Status::Ok).max(own)
}

fn keys(host: &Host) -> usize {
    let files = host.report.files.iter().flat_map(|file| &file.lines);
    files.filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#')).count()
}

/// The hosts on which the script did not come to its end, by what they said.
fn troubles(ran: &Ran) -> Vec<(String, Vec<&str>)> {
    let mut all: Vec<(String, Vec<&str>)> = Vec::new();
    for host in &ran.hosts {
        let Some(trouble) = &host.trouble else { continue };
        match all.iter_mut().find(|(told, _)| told == trouble) {
            Some((_, hosts)) => hosts.push(&host.name),
            None => all.push((trouble.clone(), vec![&host.name])),
        }
    }
    all
}

fn as_text(ran: &Ran, findings: &Folded, keys: usize) -> String {
    let mut out = String::new();
    for (hosts, finding) in findings {
        let account = if finding.account.is_empty() { "-" } else { &finding.account };
        let place = if finding.place.is_empty() { "-" } else { &finding.place };
        let level = match finding.kind.level() {
            Level::Fault => finding.kind.word().to_owned(),
            Level::Warning => format!("warning {}", finding.kind.word()),
            Level::NotSeen => "not-seen".to_owned(),
        };
        let line = format!("{account} {place}  {level}: {}; {}", finding.what, finding.to_do);
        let _ = writeln!(out, "{} {}", folded(hosts), plain(&line));
    }
    for (trouble, hosts) in troubles(ran) {
        let _ = writeln!(out, "{} - -  not-seen: {}", folded(&hosts), plain(&trouble));
    }
    let count = |level| findings.iter().filter(|(_, finding)| finding.kind.level() == level).count();
    let seen = ran.hosts.iter().filter(|host| host.trouble.is_none()).count();
    let _ = writeln!(
        out,
        "{seen} of {} looked at, {}: {}, {}, {} not seen",
        units::count(ran.hosts.len(), "host"),
        units::count(keys, "key"),
        units::count(count(Level::Fault), "fault"),
        units::count(count(Level::Warning), "warning"),
        count(Level::NotSeen) + ran.hosts.len() - seen,
    );
    out
}

fn as_json(ran: &Ran, findings: &Folded, status: Status, keys: usize) -> String {
    let findings = findings.iter().map(|(hosts, finding)| {
        json!({
            "hosts": hosts,
            "level": finding.kind.level().word(),
            "finding": finding.kind.word(),
            "account": finding.account,
            "place": finding.place,
            "what": finding.what,
            "to_do": finding.to_do,
            "fingerprint": finding.fingerprint,
            "owners": finding.owners,
        })
    });
    let unseen = troubles(ran).into_iter().map(|(reason, hosts)| json!({ "hosts": hosts, "reason": reason }));
    let all = json!({
        "hosts": ran.hosts.iter().map(|host| host.name.as_str()).collect::<Value>(),
        "keys": keys,
        "findings": findings.collect::<Value>(),
        "unseen": unseen.collect::<Value>(),
        "exit_code": status.code(),
    });
    format!("{all}\n")
}
