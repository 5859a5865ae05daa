//! Decides whether a session that comes to a pool chooses a backend at once, waits for one, or finds the queue full. The
//! path of a session and `penstock ctl why` both call [`come`]: they cannot give different answers.

use super::{AllDown, Selection};

/// Sessions that wait for a backend of the pool when another session comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    pub waiting: usize,
    /// Number of backends that have a soft limit.
    pub soft_limits: usize,
}

/// The backends among which a session may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// No other session waits: the session may choose among all backends.
    Any,
    /// Other sessions wait. The session may choose only the backend that has served its client before: sessions of new
    /// clients may be waiting because of soft limits alone, which do not apply to a known client.
    Known,
}

impl Turn {
    /// Behaviour of the choice while no backend is healthy. A pool that fails open serves its queue in order.
    #[inline]
    pub fn all_down(self, configured: AllDown) -> AllDown {
        match self {
            Turn::Any => configured,
            Turn::Known => AllDown::ErrorPage,
        }
    }
}

/// What becomes of a session that comes to a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coming<T> {
    /// A choice was possible; it may be that no backend is available.
    Chose(T),
    /// Stands in the queue.
    Waits,
    QueueFull,
}

/// Lets a session choose if it may: `choose` returns `None` if every possible backend is at its limit. `most` is the number
/// of sessions that may wait, and is asked only when it matters.
#[inline]
pub fn come<T>(
    line: Line,
    most: impl FnOnce() -> usize,
    choose: impl FnOnce(Turn) -> Option<T>,
) -> Coming<T> {
    let chosen = match line {
        Line { waiting: 0, .. } => choose(Turn::Any),
        Line { soft_limits: 0, .. } => None,
        Line { .. } => choose(Turn::Known),
    };
    match chosen {
        Some(chosen) => Coming::Chose(chosen),
        None if has_room(line.waiting, most()) => Coming::Waits,
        None => Coming::QueueFull,
    }
}

/// Whether one more session may wait.
pub fn has_room(waiting: usize, most: usize) -> bool {
    waiting < most
}

impl Selection {
    /// The selection, unless all are busy: then the session waits.
    pub fn at_once(self) -> Option<Self> {
        (self != Selection::AllBusy).then_some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_while_others_wait_stands_behind_them_unless_its_backend_knows_it() {
        let come = |waiting, soft_limits, choice| {
            let mut turn = None;
            let choose = |now| {
                turn = Some(now);
                choice
            };
            let coming = come(Line { waiting, soft_limits }, || 2, choose);
            (coming, turn)
        };
        assert_eq!(come(0, 0, Some(7)), (Coming::Chose(7), Some(Turn::Any)));
        assert_eq!(come(0, 1, None), (Coming::Waits, Some(Turn::Any)));
        assert_eq!(come(1, 0, Some(7)), (Coming::Waits, None), "no session overtakes another");
        assert_eq!(come(1, 1, Some(7)), (Coming::Chose(7), Some(Turn::Known)));
        assert_eq!(come(1, 1, None), (Coming::Waits, Some(Turn::Known)));
        assert_eq!(come(2, 0, Some(7)), (Coming::QueueFull, None));
        assert_eq!(come(2, 1, None), (Coming::QueueFull, Some(Turn::Known)));
    }

    #[test]
    fn without_a_queue_no_session_waits() {
        assert_eq!(come(Line::default(), || 0, |_| None::<()>), Coming::QueueFull);
    }
}
