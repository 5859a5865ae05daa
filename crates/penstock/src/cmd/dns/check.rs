//! `penstock dns check`: compares what is wanted with what the DNS says and what services show.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use access::keys::{
    Finding, Kind, Live, MOST_ALIASES, Observation, Owner, Problem, Proved, Revoked, Seen, Set, Severity,
    Signature, judge,
};
use clap::Args;
use dns::{Anchor, Authorities, Resolver, ResolverFault, Server, ZoneKeys};
use serde_json::{Value, json};
use ssh::{ConfigFiles, SshConfig};
use text::{table, units};

use super::services::{self, StartTls};
use super::wanted::{Wanted, WantedArguments};
use crate::duration;
use crate::output::{Failure, plain, print, print_failed, print_json};
use crate::threads;

/// Check that the DNS has the records: at every server, proved, and as the service shows them
///
/// Asks each server of the zone, checks the signatures here up to a trust anchor (a resolver's word that an answer is
/// authentic is not believed), and asks the TLS and SSH services for their keys. Says what is missing, stale, unsigned,
/// about to expire or bogus, and which server is behind the others. Aliases (CNAME) are followed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    wanted: WantedArguments,
    /// Trust these DNSKEY records instead of the keys of the root
    #[arg(long, value_name = "FILE")]
    anchor: Option<PathBuf>,
    /// Resolver to ask instead of those of the system
    #[arg(long, value_name = "ADDRESS", value_parser = super::server)]
    dns_server: Option<SocketAddr>,
    /// Servers of the zone to ask, instead of those of its NS records
    #[arg(long = "server", value_name = "ADDRESS", value_parser = super::server)]
    servers: Vec<SocketAddr>,
    /// Tell of signatures that end within this time
    #[arg(long, value_name = "TIME", default_value = "3d", value_parser = days)]
    expires_within: Duration,
    /// How TLS begins at the services [default: as is usual at the port]
    #[arg(long, value_enum, value_name = "PROTOCOL")]
    starttls: Option<StartTls>,
    /// Time limit of the whole check, in seconds or with a unit
    #[arg(long, value_name = "SECONDS", default_value = "5m", value_parser = duration::seconds)]
    timeout: Duration,
    /// Do not ask the services for their keys
    #[arg(long)]
    no_services: bool,
    /// Exit with code 1 for weak findings too
    #[arg(long)]
    strict: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  penstock dns check --config /etc/penstock/penstock.toml
  penstock dns check --hosts --zone example.org --anchor example.org.key
  penstock dns check --openpgp alice.pub --server 192.0.2.53 --server 192.0.2.54 --json

Exit codes: 0 all is well, or only weak findings; 1 something is bad, or could not be asked; 2 wrong usage.";

/// Parses a time; `3d` too.
fn days(text: &str) -> Result<Duration, String> {
    match text.strip_suffix('d').map(str::parse::<u32>) {
        Some(Ok(days)) if days <= 100 => Ok(Duration::from_secs(u64::from(days) * 24 * 3600)),
        _ => duration::seconds(text),
    }
}

/// All that was seen, and what is wrong with it.
struct Checked {
    seen: Vec<(Owner, Kind, Observation)>,
    found: Vec<Finding>,
    servers: usize,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let keys = arguments.wanted.read()?;
    let ssh_ports = if arguments.no_services { BTreeMap::new() } else { ssh_ports(&keys.wanted) };
    let wanted = keys.sets();
    let checked = threads::single()?.block_on(check(arguments, (&wanted, &keys.revoked), ssh_ports))?;
    let bad = checked.found.iter().filter(|one| one.severity == Severity::Bad).count();
    let fails = bad > 0 || arguments.strict && !checked.found.is_empty();
    if arguments.json {
        print_json(&format!("{:#}\n", json(&checked, fails)))?;
        return if fails { Err(Failure::Status(1)) } else { Ok(()) };
    }
    let text = said(&checked, &wanted, bad);
    if fails { Err(print_failed(&text, 1)) } else { print(&text) }
}

