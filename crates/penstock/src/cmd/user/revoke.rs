//! `penstock user revoke`: takes all keys of a user from all hosts, and all rights in the file of users.

use std::path::Path;

use access::users::User;
use base64ct::{Base64, Encoding};
use clap::Args;
use hosts::authorized::line::Line;
use hosts::authorized::report::Report;
use hosts::authorized::script::{Scope, Task, Work, tag};
use hosts::fleet::verdict::Status;
use hosts::ssh::key::PublicKey;
use text::units;

use super::changed::{CHANGE_STOPS, LOOK_STOPS, Told};
use super::file;
use super::fleet::{Fleet, Host, Ran, folded};
use super::owners::keys;
use crate::output::{Failure, complain, plain};

/// Remove all SSH keys of a user from all accounts of hosts, and the user's rights
///
/// The user stays in the file with the keys and the date, so that `user audit` finds what is left, and has no password, role, group,
/// principal or certificate there any more.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct Arguments {
    /// Name of the user
    name: String,
    /// Also remove the key with which this command logs in to a host
    #[arg(long)]
    including_mine: bool,
    #[command(flatten)]
    fleet: Fleet,
}

const HELP: &str = "\
Examples:
  penstock user revoke ann -l root
  penstock user revoke ann -w 'web[1-3]' -l ops --sudo

Without hosts it is those of `penstock host list`. All accounts are looked at as root, or with --sudo; else only that of the log-in, which is \
an error. Lines with a key of the user, also with options before it, and lines that `user deploy` has marked are removed; other lines \
stay.

What it does not do: sessions that are open stay open, and so do connections that an `ssh` of the user shares (ControlMaster); keys \
that a command gives to sshd (AuthorizedKeysCommand), certificates of a trusted CA, and `roles` of a server's configuration are not changed. \
It says where sshd has such sources. Tokens for one-time passwords stay good where a program asks about them without the user's name \
(penstock otp revoke), and bearer tokens without an owner stay good (penstock user token revoke).

Nothing at all is changed where one of the keys is that of this log-in, so that the way in stays: --including-mine.

Exit codes, a higher one hides those below it:
    0  no key of the user is left on any host
    1  some host refused or could not be seen as a whole, and its line says why
    2  wrong usage, or the key of this log-in is among them: nothing was changed
    3  some hosts were not reached: nothing was changed there
    4  the identity of some hosts is not verified; nothing was sent to them
    5  some hosts may have been changed
  130  Ctrl-C or SIGTERM: the lines say what was changed";

pub(super) fn run(file: &Path, arguments: &Arguments) -> Result<(), Failure> {
    let (text, mut users) = file::read(file)?;
    let name = &arguments.name;
    let mut user = users.find(name).cloned().ok_or_else(|| file::unknown(file, name))?;
    let keys = keys(&user)?;
    let fleet = &arguments.fleet;
    let names = match keys.is_empty() {
        // There may be lines with the mark of the user all the same.
        true if fleet.hosts.is_empty() => Vec::new(),
        _ => fleet.names()?,
    };
    let look = Task { work: Work::Look, scope: Scope::All, becomes: fleet.becomes() };
    let seen = fleet.run(&names, &look, LOOK_STOPS)?;
    if seen.status == Status::Interrupted {
        complain("stopped: nothing was changed\n");
        return Err(Failure::Status(Status::Interrupted.code()));
    }
    let tag = tag(name);
    if !arguments.including_mine {
        refuse_own(&seen, &keys, &tag)?;
    }
    mark(file, &mut user, |user| {
        users.put(user.clone());
        file::write(file, &users.to_string(), text.as_deref())
    })?;
    let mut told = Told::default();
    let (fit, clean) = fit(&seen, &keys, &tag, &mut told);
    let blobs = keys.iter().map(|key| Base64::encode_string(key.blob())).collect();
    let work = Work::Revoke { tag: tag.clone(), blobs };
    let change = Task { work, scope: Scope::All, becomes: fleet.becomes() };
    let ran = fleet.run(&fit, &change, CHANGE_STOPS)?;
    for host in &ran.hosts {
        told.host(host);
        overlooked(&mut told, host);
        let left = left(&host.report, &keys, &tag);
        if host.trouble.is_none() && left > 0 {
            let line = format!("{} of {name} left", units::count(left, "key"));
            told.failure(&host.name, line, Status::Failed);
        }
    }
    let hosts = units::count(names.len(), "host");
    let summary = |good, left| {
        format!(
            "{name} is revoked; {hosts}: {good} without a key of {name} ({clean} had none), {left} not\nOpen sessions of {name} stay open.\n"
        )
    };
    told.finish(&ran, names.len(), summary, |hosts| {
        format!("penstock user revoke {name} -w {hosts}{}{}", fleet.options(), file::named(file))
    })
}

