//! What the writers of sections share: the Pen that was read, and the notes.

use super::model::{Acl, Pen};
use crate::document::seconds;
use crate::keys::{NewKey, State};
use crate::{Effect, Note};

pub(super) struct Emitter {
    pub(super) pen: Pen,
    pub(super) notes: Vec<Note>,
    pub(super) keys: fn(NewKey) -> State,
}

impl Emitter {
    /// Records a note, and returns it as a comment.
    pub(super) fn note(&mut self, effect: Effect, place: &str, text: &str) -> String {
        let comment = format!("{place}: {text}");
        self.notes.push(Note { effect, place: place.to_owned(), text: text.to_owned() });
        comment
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

    /// Seconds as a duration that a key takes: at most `most`.
    pub(super) fn duration(
        &mut self,
        value: u64,
        most: u64,
        place: &str,
        comments: &mut Vec<String>,
    ) -> String {
        if value > most {
            let text = format!("{value} s is too long here: at most {}", seconds(most).trim_matches('"'));
            comments.push(self.note(Effect::Changed, place, &text));
        }
        seconds(value.min(most))
    }

    /// The list for this purpose, if it has entries.
    pub(super) fn list(&self, number: usize) -> Option<&Acl> {
        self.pen.acls.get(&number).filter(|Acl(entries)| !entries.is_empty())
    }
}
