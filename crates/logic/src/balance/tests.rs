use super::*;

fn candidate(weight: u32) -> Candidate {
    let available = Availability::Available;
    Candidate { weight: weight * WEIGHT_UNIT, in_flight: 0, limit: None, available, latency: 0 }
}

fn pick(balancer: &mut Balancer, candidates: &[Candidate]) -> Choice {
    balancer.pick(candidates, &Identities::default(), 0, &Tried::default(), 0)
}

fn index(choice: Choice) -> usize {
    match choice {
        Choice::Backend(index) => index,
        other => panic!("no backend was chosen: {other:?}"),
    }
}

#[test]
fn round_robin_is_smooth() {
    let candidates = [candidate(5), candidate(1), candidate(1)];
    let mut balancer = Balancer::new(Policy::RoundRobin, 3);
    let turns: Vec<_> = (0..7).map(|_| index(pick(&mut balancer, &candidates))).collect();
    assert_eq!(turns, [0, 0, 1, 0, 2, 0, 0]);
}

#[test]
fn workers_with_different_phases_begin_at_different_backends() {
    let candidates = [candidate(1); 3];
    for phase in 0..6 {
        let mut balancer = Balancer::with_phase(Policy::RoundRobin, 3, phase);
        let turns: Vec<_> = (0..3).map(|_| index(pick(&mut balancer, &candidates))).collect();
        assert_eq!(turns, [phase % 3, (phase + 1) % 3, (phase + 2) % 3]);
    }
}

/// A round robin that begins anew gives the first backend a turn at each change.
#[test]
fn backends_that_stay_keep_their_turns_and_a_new_one_gets_its_own() {
    let identities = |names: &[&str]| {
        let named: Vec<_> = names.iter().map(|name| (*name, 1)).collect();
        Identities::new(Policy::RoundRobin, &named)
    };
    let mut names = vec!["a", "b", "c"];
    let mut before = identities(&names);
    let mut balancer = Balancer::new(Policy::RoundRobin, 3);
    let mut turns = HashMap::new();
    for change in 0..30 {
        let chosen = names[index(pick(&mut balancer, &vec![candidate(1); names.len()]))];
        *turns.entry(chosen).or_insert(0) += 1;
        // Another one comes and goes, before and behind the others.
        match (change % 4, change % 8) {
            (1, 1) => names.insert(0, "d"),
            (1, _) => names.push("d"),
            (3, _) => names.retain(|name| *name != "d"),
            _ => {}
        }
        let now = identities(&names);
        balancer = Balancer::new(Policy::RoundRobin, names.len()).after(&balancer, &before, &now);
        assert!(balancer.credit.iter().all(|credit| credit.abs() < 1000), "{balancer:?}");
        before = now;
    }
    assert!(["a", "b", "c"].iter().all(|name| (7..=10).contains(&turns[name])), "{turns:?}");
    assert!((2..=6).contains(&turns["d"]), "{turns:?}");
}

#[test]
fn a_backend_that_returns_is_not_flooded_with_what_it_missed() {
    let mut candidates = [candidate(1); 3];
    let mut balancer = Balancer::new(Policy::RoundRobin, 3);
    candidates[1].available = Availability::Unavailable;
    for _ in 0..1000 {
        assert_ne!(pick(&mut balancer, &candidates), Choice::Backend(1));
    }
    candidates[1].available = Availability::Available;
    let turns: Vec<_> = (0..9).map(|_| index(pick(&mut balancer, &candidates))).collect();
    for backend in 0..3 {
        assert!((2..=4).contains(&turns.iter().filter(|turn| **turn == backend).count()), "{turns:?}");
    }
}

