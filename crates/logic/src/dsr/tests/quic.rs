//! Flows of QUIC whose clients change their addresses.

use super::super::quic::{QuicId, ServerId};
use super::*;

fn id(at: usize) -> Option<ServerId> {
    ServerId::new(&[0x0a, at as u8])
}

/// A service whose backends have numbers.
fn quic() -> (Director, Instant) {
    let (mut director, now) = director(v4());
    director.set_quic_id(QuicId::new(1, 2));
    NAMES.iter().enumerate().for_each(|(at, name)| director.set_server_id(name, id(at)));
    (director, now)
}

fn datagram(port: u16, quic: &[u8]) -> Vec<u8> {
    let mut payload = [port.to_be_bytes(), 80_u16.to_be_bytes()].concat();
    payload.extend((8 + quic.len() as u16).to_be_bytes());
    payload.extend([0, 0]);
    payload.extend(quic);
    ipv4(packet::UDP, 1, 0, &payload)
}

/// A packet with a short header for a backend.
fn short(port: u16, at: usize) -> Vec<u8> {
    datagram(port, &[0x40, 7, 0x0a, at as u8, 1, 2, 3, 4])
}

fn initial(port: u16, at: usize) -> Vec<u8> {
    datagram(port, &[0xc0, 0, 0, 0, 1, 8, 7, 0x0a, at as u8, 1, 2, 3, 4, 5])
}

#[test]
fn a_packet_that_names_its_backend_goes_there_from_any_address() {
    let (mut director, now) = quic();
    for port in 1..500 {
        let home = sent(&mut director, &udp(port, 80), now).unwrap();
        assert_eq!(sent(&mut director, &initial(port, (home + 1) % 10), now), Some(home), "a made-up id");
        let at = usize::from(port) % 10;
        assert_eq!(sent(&mut director, &short(port, at), now), Some(at));
        assert_eq!(sent(&mut director, &udp(port, 80), now), Some(at), "the flow is remembered there");
    }
    assert_eq!(director.flows(), 499);
    assert_eq!(flows(&director).values().sum::<u32>(), 499);
    // Without the number of a backend, and with another port.
    let home = sent(&mut director, &udp(600, 80), now);
    assert_eq!(sent(&mut director, &short(600, 99), now), home);
    director.set_quic_id(None);
    let home = sent(&mut director, &udp(601, 80), now).unwrap();
    assert_eq!(sent(&mut director, &short(601, (home + 1) % 10), now), Some(home));
}

#[test]
fn a_segment_of_tcp_names_no_backend() {
    let (mut director, now) = quic();
    for port in 1..100 {
        let home = sent(&mut director, &tcp(port, SYN), now);
        let like = [&segment(port, 80, ACK)[..8], &[0x40, 7, 0x0a, 3, 0x50, ACK, 0, 0, 0, 0, 0, 0]].concat();
        assert_eq!(sent(&mut director, &ipv4(packet::TCP, 1, 0x4000, &like), now), home);
    }
}

#[test]
fn a_named_backend_that_drains_keeps_its_flows_and_one_that_is_down_does_not() {
    let (mut director, now) = quic();
    director.set_backends(&standing(3, Standing::Draining));
    assert_eq!(sent(&mut director, &short(1, 3), now), Some(3));
    director.set_backends(&standing(3, Standing::Down));
    let other = sent(&mut director, &short(1, 3), now);
    assert!(other.is_some() && other != Some(3), "{other:?}");
    assert_eq!(sent(&mut director, &short(2, 4), now), Some(4));
}

#[test]
fn a_backend_that_is_removed_keeps_its_number_as_long_as_it_has_flows_unless_another_one_has_it() {
    let (mut director, now) = quic();
    assert_eq!(sent(&mut director, &short(1, 9), now), Some(9));
    let rest = &standing(0, Standing::Open)[..9];
    director.set_backends(rest);
    assert_eq!(sent(&mut director, &short(2, 9), now), Some(9), "from another port");
    director.set_server_id(NAMES[0], id(9));
    assert_eq!(sent(&mut director, &short(3, 9), now), Some(0));
    director.set_server_id(NAMES[0], id(0));
    assert_eq!(sent(&mut director, &short(3, 9), now), Some(9));
    director.expire(now + Duration::from_secs(31));
    assert_eq!(director.flows(), 0);
    let other = sent(&mut director, &short(4, 9), now);
    assert!(other.is_some() && other != Some(9), "{other:?}");
}

#[test]
fn the_first_of_several_fragments_names_the_backend_of_all() {
    let (mut director, now) = quic();
    for at in 0..10 {
        let port = 100 + at as u16;
        let mut first = short(port, at);
        (first[18], first[19], first[20]) = (0, at as u8, 0x20);
        let mut later = ipv4(packet::UDP, 1, 1, &[0x40, 7, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        (later[18], later[19]) = (0, at as u8);
        assert_eq!(sent(&mut director, &first, now), Some(at));
        assert_eq!(sent(&mut director, &later, now), Some(at));
    }
}

#[test]
fn a_trace_says_that_the_packet_names_its_backend() {
    let (mut director, now) = quic();
    let memory = super::super::trace::Memory::Here(now);
    let told = director.tell(&short(1, 4), OWN, memory, &Default::default());
    assert_eq!(told.backend.as_deref(), Some("b4"));
    assert!(told.sentence.ends_with("the connection id of QUIC has the number of this backend"), "{told:?}");
}
