//! `penstock known-hosts`: identities for OpenSSH's `KnownHostsCommand`.

use clap::Args;
use logic::fleet::openssh::{Hearer, Refusal, identity_options};
use logic::identity::{Index, Name, Question, SshfpAnswer, Verdict, decide, lines_about, offered};
use logic::ssh::config::Asked;
use ssh::identity::{Places, Store};
use ssh::{ConfigFiles, SshConfig, Target};

use crate::output::{Failure, complain, plain, print};
use crate::paste::quote;

/// Print known_hosts lines of a host, for the KnownHostsCommand of OpenSSH
///
/// With it ssh, scp, sftp, rsync, git and Ansible obey the same identities as penstock. It refuses nothing itself: a host
/// that nobody knows has no lines. When ssh hands over the key that a host showed, why it will be refused is said on
/// standard error.
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
        return print(&format!("\n{STANZA_HEAD}Host *\n{lines}"));
    }
    let asked = arguments.name.as_deref().unwrap_or_default();
    // A name that cannot be one of ours has no lines; ssh refuses it.
    let Ok(asked) = asked.parse::<Name>() else { return Ok(()) };
    let pattern = arguments.pattern.as_deref().unwrap_or(asked.as_str());
    if matches!(pattern, "ORDER" | "HOSTNAME" | "ADDRESS") {
        complain(
            "penstock: KnownHostsCommand hands over an address where the name belongs, so every host is refused\n  \
             paste it anew: penstock known-hosts --stanza\n",
        );
        return Ok(());
    }
    // It goes into a file of lines.
    if pattern.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Ok(());
    }
    let store = Store::new(Places::of_user().map_err(Failure::runtime)?);
    let shown = match (arguments.kind.as_deref(), arguments.key.as_deref()) {
        (Some(kind), Some(key)) if arguments.reason.as_deref() == Some("HOSTNAME") => offered(kind, key),
        _ => None,
    };
    let (name, own_port) = asked.split_port();
    let port = arguments.port.or(own_port).unwrap_or(22);
    // The usual case reads one file; only aliases and trouble need all of them.
    for id in
        [Name::with_port(name, port).ok().filter(|_| port != 22), name.parse().ok()].into_iter().flatten()
    {
        let Some(index) = store.load_one(&id).map_err(Failure::runtime)? else { continue };
        let lines = lines_about(&index, name, port, pattern);
        let is_pinned = || match (&shown, index.find(name, port)) {
            (Some(shown), logic::identity::Found::Host(host)) => host.pin(shown.key()).is_some(),
            _ => true,
        };
        if !lines.is_empty() && is_pinned() {
            return write(&lines);
        }
        break;
    }
    let index = store.load().map_err(Failure::runtime)?;
    if let Some(shown) = &shown {
        let question = Question {
            name,
            address: None,
            port,
            offered: shown,
            sshfp: &SshfpAnswer::NotAsked,
            run: None,
            last_good: store.last_good(&index, name, port),
            now: ssh::identity::now(),
        };
        if let Verdict::Refused { reason, message, advice } = decide(question, &index).verdict {
            let advice = match place(name, port, pattern, &index) {
                Some(target) => target.advice(reason, advice),
                None => advice,
            };
            let hearer = if arguments.engine { Hearer::Engine } else { Hearer::Person };
            complain(&Refusal { reason, message: plain(&message), advice: plain(&advice) }.said(hearer));
        }
    }
    write(&lines_about(&index, name, port, pattern))
}

/// Where the user's configuration says that a host is, if that is where `ssh` goes: it may have been given another file.
fn place(name: &str, port: u16, pattern: &str, index: &Index) -> Option<Target> {
    let config = SshConfig::read(&ConfigFiles::Usual).ok()?;
    let asked = Asked { host: name.to_owned(), port: Some(port), ..Asked::default() };
    let target = Target::from_config(&config, &asked).ok()?.target;
    let pattern = pattern.parse::<Name>().ok()?;
    let is_there = pattern.split_port().0.eq_ignore_ascii_case(&target.host);
    target.hinted(&config, index).ok().filter(|_| is_there)
}

/// Options with which the user's `ssh` obeys our identities, for an engine of ours that runs it; none where nobody has been
/// enrolled yet: ssh then knows hosts by its own files.
pub fn options() -> Result<Vec<String>, Failure> {
    let store = Store::new(Places::of_user().map_err(Failure::usage)?);
    if store.load().map_err(Failure::usage)?.is_empty() {
        return Ok(Vec::new());
    }
    Ok(stanza(Hearer::Engine)?.into_iter().collect())
}

fn stanza(hearer: Hearer) -> Result<[String; 5], Failure> {
    // ssh wants an absolute path.
    Ok(identity_options(&quote(&std::env::current_exe()?), hearer))
}

fn write(lines: &[String]) -> Result<(), Failure> {
    print(&lines.iter().map(|line| format!("{line}\n")).collect::<String>())
}
