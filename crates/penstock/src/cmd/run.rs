//! `penstock run`: a command on many hosts at once. The running is in `crates/fleet`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use fleet::run::engine::Leash;
use fleet::run::input::{Input, Spool};
use fleet::run::stop::{Brake, Why};
use fleet::run::{Job, Order};
use logic::fleet::{leash, script};

use self::course::{Course, Keyboard};
use crate::output::{Failure, complain};

pub mod again;
pub mod course;
pub mod engines;
pub mod hosts;
mod keys;
pub mod mpssh;
pub mod pace;
pub mod show;

/// Run a command on many hosts at once, over SSH
///
/// What the hosts print goes to standard output as it comes, each line with its host before it: `->` standard output,
/// `=>` standard error, `=:` how it ended, if not with 0. Everything about the run goes to standard error. Enter shows who is still
/// running, in which phase, for how long. Ctrl-C ends the command on all hosts; a second one lets go at once.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    /// The command, as the shell of each host gets it
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = false)]
    command: Vec<String>,
    #[command(flatten)]
    hosts: hosts::Arguments,
    #[command(flatten)]
    show: show::Arguments,
    #[command(flatten)]
    engine: engines::Arguments,
    #[command(flatten)]
    pace: pace::Arguments,
    /// Send our standard input to every host. Not with --script: a script goes to the host as standard input itself
    #[arg(long, conflicts_with = "script", help_heading = "Input")]
    stdin: bool,
    /// Run this local script on every host, with the COMMAND words as its arguments; its first line says what runs it
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    script: Option<PathBuf>,
    /// Send the command as it is: it may run on if this program is killed
    #[arg(long, help_heading = "Input")]
    no_leash: bool,
    #[command(flatten)]
    again: again::Arguments,
    /// As the first word: options and output of mpssh-py, as `penstock run --mpssh --help` tells them; so does a link to this
    /// program with the name `mpssh`
    #[arg(long)]
    mpssh: bool,
}

const HELP: &str = "\
Examples:
  penstock run -w 'web[1-3]' uptime
  penstock run -w web1,web2 -- hostname
  penstock run -w 'web[1-3],db1' -x web2 -- 'df -h / | tail -1'
  penstock run --hosts fleet.txt -b -- uname -r
  penstock run -g web --diff -- cat /etc/resolv.conf
  penstock run -g web --mask date,pid -- journalctl -n 3
  penstock run --hosts fleet.txt --waves 1,10%,all --stop-if 'failed>2%' -- ./upgrade
  penstock run --again never-started

Exit codes. A higher one hides those below it: what else happened is in the summary, and in --json with counts of hosts:
    0  the command ended with 0 on every host
    1  it ended otherwise somewhere: another status, a signal, our --timeout (it is ended there)
    2  wrong usage; nothing was sent
    3  some hosts never started it: safe to run again there (--again never-started);
       also where the SSH configuration has a fault (2, if it was given with -F)
    4  some hosts are unknown or not who they should be; nothing was sent to them
    5  on some hosts it may have run, and may still run
    6  output of some hosts could not be written: with -o the run goes on; if it was standard
       output, the command is ended
  130  Ctrl-C or SIGTERM
  141  nobody reads standard output any more

--json, one object a line; \"event\" says which:
  output   host, stream (stdout, stderr), text; text that is not UTF-8 has U+FFFD in its place, and
           then its bytes are in base64
  end      host, seconds, ended (the ending in a word or two), status, remote; and one of: exit (the
           status of the command), signal (its name), or phase, reason, detail and advice, where we
           have neither
  copied   host, files, bytes (put and get)
  note     host, text: something that was noticed of a host that is who it should be
  summary  hosts, well, failed, never_started and may_have_run (how many; may_have_changed for put and
           get, with files and bytes), status, seconds, groups (those that ended alike: ended, status,
           phase, detail, advice, hosts), unleashed, lost, output, and unrecorded if the journal is not whole
    status     what this host, group or run adds to the exit code: the table above. `exit` is what
               the command itself said: exit 3 has the status 1
    remote     what is known of the command there: never-started, ended, or unknown (it may still run)
    unleashed  hosts where no POSIX shell took the command, or /proc is not mounted: without the leash below
    lost       host and why: output that -o could not write
    output     whether all of it was written: whole, given-up (nobody took it), broken (a fault of ours)
--last --json is one object: id, state (ended, running, killed), status, order (what was asked for) and hosts; of each
    standing   what --again goes by: well, failed, never-started, or unknown; with why, the fields of end, and sha256 of
               its standard output

Output is shown so that no terminal obeys it, in a pipe too: colours are left out, other control characters are shown as \
pictures, bytes that are no UTF-8 as <FF>; of a line that was written over with carriage returns, as progress bars are, \
the last text is shown. The bytes as they came: -o DIRECTORY, or --json.

