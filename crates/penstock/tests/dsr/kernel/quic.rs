//! Packets of QUIC: the number of a backend in their connection ids decides.

use logic::dsr::quic::QuicId;
use logic::dsr::{Transports, Verdict};
use sys::bpf::Tried;
use testing::tools::{self, Root};

use super::frames::*;
use super::random::Random;
use super::{NAMES, Pair, service};

/// A datagram of a client, with a header of UDP.
fn datagram(is_v6: bool, number: u8, port: u16, quic: &[u8]) -> Vec<u8> {
    let ends = [client(is_v6, number), vip(is_v6)];
    let mut udp = [port.to_be_bytes(), 80_u16.to_be_bytes(), (8 + quic.len() as u16).to_be_bytes()].concat();
    udp.extend([0, 0]);
    udp.extend(quic);
    match is_v6 {
        true => ethernet(0x86dd, &ipv6(UDP, ends, &[], &udp)),
        false => ethernet(0x0800, &ipv4(UDP, ends, 0x4000, 0, &udp)),
    }
}

/// A connection id with the number of a backend.
fn id(place: QuicId, number: u8) -> Vec<u8> {
    let mut id = vec![7; usize::from(place.offset())];
    id.extend(vec![0x0a; usize::from(place.length()) - 1]);
    id.push(number);
    id.extend([9; 4]);
    id
}

fn long(first: u8, version: u32, id: &[u8]) -> Vec<u8> {
    [&[first][..], &version.to_be_bytes(), &[id.len() as u8], id, &[0; 8]].concat()
}

/// A packet of QUIC, or nearly.
pub(super) fn random(random: &mut Random, is_v6: bool, place: QuicId) -> Vec<u8> {
    let mut id = id(place, random.below(8) as u8);
    if random.is_one_of(8) {
        id.truncate(random.below(id.len() + 1));
    }
    let versions = [1, 1, 0x6b33_43cf, 0, 2, 0x0100_0000];
    let mut packet = match random.is_one_of(3) {
        true => [&[random.below(128) as u8][..], &id].concat(),
        false => long(0x80 | random.below(128) as u8, versions[random.below(versions.len())], &id),
    };
    if random.is_one_of(4) {
        let at = random.below(packet.len());
        packet[at] = random.below(256) as u8;
    }
    let mut frame = datagram(is_v6, random.below(4) as u8, 1 + random.below(400) as u16, &packet);
    if random.is_one_of(6) {
        frame.truncate(15 + random.below(frame.len() - 14));
    }
    frame
}

/// The number of the backend to which the pair sends a frame.
fn backend(pair: &mut Pair, frame: &[u8]) -> Option<usize> {
    assert_eq!(pair.compare(frame), Tried::Sent);
    let name = match pair.director.handle(frame, OWN, std::time::Instant::now()) {
        Verdict::Forward { backend, .. } => pair.director.name(backend)?.to_owned(),
        _ => return None,
    };
    NAMES.iter().position(|one| *one == name)
}

#[test]
fn the_programs_read_the_numbers_of_backends_in_connection_ids_as_the_process_does() {
    if tools::root("loads programs into the kernel") == Root::LeftOut {
        return;
    }
    let mut golden = 0;
    for is_v6 in [false, true] {
        for (offset, length) in [(0, 1), (1, 2), (1, 8), (12, 8), (19, 1)] {
            let place = QuicId::new(offset, length).unwrap();
            let mut pair = Pair::new(service(is_v6, Transports::Udp)).with_numbers(place);
            for at in 0..NAMES.len() {
                let (id, port) = (id(place, at as u8), 1000 + 16 * at as u16);
                let (one, two) = (1, 0x6b33_43cf);
                for (more, packet) in [
                    [&[0x40][..], &id].concat(),
                    [&[0x00][..], &id].concat(),
                    [&[0x7f][..], &id[..usize::from(offset + length)]].concat(),
                    long(0xe3, one, &id),
                    long(0xa0, one, &id[..usize::from(offset + length)]),
                    long(0xf0, two, &id),
                ]
                .into_iter()
                .enumerate()
                {
                    let frame = datagram(is_v6, 1, port + more as u16, &packet);
                    assert_eq!(backend(&mut pair, &frame), Some(at), "{place:?} {packet:02x?}");
                    golden += 1;
                }
                // The table decides: Initial, 0-RTT, Retry, other versions, an id that is too short, nothing.
                for (more, packet) in [
                    long(0xc0, one, &id),
                    long(0xd0, one, &id),
                    long(0xf0, one, &id),
                    long(0xd0, two, &id),
                    long(0xe0, two, &id),
                    long(0xe0, 0, &id),
                    long(0xe0, one, &id[..usize::from(offset + length) - 1]),
                    [&[0x40][..], &id[..usize::from(offset + length) - 1]].concat(),
                    vec![],
                ]
                .into_iter()
                .enumerate()
                {
                    let port = 2000 + more as u16;
                    let plain = backend(&mut pair, &datagram(is_v6, 1, port, &[]));
                    let found = backend(&mut pair, &datagram(is_v6, 1, port, &packet));
                    assert_eq!(found, plain, "{place:?} {packet:02x?}");
                    golden += 1;
                }
                let whole = datagram(is_v6, 1, 3000, &long(0xe0, one, &id));
                (15..whole.len()).for_each(|length| {
                    pair.compare(&whole[..length]);
                });
            }
            pair.check_counters();
        }
    }
    println!("{golden} packets of QUIC");
}
