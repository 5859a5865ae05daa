//! Decides which client loses its slot when more clients arrive than there are slots: one that is idle, not one whose
//! request is in progress.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

mod party;

use party::{Latest, Shares};
pub use party::{Limit, Party};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientActivity {
    /// The client has just connected, and was not checked yet.
    Arriving,
    /// The client has sent no complete request. A silent client and one that sends single bytes are treated alike.
    Waiting,
    /// The client's request is being processed.
    Working,
    /// The response waits until the client reads more.
    Writing,
    /// The client receives events as they happen.
    Following,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    Free(ClientId),
    /// The first client gets the slot of the second, which must be disconnected.
    InsteadOf(ClientId, ClientId),
    /// Every client is active or has just connected. The caller asks again after a change, or after [`GRACE`].
    Full,
    /// The party of the client, or all parties but the owner together, hold as many slots as they may, and none of
    /// those can be freed now. Free slots are kept for others.
    OverShare(Limit),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientDecision {
    Keeps,
    /// The client has had a response, other clients wait for a slot, and no other slot can be freed: it has lost its
    /// slot.
    GivesWay,
    /// The maximum number of clients follow events already; the activity is unchanged.
    TooManyFollow(MostFollowing),
}

/// Maximum number of clients that follow events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MostFollowing {
    OfAll(usize),
    /// Of all parties but the owner together.
    OfUsers(usize),
}

impl fmt::Display for MostFollowing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OfAll(most) => write!(f, "{most} clients"),
            Self::OfUsers(most) => write!(f, "{most} clients of users other than root and the server's"),
        }
    }
}

#[derive(Debug)]
pub struct ClientSlots {
    most: usize,
    most_following: usize,
    shares: Shares,
    taken: BTreeMap<ClientId, Taken>,
    wanted: Option<Wanted>,
    latest: Latest,
    next: u64,
}

/// Record of clients that found no free slot.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    since: Instant,
    /// Time of the last attempt; a waiting client tries again and again.
    last: Instant,
    /// A client waits for which no slot has been freed yet.
    open: bool,
    /// Slots that were freed and are not taken yet.
    given: usize,
    /// The party that is over its share: only its clients can give way.
    of: Option<Party>,
}

#[derive(Clone, Copy, Debug)]
struct Taken {
    party: Party,
    doing: ClientActivity,
    since: Instant,
    /// The client has sent a request, so it is likely to send another. Clients that have not lose their slots first.
    asked: bool,
    /// The client waits to be served and may have sent a request.
    due: bool,
    served: Instant,
    /// The client was told to disconnect after its response.
    leaves: bool,
}

/// Time that a new client keeps its slot without a request, which may be on its way. 64 slots then serve 1,280 new
/// clients per second.
pub const GRACE: Duration = Duration::from_millis(50);

/// Time that a client keeps its slot after a request, to read the response and send the next request.
pub const STALLED: Duration = Duration::from_secs(1);

impl ClientSlots {
    /// Creates `most` slots; at most `most_following` clients may follow events. Those are never disconnected for
    /// others, because following has no end, so they must leave slots for other clients. An eighth of `most_following` is
    /// for the owner.
    pub fn new(most: usize, most_following: usize) -> Self {
        let shares = Shares::of(most);
        Self {
            most,
            most_following,
            shares,
            taken: BTreeMap::new(),
            wanted: None,
            latest: Latest::default(),
            next: 0,
        }
    }

    /// The limit with which [`Self::admit`] would say [`Admitted::OverShare`].
    pub fn over_share(&self, party: Party, now: Instant) -> Option<Limit> {
        let limit = self.shares.reached(party, self.taken.values().map(|taken| taken.party))?;
        self.least_needed(now, |other| limit.covers(party, other)).is_none().then_some(limit)
    }

