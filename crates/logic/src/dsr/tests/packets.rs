//! Frames that are read: flows, errors, fragments, and what is passed over.

use proptest::prelude::*;

use super::*;

#[test]
fn only_packets_for_the_vip_the_port_and_the_transport_are_forwarded() {
    let (mut director, now) = director(v4());
    let at = sent(&mut director, &tcp(40_000, SYN), now).expect("a backend");
    assert_eq!(sent(&mut director, &tcp(40_000, ACK), now), Some(at), "the flow stays");
    assert!(sent(&mut director, &udp(40_000, 80), now).is_some());
    let mut passed = vec![udp(40_000, 81), ipv4(packet::TCP, 1, 0, &segment(1, 443, SYN))];
    let mut other = tcp(40_000, SYN);
    other[33] = 11;
    passed.push(other);
    let mut ours = tcp(40_000, SYN);
    ours[6..12].copy_from_slice(&OWN);
    passed.push(ours);
    for frame in passed {
        assert_eq!(director.handle(&frame, OWN, now), Verdict::Pass, "{frame:?}");
    }
    let tcp_only = Service { transports: Transports::Tcp, ..v4() };
    director.set(tcp_only, director.rules, KEY);
    assert_eq!(director.handle(&udp(40_000, 80), OWN, now), Verdict::Pass);
}

#[test]
fn a_service_on_every_port_leaves_to_others_what_they_have() {
    let every = Service { port: 0, ..v4() };
    let (mut director, now) = director(every);
    let to = |port| ipv4(packet::TCP, 1, 0x4000, &segment(40_000, port, SYN));
    assert!([1, 80, 443, 65_535].into_iter().all(|port| sent(&mut director, &to(port), now).is_some()));
    assert!(sent(&mut director, &udp(40_000, 53), now).is_some());
    director.set_others(vec![
        (443, Transports::TcpAndUdp),
        (80, Transports::Udp),
        (80, Transports::Tcp),
        (53, Transports::Tcp),
    ]);
    for port in [80, 443] {
        assert_eq!(director.handle(&to(port), OWN, now), Verdict::Pass, "{port}");
        assert_eq!(director.handle(&udp(40_000, port), OWN, now), Verdict::Pass, "{port}");
    }
    assert_eq!(director.handle(&to(53), OWN, now), Verdict::Pass);
    assert!(sent(&mut director, &udp(40_000, 53), now).is_some(), "the other one has TCP alone");
    assert!(sent(&mut director, &to(79), now).is_some() && sent(&mut director, &to(444), now).is_some());
    let tcp_only = Service { transports: Transports::Tcp, ..every };
    director.set(tcp_only, director.rules, KEY);
    assert_eq!(director.handle(&udp(40_000, 53), OWN, now), Verdict::Pass);
}

#[test]
fn a_frame_is_addressed_to_the_backend_and_nothing_else_changes() {
    let mut frame = tcp(40_000, SYN);
    let before = frame.clone();
    rewrite(&mut frame, OWN, mac(3));
    assert_eq!((&frame[..6], &frame[6..12], &frame[12..]), (&mac(3)[..], &OWN[..], &before[12..]));
    let mut short = [1, 2, 3];
    rewrite(&mut short, OWN, mac(3));
    assert_eq!(short, [1, 2, 3]);
}

