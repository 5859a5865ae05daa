//! When the VIP is announced and answered for. Before that, the network is asked whether another machine has it, as RFC 5227
//! and RFC 4862 want it, in a shorter time: a machine that has it keeps it, and operators are told. A planned take-over asks
//! nothing: the previous owner may still answer until it has noticed the take-over.
//!
//! `crates/logic/src/dsr/owner.rs` has the frames, `crates/proxy/src/dsr/link.rs` sends them.

use std::time::{Duration, Instant};

use super::packet::Mac;

/// Questions before the VIP is announced. One may be lost.
const QUESTIONS: u32 = 3;

/// Time between two questions, and after the last one: a machine that has the address answers at once.
const PAUSE: Duration = Duration::from_millis(100);

/// Times between announcements: one may be lost. A port of a switch with a spanning tree takes no frame for up to half a
/// minute after its link is there (IEEE 802.1D: twice the forward delay of 15 s).
const ANNOUNCE_AFTER: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(1), Duration::from_secs(30), Duration::from_secs(30)];

/// Time between questions to a machine that has the address.
const YIELDED_ASK_EVERY: Duration = Duration::from_secs(1);

/// Time between questions while this machine answers.
const ASK_EVERY: Duration = Duration::from_secs(10);

/// Time without a claim after which a conflict is over: a few questions were not answered. A machine that has yielded asks each second.
const OVER_AFTER: Duration = Duration::from_secs(30);
const YIELDED_OVER_AFTER: Duration = Duration::from_millis(3500);

/// Shortest time between two events about another machine that claims the address.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// Claims within this time after the first one are part of a planned take-over: two balancers look a few times a second
/// which of them is the owner.
const TAKE_OVER: Duration = Duration::from_secs(2);

/// How this machine starts to hold the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    Ask,
    /// Without questions: another machine is about to release the address.
    AtOnce,
}

/// Whether the address moves between machines as planned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moves {
    #[default]
    Never,
    AsPlanned,
}

/// What is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Send {
    /// `super::owner::probe`
    Question,
    /// `super::owner::announcement`
    Announcement,
}

/// Who claims the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimant {
    /// A backend of the service, which should not answer for it.
    Backend,
    Other,
}

/// What operators are to be told of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Nothing,
    /// That machine claims the address, and whether this one answers all the same.
    Conflict,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// This machine does not hold the address.
    #[default]
    Released,
    Asking {
        left: u32,
        due: Instant,
    },
    Held {
        /// Number of announcements, and when the next one is due; `None`: no further one.
        announced: usize,
        announce: Option<Instant>,
        ask: Instant,
    },
    /// The machine in `claim` holds the address.
    Yielded {
        ask: Instant,
    },
}

#[derive(Clone, Copy, Debug)]
struct Claim {
    by: Mac,
    first: Instant,
    seen: Instant,
    told: Option<Instant>,
}

/// Whether this machine holds the address of a service.
#[derive(Debug, Default)]
pub struct Holding {
    phase: Phase,
    claim: Option<Claim>,
    moves: Moves,
}

impl Holding {
    pub fn set_moves(&mut self, moves: Moves) {
        self.moves = moves;
    }

    /// Takes the address, or asks for it anew.
    pub fn begin(&mut self, begin: Begin, now: Instant) {
        self.phase = match begin {
            Begin::Ask => Phase::Asking { left: QUESTIONS, due: now },
            Begin::AtOnce => held(now),
        };
    }

    /// Releases the address. Returns whether operators were told of a conflict, which is over for them.
    pub fn release(&mut self) -> bool {
        self.phase = Phase::Released;
        self.claim.take().is_some_and(|claim| claim.told.is_some())
    }

    /// The network is to be told where the address is, if it is held.
    pub fn announce_anew(&mut self, now: Instant) {
        if let Phase::Held { announced, announce, .. } = &mut self.phase {
            (*announced, *announce) = (0, Some(now));
        }
    }