    /// Whether a client of this party is to be disconnected at once: its party is over its share, and other parties, whose
    /// clients wait behind it in one queue, are expected. Where none is, it may wait.
    pub fn is_turned_away(&self, party: Party, now: Instant) -> bool {
        self.latest.expects_another(party, now) && self.over_share(party, now).is_some()
    }

    pub fn admit(&mut self, party: Party, now: Instant) -> Admitted {
        self.latest.note(party, now);
        let limit = self.shares.reached(party, self.taken.values().map(|taken| taken.party));
        let evicted = match self.taken.len() < self.most && limit.is_none() {
            true => {
                match &mut self.wanted {
                    Some(wanted) if wanted.given > 0 => wanted.given -= 1,
                    wanted => *wanted = None,
                }
                None
            }
            false => {
                match self.least_needed(now, |other| limit.is_none_or(|limit| limit.covers(party, other))) {
                    None => {
                        self.want(now, limit.map(|_| party));
                        return limit.map_or(Admitted::Full, Admitted::OverShare);
                    }
                    evicted => {
                        self.wanted = None;
                        evicted
                    }
                }
            }
        };
        self.next += 1;
        let id = ClientId(self.next);
        if let Some(evicted) = evicted {
            self.taken.remove(&evicted);
        }
        let taken = Taken {
            party,
            doing: ClientActivity::Arriving,
            since: now,
            asked: false,
            due: false,
            served: now,
            leaves: false,
        };
        self.taken.insert(id, taken);
        evicted.map_or(Admitted::Free(id), |evicted| Admitted::InsteadOf(id, evicted))
    }

    /// Sets a client's activity. The same activity again changes nothing: the client waits since the first call.
    pub fn set(&mut self, id: ClientId, doing: ClientActivity, now: Instant) -> ClientDecision {
        let Some(slot) = self.taken.get(&id) else { return ClientDecision::GivesWay };
        if slot.doing == doing {
            return ClientDecision::Keeps;
        }
        if doing == ClientActivity::Following
            && let Some(most) = self.reached_by_followers(slot.party)
        {
            return ClientDecision::TooManyFollow(most);
        }
        if doing == ClientActivity::Waiting
            && slot.asked
            && self.give_way(id, now) == ClientDecision::GivesWay
        {
            self.taken.remove(&id);
            return ClientDecision::GivesWay;
        }
        let Some(slot) = self.taken.get_mut(&id) else { return ClientDecision::GivesWay };
        slot.asked |= doing == ClientActivity::Working;
        (slot.doing, slot.since) = (doing, now);
        ClientDecision::Keeps
    }

    /// The number of followers that one more client of `party` would exceed.
    fn reached_by_followers(&self, party: Party) -> Option<MostFollowing> {
        let follow = |among: fn(Party) -> bool| {
            let taken = self.taken.values().filter(|taken| among(taken.party));
            taken.filter(|taken| taken.doing == ClientActivity::Following).count()
        };
        if follow(|_| true) >= self.most_following {
            return Some(MostFollowing::OfAll(self.most_following));
        }
        let most = party::but_the_owners(self.most_following);
        let is_reached = party != Party::Owner && follow(|party| party != Party::Owner) >= most;
        is_reached.then_some(MostFollowing::OfUsers(most))
    }

    /// Records that a client found no slot. During the first two [`GRACE`] times a client without a request may lose
    /// its slot to it; after that also clients that have had a response.
    fn want(&mut self, now: Instant, of: Option<Party>) {
        match &mut self.wanted {
            Some(wanted) if now.saturating_duration_since(wanted.last) <= 2 * GRACE => {
                (wanted.last, wanted.open, wanted.of) = (now, true, of);
            }
            wanted => *wanted = Some(Wanted { since: now, last: now, open: true, given: 0, of }),
        }
    }