/// Ports of sshd, of each name with SSHFP records.
fn ssh_ports(wanted: &[Wanted]) -> BTreeMap<Owner, BTreeSet<u16>> {
    let config = SshConfig::read(&ConfigFiles::Usual).ok();
    let mut ports: BTreeMap<Owner, BTreeSet<u16>> = BTreeMap::new();
    for one in wanted {
        if let Some((name, hint)) = &one.host {
            let port = services::ssh_port(config.as_ref(), name, *hint);
            ports.entry(one.record.owner.clone()).or_default().insert(port);
        }
    }
    ports
}

async fn check(
    arguments: &Arguments,
    (wanted, revoked): (&BTreeMap<(Owner, Kind), Set>, &Revoked),
    ssh_ports: BTreeMap<Owner, BTreeSet<u16>>,
) -> Result<Checked, Failure> {
    let anchor = arguments.anchor.clone().map_or(Anchor::Root, Anchor::File);
    let mut checker = Checker {
        arguments,
        revoked,
        resolver: Resolver::new(&anchor, arguments.dns_server).map_err(|fault| match fault {
            ResolverFault::Anchor { .. } => Failure::usage(fault),
            ResolverFault::Servers(_) => Failure::runtime(fault),
        })?,
        authorities: Authorities::new(&arguments.servers, arguments.dns_server).map_err(Failure::runtime)?,
        zones: BTreeMap::new(),
        ssh_ports,
        checked: Checked { seen: Vec::new(), found: Vec::new(), servers: 0 },
    };
    let deadline = Instant::now() + arguments.timeout;
    for ((owner, kind), records) in wanted {
        let one = checker.one(owner, *kind, records);
        match tokio::time::timeout_at(deadline.into(), one).await {
            Ok(done) => done?,
            Err(_) => checker.checked.found.push(Finding {
                severity: Severity::Bad,
                owner: owner.clone(),
                kind: *kind,
                problem: Problem::Silent,
                place: None,
                text: format!(
                    "not asked to the end: the time limit of {} s is over (--timeout waits longer); asked were {}: do they answer?",
                    arguments.timeout.as_secs_f64(),
                    asked(arguments)
                ),
            }),
        }
    }
    let mut checked = checker.checked;
    checked.found.sort_by_key(|finding| finding.severity);
    Ok(checked)
}

/// Which servers a check asks, as far as the command line says.
fn asked(arguments: &Arguments) -> String {
    let resolver = arguments.dns_server.map_or_else(
        || "the resolver of /etc/resolv.conf".to_owned(),
        |server| format!("the resolver {server}"),
    );
    let servers: Vec<String> = arguments.servers.iter().map(SocketAddr::to_string).collect();
    match servers.is_empty() {
        true => format!("{resolver} for names and proofs, and the servers of the zone"),
        false => format!("{} for the records, and {resolver} for names and proofs", servers.join(", ")),
    }
}

const ASK_ANOTHER_RESOLVER: &str =
    "\n  hint: does it answer other programs? --dns-server ADDRESS asks another resolver";
const ASK_ANOTHER_SERVER: &str = "\n  hint: does it answer other programs? --server ADDRESS names another one; without it those of the NS records are asked";

/// A check on its way.
struct Checker<'a> {
    arguments: &'a Arguments,
    revoked: &'a Revoked,
    resolver: Resolver,
    authorities: Authorities,
    zones: BTreeMap<Owner, (Vec<Server>, ZoneKeys)>,
    ssh_ports: BTreeMap<Owner, BTreeSet<u16>>,
    checked: Checked,
}

/// What the servers of a zone say of a name.
struct Told {
    zone: Owner,
    servers: Vec<(String, Seen)>,
    /// Signatures of the aliases on the way there.
    aliases: Vec<(String, Signature)>,
}

