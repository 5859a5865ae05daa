//! `penstock`: the binary. It parses arguments, calls one function of another crate, and prints the result.
//!
//! - `cmd/serve.rs` runs the front door, `cmd/check.rs` validates a configuration without other effects
//! - `cmd/ctl.rs` sends commands to a running front door; `ctl/client.rs` is the protocol
//! - `cmd/demo.rs` shows the front door in one command; `crates/demo` contains its backends, certificates, traffic and
//!   table
//! - `cmd/host.rs` and `cmd/known_hosts.rs` show and change the identities of hosts; decisions are in `crates/hosts`,
//!   files in `crates/ssh`
//! - `cmd/run.rs` runs a command on many hosts, `cmd/copy.rs` copies files to and from them, with `crates/fleet`
//! - `cmd/lab.rs` starts SSH hosts for trials, with `crates/lab`
//! - `cmd/bench.rs` measures servers, with `crates/bench`
//! - `cmd/import.rs` translates what other load balancers have, with `crates/import`, and serves as `pen` under that name
//! - `cmd/backend.rs` makes this machine a server behind a `dsr` listener
//! - `cmd/doctor.rs` finds what is wrong with this machine; `cmd/doctor/dsr.rs` looks at the servers behind a `dsr`
//!   listener from the balancer
//! - `cmd/service.rs` makes the front door a service of systemd where no package does
//! - `cmd/tls_grade.rs` rates listeners, with `crates/grade`
//! - `cmd/tunnel.rs` brings tunnels up, checks their services and runs jobs through them, with `crates/fleet`
//! - `cmd/ssh.rs` shows the SSH configuration of a host, and explains a connection to it
//! - `cmd/otp.rs` keeps tokens of one-time passwords, with `crates/credentials`
//! - `cmd/dns.rs` prints, publishes and checks keys in the DNS, with `crates/access` and `crates/dns`
//! - `cmd/user.rs` changes the file of those who may control a server over the network, with `crates/access`
//! - `cmd/documents.rs` prints what packages contain: man pages, completions, the schema and the reference page
//!
//! Exit codes: 0 success, 1 failure at run time, 2 wrong usage or a wrong configuration; those of `run`, `tunnel`, `lab` and `bench` are in
//! docs/machine-readable.md.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use sys::privilege::Programs;

use crate::output::Failure;

mod cmd;
mod ctl;
mod directory;
mod duration;
mod load;
mod log;
mod output;
mod paste;
mod rights;
mod signals;
mod threads;
mod usage;

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: sys::allocator::Mimalloc = sys::allocator::Mimalloc;

