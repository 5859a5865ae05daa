//! `penstock serve`: reads the configuration, starts the log and runs `serve::run`.

use std::ffi::OsString;
use std::io;
use std::path::{self, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use text::shell;

use clap::Args;
use config::types::ProtocolName;
use config::{Config, Environment, Loaded, Quick, Source};
use logic::balance::Policy;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use serve::confinement::Sandbox;
use serve::start::{ConfigSource, Options, Side, Strictness, nothing_to_serve};
use serve::upgrade::Launch;
use serve::upgrade::take_over::TakeOver;
use text::words::alternatives;

use crate::output::{Failure, complain, plain};
use crate::{duration, load, log};

/// Run the front door: accept traffic and send it to backends
///
/// Either from a file, or without one: --listen and --backend are enough. SIGHUP reads the file again
/// without ending a connection; SIGTERM takes no new connections and lets the others end. Standard error has a line
/// "ready" once everything listens; PENSTOCK_LOG (such as "debug" or "proxy=debug") says how much else.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The configuration file; the variable PENSTOCK_CONFIG names it too
    #[arg(value_name = "FILE", conflicts_with_all = ["config", "listen"])]
    file: Option<PathBuf>,
    /// The same as FILE, for unit files of systemd
    #[arg(long, short, value_name = "FILE", conflicts_with = "listen")]
    config: Option<PathBuf>,
    /// Refuse to start when something does not work as configured: a name that does not resolve, a bad certificate, a
    /// PENSTOCK_ variable that names no key. Without this, that part is degraded and everything else serves
    #[arg(long)]
    strict: bool,
    /// Leave files and system calls unrestricted (no Landlock, no seccomp). Capabilities are dropped all the same
    #[arg(long)]
    no_sandbox: bool,
    /// Give up the services of dsr listeners after this time (60, 60s, 5m), as at a stop, unless `penstock ctl confirm`
    /// comes first: a mistake in them may cut you off from this machine. Other listeners go on
    #[arg(long, value_name = "TIME", value_parser = confirmation)]
    commit_confirm: Option<Duration>,
    /// A program that `penstock ctl upgrade` may start in place of this one, or a directory of such programs; may be
    /// repeated. The path by which this process is started is always one
    #[arg(long, value_name = "PATH")]
    allow_upgrade: Vec<PathBuf>,
    /// Refuse `penstock ctl upgrade`: no process is kept that could start the next one
    #[arg(long, conflicts_with = "allow_upgrade")]
    no_upgrade: bool,
    /// Take over from the process at the other end of standard input
    #[arg(long, hide = true)]
    take_over: bool,
    /// Address to listen on, such as :8080, 127.0.0.1:8080 or unix:/run/web.sock; may be repeated
    #[arg(long, short, value_name = "ADDRESS", help_heading = QUICK)]
    listen: Vec<String>,
    /// Backend, such as 10.0.0.11:8000, app.internal:8000, unix:/run/app.sock or ssh:HOST/127.0.0.1:8000 (through that SSH host); may be
    /// repeated, and followed by its own settings: 10.0.0.11:8000,weight=2,max-connections=100
    #[arg(long, short, value_name = "ADDRESS", help_heading = QUICK)]
    backend: Vec<String>,
    /// Forward packets that come in at this network interface to the backends, which reply straight to the clients (direct
    /// server return); --listen is then the virtual address, backends need no port, and --protocol is tcp, udp or
    /// tcp-and-udp
    #[arg(long, value_name = "INTERFACE", help_heading = QUICK)]
    dsr: Option<String>,
    #[arg(long, value_name = "PROTOCOL", help_heading = QUICK,
        help = format!("What clients speak: {}", alternatives(ProtocolName::WORDS)))]
    protocol: Option<String>,
    #[arg(long, value_name = "POLICY", help_heading = QUICK,
        help = format!("How a backend is chosen: {}", Policy::choices()))]
    balance: Option<String>,
    /// Worker threads: a number, or auto for one per core
    #[arg(long, value_name = "N", help_heading = QUICK)]
    workers: Option<String>,
    /// Health check of backends: tcp, off, or the path of an HTTP check such as /healthz
    #[arg(long, value_name = "CHECK", help_heading = QUICK)]
    health: Option<String>,
    /// Serve TLS with the certificates in this directory: NAME.pem, or NAME.crt and NAME.key
    #[arg(long, value_name = "DIR", help_heading = QUICK)]
    certificates: Option<String>,
    /// Make a control socket here, for `penstock ctl --socket PATH`
    #[arg(long, value_name = "PATH", help_heading = QUICK)]
    control: Option<String>,
    /// Serve metrics, health and status here, such as 127.0.0.1:9900
    #[arg(long, value_name = "ADDRESS", help_heading = QUICK)]
    admin: Option<String>,
    /// Destination of the access log: stdout, stderr, off or a path
    #[arg(long, value_name = "TARGET", help_heading = QUICK)]
    access_log: Option<String>,
    /// End when the parent process ends; for programs that run a server as a part of themselves
    #[arg(long, hide = true)]
    end_with_parent: bool,
}

