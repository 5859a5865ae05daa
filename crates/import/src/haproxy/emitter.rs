//! What the writers of sections share: the names of pools, and the notes.

use std::collections::BTreeMap;

use crate::keys::{NewKey, State};
use crate::{Effect, Note};

pub(super) struct Emitter {
    pub(super) notes: Vec<Note>,
    pub(super) keys: fn(NewKey) -> State,
    /// Names of the pools, by those of the backends.
    pub(super) pools: BTreeMap<String, String>,
}

impl Emitter {
    /// Records a note, and returns it as a comment.
    pub(super) fn note(&mut self, effect: Effect, place: &str, text: &str) -> String {
        self.notes.push(Note { effect, place: place.to_owned(), text: text.to_owned() });
        format!("{place}: {text}")
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
