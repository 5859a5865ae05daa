//! The enrolment queue: hosts that nobody knew in the last runs, and what they showed.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use logic::identity::{Date, Name};
use logic::ssh::key::PublicKey;

use super::IdentityError;
use super::files::{self, Lock, Places};

/// More are not kept; the oldest go.
const KEPT: usize = 1_000;
/// More keys of one host are not kept: a server has three or four, and one that shows another key each time must not push
/// the other hosts out.
const KEPT_OF_ONE: usize = 8;
/// Whoever cannot wait for other writers gives up after this.
const SOON: Duration = Duration::from_secs(1);

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
    change(places, Lock::of, |queue| new.into_iter().for_each(|one| put(queue, one)))
}

/// The same for a program that somebody waits for: it gives up sooner, and writes nothing that is there already.
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

/// Takes a host out of the queue.
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
    // What cannot be a name could not be enrolled either.
    let name = words.next()?.parse::<Name>().ok()?.to_string();
    let port = words.next()?.parse().ok()?;
    let address = words.next()?;
    let address = if address == "-" { None } else { Some(address.parse().ok()?) };
    Some(Pending { name, port, address, date: words.next()?.parse().ok()?, key: words.next()?.parse().ok()? })
}