const QUICK: &str = "Without a file (or as variables: PENSTOCK_LISTEN, PENSTOCK_BACKEND and so on)";

const EXAMPLES: &str = "\
Examples:
  penstock serve --config /etc/penstock/penstock.toml
  penstock serve --listen :8080 --backend 10.0.0.11:8000 --backend unix:/run/app.sock
  penstock serve --listen :8080 --backend ssh:web1/127.0.0.1:8000
  penstock serve --listen :8080 --backend 10.0.0.11:8000 --health /healthz --admin 127.0.0.1:9900
  penstock serve --dsr eth1 --listen 192.0.2.10:80 --backend 192.0.2.21 --backend 192.0.2.22
  penstock serve --listen :5432 --protocol tcp --backend 10.0.0.21:5432 --balance least-connections";

/// Serves until the process is told to stop.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if !arguments.take_over {
        return serve(arguments, None);
    }
    let take_over = TakeOver::from_standard_input().map_err(Failure::usage)?;
    let ended = serve(arguments, Some(take_over.clone()));
    if let Err(failure) = &ended {
        take_over.failed(&failure.text());
    }
    ended
}

fn serve(arguments: &Arguments, take_over: Option<Arc<TakeOver>>) -> Result<(), Failure> {
    if arguments.end_with_parent {
        prctl::set_pdeathsig(Signal::SIGTERM).map_err(io::Error::from)?;
    }
    let environment = load::environment();
    let (source, config) = configuration(arguments, std::env::var_os("PENSTOCK_CONFIG"), &environment)?;
    if arguments.strict && !config.unknown_variables.is_empty() {
        return Err(Failure::usage(format_args!(
            "the environment has variables that name no key, and --strict refuses them: {}",
            plain(&config.unknown_variables.join(", "))
        )));
    }
    if arguments.commit_confirm.is_some()
        && let Some(why) = nothing_to_confirm(&config.config)
    {
        return Err(Failure::usage(format_args!("--commit-confirm {why}")));
    }
    let strict = if arguments.strict { Strictness::Strict } else { Strictness::Degrade };
    let sandbox = if arguments.no_sandbox { Sandbox::Off } else { Sandbox::On };
    let commit_confirm = arguments.commit_confirm;
    begin(Options {
        source,
        environment,
        config,
        strict,
        sandbox,
        commit_confirm,
        log_level: Some(log::apply),
        launch: launch(arguments),
        take_over,
    })
}

/// How the next process of an upgrade is started, or why there is none.
fn launch(arguments: &Arguments) -> Result<Launch, String> {
    if arguments.no_upgrade {
        return Err("the server was started with --no-upgrade: restart it instead".to_owned());
    }
    if arguments.end_with_parent {
        return Err("the server ends with the program that started it: restart that one instead".to_owned());
    }
    let further = arguments.allow_upgrade.iter().map(path::absolute).collect::<Result<Vec<_>, _>>();
    let further = further.map_err(|error| format!("--allow-upgrade: {error}"))?;
    Launch::read(&further).ok_or_else(|| "the program of this process cannot be found in /proc".to_owned())
}

