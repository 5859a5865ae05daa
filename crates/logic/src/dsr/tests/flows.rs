//! The table of flows: its limit, and what it forgets.

use super::*;

#[test]
fn the_table_never_grows_above_its_limit_and_ended_flows_go_first() {
    let (mut director, now) = director(v4());
    director.rules.flows = 100;
    let at = sent(&mut director, &tcp(1, SYN), now).unwrap();
    let later = now + Duration::from_secs(1);
    for port in 2..=100 {
        sent(&mut director, &tcp(port, SYN), later);
        sent(&mut director, &tcp(port, FIN), later);
    }
    for port in 101..=198 {
        sent(&mut director, &tcp(port, SYN), later);
        assert_eq!(director.flows(), 100);
    }
    director.set_backends(&standing(at, Standing::Draining));
    assert_eq!(sent(&mut director, &tcp(1, ACK), later), Some(at), "the oldest one goes on");
    assert_eq!(flows(&director).values().sum::<u32>(), 100);
}

#[test]
fn silent_flows_are_forgotten() {
    let (mut director, now) = director(v4());
    sent(&mut director, &tcp(1, SYN), now);
    sent(&mut director, &udp(1, 80), now);
    sent(&mut director, &tcp(2, SYN), now);
    sent(&mut director, &tcp(2, FIN), now);
    for (seconds, left) in [(29, 3), (31, 2), (61, 1), (3599, 1), (3601, 0)] {
        director.expire(now + Duration::from_secs(seconds));
        assert_eq!(director.flows(), left, "after {seconds} s");
    }
}

#[test]
fn when_more_flows_are_due_than_one_call_forgets_silent_ones_do_not_wait_for_ended_ones() {
    let (mut director, now) = director(v4());
    director.rules.flows = usize::MAX;
    for port in 1..=EXPIRED_AT_ONCE as u16 + 1 {
        sent(&mut director, &tcp(port, SYN), now);
        sent(&mut director, &tcp(port, FIN), now);
    }
    sent(&mut director, &udp(1, 80), now);
    assert_eq!(director.flows(), EXPIRED_AT_ONCE + 2);
    let later = now + Duration::from_secs(61);
    director.expire(later);
    assert_eq!(director.flows(), 1, "one of those that have ended");
    director.expire(later);
    assert_eq!(director.flows(), 0);
}

#[test]
fn a_limit_that_was_lowered_is_reached_in_steps() {
    let (mut director, now) = director(v4());
    (1..=1000).for_each(|port| assert!(sent(&mut director, &tcp(port, SYN), now).is_some()));
    director.set(v4(), Rules { flows: 100, ..director.rules }, KEY);
    sent(&mut director, &tcp(1001, SYN), now);
    assert_eq!(director.flows(), 1000 - EVICTED_AT_ONCE + 1);
    (1002..1030).for_each(|port| assert!(sent(&mut director, &tcp(port, SYN), now).is_some()));
    assert_eq!(director.flows(), 100);
    assert_eq!(flows(&director).values().sum::<u32>(), 100);
}

#[test]
fn a_flood_is_forwarded_and_not_remembered() {
    let (mut director, now) = director(v4());
    director.rules.flows = usize::MAX;
    director.pace = (now, NEW_FLOWS_PER_SECOND - 1);
    assert!(sent(&mut director, &tcp(1, SYN), now).is_some() && director.flows() == 1);
    assert!(sent(&mut director, &tcp(2, SYN), now).is_some() && director.flows() == 1);
    sent(&mut director, &tcp(2, SYN), now + Duration::from_secs(1));
    assert_eq!(director.flows(), 2);
}
