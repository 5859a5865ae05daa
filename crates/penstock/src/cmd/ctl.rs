//! `penstock ctl`: shows and changes a running front door through its control socket.

use std::path::{Path, PathBuf};
use std::time::Duration;
use text::shell;

use clap::{Args, Subcommand};

use crate::ctl::client::{Client, ClientError};
use crate::duration;
use crate::load;
use crate::output::{Failure, plain, print, print_failed};

mod capture;
mod change;
mod dsr;
mod host;
pub(super) mod save;
mod sessions;
mod top;
mod upgrade;
mod why;
mod word;

use change::Change;
use word::{parse_time, parse_word, quoted};

/// See and change a running server: status, why, drain, weights, every key of its configuration
///
/// Talks to the server's control socket. The kernel tells the server who is asking: root, the user that the server runs
/// as, and whom `control.operators` and `control.readers` of its configuration name are let in. With --host it logs in to a server on
/// another machine.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Control socket of the server; without this and --config the variable PENSTOCK_CONTROL_SOCKET names it
    /// [default: /run/penstock/control.sock]
    #[arg(long, value_name = "PATH", global = true, conflicts_with = "config")]
    socket: Option<PathBuf>,
    /// Take the path of the control socket from this configuration file, also if the variable names another one
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    #[command(flatten)]
    host: host::Host,
    /// Answer as JSON, for programs
    #[arg(long, global = true)]
    json: bool,
    /// Wait at most so many seconds for an answer, or with a unit: ms, s, m
    #[arg(long, value_name = "SECONDS", default_value = "10", global = true, value_parser = patience)]
    timeout: Duration,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Listeners and pools that are served, degraded parts (first), and the amount of traffic
    Status,
    /// Every backend with its health, its last verdicts and its share of the traffic
    Backends {
        /// Only backends of this pool: NAME of [pool.NAME]
        #[arg(value_parser = parse_word)]
        pool: Option<String>,
    },
    /// Every certificate: broken ones first, then by the days until expiry
    Certs {
        /// Only certificates with this text in one of their names
        #[arg(value_parser = parse_word)]
        name: Option<String>,
    },
    /// Clients of pools with balance = "sticky": each with its backend, when it was seen and when it is forgotten; the
    /// 1000 seen last of each pool
    Clients {
        /// Only clients of this pool: NAME of [pool.NAME]
        #[arg(value_parser = parse_word)]
        pool: Option<String>,
        /// Only clients that were seen in this time, such as 300s
        #[arg(long, value_name = "TIME", value_parser = parse_word)]
        within: Option<String>,
    },
    /// Events of the server: health changes, reloads, degraded parts
    Events {
        /// Continue and show each event as it happens, until Ctrl-C
        #[arg(long, short)]
        follow: bool,
        /// Number of last events to show [default: 50]
        #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024))]
        count: Option<u32>,
    },
    /// Open sessions: who, where, bytes, rate, age, round-trip times and retransmits
    Sessions(sessions::Sessions),
    /// End open sessions at once, by their ids or all that match
    Kill(sessions::Kill),
    /// Watch listeners, backends and sessions on the terminal; end a session and drain a backend from there
    Top(top::Top),
    /// Which backend a session would get, step by step, and why no other one; changes nothing
    Why(why::Why),
    /// Services of dsr listeners: how they stand, and what would happen with a packet
    Dsr(dsr::Dsr),
    /// Give a backend no new sessions; its open sessions continue to their end
    #[command(override_usage = "penstock ctl drain [OPTIONS] [POOL] BACKEND")]
    Drain {
        #[command(flatten)]
        target: Target,
        /// Time after which it gets new sessions again, at most 30d; without it `ready` ends the drain
        #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
        time: Option<String>,
    },
    /// Give a drained backend its share of new sessions again
    #[command(override_usage = "penstock ctl ready [OPTIONS] [POOL] BACKEND")]
    Ready(Target),
    /// Change the share of a backend, over reloads and restarts (process.state-directory), until "default"
    #[command(override_usage = "penstock ctl weight [OPTIONS] [POOL] BACKEND WEIGHT|default")]
    Weight {
        /// The backend as for `drain`, then its new weight: a number, relative to the other backends of the pool
        /// (0 takes no new sessions), or "default" for what the configuration says
        #[arg(value_name = "[POOL] BACKEND WEIGHT", num_args = 2..=3, required = true, value_parser = parse_word)]
        words: Vec<String>,
    },
    /// Write the bytes of sessions into a file for Wireshark, tshark and tcpdump (pcapng), as packets made of them
    Capture(capture::Capture),
    /// Whether clients should come to this server: exit code 0, or 1 with the reason; for keepalived and the like
    ///
    /// It is healthy while it serves, is not told to stop, and a pool has an available backend. One of a dsr listener must
    /// take flows at the VIP, too; services that were given up (--commit-confirm) are unhealthy.
    Health {
        /// Pools that must have an available backend each: NAME of [pool.NAME]
        #[arg(value_parser = parse_word)]
        pools: Vec<String>,
    },
    /// Show the level of the process log, or change it for a time; then it is that of the start again
    LogLevel {
        /// error, warn, info, debug, trace; or default, which ends a change at once
        #[arg(value_parser = parse_word)]
        level: Option<String>,
        /// Time of the change, at most 24h [default: 10m]
        #[arg(long = "for", value_name = "TIME", requires = "level", value_parser = parse_time)]
        time: Option<String>,
    },
    #[command(flatten)]
    Change(Change),
    /// Read the configuration file again; a file with a mistake changes nothing
    Reload,
    /// Let a process of another version take over: clients notice nothing, and no connection ends
    ///
    /// The server starts the program with its own arguments. The new process takes over the listening sockets, counters and the health of backends;
    /// then the old one ends with its last session. What goes wrong before changes nothing.
    Upgrade(upgrade::Upgrade),
    /// End the server: no new connections, established ones have the drain time to end; flows of dsr listeners are cut
    /// unless at-stop = "keep"
    Stop,
}

