//! Enrolment.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{ArgGroup, Args};
use logic::fleet::ending::Failure as Failed;
use logic::identity::{
    Binding, Entry, Found, HostFile, Index, Location, Name, Patterns, Signer, Spot, Sshfp, read_console,
};
use logic::ssh::config::Asked;
use logic::ssh::key::PublicKey;
use ssh::identity::enrol::{Claim, Enrolment, FindError, Hints, Others, Retired, enrol, find_keys, record};
use ssh::identity::{Change, Identities, Store, now};
use ssh::{ConfigFiles, Proxy, SshConfig, Target};

use super::audit::DnsArguments;
use super::change::one_port;
use super::{failure, read, said, witness};
use crate::output::{Failure, plain, print};

/// Enrol a host: pin its keys, with a proof
///
/// The key is looked for among those that wait (penstock host pending); else the host is asked, which sends nothing but
/// the handshake. It is pinned only if the proof speaks for it. Without a proof only hints are recorded.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, group = ArgGroup::new("proof").args(PROOFS))]
pub struct Arguments {
    /// What the host is called
    name: Name,
    /// Proof: its fingerprint, read on its console or told by who installed it; the last 8 or more characters are enough
    #[arg(long, value_name = "SHA256:...")]
    fingerprint: Option<String>,
    /// Proof: the console output of its first start, in which cloud-init prints keys or fingerprints; - is standard input
    #[arg(long, value_name = "FILE")]
    console: Option<PathBuf>,
    /// Proof: the key itself, or a .pub file with it
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Proof: SSHFP records in the DNS, if DNSSEC is valid up to the trust anchor; also for keys to come
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
    /// No proof: take the key that is shown now, and remember until it is proved that nobody did
    #[arg(long)]
    trust_on_first_use: bool,
    /// The host was installed anew: its other keys are retired
    #[arg(long)]
    replace: bool,
    /// The host, or that key of it, was retired, and is in service again
    #[arg(long, requires = "proof")]
    revive: bool,
    /// One more name of it
    #[arg(long = "alias", value_name = "NAME")]
    aliases: Vec<Name>,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    dns: DnsArguments,
}

const PROOFS: [&str; 7] = ["fingerprint", "console", "key", "sshfp", "witness", "ca", "trust_on_first_use"];

/// A longer file holds no console output and no key.
const LONGEST: u64 = 16 * 1024 * 1024;

const EXAMPLES: &str = "\
Examples:
  penstock host add web1 --fingerprint SHA256:...
  penstock host add web1 --address 10.0.7.9 --console console.log
  penstock host add web1 --ca @fleet-ca --principals web1,web1.example.com
  penstock host add web1 --witness gate,db2";

/// Where a host is.
#[derive(Debug, Default, Args)]
pub struct Place {
    /// Where it is: an address, or a name in the DNS; ADDRESS:PORT says the port as well
    #[arg(long = "address", value_name = "ADDRESS")]
    addresses: Vec<Location>,
    /// Its port [default: 22]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// The host to go through
    #[arg(long, value_name = "HOST")]
    via: Option<Name>,
}

impl Place {
    /// The hints to record.
    fn hints(&self) -> Result<Hints, Failure> {
        let mut hints = Hints { port: self.port, via: self.via.clone(), ..Hints::default() };
        for location in &self.addresses {
            hints.port = one_port(location, hints.port)?;
            match &location.place {
                Spot::Address(address) => hints.addresses.push(*address),
                Spot::Dns(name) => hints.names.push(name.clone()),
            }
        }
        Ok(hints)
    }

    /// How to reach it: what is said here, else its hints, else its name.
    pub(super) fn target(
        &self,
        name: &Name,
        host: Option<&HostFile>,
        index: &Index,
    ) -> Result<Target, Failure> {
        let said = self.hints()?;
        let known = host.map(HostFile::address).unwrap_or_default();
        let (plain_name, own_port) = name.split_port();
        let config = SshConfig::read(&ConfigFiles::Usual).map_err(Failure::runtime)?;
        let asked = Asked { host: plain_name.to_owned(), port: said.port.or(own_port), ..Asked::default() };
        let failed = |failure: Failed| Failure::runtime(plain(&failure.detail));
        let mut target = Target::from_config(&config, &asked).map_err(failed)?.target;
        // What is enrolled is called as it was said here, whatever HostKeyAlias makes of it.
        target.name = plain_name.to_owned();
        // ssh_config is asked first, as by everything that connects.
        let is_hinted = target.said.host.is_none() || !self.addresses.is_empty();
        if let Some(port) = known.port.filter(|_| target.said.port.is_none() && is_hinted) {
            target.port = port;
        }
        let given = said.addresses.first().copied();
        // The DNS, where it has a say, knows better than what was true last time; an address that is given here wins.
        if target.host == plain_name || !said.addresses.is_empty() || !said.names.is_empty() {
            if let Some(dns) = said.names.first().or(known.names.first()) {
                target.host = dns.to_string();
            } else if said.addresses.is_empty() {
                target.addresses.known = known.addresses;
            }
            if !said.addresses.is_empty() {
                target.addresses.known = said.addresses;
            }
        }
        // What is given here wins over ssh_config, and that over a hint.
        let hint = known.via.filter(|_| target.said.proxy.is_none());
        if let Some(via) = said.via.or(hint) {
            target = target.via(&via, &config, index).map_err(failed)?;
        } else {
            target = target.hinted(&config, index).map_err(failed)?;
        }
        // The last host on the way is asked for one place: for the one that is given here.
        if let (Proxy::Jump(_), Some(address)) = (&target.proxy, given) {
            target.host = address.to_string();
        }
        Ok(target)
    }
}

