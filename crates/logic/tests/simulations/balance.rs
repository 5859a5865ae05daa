//! The balancer under seeded random loads: what must hold at every step, how even it is, and what a change
//! moves.

use logic::balance::latency::PeakEwma;
use logic::balance::{
    Availability, Balancer, Candidate, Choice, ChoosesBy, Identities, Policy, Tried, WEIGHT_UNIT, hash_bytes,
    slow_start_weight,
};
use std::time::Duration;

/// SplitMix64: a seed names a whole run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, range: usize) -> usize {
        (self.next() % range as u64) as usize
    }
}

fn open(weight: u32) -> Candidate {
    let weight = weight * WEIGHT_UNIT;
    Candidate { weight, in_flight: 0, limit: None, available: Availability::Available, latency: 0 }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("10.0.{}.{}:8000", n / 250, n % 250)).collect()
}

fn identities(policy: Policy, names: &[String], weights: &[u32]) -> Identities {
    let backends: Vec<_> = names.iter().map(String::as_str).zip(weights.iter().copied()).collect();
    Identities::new(policy, &backends)
}

fn key(n: u64) -> u64 {
    hash_bytes(0, &n.to_be_bytes())
}

fn may_take(candidate: &Candidate, index: usize, tried: &Tried) -> bool {
    candidate.available == Availability::Available && candidate.weight > 0 && !tried.contains(index)
}

fn has_room(candidate: &Candidate) -> bool {
    candidate.limit.is_none_or(|limit| candidate.in_flight < limit)
}

#[test]
fn over_random_lives_of_a_pool_every_choice_is_allowed_and_none_is_missed() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let policy = Policy::ALL[random.below(Policy::ALL.len())];
        let count = 1 + random.below(12);
        let weights: Vec<u32> = (0..count).map(|_| random.below(5) as u32).collect();
        let identities = identities(policy, &names(count), &weights);
        let mut candidates: Vec<_> = weights.iter().map(|weight| open(*weight)).collect();
        let mut balancer = Balancer::with_phase(policy, count, random.below(20));
        for step in 0..400 {
            let chance = random.below(count);
            match random.below(6) {
                0 => candidates[chance].available = Availability::Available,
                1 => candidates[chance].available = Availability::Unavailable,
                2 => candidates[chance].limit = Some(random.below(4) as u32),
                3 => candidates[chance].limit = None,
                _ => candidates[chance].in_flight = candidates[chance].in_flight.saturating_sub(1),
            }
            if random.below(10) == 0 {
                let window = Duration::from_secs(10);
                let since = Duration::from_secs(random.below(12) as u64);
                candidates[chance].weight = slow_start_weight(weights[chance], since, window);
            }
            let mut tried = Tried::default();
            loop {
                let choice = balancer.pick(&candidates, &identities, random.next(), &tried, random.next());
                let mut takers = (0..count).filter(|n| may_take(&candidates[*n], *n, &tried)).peekable();
                match choice {
                    Choice::Backend(index) => {
                        assert!(
                            may_take(&candidates[index], index, &tried),
                            "seed {seed}, step {step}, {policy}: {choice:?} of {candidates:?}, {tried:?}"
                        );
                        assert!(
                            has_room(&candidates[index]),
                            "seed {seed}, step {step}, {policy}: {choice:?} of {candidates:?}, {tried:?}"
                        );
                        candidates[index].in_flight += 1;
                        tried.insert(index);
                    }
                    Choice::AllBusy => {
                        assert!(
                            takers.peek().is_some(),
                            "seed {seed}, step {step}, {policy}: {choice:?} of {candidates:?}, {tried:?}"
                        );
                        assert!(
                            takers.all(|n| !has_room(&candidates[n])),
                            "seed {seed}, step {step}, {policy}: {choice:?} of {candidates:?}, {tried:?}"
                        );
                        break;
                    }
                    Choice::NoneAvailable => {
                        assert!(
                            takers.peek().is_none(),
                            "seed {seed}, step {step}, {policy}: {choice:?} of {candidates:?}, {tried:?}"
                        );
                        break;
                    }
                }
                if random.below(3) > 0 {
                    break;
                }
            }
        }
    }
}

