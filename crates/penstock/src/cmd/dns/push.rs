//! `penstock dns push`: makes a zone have the records.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use access::keys::{Change, Others, Owner, Record, Set};
use clap::Args;
use dns::{Primary, Push, PushFault, SignedServer, Write};
use logic::tsig_key::TsigKey;
use serde_json::{Value, json};
use sys::file;
use text::units;

use super::records;
use super::wanted::{Keys, WantedArguments, at};
use crate::duration;
use crate::output::{Failure, plain, print, print_json};
use crate::threads;

/// Push the records to the primary server of the zone, with signed updates
///
/// Reads what the server has, changes only what differs, and only records of the names and types of these keys, and only if
/// no other program has changed them in between; then asks again. Records of the same name and type that are of no key named here
/// are removed, unless --keep-others. Those of revoked keys are removed in any case, also where they were the only ones.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    wanted: WantedArguments,
    #[command(flatten)]
    primary: PrimaryArguments,
    /// Only print what would be changed
    #[arg(long)]
    dry_run: bool,
    /// Keep records of the same names and types that are of other keys
    #[arg(long)]
    keep_others: bool,
    /// Remove all SSHFP records of this name: of a host that is gone
    #[arg(long = "without", value_name = "NAME")]
    without: Vec<String>,
    /// TTL in seconds [default: that of the records that are there, else 3600]
    #[arg(long, value_name = "SECONDS")]
    ttl: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The server that takes updates.
#[derive(Debug, Args)]
pub(super) struct PrimaryArguments {
    /// Address of the primary server of the zone
    #[arg(long, value_name = "ADDRESS", value_parser = super::server)]
    server: SocketAddr,
    /// File with the key that signs updates, as tsig-keygen writes it
    #[arg(long, value_name = "FILE")]
    tsig: PathBuf,
    /// Time limit in seconds, or with a unit: ms, s, m
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = duration::seconds)]
    timeout: Duration,
}

const EXAMPLES: &str = "\
Examples:
  penstock dns push --hosts --zone example.org --server 192.0.2.53 --tsig /etc/penstock/dns.key --dry-run
  penstock dns push --config penstock.toml --server 192.0.2.53 --tsig /etc/penstock/dns.key
  penstock dns push --without old1.example.org --server 192.0.2.53 --tsig /etc/penstock/dns.key

Exit codes: 0 the zone has the records (--dry-run: it was read); 1 it has not, or that is not known; 2 wrong usage.";

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let zone = arguments.wanted.zone()?;
    let mut known = Keys::default();
    for name in &arguments.without {
        let owner = Owner::within(name, zone.as_ref())
            .map_err(|fault| Failure::usage(format!("--without: {fault}")))?;
        if let Some(zone) = zone.as_ref().filter(|zone| !owner.is_in(zone)) {
            return Err(Failure::usage(format!(
                "--without {owner}: it is not in the zone {zone} (--zone), so its records would stay\n  \
                 hint: leave --zone out, and push the names of each zone to its own primary server"
            )));
        }
        known.revoked.add_gone(owner);
    }
    let keys = arguments.wanted.with(known)?;
    let wanted = keys.sets();
    let others = if arguments.keep_others { Others::Keep } else { Others::Remove };
    let write = if arguments.dry_run { Write::DryRun } else { Write::Yes };
    let (revoked, ttl) = (&keys.revoked, arguments.ttl);
    let push = Push { wanted: &wanted, others, revoked, ttl, zone: zone.as_ref() };
    let primary = arguments.primary.open()?;
    let changes = threads::single()?.block_on(primary.push(&push, write));
    let changes = changes.map_err(|fault| {
        let server = arguments.primary.server;
        let hint = match fault {
            PushFault::NoZone { .. } if zone.is_none() && wanted.len() > 1 => {
                "\n  hint: nothing is changed; --zone ZONE leaves out the names of other zones, and each primary server gets a push of its own"
            }
            _ => "",
        };
        Failure::runtime(format!("cannot push to {server}: {}{hint}", plain(&fault.to_string())))
    })?;
    if arguments.json {
        let changes: Vec<Value> = changes.iter().map(json).collect();
        return print_json(&format!("{:#}\n", json!({ "dry_run": arguments.dry_run, "changes": changes })));
    }
    let mut text: String = changes.iter().map(lines).collect();
    let records: usize = wanted.values().map(Set::len).sum();
    let has = match records {
        0 => "has no record of a revoked key".to_owned(),
        records => format!("has the {}", units::count(records, "record")),
    };
    text.push_str(&match (changes.is_empty(), write) {
        (true, _) => format!("nothing to change: the zone {has}\n"),
        (false, Write::DryRun) => "nothing was changed (--dry-run)\n".to_owned(),
        (false, Write::Yes) => format!("done: the server {has}\n"),
    });
    print(&text)
}

impl PrimaryArguments {
    fn open(&self) -> Result<Primary, Failure> {
        let server =
            SignedServer::new(self.server, tsig_key(&self.tsig)?).map_err(|why| at(&self.tsig, why))?;
        Ok(Primary::new(server, self.timeout))
    }
}

/// Limit of a file with a key in bytes.
const LARGEST: u64 = 64 * 1024;

/// Reads the key that signs updates. Other users must not be able to read it.
pub(super) fn tsig_key(path: &Path) -> Result<TsigKey, Failure> {
    let unreadable = |why: &dyn std::fmt::Display| Failure::unreadable(path, why);
    let text = file::read_secret(path, LARGEST).map_err(|error| unreadable(&error))?;
    TsigKey::parse(&String::from_utf8_lossy(&text)).map_err(|fault| unreadable(&fault))
}

/// Lines with `-` and `+`.
fn lines(change: &Change) -> String {
    let line = |sign: char, data: &Vec<u8>| {
        let record = Record { owner: change.owner.clone(), kind: change.kind, data: data.clone() };
        format!("{sign} {}\n", record.line(Some(change.ttl)))
    };
    let removed = change.remove.iter().map(|data| line('-', data));
    removed.chain(change.add.iter().map(|data| line('+', data))).collect()
}

fn json(change: &Change) -> Value {
    let records = |set: &Set| -> Vec<Value> {
        let record =
            |data: &Vec<u8>| Record { owner: change.owner.clone(), kind: change.kind, data: data.clone() };
        set.iter().map(|data| json!(records::json(&record(data), None)["data"])).collect()
    };
    json!({
        "name": change.owner.to_string(),
        "type": change.kind.name(),
        "ttl_seconds": change.ttl,
        "remove": records(&change.remove),
        "add": records(&change.add),
    })
}