pub(super) fn run(store: &Store, arguments: &Arguments) -> Result<(), Failure> {
    let identities = Arc::new(Identities::load(store.clone()).map_err(failure)?);
    let index = identities.index();
    let name = identity(index, &arguments.name)?;
    if let Some(authority) = &arguments.ca {
        return bind(store, index, &name, authority, arguments);
    }
    let mut hints = arguments.place.hints()?;
    hints.aliases.clone_from(&arguments.aliases);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
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
    // A name with a port in it says its port already.
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
    // Nobody wants that unsaid.
    if let Some(since) = host.and_then(HostFile::retired) {
        text.push_str(&format!("{name} is in service again: it was retired since {since}\n"));
    }
    if text.is_empty() {
        text = said(enrolled.change, &format!("{name}: its keys were pinned already; the rest is noted"));
    }
    for key in &enrolled.unproved {
        text.push_str(&format!(
            "  nobody proved {} {}: it is marked so until it is proved, and penstock host audit says it\n",
            key.algorithm(),
            key.fingerprint()
        ));
    }
    print(&text)
}

/// Why there is no key, and what helps.
fn not_found(error: FindError) -> Failure {
    let advice = match &error {
        FindError::Unreachable(failure) => failure.advice.as_deref(),
        FindError::Mismatch(_) => None,
    };
    let advice = advice.map_or_else(String::new, |advice| format!("\n  {}", plain(advice)));
    Failure::runtime(format!("{}{advice}", plain(&error.to_string())))
}

/// Records hints without a proof, and says what becomes of the keys.
fn note(store: &Store, index: &Index, name: &Name, hints: &Hints) -> Result<(), Failure> {
    let said = hints_of(hints);
    let host = if let Found::Host(host) = index.find(name.as_str(), 22) { Some(host) } else { None };
    let pins = host.filter(|host| host.name() == name).map_or(0, |host| host.pins().count());
    let is_bound = !index.authorities_of(name.as_str(), host).is_empty();
    let proof = format!("penstock host add {} --fingerprint SHA256:...", quoted(name));
    let keys = match pins {
        0 if is_bound => "certificates of its authority count, as before".to_owned(),
        0 => format!("no key is pinned, and it is refused until one is: {proof} (or another proof: --help)"),
        1 => "its key stays pinned".to_owned(),
        many => format!("its {many} keys stay pinned"),
    };
    if said.is_empty() {
        let message = format!("{name}: no proof and no hint is given, so nothing was changed; {keys}");
        return Err(Failure::runtime(message));
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

/// Hints as they are told: `port 2222 and alias www`.
fn hints_of(hints: &Hints) -> String {
    let addresses = hints.addresses.iter().map(|address| format!("address {address}"));
    let names = hints.names.iter().map(|name| format!("address {name}"));
    let port = hints.port.iter().map(|port| format!("port {port}"));
    let via = hints.via.iter().map(|via| format!("way through {via}"));
    let aliases = hints.aliases.iter().map(|alias| format!("alias {alias}"));
    addresses.chain(names).chain(port).chain(via).chain(aliases).collect::<Vec<_>>().join(", ")
}

/// A shell would take brackets for a pattern.
fn quoted(name: &Name) -> String {
    if name.as_str().contains('[') { format!("'{name}'") } else { name.to_string() }
}

/// The identity that is meant: the one that has this name, or a new one.
fn identity(index: &Index, name: &Name) -> Result<Name, Failure> {
    match index.find(name.as_str(), 22) {
        Found::Nobody => Ok(name.clone()),
        Found::Host(host) if name.split_port().1.is_some_and(|port| host.is_elsewhere(port)) => {
            Ok(name.clone())
        }
        _ => super::known(index, name).map(|host| host.name().clone()),
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
        &format!("{name}: certificates of that authority count; bare keys that are not pinned do not"),
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
