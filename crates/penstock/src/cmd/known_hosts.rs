//! `penstock known-hosts`: identities for OpenSSH's `KnownHostsCommand`.

use clap::Args;
use logic::fleet::openssh::identity_options;
use logic::identity::{Name, Question, Run, SshfpAnswer, Verdict, decide, lines_about, offered};
use ssh::identity::{Places, Store};

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
    /// Print the lines to paste into ~/.ssh/config
    #[arg(long, conflicts_with = "name")]
    stanza: bool,
}

const EXAMPLES: &str = "\
Examples:
  penstock known-hosts --stanza >> ~/.ssh/config
  penstock known-hosts web1

The name is the identity: %k is what somebody typed, and %H what ssh_config or the DNS made of it, which proves nothing.";

/// Prints the lines.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.stanza {
        let lines: String = stanza()?.iter().map(|line| format!("    {line}\n")).collect();
        return print(&format!("Host *\n{lines}"));
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
            run: Run::default(),
            last_good: store.last_good(&index, name, port),
            now: ssh::identity::now(),
        };
        if let Verdict::Refused { message, advice, .. } = decide(question, &index).verdict {
            complain(&format!("penstock: {}\n  {}\n", plain(&message), plain(&advice)));
        }
    }
    write(&lines_about(&index, name, port, pattern))
}

/// Options with which the user's `ssh` obeys our identities, for an engine of ours that runs it; none where nobody has been
/// enrolled yet: ssh then knows hosts by its own files.
pub fn options() -> Result<Vec<String>, Failure> {
    let store = Store::new(Places::of_user().map_err(Failure::usage)?);
    if store.load().map_err(Failure::usage)?.is_empty() {
        return Ok(Vec::new());
    }
    Ok(stanza()?.into_iter().collect())
}

fn stanza() -> Result<[String; 5], Failure> {
    // ssh wants an absolute path.
    Ok(identity_options(&quote(&std::env::current_exe()?)))
}

fn write(lines: &[String]) -> Result<(), Failure> {
    print(&lines.iter().map(|line| format!("{line}\n")).collect::<String>())
}
