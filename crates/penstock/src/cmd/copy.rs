//! `penstock put` and `penstock get`: copies files to and from many hosts, with `crates/fleet` and `crates/ssh`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use fleet::run::Job;
use fleet::run::copy::{Order, What};
use hosts::fleet::again::Maker;
use hosts::fleet::waves::StopIf;
use serde_json::{Value, json};
use ssh::{Allowance, Links, Tree};

use super::run::course::{Keyboard, PreparedRun};
use super::run::engines::EngineName;
use super::run::{again, engines, pace, selection, show};
use crate::output::{Failure, plain};

/// Copy files and directories to many hosts at once, over SSH (SFTP)
///
/// Every host gets every SOURCE. If DESTINATION is a directory there or ends in `/`, the sources are copied into it;
/// otherwise the only SOURCE gets this name. A relative DESTINATION begins in the home directory, as does `~/`. Modes
/// are kept, except set-user-id and similar bits, and symbolic links within directories; a directory that is there already
/// keeps its own mode.
#[derive(Debug, Clone, Args)]
#[command(after_help = PUT_HELP, override_usage = "penstock put [OPTIONS] SOURCE... DESTINATION")]
#[command(mut_args(as_a_copy_takes_it))]
pub(crate) struct PutArguments {
    /// Local files and directories, and last their destination on each host
    #[arg(value_name = "SOURCE... DESTINATION")]
    files: Vec<String>,
    #[command(flatten)]
    fleet: Fleet,
}

/// Copy files and directories from many hosts at once, over SSH (SFTP)
///
/// Files of each host are copied to DIRECTORY/HOST/NAME here. A relative REMOTE begins in the home directory there, as
/// does `~/`; wildcards are not expanded. Modes are kept, except set-user-id and similar bits; a directory that is here already keeps
/// its own mode.
#[derive(Debug, Clone, Args)]
#[command(after_help = GET_HELP, override_usage = "penstock get [OPTIONS] REMOTE... DIRECTORY")]
#[command(mut_args(as_a_copy_takes_it))]
pub(crate) struct GetArguments {
    /// Files and directories on the hosts, and last a local directory, which is created if necessary
    #[arg(value_name = "REMOTE... DIRECTORY")]
    files: Vec<String>,
    #[command(flatten)]
    fleet: Fleet,
    /// Limit of the bytes from each host: a number, with K, M, G or T behind it [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Limits")]
    max_size: Option<u64>,
    /// Limit of the files, directories and links from each host [default: 100000]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_files: Option<u64>,
    /// Also create symbolic links whose target is outside of what is copied
    #[arg(long, help_heading = "Limits")]
    all_links: bool,
}

/// Hides the options of `run` that a copy refuses, and the condition that compares outputs. The refusal explains more than
/// an unknown option would.
fn as_a_copy_takes_it(option: clap::Arg) -> clap::Arg {
    match option.get_id().as_str() {
        "engine" | "ssh" => option.hide(true),
        "stop_if" => option.help(STOP_IF).long_help(STOP_IF),
        _ => option,
    }
}

const STOP_IF: &str = "Start no further wave if this is true: failed>2% (of all hosts that are done, after each wave) or failed>3 \
                       (hosts). A host has failed if not everything was copied, for any reason";

/// Options that `put` and `get` share with `run`.
#[derive(Debug, Clone, Args)]
#[group(skip)]
struct Fleet {
    #[command(flatten)]
    hosts: selection::Arguments,
    /// One JSON object per line: the result of each host, and a summary
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// No progress, and no summary if all hosts succeeded
    #[arg(long, short, help_heading = "Output")]
    quiet: bool,
    #[command(flatten)]
    engine: engines::Arguments,
    #[command(flatten)]
    pace: pace::Arguments,
    /// Repeat the last copy for these of its hosts: not-started, failed (all that are not ok), or a SET
    #[arg(long, value_name = "HOSTS", conflicts_with_all = ["set", "exclude", "group", "hosts", "files"], help_heading = "Again")]
    again: Option<String>,
    /// Show the results of the last run or copy; with --json as one JSON object
    #[arg(long, help_heading = "Again")]
    last: bool,
    /// With --again or --last: the run with this id (shown by --last) instead of the last one
    #[arg(long, value_name = "RUN", help_heading = "Again")]
    id: Option<String>,
}

const PUT_HELP: &str = "\
Examples:
  penstock put -w 'web[1-3]' nginx.conf /etc/nginx/nginx.conf
  penstock put -g web --waves 1,10%,all --stop-if 'failed>0' site/ /srv/www/
  penstock put --again failed

Exit codes, the worst wins:
    0  every host has everything
    1  it failed on some host, and the host said so: files there are complete, no temporary file is left
    2  wrong usage, or a SOURCE that cannot be copied; nothing was sent
    3  some hosts were never reached: nothing was changed there
    4  the identity of some hosts is not verified; nothing was sent to them
    5  some hosts may have changed: the connection broke, or an answer did not come
    6  standard output could not be written to
  130  Ctrl-C or SIGTERM
  141  the reader of standard output is gone

