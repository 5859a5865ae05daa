//! `penstock check`: reports every fault of a configuration. It reads files and has no other effect.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use config::{Loaded, MachineFault, Severity};
use serde_json::json;
use text::units;
use tls::sticky_key::StickyKey;

mod directories;
mod operators;
mod privileges;
mod secrets;
mod tokens;

use crate::load;
use crate::output::{Failure, complain, plain, print, print_json};

/// Find every mistake in a configuration without touching anything
///
/// Reads the file, the PENSTOCK_* variables and the certificates that the file names. Opens no socket, resolves no
/// name, changes nothing: safe beside a running server.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The configuration file; - reads standard input
    #[arg(required_unless_present_any = ["config", "privileges"], conflicts_with = "config")]
    file: Option<PathBuf>,
    /// The same as FILE, for command lines shared with `penstock serve`
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the configuration as it would be used, each value with its source
    #[arg(long)]
    print: bool,
    /// Print what the front door needs (user, capabilities, files, system calls), why, and until when it keeps it; without
    /// FILE, the same of run, put, get, host, ssh, tunnel and lab
    #[arg(long)]
    privileges: bool,
    /// Format of the faults: text for people, json for programs
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Text)]
    format: Format,
    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Treat warnings as errors
    #[arg(long)]
    strict: bool,
}

impl Arguments {
    /// The file, unless it is standard input.
    fn file(&self) -> Option<&Path> {
        self.file.as_deref().or(self.config.as_deref()).filter(|file| file.as_os_str() != "-")
    }

    fn format(&self) -> Format {
        if self.json { Format::Json } else { self.format }
    }
}

/// Format of the faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

const EXAMPLES: &str = "\
Examples:
  penstock check /etc/penstock/penstock.toml
  penstock check --print penstock.toml           what is used, and where each value came from
  penstock check --privileges penstock.toml      as whom it runs, and what it may do
  penstock check --privileges                    what run, put, get, host, ssh, tunnel and lab keep
  penstock check --strict --json - < penstock.toml

Exit codes: 0 the file is good; 2 it is not, or --strict and there is a warning.";

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Some(file) = arguments.file.as_ref().or(arguments.config.as_ref()) else {
        if arguments.privileges && !arguments.print {
            return match arguments.format() {
                Format::Text => print(&operators::table()),
                Format::Json => print_json(&format!("{:#}\n", json!({"privileges": operators::json()}))),
            };
        }
        return Err(Failure::usage("no file is named\n  hint: penstock check /etc/penstock/penstock.toml"));
    };
    let source = load::source(file)?;
    match config::load(&source, &load::environment()) {
        Ok(mut loaded) => {
            add_machine_faults(arguments, &mut loaded);
            match arguments.format() {
                Format::Text => say(arguments, &source.name, &loaded)?,
                Format::Json => print_json(&format!("{:#}\n", json(arguments, &loaded)))?,
            }
            if arguments.strict && !loaded.warnings.is_empty() { Err(Failure::Refused) } else { Ok(()) }
        }
        Err(faults) if arguments.format() == Format::Json => {
            print_json(&format!("{:#}\n", faults.to_json()))?;
            Err(Failure::Refused)
        }
        Err(faults) => Err(Failure::Usage(faults.render())),
    }
}

fn say(arguments: &Arguments, name: &str, loaded: &Loaded) -> Result<(), Failure> {
    if !loaded.warnings.is_empty() {
        complain(&loaded.warnings.render());
    }
    if arguments.print {
        return print(&loaded.print());
    }
    if arguments.privileges {
        return print(&privileges::table(&loaded.config, arguments.file()));
    }
    let refused = arguments.strict && !loaded.warnings.is_empty();
    let verdict = if refused { "refused, because --strict makes warnings errors" } else { "ok" };
    print(&format!("{}: {verdict}: {}\n", plain(name), summary(&loaded.config)))
}

fn json(arguments: &Arguments, loaded: &Loaded) -> serde_json::Value {
    let mut report = loaded.warnings.to_json();
    report["ok"] = json!(!arguments.strict || loaded.warnings.is_empty());
    report["listeners"] = json!(loaded.config.listeners.len());
    report["pools"] = json!(loaded.config.pools.len());
    report["backends"] = json!(backends(&loaded.config));
    report["tunnels"] = json!(loaded.config.tunnels.len());
    if arguments.print {
        report["effective"] = json!(loaded.print());
    }
    if arguments.privileges {
        report["privileges"] = privileges::json(&loaded.config, arguments.file());
    }
    report
}

