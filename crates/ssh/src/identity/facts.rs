//! What connections saw of each host: when and where it was last good, and what was negotiated. One small file for all,
//! written once per run, and only when a line of it changes.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use logic::identity::{Date, Facts, Name, Strict};

use super::IdentityError;
use super::files::{self, Lock, Places};

/// What is remembered of one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The day it last showed a key that is its own.
    pub date: Date,
    /// Where.
    pub address: Option<IpAddr>,
    /// What was negotiated.
    pub facts: Facts,
}

/// Everything. What cannot be read of it is not there: nothing of it decides.
pub(super) fn read(places: &Places) -> BTreeMap<Name, Seen> {
    let text = fs::read_to_string(path(places)).unwrap_or_default();
    text.lines().filter_map(parse).collect()
}

/// Changes it, and writes only if something changed.
pub(super) fn change(
    places: &Places,
    change: impl FnOnce(&mut BTreeMap<Name, Seen>),
) -> Result<(), IdentityError> {
    let directory = places.identity_state();
    let lock = Lock::of(&directory)?;
    let before = read(places);
    let mut after = before.clone();
    change(&mut after);
    if after == before {
        return Ok(());
    }
    let text: String = after.iter().map(|(name, seen)| line(name, seen)).collect();
    files::replace(&directory, &[("seen".into(), text)], &lock)
}

fn path(places: &Places) -> PathBuf {
    places.identity_state().join("seen")
}

fn line(name: &Name, seen: &Seen) -> String {
    let address = seen.address.map_or_else(|| "-".to_owned(), |address| address.to_string());
    let mut line = format!("{name} {} {address}", seen.date);
    if let Some(kex) = &seen.facts.kex {
        line.push_str(&format!(" kex={kex}"));
    }
    if let Some(strict) = seen.facts.strict {
        line.push_str(if strict == Strict::Yes { " strict=yes" } else { " strict=no" });
    }
    if let Some(until) = seen.facts.certificate_until {
        line.push_str(&format!(" until={until}"));
    }
    line + "\n"
}

fn parse(line: &str) -> Option<(Name, Seen)> {
    let mut words = line.split(' ');
    let name = words.next()?.parse().ok()?;
    let date = words.next()?.parse().ok()?;
    let address = words.next()?;
    let address = if address == "-" { None } else { Some(address.parse().ok()?) };
    let mut facts = Facts::default();
    for word in words {
        match word.split_once('=')? {
            ("kex", kex) => facts.kex = Some(kex.to_owned()),
            ("strict", "yes") => facts.strict = Some(Strict::Yes),
            ("strict", _) => facts.strict = Some(Strict::No),
            ("until", until) => facts.certificate_until = Some(until.parse().ok()?),
            _ => {}
        }
    }
    Some((name, Seen { date, address, facts }))
}
