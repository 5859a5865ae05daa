//! `penstock run`: runs a command on many hosts in parallel, with `crates/fleet`.

use std::path::PathBuf;

use clap::Args;
use fleet::run::engine::Watcher;
use fleet::run::input::{Input, Spool};
use fleet::run::stop::{Brake, Why};
use fleet::run::{Job, Order};
use hosts::fleet::again::Maker;
use hosts::fleet::{script, watcher};
use serde_json::{Value, json};

use self::course::{Keyboard, PreparedRun};
use crate::output::{Failure, complain, plain};

pub(crate) mod again;
pub(crate) mod course;
pub(crate) mod engines;
mod keys;
pub(crate) mod mpssh;
pub(crate) mod pace;
pub(crate) mod selection;
pub(crate) mod show;

/// Run a command on many hosts at once, over SSH
///
/// The output of the hosts is printed on standard output as it arrives, each line with its host before it: `->`
/// standard output, `=>` standard error, `=:` the exit status, if not 0. All messages about the run go to standard
/// error. Enter shows the hosts still running, with phase and duration; any other line is left for the shell, also one that was
/// pasted with the command. Ctrl-C ends the command on all hosts; a second Ctrl-C quits immediately.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub(crate) struct Arguments {
    /// The command for the shell of each host. Several words are joined by blanks, as ssh(1) does: what needs quotes there
    /// needs them twice, so give such a command as one word
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = false)]
    command: Vec<String>,
    #[command(flatten)]
    hosts: selection::Arguments,
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
    /// Run the command without a watcher: it may continue on the hosts if this program is killed
    #[arg(long, help_heading = "Input")]
    no_watcher: bool,
    #[command(flatten)]
    again: again::Arguments,
    /// As the first word: options and output of mpssh-py, described by `penstock run --mpssh --help`; a link to this
    /// program with the name `mpssh` does the same
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
  penstock run --again not-started

Exit codes. A higher one hides those below it: what else happened is in the summary, and in --json with counts of hosts:
    0  the command ended with 0 on every host
    1  on some host it failed: another exit status, a signal, or --timeout (it is ended there);
       also where penstock could not begin: too few descriptors or threads (then no host was contacted)
    2  wrong usage; nothing was sent
    3  some hosts did not start it: safe to run again there (--again not-started);
       also where the SSH configuration has a fault (2, if it was given with -F)
    4  the identity of some hosts is not verified; nothing was sent to them
    5  on some hosts it may have run, and may still run
    6  output of some hosts could not be written: with -o the run continues; if it was standard
       output, the command is ended
  130  Ctrl-C or SIGTERM
  141  the reader of standard output is gone

--json, one object a line; \"event\" says which:
  output   host, stream (stdout, stderr), text; text that is not UTF-8 has U+FFFD in its place, and
           then its bytes are in base64
  end      host, seconds, result, ending (in a word or two), exit_code, remote; and one of:
           exit_status (of the command), signal (its name), or phase, reason, detail and advice,
           where neither is known
  copied   host, files, bytes (put and get)
  note     host, text: something noticed about a host whose identity is verified
  summary  hosts, ok, failed, not_started and may_have_run (numbers of hosts; put and get add files
           and bytes), exit_code, seconds, groups (hosts that ended alike: ending, exit_code, phase,
           detail and advice of the first host, hosts), unwatched, output_lost, output, and
           record_error if the record of the run is incomplete
    result       what --again goes by: ok, failed, not-started, or may-have-run
    exit_code    what this host, group or run adds to our exit code: the table above. exit_status is
                 that of the command: exit_status 3 has exit_code 1
    remote       what is known of the command there: not-started, ended, or may-have-run (and may
                 still run)
    unwatched    hosts where no POSIX shell took the command, or /proc is not mounted: without the watcher below
    output_lost  host and reason: output that -o could not write
    output       complete, truncated (its reader did not take it), or internal-error
--last --json is one object: id, state (ended, running, killed), exit_code, order (the options and the command) and hosts;
of each host: result, the fields of end, and sha256 of its standard output

Output is shown so that no terminal obeys it, in a pipe too: colours are left out, other control characters are shown as \
pictures, bytes that are no UTF-8 as <FF>; of a line that was written over with carriage returns, as progress bars are, \
the last text is shown; a line longer than 64 KiB is cut, and what follows begins with (continued). The bytes as they came: -o DIRECTORY, or --json.

Folded output (-b, --diff, --mask) comes when all hosts are done, and so far when --pause gives time to look. Hosts go together \
if both streams and the ending are the same. Standard output stands as it came, standard error after `=>`, an ending other than \
0 after `=:`; a line of standard output that looks like one of these has `->` before it. What is masked is shown as <host>, <ip> \
and so on, unless the host is alone. All output is compared; 8 MiB of each stream of a host are kept to be shown, and of a \
difference 200 lines: -o DIRECTORY keeps everything. --stop-if differs then means: not all in one group.

Groups: @NAME is looked for in our own files, then in the default source of ClusterShell's groups.conf ($CLUSTERSHELL_CFGDIR, \
~/.config/clustershell, ~/.local/etc/clustershell, /etc/clustershell); @SOURCE:NAME in that source. A command of a source \
may take ten seconds.

The watcher: beside the command a small watcher (sh) runs on each host. When the connection is gone it ends the process \
group of the command, or, where the server gives commands no group of their own, the command and what it has started: so \
that is not left running if this program is killed. What leaves that group (setsid, a daemon, a unit \
of systemd) is ended neither then nor by Ctrl-C or --timeout. Hosts where something else than a shell takes the command (a \
forced command, an appliance) want --no-watcher.