#[test]
fn vlan_tags_and_extension_headers_are_passed_over() {
    let (mut director, now) = director(v4());
    let plain = tcp(40_000, SYN);
    let at = sent(&mut director, &plain, now);
    let tagged = [&plain[..12], &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 7], &plain[12..]].concat();
    assert_eq!(sent(&mut director, &tagged, now), at);
    // 24 bytes of header.
    let mut options = plain.clone();
    options[14] = 0x46;
    options[17] = 44;
    options.splice(34..34, [1, 1, 1, 0]);
    assert_eq!(sent(&mut director, &options, now), at);

    let (mut director, now) = self::director(v6());
    let IpAddr::V6(vip) = v6().vip else { panic!() };
    let data = segment(40_000, 80, SYN);
    let at = sent(&mut director, &ipv6(&[], packet::TCP, vip, &data), now);
    assert!(at.is_some());
    // Hop-by-hop, destination options, routing, authentication.
    let headers = [
        &[60, 0, 0, 0, 0, 0, 0, 0][..],
        &[43, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[51, 0, 0, 0, 0, 0, 0, 0],
        &[packet::TCP, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    assert_eq!(sent(&mut director, &ipv6(&headers, 0, vip, &data), now), at);
}

#[test]
fn icmp_errors_reach_the_backend_of_the_flow_that_they_are_about() {
    let (mut director, now) = director(v4());
    let at = sent(&mut director, &tcp(40_000, SYN), now);
    // The reply that was too big: 8 bytes above its IP header.
    let mut inner = vec![0x45, 0, 5, 220, 0, 1, 0x40, 0, 64, packet::TCP, 0, 0, 192, 0, 2, 10, 192, 0, 2, 1];
    inner.extend(&segment(80, 40_000, ACK)[..8]);
    let error = |kind: u8, inner: &[u8]| {
        ipv4(packet::ICMP, 77, 0, &[&[kind, 4, 0, 0, 0, 0, 5, 0][..], inner].concat())
    };
    assert_eq!(sent(&mut director, &error(3, &inner), now), at);
    assert_eq!(sent(&mut director, &error(8, &inner), now), None, "an echo request");
    for length in 0..inner.len() - 4 {
        assert_eq!(sent(&mut director, &error(3, &inner[..length]), now), None, "{length}");
    }
    // It stays with its flow when the table would say another one.
    director.set_backends(&standing(at.unwrap(), Standing::Draining));
    assert_eq!(sent(&mut director, &error(3, &inner), now), at);

    let (mut director, now) = self::director(v6());
    let IpAddr::V6(vip) = v6().vip else { panic!() };
    let at = sent(&mut director, &ipv6(&[], packet::TCP, vip, &segment(40_000, 80, SYN)), now);
    let mut inner = vec![0x60, 0, 0, 0, 5, 0, packet::TCP, 64];
    inner.extend(vip.octets());
    inner.extend("2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
    inner.extend(&segment(80, 40_000, ACK)[..4]);
    let too_big = [&[2, 0, 0, 0, 0, 0, 5, 0][..], &inner].concat();
    assert_eq!(sent(&mut director, &ipv6(&[], packet::ICMPV6, vip, &too_big), now), at);
}

#[test]
fn fragments_follow_the_first_one() {
    let (mut director, now) = director(v4());
    let mut first = udp(40_000, 80);
    first[20] = 0x20;
    let later = ipv4(packet::UDP, 1, 100, &[0; 64]);
    assert_eq!(director.handle(&later, OWN, now), Verdict::Pass, "its packet is not known");
    let at = sent(&mut director, &first, now);
    assert!(at.is_some());
    assert_eq!(sent(&mut director, &later, now), at);
    let other = ipv4(packet::UDP, 2, 100, &[0; 64]);
    assert_eq!(director.handle(&other, OWN, now), Verdict::Pass, "of another client");
    assert_eq!(director.handle(&later, OWN, now + Duration::from_secs(61)), Verdict::Pass);
}

#[test]
fn a_number_of_fragments_that_is_used_again_is_as_fresh_as_its_last_packet() {
    let (mut director, now) = director(v4());
    let fragment = |id: u16, place: u16| {
        let mut frame = udp(40_000, 80);
        frame[18..20].copy_from_slice(&id.to_be_bytes());
        frame[20..22].copy_from_slice(&place.to_be_bytes());
        frame
    };
    let later = now + Duration::from_secs(1);
    // As many as are remembered, then the first one again, and one more.
    for (id, now) in (0..4096).map(|id| (id, now)).chain([(0, later), (4096, later)]) {
        assert!(sent(&mut director, &fragment(id, 0x2000), now).is_some());
    }
    assert!(sent(&mut director, &fragment(0, 100), later).is_some());
    assert_eq!(director.handle(&fragment(1, 100), OWN, later), Verdict::Pass, "it was the oldest");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_frame_makes_a_panic(
        frame in proptest::collection::vec(any::<u8>(), 0..200),
        kind in 0..5_usize,
        own in any::<Mac>(),
    ) {
        let mut frame = frame;
        // IPv4, IPv6, ARP and VLAN, with the first byte behind the type.
        let known: [[u8; 3]; 4] = [[8, 0, 0x45], [0x86, 0xdd, 0x60], [8, 6, 0], [0x81, 0, 0]];
        if let (Some(place), Some(known)) = (frame.get_mut(12..15), known.get(kind)) {
            place.copy_from_slice(known);
        }
        for service in [v4(), v6()] {
            let (mut director, now) = director(service);
            director.handle(&frame, own, now);
        }
    }
}