    /// Tells whether a client that has had a response must disconnect now. Called for each response, even if the client
    /// has sent another request. The client keeps its slot until it leaves, and is told only once: one slot becomes
    /// free.
    pub fn give_way(&mut self, id: ClientId, now: Instant) -> ClientDecision {
        let Some(slot) = self.taken.get_mut(&id).filter(|slot| !slot.leaves) else {
            return ClientDecision::Keeps;
        };
        match &mut self.wanted {
            Some(wanted)
                if wanted.open
                    && wanted.of.is_none_or(|party| party == slot.party)
                    && now.saturating_duration_since(wanted.last) <= 2 * GRACE
                    && now.saturating_duration_since(wanted.since) >= 2 * GRACE =>
            {
                (wanted.open, wanted.given) = (false, wanted.given + 1);
                slot.leaves = true;
                ClientDecision::GivesWay
            }
            _ => ClientDecision::Keeps,
        }
    }

    /// Marks a client that waits to be served: it may have sent a request, and does not lose its slot before it is
    /// read.
    pub fn stands_in_line(&mut self, id: ClientId) {
        if let Some(slot) = self.taken.get_mut(&id) {
            slot.due = true;
        }
    }

    pub fn was_served(&mut self, id: ClientId, now: Instant) {
        if let Some(slot) = self.taken.get_mut(&id) {
            (slot.due, slot.served) = (false, now);
        }
    }

    pub fn leave(&mut self, id: ClientId) {
        self.taken.remove(&id);
    }

    pub fn holds(&self, id: ClientId) -> bool {
        self.taken.contains_key(&id)
    }