    /// The link of the interface is there again: another machine may have the address meanwhile, and nothing that was sent
    /// without the link has arrived.
    pub fn resume(&mut self, now: Instant) {
        if matches!(self.phase, Phase::Released) {
            return;
        }
        self.begin(Begin::Ask, now);
        if let Some(claim) = &mut self.claim {
            // Without a link no claim could come.
            claim.seen = now;
        }
    }

    /// Whether this machine answers ARP requests and neighbour solicitations for the address.
    pub fn answers(&self) -> bool {
        matches!(self.phase, Phase::Held { .. })
    }

    /// The machine that has the address, so that this one does not answer for it.
    pub fn yields_to(&self) -> Option<Mac> {
        self.claim.filter(|_| matches!(self.phase, Phase::Yielded { .. })).map(|claim| claim.by)
    }

    /// What is to be sent now; to be asked ten times a second, until it is `None`, as long as the interface has a link.
    pub fn poll(&mut self, now: Instant) -> Option<Send> {
        match &mut self.phase {
            Phase::Released => None,
            Phase::Asking { due, .. } if *due > now => None,
            Phase::Asking { left: 0, .. } => {
                self.phase = held(now);
                self.poll(now)
            }
            Phase::Asking { left, due } => {
                (*left, *due) = (*left - 1, now + PAUSE);
                Some(Send::Question)
            }
            Phase::Held { ask, .. } if *ask <= now => {
                *ask = now + ASK_EVERY;
                Some(Send::Question)
            }
            Phase::Held { announced, announce, .. } if announce.is_some_and(|due| due <= now) => {
                *announce = ANNOUNCE_AFTER.get(*announced).map(|pause| now + *pause);
                *announced += 1;
                Some(Send::Announcement)
            }
            Phase::Held { .. } => None,
            Phase::Yielded { ask } if *ask > now => None,
            Phase::Yielded { ask } => {
                *ask = now + YIELDED_ASK_EVERY;
                Some(Send::Question)
            }
        }
    }

    /// Takes a claim of another machine.
    pub fn handle(&mut self, by: Mac, claimant: Claimant, now: Instant) -> Told {
        let is_known = self.claim.is_some_and(|claim| claim.by == by);
        let yields = matches!(self.phase, Phase::Yielded { .. });
        if yields && claimant == Claimant::Backend && !is_known {
            // A backend that answers as well does not end the claim of the machine that has the address.
            return Told::Nothing;
        }
        match &mut self.phase {
            Phase::Released => return Told::Nothing,
            Phase::Asking { .. } if claimant == Claimant::Other => {
                self.phase = Phase::Yielded { ask: now + YIELDED_ASK_EVERY };
            }
            Phase::Held { ask, .. } if !is_known && self.moves == Moves::AsPlanned => {
                // Asked once more after a take-over.
                *ask = (*ask).min(now + TAKE_OVER);
            }
            Phase::Asking { .. } | Phase::Held { .. } | Phase::Yielded { .. } => {}
        }
        let is_held = self.answers();
        let new = Claim { by, first: now, seen: now, told: None };
        let claim = self.claim.get_or_insert(new);
        if claim.by != by {
            // Also with the time of the last event: many machines make no more events than one.
            *claim = Claim { told: claim.told, ..new };
        }
        claim.seen = now;
        let may_end = is_held && self.moves == Moves::AsPlanned;
        let is_soon = may_end && now.saturating_duration_since(claim.first) < TAKE_OVER;
        let is_told = |told: Instant| now.saturating_duration_since(told) < TELL_EVERY;
        if is_soon || claim.told.is_some_and(is_told) {
            return Told::Nothing;
        }
        claim.told = Some(now);
        Told::Conflict
    }

    /// Answers for the address all the same: the machine to which this one yields is a backend of the service.
    pub fn take(&mut self, now: Instant) {
        if matches!(self.phase, Phase::Yielded { .. }) {
            self.phase = held(now);
        }
    }

