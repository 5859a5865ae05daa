//! The enrolment queue: unknown hosts of the last runs, and the keys that they showed.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hosts::identity::{Date, Name};
use hosts::ssh::key::PublicKey;

use super::IdentityError;
use super::files::{self, Lock, Places};

/// Maximum number of entries; the oldest are removed.
const KEPT: usize = 1_000;
/// Maximum number of keys of one host. A server has three or four; a server that shows a new key each time must not
/// displace the other hosts.
const KEPT_OF_ONE: usize = 8;
/// Maximum wait for other writers in a process that must answer soon.
const SOON: Duration = Duration::from_secs(1);

/// A host that waits for enrolment. Its key is not proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    pub name: String,
    pub port: u16,
    pub address: Option<IpAddr>,
    /// Day of the last connection.
    pub date: Date,
    pub key: PublicKey,
}

/// Reads the queue, oldest host first. Lines that cannot be parsed are ignored: the queue is only a convenience.
pub(super) fn read(places: &Places) -> Vec<Pending> {
    let text = fs::read_to_string(path(places)).unwrap_or_default();
    text.lines().filter_map(parse).collect()
}

/// Adds hosts to the queue. If host and key are there already, only date and address change.
pub(super) fn add(places: &Places, new: Vec<Pending>) -> Result<(), IdentityError> {
    change(places, Lock::of, |queue| new.into_iter().for_each(|one| put(queue, one)))
}

/// Adds one host for a program that a user waits for: it waits at most [`SOON`] for the lock, and writes nothing if the
/// entry is there.
pub(super) fn add_soon(places: &Places, one: Pending) -> Result<(), IdentityError> {
    if read(places).contains(&one) {
        return Ok(());
    }
    change(places, |directory| Lock::within(directory, SOON), |queue| put(queue, one))
}

fn put(queue: &mut Vec<Pending>, one: Pending) {
    let is_of_it = |known: &Pending| known.name == one.name && known.port == one.port;
    queue.retain(|known| !is_of_it(known) || known.key != one.key);
    let mut too_many = (queue.iter().filter(|known| is_of_it(known)).count() + 1).saturating_sub(KEPT_OF_ONE);
    queue.retain(|known| {
        let goes = too_many > 0 && is_of_it(known);
        too_many -= usize::from(goes);
        !goes
    });
    queue.push(one);
    queue.drain(..queue.len().saturating_sub(KEPT));
}

/// Removes a host from the queue.
pub(super) fn remove(places: &Places, name: &str) -> Result<(), IdentityError> {
    if read(places).iter().all(|known| known.name != name) {
        return Ok(());
    }
    change(places, Lock::of, |queue| queue.retain(|known| known.name != name))
}

fn change(
    places: &Places,
    lock: impl FnOnce(&Path) -> Result<Lock, IdentityError>,
    change: impl FnOnce(&mut Vec<Pending>),
) -> Result<(), IdentityError> {
    let directory = places.identity_state();
    let lock = lock(&directory)?;
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
    // A host without a valid name could not be enrolled.
    let name = words.next()?.parse::<Name>().ok()?.to_string();
    let port = words.next()?.parse().ok()?;
    let address = words.next()?;
    let address = if address == "-" { None } else { Some(address.parse().ok()?) };
    Some(Pending { name, port, address, date: words.next()?.parse().ok()?, key: words.next()?.parse().ok()? })
}