#[test]
fn round_robin_gives_every_backend_exactly_its_weight_per_round_and_spreads_it() {
    for seed in 0..100 {
        let mut random = Random(seed);
        let count = 1 + random.below(10);
        let weights: Vec<u32> = (0..count).map(|_| 1 + random.below(9) as u32).collect();
        let candidates: Vec<_> = weights.iter().map(|weight| open(*weight)).collect();
        let total: u32 = weights.iter().sum();
        let mut balancer = Balancer::with_phase(Policy::RoundRobin, count, random.below(count));
        for round in 0..5 {
            let mut taken = vec![0_u32; count];
            for turn in 1..=total {
                let choice = balancer.pick(&candidates, &Identities::default(), 0, &Tried::default(), 0);
                let Choice::Backend(index) = choice else { panic!("seed {seed}: {choice:?}") };
                taken[index] += 1;
                for (taken, weight) in taken.iter().zip(&weights) {
                    let fair = f64::from(turn) * f64::from(*weight) / f64::from(total);
                    let off = (f64::from(*taken) - fair).abs();
                    assert!(
                        off < 1.0 + count as f64 / 4.0,
                        "seed {seed}, round {round}, turn {turn}: {off} off"
                    );
                }
            }
            assert_eq!(taken, weights, "seed {seed}, round {round}");
        }
    }
}

/// Sessions of equal mean length arrive until the pool is full of them; says how many each backend then has.
fn settle(policy: Policy, weights: &[u32], sessions: usize, seed: u64) -> Vec<u32> {
    let mut random = Random(seed);
    let mut candidates: Vec<_> = weights.iter().map(|weight| open(*weight)).collect();
    let mut balancer = Balancer::new(policy, weights.len());
    let mut running = Vec::new();
    for _ in 0..sessions * 20 {
        if running.len() == sessions {
            let done: usize = running.swap_remove(random.below(running.len()));
            candidates[done].in_flight -= 1;
        }
        let choice = balancer.pick(&candidates, &Identities::default(), 0, &Tried::default(), random.next());
        let Choice::Backend(index) = choice else { panic!("{choice:?}") };
        candidates[index].in_flight += 1;
        running.push(index);
    }
    candidates.iter().map(|candidate| candidate.in_flight).collect()
}

#[test]
fn sessions_in_flight_settle_in_proportion_to_the_weights() {
    let weights = [1, 2, 3, 4];
    for seed in 0..10 {
        for &policy in Policy::ALL {
            let off_allowed = match policy {
                Policy::LeastConnections | Policy::Sticky => 3.0,
                Policy::TwoChoices | Policy::PeakEwma => 25.0,
                // These do not look at sessions in flight.
                Policy::RoundRobin | Policy::Hash | Policy::Maglev => continue,
            };
            let settled = settle(policy, &weights, 1000, seed);
            for (sessions, weight) in settled.iter().zip(weights) {
                let off = (f64::from(*sessions) - f64::from(weight) * 100.0).abs();
                assert!(off <= off_allowed, "seed {seed}, {policy}: {settled:?}");
            }
        }
    }
}

