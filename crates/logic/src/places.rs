//! Which client keeps its place when more come than there are places for: one that is in the middle of something does, one that
//! only holds its place does not.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What a client does with its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It has just come, and was not looked at yet.
    Arriving,
    /// It has asked nothing, or not all of it: whether it is silent or sends byte by byte is the same.
    Waiting,
    /// What it asked is being done.
    Working,
    /// Its answer is waiting for it to read on, since then.
    Writing,
    /// It is told of events as they come.
    Following,
}

/// A client's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlaceId(u64);

/// What becomes of a client that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// There was a place.
    Free(PlaceId),
    /// It has the place of another, which must go.
    InsteadOf(PlaceId, PlaceId),
    /// All are in the middle of something, or have just come. Ask again when that has changed, or after [`GRACE`].
    Full,
}

/// Whether a client may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It may.
    Keeps,
    /// It has had an answer, others wait for a place, and no client has one that is needed less: it has lost
    /// its place.
    GivesWay,
    /// As many follow as may: it does what it did before.
    TooManyFollow,
}

/// The places.
#[derive(Debug)]
pub struct Places {
    most: usize,
    most_following: usize,
    taken: BTreeMap<PlaceId, Taken>,
    /// Clients that found no place.
    wanted: Option<Wanted>,
    next: u64,
}

/// Since when there has been no place for those who come.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    since: Instant,
    /// A client asks again and again as long as it waits.
    last: Instant,
    /// One waits for which no place was given yet.
    open: bool,
    /// Places that were given, and not taken yet.
    given: usize,
}

#[derive(Clone, Copy, Debug)]
struct Taken {
    doing: Doing,
    since: Instant,
    /// It has asked something, and so is likely to ask again. Sorts behind those that have not.
    asked: bool,
    /// It waits for its turn to be served, and has something to say perhaps.
    due: bool,
    /// When it was last served.
    served: Instant,
    /// It was told to go with its answer.
    leaves: bool,
}

/// For so long a client that has come keeps its place all the same: what it asks is on its way. 64 places with this pass on
/// 1,280 times a second.
pub const GRACE: Duration = Duration::from_millis(50);

/// For so long a client that has asked keeps its place, to read its answer and to ask again.
pub const STALLED: Duration = Duration::from_secs(1);

impl Places {
    /// So many places, of which so many may follow: these are never sent away, because what they were asked to do has no end,
    /// and so they must leave places for others.
    pub fn new(most: usize, most_following: usize) -> Self {
        Self { most, most_following, taken: BTreeMap::new(), wanted: None, next: 0 }
    }

    /// A client comes.
    pub fn admit(&mut self, now: Instant) -> Admitted {
        let evicted = match self.taken.len() < self.most {
            true => {
                match &mut self.wanted {
                    Some(wanted) if wanted.given > 0 => wanted.given -= 1,
                    wanted => *wanted = None,
                }
                None
            }
            false => match self.least_needed(now) {
                None => {
                    self.want(now);
                    return Admitted::Full;
                }
                evicted => {
                    self.wanted = None;
                    evicted
                }
            },
        };
        self.next += 1;
        let id = PlaceId(self.next);
        if let Some(evicted) = evicted {
            self.taken.remove(&evicted);
        }
        let taken = Taken {
            doing: Doing::Arriving,
            since: now,
            asked: false,
            due: false,
            served: now,
            leaves: false,
        };
        self.taken.insert(id, taken);
        evicted.map_or(Admitted::Free(id), |evicted| Admitted::InsteadOf(id, evicted))
    }

    /// A client does something else now. Saying the same again changes nothing: it waits since it began to.
    pub fn set(&mut self, id: PlaceId, doing: Doing, now: Instant) -> Standing {
        let follow = self.taken.values().filter(|taken| taken.doing == Doing::Following).count();
        let Some(place) = self.taken.get_mut(&id) else { return Standing::GivesWay };
        if place.doing == doing {
            return Standing::Keeps;
        }
        if doing == Doing::Following && follow >= self.most_following {
            return Standing::TooManyFollow;
        }
        if doing == Doing::Waiting && place.asked && self.give_way(id, now) == Standing::GivesWay {
            self.taken.remove(&id);
            return Standing::GivesWay;
        }
        let Some(place) = self.taken.get_mut(&id) else { return Standing::GivesWay };
        place.asked |= doing == Doing::Working;
        (place.doing, place.since) = (doing, now);
        Standing::Keeps
    }

    /// A client has found no place. For twice [`GRACE`] a client that has asked nothing may lose its place to
    /// it; after that those give way that had an answer.
    fn want(&mut self, now: Instant) {
        match &mut self.wanted {
            Some(wanted) if now.saturating_duration_since(wanted.last) <= 2 * GRACE => {
                (wanted.last, wanted.open) = (now, true);
            }
            wanted => *wanted = Some(Wanted { since: now, last: now, open: true, given: 0 }),
        }
    }