impl Checker<'_> {
    /// Checks the records of one name and type.
    async fn one(&mut self, owner: &Owner, kind: Kind, records: &Set) -> Result<(), Failure> {
        let Some(Told { zone, servers, aliases }) = self.told(owner, kind).await? else { return Ok(()) };
        let live = match self.arguments.no_services || records.is_empty() {
            true => Vec::new(),
            false => self.live(owner, kind, records).await,
        };
        let mut proved = self.resolver.proved(owner, kind).await;
        if let Proved::Bogus(why) = &mut proved {
            match &self.arguments.anchor {
                None if !self.resolver.vouches_for(&zone).await => {
                    proved = Proved::Unanchored(unanchored(&zone))
                }
                None => {}
                Some(file) => {
                    why.push_str(&format!(", or {} has no key of {zone} or a zone above it", file.display()))
                }
            }
        }
        let observation = Observation { servers, aliases, proved, live };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let found =
            judge((owner, kind), (records, self.revoked), &observation, now, self.arguments.expires_within);
        self.checked.found.extend(found);
        self.checked.seen.push((owner.clone(), kind, observation));
        Ok(())
    }

    /// Finds the zone of a name, and its servers, unless they are known already. The error has a hint behind it.
    async fn zone(&mut self, name: &Owner) -> Result<(Owner, Option<Vec<Server>>), (String, &'static str)> {
        let zone = self.authorities.zone_of(name).await.map_err(|why| {
            let hint = match (why.is_silence(), self.arguments.servers.is_empty()) {
                (false, _) => "",
                (true, true) => ASK_ANOTHER_RESOLVER,
                (true, false) => ASK_ANOTHER_SERVER,
            };
            (why.to_string(), hint)
        })?;
        match self.zones.contains_key(&zone) {
            true => Ok((zone, None)),
            false => {
                let servers = self.authorities.servers(&zone).await.map_err(|why| (why, ""))?;
                Ok((zone, Some(servers)))
            }
        }
    }

    /// Asks every server of the zone, and goes on where a name is an alias. `None`: it leads to where no server is known.
    async fn told(&mut self, owner: &Owner, kind: Kind) -> Result<Option<Told>, Failure> {
        let mut at = vec![owner.clone()];
        let mut aliases = Vec::new();
        loop {
            let name = at.last().unwrap_or(owner);
            let (zone, found) = match self.zone(name).await {
                Ok(found) => found,
                // After a silence at a later name the others are checked all the same: the zone of that one may be the cause.
                Err((why, hint)) if at.len() == 1 && (hint.is_empty() || self.zones.is_empty()) => {
                    return Err(Failure::runtime(format!("{}{hint}", plain(&why))));
                }
                Err((why, _)) => {
                    // Where an alias leads is not ours.
                    let text = match at.len() {
                        1 => why,
                        _ => format!("its alias leads to {name}: {why}"),
                    };
                    let (owner, place) = (owner.clone(), None);
                    let finding = Finding {
                        severity: Severity::Bad,
                        owner,
                        kind,
                        problem: Problem::Silent,
                        place,
                        text,
                    };
                    self.checked.found.push(finding);
                    return Ok(None);
                }
            };
            if let Some(servers) = found {
                let keys = ZoneKeys::of(&self.resolver, &zone).await;
                self.checked.servers += servers.len();
                self.checked.found.extend(serials(&zone, kind, &servers).await);
                self.zones.insert(zone.clone(), (servers, keys));
            }
            let mut seen = Vec::new();
            if let Some((servers, keys)) = self.zones.get(&zone) {
                for server in servers {
                    seen.push((server.shown(), server.see(&zone, name, kind, keys).await));
                }
            }
            let target = |seen: &Seen| match seen {
                Seen::Alias { target, .. } => Some(target.clone()),
                _ => None,
            };
            let has_records = seen.iter().any(|(_, seen)| matches!(seen, Seen::Records { .. }));
            let next = seen.iter().find_map(|(_, seen)| target(seen));
            let next = next.filter(|next| !has_records && !at.contains(next) && at.len() <= MOST_ALIASES);
            let Some(next) = next else { return Ok(Some(Told { zone, servers: seen, aliases })) };
            for (server, seen) in &seen {
                if let Seen::Alias { signature, .. } = seen {
                    aliases.push((server.clone(), signature.clone()));
                }
            }
            at.push(next);
        }
    }

    async fn live(&self, owner: &Owner, kind: Kind, records: &Set) -> Vec<Live> {
        let host = owner.service().map_or_else(|| owner.clone(), |(_, host)| host);
        match kind {
            Kind::Tlsa | Kind::Sshfp => match self.authorities.addresses(&host).await {
                Ok(addresses) => {
                    let none = BTreeSet::new();
                    let at = (&addresses[..], self.ssh_ports.get(owner).unwrap_or(&none));
                    services::ask(owner, kind, records, at, self.arguments.starttls).await
                }
                Err(why) => {
                    vec![Live::Silent { address: host.to_string(), why: format!("no address: {why}") }]
                }
            },
            Kind::Cert | Kind::Openpgpkey => Vec::new(),
        }
    }
}

