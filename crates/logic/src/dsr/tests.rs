use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::packet::{Question, parse};
use super::*;

const OWN: Mac = [2, 0, 0, 0, 0, 1];
const CLIENT: Mac = [2, 0, 0, 0, 0, 9];
const KEY: [u64; 2] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const FIN: u8 = 0x11;
const NAMES: [&str; 10] = ["b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8", "b9"];

fn v4() -> Service {
    Service { vip: Ipv4Addr::new(192, 0, 2, 10).into(), port: 80, transports: Transports::TcpAndUdp }
}

fn v6() -> Service {
    Service { vip: "2001:db8::10".parse().unwrap(), port: 80, transports: Transports::Tcp }
}

#[allow(clippy::disallowed_methods, reason = "a time must begin somewhere")]
fn start() -> Instant {
    Instant::now()
}

fn mac(backend: usize) -> Mac {
    [2, 0, 0, 0, 1, backend as u8]
}

fn standing(at: usize, standing: Standing) -> Vec<Backend<'static>> {
    let of = |one| if one == at { standing } else { Standing::Open };
    let backend = |(one, name)| Backend { name, weight: 1, standing: of(one) };
    NAMES.into_iter().enumerate().map(backend).collect()
}

fn director(service: Service) -> (Director, Instant) {
    let now = start();
    let rules =
        Rules { flows: 10_000, tcp_idle: Duration::from_secs(3600), udp_idle: Duration::from_secs(30) };
    let mut director = Director::new(service, rules, KEY, now);
    director.set_backends(&standing(0, Standing::Open));
    for (at, name) in NAMES.into_iter().enumerate() {
        assert!(director.set_mac(name, mac(at)));
    }
    (director, now)
}

fn ipv4(protocol: u8, client: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [&OWN[..], &CLIENT, &[8, 0, 0x45, 0]].concat();
    frame.extend((20 + payload.len() as u16).to_be_bytes());
    frame.extend([0x12, 0x34]);
    frame.extend(fragment.to_be_bytes());
    frame.extend([64, protocol, 0, 0, 192, 0, 2, client, 192, 0, 2, 10]);
    frame.extend(payload);
    frame
}

fn segment(port: u16, to: u16, flags: u8) -> Vec<u8> {
    let mut segment = port.to_be_bytes().to_vec();
    segment.extend(to.to_be_bytes());
    segment.extend([0; 8]);
    segment.extend([0x50, flags, 0, 0, 0, 0, 0, 0]);
    segment
}

fn tcp(port: u16, flags: u8) -> Vec<u8> {
    ipv4(packet::TCP, 1, 0x4000, &segment(port, 80, flags))
}

fn udp(port: u16, to: u16) -> Vec<u8> {
    let mut payload = port.to_be_bytes().to_vec();
    payload.extend(to.to_be_bytes());
    payload.extend([0, 12, 0, 0, 1, 2, 3, 4]);
    ipv4(packet::UDP, 1, 0, &payload)
}

