//! `penstock known-hosts`: identities for OpenSSH's `KnownHostsCommand`.

use std::path::Path;

use clap::Args;
use logic::fleet::openssh::{Hearer, LAUNCHER, Refusal, identity_options};
use logic::identity::{Decision, Effect, Found, Index, Name, Verdict, unqueued};
use logic::ssh::config::{Asked, overruling};
use logic::ssh::key::PublicKey;
use ssh::identity::{Answer, Asked as Question, Identities, IdentityError, Pending, Places, Store};
use ssh::{ConfigFiles, SshConfig, Target};

use crate::output::{Failure, complain, plain, print};
use crate::paste::quote;

/// Print known_hosts lines of a host, for the KnownHostsCommand of OpenSSH
///
/// With it ssh, scp, sftp, rsync, git and Ansible obey the same identities as penstock. A host that is not enrolled has no
/// lines; a person is told why on standard error. When ssh hands over the key that a host showed and it is refused, why is said
/// on standard error, and the exit code is 1: ssh then ends the connection, with any value of StrictHostKeyChecking. A host that is
/// not known waits in `penstock host pending`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The host as it is called: what was typed, or HostKeyAlias (%k)
    #[arg(required_unless_present = "stanza")]
    name: Option<String>,
    /// What ssh compares the lines with (%H), made of the address [default: NAME]
    #[arg(value_name = "PATTERN")]
    pattern: Option<String>,
    /// Why ssh asks (%I): ORDER, HOSTNAME or ADDRESS
    reason: Option<String>,
    /// The type of the key that the host showed (%t)
    #[arg(value_name = "TYPE")]
    kind: Option<String>,
    /// The key that the host showed (%K)
    key: Option<String>,
    /// The port that ssh connects to (%p) [default: that of NAME, else 22]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// An engine of ours reads why a host is refused
    #[arg(long, hide = true)]
    engine: bool,
    /// Print the lines to paste into ~/.ssh/config
    #[arg(long, conflicts_with = "name")]
    stanza: bool,
}

impl Arguments {
    fn hearer(&self) -> Hearer {
        if self.engine { Hearer::Engine } else { Hearer::Person }
    }
}

/// What stands above the block for `ssh_config`.
const STANZA_HEAD: &str = "\
# penstock: ssh, scp, rsync and git know hosts by the identities of \"penstock host\", not by known_hosts.
# To undo it, delete these comments and the block below.
";

const EXAMPLES: &str = "\
Examples:
  penstock known-hosts --stanza >> ~/.ssh/config
  penstock known-hosts web1

The name is the identity: %k is what somebody typed, and %H what ssh_config or the DNS made of it, which proves nothing.";

/// Prints the lines.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.stanza {
        let lines: String = stanza(Hearer::Person)?.iter().map(|line| format!("    {line}\n")).collect();
        // The file that this is added to may end in the middle of a line.
        print(&format!("\n{STANZA_HEAD}Host *\n{lines}"))?;
        return warn();
    }
    // What ssh does with a host that has no lines depends on its configuration; a failure ends the connection.
    let refused = |why: &str| {
        if arguments.reason.is_none() {
            complain(&format!("penstock: {}\n", plain(why)));
            return Ok(());
        }
        complain(&format!("penstock: {}; nothing was sent\n", plain(why)));
        Err(Failure::Status(1))
    };
    let asked = arguments.name.as_deref().unwrap_or_default();
    // A name that cannot be one of ours has no lines.
    let asked = match asked.parse::<Name>() {
        Ok(asked) => asked,
        Err(error) => return refused(&error.to_string()),
    };
    let pattern = arguments.pattern.as_deref().unwrap_or(asked.as_str());
    if matches!(pattern, "ORDER" | "HOSTNAME" | "ADDRESS") {
        return anew("hands over an address where the name belongs");
    }
    // It goes into a file of lines.
    if pattern.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return refused(&format!("{pattern:?} is no name of a host"));
    }
    let shown = match (arguments.reason.as_deref(), arguments.kind.as_deref(), arguments.key.as_deref()) {
        // A person asks, or ssh wants to know which types of keys to ask for: it believes none of these lines.
        (None | Some("ORDER"), ..) => None,
        (Some("HOSTNAME" | "ADDRESS"), Some(kind), Some(key)) => {
            let is_word = |word: &str| !word.contains(char::is_whitespace);
            let words = Some(format!("{kind} {key}")).filter(|_| is_word(kind) && is_word(key));
            match words.and_then(|words| words.parse::<PublicKey>().ok()) {
                Some(shown) => Some(shown),
                None => return refused(&format!("{asked} showed a key that cannot be read")),
            }
        }
        (Some("HOSTNAME" | "ADDRESS"), ..) => return anew("does not hand over the key that the host showed"),
        (Some(reason), ..) => return refused(&format!("{reason:?} is no reason to ask that is known here")),
    };
    let store = Store::new(Places::of_user().map_err(Failure::runtime)?);
    // `[web1]:2222` of a person says the port. With a port beside it, as ssh hands over, it is a name like any other (HostKeyAlias):
    // the identity that is called so comes before web1, at every door.
    let (name, port) = match (arguments.port, asked.split_port()) {
        (Some(port), _) => (asked.as_str(), port),
        (None, (name, own)) => (name, own.unwrap_or(22)),
    };
    let question = Question { name, port, pattern, shown: shown.as_ref() };
    if let Some(lines) = store.known_hosts_quickly(&question).map_err(failed)? {
        return write(&lines);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let identities = Identities::load(store.clone()).map_err(failed)?;
    let why = arguments.reason.is_none().then(|| why_no_lines(identities.index(), name, port));
    let (answer, flushed) = runtime.block_on(identities.known_hosts(&question));
    for error in flushed.failed {
        complain(&format!("penstock: {}\n", plain(&error.to_string())));
    }
    match answer {
        Answer::Lines(lines) => {
            if let Some(why) = why.filter(|_| lines.is_empty()) {
                complain(&format!("penstock: {why}\n"));
            }
            write(&lines)
        }
        Answer::Refused { decision, index } => {
            refuse(*decision, &index, &question, &store, arguments.hearer())
        }
    }
}