    /// Returns the client that may lose its slot, of the parties that are `among`: the one waiting longest of those
    /// without a request, else of those with one, else the one that has been reading its response longest.
    fn least_needed(&self, now: Instant, among: impl Fn(Party) -> bool) -> Option<ClientId> {
        let mut many = BTreeMap::<Party, usize>::new();
        for taken in self.taken.values() {
            *many.entry(taken.party).or_default() += 1;
        }
        let may_go = |taken: &Taken| {
            let held = many.get(&taken.party).copied().unwrap_or_default();
            let least = match taken.asked && self.shares.is_patient(taken.party, held) {
                true => STALLED,
                false => GRACE,
            };
            among(taken.party)
                && matches!(taken.doing, ClientActivity::Waiting | ClientActivity::Writing)
                && now.saturating_duration_since(taken.since) >= least
                && (!taken.due || taken.served >= taken.since + least)
        };
        let found = self.taken.iter().filter(|(_, taken)| may_go(taken));
        found
            .min_by_key(|(_, taken)| (taken.asked, taken.doing == ClientActivity::Writing, taken.since))
            .map(|(id, _)| *id)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test needs a moment to count from")]
mod tests {
    use super::*;

    fn slot(admitted: Admitted) -> ClientId {
        match admitted {
            Admitted::Free(id) | Admitted::InsteadOf(id, _) => id,
            Admitted::Full | Admitted::OverShare(_) => panic!("no slot"),
        }
    }

    fn busy(slots: &mut ClientSlots, now: Instant) -> ClientId {
        let id = slot(slots.admit(Party::Owner, now));
        assert_eq!(slots.set(id, ClientActivity::Working, now), ClientDecision::Keeps);
        id
    }

    #[test]
    fn the_one_that_waits_longest_goes_and_none_in_the_middle_of_something() {
        let (mut slots, start) = (ClientSlots::new(5, 1), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let [first, second, working, writing, following] =
            [(); 5].map(|()| slot(slots.admit(Party::Owner, start)));
        assert_eq!(slots.admit(Party::Owner, after(100)), Admitted::Full, "not one was looked at");
        assert_eq!(slots.set(second, ClientActivity::Waiting, after(1)), ClientDecision::Keeps);
        assert_eq!(slots.set(first, ClientActivity::Waiting, after(2)), ClientDecision::Keeps);
        // The client sends one byte of a head that never ends.
        assert_eq!(slots.set(second, ClientActivity::Waiting, after(3)), ClientDecision::Keeps);
        assert_eq!(slots.set(working, ClientActivity::Working, after(1)), ClientDecision::Keeps);
        assert_eq!(slots.set(writing, ClientActivity::Working, after(4)), ClientDecision::Keeps);
        assert_eq!(slots.set(writing, ClientActivity::Writing, after(4)), ClientDecision::Keeps);
        assert_eq!(slots.set(following, ClientActivity::Following, after(1)), ClientDecision::Keeps);
        let Admitted::InsteadOf(third, evicted) = slots.admit(Party::Owner, after(4)) else { panic!() };
        assert_eq!(evicted, second);
        assert!(!slots.holds(second) && slots.holds(third));
        assert_eq!(slots.set(third, ClientActivity::Working, after(4)), ClientDecision::Keeps);
        let Admitted::InsteadOf(fourth, evicted) = slots.admit(Party::Owner, after(4)) else { panic!() };
        assert_eq!(evicted, first);
        assert_eq!(slots.set(fourth, ClientActivity::Working, after(4)), ClientDecision::Keeps);
        assert_eq!(slots.admit(Party::Owner, after(4)), Admitted::Full);
        assert!(
            matches!(slots.admit(Party::Owner, after(5)), Admitted::InsteadOf(_, evicted) if evicted == writing)
        );
        assert_eq!(slots.admit(Party::Owner, after(1000)), Admitted::Full);
        slots.leave(following);
        assert!(matches!(slots.admit(Party::Owner, after(1000)), Admitted::Free(_)));
    }

    #[test]
    fn one_that_has_just_come_or_has_asked_before_keeps_its_place_longer() {
        let (mut slots, start) = (ClientSlots::new(3, 1), Instant::now());
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let [person, idle, new] = [(); 3].map(|()| slot(slots.admit(Party::Owner, start)));
        assert_eq!(slots.set(person, ClientActivity::Working, start), ClientDecision::Keeps);
        assert_eq!(slots.set(person, ClientActivity::Waiting, start), ClientDecision::Keeps);
        assert_eq!(slots.set(idle, ClientActivity::Waiting, after(1)), ClientDecision::Keeps);
        assert_eq!(slots.set(new, ClientActivity::Waiting, after(100)), ClientDecision::Keeps);
        let evicts = |slots: &mut ClientSlots, at| match slots.admit(Party::Owner, after(at)) {
            Admitted::InsteadOf(_, evicted) => Some(evicted),
            _ => None,
        };
        assert_eq!(evicts(&mut slots, 101), Some(idle));
        assert_eq!(evicts(&mut slots, 102), None);
        assert_eq!(evicts(&mut slots, 150), Some(new));
        assert_eq!(evicts(&mut slots, 151), None);
        assert_eq!(evicts(&mut slots, 1000), Some(person));
    }

    #[test]
    fn one_that_asks_without_end_gives_way_after_an_answer() {
        let (mut slots, start) = (ClientSlots::new(3, 1), Instant::now());
        let all = [(); 3].map(|()| busy(&mut slots, start));
        let answered = |slots: &mut ClientSlots, id, at| {
            let standing = slots.set(id, ClientActivity::Waiting, at);
            slots.set(id, ClientActivity::Working, at);
            standing
        };
        assert_eq!(
            answered(&mut slots, all[0], start),
            ClientDecision::Keeps,
            "no other client wants its slot"
        );
        assert_eq!(slots.admit(Party::Owner, start), Admitted::Full);
        assert_eq!(answered(&mut slots, all[0], start), ClientDecision::Keeps, "a silent one may be found");
        assert_eq!(slots.admit(Party::Owner, start + GRACE), Admitted::Full);
        let then = start + 2 * GRACE;
        assert_eq!(slots.admit(Party::Owner, then), Admitted::Full);
        assert_eq!(answered(&mut slots, all[0], then), ClientDecision::GivesWay);
        assert_eq!(answered(&mut slots, all[1], then), ClientDecision::Keeps, "one slot was wanted");
        // The next client does not have to wait again.
        busy(&mut slots, then);
        assert_eq!(slots.admit(Party::Owner, then), Admitted::Full);
        assert_eq!(answered(&mut slots, all[1], then), ClientDecision::GivesWay);
        busy(&mut slots, then);
        assert_eq!(slots.admit(Party::Owner, then), Admitted::Full);
        let later = then + 3 * GRACE;
        assert_eq!(answered(&mut slots, all[2], later), ClientDecision::Keeps, "it has gone meanwhile");
        assert_eq!(slots.admit(Party::Owner, later), Admitted::Full);
        assert_eq!(answered(&mut slots, all[2], later), ClientDecision::Keeps, "a silent one may be found");
    }

    #[test]
    fn a_client_that_was_told_to_go_frees_one_place() {
        let (mut slots, start) = (ClientSlots::new(2, 1), Instant::now());
        let all = [busy(&mut slots, start), busy(&mut slots, start)];
        let then = start + 2 * GRACE;
        for now in [start, start + GRACE, then] {
            assert_eq!(slots.admit(Party::Owner, now), Admitted::Full);
        }
        assert_eq!(slots.give_way(all[0], then), ClientDecision::GivesWay);
        // A second client finds no slot before the first has left.
        assert_eq!(slots.admit(Party::Owner, then), Admitted::Full);
        assert_eq!(slots.give_way(all[0], then), ClientDecision::Keeps);
        assert_eq!(slots.set(all[0], ClientActivity::Waiting, then), ClientDecision::Keeps);
        assert_eq!(slots.give_way(all[1], then), ClientDecision::GivesWay);
    }

    #[test]
    fn one_that_stands_in_the_line_is_heard_once_more_and_not_for_ever() {
        let (mut slots, start) = (ClientSlots::new(1, 1), Instant::now());
        let dripping = slot(slots.admit(Party::Owner, start));
        assert_eq!(slots.set(dripping, ClientActivity::Waiting, start), ClientDecision::Keeps);
        slots.was_served(dripping, start);
        slots.stands_in_line(dripping);
        assert_eq!(slots.admit(Party::Owner, start + 9 * GRACE), Admitted::Full);
        slots.was_served(dripping, start + 9 * GRACE);
        slots.stands_in_line(dripping);
        assert!(
            matches!(slots.admit(Party::Owner, start + 9 * GRACE), Admitted::InsteadOf(_, evicted) if evicted == dripping)
        );
    }

    #[test]
    fn followers_leave_places_for_others() {
        let (mut slots, now) = (ClientSlots::new(4, 3), Instant::now());
        let all = [(); 4].map(|()| slot(slots.admit(Party::Owner, now)));
        for id in &all[..3] {
            assert_eq!(slots.set(*id, ClientActivity::Following, now), ClientDecision::Keeps);
            assert_eq!(slots.set(*id, ClientActivity::Following, now), ClientDecision::Keeps);
        }
        let too_many = ClientDecision::TooManyFollow(MostFollowing::OfAll(3));
        assert_eq!(slots.set(all[3], ClientActivity::Following, now), too_many);
        assert_eq!(slots.set(all[3], ClientActivity::Waiting, now), ClientDecision::Keeps);
        assert!(
            matches!(slots.admit(Party::Owner, now + GRACE), Admitted::InsteadOf(_, evicted) if evicted == all[3])
        );
    }

    #[test]
    fn one_that_lost_its_place_changes_nothing_any_more() {
        let (mut slots, now) = (ClientSlots::new(1, 1), Instant::now());
        let first = slot(slots.admit(Party::Owner, now));
        assert_eq!(slots.set(first, ClientActivity::Waiting, now), ClientDecision::Keeps);
        let second = slot(slots.admit(Party::Owner, now + GRACE));
        assert_eq!(slots.set(first, ClientActivity::Working, now), ClientDecision::GivesWay);
        slots.leave(first);
        assert!(slots.holds(second) && !slots.holds(first));
    }
}
