//! Which part of the slots the clients of one party may hold.
//!
//! A party is whom the kernel names as the other end: a user at a Unix socket, a source address at a TCP socket. Without
//! shares one user who may only read, or one address, could hold all slots and keep root out.

use std::net::IpAddr;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Party {
    /// Root and the user of the process: they have no share, and find slots that no other party gets.
    Owner,
    /// Another user of this machine.
    User(u32),
    /// An IPv4 address, or the first 64 bits of an IPv6 address: a host may have all addresses of such a network.
    Source(IpAddr),
}

impl Party {
    pub fn source(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => Self::Source(IpAddr::V6((address.to_bits() >> 64 << 64).into())),
            address => Self::Source(address),
        }
    }
}

/// Time for which a party that has come is expected to come again. Monitors ask once a minute or more often.
const EXPECTED: Duration = Duration::from_secs(300);

/// The last two parties that came.
#[derive(Debug, Default)]
pub(super) struct Latest {
    last: Option<(Party, Instant)>,
    /// The last one that is not the same.
    other: Option<(Party, Instant)>,
}

impl Latest {
    pub(super) fn note(&mut self, party: Party, now: Instant) {
        if self.last.is_some_and(|(last, _)| last != party) {
            self.other = self.last;
        }
        self.last = Some((party, now));
    }

    /// Whether clients of another party than this are expected.
    pub(super) fn expects_another(&self, party: Party, now: Instant) -> bool {
        [self.last, self.other]
            .into_iter()
            .flatten()
            .any(|(other, came)| other != party && now.saturating_duration_since(came) < EXPECTED)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    /// Most slots of one party.
    each: usize,
    /// Most slots of all users together.
    users: usize,
    /// Clients up to which a party's clients keep their slots for [`super::STALLED`] after a request.
    patient: usize,
}

/// The number of slots that a new client would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    OfParty(usize),
    /// Of all users but the owner together.
    OfUsers(usize),
}

/// Of `most`, those that are not kept for the owner.
pub(super) fn but_the_owners(most: usize) -> usize {
    most - (most / 8).max(1).min(most.saturating_sub(1))
}

impl Shares {
    /// One party may hold three quarters of `most` slots; an eighth is for the owner.
    pub(super) fn of(most: usize) -> Self {
        let users = but_the_owners(most);
        Self { each: (most - most / 4).min(users).max(1), users, patient: most / 8 }
    }

    /// The limit that one more client of `party` would exceed, if the clients of the parties `held` have slots.
    pub(super) fn reached(&self, party: Party, held: impl Iterator<Item = Party> + Clone) -> Option<Limit> {
        if party == Party::Owner {
            return None;
        }
        if held.clone().filter(|other| *other == party).count() >= self.each {
            return Some(Limit::OfParty(self.each));
        }
        let is_user = |party: &Party| matches!(party, Party::User(_));
        (is_user(&party) && held.filter(is_user).count() >= self.users).then_some(Limit::OfUsers(self.users))
    }

    /// Whether the clients of a party that has `held` slots keep them for a while after a request.
    pub(super) fn is_patient(&self, party: Party, held: usize) -> bool {
        match party {
            Party::Owner | Party::User(_) => true,
            Party::Source(_) => held <= self.patient,
        }
    }
}