fn main() -> ExitCode {
    // Before much is allocated. Programs that other commands start keep their huge pages.
    if std::env::args_os().nth(1).is_some_and(|word| word == "serve")
        || cmd::import::called(std::env::args_os()).is_some()
    {
        sys::memory::use_small_pages();
        if let Err(error) = serve::signals::hold() {
            return Failure::from(error).report();
        }
    }
    // A file size limit (RLIMIT_FSIZE) must cause a write error, like a full disk, and not end the process.
    if let Err(error) = sys::file_size::survive_file_size_limit() {
        return Failure::from(error).report();
    }
    if let Err(error) = sys::process::heed_children() {
        return Failure::from(error).report();
    }
    ssh::identity::tell_waits(|text| output::complain(&format!("note: {text}\n")));
    if let Some(words) = cmd::run::mpssh::called(std::env::args_os()) {
        rights::give_up(Programs::Carriers);
        return cmd::run::mpssh::run(words).map_or_else(Failure::report, |()| ExitCode::SUCCESS);
    }
    if let Some(words) = cmd::import::called(std::env::args_os()) {
        return cmd::import::serve(&words).map_or_else(Failure::report, |()| ExitCode::SUCCESS);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if is_test_option(&error) => return Failure::usage(TEST_OPTION).report(),
        Err(mut error) => {
            let words: Vec<String> =
                std::env::args_os().skip(1).filter_map(|word| word.into_string().ok()).collect();
            if let Some(text) = usage::private_key(&words) {
                return Failure::usage(text).report();
            }
            if let Some(text) = usage::negative(&error, &words) {
                return Failure::usage(text).report();
            }
            usage::suggest_command(&mut error, &Cli::command(), &words);
            usage::suggest(&mut error, Cli::command(), words.into_iter());
            return usage::answer(&error).report();
        }
    };
    if let Command::Run(_)
    | Command::Put(_)
    | Command::Get(_)
    | Command::Host(_)
    | Command::Tunnel(_)
    | Command::Ssh(_) = &cli.command
    {
        cmd::lab::note_if_left();
    }
    if let Some(programs) = started_by(&cli.command) {
        rights::give_up(programs);
    }
    // ssh shows what known-hosts says at every connection.
    if !matches!(cli.command, Command::KnownHosts(_)) {
        for (variable, value) in sys::directories::ignored() {
            let value = output::plain(&value.to_string_lossy());
            output::complain(&format!("note: {variable} is ignored: {value} is not an absolute path\n"));
        }
    }
    let result = match cli.command {
        Command::Serve(arguments) => cmd::serve::run(&arguments),
        Command::Check(arguments) => cmd::check::run(&arguments),
        Command::Ctl(arguments) => cmd::ctl::run(&arguments),
        Command::Demo(arguments) => cmd::demo::run(&arguments),
        Command::Run(arguments) => cmd::run::run(&arguments),
        Command::Put(arguments) => cmd::copy::put(&arguments),
        Command::Get(arguments) => cmd::copy::get(&arguments),
        Command::Host(arguments) => cmd::host::run(&arguments),
        Command::KnownHosts(arguments) => cmd::known_hosts::run(&arguments),
        Command::Lab(arguments) => cmd::lab::run(&arguments),
        Command::Bench(arguments) => cmd::bench::run(&arguments),
        Command::TlsGrade(arguments) => cmd::tls_grade::run(&arguments),
        Command::Tunnel(arguments) => cmd::tunnel::run(&arguments),
        Command::Import(arguments) => cmd::import::run(&arguments),
        Command::Backend(arguments) => cmd::backend::run(&arguments),
        Command::Doctor(arguments) => cmd::doctor::run(&arguments),
        Command::Service(arguments) => cmd::service::run(&arguments),
        Command::Ssh(arguments) => cmd::ssh::run(&arguments),
        Command::Otp(arguments) => cmd::otp::run(&arguments),
        Command::Dns(arguments) => cmd::dns::run(&arguments),
        Command::User(arguments) => cmd::user::run(&arguments),
        Command::UpgradeGuardian(arguments) => cmd::guardian::run(&arguments),
        Command::AcmeHelper => serve::acme::helper::run().map_err(Failure::from),
        Command::BenchLoad(arguments) => cmd::bench::load(&arguments),
        Command::BenchSsh(arguments) => cmd::bench_ssh::run(&arguments),
        Command::Config(arguments) => cmd::documents::config(&arguments),
        Command::Man(arguments) => cmd::documents::man(Cli::command(), &arguments),
        Command::Completions(arguments) => cmd::documents::completions(Cli::command(), &arguments),
    };
    // A prompt may still be open and have changed the terminal's settings.
    ssh::keys::restore_terminal();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Programs that a command for operators may start; `None` for other commands.
fn started_by(command: &Command) -> Option<Programs> {
    match command {
        Command::Run(_) | Command::Put(_) | Command::Get(_) | Command::Host(_) | Command::Ssh(_) => {
            Some(Programs::Carriers)
        }
        Command::User(arguments) if arguments.connects() => Some(Programs::Carriers),
        Command::Tunnel(_) => Some(Programs::Named),
        Command::Lab(arguments) => Some(arguments.programs()),
        _ => None,
    }
}

/// Detects the option `-t`, with which other servers check their configuration.
fn is_test_option(error: &clap::Error) -> bool {
    let word = error.get(ContextKind::InvalidArg);
    error.kind() == ErrorKind::UnknownArgument
        && matches!(word, Some(ContextValue::String(word)) if word == "-t")
}

const TEST_OPTION: &str = "there is no option -t
  hint: `penstock check FILE` finds the mistakes in a configuration";

/// One program for the path between clients and a fleet of Linux servers.
#[derive(Debug, Parser)]
#[command(name = "penstock", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(cmd::serve::Arguments),
    Check(cmd::check::Arguments),
    Ctl(cmd::ctl::Arguments),
    Demo(cmd::demo::Arguments),
    Run(Box<cmd::run::Arguments>),
    Put(Box<cmd::copy::PutArguments>),
    Get(Box<cmd::copy::GetArguments>),
    Host(cmd::host::Arguments),
    KnownHosts(cmd::known_hosts::Arguments),
    Lab(cmd::lab::Arguments),
    Bench(cmd::bench::Arguments),
    TlsGrade(cmd::tls_grade::Arguments),
    Tunnel(cmd::tunnel::Arguments),
    Import(cmd::import::Arguments),
    Backend(cmd::backend::Arguments),
    Doctor(cmd::doctor::Arguments),
    Service(cmd::service::Arguments),
    Ssh(cmd::ssh::Arguments),
    Otp(cmd::otp::Arguments),
    Dns(cmd::dns::Arguments),
    User(cmd::user::Arguments),
    #[command(hide = true)]
    AcmeHelper,
    #[command(hide = true)]
    UpgradeGuardian(cmd::guardian::Arguments),
    #[command(hide = true)]
    BenchLoad(cmd::bench::LoadArguments),
    #[command(hide = true)]
    BenchSsh(cmd::bench_ssh::Arguments),
    Config(cmd::documents::ConfigArguments),
    Man(cmd::documents::ManArguments),
    Completions(cmd::documents::CompletionsArguments),
}