#[derive(Debug, Args)]
struct Target {
    /// The backend as the configuration writes it (10.0.0.11:8000, app.internal:8000, unix:/run/app.sock) or a whole
    /// part of it (8000, app.internal, app.sock) that only one has; the name of its pool before it if several pools have
    /// such a backend
    #[arg(value_name = "[POOL] BACKEND", num_args = 1..=2, required = true, value_parser = parse_word)]
    words: Vec<String>,
}

/// Default path of a server's control socket.
const DEFAULT_SOCKET: &str = "/run/penstock/control.sock";

const EXAMPLES: &str = "\
Examples:
  penstock ctl status
  penstock ctl backends --json
  penstock ctl certs
  penstock ctl events --follow
  penstock ctl sessions --sort rate --limit 10
  penstock ctl kill 4711
  penstock ctl why --from 203.0.113.7 https://shop.example/cart
  penstock ctl dsr status
  penstock ctl dsr trace --to video.pcapng --service video --verdict dropped
  penstock ctl drain 10.0.0.11:8000            before an update of that server
  penstock ctl ready 10.0.0.11:8000            after it
  penstock ctl drain 10.0.0.11:8000 --for 10m  ends by itself
  penstock ctl weight app unix:/run/app.sock 5
  penstock ctl show pool.app
  penstock ctl add pool.app.backends 10.0.0.13:8000
  penstock ctl set pool.app.timeouts.connect 2s
  penstock ctl undo
  penstock ctl log-level debug --for 5m
  penstock ctl begin; penstock ctl remove pool.old; penstock ctl diff; penstock ctl commit --confirm 60s
  penstock ctl save
  penstock ctl --config /etc/penstock/penstock.toml reload
  penstock ctl upgrade
  penstock ctl --host gw1.example --user ann status";

