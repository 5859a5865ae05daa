//! Facts that connections learnt about each host: date and address of the last good connection, its algorithms, and the
//! key for which it was refused since. One small file for all hosts, written once per run, and only if a line has changed.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use hosts::identity::{Date, Facts, Name, RefusedKey, Strict};

use super::IdentityError;
use super::files::{self, Lock, Places};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    /// Day on which the host last showed its own key, if it ever did.
    pub date: Option<Date>,
    pub address: Option<IpAddr>,
    pub facts: Facts,
}

/// Reads the facts of all hosts. Lines that cannot be parsed are ignored: no decision depends on them.
pub(super) fn read(places: &Places) -> BTreeMap<Name, Seen> {
    let text = fs::read_to_string(path(places)).unwrap_or_default();
    text.lines().filter_map(parse).collect()
}

/// Changes the file, and writes it only if the content differs.
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
    let date = seen.date.map_or_else(|| "-".to_owned(), |date| date.to_string());
    let mut line = format!("{name} {date} {address}");
    if let Some(kex) = &seen.facts.kex {
        line.push_str(&format!(" kex={kex}"));
    }
    if let Some(strict) = seen.facts.strict {
        line.push_str(if strict == Strict::Yes { " strict=yes" } else { " strict=no" });
    }
    if let Some(until) = seen.facts.certificate_until {
        line.push_str(&format!(" until={until}"));
    }
    if let Some(RefusedKey { fingerprint, date }) = seen.facts.refused {
        line.push_str(&format!(" refused={date},{fingerprint}"));
    }
    line + "\n"
}

fn parse(line: &str) -> Option<(Name, Seen)> {
    let mut words = line.split(' ');
    let name = words.next()?.parse().ok()?;
    let date = words.next()?;
    let date = if date == "-" { None } else { Some(date.parse().ok()?) };
    let address = words.next()?;
    let address = if address == "-" { None } else { Some(address.parse().ok()?) };
    let mut facts = Facts::default();
    for word in words {
        match word.split_once('=')? {
            ("kex", kex) => facts.kex = Some(kex.to_owned()),
            ("strict", "yes") => facts.strict = Some(Strict::Yes),
            ("strict", _) => facts.strict = Some(Strict::No),
            ("refused", refused) => {
                let (date, fingerprint) = refused.split_once(',')?;
                facts.refused =
                    Some(RefusedKey { fingerprint: fingerprint.parse().ok()?, date: date.parse().ok()? });
            }
            ("until", until) => facts.certificate_until = Some(until.parse().ok()?),
            _ => {}
        }
    }
    Some((name, Seen { date, address, facts }))
}
