//! `penstock known-hosts`: provides identities to OpenSSH's `KnownHostsCommand`.

use std::path::Path;
use text::shell;

use clap::Args;
use hosts::fleet::openssh::{LAUNCHER, Refusal, StderrReader, identity_options};
use hosts::identity::{Decision, Effect, Found, Index, Name, Verdict, unqueued};
use hosts::ssh::config::{Asked, overruling};
use hosts::ssh::key::PublicKey;
use ssh::identity::{Answer, Asked as Question, Identities, IdentityError, Pending, Places, Store};
use ssh::{ConfigFiles, SshConfig, Target};

use crate::output::{Failure, complain, plain, print};
use crate::threads;

/// Print known_hosts lines of a host, for the KnownHostsCommand of OpenSSH
///
/// With it ssh, scp, sftp, rsync, git and Ansible use the same identities as penstock. A host that is not enrolled has
/// no lines; the reason is printed on standard error for people. When ssh passes the key that a host showed and the key
/// is refused, the reason is printed on standard error, and the exit code is 1: ssh then ends the connection, with any
/// value of StrictHostKeyChecking. An unknown host is added to `penstock host pending`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Name of the host: what was typed, or HostKeyAlias (%k)
    #[arg(required_unless_present = "stanza")]
    name: Option<String>,
    /// Name that ssh compares the lines with (%H), made of the address [default: NAME]
    #[arg(value_name = "PATTERN")]
    pattern: Option<String>,
    /// Reason for the call by ssh (%I): ORDER, HOSTNAME or ADDRESS
    reason: Option<String>,
    /// The type of the key that the host showed (%t)
    #[arg(value_name = "TYPE")]
    kind: Option<String>,
    /// The key that the host showed (%K)
    key: Option<String>,
    /// The port that ssh connects to (%p) [default: that of NAME, else 22]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Write refusals for an engine of penstock instead of a person
    #[arg(long, hide = true)]
    engine: bool,
    /// Print the lines to paste into ~/.ssh/config
    #[arg(long, conflicts_with = "name")]
    stanza: bool,
}

impl Arguments {
    fn hearer(&self) -> StderrReader {
        if self.engine { StderrReader::Engine } else { StderrReader::Person }
    }
}

/// Comment above the block for `ssh_config`.
const STANZA_HEAD: &str = "\
# penstock: ssh, scp, rsync and git know hosts by the identities of \"penstock host\", not by known_hosts.
# A host that penstock does not know is refused: enroll it, or import it from known_hosts (penstock host import).
# To undo it, delete these comments and the block below.
";

const EXAMPLES: &str = "\
Examples:
  penstock known-hosts --stanza >> ~/.ssh/config
  penstock known-hosts web1

The name is the identity: %k is what the user typed, and %H what ssh_config or the DNS made of it, which proves nothing.";

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.stanza {
        let lines: String =
            stanza(StderrReader::Person)?.iter().map(|line| format!("    {line}\n")).collect();
        // The user's file may end without a newline.
        print(&format!("\n{STANZA_HEAD}Host *\n{lines}"))?;
        return warn();
    }
    // For a host without lines, ssh follows its configuration; an exit status of 1 always ends the connection.
    let refused = |why: &str| {
        if arguments.reason.is_none() {
            complain(&format!("penstock: {}\n", plain(why)));
            return Ok(());
        }
        complain(&format!("penstock: {}; nothing was sent\n", plain(why)));
        Err(Failure::Status(1))
    };
    let asked = arguments.name.as_deref().unwrap_or_default();
    // A name that is not a valid identity has no lines.
    let asked = match asked.parse::<Name>() {
        Ok(asked) => asked,
        Err(error) => return refused(&error.to_string()),
    };
    let pattern = arguments.pattern.as_deref().unwrap_or(asked.as_str());
    if matches!(pattern, "ORDER" | "HOSTNAME" | "ADDRESS") {
        return anew("passes an address in place of the name");
    }
    // The pattern becomes part of a line.
    if pattern.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return refused(&format!("{pattern:?} is not a valid host name"));
    }
    let shown = match (arguments.reason.as_deref(), arguments.kind.as_deref(), arguments.key.as_deref()) {
        // A person asks, or ssh asks for the key types only: ssh accepts no host by these lines.
        (None | Some("ORDER"), ..) => None,
        (Some("HOSTNAME" | "ADDRESS"), Some(kind), Some(key)) => {
            let is_word = |word: &str| !word.contains(char::is_whitespace);
            let words = Some(format!("{kind} {key}")).filter(|_| is_word(kind) && is_word(key));
            match words.and_then(|words| words.parse::<PublicKey>().ok()) {
                Some(shown) => Some(shown),
                None => return refused(&format!("{asked} showed a key that cannot be read")),
            }
        }
        (Some("HOSTNAME" | "ADDRESS"), ..) => return anew("does not pass the key that the host showed"),
        (Some(reason), ..) => return refused(&format!("{reason:?} is not a known reason to ask")),
    };
    let store = Store::new(Places::of_user().map_err(Failure::runtime)?);
    // `[web1]:2222` typed by a person contains the port. If ssh passes the port separately, the whole text is a name
    // (HostKeyAlias): an identity with this name has priority over web1, on every port.
    let (name, port) = match (arguments.port, asked.split_port()) {
        (Some(port), _) => (asked.as_str(), port),
        (None, (name, own)) => (name, own.unwrap_or(22)),
    };
    let question = Question { name, port, pattern, shown: shown.as_ref() };
    if let Some(lines) = store.known_hosts_quickly(&question).map_err(failed)? {
        return write(&lines);
    }
    let runtime = threads::single()?;
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