/// Policies that look at the load give a backend that returns what it lacks, and never more than the others have.
#[test]
fn a_backend_that_returns_never_holds_more_than_its_share() {
    for policy in [Policy::LeastConnections, Policy::TwoChoices, Policy::PeakEwma] {
        for latency in [0, 2_000] {
            let mut candidates = [candidate(1); 3];
            candidates.iter_mut().for_each(|one| (one.in_flight, one.latency) = (30, 2_000));
            (candidates[1].in_flight, candidates[1].latency) = (0, latency);
            let mut balancer = Balancer::new(policy, 3);
            for random in 0..60_u64 {
                let tried = Tried::default();
                let chosen =
                    index(balancer.pick(&candidates, &Identities::default(), 0, &tried, mix(random)));
                candidates[chosen].in_flight += 1;
                let most = candidates[0].in_flight.max(candidates[2].in_flight);
                // Where all have the same, each may be the next.
                assert!(candidates[1].in_flight <= most + 1, "{policy}: {candidates:?}");
            }
            assert!(candidates[1].in_flight > 0, "{policy}: it gets its share: {candidates:?}");
            // Sessions that end at once: of many, a third.
            candidates.iter_mut().for_each(|one| one.in_flight = 0);
            candidates[1].latency = 2_000;
            let picks = (0..3_000_u64).map(|random| {
                let tried = Tried::default();
                index(balancer.pick(&candidates, &Identities::default(), 0, &tried, mix(random)))
            });
            let share = picks.filter(|chosen| *chosen == 1).count();
            assert!((800..=1200).contains(&share), "{policy}: {share} of 3000");
        }
    }
}

#[test]
fn least_connections_weighs_sessions_and_takes_turns_when_idle() {
    let mut candidates = [candidate(1), candidate(2), candidate(2)];
    candidates[0].in_flight = 3; // 4 / 1
    candidates[1].in_flight = 6; // 7 / 2
    candidates[2].in_flight = 7; // 8 / 2
    let mut balancer = Balancer::new(Policy::LeastConnections, 3);
    assert_eq!(pick(&mut balancer, &candidates), Choice::Backend(1));
    for candidate in &mut candidates {
        candidate.in_flight = 0;
    }
    let turns: Vec<_> = (0..5).map(|_| index(pick(&mut balancer, &candidates))).collect();
    assert_eq!(turns.iter().filter(|turn| **turn == 0).count(), 1, "{turns:?}");
}

#[test]
fn two_choices_takes_the_better_of_two_different_backends() {
    let mut candidates = [candidate(1), candidate(1)];
    candidates[0].in_flight = 10;
    let mut balancer = Balancer::new(Policy::TwoChoices, 2);
    for random in 0..1000_u64 {
        let random = mix(random);
        let choice = balancer.pick(&candidates, &Identities::default(), 0, &Tried::default(), random);
        assert_eq!(choice, Choice::Backend(1), "with two backends both are always compared");
    }
}

#[test]
fn peak_ewma_takes_the_faster_backend_for_its_sessions_and_learns_of_unknown_ones() {
    let mut candidates = [candidate(1), candidate(1)];
    let mut balancer = Balancer::new(Policy::PeakEwma, 2);
    let mut chosen = |candidates: &[Candidate]| {
        let all: Vec<_> = (0..200_u64)
            .map(|random| {
                index(balancer.pick(candidates, &Identities::default(), 0, &Tried::default(), mix(random)))
            })
            .collect();
        assert!(all.iter().all(|one| *one == all[0]), "with two backends both are always compared");
        all[0]
    };
    (candidates[0].latency, candidates[1].latency) = (2_000, 10_000);
    (candidates[0].in_flight, candidates[1].in_flight) = (3, 0);
    assert_eq!(chosen(&candidates), 0, "2 ms times 4 is less than 10 ms");
    candidates[0].in_flight = 5;
    assert_eq!(chosen(&candidates), 1);
    candidates[0].weight *= 2;
    assert_eq!(chosen(&candidates), 0, "with the double weight it is less again");
    candidates[1].latency = 0;
    assert_eq!(chosen(&candidates), 1, "an unknown one is tried");
    candidates[1].in_flight = 1;
    assert_eq!(chosen(&candidates), 0, "once at a time");
}

