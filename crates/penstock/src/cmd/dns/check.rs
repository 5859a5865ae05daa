//! `penstock dns check`: compares what is wanted with what the DNS says and what services show.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use access::keys::{Finding, Kind, Observation, Owner, Problem, Seen, Set, Severity, judge, sets};
use clap::Args;
use dns::{Anchor, Authorities, Resolver, Server, ZoneKeys};
use serde_json::{Value, json};
use text::{table, units};

use super::services;
use super::wanted::WantedArguments;
use crate::duration;
use crate::output::{Failure, plain, print, print_failed, print_json};
use crate::threads;

/// Check that the DNS has the records: at every server, proved, and as the service shows them
///
/// Asks each server of the zone, checks the signatures here up to a trust anchor (a resolver's word that an answer is
/// authentic is not believed), and asks the TLS and SSH services for their keys. Says what is missing, stale, unsigned,
/// about to expire or bogus, and which server is behind the others.
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
    let wanted = arguments.wanted.read()?;
    let wanted = sets(wanted.iter().map(|one| &one.record));
    let checked = threads::single()?.block_on(check(arguments, &wanted))?;
    let bad = checked.found.iter().filter(|one| one.severity == Severity::Bad).count();
    let fails = bad > 0 || arguments.strict && !checked.found.is_empty();
    if arguments.json {
        print_json(&format!("{:#}\n", json(&checked, fails)))?;
        return if fails { Err(Failure::Status(1)) } else { Ok(()) };
    }
    let text = said(&checked, &wanted, bad);
    if fails { Err(print_failed(&text, 1)) } else { print(&text) }
}

async fn check(arguments: &Arguments, wanted: &BTreeMap<(Owner, Kind), Set>) -> Result<Checked, Failure> {
    let anchor = arguments.anchor.clone().map_or(Anchor::Root, Anchor::File);
    let resolver = Resolver::new(&anchor, arguments.dns_server).map_err(Failure::runtime)?;
    let mut authorities =
        Authorities::new(&arguments.servers, arguments.dns_server).map_err(Failure::runtime)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut zones: BTreeMap<Owner, (Vec<Server>, ZoneKeys)> = BTreeMap::new();
    let mut checked = Checked { seen: Vec::new(), found: Vec::new(), servers: 0 };
    for ((owner, kind), records) in wanted {
        let zone = authorities.zone_of(owner).await.map_err(|why| Failure::runtime(plain(&why)))?;
        if !zones.contains_key(&zone) {
            let servers = authorities.servers(&zone).await.map_err(|why| Failure::runtime(plain(&why)))?;
            let keys = ZoneKeys::of(&resolver, &zone).await;
            checked.servers += servers.len();
            checked.found.extend(serials(&zone, *kind, &servers).await);
            zones.insert(zone.clone(), (servers, keys));
        }
        let Some((servers, keys)) = zones.get(&zone) else { continue };
        let mut seen = Vec::new();
        for server in servers {
            seen.push((server.shown(), server.see(&zone, owner, *kind, keys).await));
        }
        let live = match arguments.no_services {
            true => Vec::new(),
            false => {
                let host = owner.service().map_or_else(|| owner.clone(), |(_, host)| host);
                let addresses = match kind {
                    Kind::Tlsa | Kind::Sshfp => authorities.addresses(&host).await,
                    Kind::Cert | Kind::Openpgpkey => Vec::new(),
                };
                services::ask(owner, *kind, records, &addresses).await
            }
        };
        let proved = resolver.proved(owner, *kind).await;
        let observation = Observation { servers: seen, proved, live };
        checked.found.extend(judge((owner, *kind), records, &observation, now, arguments.expires_within));
        checked.seen.push((owner.clone(), *kind, observation));
    }
    checked.found.sort_by_key(|finding| finding.severity);
    Ok(checked)
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
        Seen::NotServed(_) => ("not-served", 0, None),
        Seen::Silent(_) => ("silent", 0, None),
    };
    json!({ "server": server, "state": state, "records": records, "ttl_seconds": ttl })
}
