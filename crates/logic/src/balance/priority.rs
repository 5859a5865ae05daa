//! Priorities of backends: only those with the lowest number that have room take sessions.

use super::{Availability, Candidate, Tried};

/// Puts the backends on standby whose number is higher than the lowest one with room. If none has room, all wait alike.
/// May be called again after candidates have changed.
pub fn keep_lowest(candidates: &mut [Candidate], priority: impl Fn(usize) -> u32, tried: &Tried) {
    for candidate in candidates.iter_mut().filter(|one| one.available == Availability::Standby) {
        candidate.available = Availability::Available;
    }
    let has_room = |(index, one): &(usize, &Candidate)| {
        one.could_take() && !one.is_at_limit() && !tried.contains(*index)
    };
    let lowest = candidates.iter().enumerate().filter(has_room).map(|(index, _)| priority(index)).min();
    let Some(lowest) = lowest else { return };
    for (index, candidate) in candidates.iter_mut().enumerate() {
        if candidate.available == Availability::Available && priority(index) > lowest {
            candidate.available = Availability::Standby;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Balancer, Choice, Identities, Policy, WEIGHT_UNIT};
    use super::*;

    const PRIORITIES: [u32; 4] = [1, 1, 2, 3];

    fn candidates() -> [Candidate; 4] {
        let one = Candidate {
            weight: WEIGHT_UNIT,
            in_flight: 0,
            limit: Some(1),
            available: Availability::Available,
            latency: 0,
        };
        [one; 4]
    }

    fn choices(candidates: &mut [Candidate], tried: &Tried) -> Vec<Choice> {
        keep_lowest(candidates, |index| PRIORITIES[index], tried);
        let mut all = Vec::new();
        for &policy in Policy::ALL {
            let identities = Identities::new(policy, &[("a", 1), ("b", 1), ("c", 1), ("d", 1)]);
            let mut balancer = Balancer::new(policy, 4);
            for key in 0..50_u64 {
                let key = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let choice = balancer.pick(candidates, &identities, key, tried, key);
                if !all.contains(&choice) {
                    all.push(choice);
                }
            }
        }
        all.sort_by_key(|choice| if let Choice::Backend(index) = choice { *index } else { usize::MAX });
        all
    }

    #[test]
    fn only_the_lowest_number_with_room_serves_under_every_policy() {
        let (mut all, tried) = (candidates(), Tried::default());
        assert_eq!(choices(&mut all, &tried), [Choice::Backend(0), Choice::Backend(1)]);
        all[0].available = Availability::Unavailable;
        assert_eq!(choices(&mut all, &tried), [Choice::Backend(1)]);
        all[1].in_flight = 1;
        assert_eq!(choices(&mut all, &tried), [Choice::Backend(2)], "the first ones are down or busy");
        all[2].weight = 0;
        assert_eq!(choices(&mut all, &tried), [Choice::Backend(3)]);
        all[1].in_flight = 0;
        assert_eq!(choices(&mut all, &tried), [Choice::Backend(1)], "and back");
    }

    #[test]
    fn what_was_tried_has_no_room_and_busy_backends_of_all_numbers_are_waited_for() {
        let (mut all, mut tried) = (candidates(), Tried::default());
        tried.insert(0);
        tried.insert(1);
        assert_eq!(choices(&mut all, &tried), [Choice::Backend(2)]);
        for candidate in &mut all {
            candidate.in_flight = 1;
        }
        assert_eq!(choices(&mut all, &tried), [Choice::AllBusy]);
    }
}
