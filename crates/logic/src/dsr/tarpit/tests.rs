//! Which addresses the tarpit takes, and what it answers to whom.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;
use crate::dsr::owner::checksum;

const KEY: [u64; 2] = [1, 2];
const OWN: Mac = [2, 0, 0, 0, 0, 1];
const CLIENT: Mac = [2, 0, 0, 0, 0, 9];
const OTHER: Mac = [2, 0, 0, 0, 0, 7];
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

#[allow(clippy::disallowed_methods, reason = "a time must begin somewhere")]
fn tarpit(rate: u32) -> (Tarpit, Instant) {
    let networks = ["192.0.2.128/25", "2001:db8::/64"].map(|network| network.parse().unwrap()).to_vec();
    let now = Instant::now();
    (Tarpit::new(Rules { networks, rate }, KEY, now), now)
}

fn v4(last: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, last).into()
}

fn question(target: IpAddr, asker: IpAddr) -> Vec<u8> {
    let (IpAddr::V4(target), IpAddr::V4(asker)) = (target, asker) else { panic!("ARP is of IPv4") };
    let mut frame = [&[0xff; 6][..], &CLIENT, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &CLIENT].concat();
    frame.extend(asker.octets());
    frame.extend([0; 6]);
    frame.extend(target.octets());
    frame
}

fn claim(address: IpAddr) -> Vec<u8> {
    let IpAddr::V4(address) = address else { panic!("ARP is of IPv4") };
    let mut frame = [&OWN[..], &OTHER, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2], &OTHER].concat();
    frame.extend(address.octets());
    frame.extend(OWN);
    frame.extend([0; 4]);
    frame
}