    /// Whether a client that has had an answer is to go now, also where it has asked more already: it is asked for each answer.
    /// It keeps its place until it leaves, and is told once: one place becomes free.
    pub fn give_way(&mut self, id: PlaceId, now: Instant) -> Standing {
        let Some(place) = self.taken.get_mut(&id).filter(|place| !place.leaves) else {
            return Standing::Keeps;
        };
        match &mut self.wanted {
            Some(wanted)
                if wanted.open
                    && now.saturating_duration_since(wanted.last) <= 2 * GRACE
                    && now.saturating_duration_since(wanted.since) >= 2 * GRACE =>
            {
                (wanted.open, wanted.given) = (false, wanted.given + 1);
                place.leaves = true;
                Standing::GivesWay
            }
            _ => Standing::Keeps,
        }
    }

    /// A client stands in the line to be served: it may have asked already, and is not sent away unheard.
    pub fn stands_in_line(&mut self, id: PlaceId) {
        if let Some(place) = self.taken.get_mut(&id) {
            place.due = true;
        }
    }

    /// A client was served.
    pub fn was_served(&mut self, id: PlaceId, now: Instant) {
        if let Some(place) = self.taken.get_mut(&id) {
            (place.due, place.served) = (false, now);
        }
    }

    /// A client has gone.
    pub fn leave(&mut self, id: PlaceId) {
        self.taken.remove(&id);
    }

    /// Whether this client still has its place.
    pub fn holds(&self, id: PlaceId) -> bool {
        self.taken.contains_key(&id)
    }