As with ssh, a command has ended when its output has: what it leaves running with its standard output or error open is waited \
for (give that `>/dev/null 2>&1`). Only --timeout and Ctrl-C cut it off, and say so; with --engine openssh without the status of \
the command, which `ssh` tells when all is over. The bytes that are counted then are those that had come from the host, of both \
streams together: what is shown of them has another form.";

/// Runs the command, prints the results, and returns a failure with the exit status of the run.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.mpssh {
        return Err(Failure::usage(
            "--mpssh must be the first option, followed by the options of mpssh\n  hint: penstock run --mpssh --help",
        ));
    }
    if arguments.again.last {
        return again::show(arguments.again.id.as_deref(), &arguments.show);
    }
    again::check_id(arguments.again.id.as_deref(), arguments.again.again.as_deref())?;
    if arguments.stdin && arguments.hosts.hosts.iter().any(|file| file.as_os_str() == "-") {
        return Err(Failure::usage(
            "--hosts - reads all of standard input, so nothing is left for --stdin\n  hint: name the hosts in a file, or with -w",
        ));
    }
    let mut arguments = arguments.clone();
    let repeated = take_over(&mut arguments)?;
    let names = match repeated {
        Some(names) => names,
        None if arguments.hosts.is_empty() && !arguments.command.is_empty() => {
            return Err(taken_for_command(&arguments.command));
        }
        None => arguments.hosts.names()?,
    };
    if arguments.script.is_none() && arguments.command.is_empty() {
        return Err(Failure::usage("no command\n  hint: penstock run -w web1 uptime"));
    }
    let course = PreparedRun {
        names,
        pace: &arguments.pace,
        engine: &arguments.engine,
        show: &arguments.show,
        about: remember(&arguments),
        on_stop: "ending the command on all hosts; press Ctrl-C again to quit immediately",
        keyboard: if arguments.stdin { Keyboard::Input } else { Keyboard::Free },
        local_files: 0,
    };
    course.run(|brake, _| Ok(Job::Command(order(&arguments, brake)?)))
}

/// Failure for a command without hosts: its first word may be meant as a host.
fn taken_for_command(words: &[String]) -> Failure {
    let quoted = |words: &[String]| {
        let words: Vec<_> = words.iter().map(|word| text::shell::word(word)).collect();
        plain(&words.join(" "))
    };
    let hint = match words {
        [host, command @ ..] if !command.is_empty() => {
            format!(
                "if {} is a host: penstock run -w {} -- {}",
                plain(host),
                quoted(&words[..1]),
                quoted(command)
            )
        }
        _ => "-w 'web[1-3]', -g GROUP, or --hosts FILE".to_owned(),
    };
    Failure::usage(format!("no hosts; {} was taken for the command\n  hint: {hint}", quoted(words)))
}

/// Restores the recorded command for `--again` and returns its hosts. `None` without `--again`.
fn take_over(arguments: &mut Arguments) -> Result<Option<Vec<String>>, Failure> {
    let Some(which) = arguments.again.again.clone() else { return Ok(None) };
    let (id, talk) = (arguments.again.id.as_deref(), arguments.show.talk());
    let (record, names) =
        again::recall(Maker::Run, id, &which, &mut arguments.pace, &mut arguments.engine, talk)?;
    let order = &record.order;
    if order["stdin"] == true {
        return Err(Failure::usage(
            "the last run sent its standard input, which is not recorded: run the command again",
        ));
    }
    if order["mpssh"] == true && !order["ssh"].is_null() {
        return Err(Failure::usage(
            "that run was mpssh with -S or -O, which --again does not repeat: run the command again",
        ));
    }
    arguments.command = serde_json::from_value(order["command"].clone()).unwrap_or_default();
    arguments.script = order["script"].as_str().map(PathBuf::from);
    arguments.no_watcher |= order["no_watcher"] == true;
    Ok(Some(names))
}

/// Returns the record that `--again` needs to repeat the run.
fn remember(arguments: &Arguments) -> Value {
    let own = json!({
        "command": arguments.command,
        "script": arguments.script.as_deref().map(again::absolute),
        "stdin": arguments.stdin,
        "no_watcher": arguments.no_watcher,
    });
    again::with_course(own, &arguments.pace, &arguments.engine)
}

fn order(arguments: &Arguments, brake: &Brake) -> Result<Order, Failure> {
    let nonce = fleet::run::nonce();
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
    let watcher = if arguments.no_watcher { Watcher::None } else { Watcher::Wanted };
    // Measure the command with the watcher's quoting, which turns a quote into four characters.
    let sent = match watcher {
        Watcher::Wanted => watcher::wrap(&command, watcher::Input::None, &nonce).len(),
        Watcher::None => command.len(),
    };
    if sent > LONGEST {
        return Err(Failure::usage(format!(
            "the command is {sent} bytes long when sent; hosts accept {LONGEST}\n  hint: --script FILE"
        )));
    }
    Ok(Order {
        command,
        input,
        watcher,
        nonce,
        connect_timeout: arguments.pace.connect_timeout(),
        timeout: arguments.pace.timeout,
    })
}

/// Longest argument on Linux: 128 KiB including the terminating zero byte (MAX_ARG_STRLEN).
const LONGEST: usize = 128 * 1024 - 1;