/// Explains to a person why a host has no lines. Also printed for an ssh whose command does not pass the reason (%I):
/// ssh shows the text and continues, because the exit status is 0; a failure would end the connection.
fn why_no_lines(index: &Index, name: &str, port: u16) -> String {
    let shown = plain(name);
    match index.find(name, port) {
        Found::Unknown => format!(
            "{shown} is not enrolled: ssh gets no key for it\n  \
             next: penstock host add {shown} --fingerprint SHA256:... (read on its console)"
        ),
        Found::Damaged(damage) => {
            format!(
                "{} is damaged: ssh gets no key for {shown}\n  next: penstock host audit",
                plain(&damage.path)
            )
        }
        Found::Ambiguous(hosts) => {
            let hosts: Vec<_> = hosts.iter().map(|host| plain(host.as_str())).collect();
            format!(
                "{shown} is not an identity, but a hint of several hosts: use one of {}",
                hosts.join(", ")
            )
        }
        Found::Host(host) => {
            let host = plain(host.name().as_str());
            format!("{host} has no trusted key\n  next: penstock host show {host}")
        }
    }
}

/// Reports why a host is refused, and adds an unknown host to the queue of `penstock host pending`.
fn refuse(
    decision: Decision,
    index: &Index,
    question: &Question<'_>,
    store: &Store,
    hearer: StderrReader,
) -> Result<(), Failure> {
    let Decision { verdict, effects, .. } = decision;
    let Verdict::Refused { reason, message, advice } = verdict else { return Err(Failure::Status(1)) };
    let advice = match place(question, index) {
        Some(target) => target.advice(reason, advice),
        None => advice,
    };
    let advice = match queue(store, effects) {
        Ok(()) => advice,
        // Without an entry in the queue, the advice must not mention the queue.
        Err(error) => format!("{} (not in penstock host pending: {error})", unqueued(&advice)),
    };
    let refusal = Refusal { reason, message: plain(&message), advice: plain(&advice) };
    // An engine passes a mark, so that it can distinguish our words from those of the host.
    let mark = std::env::var(Refusal::MARK)
        .ok()
        .filter(|mark| mark.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    complain(&match (hearer, mark) {
        (StderrReader::Engine, Some(mark)) => refusal.said_with(&mark),
        _ => refusal.said(hearer),
    });
    Err(Failure::Status(1))
}

/// Refuses because the `KnownHostsCommand` in `ssh_config` was written for another version of this program.
fn anew(fault: &str) -> Result<(), Failure> {
    complain(&format!(
        "penstock: KnownHostsCommand {fault}, so every host is refused\n  \
         delete that block and paste a new one: penstock known-hosts --stanza\n"
    ));
    Err(Failure::Status(1))
}

/// Adds an unknown host to the queue of `penstock host pending`. The key of a host that was
/// refused for a changed key is recorded by `Identities::known_hosts`; ssh does not pass its address.
fn queue(store: &Store, effects: Vec<Effect>) -> Result<(), IdentityError> {
    effects.into_iter().try_for_each(|effect| match effect {
        Effect::Queue { name, address, port, key } => {
            store.queue(Pending { name, port, address, date: ssh::identity::now().date(), key: *key })
        }
        _ => Ok(()),
    })
}

/// Warns of settings in `~/.ssh/config` that have priority over a block that is added to the end of the file.
fn warn() -> Result<(), Failure> {
    let store = Store::new(Places::of_user().map_err(Failure::runtime)?);
    // Faults are ignored: the block is already printed, and every other command reports faults.
    let (Ok(index), Ok(config)) = (store.load(), SshConfig::read(&ConfigFiles::Usual)) else { return Ok(()) };
    let enrolled = index.hosts().iter().map(|host| host.name().split_port().0.to_owned());
    let mut told: Vec<String> = Vec::new();
    // Limit the number of hosts, because each may run a command of `Match exec`; few blocks usually cover many hosts.
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
            "penstock: ssh uses the first value that it finds: put the block at the top of the file, before\n{}",
            told.concat()
        ));
    }
    Ok(())
}

