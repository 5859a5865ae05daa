//! `penstock put` and `penstock get`: files to and from many hosts at once. The copying is in `crates/fleet` and `crates/ssh`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use fleet::run::Job;
use fleet::run::copy::{Order, What};
use logic::fleet::waves::StopIf;
use serde_json::{Value, json};
use ssh::{Allowance, Links, Tree};

use super::run::course::{Course, Keyboard};
use super::run::{EngineName, again, engines, hosts, pace, show};
use crate::output::{Failure, plain};

/// Copy files and directories to many hosts at once, over SSH (SFTP)
///
/// Every host gets every SOURCE. DESTINATION takes them in if it is a directory there or ends in `/`; else the only SOURCE gets
/// this name. It begins in the home directory, as does `~/`. Modes are kept, and symbolic links within directories.
#[derive(Debug, Clone, Args)]
#[command(after_help = PUT_HELP, override_usage = "penstock put [OPTIONS] SOURCE... DESTINATION")]
pub struct PutArguments {
    /// Files and directories here, and last where they go on each host
    #[arg(value_name = "SOURCE... DESTINATION")]
    files: Vec<String>,
    #[command(flatten)]
    fleet: Fleet,
}

/// Copy files and directories from many hosts at once, over SSH (SFTP)
///
/// What each host has goes to DIRECTORY/HOST/NAME here. A REMOTE begins in the home directory there, as does `~/`; it is taken
/// as it is, without wildcards. Modes are kept, but for set-user-id and its like.
#[derive(Debug, Clone, Args)]
#[command(after_help = GET_HELP, override_usage = "penstock get [OPTIONS] REMOTE... DIRECTORY")]
pub struct GetArguments {
    /// Files and directories on the hosts, and last a directory here, which is made
    #[arg(value_name = "REMOTE... DIRECTORY")]
    files: Vec<String>,
    #[command(flatten)]
    fleet: Fleet,
    /// Take at most so many bytes of each host: a number, K, M, G or T behind it [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Limits")]
    max_size: Option<u64>,
    /// Take at most so many files, directories and links of each host [default: 100000]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_files: Option<u64>,
    /// Also make symbolic links that lead out of what is copied
    #[arg(long, help_heading = "Limits")]
    all_links: bool,
}

