//! What a choice saw of each backend, in four bytes: every open session has one, and a record of every past one.

use super::choose::{Question, Selection};
use super::{Availability, Candidate};

/// Backends of which a view has room for the state.
pub const MOST: usize = 15;

/// How a backend was chosen, and the state of the first [`MOST`] backends then: two bits each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View(u32);

text::meanings! {
    /// How the backend of a session was found.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum How {
        /// No backend was chosen.
        NotChosen = "not-chosen",
        /// The sticky table, or its cookie, named it for the client.
        Remembered = "remembered",
        /// The policy of the pool chose it.
        Picked = "picked",
    }
}

text::meanings! {
    /// State of a backend when another one, or it, was chosen.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Seen {
        /// It could take the session.
        Open = "open",
        /// It was down, ejected or draining, or its weight was 0; or its access list denied the client, or backends of
        /// higher priority had room.
        Unavailable = "unavailable",
        /// It had as many sessions as it may have.
        AtLimit = "at-limit",
        /// It had failed in this session.
        Tried = "tried",
    }
}

impl View {
    /// What `question` sees, and how `selection` came about.
    pub fn of(question: &Question<'_>, selection: Selection) -> Self {
        let how = match selection {
            Selection::AllBusy | Selection::AllTried | Selection::Unavailable | Selection::Denied => {
                How::NotChosen
            }
            Selection::Remembered(_) => How::Remembered,
            Selection::Picked(_) => How::Picked,
        };
        let shown = question.candidates.iter().take(MOST).enumerate();
        Self(shown.fold(how as u32, |packed, (at, one)| {
            packed | (seen(one, question.tried.contains(at)) as u32) << (2 * at + 2)
        }))
    }

    pub fn how(self) -> How {
        match self.0 & 3 {
            0 => How::NotChosen,
            1 => How::Remembered,
            _ => How::Picked,
        }
    }

    /// State of the backend with this index; `None` if the view has no room for it.
    pub fn backend(self, index: usize) -> Option<Seen> {
        (index < MOST).then(|| match self.0 >> (2 * index + 2) & 3 {
            0 => Seen::Open,
            1 => Seen::Unavailable,
            2 => Seen::AtLimit,
            _ => Seen::Tried,
        })
    }
}

fn seen(candidate: &Candidate, is_tried: bool) -> Seen {
    match candidate {
        _ if is_tried => Seen::Tried,
        one if one.available != Availability::Available || one.weight == 0 => Seen::Unavailable,
        one if !one.takes() => Seen::AtLimit,
        _ => Seen::Open,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::{Identities, Tried};

    #[test]
    fn every_state_is_kept_and_that_of_the_sixteenth_backend_is_not() {
        let available = Availability::Available;
        let open = Candidate { weight: 1, in_flight: 0, limit: None, available, latency: 0 };
        let all = [
            open,
            Candidate { available: Availability::Unavailable, ..open },
            Candidate { weight: 0, ..open },
            Candidate { available: Availability::Denied, ..open },
            Candidate { available: Availability::Standby, ..open },
            Candidate { limit: Some(0), ..open },
            open,
        ];
        let mut tried = Tried::default();
        tried.insert(6);
        let identities = Identities::default();
        let question = |candidates| Question {
            candidates,
            identities: &identities,
            key: 0,
            remembered: None,
            tried: &tried,
        };
        let view = View::of(&question(&all), Selection::Remembered(0));
        let none = Seen::Unavailable;
        let expected = [Seen::Open, none, none, none, none, Seen::AtLimit, Seen::Tried];
        for (at, expected) in expected.into_iter().enumerate() {
            assert_eq!((view.how(), view.backend(at)), (How::Remembered, Some(expected)), "{at}");
        }
        let many = [Candidate { limit: Some(0), ..open }; 300];
        let view = View::of(&question(&many), Selection::Picked(299));
        assert_eq!((view.how(), view.backend(MOST)), (How::Picked, None));
        assert_eq!(view.backend(MOST - 1), Some(Seen::AtLimit));
        assert_eq!(View::default().how(), How::NotChosen);
    }
}
