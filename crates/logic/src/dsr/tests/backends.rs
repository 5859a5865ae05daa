//! Which backend a flow has.

use super::*;

#[test]
fn of_ten_backends_less_one_no_flow_of_the_nine_others_moves() {
    for known in [true, false] {
        let (mut director, now) = director(v4());
        let flags = if known { SYN } else { FIN };
        let before: Vec<_> = (1..5000).map(|port| sent(&mut director, &tcp(port, flags), now)).collect();
        assert_eq!(director.flows(), if known { 4999 } else { 0 });
        director.set_backends(&standing(4, Standing::Down));
        let mut moved = 0;
        for (port, before) in (1..5000).zip(before) {
            let after = sent(&mut director, &tcp(port, ACK), now);
            assert!(after.is_some() && after != Some(4));
            moved += usize::from(after != before);
            assert!(before == Some(4) || after == before, "port {port}: {before:?} to {after:?}");
        }
        assert!((400..600).contains(&moved), "{moved}");
    }
}

#[test]
fn a_draining_backend_keeps_its_flows_and_gets_no_new_ones() {
    let (mut director, now) = director(v4());
    let before: Vec<_> = (1..1000).map(|port| sent(&mut director, &tcp(port, SYN), now)).collect();
    director.set_backends(&standing(4, Standing::Draining));
    let after: Vec<_> = (1..1000).map(|port| sent(&mut director, &tcp(port, ACK), now)).collect();
    assert_eq!(before, after);
    assert!((1000..3000).all(|port| sent(&mut director, &tcp(port, SYN), now) != Some(4)));
    let left = flows(&director)["b4"];
    assert!(left > 50);
    // A connection that has ended, and its port that is used again.
    let port = (1..1000).find(|port| before[usize::from(*port) - 1] == Some(4)).unwrap();
    assert_eq!(sent(&mut director, &tcp(port, FIN), now), Some(4));
    assert_eq!(sent(&mut director, &tcp(port, ACK), now), Some(4), "the other side may still send");
    assert_ne!(sent(&mut director, &tcp(port, SYN), now), Some(4), "a new connection");
    assert_eq!(flows(&director)["b4"], left - 1);
    director.set_backends(&standing(0, Standing::Open));
    assert_ne!(sent(&mut director, &tcp(port, ACK), now), Some(4), "it stays where it is now");
}

#[test]
fn a_backend_that_was_removed_keeps_its_flows_and_is_forgotten_with_the_last_one() {
    let (mut director, now) = director(v4());
    let before: Vec<_> = (1..500).map(|port| sent(&mut director, &tcp(port, SYN), now)).collect();
    director.set_backends(&standing(0, Standing::Open)[1..]);
    let after: Vec<_> = (1..500).map(|port| sent(&mut director, &tcp(port, ACK), now)).collect();
    assert_eq!(before, after);
    assert!((500..1500).all(|port| sent(&mut director, &tcp(port, SYN), now) != Some(0)));
    director.expire(now + Duration::from_secs(3600));
    assert!(director.flows() == 0 && !flows(&director).contains_key("b0"), "{:?}", flows(&director));
}

#[test]
fn a_backend_whose_ethernet_address_is_not_known_gets_nothing() {
    let now = start();
    let rules = Rules { flows: 10, tcp_idle: Duration::from_secs(10), udp_idle: Duration::from_secs(10) };
    let mut director = Director::new(v4(), rules, KEY, now);
    let dropped = Verdict::Drop(Dropped::NoBackend);
    assert_eq!(director.handle(&tcp(1, SYN), OWN, now), dropped);
    director.set_backends(&standing(0, Standing::Open));
    assert_eq!(director.handle(&tcp(1, SYN), OWN, now), dropped);
    assert!(director.set_mac("b7", mac(7)) && !director.set_mac("b7", mac(7)));
    assert!((1..50).all(|port| sent(&mut director, &tcp(port, SYN), now) == Some(7)));
    assert!(director.set_mac("b7", mac(8)), "it has another card now");
    assert_eq!(sent(&mut director, &tcp(1, ACK), now), Some(8));
}

#[test]
fn a_backend_whose_ethernet_address_is_withdrawn_gets_no_new_flows_and_has_its_own_back_with_it() {
    let (mut director, now) = director(v4());
    let before: Vec<_> = (1..500).map(|port| sent(&mut director, &tcp(port, SYN), now)).collect();
    assert!(director.forget_mac("b4") && !director.forget_mac("b4") && !director.forget_mac("none"));
    assert!((500..1500).all(|port| sent(&mut director, &tcp(port, SYN), now).is_some_and(|at| at != 4)));
    for (port, before) in (1..500).zip(&before) {
        let expected = before.filter(|at| *at != 4);
        assert_eq!(sent(&mut director, &tcp(port, ACK), now), expected, "{port}");
    }
    director.set_mac("b4", mac(4));
    let after: Vec<_> = (1..500).map(|port| sent(&mut director, &tcp(port, ACK), now)).collect();
    assert_eq!(after, before);
}

#[test]
fn a_running_flow_is_back_at_its_backend_once_the_ethernet_address_of_that_is_known() {
    let (mut whole, now) = director(v4());
    let of = |director: &mut Director, flags| -> Vec<_> {
        (1..200).map(|port| sent(director, &tcp(port, flags), now)).collect()
    };
    let right = of(&mut whole, ACK);
    let mut director = Director::new(v4(), whole.rules, KEY, now);
    director.set_backends(&standing(0, Standing::Open));
    director.set_mac("b7", mac(7));
    assert!(of(&mut director, ACK).iter().all(|at| *at == Some(7)), "the only one that can be reached");
    assert_eq!(director.flows(), right.iter().filter(|at| **at == Some(7)).count());
    for (at, name) in NAMES.into_iter().enumerate() {
        director.set_mac(name, mac(at));
    }
    assert_eq!(of(&mut director, ACK), right);
}

#[test]
fn weights_share_new_flows() {
    let (mut director, now) = director(v4());
    let mut backends = standing(0, Standing::Open);
    backends[3].weight = 11;
    director.set_backends(&backends);
    let of = (1..4001).filter(|port| sent(&mut director, &tcp(*port, SYN), now) == Some(3)).count();
    assert!((2050..2350).contains(&of), "11 of 20 parts of 4000: {of}");
}

#[test]
fn nodes_with_the_same_key_agree_and_a_client_without_it_cannot_know() {
    let flow = Flow {
        client: Ipv4Addr::new(192, 0, 2, 1).into(),
        client_port: 40_000,
        vip: v4().vip,
        port: 80,
        transport: Transport::Tcp,
    };
    // Calculated by another implementation of SipHash-2-4.
    assert_eq!(ring::Ring::new(KEY).hash(&flow), GOLDEN);
    let (mut one, now) = director(v4());
    let mut other = Director::new(v4(), one.rules, KEY, now);
    let mut reversed = standing(0, Standing::Open);
    reversed.reverse();
    other.set_backends(&reversed);
    for (at, name) in NAMES.into_iter().enumerate() {
        assert!(other.set_mac(name, mac(at)));
    }
    let of = |director: &mut Director| -> Vec<_> {
        (1..500).map(|port| sent(director, &tcp(port, ACK), now)).collect()
    };
    let first = of(&mut one);
    assert_eq!(first, of(&mut other));
    let (mut keyed, _) = director(v4());
    keyed.set(v4(), keyed.rules, [1, 2]);
    let same = first.iter().zip(of(&mut keyed)).filter(|(a, b)| **a == *b).count();
    assert!(same < 100, "{same}");
}

const GOLDEN: u64 = 0x4744_73a0_9e99_b088;