    /// Ends a conflict in which no claim has come for a while. Returns true if operators were told of it. If this machine had
    /// yielded, it asks for the address again.
    pub fn poll_over(&mut self, now: Instant) -> bool {
        let has_yielded = matches!(self.phase, Phase::Yielded { .. });
        let limit = if has_yielded { YIELDED_OVER_AFTER } else { OVER_AFTER };
        let Some(claim) = self.claim.take_if(|it| now.saturating_duration_since(it.seen) >= limit) else {
            return false;
        };
        if has_yielded {
            self.begin(Begin::Ask, now);
        }
        claim.told.is_some()
    }
}

fn held(now: Instant) -> Phase {
    Phase::Held { announced: 0, announce: Some(now), ask: now + ASK_EVERY }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Mac = [2, 0, 0, 0, 0, 1];
    const B: Mac = [2, 0, 0, 0, 0, 2];

    #[allow(clippy::disallowed_methods, reason = "a time must begin somewhere")]
    fn at(millis: u64) -> Instant {
        thread_local!(static START: Instant = Instant::now());
        START.with(|start| *start) + Duration::from_millis(millis)
    }

    /// What is sent in a time, as letters: `q`, `A`, and `.` for each tick.
    fn sent(holding: &mut Holding, from: u64, to: u64) -> String {
        let mut said = String::new();
        for millis in (from..to).step_by(100) {
            while let Some(one) = holding.poll(at(millis)) {
                said.push(if one == Send::Question { 'q' } else { 'A' });
            }
            said.push('.');
        }
        said
    }

    fn begun(begin: Begin, moves: Moves) -> Holding {
        let mut holding = Holding::default();
        assert_eq!(holding.poll(at(0)), None);
        holding.set_moves(moves);
        holding.begin(begin, at(0));
        holding
    }

    #[test]
    fn it_is_asked_for_before_it_is_announced() {
        let mut holding = begun(Begin::Ask, Moves::Never);
        assert_eq!(sent(&mut holding, 0, 300), "q.q.q.");
        assert!(!holding.answers());
        assert_eq!(sent(&mut holding, 300, 1400), "A..........A.");
        assert!(holding.answers());
        // The third one at 2.3 s, and for switches that took none of them two more.
        let mut announced = |from, to| sent(&mut holding, from, to).matches('A').count();
        assert_eq!(
            (announced(1400, 32_300), announced(32_300, 32_400), announced(32_400, 62_300)),
            (1, 1, 0)
        );
        assert_eq!((announced(62_300, 62_400), announced(62_400, 200_000)), (1, 0));
        holding.announce_anew(at(200_000));
        assert_eq!(sent(&mut holding, 200_000, 201_100).matches('A').count(), 2);
    }

    #[test]
    fn while_it_is_held_the_network_is_asked_every_ten_seconds() {
        let mut holding = begun(Begin::AtOnce, Moves::Never);
        assert_eq!(sent(&mut holding, 0, 40_100).matches('q').count(), 4);
    }

    #[test]
    fn once_the_link_is_back_it_is_asked_for_anew_and_who_took_it_meanwhile_keeps_it() {
        for begin in [Begin::Ask, Begin::AtOnce] {
            let mut holding = begun(begin, Moves::Never);
            sent(&mut holding, 0, 5000);
            assert!(holding.answers());
            holding.resume(at(60_000));
            assert!(!holding.answers());
            assert_eq!(sent(&mut holding, 60_000, 60_100), "q.");
            assert_eq!(holding.handle(A, Claimant::Other, at(60_110)), Told::Conflict);
            assert_eq!((holding.yields_to(), holding.answers()), (Some(A), false));
            // A conflict that was told before the link was lost goes on, as long as its machine still answers.
            holding.resume(at(200_000));
            assert!(!holding.poll_over(at(200_000)));
            assert_eq!(holding.handle(A, Claimant::Other, at(200_010)), Told::Conflict, "after a minute");
            assert_eq!(holding.yields_to(), Some(A));
            // And without another machine it is held and announced.
            holding.resume(at(300_000));
            assert_eq!(sent(&mut holding, 300_000, 300_400), "q.q.q.A.");
        }
        let mut holding = Holding::default();
        holding.resume(at(0));
        assert!(holding.poll(at(0)).is_none(), "a machine that stands by asks for nothing");
    }

    #[test]
    fn who_has_it_keeps_it_until_it_answers_no_more() {
        let mut holding = begun(Begin::Ask, Moves::Never);
        assert_eq!(sent(&mut holding, 0, 200), "q.q.");
        assert_eq!(holding.handle(A, Claimant::Other, at(200)), Told::Conflict);
        assert_eq!((holding.yields_to(), holding.answers()), (Some(A), false));
        for second in 1..10 {
            assert_eq!(
                sent(&mut holding, 300 + (second - 1) * 1000, 300 + second * 1000).matches('q').count(),
                1
            );
            assert_eq!(holding.handle(A, Claimant::Other, at(310 + second * 1000)), Told::Nothing);
            assert!(!holding.poll_over(at(320 + second * 1000)) && !holding.answers());
        }
        assert!(!holding.poll_over(at(12_000)));
        assert!(holding.poll_over(at(13_000)) && !holding.poll_over(at(13_000)));
        assert_eq!(sent(&mut holding, 13_000, 13_400), "q.q.q.A.");
        assert!(holding.answers() && holding.yields_to().is_none());
    }

    #[test]
    fn a_backend_that_answers_for_it_is_told_and_does_not_keep_it() {
        let mut holding = begun(Begin::Ask, Moves::Never);
        assert_eq!(holding.poll(at(0)), Some(Send::Question));
        assert_eq!(holding.handle(A, Claimant::Backend, at(1)), Told::Conflict);
        assert_eq!(sent(&mut holding, 100, 400), "q.q.A.");
        // One that was not known as a backend at first.
        let mut holding = begun(Begin::Ask, Moves::Never);
        assert_eq!(holding.handle(A, Claimant::Other, at(1)), Told::Conflict);
        holding.take(at(500));
        assert!(holding.answers() && sent(&mut holding, 500, 600) == "A.");
        assert!(!holding.poll_over(at(20_000)) && holding.poll_over(at(30_001)));
    }

    #[test]
    fn a_claim_while_it_is_held_is_told_once_a_minute_and_changes_nothing() {
        let mut holding = begun(Begin::AtOnce, Moves::Never);
        assert_eq!(sent(&mut holding, 0, 100), "A.");
        assert_eq!(holding.handle(A, Claimant::Other, at(200)), Told::Conflict);
        assert_eq!(holding.handle(B, Claimant::Other, at(300)), Told::Nothing);
        assert_eq!(holding.handle(A, Claimant::Other, at(60_100)), Told::Nothing);
        assert_eq!(holding.handle(A, Claimant::Other, at(60_300)), Told::Conflict);
        assert!(holding.answers());
        assert!(holding.poll_over(at(90_300)));
        assert_eq!(holding.handle(A, Claimant::Other, at(90_400)), Told::Conflict);
        assert!(holding.release() && !holding.release() && holding.poll(at(91_000)).is_none());
        assert_eq!(holding.handle(A, Claimant::Other, at(91_100)), Told::Nothing);
    }

    #[test]
    fn a_planned_take_over_is_no_conflict_and_two_owners_are_one() {
        let mut holding = begun(Begin::AtOnce, Moves::AsPlanned);
        assert_eq!(sent(&mut holding, 0, 100), "A.", "at once");
        for millis in [50, 150, 1900] {
            assert_eq!(holding.handle(A, Claimant::Other, at(millis)), Told::Nothing);
        }
        assert!(!holding.poll_over(at(33_000)), "operators were not told");
        let mut holding = begun(Begin::AtOnce, Moves::AsPlanned);
        assert_eq!(holding.handle(A, Claimant::Other, at(50)), Told::Nothing);
        assert!(sent(&mut holding, 2000, 2200).contains('q'), "it is asked once more");
        assert_eq!(holding.handle(A, Claimant::Other, at(2200)), Told::Conflict);
    }
}