/// Sends the command to the server and prints the answer.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let Command::Dsr(dsr) = &arguments.command
        && let Some(detach) = dsr.detach()
    {
        return detach.run(arguments.json);
    }
    let named_by_environment = std::env::var_os("PENSTOCK_CONTROL_SOCKET").filter(|path| !path.is_empty());
    let socket = socket_path(arguments, named_by_environment.map(PathBuf::from))?;
    let remote = arguments.host.remote()?;
    if let Command::Top(top) = &arguments.command {
        let format = if arguments.json { Format::Json } else { Format::Text };
        let way = match remote {
            Some(remote) => Way::Network(Box::new(arguments.host.door(remote, arguments.timeout))),
            None => Way::Socket(socket, arguments.timeout),
        };
        return top::run(top, &format, way);
    }
    let patience = match arguments.command {
        Command::Upgrade(_) => arguments.timeout.max(upgrade::PATIENCE),
        _ => arguments.timeout,
    };
    let client = match &remote {
        Some(remote) => arguments.host.door(remote.clone(), patience).log_in(),
        None => Client::connect(&socket, patience).map_err(failed),
    };
    let mut client = match (&arguments.command, client) {
        // A server that does not run is as unhealthy as one that says so.
        (Command::Health { .. }, Err(Failure::Usage(text))) => return Err(print_failed(&text, 1)),
        (_, client) => client?,
    };
    if let Command::Change(Change::Save { file, force }) = &arguments.command {
        if remote.is_some() && file.is_none() {
            let message = "save writes the files that the server has read: run it there, or name a file here";
            return Err(Failure::usage(message));
        }
        let existing = if *force { save::Existing::Replace } else { save::Existing::Refuse };
        let format = if arguments.json { save::Format::Json } else { save::Format::Text };
        return save::run(&mut client, file.as_deref(), existing, format);
    }
    if let Command::Capture(capture) = &arguments.command {
        return capture.run(&mut client, arguments.json);
    }
    let line = arguments.command.line(if arguments.json { Format::Json } else { Format::Text });
    if let Command::Dsr(dsr) = &arguments.command
        && let Some(trace) = dsr.trace()
    {
        return trace.run(&mut client, &arguments.command.line(Format::Text), arguments.json);
    }
    if let Command::Events { follow: true, .. } = arguments.command {
        return client.follow(&line, |line| print(&format!("{}\n", plain(line))));
    }
    let answer = client.ask(&line).map_err(failed)?;
    let mut text = String::new();
    for line in [answer.note].iter().filter(|note| !note.is_empty()).chain(&answer.lines) {
        text.push_str(&plain(line));
        text.push('\n');
    }
    print(&text)
}

enum Format {
    Text,
    Json,
}

/// The way to a server, also for a second connection.
enum Way {
    Socket(PathBuf, Duration),
    Network(Box<host::Door>),
}

impl Way {
    fn connect(&mut self) -> Result<Client, Failure> {
        match self {
            Self::Socket(path, timeout) => Client::connect(path, *timeout).map_err(failed),
            Self::Network(door) => door.log_in(),
        }
    }
}

impl Command {
    /// Returns the command line of the control protocol.
    fn line(&self, format: Format) -> String {
        let count;
        let changed;
        let owned;
        let (name, arguments): (_, Vec<&str>) = match self {
            Command::Change(change) => {
                changed = change.words();
                (changed.0, words(&changed.1))
            }
            Command::Status => ("status", Vec::new()),
            Command::Backends { pool } => ("backends", pool.iter().map(String::as_str).collect()),
            Command::Certs { name } => ("certs", name.iter().map(String::as_str).collect()),
            Command::Clients { pool, within } => {
                let within = within.iter().flat_map(|time| ["within", time.as_str()]);
                ("clients", pool.iter().map(String::as_str).chain(within).collect())
            }
            Command::Events { follow, count: wanted } => {
                count = wanted.map(|count| count.to_string());
                ("events", count.as_deref().into_iter().chain(follow.then_some("follow")).collect())
            }
            // Not sent: `run` has it.
            Command::Top(_) => ("status", Vec::new()),
            Command::Sessions(sessions) => {
                owned = sessions.words();
                ("sessions", words(&owned))
            }
            Command::Kill(which) => {
                owned = which.words();
                ("kill", words(&owned))
            }
            Command::Why(why) => ("why", why.words()),
            Command::Dsr(dsr) => {
                owned = dsr.words();
                ("dsr", words(&owned))
            }
            Command::Drain { target, time } => {
                let time = time.iter().flat_map(|time| ["for", time.as_str()]);
                ("drain", target.words.iter().map(String::as_str).chain(time).collect())
            }
            Command::Ready(target) => ("ready", words(&target.words)),
            Command::Weight { words: all } => ("weight", words(all)),
            Command::Capture(capture) => {
                changed = ("capture", capture.words());
                (changed.0, words(&changed.1))
            }
            Command::Health { pools } => ("health", words(pools)),
            Command::LogLevel { level, time } => {
                let time = time.iter().flat_map(|time| ["for", time.as_str()]);
                ("log-level", level.iter().map(String::as_str).chain(time).collect())
            }
            Command::Reload => ("reload", Vec::new()),
            Command::Upgrade(upgrade) => {
                owned = upgrade.words();
                ("upgrade", words(&owned))
            }
            Command::Stop => ("stop", Vec::new()),
        };
        let mut line = name.to_owned();
        for word in arguments {
            line.push(' ');
            line.push_str(&quoted(word));
        }
        if matches!(format, Format::Json) {
            line.push_str(" json");
        }
        line
    }
}