/// Four backends under 400 sessions a second of 20 to 80 ms. The last one is away for a minute and returns. Returns the
/// largest part that it has of 200 sessions in a row since.
fn share_after_return(policy: Policy, seed: u64) -> f64 {
    const COUNT: usize = 4;
    const AWAY: std::ops::Range<u64> = 10_000..70_000;
    let mut random = Random(seed);
    let identities = identities(policy, &names(COUNT), &[1; COUNT]);
    let mut candidates = [open(1); COUNT];
    let mut times = [PeakEwma::default(); COUNT];
    let mut balancer = Balancer::with_phase(policy, COUNT, random.below(COUNT));
    let mut running: Vec<(u64, usize, u64)> = Vec::new();
    let mut since = Vec::new();
    for milli in 0..AWAY.end + 5_000 {
        let now = Duration::from_millis(milli);
        candidates[3].available = match AWAY.contains(&milli) {
            true => Availability::Unavailable,
            false => Availability::Available,
        };
        running.retain(|(until, index, took)| {
            if *until <= milli {
                candidates[*index].in_flight -= 1;
                times[*index] = times[*index].observed(Duration::from_millis(*took), now);
            }
            *until > milli
        });
        if random.below(10) >= 4 {
            continue;
        }
        for (candidate, time) in candidates.iter_mut().zip(times) {
            candidate.latency = time.micros(now);
        }
        let choice = balancer.pick(&candidates, &identities, 0, &Tried::default(), random.next());
        let Choice::Backend(index) = choice else { panic!("{policy}: {choice:?}") };
        let took = 20 + random.below(60) as u64;
        candidates[index].in_flight += 1;
        running.push((milli + took, index, took));
        if milli >= AWAY.end {
            since.push(index);
        }
    }
    let part = |window: &[usize]| window.iter().filter(|index| **index == 3).count() as f64 / 200.0;
    since.windows(200).map(part).fold(0.0, f64::max)
}

#[test]
fn a_backend_that_returns_has_at_most_its_own_share() {
    for &policy in Policy::ALL {
        // These choose by a key or a client: a backend that returns has its own ones.
        if policy.chooses_by() == ChoosesBy::Key || policy == Policy::Sticky {
            continue;
        }
        let most = (0..50).map(|seed| share_after_return(policy, seed)).fold(0.0, f64::max);
        println!("{policy}: {most:.3}");
        // Its own is 0.25; a tenth more for what the others have in flight, and for chance.
        assert!(most <= 0.35, "{policy}: {most:.3} of 200 sessions in a row");
    }
}

#[test]
fn two_choices_never_makes_a_herd() {
    for seed in 0..3 {
        let settled = settle(Policy::TwoChoices, &[1; 50], 5000, seed);
        let (least, most) = (settled.iter().min().unwrap(), settled.iter().max().unwrap());
        assert!(*most <= 106 && *least >= 85, "seed {seed}: {least} to {most} around 100");
    }
}

fn by_key() -> impl Iterator<Item = Policy> {
    Policy::ALL.iter().copied().filter(|policy| policy.chooses_by() == ChoosesBy::Key)
}

fn owners(policy: Policy, identities: &Identities, candidates: &[Candidate], keys: u64) -> Vec<usize> {
    let mut balancer = Balancer::new(policy, candidates.len());
    let owner = |n| match balancer.pick(candidates, identities, key(n), &Tried::default(), 0) {
        Choice::Backend(index) => index,
        other => panic!("{other:?}"),
    };
    (0..keys).map(owner).collect()
}

const KEYS: u64 = 20_000;

/// How many keys moved although neither their old nor their new home changed.
fn moved_needlessly(before: &[&str], after: &[&str], changed: &str) -> usize {
    before.iter().zip(after).filter(|(a, b)| a != b && **a != changed && **b != changed).count()
}

fn homes(policy: Policy, names: &[String]) -> Vec<&str> {
    let weights = vec![1; names.len()];
    let candidates = vec![open(1); names.len()];
    let owners = owners(policy, &identities(policy, names, &weights), &candidates, KEYS);
    owners.into_iter().map(|owner| names[owner].as_str()).collect()
}

