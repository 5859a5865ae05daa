//! Simulations of a pace and a fleet, with simulated time.
#![allow(clippy::disallowed_methods, reason = "some instant has to be the first; nothing here waits")]

use super::*;

const CEILING: Ceiling = Ceiling { sessions: 1_000, starting: 1_000 };

/// Fleet that does at most `capacity` handshakes at once; it refuses or queues the others.
struct World {
    capacity: usize,
    rtt: Duration,
    door: Door,
}

#[derive(PartialEq)]
enum Door {
    /// Refuses, like MaxStartups of a bastion.
    TurnsAway,
    /// Queues, like a CPU that does one handshake after the other.
    Queues,
}

/// Runs until `hosts` have started. Returns the time, the widest window, and the number of refused hosts.
fn drive(pace: &mut Pace, world: &World, hosts: usize) -> (Duration, usize, usize) {
    let begin = Instant::now();
    let (mut now, mut left, mut widest, mut away) = (begin, hosts, 0, 0);
    while left > 0 {
        let batch = pace.room(0, 0).min(left);
        assert!(batch > 0, "a pace that lets no host start never ends");
        widest = widest.max(batch);
        let over = batch.saturating_sub(world.capacity);
        let took = match world.door {
            Door::TurnsAway => world.rtt,
            Door::Queues => world.rtt * u32::try_from(batch.div_ceil(world.capacity)).unwrap(),
        };
        now += took;
        for at in 0..batch {
            if at < over && world.door == Door::TurnsAway {
                away += 1;
                pace.observe(Sign::TurnedAway, now);
            } else {
                left -= 1;
                pace.observe(Sign::Up(took), now);
            }
        }
    }
    (now - begin, widest, away)
}

#[test]
fn fleet_that_bears_all_is_reached_in_a_handful_of_rounds() {
    let world = World { capacity: 10_000, rtt: Duration::from_millis(800), door: Door::TurnsAway };
    let (took, widest, _) = drive(&mut Pace::adaptive(CEILING), &world, 3_000);
    assert!(took <= world.rtt * 7, "{took:?}");
    assert!(widest > 500, "{widest}");
}

#[test]
fn bastion_that_turns_away_is_approached_and_not_beaten_upon() {
    let world = World { capacity: 10, rtt: Duration::from_millis(300), door: Door::TurnsAway };
    let (_, widest, away) = drive(&mut Pace::behind_bastion(CEILING), &world, 1_000);
    assert!(widest <= 16, "{widest}");
    assert!(away < 120, "{away} of 1,000 were turned away");
}

#[test]
fn queue_that_only_grows_longer_stops_the_growth() {
    let world = World { capacity: 20, rtt: Duration::from_millis(400), door: Door::Queues };
    let (_, widest, _) = drive(&mut Pace::adaptive(CEILING), &world, 5_000);
    assert!(widest < 600, "{widest}");
}

#[test]
fn late_timers_shrink_the_window_once_per_round() {
    let now = Instant::now();
    let mut pace = Pace::adaptive(CEILING);
    for _ in 0..100 {
        pace.observe(Sign::Late(Duration::from_millis(150)), now);
    }
    assert_eq!(pace.window(), 51);
    pace.observe(Sign::Late(Duration::from_millis(50)), now + Duration::from_secs(9));
    assert_eq!(pace.window(), 51, "a little late is not busy");
}

#[test]
fn sessions_that_only_run_hold_nobody_back_below_the_ceiling() {
    let pace = Pace::adaptive(Ceiling { sessions: 500, starting: 1_000 });
    assert_eq!(pace.room(0, 400), 64);
    assert_eq!(pace.room(0, 490), 10);
    assert_eq!(pace.room(64, 400), 0);
}

#[test]
fn number_of_the_user_holds_whatever_happens() {
    let now = Instant::now();
    let mut pace = Pace::fixed(7);
    pace.observe(Sign::TurnedAway, now);
    pace.observe(Sign::Up(Duration::from_millis(1)), now);
    assert_eq!(pace.room(0, 0), 7);
}

#[test]
fn lack_of_descriptors_lowers_the_ceiling_below_what_was_open() {
    let now = Instant::now();
    let mut pace = Pace::fixed(300);
    pace.observe(Sign::Starved { sessions: 200 }, now);
    assert_eq!(pace.sessions(), 199);
    assert_eq!(pace.room(0, 199), 0);
    pace.observe(Sign::Starved { sessions: 0 }, now);
    assert_eq!(pace.room(0, 0), 1, "one at a time is always tried");
}

#[test]
fn sessions_come_back_slowly_when_nothing_is_short_any_more() {
    let begin = Instant::now();
    let at = |seconds| begin + Duration::from_secs(seconds);
    let up = Sign::Up(Duration::from_millis(1));
    let mut pace = Pace::fixed(300);
    pace.observe(Sign::Starved { sessions: 101 }, begin);
    (0..50).for_each(|_| pace.observe(up, at(4)));
    assert_eq!(pace.sessions(), 100);
    (0..50).for_each(|_| pace.observe(up, at(5)));
    assert_eq!(pace.sessions(), 126, "one step");
    pace.observe(Sign::Starved { sessions: 111 }, at(6));
    pace.observe(up, at(10));
    assert_eq!(pace.sessions(), 110);
    (2..30).for_each(|step| pace.observe(up, at(step * 6)));
    assert_eq!(pace.sessions(), 300, "never more than at first");
    assert_eq!(pace.room(0, 0), 300);
}

#[test]
fn nobody_is_turned_away_more_than_five_times() {
    let tries: Vec<_> = (1..10).filter_map(|attempts| again_after(attempts, 0.5)).collect();
    assert_eq!(tries.len(), 4);
    assert!(tries.is_sorted());
    assert_ne!(again_after(1, 0.0), again_after(1, 0.9));
}