fn socket_path(arguments: &Arguments, named_by_environment: Option<PathBuf>) -> Result<PathBuf, Failure> {
    match (&arguments.config, &arguments.socket) {
        (Some(file), _) => socket_of(file),
        (None, Some(socket)) => Ok(socket.clone()),
        (None, None) => Ok(named_by_environment.unwrap_or_else(|| PathBuf::from(DEFAULT_SOCKET))),
    }
}

fn socket_of(file: &Path) -> Result<PathBuf, Failure> {
    match load::control_socket(file)? {
        Some(socket) => Ok(socket),
        None => Err(Failure::usage(format_args!(
            "{}: this configuration has no control socket\n  hint: add\n    [control]\n    socket = \"{DEFAULT_SOCKET}\"",
            plain(&file.display().to_string())
        ))),
    }
}

/// Explains what kind of file a path is that is not a socket.
fn no_socket(path: &Path) -> Failure {
    let shown = plain(&path.display().to_string());
    let hint = match load::file(path, &load::environment()) {
        Ok(_) => format!("it is a configuration: penstock ctl --config {}", shell::path(Path::new(&shown))),
        Err(_) => format!(
            "[control] socket of the server's configuration says where it is; --config FILE takes it from there \
             [default: {DEFAULT_SOCKET}]"
        ),
    };
    Failure::usage(format_args!("{shown} is no socket\n  hint: {hint}"))
}

fn failed(error: ClientError) -> Failure {
    match error {
        ClientError::BadCommand(_) | ClientError::BadPath(_) => Failure::usage(error),
        ClientError::NoSocketThere(path) => no_socket(&path),
        // The message comes from the server: escape terminal control characters.
        ClientError::Refused(message) => {
            let lines: Vec<_> = message.lines().map(plain).collect();
            Failure::runtime(lines.join("\n"))
        }
        other => Failure::Runtime(other.into()),
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        failed(error)
    }
}

fn patience(text: &str) -> Result<Duration, String> {
    duration::between(text, Duration::from_millis(1), Duration::from_secs(3600))
}

