//! `penstock user deploy`: brings the keys of users to accounts on hosts.

use std::path::Path;

use access::users::{User, Users};
use clap::Args;
use hosts::authorized::audit::{Registry, Right};
use hosts::authorized::line::Line;
use hosts::authorized::script::{Scope, Task, Work, tag};
use hosts::fleet::verdict::Status;
use hosts::ssh::key::PublicKey;
use text::{shell, units};

use super::changed::{CHANGE_STOPS, LOOK_STOPS, Told};
use super::file;
use super::fleet::{Fleet, Host, Ran};
use super::owners::{Owners, keys};
use crate::output::Failure;

/// Bring the SSH keys of users to an account on hosts
///
/// Each file gets a line for each key, with `penstock:NAME` behind it. Other lines stay as they are. Lines with that mark whose key the
/// user does not have any more are removed. What is there already is not written again.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct Arguments {
    /// Users whose keys are brought
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Hosts, as with -w
    #[arg(long = "to", value_name = "HOSTS")]
    sets: Vec<String>,
    /// Account on the hosts; without it that of the log-in
    #[arg(long, value_name = "ACCOUNT")]
    account: Option<String>,
    /// Also where a line with the key of this log-in would be removed
    #[arg(long)]
    including_mine: bool,
    #[command(flatten)]
    fleet: Fleet,
}

const HELP: &str = "\
Examples:
  penstock user deploy ann --to 'web[1-3]' -l deploy
  penstock user deploy ann bob --to @web --account deploy -l root
  penstock user deploy ann --to db1 --account ann -l ops --sudo

The file is the first that AuthorizedKeysFile of sshd names, else ~/.ssh/authorized_keys. It is replaced at once: a new file beside it, \
with its owner, mode, access lists and SELinux label, is written to the disk and renamed. A symbolic link, a file of another user, and one \
that changes meanwhile stay as they are, and that is an error. A key that stands there without the mark stays with its options.

Exit codes, a higher one hides those below it:
    0  the keys are in the account on every host
    1  some host refused, and its line says why
    2  wrong usage; no host was contacted
    3  some hosts were not reached: nothing was changed there
    4  the identity of some hosts is not verified; nothing was sent to them
    5  some hosts may have been changed
  130  Ctrl-C or SIGTERM: the lines say what was changed
A run does no harm twice: the last line repeats it where it failed.";

/// Most bytes of all lines: they go to a program on the host as one variable.
const MOST: usize = 64 * 1024;

pub(super) fn run(file: &Path, arguments: &Arguments) -> Result<(), Failure> {
    let (_, users) = file::read(file)?;
    let wanted = Wanted::of(&users, file, &arguments.names)?;
    let mut fleet = arguments.fleet.clone();
    fleet.hosts.set.extend(arguments.sets.iter().cloned());
    if fleet.hosts.is_empty() {
        return Err(Failure::usage("no hosts\n  hint: --to 'web[1-3]', -g GROUP, or --hosts FILE"));
    }
    let names = fleet.names()?;
    let scope = arguments.account.clone().map_or(Scope::Own, Scope::Account);
    let look = Task { work: Work::Look, scope: scope.clone(), becomes: fleet.becomes() };
    let seen = fleet.run(&names, &look, LOOK_STOPS)?;
    let mut told = Told::default();
    let fit = fit(&seen, &wanted, arguments, &mut told);
    let ran = match seen.status {
        Status::Interrupted => Ran { hosts: Vec::new(), status: Status::Interrupted },
        _ => {
            let work = Work::Deploy { tags: wanted.tags, lines: wanted.lines };
            fleet.run(&fit, &Task { work, scope, becomes: fleet.becomes() }, CHANGE_STOPS)?
        }
    };
    for host in &ran.hosts {
        told.host(host);
        if host.trouble.is_none() && host.report.changes.is_empty() {
            let line = "NOT CHANGED: sshd there reads no file of keys".to_owned();
            told.failure(&host.name, line, Status::Failed);
        }
    }
    let hosts = units::count(names.len(), "host");
    let summary = |good, left| format!("{hosts}: {good} as they should be, {left} not\n");
    told.finish(&ran, names.len(), summary, |hosts| {
        let mut again = format!("penstock user deploy {} --to {hosts}", arguments.names.join(" "));
        if let Some(account) = &arguments.account {
            again += &format!(" --account {}", shell::word(account));
        }
        again + &fleet.options() + &file::named(file)
    })
}