#[test]
fn taking_one_backend_out_of_the_list_moves_almost_only_its_keys() {
    for count in [3, 10, 25] {
        let all = names(count);
        for gone in [0, count / 2, count - 1] {
            let mut rest = all.clone();
            let gone = rest.remove(gone);
            // A list in another order is the same set.
            rest.reverse();
            for (policy, allowed) in [(Policy::Hash, 0), (Policy::Maglev, KEYS as usize * 15 / 1000)] {
                let (before, after) = (homes(policy, &all), homes(policy, &rest));
                assert!(!after.contains(&gone.as_str()));
                let moved = moved_needlessly(&before, &after, &gone);
                assert!(moved <= allowed, "{policy}, {count} backends without {gone}: {moved} others moved");
            }
        }
    }
}

#[test]
fn a_backend_that_is_down_or_full_moves_its_own_keys_only_and_spreads_them() {
    let count = 10;
    let names = names(count);
    for policy in by_key() {
        let identities = identities(policy, &names, &vec![1; count]);
        let mut candidates = vec![open(1); count];
        let before = owners(policy, &identities, &candidates, KEYS);
        let mut full = candidates.clone();
        (full[4].in_flight, full[4].limit) = (7, Some(7));
        candidates[4].available = Availability::Unavailable;
        let after = owners(policy, &identities, &candidates, KEYS);
        assert_eq!(after, owners(policy, &identities, &full, KEYS), "{policy}");
        let mut gained = vec![0; count];
        for (old, new) in before.iter().zip(&after) {
            if *old == 4 {
                gained[*new] += 1;
            } else {
                assert_eq!(old, new, "{policy}");
            }
        }
        let fair = gained.iter().sum::<usize>() / (count - 1);
        for (index, gained) in gained.into_iter().enumerate().filter(|(index, _)| *index != 4) {
            assert!(
                gained.abs_diff(fair) < fair / 5,
                "{policy}: {index} got {gained} of the lost keys, fair is {fair}"
            );
        }
    }
}

#[test]
fn keys_spread_as_the_weights_say() {
    let weights = [1, 2, 3, 4, 10];
    for policy in by_key() {
        let candidates: Vec<_> = weights.iter().map(|weight| open(*weight)).collect();
        let identities = identities(policy, &names(weights.len()), &weights);
        let mut shares = [0_u32; 5];
        for owner in owners(policy, &identities, &candidates, 500_000) {
            shares[owner] += 1;
        }
        for (share, weight) in shares.into_iter().zip(weights) {
            let fair = 25_000.0 * f64::from(weight);
            let off = (f64::from(share) - fair).abs() / fair;
            assert!(off < 0.02, "{policy}: weight {weight} got {share} of 500,000 keys, fair is {fair}");
        }
    }
}

#[test]
fn a_heavier_weight_only_draws_keys_towards_its_backend() {
    let weights = [1; 8];
    let identities = identities(Policy::Hash, &names(8), &weights);
    let mut candidates = vec![open(1); 8];
    let before = owners(Policy::Hash, &identities, &candidates, KEYS);
    candidates[3].weight *= 2;
    let after = owners(Policy::Hash, &identities, &candidates, KEYS);
    assert!(before.iter().zip(&after).all(|(old, new)| old == new || *new == 3));
    assert!(
        after.iter().filter(|owner| **owner == 3).count()
            > before.iter().filter(|owner| **owner == 3).count()
    );
}

#[test]
fn a_key_keeps_its_backend_from_version_to_version() {
    // Nodes of different versions share clients during an upgrade: these may not change by accident.
    let (names, candidates) = (names(5), vec![open(1); 5]);
    for (policy, expected) in [(Policy::Hash, HASH_HOMES), (Policy::Maglev, MAGLEV_HOMES)] {
        let identities = identities(policy, &names, &[1; 5]);
        assert_eq!(owners(policy, &identities, &candidates, 12), expected, "{policy}");
    }
}

const HASH_HOMES: [usize; 12] = [4, 3, 3, 3, 4, 0, 0, 2, 4, 2, 4, 1];
const MAGLEV_HOMES: [usize; 12] = [4, 0, 0, 1, 3, 3, 3, 0, 2, 1, 4, 4];