fn ipv6(headers: &[u8], first: u8, to: Ipv6Addr, payload: &[u8]) -> Vec<u8> {
    let mut frame = [&OWN[..], &CLIENT, &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
    frame.extend(((headers.len() + payload.len()) as u16).to_be_bytes());
    frame.extend([first, 255]);
    frame.extend("2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
    frame.extend(to.octets());
    frame.extend(headers);
    frame.extend(payload);
    frame
}

/// The backend of a frame, by its Ethernet address.
fn sent(director: &mut Director, frame: &[u8], now: Instant) -> Option<usize> {
    match director.handle(frame, OWN, now) {
        Verdict::Forward { to, .. } => (0..NAMES.len()).find(|at| mac(*at) == to),
        _ => None,
    }
}

fn flows(director: &Director) -> HashMap<String, u32> {
    director.backends().map(|(_, name, flows)| (name.to_owned(), flows)).collect()
}

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

#[test]
fn questions_who_has_the_vip_are_answered_and_others_are_not() {
    let (mut director, now) = director(v4());
    let ask = |target: u8| {
        let mut frame = [&[0xff; 6][..], &CLIENT, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
        frame.extend(CLIENT);
        frame.extend([192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 192, 0, 2, target]);
        frame
    };
    let Verdict::Answer(answer) = director.handle(&ask(10), OWN, now) else { panic!("no answer") };
    assert_eq!(answer[..14], [&CLIENT[..], &OWN, &[8, 6]].concat());
    assert_eq!(answer[14..22], [0, 1, 8, 0, 6, 4, 0, 2]);
    assert_eq!(answer[22..], [&OWN[..], &[192, 0, 2, 10], &CLIENT, &[192, 0, 2, 1]].concat());
    assert_eq!(director.handle(&ask(11), OWN, now), Verdict::Pass);
    let announced = owner::announcement(v4().vip, CLIENT);
    assert_eq!(director.handle(&announced, OWN, now), Verdict::Conflict(CLIENT), "another one has it");
    assert_eq!(director.handle(&announced, CLIENT, now), Verdict::Pass, "our own announcement");

    let (mut director, now) = self::director(v6());
    let IpAddr::V6(vip) = v6().vip else { panic!() };
    let question = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &vip.octets(), &[1, 1, 2, 0, 0, 0, 0, 9]].concat();
    let frame = ipv6(&[], packet::ICMPV6, owner::solicited_node(vip), &question);
    let Verdict::Answer(answer) = director.handle(&frame, OWN, now) else { panic!("no answer") };
    assert_eq!(answer.len(), 14 + 40 + 32);
    assert_eq!(parse(&answer).unwrap().content, Content::Claim { address: vip.into(), mac: OWN });
    assert_eq!(answer[14 + 40..14 + 44], [136, 0, 0x8a, 0x56], "with the checksum of RFC 4443");
    let mut forged = frame;
    forged[21] = 254;
    assert_eq!(director.handle(&forged, OWN, now), Verdict::Pass, "it has passed a router");
    let probe = Question { target: vip.into(), asker: Ipv6Addr::UNSPECIFIED.into(), asker_mac: CLIENT };
    assert_eq!(owner::answer(&probe, OWN), owner::announcement(vip.into(), OWN));
    assert_eq!(owner::solicited_node(vip), "ff02::1:ff00:10".parse::<Ipv6Addr>().unwrap());
}

/// What the kernel does with a program (socket filter): whether the frame is accepted.
fn filtered(program: &[filter::Instruction], frame: &[u8], is_for_us: bool) -> bool {
    let load = |at: u32, size: usize| {
        let bytes = frame.get(at as usize..at as usize + size)?;
        Some(bytes.iter().fold(0_u32, |all, byte| all << 8 | u32::from(*byte)))
    };
    let (mut a, mut x, mut at) = (0_u32, 0_u32, 0);
    loop {
        let filter::Instruction { code, jt, jf, k } = program[at];
        at += 1;
        let loaded = match code {
            0x30 if k == 0xffff_f000 + 4 => Some(u32::from(!is_for_us)),
            0x30 if k == 0xffff_f000 + 48 => Some(0),
            0x20 => load(k, 4),
            0x28 => load(k, 2),
            0x30 => load(k, 1),
            0x48 => load(x + k, 2),
            0xb1 => load(k, 1).map(|byte| x = (byte & 0xf) * 4).map(|()| a),
            0x15 | 0x45 => {
                let is_true = if code == 0x15 { a == k } else { a & k != 0 };
                at += usize::from(if is_true { jt } else { jf });
                Some(a)
            }
            0x06 => return k > 0,
            _ => panic!("instruction {code:#x}"),
        };
        match loaded {
            Some(value) => a = value,
            None => return false,
        }
    }
}

#[test]
fn the_filter_of_the_kernel_leaves_what_is_for_the_service_and_little_else() {
    let service = Service { transports: Transports::Tcp, ..v4() };
    let program = filter::program(&service);
    let accepts = |frame: &[u8]| filtered(&program, frame, true);
    assert!(accepts(&tcp(1, SYN)) && !filtered(&program, &tcp(1, SYN), false));
    assert!(!accepts(&udp(1, 80)), "another transport");
    assert!(!accepts(&ipv4(packet::TCP, 1, 0, &segment(1, 443, SYN))), "another port");
    assert!(accepts(&ipv4(packet::UDP, 1, 100, &[0; 8])), "a fragment may be of a TCP segment");
    assert!(accepts(&ipv4(packet::ICMP, 1, 0, &[3; 40])));
    assert!(!accepts(&ipv4(132, 1, 0, &segment(1, 80, SYN))), "SCTP");
    assert!(accepts(&owner::announcement(service.vip, CLIENT)));
    assert!(!accepts(&owner::announcement(Ipv4Addr::new(192, 0, 2, 11).into(), CLIENT)));
    let program = filter::program(&v6());
    let IpAddr::V6(vip) = v6().vip else { panic!() };
    assert!(filtered(&program, &ipv6(&[], packet::TCP, vip, &segment(1, 80, SYN)), true));
    assert!(!filtered(&program, &ipv6(&[], packet::TCP, vip, &segment(1, 81, SYN)), true));
    assert!(filtered(&program, &owner::announcement(vip.into(), CLIENT), false));
    assert!(filtered(&program, &ipv6(&[], packet::ICMPV6, vip, &[2; 60]), true));
    assert!(!filtered(&program, &ipv6(&[], packet::UDP, vip, &segment(1, 80, SYN)), true));
    assert!(!filtered(&program, &ipv6(&[], 132, vip, &segment(1, 80, SYN)), true));
    for extension in [0, 43, 44, 51, 60] {
        assert!(filtered(
            &program,
            &ipv6(&[packet::TCP, 0, 0, 0, 0, 0, 0, 0], extension, vip, &[0; 20]),
            true
        ));
    }
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

    /// Starts from a good frame, of which a few bytes are others and the end is missing.
    #[test]
    fn nothing_that_is_forwarded_or_answered_is_held_back_by_the_filter(
        kind in 0..8_usize,
        changes in proptest::collection::vec((0..100_usize, any::<u8>()), 0..4),
        length in 0..120_usize,
    ) {
        let IpAddr::V6(vip) = v6().vip else { panic!() };
        let is_v6 = kind >= 5;
        let mut frame = match kind {
            0 => tcp(40_000, SYN),
            1 => udp(40_000, 80),
            2 => ipv4(packet::UDP, 1, 0x2000, &[0, 9, 0, 80, 0, 0, 0, 0]),
            3 => ipv4(packet::ICMP, 1, 0, &[&[3, 4, 0, 0, 0, 0, 0, 0][..], &tcp(80, ACK)[14..]].concat()),
            4 => owner::announcement(v4().vip, CLIENT),
            5 => ipv6(&[], packet::TCP, vip, &segment(40_000, 80, SYN)),
            6 => ipv6(&[packet::TCP, 0, 0, 0, 0, 0, 0, 0], 60, vip, &segment(40_000, 80, SYN)),
            _ => owner::announcement(vip.into(), CLIENT),
        };
        for (at, byte) in changes {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        frame.truncate(length);
        let service = if is_v6 { v6() } else { v4() };
        let (mut director, now) = director(service);
        let is_tagged = frame.get(12..14).is_some_and(|kind| matches!(kind, [0x81, 0] | [0x88, 0xa8]));
        if director.handle(&frame, OWN, now) != Verdict::Pass && !is_tagged {
            prop_assert!(filtered(&filter::program(&service), &frame, true), "{frame:?}");
        }
    }
}

const GOLDEN: u64 = 0x4744_73a0_9e99_b088;