fn words(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(words: &[&str]) -> Result<Arguments, clap::Error> {
        Alone::try_parse_from([&["ctl"], words].concat()).map(|alone| alone.arguments)
    }

    fn line(words: &[&str]) -> String {
        let arguments = parse(words).unwrap();
        arguments.command.line(if arguments.json { Format::Json } else { Format::Text })
    }

    /// Arguments, and the resulting protocol line.
    const LINES: &[(&[&str], &str)] = &[
        (&["status"], "status"),
        (&["backends", "--json"], "backends json"),
        (&["--json", "events", "-n", "5"], "events 5 json"),
        (&["events", "--follow"], "events follow"),
        (&["events", "-f", "-n", "0"], "events 0 follow"),
        (&["backends", "app"], "backends app"),
        (&["drain", "app", "unix:/run/a.sock"], "drain app unix:/run/a.sock"),
        (&["ready", "app", "[::1]:80"], "ready app [::1]:80"),
        (&["drain", "10.0.0.1:80"], "drain 10.0.0.1:80"),
        (&["drain", "app", "10.0.0.1:80", "--for", "60s"], "drain app 10.0.0.1:80 for 60s"),
        (&["weight", "10.0.0.1:80", "7"], "weight 10.0.0.1:80 7"),
        (&["weight", "app", "10.0.0.1:80", "default"], "weight app 10.0.0.1:80 default"),
        (&["certs"], "certs"),
        (&["dsr", "status", "--json"], "dsr status json"),
        (
            &["dsr", "explain", "192.0.2.7:4000", "[2001:db8::1]:80", "tcp"],
            "dsr explain 192.0.2.7:4000 [2001:db8::1]:80 tcp",
        ),
        (
            &[
                "dsr",
                "trace",
                "--to",
                "x",
                "--from",
                "192.0.2.0/24",
                "--verdict",
                "dropped",
                "--packets",
                "9",
            ],
            "dsr trace for 60000ms size 67108864 packets 9 from 192.0.2.0/24 verdict dropped",
        ),
        (&["sessions"], "sessions"),
        (
            &[
                "sessions",
                "--listener",
                "web",
                "--longer-than",
                "1m",
                "--sort",
                "rate",
                "--limit",
                "5",
                "--json",
            ],
            "sessions --listener web --longer-than 60000ms --sort rate --limit 5 json",
        ),
        (&["kill", "7", "192.0.2.1:80"], "kill 7 192.0.2.1:80"),
        (&["kill", "--client", "192.0.2.0/24", "--yes"], "kill --client 192.0.2.0/24 --yes"),
        (&["why", "tcp://smtp"], "why tcp://smtp"),
        (&["why", "--session", "ab12"], "why --session ab12"),
        (&["why", "tcp://smtp", "--pending"], "why --pending tcp://smtp"),
        (
            &["why", "--header", "X-A: b", "--from", "::1", "--header", "c: d", "http://a/b?c"],
            "why --from ::1 --header \"X-A: b\" --header \"c: d\" http://a/b?c",
        ),
        (&["certs", "a.example", "--json"], "certs a.example json"),
        (&["clients"], "clients"),
        (&["clients", "app", "--json"], "clients app json"),
        (&["clients", "--within", "300s", "app"], "clients app within 300s"),
        (&["show"], "show"),
        (&["show", "pool.app", "--json"], "show pool.app json"),
        (&["set", "pool.app.balance", "hash"], "set pool.app.balance hash"),
        (&["set", "access-log.format", "json"], "set access-log.format \"json\""),
        (&["set", "a.b", "-1", "--json"], "set a.b -1 json"),
        (&["add", "listener.web.route", "{ host = \"x\" }"], r#"add listener.web.route "{ host = \"x\" }""#),
        (&["remove", "pool.app"], "remove pool.app"),
        (&["remove", "pool.app.backends", "10.0.0.1:80"], "remove pool.app.backends 10.0.0.1:80"),
        (&["begin"], "begin"),
        (&["diff"], "diff"),
        (&["commit"], "commit"),
        (&["commit", "--confirm", "60s"], "commit confirm 60000ms"),
        (&["confirm"], "confirm"),
        (&["abort"], "abort"),
        (&["abort", "--force"], "abort force"),
        (&["undo"], "undo"),
        (&["undo", "7", "--json"], "undo 7 json"),
        (&["undo", "7", "--and-later"], "undo 7 and-later"),
        (&["history"], "history"),
        (&["history", "7"], "history 7"),
        (&["save"], "save"),
        (
            &[
                "capture",
                "--listener",
                "web",
                "--to",
                "x",
                "--max-size",
                "2MiB",
                "--for",
                "5s",
                "--client",
                "::1",
            ],
            "capture web for 5000ms size 2097152 client ::1",
        ),
        (&["health"], "health"),
        (&["health", "app", "shop", "--json"], "health app shop json"),
        (&["log-level"], "log-level"),
        (&["log-level", "debug", "--for", "5m"], "log-level debug for 5m"),
        (&["reload"], "reload"),
        (&["upgrade"], "upgrade"),
        (&["upgrade", "--check", "/opt/p"], "upgrade check /opt/p"),
        (&["upgrade", "/opt/p", "--drain-for", "2h"], "upgrade /opt/p drain-for 2h"),
        (&["stop"], "stop"),
    ];

    #[test]
    fn each_command_becomes_the_line_that_the_server_reads() {
        for (typed, sent) in LINES {
            assert_eq!(line(typed), *sent);
        }
    }

    #[test]
    fn every_command_of_the_server_can_be_typed_and_is_tried_here() {
        let all: BTreeSet<_> = serve::control::commands().filter(|name| *name != "help").collect();
        let here = Alone::command();
        let here: BTreeSet<_> =
            here.get_subcommands().map(clap::Command::get_name).filter(|name| *name != "top").collect();
        assert_eq!(here, all, "enum Command here, and COMMANDS in crates/serve/src/control/command.rs");
        let tried: BTreeSet<_> = LINES.iter().filter_map(|(_, sent)| sent.split(' ').next()).collect();
        assert_eq!(tried, all, "LINES has a line for each");
    }

    /// Arguments of which one is missing, one too many or one wrong.
    fn wrong_arguments(command: &str) -> &'static [&'static str] {
        match command {
            "status" | "begin" | "diff" | "confirm" | "reload" | "stop" => &["now"],
            "backends" | "certs" => &["a b"],
            "clients" => &["a b", "--within", "a --within 5s --within 6s"],
            "events" => &["5", "-n", "-n x", "-n -1", "-n 1025", "--follow=yes"],
            "sessions" => {
                &["x", "--sort", "--sort x", "--limit x", "--limit -1", "--longer-than x", "--client"]
            }
            "kill" => &["", "--client", "--longer-than x", "--sort age"],
            "top" => &["x", "--once x"],
            "why" => &["", "a b", "--session", "--from", "--header http://a/"],
            "dsr" => &[
                "",
                "x",
                "status x",
                "explain",
                "explain a",
                "explain a b tcp x",
                "trace",
                "trace --packets x",
            ],
            "drain" => &["", "a b c", "--for 5s", "a --for", "a --for 5s --for 6s"],
            "ready" => &["", "a b c", "a --for 5s"],
            "weight" => &["", "a", "a b c d"],
            "show" => &["a b"],
            "set" | "add" => &["", "a", "a b c"],
            "remove" => &["", "a b c"],
            "commit" => &["now", "--confirm", "--confirm soon", "--confirm 0", "--confirm 25h"],
            "abort" => &["now", "--force=yes"],
            "undo" => &["x", "-1", "1 2", "--and-later"],
            "history" => &["x", "-1", "1 2"],
            "save" => &["a b"],
            "capture" => &[
                "",
                "web",
                "--listener web",
                "--listener web --to x --max-size x",
                "--listener web --to x --for x",
            ],
            "upgrade" => &["a b", "/a --drain-for", "--check=yes"],
            "health" => &["--pool"],
            "log-level" => &["a b", "--for 5m", "debug --for"],
            other => panic!("{other} has no line here"),
        }
    }

    #[test]
    fn every_command_refuses_arguments_that_are_missing_too_many_or_wrong() {
        for command in Alone::command().get_subcommands().map(|command| command.get_name().to_owned()) {
            let many = "one two three four five six seven eight nine ten";
            // These take any number of words, and the server knows which of them are right.
            let takes_many = ["health", "kill"].contains(&&*command);
            let wrong = wrong_arguments(&command).iter().copied();
            for arguments in wrong.chain(["--nothing"]).chain((!takes_many).then_some(many)) {
                let words: Vec<_> = std::iter::once(&*command).chain(arguments.split(' ')).collect();
                let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
                assert!(parse(&words).is_err(), "{command} {arguments}");
            }
        }
        for words in [&["status", "--timeout", "0"][..], &["status", "--timeout", "x"], &[], &["nothing"]] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn words_that_would_change_the_command_are_refused() {
        for bad in ["", "a\nstop", "a\u{1b}"] {
            assert!(parse(&["drain", "app", bad]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn blanks_and_quotes_in_a_name_stay_in_one_word() {
        assert_eq!(line(&["drain", "unix:/run/my app.sock"]), r#"drain "unix:/run/my app.sock""#);
        assert_eq!(line(&["drain", r#""a \b"#]), r#"drain "\"a \\b""#);
    }

    #[test]
    fn socket_is_taken_from_the_flag_then_the_environment_then_the_default() {
        let path = |words: &[&str], environment: Option<&str>| {
            socket_path(&parse(words).unwrap(), environment.map(PathBuf::from)).unwrap()
        };
        assert_eq!(path(&["--socket", "/a", "status"], Some("/b")), PathBuf::from("/a"));
        assert_eq!(path(&["status"], Some("/b")), PathBuf::from("/b"));
        assert_eq!(path(&["status"], None), PathBuf::from(DEFAULT_SOCKET));
        assert!(parse(&["--socket", "/a", "--config", "/b", "status"]).is_err());
    }

    #[test]
    fn refusal_of_the_server_is_shown_without_control_characters() {
        let Failure::Runtime(error) = failed(ClientError::Refused("no\u{1b}[2J\nsuch pool".into())) else {
            panic!("a refusal is a failure at run time")
        };
        assert_eq!(error.to_string(), "no\u{fffd}[2J\nsuch pool");
    }
}