A file is written as .NAME.0123abcd in the same directory, and renamed when it is complete: there is always either the old file or \
the new one. Where a host cannot rename over a file (OpenSSH can), the old file is moved aside for a moment. When \
it fails, after Ctrl-C and after --timeout, the temporary file is removed; if the connection broke it may stay, and its name is reported. \
The old file then stays. A SOURCE that changes during the copy is an error for the hosts that would get a mixture.

If penstock itself is killed (kill -9, power), the temporary file stays in the directory of its file, and is not reported. No \
later copy uses it or is hindered by it: find DIRECTORY -name '.*.????????' -mtime +0 lists what is older than a day.

Only files are replaced. Where there is a symbolic link to a file, the link stays and the file behind it is replaced, as cp and scp \
write through links; not in a directory that every user may write to. Named pipes, devices, sockets, and links to nothing or to a \
directory are an error, and stay. A link that is copied takes the place of a link or a file.

--again of one directory to a DESTINATION without `/` at its end is refused, but for not-started: the first time may have made \
DESTINATION, which would now take the directory in. Give the command anew with a `/` at the end of DESTINATION.

Only the built-in client copies files: --engine openssh and -S are for commands.";

const GET_HELP: &str = "\
Examples:
  penstock get -w 'web[1-3]' /etc/nginx/nginx.conf /var/log/nginx logs/
  penstock get -g db --max-size 20G backup.tar /backup
  penstock get --again not-started

Exit codes, the worst wins:
    0  everything is here
    1  it failed on some host: no such file, not readable, over a limit, or this disk is full
    2  wrong usage; nothing was asked
    3  some hosts were never reached
    4  the identity of some hosts is not verified; nothing was asked of them
    6  standard output could not be written to
  130  Ctrl-C or SIGTERM
  141  the reader of standard output is gone

Each host writes only below DIRECTORY/HOST: names that lead elsewhere, and links that lead out of what is \
copied, are an error (--all-links creates such links as they are on the host). In HOST, `/`, `%`, control characters and a dot at the \
begin are written as %2F and so on. A file is copied completely or not at all; complete files of a host that failed stay. A file that ends \
before its announced size is an error: it was truncated meanwhile, or, as in /sys, its size means nothing.

Only the built-in client copies files: --engine openssh and -S are for commands.";

pub(crate) fn put(arguments: &PutArguments) -> Result<(), Failure> {
    if arguments.fleet.last {
        return arguments.fleet.show_last();
    }
    let mut arguments = arguments.clone();
    let (names, _) = arguments.fleet.names(Maker::Put, &mut arguments.files)?;
    let (sources, destination) = split(&arguments.files, "penstock put -w web1 FILE /etc/")?;
    let sources: Vec<PathBuf> = sources.iter().map(PathBuf::from).collect();
    if let (Some(which), [source]) = (&arguments.fleet.again, &sources[..])
        && which != "not-started"
        && source.is_dir()
        && may_be_either(destination)
    {
        return Err(Failure::usage(format!(
            "where {} goes depends on whether {} is a directory there, and the last put may have created it\n  \
             hint: penstock put -w HOSTS {} DIRECTORY/, with the `/`: it goes into that directory, whether it is there or not",
            plain(&source.display().to_string()),
            plain(destination),
            plain(&source.display().to_string()),
        )));
    }
    let tree = Arc::new(Tree::read(&sources).map_err(Failure::usage)?);
    let shown: Vec<String> = sources.iter().map(|source| absolute(source)).collect();
    let about = json!({ "put": { "sources": shown, "to": destination } });
    let what = What::Put { tree, destination: destination.to_owned() };
    arguments.fleet.copy(names, what, about)
}

pub(crate) fn get(arguments: &GetArguments) -> Result<(), Failure> {
    if arguments.fleet.last {
        return arguments.fleet.show_last();
    }
    let mut arguments = arguments.clone();
    let (names, then) = arguments.fleet.names(Maker::Get, &mut arguments.files)?;
    arguments.max_size = arguments.max_size.or(then["max_size"].as_u64());
    arguments.max_files = arguments.max_files.or(then["max_files"].as_u64());
    arguments.all_links |= then["all_links"] == true;
    let (remotes, directory) = split(&arguments.files, "penstock get -w web1 /etc/hosts here/")?;
    let sources = named(remotes)?;
    let directory = PathBuf::from(directory);
    let was_there = directory.exists();
    std::fs::create_dir_all(&directory).map_err(|error| {
        Failure::usage(format!("cannot make the directory {}: {error}", directory.display()))
    })?;
    let allowance = Allowance {
        bytes: arguments.max_size.unwrap_or(MOST_BYTES),
        entries: arguments.max_files.unwrap_or(MOST_FILES),
        links: if arguments.all_links { Links::All } else { Links::Inside },
    };
    let about = json!({ "get": {
        "sources": remotes,
        "to": absolute(&directory),
        "max_size": allowance.bytes,
        "max_files": allowance.entries,
        "all_links": arguments.all_links,
    } });
    let what = What::Get { sources, directory: directory.clone(), allowance };
    let got = arguments.fleet.copy(names, what, about);
    if got.is_err() && !was_there {
        // Fails for a directory that is not empty, which stays.
        let _ = std::fs::remove_dir(&directory);
    }
    got
}