impl Limit {
    /// Whether a client of `other` must go for one of `party`.
    pub(super) fn covers(self, party: Party, other: Party) -> bool {
        match self {
            Self::OfParty(_) => other == party,
            Self::OfUsers(_) => matches!(other, Party::User(_)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test needs a moment to count from")]
mod tests {
    use super::super::{
        Admitted, ClientActivity, ClientDecision, ClientId, ClientSlots, GRACE, MostFollowing, STALLED,
    };
    use super::*;

    const READER: Party = Party::User(1000);

    fn asks(slots: &mut ClientSlots, party: Party, now: Instant) -> Option<ClientId> {
        let (Admitted::Free(id) | Admitted::InsteadOf(id, _)) = slots.admit(party, now) else { return None };
        slots.set(id, ClientActivity::Working, now);
        slots.set(id, ClientActivity::Waiting, now);
        Some(id)
    }

    #[test]
    fn users_however_many_leave_slots_for_root_and_their_clients_replace_their_own() {
        let (mut slots, start) = (ClientSlots::new(64, 56), Instant::now());
        let readers: Vec<_> = (0..100).filter_map(|_| asks(&mut slots, READER, start)).collect();
        assert_eq!(readers.len(), 48);
        assert_eq!(slots.admit(READER, start + GRACE), Admitted::OverShare(Limit::OfParty(48)));
        let others = (0..100).filter(|_| asks(&mut slots, Party::User(1001), start).is_some()).count();
        assert_eq!(others, 8);
        assert_eq!(slots.admit(Party::User(1002), start + GRACE), Admitted::OverShare(Limit::OfUsers(56)));
        for _ in 0..8 {
            assert!(matches!(slots.admit(Party::Owner, start), Admitted::Free(_)));
        }
        let Admitted::InsteadOf(_, evicted) = slots.admit(READER, start + STALLED) else { panic!() };
        assert_eq!(evicted, readers[0]);
    }

    #[test]
    fn followers_of_one_user_leave_slots_for_root() {
        let (mut slots, start) = (ClientSlots::new(64, 56), Instant::now());
        for _ in 0..56 {
            if let Some(id) = asks(&mut slots, READER, start) {
                slots.set(id, ClientActivity::Following, start);
            }
        }
        assert_eq!(slots.admit(READER, start + 2 * STALLED), Admitted::OverShare(Limit::OfParty(48)));
        assert!(matches!(slots.admit(Party::Owner, start), Admitted::Free(_)));
    }

    #[test]
    fn users_however_many_leave_places_for_root_to_follow() {
        let (mut slots, start) = (ClientSlots::new(64, 56), Instant::now());
        let mut following = 0;
        for user in 0..100 {
            let Some(id) = asks(&mut slots, Party::User(1000 + user), start) else { continue };
            match slots.set(id, ClientActivity::Following, start) {
                ClientDecision::Keeps => following += 1,
                decision => {
                    assert_eq!(decision, ClientDecision::TooManyFollow(MostFollowing::OfUsers(49)));
                }
            }
        }
        assert_eq!(following, 49);
        for _ in 0..7 {
            let id = asks(&mut slots, Party::Owner, start).unwrap();
            assert_eq!(slots.set(id, ClientActivity::Following, start), ClientDecision::Keeps);
        }
        let id = asks(&mut slots, Party::Owner, start).unwrap();
        let too_many = ClientDecision::TooManyFollow(MostFollowing::OfAll(56));
        assert_eq!(slots.set(id, ClientActivity::Following, start), too_many);
    }

    #[test]
    fn clients_of_an_address_that_has_many_are_turned_away_where_others_are_expected() {
        let (mut slots, start) = (ClientSlots::new(64, 0), Instant::now());
        let [crowd, monitor] = ["127.0.0.7", "127.0.0.1"].map(|text| Party::source(text.parse().unwrap()));
        for _ in 0..100 {
            asks(&mut slots, crowd, start);
        }
        assert!(!slots.is_turned_away(crowd, start), "it holds up its own clients only");
        let now = start + 2 * GRACE;
        asks(&mut slots, monitor, now);
        for _ in 0..100 {
            asks(&mut slots, crowd, now);
        }
        assert!(slots.is_turned_away(crowd, now));
        assert!(!slots.is_turned_away(monitor, now), "it has slots");
        assert!(!slots.is_turned_away(crowd, now + GRACE), "one of its own can go");
        let late = now + EXPECTED;
        for _ in 0..100 {
            asks(&mut slots, crowd, late);
        }
        assert!(!slots.is_turned_away(crowd, late), "no other has come for long");
    }

    #[test]
    fn clients_of_an_address_that_has_many_give_their_slots_soon_and_only_to_their_own() {
        let (mut slots, start) = (ClientSlots::new(64, 0), Instant::now());
        let [crowd, other] = ["127.0.0.7", "127.0.0.1"].map(|text| Party::source(text.parse().unwrap()));
        let monitor = asks(&mut slots, other, start).unwrap();
        let all: Vec<_> = (0..64).filter_map(|_| asks(&mut slots, crowd, start)).collect();
        assert_eq!(all.len(), 48);
        for _ in 0..500 {
            assert!(matches!(
                slots.admit(crowd, start + GRACE),
                Admitted::InsteadOf(..) | Admitted::OverShare(_)
            ));
        }
        assert!(slots.holds(monitor));
        assert!(all.iter().all(|id| !slots.holds(*id)));
        assert!(matches!(slots.admit(other, start + GRACE), Admitted::Free(_)));
    }

    #[test]
    fn a_process_with_few_descriptors_still_has_a_slot_for_root() {
        for most in 1..10 {
            let (mut slots, start) = (ClientSlots::new(most, 0), Instant::now());
            let readers = (0..20).filter(|_| asks(&mut slots, READER, start).is_some()).count();
            assert!(readers >= 1 && (readers < most || most == 1), "{readers} of {most}");
        }
    }

    #[test]
    fn addresses_of_one_network_are_one_party_only_in_ipv6() {
        let source = |text: &str| Party::source(text.parse().unwrap());
        assert_eq!(source("2001:db8::1"), source("2001:db8::2:0:0:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
    }
}