/// What to do where the keys of the root lead to no key of a zone.
fn unanchored(zone: &Owner) -> String {
    format!(
        "no chain of signatures leads from the keys of the root, which are built in, to {zone}: publish its DS record in the zone above it; \
         for a zone that is not in the public DNS, --anchor FILE names its own keys (DNSKEY records, from a server that you trust)"
    )
}

/// Compares the serial numbers of a zone. A server that is one behind may be about to fetch the zone: that is weak.
async fn serials(zone: &Owner, kind: Kind, servers: &[Server]) -> Vec<Finding> {
    let mut serials = Vec::new();
    for server in servers {
        if let Ok((serial, _)) = server.start_of_authority(zone).await {
            serials.push((server, serial));
        }
    }
    // RFC 1982: the newest is the one that none of the others is ahead of.
    let is_ahead = |one: u32, other: u32| one != other && one.wrapping_sub(other) < 1 << 31;
    let newest =
        serials.iter().map(|(_, serial)| *serial).reduce(|best, serial| match is_ahead(serial, best) {
            true => serial,
            false => best,
        });
    let Some(newest) = newest else { return Vec::new() };
    let behind = serials.iter().filter(|(_, serial)| *serial != newest);
    behind
        .map(|(server, serial)| Finding {
            severity: Severity::Weak,
            owner: zone.clone(),
            kind,
            problem: Problem::Behind,
            place: Some(server.shown()),
            text: format!("it has the zone with serial {serial}, another server has {newest}"),
        })
        .collect()
}

fn said(checked: &Checked, wanted: &BTreeMap<(Owner, Kind), Set>, bad: usize) -> String {
    let row = |finding: &Finding| {
        let place = finding.place.as_ref().map_or(String::new(), |place| format!("{place}: "));
        vec![
            finding.severity.word().to_owned(),
            finding.problem.name().to_owned(),
            plain(&format!("{} {}", finding.owner, finding.kind)),
            plain(&format!("{place}{}", finding.text)),
        ]
    };
    let rows: Vec<Vec<String>> = checked.found.iter().map(row).collect();
    let records = units::count(wanted.values().map(Set::len).sum(), "record");
    let servers = units::count(checked.servers, "server");
    let findings = units::count(checked.found.len(), "finding");
    format!("{}{records} at {servers}: {findings}, {bad} bad\n", table::of(&rows))
}

fn json(checked: &Checked, fails: bool) -> Value {
    let finding = |finding: &Finding| {
        json!({
            "severity": finding.severity.word(),
            "problem": finding.problem.name(),
            "name": finding.owner.to_string(),
            "type": finding.kind.name(),
            "place": finding.place,
            "text": finding.text,
        })
    };
    let record_set = |(owner, kind, seen): &(Owner, Kind, Observation)| {
        let servers: Vec<Value> =
            seen.servers.iter().map(|(server, seen)| server_json(server, seen)).collect();
        json!({ "name": owner.to_string(), "type": kind.name(), "servers": servers })
    };
    json!({
        "ok": !fails,
        "findings": checked.found.iter().map(finding).collect::<Vec<_>>(),
        "record_sets": checked.seen.iter().map(record_set).collect::<Vec<_>>(),
    })
}

fn server_json(server: &str, seen: &Seen) -> Value {
    let (state, records, ttl) = match seen {
        Seen::Records { data, ttl, .. } => ("records", data.len(), Some(*ttl)),
        Seen::NoData => ("no-data", 0, None),
        Seen::NoName => ("no-name", 0, None),
        Seen::Alias { .. } => ("alias", 0, None),
        Seen::NotServed(_) => ("not-served", 0, None),
        Seen::Silent(_) => ("silent", 0, None),
    };
    json!({ "server": server, "state": state, "records": records, "ttl_seconds": ttl })
}
