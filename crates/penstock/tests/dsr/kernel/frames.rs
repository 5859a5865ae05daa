//! Frames as they come to a service: good ones, and what is wrong with others.

use std::net::{IpAddr, Ipv6Addr};

use logic::dsr::Mac;

pub(crate) const OWN: Mac = [2, 0, 0, 0, 0, 1];
pub(crate) const CLIENT: Mac = [2, 0, 0, 0, 0, 9];

pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;

pub(crate) const FIN: u8 = 0x11;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const ACK: u8 = 0x10;

pub(crate) fn vip(is_v6: bool) -> IpAddr {
    if is_v6 { "2001:db8::10".parse().unwrap() } else { "192.0.2.10".parse().unwrap() }
}

pub(crate) fn client(is_v6: bool, number: u8) -> IpAddr {
    match is_v6 {
        true => Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, number.into()).into(),
        false => [198, 51, 100, number].into(),
    }
}

pub(crate) fn ethernet(kind: u16, packet: &[u8]) -> Vec<u8> {
    [&OWN[..], &CLIENT, &kind.to_be_bytes(), packet].concat()
}

/// An IPv4 packet: identification 7, with this place of a fragment and these words of options.
pub(crate) fn ipv4(protocol: u8, ends: [IpAddr; 2], place: u16, options: usize, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45 + options as u8, 0];
    packet.extend((20 + 4 * options as u16 + payload.len() as u16).to_be_bytes());
    packet.extend([0, 7]);
    packet.extend(place.to_be_bytes());
    packet.extend([64, protocol, 0, 0]);
    ends.iter().for_each(|ip| packet.extend(octets(*ip)));
    packet.extend(vec![1; 4 * options]);
    packet.extend(payload);
    packet
}

/// An IPv6 packet with extension headers, of which `first` is the kind of the first.
pub(crate) fn ipv6(first: u8, ends: [IpAddr; 2], headers: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(((headers.len() + payload.len()) as u16).to_be_bytes());
    packet.extend([first, 255]);
    ends.iter().for_each(|ip| packet.extend(octets(*ip)));
    packet.extend(headers);
    packet.extend(payload);
    packet
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// A header of TCP or UDP with a little behind it.
pub(crate) fn segment(protocol: u8, from: u16, to: u16, flags: u8) -> Vec<u8> {
    let mut segment = [from.to_be_bytes(), to.to_be_bytes()].concat();
    match protocol {
        TCP => segment.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 1, 0, 0, 0, 0, 0, b'a', b'b']),
        _ => segment.extend([0, 10, 0, 0, b'a', b'b']),
    }
    segment
}

/// A whole packet of a client of the service.
pub(crate) fn plain(is_v6: bool, protocol: u8, number: u8, from: u16, to: u16, flags: u8) -> Vec<u8> {
    let (ends, segment) = ([client(is_v6, number), vip(is_v6)], segment(protocol, from, to, flags));
    match is_v6 {
        true => ethernet(0x86dd, &ipv6(protocol, ends, &[], &segment)),
        false => ethernet(0x0800, &ipv4(protocol, ends, 0x4000, 0, &segment)),
    }
}

/// A fragment: `place` in bytes, `is_last` or not.
pub(crate) fn fragment(
    is_v6: bool,
    protocol: u8,
    number: u8,
    place: u16,
    more: bool,
    payload: &[u8],
) -> Vec<u8> {
    let ends = [client(is_v6, number), vip(is_v6)];
    match is_v6 {
        true => {
            let mut header = vec![protocol, 0];
            header.extend(((place & 0xfff8) | u16::from(more)).to_be_bytes());
            header.extend([0, 0, 0, number]);
            ethernet(0x86dd, &ipv6(44, ends, &header, payload))
        }
        false => {
            let place = (place / 8) | if more { 0x2000 } else { 0 };
            ethernet(0x0800, &ipv4(protocol, ends, place, 0, payload))
        }
    }
}

/// An ICMP error about a reply of the service to a client, of which the router shows so many bytes above IP.
pub(crate) fn error(
    is_v6: bool,
    kind: u8,
    protocol: u8,
    number: u8,
    [from, to]: [u16; 2],
    shown: usize,
) -> Vec<u8> {
    let inner = &segment(protocol, to, from, ACK);
    let inner = &inner[..shown.min(inner.len())];
    let (ends, back) = ([vip(is_v6), client(is_v6, number)], [client(is_v6, 200), vip(is_v6)]);
    let inner = if is_v6 { ipv6(protocol, ends, &[], inner) } else { ipv4(protocol, ends, 0, 0, inner) };
    let payload = [&[kind, 4, 0, 0, 0, 0, 5, 0][..], &inner].concat();
    match is_v6 {
        true => ethernet(0x86dd, &ipv6(ICMPV6, back, &[], &payload)),
        false => ethernet(0x0800, &ipv4(ICMP, back, 0, 0, &payload)),
    }
}
