//! Packets in packets, byte by byte.

use proptest::prelude::*;

use super::*;
use crate::dsr::packet::be32;

const OWN: Mac = [2, 0, 0, 0, 0, 1];
const SENDER: Mac = [2, 0, 0, 0, 0, 9];
const NEXT: Mac = [2, 0, 0, 0, 0, 7];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn way(is_v6: bool, room: u16) -> Way {
    let (from, to) = if is_v6 { ("2001:db8::1", "2001:db8:1::2") } else { ("10.0.0.1", "10.1.0.2") };
    Way { own: OWN, to: NEXT, tunnel: Tunnel::new(ip(from), ip(to)).unwrap(), room }
}

/// A packet of a client with its headers and payload; the checksum of the segment is that of the pseudo header, as the
/// kernel leaves it to a card.
fn packet(is_v6: bool, protocol: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut segment = [4000_u16.to_be_bytes(), 80_u16.to_be_bytes()].concat();
    match protocol {
        TCP => {
            segment.extend(1000_u32.to_be_bytes());
            segment.extend([0, 0, 0, 5, 0x60, flags, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1]);
        }
        _ => {
            segment.extend((8 + payload.len() as u16).to_be_bytes());
            segment.extend([0, 0]);
        }
    }
    let field = if protocol == TCP { 16 } else { 6 };
    segment.extend(payload);
    let ends = match is_v6 {
        true => [ip("2001:db8:9::9"), ip("2001:db8::10")],
        false => [ip("198.51.100.9"), ip("192.0.2.10")],
    };
    let octets = ends.map(|end| match end {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    });
    let length = (segment.len() as u32).to_be_bytes();
    let pseudo = !checksum(&[&octets[0], &octets[1], &length, &[0, 0, 0, protocol]]);
    segment[field..field + 2].copy_from_slice(&pseudo.to_be_bytes());
    let mut packet = match is_v6 {
        true => vec![0x6b, 0x80, 0, 0, 0, 0, protocol, 60],
        false => vec![0x45, 0xb9, 0, 0, 0xff, 0xff, 0x40, 0, 60, protocol, 0, 0],
    };
    octets.iter().for_each(|octets| packet.extend(octets));
    packet.extend(&segment);
    let total = packet.len() as u16;
    match is_v6 {
        true => packet[4..6].copy_from_slice(&(total - 40).to_be_bytes()),
        false => {
            packet[2..4].copy_from_slice(&total.to_be_bytes());
            let sum = checksum(&[&packet[..20]]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
    }
    packet
}

fn frame(is_v6: bool, packet: &[u8]) -> Vec<u8> {
    let kind = if is_v6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
    [&OWN[..], &SENDER, &kind.to_be_bytes(), packet].concat()
}

/// Where the segment begins, and its checksum field in it.
fn segment_of(is_v6: bool, protocol: u8) -> (usize, usize) {
    (if is_v6 { 40 } else { 20 }, if protocol == TCP { 16 } else { 6 })
}

fn offload(is_v6: bool, protocol: u8, cut: Cutting) -> Offload {
    let (at, field) = segment_of(is_v6, protocol);
    Offload { sum: Some((ETHERNET + at, field)), cut }
}

/// Whether the checksums of a packet are right.
fn is_right(is_v6: bool, packet: &[u8]) -> bool {
    let (at, _) = segment_of(is_v6, TCP);
    let (ends, protocol) = if is_v6 { (&packet[8..40], packet[6]) } else { (&packet[12..20], packet[9]) };
    let length = ((packet.len() - at) as u32).to_be_bytes();
    let header = is_v6 || checksum(&[&packet[..20]]) == 0;
    header && checksum(&[ends, &length, &[0, 0, 0, protocol], &packet[at..]]) == 0
}

#[track_caller]
fn all(frame: &[u8], offload: &Offload, way: &Way) -> Vec<Vec<u8>> {
    let mut frames = Frames::default();
    encapsulate(frame, offload, way, &mut frames).unwrap();
    assert_eq!(frames.count(), frames.waiting().count());
    frames.waiting().map(<[u8]>::to_vec).collect()
}

/// The inner packets of frames, of which the outer headers are looked at.
#[track_caller]
fn inner(is_v6: bool, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let size = usize::from(overhead(if is_v6 { ip("::1") } else { ip("1.1.1.1") }));
    let open = |frame: &Vec<u8>| {
        let (outer, packet) = frame[ETHERNET..].split_at(size);
        assert_eq!(frame[..12], [NEXT, OWN].concat());
        match is_v6 {
            true => {
                assert_eq!(frame[12..14], [0x86, 0xdd]);
                assert_eq!(outer[..4], [0x6b, 0x80, 0, 0], "the class is that of the packet");
                assert_eq!(outer[4..8], [&(packet.len() as u16).to_be_bytes()[..], &[41, 64]].concat());
            }
            false => {
                assert_eq!(frame[12..14], [8, 0]);
                assert_eq!((outer[0], outer[1]), (0x45, 0xb9), "the class is that of the packet");
                assert_eq!(outer[2..4], (20 + packet.len() as u16).to_be_bytes());
                assert_eq!(outer[4..10], [0, 0, 0x40, 0, 64, 4], "never to be cut; 64 hops; IPv4 inside");
                assert_eq!(checksum(&[outer]), 0);
                assert_eq!(outer[12..], [10, 0, 0, 1, 10, 1, 0, 2]);
            }
        }
        packet.to_vec()
    };
    frames.iter().map(open).collect()
}

#[test]
fn what_fills_up_a_short_frame_does_not_travel_through_the_tunnel() {
    for is_v6 in [false, true] {
        let packet = packet(is_v6, UDP, 0, b"short");
        let filled = [frame(is_v6, &packet), vec![0; 30]].concat();
        let whole = all(&frame(is_v6, &packet), &Offload::default(), &way(is_v6, 1400));
        assert_eq!(all(&filled, &Offload::default(), &way(is_v6, 1400)), whole);
        let length = packet.len() as u16;
        for (room, fits) in [(length, Ok(())), (length - 1, Err(Unfit::TooLong))] {
            assert_eq!(check(&filled, &Offload::default(), &way(is_v6, room)), fits);
        }
    }
}

#[test]
fn a_packet_travels_whole_with_its_checksum_calculated() {
    for is_v6 in [false, true] {
        for protocol in [TCP, UDP] {
            let packet = packet(is_v6, protocol, 0x18, b"hello, world");
            let (at, field) = segment_of(is_v6, protocol);
            let way = way(is_v6, 1480);
            let plain = all(&frame(is_v6, &packet), &Offload::default(), &way);
            assert_eq!(inner(is_v6, &plain), std::slice::from_ref(&packet));
            let done =
                inner(is_v6, &all(&frame(is_v6, &packet), &offload(is_v6, protocol, Cutting::No), &way));
            assert!(is_right(is_v6, &done[0]) && !is_right(is_v6, &packet));
            let mut same = done[0].clone();
            same[at + field..at + field + 2].copy_from_slice(&packet[at + field..at + field + 2]);
            assert_eq!(same, packet);
        }
    }
    // What fills up a short frame stays here.
    let packet = packet(false, UDP, 0, b"a");
    let padded = [frame(false, &packet), vec![0; 17]].concat();
    let frames = all(&padded, &offload(false, UDP, Cutting::No), &way(false, 1480));
    assert_eq!(frames[0].len(), ETHERNET + 20 + packet.len());
    assert_eq!(frames[0][16..18], (20 + packet.len() as u16).to_be_bytes());
}

#[test]
fn many_tcp_segments_become_frames_that_a_card_would_send() {
    let payload: Vec<u8> = (0..40_000_u32).map(|at| (at % 251) as u8).collect();
    for is_v6 in [false, true] {
        // CWR, ACK, PSH, FIN.
        let packet = packet(is_v6, TCP, 0x99, &payload);
        let (at, _) = segment_of(is_v6, TCP);
        for (size, room) in [(1400, 1480), (1448, 1460), (9000, 1280), (100, 65_000)] {
            let cut = offload(is_v6, TCP, Cutting::Tcp(size));
            let found = inner(is_v6, &all(&frame(is_v6, &packet), &cut, &way(is_v6, room)));
            let each = usize::from(size).min(usize::from(room) - at - 24);
            assert_eq!(found.len(), payload.len().div_ceil(each));
            let mut joined: Vec<u8> = Vec::new();
            for (place, one) in found.iter().enumerate() {
                assert!(one.len() <= usize::from(room) && is_right(is_v6, one), "{size} {room} {place}");
                assert_eq!(be32(one, at + 4), Some(1000 + joined.len() as u32));
                let is_last = place + 1 == found.len();
                let flags = 0x10 | if is_last { 0x09 } else { 0 } | if place == 0 { 0x80 } else { 0 };
                assert_eq!(one[at + 13], flags, "{place}");
                if !is_v6 {
                    assert_eq!(be16(one, 4), Some(0xffff_u16.wrapping_add(place as u16)));
                }
                joined.extend(&one[at + 24..]);
            }
            assert!(joined == payload);
        }
    }
}

#[test]
fn many_datagrams_become_frames_and_stay_whole() {
    let payload = vec![7; 3000];
    for is_v6 in [false, true] {
        let packet = packet(is_v6, UDP, 0, &payload);
        let (at, _) = segment_of(is_v6, UDP);
        let cut = offload(is_v6, UDP, Cutting::Udp(1200));
        let found = inner(is_v6, &all(&frame(is_v6, &packet), &cut, &way(is_v6, 1460)));
        let lengths: Vec<_> = found.iter().map(|one| be16(one, at + 4).unwrap()).collect();
        assert_eq!(lengths, [1208, 1208, 608]);
        assert!(found.iter().all(|one| is_right(is_v6, one)));
        let mut frames = Frames::default();
        let result = encapsulate(&frame(is_v6, &packet), &cut, &way(is_v6, 1200), &mut frames);
        assert_eq!((result, frames.count()), (Err(Unfit::TooLong), 0));
    }
}

#[test]
fn what_cannot_be_cut_is_refused() {
    let tcp = frame(false, &packet(false, TCP, 0x10, &[1; 3000]));
    let udp = frame(false, &packet(false, UDP, 0, &[1; 3000]));
    let mut frames = Frames::default();
    for (frame, cut) in [
        (&tcp, Cutting::Other),
        (&tcp, Cutting::Udp(1000)),
        (&udp, Cutting::Tcp(1000)),
        // Of one packet there would be a flood.
        (&tcp, Cutting::Tcp(1)),
        (&udp, Cutting::Udp(0)),
    ] {
        let offload = Offload { sum: None, cut };
        let result = encapsulate(frame, &offload, &way(false, 1480), &mut frames);
        assert_eq!(result, Err(Unfit::NotSegmented), "{cut:?}");
    }
    let other = encapsulate(&tcp, &Offload::default(), &way(true, 9000), &mut frames);
    assert_eq!(other, Err(Unfit::NotSegmented), "a tunnel of the other family");
    let outside = Offload { sum: Some((3030, 100)), cut: Cutting::No };
    assert_eq!(encapsulate(&tcp, &outside, &way(false, 9000), &mut frames), Err(Unfit::NotSegmented));
    assert_eq!((frames.count(), frames.bytes.len()), (0, 0));
    assert_eq!(Tunnel::new(ip("10.0.0.1"), ip("2001:db8::1")), None);
}

#[test]
fn the_sender_of_a_packet_that_is_too_long_is_told_what_fits() {
    for is_v6 in [false, true] {
        let mtu = if is_v6 { 1460 } else { 1480 };
        let long = packet(is_v6, TCP, 0x10, &[1; 1440]);
        let mut frames = Frames::default();
        let way = way(is_v6, room(if is_v6 { ip("2001:db8::10") } else { ip("192.0.2.10") }, 1500));
        assert_eq!(way.room, mtu);
        let result = encapsulate(&frame(is_v6, &long), &Offload::default(), &way, &mut frames);
        assert_eq!(result, Err(Unfit::TooLong));
        let told = refusal(&frame(is_v6, &long), OWN, mtu).unwrap();
        assert_eq!(told[..12], [SENDER, OWN].concat());
        let parsed = untagged_ip(&told).unwrap();
        let of = untagged_ip(&frame(is_v6, &long)).map(|ip| (ip.destination, ip.source)).unwrap();
        assert_eq!((parsed.source, parsed.destination), of, "in the name of the address");
        let icmp = &told[ETHERNET + parsed.header..];
        match is_v6 {
            true => {
                assert_eq!((icmp[0], icmp[1], be32(icmp, 4)), (2, 0, Some(1460)));
                let length = (icmp.len() as u32).to_be_bytes();
                assert_eq!(checksum(&[&told[22..54], &length, &[0, 0, 0, 58], icmp]), 0);
                assert_eq!(told.len(), ETHERNET + 1280);
            }
            false => {
                assert_eq!((icmp[0], icmp[1], be16(icmp, 6)), (3, 4, Some(1480)));
                assert_eq!((checksum(&[icmp]), checksum(&[&told[14..34]])), (0, 0));
                assert_eq!(told.len(), ETHERNET + 576);
            }
        }
        assert!(long.starts_with(&icmp[8..]), "with the beginning of the packet");
        let mut message = frame(is_v6, &long);
        message[if is_v6 { 20 } else { 23 }] = if is_v6 { ICMPV6 } else { ICMP };
        assert_eq!(refusal(&message, OWN, mtu), None, "never about an ICMP message");
    }
    let mut fragment = frame(false, &packet(false, UDP, 0, &[1; 1440]));
    fragment[21] = 9;
    assert_eq!(refusal(&fragment, OWN, 1480), None, "never about a later fragment");
    let mut nobody = frame(false, &packet(false, UDP, 0, &[1; 1440]));
    nobody[26..30].fill(0);
    assert_eq!(refusal(&nobody, OWN, 1480), None);
    assert_eq!((room(ip("192.0.2.1"), 10), room(ip("2001:db8::1"), 1300)), (68, 1280));
}

#[test]
fn a_thousand_senders_are_told_in_a_second() {
    #[allow(clippy::disallowed_methods, reason = "a time must begin somewhere")]
    let (mut pace, now) = (Pace::default(), Instant::now());
    assert_eq!((0..5000).filter(|_| pace.take(now)).count(), 1000);
    assert!(!pace.take(now + Duration::from_millis(999)) && pace.take(now + Duration::from_secs(1)));
}

#[test]
fn the_header_of_virtio_says_what_is_left_to_be_done() {
    let [a, b] = 1448_u16.to_ne_bytes();
    let ([s, t], [o, p]) = (34_u16.to_ne_bytes(), 16_u16.to_ne_bytes());
    let read = |flags, kind| Offload::read([flags, kind, 0, 0, a, b, s, t, o, p]);
    assert_eq!(read(0, 0), Offload::default());
    assert_eq!(read(1, 1), Offload { sum: Some((34, 16)), cut: Cutting::Tcp(1448) });
    assert_eq!(read(1, 0x84).cut, Cutting::Tcp(1448), "IPv6 with ECN");
    assert_eq!((read(1, 5).cut, read(2, 3).cut), (Cutting::Udp(1448), Cutting::Other));
    assert_eq!(read(2, 0).sum, None, "the checksum was found right");
}

proptest! {
    #[test]
    fn any_frame_with_any_offload_is_read_without_a_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        header in any::<[u8; 10]>(),
        is_v6 in any::<bool>(),
        is_plausible in any::<bool>(),
        room in any::<u16>(),
    ) {
        if is_plausible && bytes.len() > 40 {
            let kind = if is_v6 { [0x86, 0xdd, 0x60] } else { [8, 0, 0x45] };
            bytes[12..15].copy_from_slice(&kind);
            bytes[if is_v6 { 20 } else { 23 }] = if header[9] > 100 { TCP } else { UDP };
        }
        let mut frames = Frames::default();
        let way = way(is_v6, room);
        if encapsulate(&bytes, &Offload::read(header), &way, &mut frames).is_ok() {
            let longest = usize::from(room) + usize::from(overhead(way.tunnel.to())) + ETHERNET;
            // Behind the packet there may be what fills up the frame.
            prop_assert!(frames.waiting().all(|one| one.len() <= longest.max(bytes.len() + 40)));
        }
        refusal(&bytes, OWN, room);
    }
}