/// The hosts that have keys of the user, of those that were looked at, and the number of those that have none.
fn fit(seen: &Ran, keys: &[PublicKey], tag: &str, told: &mut Told) -> (Vec<String>, usize) {
    let (mut fit, mut clean) = (Vec::new(), 0);
    for host in &seen.hosts {
        told.host(host);
        let has_some = left(&host.report, keys, tag) > 0;
        match (host.trouble.is_none(), has_some) {
            (true, true) => fit.push(host.name.clone()),
            (true, false) => {
                clean += 1;
                overlooked(told, host);
            }
            (false, _) => {}
        }
    }
    (fit, clean)
}

/// Takes the rights of the user away in the file, before any host is changed: what is left on hosts is found by it.
fn mark(
    file: &Path,
    user: &mut User,
    write: impl FnOnce(&User) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if user.revoked.is_some() {
        return Ok(());
    }
    user.revoke(&jiff::Zoned::now().date().to_string());
    write(user).map_err(|failure| match failure {
        Failure::Runtime(error) => Failure::Runtime(error.context(format!(
            "no host was changed: {} could not be written",
            plain(&file.display().to_string())
        ))),
        other => other,
    })
}

/// Number of lines that have a key of the user, or the mark.
fn left(report: &Report, keys: &[PublicKey], tag: &str) -> usize {
    lines(report).filter(|(_, line)| is_of(line, keys, tag)).count()
}

fn is_of(line: &Line, keys: &[PublicKey], tag: &str) -> bool {
    keys.contains(&line.key) || line.comment.split(' ').next() == Some(tag)
}

/// Lines with a key, and their accounts.
fn lines(report: &Report) -> impl Iterator<Item = (&str, Line)> {
    report.files.iter().flat_map(|file| {
        let lines = file.lines.iter().filter_map(|line| Line::parse_up_to(line, usize::MAX).ok().flatten());
        lines.map(|line| (file.account.as_str(), line))
    })
}

/// Says what may let the user in and was not looked at.
fn overlooked(told: &mut Told, host: &Host) {
    let report = &host.report;
    if report.uid.is_some_and(|uid| uid != 0) {
        let line = format!("only the account {} was looked at: log in as root, or --sudo", report.login);
        told.failure(&host.name, line, Status::Failed);
    }
    for (account, reason, path) in &report.unseen {
        told.failure(&host.name, format!("{account} {path}: NOT SEEN: {reason}"), Status::Failed);
    }
    for (_, reason) in &report.unknown_settings {
        let line = format!(
            "NOT SEEN: sshd does not tell where its keys are ({reason}): ~/.ssh/authorized_keys was looked at"
        );
        told.failure(&host.name, line, Status::Failed);
    }
    for (name, what) in [
        ("authorizedkeyscommand", "sshd also asks a command for keys"),
        ("trustedusercakeys", "sshd also trusts certificates of"),
    ] {
        if let Some(value) = report.setting("", name).filter(|value| *value != "none" && !value.is_empty()) {
            told.line(&host.name, format!("{what}: {value}"));
        }
    }
}

/// Refuses to remove the key with which this command has logged in, or, where another program has, a key of its account.
fn refuse_own(seen: &Ran, keys: &[PublicKey], tag: &str) -> Result<(), Failure> {
    let is_mine = |host: &&Host| {
        let mut lines = lines(&host.report).filter(|(_, line)| is_of(line, keys, tag));
        match host.log_in {
            Some(mine) => lines.any(|(_, line)| line.key.fingerprint() == mine),
            None => lines.any(|(account, _)| account == host.report.login || account == "*"),
        }
    };
    let mine: Vec<&str> = seen.hosts.iter().filter(is_mine).map(|host| host.name.as_str()).collect();
    if mine.is_empty() {
        return Ok(());
    }
    Err(Failure::usage(format_args!(
        "this command logs in to {} with one of these keys, or may do so: nothing was changed\n  \
         hint: log in with another key (-l, -F), or --including-mine",
        folded(&mine)
    )))
}
