//! What the writers of sections share: the names of pools, and the notes.

use std::collections::{BTreeMap, BTreeSet};

use super::model::At;
use crate::document::quoted;
use crate::keys::{NewKey, State};
use crate::{Effect, Note};

pub(super) struct Emitter {
    pub(super) notes: Vec<Note>,
    /// Places and texts of the notes of this writer: a frontend with and without TLS has two listeners.
    pub(super) told: BTreeSet<(String, String)>,
    pub(super) keys: fn(NewKey) -> State,
    /// Names of the pools, by those of the backends.
    pub(super) pools: BTreeMap<String, String>,
    /// Names of the listeners so far.
    pub(super) listeners: BTreeSet<String>,
    /// Places of the addresses that are bound so far.
    pub(super) bound: BTreeMap<String, String>,
}

/// Longest time of a phase of a session, in milliseconds.
pub(super) const DAY: u64 = 86_400_000;
/// Longest time without a byte, in milliseconds.
pub(super) const YEAR: u64 = 366 * DAY;

impl Emitter {
    /// Records a note, and returns it as a comment.
    pub(super) fn note(&mut self, effect: Effect, place: &str, text: &str) -> String {
        if self.told.insert((place.to_owned(), text.to_owned())) {
            self.notes.push(Note { effect, place: place.to_owned(), text: text.to_owned() });
        }
        format!("{place}: {text}")
    }

    /// A time as a duration of at most `most`.
    pub(super) fn time(&mut self, time: &At<u64>, most: u64) -> String {
        let text = match time.value {
            0 => "0 is no limit at all with HAProxy: here it is the longest time",
            value if value > most => "longer than any time here: it is the longest",
            value => return milliseconds(value),
        };
        let last = self.notes.last();
        if last.is_none_or(|last| last.place != time.place || last.text != text) {
            self.note(Effect::Changed, &time.place, text);
        }
        milliseconds(most)
    }

    /// Whether an address can still be bound. If not, it is left out, with a note.
    pub(super) fn bind(&mut self, address: &At<String>) -> bool {
        let At { value, place } = address;
        let first = match value.rsplit_once(':') {
            // Every address includes every IPv4 and every IPv6 address.
            Some(("", port)) => [format!("0.0.0.0:{port}"), format!("[::]:{port}"), value.clone()].to_vec(),
            Some(("0.0.0.0" | "[::]", port)) => [format!(":{port}"), value.clone()].to_vec(),
            _ => vec![value.clone()],
        };
        let first = first.iter().find_map(|address| self.bound.get(address));
        if let Some(first) = first {
            let text = format!("{value} is bound at {first} already, and is left out");
            self.note(Effect::Missing, place, &text);
            return false;
        }
        self.bound.insert(value.clone(), place.clone());
        true
    }

    /// A name for a listener that no other one has.
    pub(super) fn listener_name(&mut self, wanted: &str) -> String {
        let mut name = wanted.to_owned();
        for number in 2_u32.. {
            if self.listeners.insert(name.clone()) {
                break;
            }
            name = format!("{wanted}-{number}");
        }
        name
    }

    /// Whether a key can be written; if not, a note says that it is needed.
    pub(super) fn key(&mut self, key: NewKey, place: &str) -> State {
        let state = (self.keys)(key);
        if state == State::Awaited {
            self.note(
                Effect::Missing,
                place,
                &format!("needs the key `{key}`, which this version does not have"),
            );
        }
        state
    }
}

/// A time as a duration.
pub(super) fn milliseconds(time: u64) -> String {
    quoted(&match time {
        seconds if seconds.is_multiple_of(1000) => format!("{}s", seconds / 1000),
        time => format!("{time}ms"),
    })
}
