use super::*;

fn candidate(weight: u32) -> Candidate {
    Candidate { weight: weight * WEIGHT_UNIT, in_flight: 0, limit: None, available: Availability::Available }
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
    let huge =
        Candidate { weight: u32::MAX, in_flight: u32::MAX, limit: None, available: Availability::Available };
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