/// What both have in common with `run`.
#[derive(Debug, Clone, Args)]
#[group(skip)]
struct Fleet {
    #[command(flatten)]
    hosts: hosts::Arguments,
    /// One JSON object per line: what came of each host, and a summary
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// No progress, and no summary if all went well
    #[arg(long, short, help_heading = "Output")]
    quiet: bool,
    #[command(flatten)]
    engine: engines::Arguments,
    #[command(flatten)]
    pace: pace::Arguments,
    /// The last copy again, for these of its hosts: never-started, failed (all that did not end well), or a SET
    #[arg(long, value_name = "HOSTS", conflicts_with_all = ["set", "exclude", "group", "hosts", "files"], help_heading = "Again")]
    again: Option<String>,
    /// Show what the last run or copy did; with --json as one JSON object
    #[arg(long, help_heading = "Again")]
    last: bool,
    /// With --again or --last: not the last run, but the one with this id, as --last shows it
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
    1  it failed somewhere, and the host said so: what it had is whole, no temporary file is left
    2  wrong usage, or a SOURCE that cannot be copied; nothing was sent
    3  some hosts were never reached: nothing was changed there
    4  some hosts are unknown or not who they should be; nothing was sent to them
    5  some hosts may have changed: the connection broke, or an answer did not come
    6  standard output could not be written to
  130  Ctrl-C or SIGTERM
  141  nobody reads standard output any more

A file is written beside its place, as .NAME.0123abcd, and renamed when it is whole: whatever happens, there is the old file or \
the new one. Where a host cannot rename over a file (few others than OpenSSH cannot) the old one steps aside for a moment. When \
it fails, after Ctrl-C and after --timeout, the temporary file is removed; if the connection broke it may stay, and is named. \
What was in place before stays. A SOURCE that changes meanwhile is an error for the hosts that would get a mixture.

Where this program itself is killed (kill -9, power), the temporary file stays in the directory of its file, and nobody names it. No \
later copy needs it or is hindered by it: find DIRECTORY -name '.*.????????' -mtime +0 lists what is older than a day.

Only files are replaced. Where there is a symbolic link to a file, the link stays and the file behind it is replaced, as cp and scp \
write through links; not in a directory that anybody may write to. Named pipes, devices, sockets, and links to nothing or to a \
directory are an error, and stay. A link that is copied takes the place of a link or a file.

--again of one directory to a DESTINATION without `/` at its end is refused, but for never-started: the first time may have made \
DESTINATION, which would now take the directory in. Give the command anew with a `/` at the end of DESTINATION.

Only our own client copies files: --engine openssh and -S are for commands.";

const GET_HELP: &str = "\
Examples:
  penstock get -w 'web[1-3]' /etc/nginx/nginx.conf /var/log/nginx logs/
  penstock get -g db --max-size 20G backup.tar /backup
  penstock get --again never-started

Exit codes, the worst wins:
    0  everything is here
    1  it failed somewhere: not there, not readable, over a limit, no room here
    2  wrong usage; nothing was asked
    3  some hosts were never reached
    4  some hosts are unknown or not who they should be; nothing was asked of them
    6  standard output could not be written to
  130  Ctrl-C or SIGTERM
  141  nobody reads standard output any more

Each host writes only below DIRECTORY/HOST, whatever it says: names that lead elsewhere, and links that lead out of what is \
copied, are an error (--all-links makes such links as they are there). In HOST, `/`, `%`, control characters and a dot at the \
begin are written as %2F and so on. A file is here whole or not at all; of a host that failed, whole files stay. A file that ends \
before the size that it is said to have is an error: it was made shorter meanwhile, or, as in /sys, its size means nothing.

Only our own client copies files: --engine openssh and -S are for commands.";

/// `penstock put`.
pub fn put(arguments: &PutArguments) -> Result<(), Failure> {
    if arguments.fleet.last {
        return arguments.fleet.show_last();
    }
    let mut arguments = arguments.clone();
    let (names, _) = arguments.fleet.names("put", &mut arguments.files)?;
    let (sources, destination) = split(&arguments.files, "penstock put -w web1 FILE /etc/")?;
    let sources: Vec<PathBuf> = sources.iter().map(PathBuf::from).collect();
    if let (Some(which), [source]) = (&arguments.fleet.again, &sources[..])
        && which != "never-started"
        && source.is_dir()
        && may_be_either(destination)
    {
        return Err(Failure::usage(format!(
            "where {} goes depends on whether {} is a directory there, and the last put may have made it one\n  \
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

/// `penstock get`.
pub fn get(arguments: &GetArguments) -> Result<(), Failure> {
    if arguments.fleet.last {
        return arguments.fleet.show_last();
    }
    let mut arguments = arguments.clone();
    let (names, then) = arguments.fleet.names("get", &mut arguments.files)?;
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
        // Unless something came: it fails for a directory that is not empty.
        let _ = std::fs::remove_dir(&directory);
    }
    got
}

impl Fleet {
    /// The hosts; with `--again` also the files and the options of the last time.
    fn names(&mut self, command: &str, files: &mut Vec<String>) -> Result<(Vec<String>, Value), Failure> {
        again::check_id(self.id.as_deref(), self.again.as_deref())?;
        let (names, then) = match &self.again {
            None => (self.hosts.names()?, Value::Null),
            Some(which) => {
                let (record, names) =
                    again::recall(command, self.id.as_deref(), which, &self.pace, self.show().talk())?;
                again::take_over_course(&mut self.pace, &mut self.engine, &record);
                let then = &record.order[command];
                let sources = then["sources"].as_array().into_iter().flatten().chain([&then["to"]]);
                *files = sources.filter_map(Value::as_str).map(str::to_owned).collect();
                (names, then.clone())
            }
        };
        if self.engine.engine() == EngineName::Openssh {
            return Err(Failure::usage(format!(
                "{command} is done by our own client: --engine openssh and -S carry commands only\n  hint: leave them out"
            )));
        }
        if matches!(self.pace.stop_if, Some(StopIf::Differs)) {
            return Err(Failure::usage(
                "--stop-if differs compares outputs, and a copy has none\n  hint: --stop-if 'failed>0'",
            ));
        }
        Ok((names, then))
    }

    fn show(&self) -> show::Arguments {
        show::Arguments { json: self.json, quiet: self.quiet, ..show::Arguments::default() }
    }

    /// What `run --last` shows: all commands have one journal.
    fn show_last(&self) -> Result<(), Failure> {
        again::show(self.id.as_deref(), &self.show())
    }

    fn copy(&self, names: Vec<String>, what: What, about: Value) -> Result<(), Failure> {
        let show = self.show();
        let course = Course {
            names,
            pace: &self.pace,
            engine: &self.engine,
            show: &show,
            about: again::with_course(about, &self.pace, &self.engine),
            on_stop: "giving up, and removing what is not whole; Ctrl-C again to let go at once",
            keyboard: Keyboard::Free,
            local_files: 1,
        };
        let (connect_timeout, timeout) = (self.pace.connect_timeout(), self.pace.timeout);
        course.run(|_, at_once| Ok(Job::Copy(Order::new(what, at_once, connect_timeout, timeout))))
    }
}

/// Whether this is a directory on some hosts and a name for what comes on others.
fn may_be_either(destination: &str) -> bool {
    !matches!(destination.rsplit('/').next(), Some("" | "." | ".." | "~"))
}

fn split<'a>(files: &'a [String], example: &str) -> Result<(&'a [String], &'a str), Failure> {
    match files {
        [sources @ .., last] if !sources.is_empty() && files.iter().all(|name| !name.is_empty()) => {
            Ok((sources, last))
        }
        _ => Err(Failure::usage(format!("name what to copy, and last where to\n  hint: {example}"))),
    }
}

/// What is to come, and the name that each has here.
fn named(remotes: &[String]) -> Result<Vec<(String, String)>, Failure> {
    let mut taken: HashMap<&str, &str> = HashMap::new();
    let mut named = Vec::new();
    for remote in remotes {
        let name = remote.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        if matches!(name, "" | "." | ".." | "~") || name.contains('\0') {
            return Err(Failure::usage(format!(
                "{} has no name of its own: name it as its parent does",
                plain(remote)
            )));
        }
        if let Some(first) = taken.insert(name, remote) {
            return Err(Failure::usage(format!(
                "{} and {} would go to the same place",
                plain(first),
                plain(remote)
            )));
        }
        named.push((remote.clone(), name.to_owned()));
    }
    Ok(named)
}

fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size, as 500M or 20G are");
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