/// The keys that `deploy` writes into `authorized_keys`.
struct Wanted {
    people: Vec<User>,
    owners: Owners,
    /// The marks of these people.
    tags: Vec<String>,
    /// Lines of `authorized_keys`: a key, and the mark that names its owner.
    lines: Vec<String>,
}

impl Wanted {
    fn of(users: &Users, file: &Path, names: &[String]) -> Result<Self, Failure> {
        let people = people(users, file, names)?;
        let tags = people.iter().map(|user| tag(&user.name)).collect();
        let lines = lines(&people)?;
        Ok(Self { people, owners: Owners::of(users)?, tags, lines })
    }
}

/// The hosts to which the keys are brought, of those that were looked at.
fn fit(seen: &Ran, wanted: &Wanted, arguments: &Arguments, told: &mut Told) -> Vec<String> {
    let mut fit = Vec::new();
    for host in &seen.hosts {
        told.host(host);
        for (_, reason) in &host.report.unknown_settings {
            let line =
                format!("sshd does not tell where its keys are ({reason}): ~/.ssh/authorized_keys was taken");
            told.line(&host.name, line);
        }
        if host.trouble.is_some() || told.failed.contains(&host.name) {
            continue;
        }
        match objection(host, wanted, arguments) {
            Some(why) => told.failure(&host.name, format!("NOT CHANGED: {why}"), Status::Failed),
            None => fit.push(host.name.clone()),
        }
    }
    fit
}

fn people(users: &Users, file: &Path, names: &[String]) -> Result<Vec<User>, Failure> {
    let one = |name: &String| {
        let user = users.find(name).ok_or_else(|| file::unknown(file, name))?;
        match &user.revoked {
            Some(date) => {
                Err(Failure::usage(format_args!("{name} was revoked on {date}: no key is brought to a host")))
            }
            None if user.ssh_keys.is_empty() => Err(Failure::usage(format_args!(
                "{name} has no SSH key\n  hint: penstock user key add {name} FILE.pub"
            ))),
            None => Ok(user.clone()),
        }
    };
    names.iter().map(one).collect()
}

/// The lines for the files: each key with the mark of its owner.
fn lines(people: &[User]) -> Result<Vec<String>, Failure> {
    let mut lines = Vec::new();
    for user in people {
        for (key, kept) in keys(user)?.iter().zip(&user.ssh_keys) {
            let line = format!("{key} {} {}", tag(&user.name), kept.comment());
            lines.push(line.trim_end().to_owned());
        }
    }
    match lines.iter().map(String::len).sum::<usize>() {
        size if size > MOST => Err(Failure::usage(format_args!(
            "the keys have {size} bytes together, and {MOST} are the most\n  hint: name fewer users"
        ))),
        _ => Ok(lines),
    }
}

/// Why the keys are not brought to a host that was looked at.
fn objection(host: &Host, wanted: &Wanted, arguments: &Arguments) -> Option<String> {
    let account = arguments.account.as_deref().unwrap_or(&host.report.login);
    for user in &wanted.people {
        if let Right::Others(accounts) = wanted.owners.right(&user.name, account, &host.name) {
            let name = &user.name;
            return Some(format!("{account} is no account of {name}, whose accounts are {accounts}"));
        }
    }
    if arguments.including_mine {
        return None;
    }
    let keys: Vec<PublicKey> = wanted.lines.iter().filter_map(|line| line.parse().ok()).collect();
    let files = host.report.files.iter().flat_map(|file| &file.lines);
    let mut goes = files.filter_map(|line| Line::parse(line).ok().flatten()).filter(|line| {
        line.comment.split(' ').next().is_some_and(|word| wanted.tags.iter().any(|tag| tag == word))
            && !keys.contains(&line.key)
    });
    let is_mine = |line: &Line| host.log_in.is_none_or(|mine| mine == line.key.fingerprint());
    goes.any(|line| is_mine(&line)).then(|| {
        "it would remove the key of this log-in, or one that may be it: --including-mine removes it too"
            .to_owned()
    })
}
