//! Frames at the edges of what a service reads: flags, ports, lengths, tags, fragments, and what ICMP errors quote.

use sys::bpf::Tried;

use super::frames::*;
use super::named::Named;

use Tried::{Passed, Sent};

fn with(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

pub(crate) fn edges(is_v6: bool) -> Vec<Named> {
    let mut all = flags_and_ports(is_v6);
    all.extend(datagrams(is_v6));
    all.extend(ethernets(is_v6));
    all.extend(fragments(is_v6));
    all.extend(errors(is_v6));
    all.extend(if is_v6 { extensions() } else { options() });
    all
}

/// A packet of a client, with these bytes above IP.
fn packet(is_v6: bool, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let ends = [client(is_v6, 21), vip(is_v6)];
    match is_v6 {
        true => ethernet(0x86dd, &ipv6(protocol, ends, &[], payload)),
        false => ethernet(0x0800, &ipv4(protocol, ends, 0x4000, 0, payload)),
    }
}

fn flags_and_ports(is_v6: bool) -> Vec<Named> {
    let of = |from, to, flags| plain(is_v6, TCP, 20, from, to, flags);
    let header = segment(TCP, 2020, 80, ACK);
    vec![
        ("no flag", of(2000, 80, 0), Sent),
        ("all flags", of(2001, 80, 0xff), Sent),
        ("FIN without ACK", of(2002, 80, 0x01), Sent),
        ("SYN and FIN", of(2003, 80, 0x03), Sent),
        ("SYN and RST", of(2004, 80, 0x06), Sent),
        ("PSH and ACK", of(2005, 80, 0x18), Sent),
        ("URG and ACK", of(2006, 80, 0x30), Sent),
        ("a SYN that asks for ECN", of(2007, 80, 0xc2), Sent),
        ("RST and ACK", of(2008, 80, 0x14), Sent),
        ("from port 0", of(0, 80, SYN), Sent),
        ("from the last port", of(65_535, 80, SYN), Sent),
        ("from the port of the service", of(80, 80, SYN), Sent),
        ("to port 0", of(2009, 0, SYN), Passed),
        ("to the port before", of(2009, 79, SYN), Passed),
        ("to the last port", of(2009, 65_535, SYN), Passed),
        ("to the port with its bytes exchanged", of(2009, 80 << 8, SYN), Passed),
        ("to the port and a bit more", of(2009, 80 | 1 << 15, SYN), Passed),
        ("nothing above IP", packet(is_v6, TCP, &[]), Passed),
        ("ports without flags", packet(is_v6, TCP, &header[..13]), Passed),
        ("flags are the last byte", packet(is_v6, TCP, &header[..14]), Sent),
        (
            "a length of the header that is too small",
            with_byte(packet(is_v6, TCP, &header), is_v6, 12, 0),
            Sent,
        ),
        (
            "a length of the header behind the end",
            with_byte(packet(is_v6, TCP, &header), is_v6, 12, 0xf0),
            Sent,
        ),
    ]
}

/// Sets a byte of the header above IP.
fn with_byte(frame: Vec<u8>, is_v6: bool, at: usize, byte: u8) -> Vec<u8> {
    with(frame, 14 + if is_v6 { 40 } else { 20 } + at, &[byte])
}

fn datagrams(is_v6: bool) -> Vec<Named> {
    let of = |from, to| plain(is_v6, UDP, 22, from, to, 0);
    let header = [3, 0xe8, 0, 80, 0, 8, 0, 0];
    let long = [&header[..], &[7; 200]].concat();
    vec![
        ("a datagram from port 0", of(0, 80), Sent),
        ("a datagram to port 0", of(2000, 0), Passed),
        ("a datagram to the port behind", of(2000, 81), Passed),
        ("a datagram from the port of the service", of(80, 80), Sent),
        ("an empty datagram", packet(is_v6, UDP, &header), Sent),
        ("a datagram of 200 bytes", packet(is_v6, UDP, &long), Sent),
        ("a length of the datagram of zero", with_byte(packet(is_v6, UDP, &header), is_v6, 5, 0), Sent),
        (
            "a length of the datagram behind the end",
            with_byte(packet(is_v6, UDP, &header), is_v6, 4, 9),
            Sent,
        ),
        ("ports alone", packet(is_v6, UDP, &header[..4]), Sent),
        ("three bytes of a datagram", packet(is_v6, UDP, &header[..3]), Passed),
        ("no datagram above IP", packet(is_v6, UDP, &[]), Passed),
    ]
}

fn ethernets(is_v6: bool) -> Vec<Named> {
    let plain = plain(is_v6, TCP, 23, 2000, 80, SYN);
    let behind = |tag: &[u8]| [&plain[..12], tag, &plain[12..]].concat();
    // Of an address of the same length.
    let last = if is_v6 { 53 } else { 33 };
    let first = if is_v6 { 38 } else { 30 };
    vec![
        ("a priority without a VLAN", behind(&[0x81, 0, 0xa0, 0]), Passed),
        ("of the last VLAN", behind(&[0x81, 0, 0x0f, 0xff]), Passed),
        ("of a provider's VLAN", behind(&[0x88, 0xa8, 0, 5]), Passed),
        ("of a VLAN with an older number", behind(&[0x91, 0, 0, 5]), Passed),
        ("behind a label of MPLS", behind(&[0x88, 0x47, 0, 0, 0x11, 64]), Passed),
        ("in a session of PPPoE", behind(&[0x88, 0x64, 0x11, 0, 0, 1, 0, 40, 0, 0x21]), Passed),
        ("a length in the place of the type", with(plain.clone(), 12, &[0, 60]), Passed),
        ("to a group", with(plain.clone(), 0, &[1, 0, 0x5e, 0, 0, 1]), Passed),
        ("to no address", with(plain.clone(), 0, &[0; 6]), Passed),
        ("to a card that differs in its last bit", with(plain.clone(), 5, &[OWN[5] ^ 1]), Passed),
        ("from a card that differs in its last bit", with(with(plain.clone(), 6, &OWN), 11, &[0xfe]), Sent),
        ("to the address behind", with(plain.clone(), last, &[0x11]), Passed),
        ("to an address that differs in its first byte", with(plain.clone(), first, &[0x40]), Passed),
        ("one byte of padding", [&plain[..], &[0]].concat(), Sent),
        ("padding that looks like ports", [&plain[..], &[0, 81, 0, 81]].concat(), Sent),
    ]
}

fn fragments(is_v6: bool) -> Vec<Named> {
    let first = |number, to| fragment(is_v6, UDP, number, 0, true, &segment(UDP, 2000, to, 0));
    let later = |protocol, number, place| fragment(is_v6, protocol, number, place, false, &[0; 16]);
    // The number of an IPv6 packet tells it alone.
    let other = if is_v6 { Sent } else { Passed };
    vec![
        ("the first one of a segment", fragment(is_v6, TCP, 31, 0, true, &segment(TCP, 2000, 80, ACK)), Sent),
        ("the next one of the segment", later(TCP, 31, 24), Sent),
        ("of another protocol", later(UDP, 31, 24), other),
        ("the first one to another port", first(32, 81), Passed),
        ("the one behind it", later(UDP, 32, 16), Passed),
        ("a first one without ports", fragment(is_v6, UDP, 33, 0, true, &[7, 0xd0, 0]), Passed),
        ("the one behind that", later(UDP, 33, 8), Passed),
        (
            "a first one without flags",
            fragment(is_v6, TCP, 34, 0, true, &segment(TCP, 2000, 80, ACK)[..8]),
            Passed,
        ),
        ("the one with the flags", later(TCP, 34, 8), Passed),
        ("the first one again", first(35, 80), Sent),
        ("one that overlaps it", later(UDP, 35, 8), Sent),
        ("the last place there is", later(UDP, 35, 65_528), Sent),
        ("the same number again", first(35, 80), Sent),
        ("its number to another port", first(35, 81), Passed),
        ("one without content", fragment(is_v6, UDP, 35, 64, true, &[]), Sent),
        ("of a client that is not known", later(UDP, 36, 1480), Passed),
    ]
}

/// An ICMP error with this packet, as a router shows it.
fn quotes(is_v6: bool, number: u8, kind: [u8; 2], inner: &[u8]) -> Vec<u8> {
    let back = [client(is_v6, number), vip(is_v6)];
    let payload = [&kind[..], &[0, 0, 0, 0, 5, 0], inner].concat();
    match is_v6 {
        true => ethernet(0x86dd, &ipv6(ICMPV6, back, &[], &payload)),
        false => ethernet(0x0800, &ipv4(ICMP, back, 0, 0, &payload)),
    }
}

fn errors(is_v6: bool) -> Vec<Named> {
    let ends = [vip(is_v6), client(is_v6, 1)];
    let kind = if is_v6 { [2, 0] } else { [3, 4] };
    let of = |inner: &[u8]| quotes(is_v6, 200, kind, inner);
    let reply = &segment(TCP, 80, 1000, ACK)[..8];
    let inner = match is_v6 {
        true => ipv6(TCP, ends, &[], reply),
        false => ipv4(TCP, ends, 0x4000, 0, reply),
    };
    let header = inner.len() - 8;
    let (length, whole) = if is_v6 { (4, 1440_u16) } else { (2, 1500) };
    let exchanged = match is_v6 {
        true => ipv6(TCP, [ends[1], ends[0]], &[], reply),
        false => ipv4(TCP, [ends[1], ends[0]], 0, 0, reply),
    };
    let above = |protocol, payload: &[u8]| match is_v6 {
        true => ipv6(protocol, ends, &[], payload),
        false => ipv4(protocol, ends, 0, 0, payload),
    };
    let mut all: Vec<Named> = vec![
        ("about a packet that is longer", of(&with(inner.clone(), length, &whole.to_be_bytes())), Sent),
        (
            "about a packet whose hops are over",
            of(&with(inner.clone(), if is_v6 { 7 } else { 8 }, &[0])),
            Sent,
        ),
        ("about a packet to the service", of(&exchanged), Passed),
        ("about another version", of(&with(inner.clone(), 0, &[if is_v6 { 0x45 } else { 0x60 }])), Passed),
        ("about nothing", of(&[]), Passed),
        ("about one byte", of(&inner[..1]), Passed),
        ("about half a header", of(&inner[..header / 2]), Passed),
        ("about a header", of(&inner[..header]), Passed),
        ("about an empty datagram", of(&above(UDP, &[0, 80, 3, 0xe8, 0, 8, 0, 0])), Sent),
        ("about a datagram to port 0", of(&above(UDP, &[0, 80, 0, 0, 0, 8, 0, 0])), Sent),
        ("about a datagram from the port behind", of(&above(UDP, &[0, 81, 3, 0xe8, 0, 8, 0, 0])), Passed),
        ("about an ICMP message", of(&above(if is_v6 { ICMPV6 } else { ICMP }, &[0; 8])), Passed),
        ("about a packet in a tunnel", of(&above(4, &inner)), Passed),
        (
            "from the service itself",
            {
                let frame = of(&inner);
                let (at, octets) = if is_v6 { (22, 16) } else { (26, 4) };
                let own = frame[at + octets..at + 2 * octets].to_vec();
                with(frame, at, &own)
            },
            Sent,
        ),
        (
            "a message without its second half",
            packet(is_v6, if is_v6 { ICMPV6 } else { ICMP }, &kind),
            Passed,
        ),
    ];
    let others: &[u8] = if is_v6 { &[0, 100, 127, 129, 133, 137, 255] } else { &[9, 13, 17, 30, 255] };
    all.extend(others.iter().map(|kind| ("another message", quotes(is_v6, 200, [*kind, 0], &inner), Passed)));
    let codes: &[[u8; 2]] = match is_v6 {
        true => &[[1, 0], [1, 4], [3, 0], [3, 1], [4, 0], [4, 2], [2, 255]],
        false => &[[3, 0], [3, 1], [3, 3], [3, 13], [11, 0], [11, 1], [12, 0]],
    };
    all.extend(codes.iter().map(|kind| ("another code", quotes(is_v6, 200, *kind, &inner), Sent)));
    all
}

/// What IPv4 alone has.
fn options() -> Vec<Named> {
    let ends = [client(false, 24), vip(false)];
    let segment_ = segment(TCP, 2000, 80, SYN);
    let of = |packet: Vec<u8>| ethernet(0x0800, &packet);
    let plain = plain(false, TCP, 24, 2001, 80, SYN);
    let option = |bytes: &[u8]| {
        let mut packet = ipv4(TCP, ends, 0, bytes.len() / 4, &segment_);
        packet[20..20 + bytes.len()].copy_from_slice(bytes);
        of(packet)
    };
    let mut all: Vec<Named> = vec![
        ("a router alert", option(&[148, 4, 0, 0]), Sent),
        ("a loose route", option(&[131, 7, 4, 10, 0, 0, 1, 0]), Sent),
        ("a strict route", option(&[137, 7, 4, 10, 0, 0, 1, 0]), Sent),
        ("an option without a length", option(&[7, 0, 0, 0]), Sent),
        ("an option behind the header", option(&[7, 40, 4, 0]), Sent),
        ("hops that end here", with(plain.clone(), 22, &[1]), Sent),
        ("no hops", with(plain.clone(), 22, &[0]), Sent),
        ("urgent, with congestion", with(plain.clone(), 15, &[0xbb]), Sent),
        ("a wrong checksum", with(plain.clone(), 24, &[0xde, 0xad]), Sent),
        ("the reserved bit", with(plain.clone(), 20, &[0x80, 0]), Sent),
        ("DF and more fragments", with(with(plain.clone(), 18, &[9, 9]), 20, &[0x60, 0]), Sent),
        ("one behind it with DF", with(with(plain.clone(), 18, &[9, 9]), 20, &[0x40, 3]), Sent),
        ("from no address", with(plain.clone(), 26, &[0; 4]), Sent),
        ("a header of 60 bytes in a packet of 40", with(plain, 14, &[0x4f]), Passed),
    ];
    for protocol in [0, 2, 4, 41, 47, 50, 51, 89, 136, 255] {
        all.push(("of another protocol", of(ipv4(protocol, ends, 0, 0, &segment_)), Passed));
    }
    let about = [vip(false), client(false, 1)];
    for words in [1, 2, 10] {
        let inner = ipv4(TCP, about, 0x4000, words, &segment(TCP, 80, 1000, ACK)[..8]);
        all.push(("about a packet with options", quotes(false, 200, [3, 4], &inner), Sent));
    }
    let inner = ipv4(TCP, about, 0, 2, &[]);
    all.push(("about a packet that ends with its options", quotes(false, 200, [3, 4], &inner), Passed));
    let inner = |place| ipv4(UDP, about, place, 0, &segment(UDP, 80, 1000, 0));
    all.extend([
        ("about a first fragment", quotes(false, 200, [11, 1], &inner(0x2000)), Sent),
        ("about a later fragment", quotes(false, 200, [11, 1], &inner(0x2001)), Passed),
        ("about a last fragment", quotes(false, 200, [11, 1], &inner(0x00b9)), Passed),
    ]);
    let error = ipv4(
        ICMP,
        [client(false, 200), vip(false)],
        0,
        3,
        &[&[3, 4, 0, 0, 0, 0, 5, 0], &inner(0)[..]].concat(),
    );
    all.push(("an error with options", of(error), Sent));
    all
}

/// What IPv6 alone has.
fn extensions() -> Vec<Named> {
    let ends = [client(true, 24), vip(true)];
    let segment_ = segment(TCP, 2000, 80, SYN);
    let of = |first, headers: &[u8]| ethernet(0x86dd, &ipv6(first, ends, headers, &segment_));
    let plain = plain(true, TCP, 24, 2001, 80, SYN);
    let next = |kind| [kind, 0, 0, 0, 0, 0, 0, 0];
    let all_kinds = [
        &next(60)[..],
        &next(43),
        &next(44),
        &[51, 0, 0, 0, 0, 0, 0, 9],
        &[60, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &next(TCP),
    ]
    .concat();
    let mut all: Vec<Named> = vec![
        ("a flow label", with(plain.clone(), 14, &[0x60, 0x0f, 0xff, 0xff]), Sent),
        ("urgent, with congestion", with(plain.clone(), 14, &[0x6b, 0xb0]), Sent),
        ("hops that end here", with(plain.clone(), 21, &[1]), Sent),
        ("no hops", with(plain.clone(), 21, &[0]), Sent),
        ("from no address", with(plain.clone(), 22, &[0; 16]), Sent),
        ("a length within the flags", with(plain.clone(), 18, &[0, 13]), Passed),
        ("a length behind the flags", with(plain.clone(), 18, &[0, 14]), Sent),
        ("a length behind the frame", with(plain.clone(), 18, &[0xff, 0xff]), Sent),
        ("a length within the extension", with(of(60, &next(TCP)), 18, &[0, 7]), Passed),
        ("a length that ends with the extension", with(of(60, &next(TCP)), 18, &[0, 8]), Passed),
        ("extensions of every kind", of(0, &all_kinds), Sent),
        ("an extension of the greatest length", of(60, &[TCP, 255, 0, 0, 0, 0, 0, 0]), Passed),
        ("authentication of the least length", of(51, &next(TCP)), Sent),
        ("authentication behind the end", of(51, &[TCP, 40, 0, 0, 0, 0, 0, 0]), Passed),
        ("no next header behind an extension", of(60, &next(59)), Passed),
        ("reserved bits of a fragment", of(44, &[TCP, 0xff, 0, 6, 0, 0, 0, 44]), Sent),
        ("a route with addresses", of(43, &[&[TCP, 2, 0, 0][..], &[0; 20]].concat()), Sent),
        ("an extension that leads to a datagram's port", of(60, &next(UDP)), Sent),
    ];
    for protocol in [2, 4, 41, 47, 50, 89, 135, 136, 139, 140, 253, 255] {
        all.push(("of another protocol", of(protocol, &[]), Passed));
    }
    let about = [vip(true), client(true, 1)];
    let reply = &segment(TCP, 80, 1000, ACK)[..8];
    let quoted = |first, headers: &[u8]| quotes(true, 200, [2, 0], &ipv6(first, about, headers, reply));
    all.extend([
        ("about a packet with an extension", quoted(60, &next(TCP)), Sent),
        ("about a packet with extensions", quoted(0, &[next(43), next(60), next(TCP)].concat()), Sent),
        ("about a first fragment", quoted(44, &[TCP, 0, 0, 1, 0, 0, 0, 5]), Sent),
        ("about a later fragment", quoted(44, &[TCP, 0, 0, 9, 0, 0, 0, 5]), Passed),
        ("about an extension behind the end", quoted(60, &[TCP, 9, 0, 0, 0, 0, 0, 0]), Passed),
        ("about no next header", quoted(59, &[]), Passed),
    ]);
    let inner = ipv6(TCP, about, &[], reply);
    let payload = [&next(ICMPV6)[..], &[2, 0, 0, 0, 0, 0, 5, 0], &inner].concat();
    all.push((
        "an error behind an extension",
        ethernet(0x86dd, &ipv6(60, [client(true, 200), vip(true)], &[], &payload)),
        Sent,
    ));
    all
}
