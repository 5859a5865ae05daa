//! The enrolment queue: hosts that nobody knew in the last runs, and what they showed.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use logic::identity::{Date, Name};
use logic::ssh::key::PublicKey;

use super::IdentityError;
use super::files::{self, Lock, Places};

/// More are not kept; the oldest go.
const KEPT: usize = 1_000;

/// A host that waits for enrolment. What it showed proves nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// What it was called.
    pub name: String,
    /// Its port.
    pub port: u16,
    /// Where it was.
    pub address: Option<IpAddr>,
    /// When it was last asked.
    pub date: Date,
    /// What it showed.
    pub key: PublicKey,
}

/// The queue, oldest first. It is a convenience: what cannot be read of it is not there.
pub(super) fn read(places: &Places) -> Vec<Pending> {
    let text = fs::read_to_string(path(places)).unwrap_or_default();
    text.lines().filter_map(parse).collect()
}

/// Adds to the queue. A key of a host that waits already only gets a new date and address.
pub(super) fn add(places: &Places, new: Vec<Pending>) -> Result<(), IdentityError> {
    change(places, |queue| {
        for one in new {
            queue.retain(|known| known.name != one.name || known.port != one.port || known.key != one.key);
            queue.push(one);
        }
        queue.drain(..queue.len().saturating_sub(KEPT));
    })
}

/// Takes a host out of the queue.
pub(super) fn remove(places: &Places, name: &str) -> Result<(), IdentityError> {
    if read(places).iter().all(|known| known.name != name) {
        return Ok(());
    }
    change(places, |queue| queue.retain(|known| known.name != name))
}

fn change(places: &Places, change: impl FnOnce(&mut Vec<Pending>)) -> Result<(), IdentityError> {
    let directory = places.identity_state();
    let lock = Lock::of(&directory)?;
    let before = read(places);
    let mut queue = before.clone();
    change(&mut queue);
    if queue == before {
        return Ok(());
    }
    let text: String = queue.iter().map(line).collect();
    files::replace(&directory, &[("pending".into(), text)], &lock)
}

fn path(places: &Places) -> PathBuf {
    places.identity_state().join("pending")
}

fn line(one: &Pending) -> String {
    let address = one.address.map_or_else(|| "-".to_owned(), |address| address.to_string());
    format!("{} {} {address} {} {}\n", one.name, one.port, one.date, one.key)
}

fn parse(line: &str) -> Option<Pending> {
    let mut words = line.splitn(5, ' ');
    // What cannot be a name could not be enrolled either.
    let name = words.next()?.parse::<Name>().ok()?.to_string();
    let port = words.next()?.parse().ok()?;
    let address = words.next()?;
    let address = if address == "-" { None } else { Some(address.parse().ok()?) };
    Some(Pending { name, port, address, date: words.next()?.parse().ok()?, key: words.next()?.parse().ok()? })
}