/// A segment of TCP from port 40000 to port 22.
fn segment(
    client: IpAddr,
    to: IpAddr,
    (sequence, acknowledged): (u32, u32),
    flags: u8,
    bytes: &[u8],
) -> Vec<u8> {
    let mut segment = [40_000_u16.to_be_bytes(), 22_u16.to_be_bytes()].concat();
    segment.extend(sequence.to_be_bytes());
    segment.extend(acknowledged.to_be_bytes());
    segment.extend([5 << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend(bytes);
    let mut frame;
    match (client, to) {
        (IpAddr::V4(client), IpAddr::V4(to)) => {
            frame = [&OWN[..], &CLIENT, &[8, 0, 0x45, 0]].concat();
            frame.extend((20 + segment.len() as u16).to_be_bytes());
            frame.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
            frame.extend(client.octets());
            frame.extend(to.octets());
        }
        (IpAddr::V6(client), IpAddr::V6(to)) => {
            frame = [&OWN[..], &CLIENT, &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
            frame.extend((segment.len() as u16).to_be_bytes());
            frame.extend([6, 64]);
            frame.extend(client.octets());
            frame.extend(to.octets());
        }
        _ => panic!("of one family"),
    }
    frame.extend(segment);
    frame
}

/// Where TCP begins.
fn tcp(frame: &[u8]) -> &[u8] {
    if frame[12..14] == [8, 0] { &frame[34..] } else { &frame[54..] }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn handle(tarpit: &mut Tarpit, frame: &[u8], now: Instant) -> Option<Vec<u8>> {
    tarpit.handle(frame, OWN, now, |_| Local::No)
}

/// Makes an address one of the tarpit.
fn take(tarpit: &mut Tarpit, address: IpAddr, now: Instant) -> Instant {
    let client = if address.is_ipv4() { v4(1) } else { "2001:db8:1::1".parse().unwrap() };
    let asked = handle(tarpit, &segment(client, address, (7, 0), SYN, &[]), now);
    assert_eq!(asked, Some(owner::probe(address, OWN)), "a search begins");
    let now = now + SEARCH;
    assert!(tarpit.expire(OWN, now).is_empty());
    now
}

#[test]
fn an_address_that_no_machine_answers_for_is_taken_and_its_asker_told() {
    let (mut tarpit, now) = tarpit(100);
    let asks = question(v4(200), v4(1));
    assert_eq!(handle(&mut tarpit, &asks, now), Some(owner::probe(v4(200), OWN)));
    assert_eq!(handle(&mut tarpit, &asks, now), None, "the search goes on");
    assert_eq!(tarpit.expire(OWN, now + SEARCH_AGAIN), [owner::probe(v4(200), OWN)]);
    assert!(tarpit.expire(OWN, now + SEARCH_AGAIN).is_empty(), "only once");
    let told = tarpit.expire(OWN, now + SEARCH);
    assert_eq!((told.len(), &told[0][..6], &told[0][28..32]), (1, &CLIENT[..], &[192, 0, 2, 200][..]));
    assert_eq!(handle(&mut tarpit, &asks, now + SEARCH), Some(told[0].clone()));
    assert_eq!(tarpit.addresses(), (1, 0));
    // It is searched anew after a minute.
    assert_eq!(handle(&mut tarpit, &asks, now + SEARCH + KNOWN), Some(owner::probe(v4(200), OWN)));
    for outside in [v4(1), v4(127), v4(128), v4(255)] {
        assert_eq!(handle(&mut tarpit, &question(outside, v4(2)), now), None, "{outside}");
    }
}

#[test]
fn a_machine_that_has_an_address_or_is_about_to_take_it_keeps_it() {
    let (mut tarpit, now) = tarpit(100);
    let used = v4(200);
    let asks = question(used, v4(1));
    assert!(handle(&mut tarpit, &asks, now).is_some());
    assert_eq!(handle(&mut tarpit, &claim(used), now), None);
    assert!(tarpit.expire(OWN, now + SEARCH).is_empty());
    let syn = segment(v4(1), used, (7, 0), SYN, &[]);
    for frame in [&asks, &syn] {
        assert_eq!(handle(&mut tarpit, frame, now + SEARCH), None);
    }
    assert_eq!(tarpit.addresses(), (0, 1));
    // One that was taken is given back to a machine that comes, before it has the address.
    for (frame, address) in
        [(claim(v4(201)), v4(201)), (question(v4(202), Ipv4Addr::UNSPECIFIED.into()), v4(202))]
    {
        let now = take(&mut tarpit, address, now);
        assert!(handle(&mut tarpit, &segment(v4(1), address, (7, 0), SYN, &[]), now).is_some());
        assert_eq!(handle(&mut tarpit, &frame, now), None);
        assert_eq!(handle(&mut tarpit, &segment(v4(1), address, (7, 0), SYN, &[]), now), None, "{address}");
    }
    // So is one from which a machine asks for another address.
    let now = take(&mut tarpit, v4(205), now);
    assert_eq!(handle(&mut tarpit, &question(v4(1), v4(205)), now), None);
    assert_eq!(handle(&mut tarpit, &segment(v4(1), v4(205), (7, 0), SYN, &[]), now), None);
    let now = take(&mut tarpit, v4(203), now);
    assert!(handle(&mut tarpit, &question(v4(204), v4(203)), now).is_some(), "its own question counts");
    assert_eq!(handle(&mut tarpit, &segment(v4(1), v4(203), (7, 0), SYN, &[]), now), None);
    // Those of this machine, of services and backends are never taken.
    let asks = question(v4(210), v4(1));
    assert_eq!(tarpit.handle(&asks, OWN, now, |_| Local::Yes), None);
    tarpit.set_others([v4(211)].into());
    assert_eq!(handle(&mut tarpit, &question(v4(211), v4(1)), now), None);
}

#[test]
fn a_connection_is_accepted_with_no_window_and_its_probes_are_answered_and_nothing_else() {
    let (mut tarpit, now) = tarpit(1000);
    let v6: IpAddr = "2001:db8::99".parse().unwrap();
    let client6: IpAddr = "2001:db8:1::1".parse().unwrap();
    for (client, address) in [(v4(1), v4(200)), (client6, v6)] {
        let now = take(&mut tarpit, address, now);
        let sequence = u32::MAX - 1;
        let answer = handle(&mut tarpit, &segment(client, address, (sequence, 0), SYN, &[]), now).unwrap();
        let said = tcp(&answer);
        assert_eq!((&answer[..6], &answer[6..12], said.len()), (&CLIENT[..], &OWN[..], 20));
        assert_eq!((said[13], word(said, 8), &said[14..16]), (SYN | ACK, u32::MAX, &[0, 0][..]));
        assert_eq!((&said[..2], &said[2..4]), (&[0, 22][..], &40_000_u16.to_be_bytes()[..]));
        let length = [0, 0, 0, 20, 0, 0, 0, 6];
        let addresses = if address.is_ipv4() { &answer[26..34] } else { &answer[22..54] };
        assert_eq!(checksum(&[addresses, &length, said]), 0, "{address}");
        if address.is_ipv4() {
            assert_eq!(checksum(&[&answer[14..34]]), 0);
        }
        let next = word(said, 4).wrapping_add(1);
        let mut of = |at: u32, acknowledged: u32, flags: u8, bytes: &[u8]| {
            handle(&mut tarpit, &segment(client, address, (at, acknowledged), flags, bytes), now)
        };
        // The acknowledgement of our SYN.
        assert_eq!(of(u32::MAX, next, ACK, &[]), None);
        for (at, bytes) in
            [(u32::MAX - 1, &[][..]), (u32::MAX - 1, &[1]), (u32::MAX, &[1]), (u32::MAX, &[1; 200])]
        {
            let answer = of(at, next, ACK | 8, bytes).unwrap();
            let said = tcp(&answer);
            assert_eq!((word(said, 4), word(said, 8)), (next, u32::MAX), "nothing is taken");
            assert_eq!((said[13], &said[14..16]), (ACK, &[0, 0][..]));
        }
        // Other packets, and such as belong to no connection that was answered: a client that answered them again would
        // never end.
        for (at, acknowledged, flags) in [
            (u32::MAX, next, 0x04),
            (u32::MAX, next, ACK | 0x01),
            (u32::MAX, next, ACK | SYN),
            (u32::MAX, next, 0),
            (0, next, ACK),
            (5, next, ACK),
            (u32::MAX - 1, next.wrapping_add(1), ACK),
            (u32::MAX - 1, next.wrapping_sub(1), ACK),
        ] {
            assert_eq!(of(at, acknowledged, flags, &[]), None, "{at} {acknowledged} {flags:x}");
        }
    }
    assert_eq!(tarpit.counted(), Counted { tarpitted: 2, held: 8, limited: 0 });
}

#[test]
fn no_more_packets_leave_than_the_limit_whoever_asks_and_addresses_are_bounded() {
    let (mut tarpit, now) = tarpit(10);
    let now = take(&mut tarpit, v4(200), now) + Duration::from_secs(1);
    let mut sent = 0;
    for turn in 0..5_000_u32 {
        let client = Ipv4Addr::from_bits(0x0a00_0000 + turn).into();
        let now = now + Duration::from_millis((turn / 5).into());
        sent += u32::from(handle(&mut tarpit, &segment(client, v4(200), (turn, 0), SYN, &[]), now).is_some());
    }
    assert!((19..=20).contains(&sent), "a second's share at once, and that of a second: {sent}");
    assert_eq!(tarpit.counted().limited, 5_000 - u64::from(sent));
    let (mut tarpit, now) = super::tests::tarpit(1_000_000);
    for address in 0..2 * ADDRESSES as u128 {
        let to = IpAddr::from(Ipv6Addr::from_bits((0x2001_0db8_u128 << 96) + 1 + address));
        handle(&mut tarpit, &segment("2001:db8:1::1".parse().unwrap(), to, (1, 0), SYN, &[]), now);
    }
    assert_eq!((tarpit.addresses.len(), tarpit.counted().limited), (ADDRESSES, ADDRESSES as u64));
    tarpit.expire(OWN, now + SEARCH);
    tarpit.expire(OWN, now + SEARCH + KNOWN);
    assert!(tarpit.addresses.is_empty());
}

#[test]
fn a_flood_to_many_addresses_causes_no_more_look_ups_than_packets_and_own_addresses_take_no_packet() {
    let (mut tarpit, now) = tarpit(10);
    let mut looked = 0;
    let syn = |last: u32| {
        let to = Ipv6Addr::from_bits((0x2001_0db8_u128 << 96) + 1 + u128::from(last));
        segment("2001:db8:1::1".parse().unwrap(), to.into(), (1, 0), SYN, &[])
    };
    for address in 0..1000 {
        let is_local = |_| {
            looked += 1;
            Local::No
        };
        tarpit.handle(&syn(address), OWN, now, is_local);
    }
    assert_eq!((looked, tarpit.counted().limited), (10, 990));
    let now = now + Duration::from_secs(1);
    for address in 1000..1100 {
        assert_eq!(tarpit.handle(&syn(address), OWN, now, |_| Local::Yes), None);
    }
    assert_eq!(tarpit.counted().limited, 990);
    assert_eq!((0..100).filter(|last| handle(&mut tarpit, &syn(2000 + last), now).is_some()).count(), 10);
}

#[test]
fn no_frame_is_answered_to_sources_that_are_no_client_and_any_bytes_are_read() {
    let (mut tarpit, now) = tarpit(1000);
    let now = take(&mut tarpit, v4(200), now);
    for client in [[255; 4], [0; 4], [224, 0, 0, 1], [127, 0, 0, 1]] {
        let syn = segment(Ipv4Addr::from(client).into(), v4(200), (1, 0), SYN, &[]);
        assert_eq!(handle(&mut tarpit, &syn, now), None, "{client:?}");
    }
    let syn = segment(v4(1), v4(200), (1, 0), SYN, &[]);
    for length in 0..syn.len() {
        assert_eq!(handle(&mut tarpit, &syn[..length], now), None, "{length} bytes");
    }
    let mut ours = syn;
    ours[6..12].copy_from_slice(&OWN);
    assert_eq!(handle(&mut tarpit, &ours, now), None, "this machine sent it");
}

/// Runs a packet filter as the kernel does, for a frame without a VLAN tag that was sent to this machine. Returns whether the
/// filter accepts the frame.
fn accepts(program: &[crate::dsr::filter::Instruction], frame: &[u8]) -> bool {
    let (mut at, mut value) = (0, 0_u32);
    loop {
        let one = program[at];
        let load = |size: usize| -> Option<u32> {
            if one.k >= 0xffff_f000 {
                return Some(0);
            }
            let bytes = frame.get(one.k as usize..one.k as usize + size)?;
            Some(bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
        };
        let size = match one.code {
            0x20 => 4,
            0x28 => 2,
            0x30 => 1,
            0x54 => {
                value &= one.k;
                0
            }
            0x05 => {
                at += one.k as usize;
                0
            }
            0x15 => {
                at += usize::from(if value == one.k { one.jt } else { one.jf });
                0
            }
            0x45 => {
                at += usize::from(if value & one.k != 0 { one.jt } else { one.jf });
                0
            }
            _ => return one.k != 0,
        };
        if size > 0 {
            // The kernel leaves out a frame that is too short.
            let Some(loaded) = load(size) else { return false };
            value = loaded;
        }
        at += 1;
    }
}

#[test]
fn the_kernel_lets_pass_what_concerns_the_networks_alone() {
    let all: Vec<IpNet> = (0..NETWORKS)
        .map(|at| match at % 2 {
            0 => format!("10.{at}.0.0/16").parse().unwrap(),
            _ => format!("2001:db8:{at}:1::/65").parse().unwrap(),
        })
        .collect();
    for networks in [all, vec!["192.0.2.200/32".parse().unwrap()], vec!["fd00::1/128".parse().unwrap()]] {
        let program = filter::program(&networks);
        assert!(program.len() < 1000, "{}", program.len());
        for network in &networks {
            let inside = match network {
                IpNet::V4(v4) => v4.addr().into(),
                IpNet::V6(v6) => IpAddr::V6(v6.addr()),
            };
            let (client, outside): (IpAddr, IpAddr) = match inside {
                IpAddr::V4(_) => (v4(1), v4(201)),
                IpAddr::V6(_) => ("fd00::2".parse().unwrap(), "fd00::3".parse().unwrap()),
            };
            assert!(accepts(&program, &segment(client, inside, (1, 0), SYN, &[])), "{inside}");
            assert!(!accepts(&program, &segment(client, outside, (1, 0), SYN, &[])), "{outside}");
            let mut udp = segment(client, inside, (1, 0), SYN, &[]);
            udp[if inside.is_ipv4() { 23 } else { 20 }] = 17;
            assert!(!accepts(&program, &udp));
            // The search of this machine is a question, too.
            assert!(accepts(&program, &owner::probe(inside, OTHER)), "{inside}");
            assert!(accepts(&program, &owner::announcement(inside, OTHER)), "{inside}");
            assert!(!accepts(&program, &owner::probe(outside, OTHER)), "{outside}");
            if inside.is_ipv4() {
                assert!(accepts(&program, &claim(inside)) && !accepts(&program, &claim(outside)));
                assert!(accepts(&program, &question(inside, v4(1))));
            }
        }
    }
}

#[test]
fn networks_that_no_machine_of_the_interface_asks_for_are_known() {
    let all: Vec<IpNet> =
        ["192.0.2.128/25", "192.0.3.0/24", "2001:db8::dead:0/112"].map(|it| it.parse().unwrap()).into();
    let own = [("192.0.2.1".parse().unwrap(), 24), ("2001:db8::1".parse().unwrap(), 64)];
    assert_eq!(elsewhere(&all, &own), all[1..2]);
    assert_eq!(elsewhere(&all, &[]), all);
    assert!(elsewhere(&all[..1], &[("192.0.2.200".parse().unwrap(), 25)]).is_empty());
    assert_eq!(elsewhere(&all[..1], &[("192.0.2.200".parse().unwrap(), 26)]), all[..1], "in part alone");
}