Folded output (-b, --diff, --mask) comes when all hosts are done, and so far when --pause gives time to look. Hosts go together \
if both streams and the ending are the same. Standard output stands as it came, standard error after `=>`, an ending other than \
0 after `=:`; a line of standard output that looks like one of these has `->` before it. What is masked is shown as <host>, <ip> \
and so on, unless the host is alone. All output is compared; 8 MiB of each stream of a host are kept to be shown, and of a \
difference 200 lines: -o DIRECTORY keeps everything. --stop-if differs then means: not all in one group.

Groups: @NAME is looked for in our own files, then in the default source of ClusterShell's groups.conf ($CLUSTERSHELL_CFGDIR, \
~/.config/clustershell, ~/.local/etc/clustershell, /etc/clustershell); @SOURCE:NAME in that source. A command of a source \
may take ten seconds.

The leash: beside the command a small watcher (sh) runs on each host. When the connection is gone it ends the process \
group of the command, or, where the server gives commands no group of their own, the command and what it has started: so \
that is not left running if this program is killed. What leaves that group (setsid, a daemon, a unit \
of systemd) is ended neither then nor by Ctrl-C or --timeout. Hosts where something else than a shell takes the command (a \
forced command, an appliance) want --no-leash.

As with ssh, a command has ended when its output has: what it leaves running with its standard output or error open is waited \
for (give that `>/dev/null 2>&1`). Only --timeout and Ctrl-C cut it off, and say so; with --engine openssh without the status of \
the command, which `ssh` tells when all is over. The bytes that are counted then are those that had come from the host, of both \
streams together: what is shown of them has another form.";

/// Which of two engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// Our own client
    Native,
    /// The ssh of this machine, a process per host: obeys the identities of penstock host once one is enrolled, else its known_hosts, always with StrictHostKeyChecking yes
    Openssh,
}

/// Runs it, tells what happened, and says by the exit code how well.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.mpssh {
        return Err(Failure::usage(
            "--mpssh comes before everything else, and after it the options of mpssh\n  hint: penstock run --mpssh --help",
        ));
    }
    if arguments.again.last {
        return again::show(arguments.again.id.as_deref(), &arguments.show);
    }
    again::check_id(arguments.again.id.as_deref(), arguments.again.again.as_deref())?;
    if arguments.stdin && arguments.hosts.hosts.iter().any(|file| file.as_os_str() == "-") {
        return Err(Failure::usage(
            "--hosts - reads standard input to its end, so nothing is left of it for --stdin\n  hint: name the hosts in a file, or with -w",
        ));
    }
    let mut arguments = arguments.clone();
    let repeated = again::take_over(&mut arguments)?;
    let names = match repeated {
        Some(names) => names,
        None => arguments.hosts.names()?,
    };
    if arguments.script.is_none() && arguments.command.is_empty() {
        return Err(Failure::usage("no command\n  hint: penstock run -w web1 uptime"));
    }
    let course = Course {
        names,
        pace: &arguments.pace,
        engine: &arguments.engine,
        show: &arguments.show,
        about: again::remember(&arguments),
        on_stop: "ending the command on all hosts; Ctrl-C again to let go at once",
        keyboard: if arguments.stdin { Keyboard::Input } else { Keyboard::Free },
        local_files: 0,
    };
    course.run(|brake, _| Ok(Job::Command(order(&arguments, brake)?)))
}

fn order(arguments: &Arguments, brake: &Brake) -> Result<Order, Failure> {
    let nonce = again::nonce();
    let (command, input) = match &arguments.script {
        Some(file) => {
            let source = std::fs::read(file).map_err(|error| {
                Failure::usage(format!("cannot read the script {}: {error}", file.display()))
            })?;
            let name = file.file_name().map_or_else(|| "script".into(), |name| name.to_string_lossy());
            let sent = script::sent(&source, &name, &arguments.command, &nonce);
            (sent.command, Input::Bytes(sent.input.into()))
        }
        None if arguments.stdin => {
            let brake = brake.clone();
            let spool = Spool::fill(std::io::stdin(), move |error| {
                complain(&format!("error: {error}\n"));
                brake.pull(Why::NoInput);
            })
            .map_err(Failure::runtime)?;
            (arguments.command.join(" "), Input::Spool(spool))
        }
        None => (arguments.command.join(" "), Input::None),
    };
    let leash = if arguments.no_leash { Leash::None } else { Leash::Wanted };
    // The leash quotes it, and a quote in it becomes four characters.
    let sent = match leash {
        Leash::Wanted => leash::wrap(&command, leash::Input::None, &nonce).len(),
        Leash::None => command.len(),
    };
    if sent > LONGEST {
        return Err(Failure::usage(format!(
            "the command has {sent} bytes as it is sent; hosts take {LONGEST}\n  hint: --script FILE"
        )));
    }
    Ok(Order {
        command,
        input,
        leash,
        nonce,
        connect_timeout: arguments.pace.connect_timeout(),
        timeout: arguments.pace.timeout,
    })
}

/// Linux takes 128 KiB in one argument, with the zero at its end (MAX_ARG_STRLEN).
const LONGEST: usize = 128 * 1024 - 1;
