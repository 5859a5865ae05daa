//! Frames with names, and what a service does with them.

use std::net::IpAddr;

use sys::bpf::Tried;

use super::frames::*;

/// What a service does with a frame.
pub(crate) type Named = (&'static str, Vec<u8>, Tried);

pub(crate) fn named(is_v6: bool) -> Vec<Named> {
    use Tried::{Passed, Sent};
    let tcp = |port, flags| plain(is_v6, TCP, 1, port, 80, flags);
    let with = |frame: Vec<u8>, at: usize, bytes: &[u8]| {
        let mut frame = frame;
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let segment_ = segment(TCP, 1000, 80, SYN);
    let (from, to) = (client(is_v6, 1), vip(is_v6));
    let mut all: Vec<Named> = vec![
        ("a SYN", tcp(1000, SYN), Sent),
        ("the flow goes on", tcp(1000, ACK), Sent),
        ("it ends", tcp(1000, FIN), Sent),
        ("after its end", tcp(1000, ACK), Sent),
        ("the port is used again", tcp(1000, SYN), Sent),
        ("a reset", tcp(1001, RST), Sent),
        ("a flow that was never seen", tcp(1002, ACK), Sent),
        ("a SYN with an ACK", tcp(1003, SYN | ACK), Sent),
        ("a datagram", plain(is_v6, UDP, 1, 1000, 80, 0), Sent),
        ("another port", plain(is_v6, TCP, 1, 1000, 81, SYN), Passed),
        ("another protocol", plain(is_v6, 132, 1, 1000, 80, 0), Passed),
        ("to another card", with(tcp(1000, SYN), 0, &[2, 0, 0, 0, 0, 2]), Passed),
        ("to all", with(tcp(1000, SYN), 0, &[0xff; 6]), Passed),
        ("from ourselves", with(tcp(1000, SYN), 6, &OWN), Passed),
        ("another kind of frame", with(tcp(1000, SYN), 12, &[0x88, 0xcc]), Passed),
        ("of a VLAN", [&tcp(1000, SYN)[..12], &[0x81, 0, 0, 5], &tcp(1000, SYN)[12..]].concat(), Passed),
        (
            "of two VLANs",
            [&tcp(1000, SYN)[..12], &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6], &tcp(1000, SYN)[12..]].concat(),
            Passed,
        ),
        ("padding behind it", [&tcp(1000, ACK)[..], &[0; 12]].concat(), Sent),
        ("later without a first", fragment(is_v6, UDP, 9, 1480, false, &[0; 64]), Passed),
        ("the first one of a datagram", fragment(is_v6, UDP, 2, 0, true, &segment(UDP, 1000, 80, 0)), Sent),
        ("the next one", fragment(is_v6, UDP, 2, 1480, true, &[0; 64]), Sent),
        ("the last one", fragment(is_v6, UDP, 2, 2960, false, &[0; 8]), Sent),
        ("of another client", fragment(is_v6, UDP, 3, 2960, false, &[0; 8]), Passed),
        ("a fragment that is the whole", fragment(is_v6, TCP, 2, 0, false, &segment_), Sent),
    ];
    let kinds: &[(u8, Tried)] = match is_v6 {
        true => &[
            (1, Sent),
            (2, Sent),
            (3, Sent),
            (4, Sent),
            (5, Passed),
            (128, Passed),
            (135, Passed),
            (136, Passed),
        ],
        false => &[(3, Sent), (11, Sent), (12, Sent), (0, Passed), (4, Passed), (5, Passed), (8, Passed)],
    };
    for (kind, what) in kinds {
        all.push(("an ICMP message", error(is_v6, *kind, TCP, 1, [1000, 80], 8), *what));
    }
    let kind = if is_v6 { 2 } else { 3 };
    all.extend([
        ("about a datagram", error(is_v6, kind, UDP, 1, [1000, 80], 8), Sent),
        ("about another port", error(is_v6, kind, TCP, 1, [1000, 443], 8), Passed),
        ("about a flow that is not known", error(is_v6, kind, TCP, 77, [1, 80], 8), Sent),
        ("with four bytes", error(is_v6, kind, TCP, 1, [1000, 80], 4), Sent),
        ("with three bytes", error(is_v6, kind, TCP, 1, [1000, 80], 3), Passed),
        ("with all bytes", error(is_v6, kind, TCP, 1, [1000, 80], 99), Sent),
        ("about another protocol", error(is_v6, kind, 132, 1, [1000, 80], 8), Passed),
    ]);
    match (from, to) {
        (IpAddr::V4(_), _) => {
            let of = |packet: Vec<u8>| ethernet(0x0800, &packet);
            for options in 1..=10 {
                all.push(("options", of(ipv4(TCP, [from, to], 0, options, &segment_)), Sent));
            }
            all.extend([
                ("a header that is too short", with(tcp(1000, SYN), 14, &[0x44]), Passed),
                ("another version", with(tcp(1000, SYN), 14, &[0x65]), Passed),
                ("a length of zero", with(tcp(1000, SYN), 16, &[0, 0]), Sent),
                ("a length within the header", with(tcp(1000, SYN), 16, &[0, 19]), Passed),
                ("a length within the ports", with(tcp(1000, SYN), 16, &[0, 23]), Passed),
                ("a length before the flags", with(tcp(1000, SYN), 16, &[0, 33]), Passed),
                ("a length behind the flags", with(tcp(1000, SYN), 16, &[0, 34]), Sent),
                ("a length behind the frame", with(tcp(1000, SYN), 16, &[0xff, 0xff]), Sent),
                ("ICMP of IPv6", of(ipv4(ICMPV6, [from, to], 0, 0, &[2; 60])), Passed),
                ("IPv6 in the place of IPv4", with(tcp(1000, SYN), 12, &[0x86, 0xdd]), Passed),
            ]);
        }
        (IpAddr::V6(_), _) => {
            let of = |first, headers: &[u8]| ethernet(0x86dd, &ipv6(first, [from, to], headers, &segment_));
            let chain = |count: usize| -> Vec<u8> {
                let header = |last| [if last { TCP } else { 60 }, 0, 0, 0, 0, 0, 0, 0];
                (0..count).flat_map(|at| header(at + 1 == count)).collect()
            };
            for kind in [0, 43, 60] {
                all.push(("an extension", of(kind, &[TCP, 0, 0, 0, 0, 0, 0, 0]), Sent));
                all.push(("a long extension", of(kind, &[&[TCP, 2][..], &[0; 22]].concat()), Sent));
                all.push(("an extension behind the end", of(kind, &[TCP, 9, 0, 0, 0, 0, 0, 0]), Passed));
            }
            for count in 1..=8 {
                all.push(("extensions", of(60, &chain(count)), Sent));
            }
            let nested = [&[44, 0, 0, 0, 0, 0, 0, 0][..], &[TCP, 0, 0, 1, 0, 0, 0, 5]].concat();
            all.extend([
                ("too many extensions", of(60, &chain(9)), Passed),
                ("authentication", of(51, &[TCP, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Sent),
                ("no next header", of(59, &[]), Passed),
                ("the first fragment behind an extension", of(60, &nested), Sent),
                (
                    "a later one behind an extension",
                    of(60, &[&nested[..10], &[1, 0], &nested[12..]].concat()),
                    Sent,
                ),
                (
                    "two fragment headers",
                    of(44, &[&[44, 0, 0, 1, 0, 0, 0, 1][..], &[TCP, 0, 0, 0, 0, 0, 0, 2]].concat()),
                    Sent,
                ),
                ("another version", with(tcp(1000, SYN), 14, &[0x45]), Passed),
                ("a length of zero", with(tcp(1000, SYN), 18, &[0, 0]), Sent),
                ("a length within the ports", with(tcp(1000, SYN), 18, &[0, 3]), Passed),
                ("ICMP of IPv4", of(ICMP, &[3; 60]), Passed),
                ("IPv4 in the place of IPv6", with(tcp(1000, SYN), 12, &[8, 0]), Passed),
            ]);
        }
    }
    all.extend(super::edges::edges(is_v6));
    all
}