const EXAMPLES: &str = "\
Examples:
  penstock demo                                   see it work, with nothing to configure
  penstock serve --listen :8080 --backend 10.0.0.11:8000 --backend unix:/run/app.sock
  penstock check /etc/penstock/penstock.toml      find every mistake in a file before it runs
  penstock serve /etc/penstock/penstock.toml
  penstock ctl status                             what a running server is doing

Exit codes: 0 ok; 1 it failed while running; 2 wrong usage or a wrong configuration. run, put, get, tunnel, lab and bench have more:
see their --help.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn option_of_other_servers_that_checks_a_file_is_known_as_such() {
        for line in [&["penstock", "-t"][..], &["penstock", "serve", "-t"]] {
            assert!(is_test_option(&Cli::try_parse_from(line).unwrap_err()), "{line:?}");
        }
        assert!(!is_test_option(&Cli::try_parse_from(["penstock", "-x"]).unwrap_err()));
    }

    #[test]
    fn every_argument_has_help_text() {
        fn walk(command: &clap::Command, bare: &mut Vec<String>) {
            for argument in command.get_arguments() {
                if argument.get_help().is_none() && !argument.is_hide_set() {
                    bare.push(format!("{} {}", command.get_name(), argument.get_id()));
                }
            }
            command.get_subcommands().for_each(|inner| walk(inner, bare));
        }
        let mut bare = Vec::new();
        walk(&Cli::command(), &mut bare);
        assert!(bare.is_empty(), "without help: {bare:?}");
    }

    #[test]
    fn every_command_says_what_it_does() {
        fn walk(command: &clap::Command, bare: &mut Vec<String>) {
            for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
                if inner.get_about().is_none() {
                    bare.push(format!("{} {}", command.get_name(), inner.get_name()));
                }
                walk(inner, bare);
            }
        }
        let mut bare = Vec::new();
        walk(&Cli::command(), &mut bare);
        assert!(bare.is_empty(), "without a line: {bare:?}");
    }

    #[test]
    fn every_shown_command_ends_its_help_with_an_example() {
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains("  penstock "), "{} has no example", command.get_name());
        }
    }
}