impl Fleet {
    /// Returns the hosts; with `--again` also restores the files and the options of the recorded copy.
    fn names(&mut self, command: Maker, files: &mut Vec<String>) -> Result<(Vec<String>, Value), Failure> {
        again::check_id(self.id.as_deref(), self.again.as_deref())?;
        let (names, then) = match &self.again {
            None => (self.hosts.names()?, Value::Null),
            Some(which) => {
                let (talk, id) = (self.show().talk(), self.id.as_deref());
                let (record, names) =
                    again::recall(command, id, which, &mut self.pace, &mut self.engine, talk)?;
                let then = &record.order[command.word()];
                let sources = then["sources"].as_array().into_iter().flatten().chain([&then["to"]]);
                *files = sources.filter_map(Value::as_str).map(str::to_owned).collect();
                (names, then.clone())
            }
        };
        if self.engine.engine() == EngineName::Openssh {
            return Err(Failure::usage(format!(
                "{} uses the built-in client: --engine openssh and -S are for commands only\n  hint: leave them out",
                command.word()
            )));
        }
        if matches!(self.pace.stop_if, Some(StopIf::Differs)) {
            return Err(Failure::usage(
                "--stop-if differs compares outputs, but a copy has none\n  hint: --stop-if 'failed>0'",
            ));
        }
        Ok((names, then))
    }

    fn show(&self) -> show::Arguments {
        show::Arguments { json: self.json, quiet: self.quiet, ..show::Arguments::default() }
    }

    /// Shows the record of a run, as `run --last` does: all commands share one journal.
    fn show_last(&self) -> Result<(), Failure> {
        again::show(self.id.as_deref(), &self.show())
    }

    fn copy(&self, names: Vec<String>, what: What, about: Value) -> Result<(), Failure> {
        let show = self.show();
        let course = PreparedRun {
            names,
            pace: &self.pace,
            engine: &self.engine,
            show: &show,
            about: again::with_course(about, &self.pace, &self.engine),
            on_stop: "stopping, and removing incomplete files; press Ctrl-C again to quit immediately",
            keyboard: Keyboard::Free,
            local_files: 1,
        };
        let (connect_timeout, timeout) = (self.pace.connect_timeout(), self.pace.timeout);
        course.run(|_, at_once| Ok(Job::Copy(Order::new(what, at_once, connect_timeout, timeout))))
    }
}

/// Reports whether the destination could be a directory on some hosts and a new file name on others.
fn may_be_either(destination: &str) -> bool {
    !matches!(destination.rsplit('/').next(), Some("" | "." | ".." | "~"))
}

fn split<'a>(files: &'a [String], example: &str) -> Result<(&'a [String], &'a str), Failure> {
    match files {
        [sources @ .., last] if !sources.is_empty() && files.iter().all(|name| !name.is_empty()) => {
            Ok((sources, last))
        }
        _ => Err(Failure::usage(format!("name what to copy, then the destination\n  hint: {example}"))),
    }
}

/// Pairs the remote paths with their local names.
fn named(remotes: &[String]) -> Result<Vec<(String, String)>, Failure> {
    let mut taken: HashMap<&str, &str> = HashMap::new();
    let mut named = Vec::new();
    for remote in remotes {
        let name = remote.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        if matches!(name, "" | "." | ".." | "~") || name.contains('\0') {
            return Err(Failure::usage(format!(
                "{} is not a name that the copy could have: write the name of the directory itself, as in ../NAME",
                plain(remote)
            )));
        }
        if let Some(first) = taken.insert(name, remote) {
            return Err(Failure::usage(format!(
                "{} and {} would go to the same destination",
                plain(first),
                plain(remote)
            )));
        }
        named.push((remote.clone(), name.to_owned()));
    }
    Ok(named)
}

fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size such as 500M or 20G");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "B" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        "T" | "TiB" => 1_u64 << 40,
        _ => return Err(wrong()),
    };
    digits.parse::<u64>().ok().and_then(|count| count.checked_mul(unit)).ok_or_else(wrong)
}

fn absolute(path: &Path) -> String {
    again::absolute(path).display().to_string()
}

const MOST_BYTES: u64 = 1 << 30;
const MOST_FILES: u64 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit_or_none() {
        assert_eq!(["0", "7B", "2K", "3MiB", "1G"].map(size), [0, 7, 2048, 3 << 20, 1 << 30].map(Ok));
        for wrong in ["", "G", "-1", "1.5G", "1g", "99999999T", "1X"] {
            assert!(size(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_comes_has_a_name_of_its_own_here() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let found = named(&words(&["/etc/hosts", "log/", "a b"])).unwrap();
        let names: Vec<_> = found.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["hosts", "log", "a b"]);
        for wrong in [&["/"][..], &["."], &["/a/.."], &["~"], &["/etc/x", "y/x/"]] {
            assert!(named(&words(wrong)).is_err(), "{wrong:?}");
        }
    }
}