    /// The client that waits longest of those that never asked, else of those that did, else the one that
    /// reads an answer for longest.
    fn least_needed(&self, now: Instant) -> Option<PlaceId> {
        let may_go = |taken: &Taken| {
            let least = match taken.asked {
                true => STALLED,
                false => GRACE,
            };
            matches!(taken.doing, Doing::Waiting | Doing::Writing)
                && now.saturating_duration_since(taken.since) >= least
                && (!taken.due || taken.served >= taken.since + least)
        };
        let found = self.taken.iter().filter(|(_, taken)| may_go(taken));
        found
            .min_by_key(|(_, taken)| (taken.asked, taken.doing == Doing::Writing, taken.since))
            .map(|(id, _)| *id)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test needs a moment to count from")]
mod tests {
    use super::*;

    fn place(admitted: Admitted) -> PlaceId {
        match admitted {
            Admitted::Free(id) | Admitted::InsteadOf(id, _) => id,
            Admitted::Full => panic!("no place"),
        }
    }

    fn busy(places: &mut Places, now: Instant) -> PlaceId {
        let id = place(places.admit(now));
        assert_eq!(places.set(id, Doing::Working, now), Standing::Keeps);
        id
    }

    #[test]
    fn the_one_that_waits_longest_goes_and_none_in_the_middle_of_something() {
        let (mut places, start) = (Places::new(5, 1), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let [first, second, working, writing, following] = [(); 5].map(|()| place(places.admit(start)));
        assert_eq!(places.admit(after(100)), Admitted::Full, "not one was looked at");
        assert_eq!(places.set(second, Doing::Waiting, after(1)), Standing::Keeps);
        assert_eq!(places.set(first, Doing::Waiting, after(2)), Standing::Keeps);
        // A byte of a head that never ends.
        assert_eq!(places.set(second, Doing::Waiting, after(3)), Standing::Keeps);
        assert_eq!(places.set(working, Doing::Working, after(1)), Standing::Keeps);
        assert_eq!(places.set(writing, Doing::Working, after(4)), Standing::Keeps);
        assert_eq!(places.set(writing, Doing::Writing, after(4)), Standing::Keeps);
        assert_eq!(places.set(following, Doing::Following, after(1)), Standing::Keeps);
        let Admitted::InsteadOf(third, evicted) = places.admit(after(4)) else { panic!() };
        assert_eq!(evicted, second);
        assert!(!places.holds(second) && places.holds(third));
        assert_eq!(places.set(third, Doing::Working, after(4)), Standing::Keeps);
        let Admitted::InsteadOf(fourth, evicted) = places.admit(after(4)) else { panic!() };
        assert_eq!(evicted, first);
        assert_eq!(places.set(fourth, Doing::Working, after(4)), Standing::Keeps);
        assert_eq!(places.admit(after(4)), Admitted::Full);
        assert!(matches!(places.admit(after(5)), Admitted::InsteadOf(_, evicted) if evicted == writing));
        assert_eq!(places.admit(after(1000)), Admitted::Full);
        places.leave(following);
        assert!(matches!(places.admit(after(1000)), Admitted::Free(_)));
    }

    #[test]
    fn one_that_has_just_come_or_has_asked_before_keeps_its_place_longer() {
        let (mut places, start) = (Places::new(3, 1), Instant::now());
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let [person, idle, new] = [(); 3].map(|()| place(places.admit(start)));
        assert_eq!(places.set(person, Doing::Working, start), Standing::Keeps);
        assert_eq!(places.set(person, Doing::Waiting, start), Standing::Keeps);
        assert_eq!(places.set(idle, Doing::Waiting, after(1)), Standing::Keeps);
        assert_eq!(places.set(new, Doing::Waiting, after(100)), Standing::Keeps);
        let evicts = |places: &mut Places, at| match places.admit(after(at)) {
            Admitted::InsteadOf(_, evicted) => Some(evicted),
            _ => None,
        };
        assert_eq!(evicts(&mut places, 101), Some(idle));
        assert_eq!(evicts(&mut places, 102), None);
        assert_eq!(evicts(&mut places, 150), Some(new));
        assert_eq!(evicts(&mut places, 151), None);
        assert_eq!(evicts(&mut places, 1000), Some(person));
    }

    #[test]
    fn one_that_asks_without_end_gives_way_after_an_answer() {
        let (mut places, start) = (Places::new(3, 1), Instant::now());
        let all = [(); 3].map(|()| busy(&mut places, start));
        let answered = |places: &mut Places, id, at| {
            let standing = places.set(id, Doing::Waiting, at);
            places.set(id, Doing::Working, at);
            standing
        };
        assert_eq!(answered(&mut places, all[0], start), Standing::Keeps, "no other client wants its place");
        assert_eq!(places.admit(start), Admitted::Full);
        assert_eq!(answered(&mut places, all[0], start), Standing::Keeps, "a silent one may be found");
        assert_eq!(places.admit(start + GRACE), Admitted::Full);
        let then = start + 2 * GRACE;
        assert_eq!(places.admit(then), Admitted::Full);
        assert_eq!(answered(&mut places, all[0], then), Standing::GivesWay);
        assert_eq!(answered(&mut places, all[1], then), Standing::Keeps, "one place was wanted");
        // The next one that comes does not have to wait again.
        busy(&mut places, then);
        assert_eq!(places.admit(then), Admitted::Full);
        assert_eq!(answered(&mut places, all[1], then), Standing::GivesWay);
        busy(&mut places, then);
        assert_eq!(places.admit(then), Admitted::Full);
        let later = then + 3 * GRACE;
        assert_eq!(answered(&mut places, all[2], later), Standing::Keeps, "it has gone meanwhile");
        assert_eq!(places.admit(later), Admitted::Full);
        assert_eq!(answered(&mut places, all[2], later), Standing::Keeps, "a silent one may be found");
    }

    #[test]
    fn a_client_that_was_told_to_go_frees_one_place() {
        let (mut places, start) = (Places::new(2, 1), Instant::now());
        let all = [busy(&mut places, start), busy(&mut places, start)];
        let then = start + 2 * GRACE;
        for now in [start, start + GRACE, then] {
            assert_eq!(places.admit(now), Admitted::Full);
        }
        assert_eq!(places.give_way(all[0], then), Standing::GivesWay);
        // Another one finds no place before the first has gone.
        assert_eq!(places.admit(then), Admitted::Full);
        assert_eq!(places.give_way(all[0], then), Standing::Keeps);
        assert_eq!(places.set(all[0], Doing::Waiting, then), Standing::Keeps);
        assert_eq!(places.give_way(all[1], then), Standing::GivesWay);
    }

    #[test]
    fn one_that_stands_in_the_line_is_heard_once_more_and_not_for_ever() {
        let (mut places, start) = (Places::new(1, 1), Instant::now());
        let dripping = place(places.admit(start));
        assert_eq!(places.set(dripping, Doing::Waiting, start), Standing::Keeps);
        places.was_served(dripping, start);
        places.stands_in_line(dripping);
        assert_eq!(places.admit(start + 9 * GRACE), Admitted::Full);
        places.was_served(dripping, start + 9 * GRACE);
        places.stands_in_line(dripping);
        assert!(
            matches!(places.admit(start + 9 * GRACE), Admitted::InsteadOf(_, evicted) if evicted == dripping)
        );
    }

    #[test]
    fn followers_leave_places_for_others() {
        let (mut places, now) = (Places::new(4, 3), Instant::now());
        let all = [(); 4].map(|()| place(places.admit(now)));
        for id in &all[..3] {
            assert_eq!(places.set(*id, Doing::Following, now), Standing::Keeps);
            assert_eq!(places.set(*id, Doing::Following, now), Standing::Keeps);
        }
        assert_eq!(places.set(all[3], Doing::Following, now), Standing::TooManyFollow);
        assert_eq!(places.set(all[3], Doing::Waiting, now), Standing::Keeps);
        assert!(matches!(places.admit(now + GRACE), Admitted::InsteadOf(_, evicted) if evicted == all[3]));
    }

    #[test]
    fn one_that_lost_its_place_changes_nothing_any_more() {
        let (mut places, now) = (Places::new(1, 1), Instant::now());
        let first = place(places.admit(now));
        assert_eq!(places.set(first, Doing::Waiting, now), Standing::Keeps);
        let second = place(places.admit(now + GRACE));
        assert_eq!(places.set(first, Doing::Working, now), Standing::GivesWay);
        places.leave(first);
        assert!(places.holds(second) && !places.holds(first));
    }
}