/// Why a host has no lines, and what to do, for a person. An ssh whose command does not hand over why it asks (%I) is told, too:
/// it shows the words and goes on, since the exit code is 0, while a failure would end its connection.
fn why_no_lines(index: &Index, name: &str, port: u16) -> String {
    let shown = plain(name);
    match index.find(name, port) {
        Found::Nobody => format!(
            "{shown} is not enrolled: there is no line of it\n  \
             next: penstock host add {shown} --fingerprint SHA256:... (read on its console)"
        ),
        Found::Damaged(damage) => {
            format!(
                "{} is damaged: there is no line of {shown}\n  next: penstock host audit",
                plain(&damage.path)
            )
        }
        Found::Ambiguous(hosts) => {
            let hosts: Vec<_> = hosts.iter().map(|host| plain(host.as_str())).collect();
            format!(
                "{shown} is no identity, but a hint of several hosts: ask for one of {}",
                hosts.join(", ")
            )
        }
        Found::Host(host) => {
            let host = plain(host.name().as_str());
            format!("{host} has no key that is trusted now\n  next: penstock host show {host}")
        }
    }
}

/// Says why a host is refused, and puts one that is not enrolled into the queue of `penstock host pending`.
fn refuse(
    decision: Decision,
    index: &Index,
    question: &Question<'_>,
    store: &Store,
    hearer: Hearer,
) -> Result<(), Failure> {
    let Decision { verdict, effects, .. } = decision;
    let Verdict::Refused { reason, message, advice } = verdict else { return Err(Failure::Status(1)) };
    let advice = match place(question, index) {
        Some(target) => target.advice(reason, advice),
        None => advice,
    };
    let advice = match queue(store, effects) {
        Ok(()) => advice,
        // The refusal stands, and the advice names no list that the host is not in.
        Err(error) => format!("{} (not in penstock host pending: {error})", unqueued(&advice)),
    };
    let refusal = Refusal { reason, message: plain(&message), advice: plain(&advice) };
    // An engine that cannot tell our words from those of the host hands over a mark.
    let mark = std::env::var(Refusal::MARK)
        .ok()
        .filter(|mark| mark.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    complain(&match (hearer, mark) {
        (Hearer::Engine, Some(mark)) => refusal.said_with(&mark),
        _ => refusal.said(hearer),
    });
    Err(Failure::Status(1))
}

/// Refuses, because the `KnownHostsCommand` of `ssh_config` is of another version than this program needs.
fn anew(fault: &str) -> Result<(), Failure> {
    complain(&format!(
        "penstock: KnownHostsCommand {fault}, so every host is refused\n  \
         delete that block and paste a new one: penstock known-hosts --stanza\n"
    ));
    Err(Failure::Status(1))
}

/// Puts a host that nobody knows where `penstock host pending` shows it. Nothing else is recorded: whoever is refused for
/// another reason has shown nothing new, and ssh does not say at which address it was.
fn queue(store: &Store, effects: Vec<Effect>) -> Result<(), IdentityError> {
    effects.into_iter().try_for_each(|effect| match effect {
        Effect::Queue { name, address, port, key } => {
            store.queue(Pending { name, port, address, date: ssh::identity::now().date(), key: *key })
        }
        _ => Ok(()),
    })
}

/// Says which settings of `~/.ssh/config` stand before a stanza that is added to it, and win.
fn warn() -> Result<(), Failure> {
    let store = Store::new(Places::of_user().map_err(Failure::runtime)?);
    // The stanza is printed; whoever has faults in a file is told by everything else.
    let (Ok(index), Ok(config)) = (store.load(), SshConfig::read(&ConfigFiles::Usual)) else { return Ok(()) };
    let enrolled = index.hosts().iter().map(|host| host.name().split_port().0.to_owned());
    let mut told: Vec<String> = Vec::new();
    // Many hosts are told apart by few blocks; each may have a command of `Match exec`.
    for host in enrolled.take(MOST_RESOLVED).chain(["localhost".to_owned()]) {
        let Ok(resolved) = config.resolve(&Asked { host, ..Asked::default() }) else { continue };
        for one in overruling(&resolved) {
            let place = one.place.map_or_else(String::new, |place| format!("{place}: "));
            let line = format!("  {place}{}: ssh {}\n", plain(&one.line), one.meaning);
            if !told.contains(&line) {
                told.push(line);
            }
        }
    }
    if !told.is_empty() {
        complain(&format!(
            "penstock: ssh takes the first value that it finds: put the block at the top of the file, before\n{}",
            told.concat()
        ));
    }
    Ok(())
}

/// So many hosts are looked up in the configuration for a warning.
const MOST_RESOLVED: usize = 200;

/// Where the configuration says that a host is, if that is where `ssh` goes: options may say something else, and of a port
/// that they say it is told that the configuration does not.
fn place(question: &Question<'_>, index: &Index) -> Option<Target> {
    let Question { name, port, pattern, .. } = *question;
    let config = SshConfig::read(&its_files()).ok()?;
    let asked = Asked { host: name.to_owned(), ..Asked::default() };
    let mut target = Target::from_config(&config, &asked).ok()?.target;
    if target.port != port {
        (target.port, target.said.port) =
            (port, Some(format!("port {port} comes from elsewhere, as from ssh -p")));
    }
    let pattern = pattern.parse::<Name>().ok()?;
    let is_there = pattern.split_port().0.eq_ignore_ascii_case(&target.host);
    target.hinted(&config, index).ok().filter(|_| is_there)
}

/// The configuration that the `ssh` which runs us was given with `-F`, else the usual one.
fn its_files() -> ConfigFiles {
    let line = std::fs::read(format!("/proc/{}/cmdline", std::os::unix::process::parent_id()));
    let line = line.unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0).skip(1).skip_while(|word| !word.starts_with(b"-F"));
    let file = match words.next() {
        Some(b"-F") => words.next(),
        Some(word) => word.strip_prefix(b"-F"),
        None => None,
    };
    match file.map(|file| String::from_utf8_lossy(file).into_owned()) {
        Some(none) if none == "none" => ConfigFiles::None,
        Some(file) => ConfigFiles::Only(file.into()),
        None => ConfigFiles::Usual,
    }
}