/// Why no operator could confirm a start with this configuration.
fn nothing_to_confirm(config: &Config) -> Option<&'static str> {
    if config.listeners.iter().all(|listener| listener.dsr().is_none()) {
        return Some("is for the services of dsr listeners, and there is no such listener");
    }
    config.control.is_none().then_some(
        "needs a control socket, by which `penstock ctl confirm` comes\n  hint: [control] socket = \"/run/penstock/control.sock\", or --control PATH",
    )
}

fn confirmation(text: &str) -> Result<Duration, String> {
    duration::between(text, Duration::from_secs(1), Duration::from_secs(24 * 3600))
}

/// Serves a configuration that was made from the command line of another program.
pub(crate) fn run_text(source: Source) -> Result<(), Failure> {
    let environment = load::environment();
    let config = config::load(&source, &environment).map_err(|faults| Failure::Usage(faults.render()))?;
    let source = ConfigSource::Text(source);
    let (strict, sandbox) = (Strictness::Degrade, Sandbox::On);
    let commit_confirm = None;
    begin(Options {
        source,
        environment,
        config,
        strict,
        sandbox,
        commit_confirm,
        log_level: Some(log::apply),
        launch: Err(
            "the server was started by the command line of another program: restart it instead".to_owned()
        ),
        take_over: None,
    })
}

fn begin(options: Options) -> Result<(), Failure> {
    log::start()?;
    if !options.config.warnings.is_empty() {
        complain(&options.config.warnings.render());
    }
    let ended = serve::run(options);
    log::finish();
    ended.map_err(|error| match error.side() {
        Side::Configuration => Failure::usage(error),
        Side::Machine => Failure::Runtime(error.into()),
    })
}

/// Loads the configuration that the arguments name, and returns its source for reloads.
fn configuration(
    arguments: &Arguments,
    named_by_environment: Option<OsString>,
    environment: &Environment,
) -> Result<(ConfigSource, Loaded), Failure> {
    let named_by_environment = named_by_environment.filter(|name| !name.is_empty()).map(PathBuf::from);
    let file = arguments.file.clone().or(arguments.config.clone());
    let is_quick = !arguments.listen.is_empty() || !arguments.backend.is_empty();
    if is_quick || (file.is_none() && named_by_environment.is_none()) {
        let quick = quick(arguments, environment);
        match (quick.listen.is_empty(), quick.backends.is_empty()) {
            (true, true) => {}
            (false, true) => {
                return Err(Failure::usage(missing(&quick, "--listen", "--backend", "PENSTOCK_BACKEND")));
            }
            (true, false) => {
                return Err(Failure::usage(missing(&quick, "--backend", "--listen", "PENSTOCK_LISTEN")));
            }
            (false, false) => {
                let loaded = config::quick(&quick, environment);
                let loaded = loaded.map_err(|faults| Failure::Usage(faults.render()))?;
                return Ok((ConfigSource::Quick(Box::new(quick)), loaded));
            }
        }
    }
    if let Some(flag) = of_quick(arguments) {
        return Err(Failure::usage(format_args!(
            "{flag} goes with --listen and --backend: a configuration file says this itself{}",
            if flag == "--dsr" { format!("\n  hint: {DSR_EXAMPLE}") } else { String::new() }
        )));
    }
    if let Some(socket) = &arguments.control {
        let socket = plain(&absolute(socket));
        return Err(Failure::usage(format_args!(
            "--control goes with --listen and --backend: a configuration file says itself where the control socket is\n  \
             hint: add to the file\n    [control]\n    socket = {socket:?}\n  or for this start: \
             PENSTOCK_CONTROL_SOCKET={} penstock serve FILE",
            shell::path(Path::new(&socket))
        )));
    }
    match file.or(named_by_environment) {
        Some(file) if file.as_os_str() == "-" => Err(Failure::usage(
            "serve needs a file that it can read again at a reload\n  hint: write standard input to a file first; \
             `penstock check -` reads it as it is",
        )),
        Some(file) => {
            let loaded = load::file(&file, environment)?;
            if let Some(why) = nothing_to_serve(&loaded.config) {
                return Err(Failure::usage(format!("{}: {why}", file.display())));
            }
            Ok((ConfigSource::File(file), loaded))
        }
        None => Err(Failure::usage(NOTHING_TO_SERVE)),
    }
}