/// Largest number of hosts that are resolved for a warning.
const MOST_RESOLVED: usize = 200;

/// Resolves the host by the configuration. `None` if ssh connects to another place because of its options. A port that
/// differs from the configuration is noted as coming from another source.
fn place(question: &Question<'_>, index: &Index) -> Option<Target> {
    let Question { name, port, pattern, .. } = *question;
    let config = SshConfig::read(&files_of_parent_ssh()).ok()?;
    let asked = Asked { host: name.to_owned(), ..Asked::default() };
    let mut target = Target::from_config(&config, &asked).ok()?.target;
    if target.port != port {
        (target.port, target.said.port) =
            (port, Some(format!("port {port} comes from another place, such as ssh -p")));
    }
    let pattern = pattern.parse::<Name>().ok()?;
    let is_there = pattern.split_port().0.eq_ignore_ascii_case(&target.host);
    target.hinted(&config, index).ok().filter(|_| is_there)
}

/// Returns the configuration file that the parent ssh process was given with `-F`, else the default ones.
fn files_of_parent_ssh() -> ConfigFiles {
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

/// Returns options that make the user's `ssh` accept only our identities, for our `openssh` engine. Empty while no host
/// is enrolled: ssh then uses its own files.
pub(crate) fn options() -> Result<Vec<String>, Failure> {
    let store = Store::new(Places::of_user().map_err(Failure::usage)?);
    if store.load().map_err(|error| Failure::usage(whole(error)))?.is_empty() {
        return Ok(Vec::new());
    }
    Ok(stanza(StderrReader::Engine)?.into_iter().collect())
}

fn stanza(hearer: StderrReader) -> Result<[String; 7], Failure> {
    // ssh requires an absolute path.
    let program = std::env::current_exe()?;
    let cannot = |why: &str| {
        let program = plain(&program.display().to_string());
        Failure::runtime(format!("ssh cannot run {program}: {why}"))
    };
    // For a replaced program, /proc/self/exe names a deleted file.
    if !program.is_file() {
        return Err(cannot("it was moved or replaced since it was started; restart it"));
    }
    if program.to_str().is_none_or(|text| text.contains(char::is_control)) {
        return Err(cannot("its path has special characters; move it"));
    }
    // Without the launcher, ssh could not run the command and would use its other settings.
    if hearer == StderrReader::Person && !Path::new(LAUNCHER).is_file() {
        return Err(cannot(&format!("{LAUNCHER}, which starts it, does not exist")));
    }
    Ok(identity_options(&shell::path(&program), hearer))
}

/// Converts an error with its causes, which name the faulty line for the operator.
fn failed(error: IdentityError) -> Failure {
    Failure::Runtime(error.into())
}

/// Formats an error with its causes on one line.
pub(crate) fn whole(error: IdentityError) -> String {
    format!("{:#}", anyhow::Error::from(error))
}

fn write(lines: &[String]) -> Result<(), Failure> {
    print(&lines.iter().map(|line| format!("{line}\n")).collect::<String>())
}