/// Options with which the user's `ssh` obeys our identities and asks nobody else, for an engine of ours that runs it; none
/// where nobody has been enrolled yet: ssh then knows hosts by its own files.
pub fn options() -> Result<Vec<String>, Failure> {
    let store = Store::new(Places::of_user().map_err(Failure::usage)?);
    if store.load().map_err(|error| Failure::usage(whole(error)))?.is_empty() {
        return Ok(Vec::new());
    }
    Ok(stanza(Hearer::Engine)?.into_iter().collect())
}

fn stanza(hearer: Hearer) -> Result<[String; 7], Failure> {
    // ssh wants an absolute path.
    let program = std::env::current_exe()?;
    let cannot = |why: &str| {
        let program = plain(&program.display().to_string());
        Failure::runtime(format!("ssh cannot be made to ask {program}: {why}"))
    };
    // The kernel says of a program that was replaced that it is deleted.
    if !program.is_file() {
        return Err(cannot("it was moved or replaced since it was started; start it anew"));
    }
    if program.to_str().is_none_or(|text| text.contains(char::is_control)) {
        return Err(cannot("its path is no plain text; put it elsewhere"));
    }
    // Without it ssh would not ask, and go by its other settings.
    if hearer == Hearer::Person && !Path::new(LAUNCHER).is_file() {
        return Err(cannot(&format!("{LAUNCHER}, which is to start it, is not there")));
    }
    Ok(identity_options(&quote(&program), hearer))
}

/// An error with its causes: they name the line of the list that the operator has to repair.
fn failed(error: IdentityError) -> Failure {
    Failure::Runtime(error.into())
}

/// An error and what caused it, on one line.
pub fn whole(error: IdentityError) -> String {
    format!("{:#}", anyhow::Error::from(error))
}

fn write(lines: &[String]) -> Result<(), Failure> {
    print(&lines.iter().map(|line| format!("{line}\n")).collect::<String>())
}