fn missing(quick: &Quick, given: &str, flag: &str, variable: &str) -> String {
    let example = match quick.dsr {
        Some(_) => DSR_EXAMPLE,
        None => "penstock serve --listen :8080 --backend 10.0.0.11:8000",
    };
    format!("{given} needs {flag}, or the variable {variable}\n  hint: {example}")
}

const DSR_EXAMPLE: &str =
    "penstock serve --dsr eth1 --listen 192.0.2.10:80 --backend 192.0.2.21 --backend 192.0.2.22";

/// Returns a flag that was given and has a meaning only without a file. For --control there is a better message.
fn of_quick(arguments: &Arguments) -> Option<&'static str> {
    let Arguments { dsr, protocol, balance, workers, health, certificates, admin, access_log, .. } =
        arguments;
    let given = [
        ("--dsr", dsr),
        ("--protocol", protocol),
        ("--balance", balance),
        ("--workers", workers),
        ("--health", health),
        ("--certificates", certificates),
        ("--admin", admin),
        ("--access-log", access_log),
    ];
    given.into_iter().find(|(_, value)| value.is_some()).map(|(flag, _)| flag)
}

/// Returns the flags. A flag that is not given has the value of its variable, if that is not empty.
fn quick(arguments: &Arguments, environment: &Environment) -> Quick {
    let variable = |name: &str| {
        let value = environment.get(&format!("PENSTOCK_{name}"));
        value.filter(|value| !value.is_empty()).map(str::to_owned)
    };
    let one = |given: &Option<String>, name: &str| given.clone().or_else(|| variable(name));
    let path = |given: &Option<String>, name: &str| one(given, name).as_deref().map(absolute);
    let list = |given: &[String], name: &str| match given {
        [] => variable(name).unwrap_or_default().split_whitespace().map(str::to_owned).collect(),
        given => given.to_vec(),
    };
    let Arguments { listen, backend, dsr, protocol, balance, workers, health, .. } = arguments;
    let Arguments { certificates, control, admin, access_log, .. } = arguments;
    Quick {
        listen: list(listen, "LISTEN"),
        backends: list(backend, "BACKEND"),
        dsr: one(dsr, "DSR"),
        protocol: one(protocol, "PROTOCOL"),
        balance: one(balance, "BALANCE"),
        health: one(health, "HEALTH"),
        certificates: path(certificates, "CERTIFICATES"),
        control: path(control, "CONTROL"),
        admin: one(admin, "ADMIN"),
        access_log: one(access_log, "ACCESS_LOG"),
        workers: one(workers, "WORKERS"),
    }
}

/// Makes a path on the command line absolute, because a configuration has only absolute paths.
fn absolute(written: &str) -> String {
    // A path that cannot be made absolute (an empty word, a removed directory, a non-UTF-8 name) is refused later.
    let absolute =
        path::absolute(Path::new(written)).ok().and_then(|path| path.into_os_string().into_string().ok());
    absolute.unwrap_or_else(|| written.to_owned())
}

