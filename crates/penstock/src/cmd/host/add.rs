//! `penstock host add`: enrols a host.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{ArgGroup, Args};
use hosts::identity::{Binding, Entry, Found, HostFile, Index, Name, Patterns, Signer, Sshfp, read_console};
use hosts::ssh::key::PublicKey;
use ssh::Target;
use ssh::identity::enrol::{Claim, Enrolment, FindError, Hints, Others, Retired, enrol, find_keys, record};
use ssh::identity::{Change, Identities, Store, now};
use text::shell;

use super::dns::DnsArguments;
use super::input::read;
use super::known::{failure, known, said};
use super::place::Place;
use super::witness;
use crate::output::{Failure, plain, print};
use crate::threads;

/// Enrol a host: pin its keys, with a proof
///
/// The key is looked up among the pending ones (penstock host pending); if it is not there the host is asked, which
/// sends nothing but the handshake. The key is pinned only if the proof matches it. Without a proof only hints are
/// recorded.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, group = ArgGroup::new("proof").args(PROOFS))]
pub(super) struct Arguments {
    /// Name of the host
    name: Name,
    /// Proof: its fingerprint, read on its console or told by who installed it; the last 16 or more characters are enough
    #[arg(long, value_name = "SHA256:...")]
    fingerprint: Option<String>,
    /// Proof: the console output of its first start, in which cloud-init prints keys or fingerprints; - is standard input
    #[arg(long, value_name = "FILE")]
    console: Option<PathBuf>,
    /// Proof: the key itself, or a .pub file with it
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Proof: SSHFP records in the DNS, if DNSSEC is valid up to the trust anchor; also for future keys
    #[arg(long)]
    sshfp: bool,
    /// Proof: these trusted hosts (at least two) see the same key from where they are
    #[arg(long, value_name = "HOST,HOST", value_delimiter = ',')]
    witness: Vec<Name>,
    /// Proof: certificates of this authority: @NAME of one that is known, its key, or a .pub file
    #[arg(long, value_name = "AUTHORITY")]
    ca: Option<String>,
    /// Names that certificates of the authority may carry [default: those of the host]
    #[arg(long, value_name = "NAME,NAME", requires = "ca")]
    principals: Option<String>,
    /// No proof: trust the key that the host shows now, and mark it as not proved until it is
    #[arg(long)]
    trust_on_first_use: bool,
    /// The host was reinstalled: its other keys are retired
    #[arg(long)]
    replace: bool,
    /// Put the retired host, or its retired key, in service again
    #[arg(long, requires = "proof")]
    revive: bool,
    /// Further name of the host
    #[arg(long = "alias", value_name = "NAME")]
    aliases: Vec<Name>,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    dns: DnsArguments,
}

const PROOFS: [&str; 7] = ["fingerprint", "console", "key", "sshfp", "witness", "ca", "trust_on_first_use"];

/// Size limit of a console output or key file, in bytes.
const LONGEST: u64 = 16 * 1024 * 1024;

const EXAMPLES: &str = "\
Examples:
  penstock host add web1 --fingerprint SHA256:...
  penstock host add web1 --address 10.0.7.9 --console console.log
  penstock host add web1 --ca @fleet-ca --principals web1,web1.example.com
  penstock host add web1 --witness gate,db2";

