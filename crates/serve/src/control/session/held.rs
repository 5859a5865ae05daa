//! Answers that wait until the state of the process is stored, so that a restart has what they say. One store is for all
//! commands that have arrived together, so that many of them a second cost few stores.

use state::State;
use state::kept::board::StoredWithin;

use super::STORE_TIME;
use crate::control::command::{self, Format};
use crate::control::framing;

#[derive(Default)]
pub(super) struct Held {
    answers: Vec<Answer>,
    bytes: usize,
}

enum Answer {
    /// It says that something was changed.
    Marked(String, Format),
    /// It follows one, and is framed already.
    Behind(Vec<u8>),
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    pub(super) fn push(&mut self, framed: Vec<u8>) {
        self.bytes += framed.len();
        self.answers.push(Answer::Behind(framed));
    }

    pub(super) fn push_marked(&mut self, text: String, format: Format) {
        self.bytes += text.len();
        self.answers.push(Answer::Marked(text, format));
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Waits for the store, and appends the answers to `wire`.
    pub(super) async fn store(&mut self, state: &State, wire: &mut Vec<u8>) {
        if self.answers.is_empty() {
            return;
        }
        let stored = state.kept.stored_within(STORE_TIME).await;
        self.bytes = 0;
        for answer in self.answers.drain(..) {
            wire.append(&mut match (answer, stored) {
                (Answer::Behind(framed), _) => framed,
                (Answer::Marked(text, _), StoredWithin::Yes) => framing::answer(&text),
                (Answer::Marked(text, format), StoredWithin::No) => {
                    framing::answer(&command::not_stored(state, text, format))
                }
            });
        }
    }
}