/// Adds what this machine lacks to the warnings.
fn add_machine_faults(arguments: &Arguments, loaded: &mut Loaded) {
    let severity = if arguments.strict { Severity::Error } else { Severity::Warning };
    for fault in lacking(&loaded.config, arguments.file()) {
        loaded.add_fault(fault, severity);
    }
}

/// What this machine lacks for a configuration.
pub(super) fn lacking(config: &config::Config, file: Option<&Path>) -> Vec<MachineFault> {
    let mut faults = machine_faults(config);
    let closed = privileges::closed(config, file, &faults);
    faults.extend(closed);
    faults
}

/// Finds missing certificates, directories, users and groups that the configuration names.
fn machine_faults(config: &config::Config) -> Vec<MachineFault> {
    let certificates = config.tls_sections().flat_map(|(section, tls)| {
        let faults = tls::check(tls);
        faults.into_iter().map(move |(key, message)| fault(format!("{section}.tls.{key}"), &message))
    });
    let backends = config.pools.iter().filter_map(|pool| Some((&pool.name, pool.tls.as_ref()?)));
    let backends = backends.flat_map(|(name, tls)| {
        let key = format!("pool.{name}.tls");
        let faults = tls::backend::check(tls);
        faults.into_iter().map(move |message| fault(key.clone(), &message))
    });
    let keys = config.listeners.iter().filter_map(|listener| {
        let error = StickyKey::read(listener.dsr()?.hash_key_file.as_deref()?).err()?;
        let message = format!("{error} (another node gives flows to other backends)");
        Some(fault(format!("listener.{}.hash-key-file", listener.name), &message))
    });
    let missing = |key: &str, kind: &str, name: &str| {
        let message =
            format!("there is no {kind} named \"{name}\" on this machine: the start would be refused");
        fault(key.to_owned(), &message)
    };
    let user = config.process.user.as_deref().filter(|name| matches!(sys::privilege::user(name), Ok(None)));
    let group =
        config.process.group.as_deref().filter(|name| matches!(sys::privilege::group(name), Ok(None)));
    certificates
        .chain(backends)
        .chain(keys)
        .chain(user.map(|name| missing("process.user", "user", name)))
        .chain(group.map(|name| missing("process.group", "group", name)))
        .chain(directories::missing(config))
        .chain(tokens::missing(config))
        .chain(secrets::unusable(config))
        .collect()
}

fn fault(key: String, message: &str) -> MachineFault {
    MachineFault { key, message: plain(message), hint: None }
}

/// `2 listeners, 3 pools, 7 backends`
fn summary(config: &config::Config) -> String {
    let counts =
        [(config.listeners.len(), "listener"), (config.pools.len(), "pool"), (backends(config), "backend")];
    let tunnels = (config.tunnels.len(), "tunnel");
    let counts = match (config.listeners.is_empty(), config.tunnels.is_empty()) {
        (true, false) => vec![tunnels],
        (false, false) => counts.into_iter().chain([tunnels]).collect(),
        (_, true) => counts.to_vec(),
    };
    counts.into_iter().map(|(count, noun)| units::count(count, noun)).collect::<Vec<_>>().join(", ")
}