const NOTHING_TO_SERVE: &str = "there is nothing to serve
  hint: name a configuration file:
    penstock serve --config /etc/penstock/penstock.toml
  or say it here:
    penstock serve --listen :8080 --backend 10.0.0.11:8000
  to try it without either: penstock demo";

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(words: &[&str]) -> Result<Arguments, clap::Error> {
        let words = [&["serve"], words].concat();
        let matches = Line::command().try_get_matches_from(words)?;
        Ok(Line::from_arg_matches(&matches)?.arguments)
    }

    #[test]
    fn a_file_is_named_with_or_without_an_option_and_only_once() {
        let environment = Environment::default();
        for words in [&["/none.toml"][..], &["--config", "/none.toml"], &["-c", "/none.toml"]] {
            let Err(Failure::Usage(text)) = configuration(&parse(words).unwrap(), None, &environment) else {
                panic!("{words:?} was read")
            };
            assert!(text.contains("/none.toml: cannot read"), "{words:?}: {text}");
        }
        assert!(parse(&["a.toml", "--config", "b.toml"]).is_err());
        assert!(parse(&["a.toml", "--listen", ":80", "--backend", "127.0.0.1:1"]).is_err());
    }

    #[test]
    fn control_socket_beside_a_file_is_said_to_be_set_in_the_file() {
        for words in [
            &["/none.toml", "--control", "/c"][..],
            &["-c", "/none.toml", "--control", "/c"],
            &["--control", "/c"],
        ] {
            let Err(Failure::Usage(text)) =
                configuration(&parse(words).unwrap(), None, &Environment::default())
            else {
                panic!("{words:?} was taken")
            };
            for part in ["[control]", "socket = \"/c\"", "PENSTOCK_CONTROL_SOCKET=/c penstock serve"] {
                assert!(text.contains(part), "{words:?}: {text}");
            }
        }
    }

    #[test]
    fn paths_of_the_command_line_start_at_the_current_directory() {
        let here = std::env::current_dir().unwrap();
        let words =
            ["--listen", ":80", "--backend", "127.0.0.1:1", "--certificates", "certs", "--control", "/c"];
        let quick = quick(&parse(&words).unwrap(), &Environment::default());
        assert_eq!(quick.certificates.as_deref(), here.join("certs").to_str());
        assert_eq!(quick.control.as_deref(), Some("/c"));
        assert_eq!(absolute(""), "");
    }

    #[test]
    fn every_flag_without_a_file_has_its_variable_and_wins_over_it() {
        let command = Line::command();
        let flags = command.get_arguments().filter(|flag| flag.get_help_heading() == Some(QUICK));
        let mut flags: Vec<_> =
            flags.map(|flag| flag.get_long().unwrap().to_uppercase().replace('-', "_")).collect();
        let mut variables: Vec<_> = config::QUICK_VARIABLES.map(str::to_owned).into();
        flags.sort();
        variables.sort();
        assert_eq!(flags, variables);

        let set = |name: &&str| (format!("PENSTOCK_{name}"), format!("/{}", name.to_lowercase()));
        let variables = config::QUICK_VARIABLES.iter().map(set).collect();
        let environment = Environment { variables, ..Environment::default() };
        let of_variables = format!("{:?}", quick(&parse(&[]).unwrap(), &environment));
        for name in config::QUICK_VARIABLES {
            assert!(
                of_variables.contains(&format!("\"/{}\"", name.to_lowercase())),
                "{name}: {of_variables}"
            );
        }
        let given = parse(&["--listen", ":80", "--backend", "127.0.0.1:1", "--health", "tcp"]).unwrap();
        let quick = quick(&given, &environment);
        assert_eq!((&*quick.listen, quick.health.as_deref()), (&[":80".to_owned()][..], Some("tcp")));
        assert_eq!(quick.balance.as_deref(), Some("/balance"));
    }

    #[test]
    fn flags_that_say_nothing_without_listeners_and_backends_are_refused() {
        for (words, expected) in [
            (&["--listen", ":80"][..], "--listen needs --backend, or the variable PENSTOCK_BACKEND"),
            (&["--backend", "127.0.0.1:1"], "--backend needs --listen, or the variable PENSTOCK_LISTEN"),
            (&["/none.toml", "--health", "tcp"], "--health goes with --listen and --backend"),
            (&["--dsr", "eth1"], "hint: penstock serve --dsr eth1 --listen 192.0.2.10:80"),
            (&["--dsr", "eth1", "--backend", "192.0.2.21"], "hint: penstock serve --dsr eth1 --listen"),
        ] {
            let environment = Environment::default();
            let Err(Failure::Usage(text)) = configuration(&parse(words).unwrap(), None, &environment) else {
                panic!("{words:?} was taken")
            };
            assert!(text.contains(expected), "{text}");
        }
    }
}