#[test]
fn a_bound_sends_keys_of_a_full_backend_elsewhere_and_leaves_the_others_where_they_are() {
    let names = [("a", 1), ("b", 1), ("c", 2)];
    for policy in [Policy::Hash, Policy::Maglev] {
        let identities = Identities::new(policy, &names);
        let free = |key: u64, candidates: &[Candidate]| {
            index(Balancer::new(policy, 3).pick(candidates, &identities, key, &Tried::default(), 0))
        };
        let bound = Some(Bound { percent: 125 });
        let mut balancer = Balancer::new(policy, 3).bounded(bound);
        // One hot key alone spreads over all backends, within the bound.
        let mut candidates = [candidate(1), candidate(1), candidate(2)];
        for sessions in 1..=400_u32 {
            let chosen = index(balancer.pick(&candidates, &identities, 7, &Tried::default(), 0));
            candidates[chosen].in_flight += 1;
            for (one, share) in candidates.iter().zip([4.0, 4.0, 2.0]) {
                let most = (1.25 * f64::from(sessions) / share).ceil() as u32;
                assert!(one.in_flight <= most, "{policy}: {} of {sessions}", one.in_flight);
            }
        }
        // Below the bound every key stays at home.
        let even = [4, 4, 8]
            .map(|in_flight| Candidate { in_flight, ..candidate(if in_flight == 8 { 2 } else { 1 }) });
        for key in (0..500_u64).map(mix) {
            let chosen = index(balancer.pick(&even, &identities, key, &Tried::default(), 0));
            assert_eq!(chosen, free(key, &even), "{policy}");
        }
        // If all that are below it were tried, the bound does not count.
        let mut tried = Tried::default();
        tried.insert(1);
        tried.insert(2);
        let full = [Candidate { in_flight: 100, ..candidate(1) }, candidate(1), candidate(2)];
        assert_eq!(balancer.pick(&full, &identities, 7, &tried, 0), Choice::Backend(0), "{policy}");
    }
}

#[test]
fn each_policy_tells_busy_from_unavailable() {
    let mut busy = candidate(1);
    (busy.in_flight, busy.limit) = (2, Some(2));
    let mut down = candidate(1);
    down.available = Availability::Unavailable;
    let down_and_busy = Candidate { available: Availability::Unavailable, ..busy };
    let never = candidate(0);
    let names = [("a", 1), ("b", 1), ("c", 1)];
    for &policy in Policy::ALL {
        let identities = Identities::new(policy, &names);
        let mut balancer = Balancer::new(policy, 3);
        let mut choose = |candidates: &[Candidate], tried: &Tried| {
            balancer.pick(candidates, &identities, 3, tried, u64::MAX)
        };
        let mut tried = Tried::default();
        assert_eq!(choose(&[busy, down, busy], &tried), Choice::AllBusy, "{policy}");
        assert_eq!(choose(&[down, never, down_and_busy], &tried), Choice::NoneAvailable, "{policy}");
        assert_eq!(choose(&[busy, down, candidate(1)], &tried), Choice::Backend(2), "{policy}");
        tried.insert(2);
        assert_eq!(choose(&[busy, down, candidate(1)], &tried), Choice::AllBusy, "{policy}");
        tried.insert(0);
        assert_eq!(choose(&[busy, down, candidate(1)], &tried), Choice::NoneAvailable, "{policy}");
        assert_eq!(choose(&[], &tried), Choice::NoneAvailable, "{policy}");
    }
}

#[test]
fn lists_of_unequal_length_do_no_harm() {
    for &policy in Policy::ALL {
        let identities = Identities::new(policy, &[("a", 1), ("b", 1), ("c", 1), ("d", 1)]);
        let mut balancer = Balancer::with_phase(policy, 9, 8);
        for key in 0..100 {
            for backends in 1..7 {
                let candidates = vec![candidate(1); backends];
                let chosen = balancer.pick(&candidates, &identities, key, &Tried::default(), mix(key));
                assert!(index(chosen) < backends, "{policy}");
            }
        }
    }
}