fn backends(config: &config::Config) -> usize {
    config.pools.iter().map(|pool| pool.backends.len()).sum()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn arguments(strict: bool) -> Arguments {
        Arguments {
            file: Some("-".into()),
            config: None,
            print: false,
            privileges: false,
            format: Format::Text,
            json: true,
            strict,
        }
    }

    fn loaded(certificates: &str) -> Loaded {
        let text = format!(
            "[listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
             tls = {{ certificates = \"{certificates}\" }}\n\
             [pool.app]\nbackends = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\n"
        );
        let source = config::Source { name: "test.toml".into(), text };
        config::load(&source, &Default::default()).unwrap_or_else(|faults| panic!("{faults}"))
    }

    #[test]
    fn summary_counts_with_the_right_plural() {
        assert_eq!(summary(&loaded("/nowhere").config), "1 listener, 1 pool, 2 backends");
    }

    fn report(loaded: &Loaded, strict: bool) -> serde_json::Value {
        let mut loaded = loaded.clone();
        add_machine_faults(&arguments(strict), &mut loaded);
        json(&arguments(strict), &loaded)
    }

    #[test]
    fn missing_certificates_are_a_warning_with_the_listeners_key_and_an_error_when_strict() {
        let directory = tempfile::tempdir().unwrap();
        let loaded = loaded(&directory.path().join("none").display().to_string());
        let faults = machine_faults(&loaded.config);
        assert!(faults.iter().all(|fault| fault.key == "listener.web.tls.certificates"));
        let relaxed = report(&loaded, false);
        assert_eq!(
            (&relaxed["ok"], &relaxed["errors"], &relaxed["warnings"]),
            (&json!(true), &json!(0), &json!(1))
        );
        let place = &relaxed["faults"][0];
        assert_eq!(
            (&place["line"], &place["column"], &place["file"]),
            (&json!(5), &json!(24), &json!("test.toml"))
        );
        let strict = report(&loaded, true);
        assert_eq!((&strict["ok"], &strict["errors"]), (&json!(false), &json!(1)));
        assert_eq!(strict["faults"][0]["severity"], "error");
    }

    #[test]
    fn a_key_of_the_hash_that_cannot_be_used_is_a_warning_at_its_key() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("key");
        let text = format!(
            "[listener.video]\nbind = \"192.0.2.10:80\"\nprotocol = \"dsr\"\ninterface = \"eth1\"\npool = \"app\"\n\
             hash-key-file = \"{}\"\n[pool.app]\nbackends = [\"192.0.2.21:80\"]\nbalance = \"maglev\"\n",
            file.display()
        );
        let source = config::Source { name: "test.toml".into(), text };
        let loaded = config::load(&source, &Default::default()).unwrap_or_else(|faults| panic!("{faults}"));
        let found =
            || machine_faults(&loaded.config).into_iter().find(|it| it.key.ends_with("hash-key-file"));
        assert!(found().unwrap().message.contains("cannot be read"), "there is no file");
        std::fs::write(&file, "short").unwrap();
        let mode = |mode| std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&file, mode(0o600)).unwrap();
        assert!(found().unwrap().message.contains("has 5 bytes, and a key has from 32"));
        std::fs::write(&file, "k".repeat(44)).unwrap();
        assert!(found().is_none());
        std::fs::set_permissions(&file, mode(0o644)).unwrap();
        assert_eq!(found().unwrap().key, "listener.video.hash-key-file");
    }

    #[test]
    fn each_missing_directory_is_named_at_its_key() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().display();
        std::fs::write(directory.path().join("file"), "").unwrap();
        let text = format!(
            "[process]\npid-file = \"{base}/run/pid\"\nstate-directory = \"{base}/lib/state\"\n\
             [access-log]\ntarget = \"{base}/log/access.log\"\n[control]\nsocket = \"{base}/file/c.sock\"\n\
             [listener.web]\nbind = [\"unix:{base}/sockets/web\", \":80\"]\npool = \"app\"\n\
             [pool.app]\nbackends = [\"127.0.0.1:1\"]\n"
        );
        let source = config::Source { name: "test.toml".into(), text };
        let mut loaded =
            config::load(&source, &Default::default()).unwrap_or_else(|faults| panic!("{faults}"));
        add_machine_faults(&arguments(false), &mut loaded);
        let said = loaded.warnings.render();
        for line in [
            format!("test.toml:2:12: process.pid-file: there is no directory {base}/run: the start"),
            format!(
                "test.toml:3:19: process.state-directory: there is no directory {base}/lib/state, and none above it"
            ),
            format!("test.toml:5:10: access-log.target: there is no directory {base}/log: the start"),
            format!("test.toml:7:10: control.socket: {base}/file is no directory: nothing can be made in it"),
            format!("test.toml:9:8: listener.web.bind: there is no directory {base}/sockets: the start"),
            format!("hint: make it: mkdir -p {base}/log\n"),
        ] {
            assert!(said.contains(&line), "{line}\nis not in\n{said}");
        }
        assert_eq!(loaded.warnings.len(), 5, "{said}");
        for made in ["run", "lib", "log", "sockets"] {
            std::fs::create_dir(directory.path().join(made)).unwrap();
        }
        let keys: Vec<_> = machine_faults(&loaded.config).into_iter().map(|fault| fault.key).collect();
        assert_eq!(keys, ["control.socket"], "the state directory is made by the start");
    }
}
