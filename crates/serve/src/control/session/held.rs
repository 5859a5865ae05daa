//! Answers that wait until the state of the process is stored, so that a restart has what they say, and until the services of
//! `dsr` listeners follow it. One store is for all commands that have arrived together, so that many of them a second cost
//! few stores.

use std::sync::Arc;

use state::State;
use state::kept::board::StoredWithin;

use super::STORE_TIME;
use crate::control::command::{self, Format};
use crate::control::framing;

pub(super) struct Held {
    state: Arc<State>,
    answers: Vec<Answer>,
    bytes: usize,
}

/// A client that is gone has no answer, and what it has changed is stored all the same.
impl Drop for Held {
    fn drop(&mut self) {
        if self.answers.iter().any(|answer| matches!(answer, Answer::Marked(..))) {
            self.state.kept.want();
        }
    }
}

enum Answer {
    /// It says that something was changed.
    Marked(String, Format),
    /// It follows one, and is framed already.
    Behind(Vec<u8>),
}

impl Held {
    pub(super) fn new(state: Arc<State>) -> Self {
        Self { state, answers: Vec::new(), bytes: 0 }
    }

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

    /// Waits for the store and the services, and appends the answers to `wire`.
    pub(super) async fn store(&mut self, wire: &mut Vec<u8>) {
        if self.answers.is_empty() {
            return;
        }
        let followed = self.state.services.followed_within(STORE_TIME);
        let changes = self.answers.iter().filter(|answer| matches!(answer, Answer::Marked(..))).count();
        let stored = self.state.kept.changes_stored_within(changes as u64, STORE_TIME);
        let (stored, late) = tokio::join!(stored, followed);
        self.bytes = 0;
        for answer in self.answers.drain(..) {
            wire.append(&mut match answer {
                Answer::Behind(framed) => framed,
                Answer::Marked(mut text, format) => {
                    if stored == StoredWithin::No {
                        text = command::not_stored(&self.state, text, format);
                    }
                    if !late.is_empty() {
                        text = command::not_followed(&late, text, format);
                    }
                    framing::answer(&text)
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use state::kept::board::Stored;
    use tokio::time::timeout;

    use super::*;
    use crate::report::fixture;

    #[tokio::test]
    async fn an_answer_waits_until_the_services_follow_and_says_which_one_does_not() {
        let state = fixture::front("backends = ['10.0.0.1:80']").state.clone();
        let (desk, mut questions) = tokio::sync::mpsc::channel(1);
        let report = state::dsr::ServiceReport { address: "192.0.2.10:80".into(), ..Default::default() };
        state.services.publish(report, &desk);
        let answer = async |format, text: &str| {
            let mut held = Held::new(state.clone());
            held.push_marked(text.to_owned(), format);
            let mut wire = Vec::new();
            held.store(&mut wire).await;
            String::from_utf8(wire).unwrap()
        };
        let serving = async {
            match questions.recv().await {
                Some(state::dsr::Question::Follow { done }) => done.send(()).unwrap(),
                _ => panic!("it is asked to follow"),
            }
            questions
        };
        let both = async { tokio::join!(answer(Format::Text, "drained"), serving) };
        let (said, questions) = timeout(Duration::from_secs(20), both).await.unwrap();
        assert!(!said.contains("followed"), "{said}");
        // It does not answer any more: the first question waits, and the second one finds no room.
        for _ in 0..2 {
            let said = answer(Format::Json, "{}").await;
            assert!(said.contains("the worker of 192.0.2.10:80 has not followed within 1 s"), "{said}");
        }
        drop(questions);
        let said = answer(Format::Text, "drained").await;
        assert!(!said.contains("followed"), "it has ended: {said}");
    }

    #[tokio::test]
    async fn what_a_client_that_is_gone_has_changed_is_stored_and_not_by_the_timer() {
        let state = fixture::front("backends = ['10.0.0.1:80']").state.clone();
        state.kept.set(Stored { directory: "/nowhere".into(), at: None, bytes: 0, restored: None });
        let mut held = Held::new(state.clone());
        held.push_marked("drained".to_owned(), Format::Text);
        held.push(b"behind it".to_vec());
        drop(held);
        assert!(timeout(Duration::from_secs(20), state.kept.wanted()).await.is_ok());
        drop(Held::new(state.clone()));
        assert!(timeout(Duration::ZERO, state.kept.wanted()).await.is_err(), "nothing was changed");
    }
}