#[test]
fn weights_and_sessions_at_their_largest_do_not_overflow() {
    let huge = Candidate { weight: u32::MAX, in_flight: u32::MAX, latency: u32::MAX, ..candidate(1) };
    let light = Candidate { weight: 1, ..huge };
    for &policy in Policy::ALL {
        let identities = Identities::new(policy, &[("a", u32::MAX), ("b", 1)]);
        let mut balancer = Balancer::new(policy, 2);
        for random in [0, 1, u64::MAX / 2, u64::MAX] {
            index(balancer.pick(&[huge, light], &identities, random, &Tried::default(), random));
        }
    }
}

#[test]
fn slow_start_rises_from_a_tenth_to_the_whole() {
    let second = Duration::from_secs(1);
    assert_eq!(slow_start_weight(3, Duration::ZERO, 10 * second), 30);
    assert_eq!(slow_start_weight(3, 5 * second, 10 * second), 165);
    assert_eq!(slow_start_weight(3, 10 * second, 10 * second), 300);
    assert_eq!(slow_start_weight(3, Duration::ZERO, Duration::ZERO), 300);
    assert_eq!(slow_start_weight(0, 5 * second, 10 * second), 0);
    assert_eq!(slow_start_weight(u32::MAX, 5 * second, second), u32::MAX);
    let weights: Vec<_> = (0..=100).map(|n| slow_start_weight(1, n * second, 100 * second)).collect();
    assert!(weights.is_sorted() && weights[0] >= 1);
}

#[test]
fn a_maglev_backend_in_slow_start_takes_a_growing_part_of_its_keys() {
    let identities = Identities::new(Policy::Maglev, &[("a", 1), ("b", 1)]);
    let mut balancer = Balancer::new(Policy::Maglev, 2);
    let mut owned_before: Vec<u64> = Vec::new();
    for weight in [10, 40, 70, 100] {
        let candidates = [candidate(1), Candidate { weight, ..candidate(1) }];
        let tried = Tried::default();
        let mut goes_to_b =
            |key: &u64| balancer.pick(&candidates, &identities, *key, &tried, 0) == Choice::Backend(1);
        let owned: Vec<u64> = (0..20_000).map(|n| n * 0x0003_25ab_91c4_07d3).filter(&mut goes_to_b).collect();
        assert!(owned.len() > owned_before.len() + 500, "{} after {}", owned.len(), owned_before.len());
        assert!(owned_before.iter().all(|key| owned.binary_search(key).is_ok()), "a key never goes back");
        owned_before = owned;
    }
    assert!((9_500..10_500).contains(&owned_before.len()));
}

#[test]
fn policies_and_keys_read_what_they_print() {
    for &policy in Policy::ALL {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    let error = "fastest".parse::<Policy>().unwrap_err().to_string();
    assert!(error.starts_with("\"fastest\" is no way to balance; use round-robin"), "{error}");
    for text in ["client", "host", "path", "header:x-user"] {
        assert_eq!(text.parse::<HashKey>().unwrap().to_string(), text);
    }
    assert_eq!("header:X-User".parse(), Ok(HashKey::Header("x-user".into())));
    for text in ["", "header:", "header:a b", "cookie", "Client"] {
        assert!(text.parse::<HashKey>().is_err(), "{text}");
    }
}

#[test]
fn tried_holds_each_backend_once() {
    let mut tried = Tried::default();
    assert!(tried.is_empty());
    for backend in [3, 3, 500] {
        tried.insert(backend);
    }
    assert_eq!(tried.len(), 2);
    assert!(tried.contains(500) && !tried.contains(4));
}