pub(super) fn run(store: &Store, arguments: &Arguments) -> Result<(), Failure> {
    let identities = Arc::new(Identities::load(store.clone()).map_err(failure)?);
    let index = identities.index();
    let name = identity(index, &arguments.name)?;
    if let Some(authority) = &arguments.ca {
        return bind(store, index, &name, authority, arguments);
    }
    let mut hints = arguments.place.hints()?;
    hints.aliases.clone_from(&arguments.aliases);
    let runtime = threads::single()?;
    let host = if let Found::Host(host) = index.find(name.as_str(), 22) { Some(host) } else { None };
    let target = arguments.place.target(&name, host, index)?;
    let Some(claim) = runtime.block_on(claim(&identities, arguments, &name, host, &target))? else {
        return note(store, index, &name, &hints);
    };
    let found = runtime.block_on(find_keys(&identities, &target, &name, &claim)).map_err(not_found)?;
    let known = host.map(HostFile::address).unwrap_or_default();
    if hints.addresses.is_empty() && known.addresses.is_empty() {
        hints.addresses.extend(found.address);
    }
    // A name such as `[web1]:2222` already contains the port.
    if hints.port.or(known.port).or(name.split_port().1).is_none() {
        hints.port = Some(found.port.unwrap_or(target.port)).filter(|port| *port != 22);
    }
    let others = if arguments.replace { Others::Retire } else { Others::Keep };
    let by = std::env::var("USER").ok().filter(|user| user.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    let retired = if arguments.revive { Retired::Revive } else { Retired::Refuse };
    let enrolment = Enrolment { name: name.clone(), claim, hints, others, retired, by, today: now().date() };
    let enrolled = enrol(store, &enrolment, &found.keys).map_err(failure)?;
    if arguments.sshfp {
        let allow = |host: Option<HostFile>| {
            let mut host = host.unwrap_or_else(|| HostFile::new(name.clone()));
            host.add(Entry::Sshfp(Sshfp::RequireSecure));
            Ok(host)
        };
        store.change(&name, allow).map_err(failure)?;
    }
    let mut text = String::new();
    for key in &enrolled.pinned {
        text.push_str(&format!("{name}: pinned {} {}\n", key.algorithm(), key.fingerprint()));
    }
    for key in &enrolled.proved {
        text.push_str(&format!(
            "{name}: proved {} {}, which was trusted on first use so far\n",
            key.algorithm(),
            key.fingerprint()
        ));
    }
    for key in &enrolled.retired {
        text.push_str(&format!("{name}: retired {} {}\n", key.algorithm(), key.fingerprint()));
    }
    // Always report the revival of a retired host.
    if let Some(since) = host.and_then(HostFile::retired) {
        text.push_str(&format!("{name} is in service again: it was retired since {since}\n"));
    }
    if text.is_empty() {
        text = said(
            enrolled.change,
            &format!("{name}: its keys were already pinned; the other changes are saved"),
        );
    }
    for key in &enrolled.unproved {
        text.push_str(&format!(
            "  {} {} is not proved: it is marked so until it is, and penstock host audit reports it\n",
            key.algorithm(),
            key.fingerprint()
        ));
    }
    print(&text)
}

/// Formats the reason why no key was found, with advice.
fn not_found(error: FindError) -> Failure {
    let advice = match &error {
        FindError::Unreachable(failure) => failure.advice.as_deref(),
        FindError::Mismatch(_) => None,
    };
    let advice = advice.map_or_else(String::new, |advice| format!("\n  {}", plain(advice)));
    Failure::runtime(format!("{}{advice}", plain(&error.to_string())))
}

/// Records hints without a proof, and reports the state of the host's keys.
fn note(store: &Store, index: &Index, name: &Name, hints: &Hints) -> Result<(), Failure> {
    let said = hints_of(hints);
    let host = if let Found::Host(host) = index.find(name.as_str(), 22) { Some(host) } else { None };
    let pins = host.filter(|host| host.name() == name).map_or(0, |host| host.pins().count());
    let is_bound = !index.authorities_of(name.as_str(), host).is_empty();
    let proof = format!("penstock host add {} --fingerprint SHA256:...", shell::word(name.as_str()));
    let keys = match pins {
        0 if is_bound => "certificates of its authority are accepted, as before".to_owned(),
        0 => format!(
            "no key is pinned, and the host is refused until one is: {proof} (or another proof: --help)"
        ),
        1 => "its key stays pinned".to_owned(),
        many => format!("its {many} keys stay pinned"),
    };
    if said.is_empty() {
        let message = format!("{name}: neither a proof nor a hint was given, so nothing was changed; {keys}");
        return Err(Failure::usage(message));
    }
    let change = store.change(name, |host| {
        let mut host = host.unwrap_or_else(|| HostFile::new(name.clone()));
        record(&mut host, hints);
        Ok(host)
    });
    let noted = match change.map_err(failure)? {
        Change::Written => "noted",
        Change::Nothing => "known already",
    };
    print(&format!("{name}: {said} {noted}; {keys}\n"))
}

/// Formats hints: `port 2222 and alias www`.
fn hints_of(hints: &Hints) -> String {
    let addresses = hints.addresses.iter().map(|address| format!("address {address}"));
    let names = hints.names.iter().map(|name| format!("address {name}"));
    let port = hints.port.iter().map(|port| format!("port {port}"));
    let via = hints.via.iter().map(|via| format!("way through {via}"));
    let aliases = hints.aliases.iter().map(|alias| format!("alias {alias}"));
    addresses.chain(names).chain(port).chain(via).chain(aliases).collect::<Vec<_>>().join(", ")
}

/// Finds the identity that has this name, or returns the name for a new one.
fn identity(index: &Index, name: &Name) -> Result<Name, Failure> {
    match index.find(name.as_str(), 22) {
        Found::Unknown => Ok(name.clone()),
        Found::Host(host) if name.split_port().1.is_some_and(|port| host.is_elsewhere(port)) => {
            Ok(name.clone())
        }
        _ => known(index, name).map(|host| host.name().clone()),
    }
}

async fn claim(
    identities: &Arc<Identities>,
    arguments: &Arguments,
    name: &Name,
    host: Option<&HostFile>,
    target: &Target,
) -> Result<Option<Claim>, Failure> {
    if let Some(fingerprint) = &arguments.fingerprint {
        return Claim::fingerprint(fingerprint)
            .map(Some)
            .map_err(|error| Failure::usage(plain(&error.to_string())));
    }
    if let Some(path) = &arguments.console {
        let keys = read_console(&read(path, LONGEST)?).map_err(Failure::runtime)?;
        return Ok(Some(Claim::Console(keys)));
    }
    if let Some(key) = &arguments.key {
        return Ok(Some(Claim::Key(key_or_file(key)?)));
    }
    if arguments.sshfp {
        let hint = arguments.place.hints()?.names.into_iter().next();
        let known = || host.and_then(|host| host.address().names.into_iter().next());
        let asked = hint.or_else(known).unwrap_or_else(|| name.clone());
        return Ok(Some(Claim::Sshfp(arguments.dns.resolver()?.sshfp(asked.split_port().0).await)));
    }
    if !arguments.witness.is_empty() {
        return witness::ask(identities, &arguments.witness, name, target).await.map(Some);
    }
    Ok(arguments.trust_on_first_use.then_some(Claim::FirstUse))
}

/// Binds a host to an authority.
fn bind(
    store: &Store,
    index: &Index,
    name: &Name,
    authority: &str,
    arguments: &Arguments,
) -> Result<(), Failure> {
    let principals = match &arguments.principals {
        Some(list) => Some(
            Patterns::parse(list)
                .ok_or_else(|| Failure::usage("--principals takes names: web1,web1.example.com"))?,
        ),
        None => None,
    };
    let binding = match authority.strip_prefix('@') {
        Some(known) => {
            let known: Name = known.parse().map_err(Failure::usage)?;
            if !index.authorities().iter().any(|one| one.name == known) {
                let known: Vec<String> =
                    index.authorities().iter().map(|one| format!("@{}", one.name)).collect();
                let known = if known.is_empty() {
                    "none is known".into()
                } else {
                    format!("known are {}", known.join(", "))
                };
                return Err(Failure::runtime(format!("there is no authority {authority}: {known}")));
            }
            Binding::Named(known)
        }
        None => Binding::Key(key_or_file(authority)?),
    };
    let hints = Hints { aliases: arguments.aliases.clone(), ..arguments.place.hints()? };
    let change = store.change(name, |host| {
        let mut host = host.unwrap_or_else(|| HostFile::new(name.clone()));
        host.bind(Signer { authority: binding, principals });
        record(&mut host, &hints);
        Ok(host)
    });
    store.forget_pending(name.as_str()).map_err(failure)?;
    print(&said(
        change.map_err(failure)?,
        &format!("{name}: certificates of that authority are accepted; keys that are not pinned are not"),
    ))
}

fn key_or_file(text: &str) -> Result<PublicKey, Failure> {
    if let Ok(key) = text.parse() {
        return Ok(key);
    }
    let path = Path::new(text);
    let file = read(path, LONGEST)?;
    let key = file.lines().find(|line| !line.trim().is_empty() && !line.starts_with('#')).unwrap_or_default();
    key.parse().map_err(|error| Failure::usage(format!("{}: {error}", plain(text))))
}
