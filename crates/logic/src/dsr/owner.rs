//! Ownership of the VIP on the network: answers to ARP requests (RFC 826) and neighbour solicitations (RFC 4861), and
//! announcements when the service starts or takes the VIP over. The kernel does not answer for it, because the VIP is on
//! no interface: it would answer the clients as well.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::packet::{ICMPV6, Mac, Question};

text::words! {
    /// Whether a machine answers for the VIP.
    #[derive(Default)]
    pub enum Ownership: "ownership" {
        #[default]
        Owner = "owner",
        /// Another machine does.
        Standby = "standby",
    }
}

const BROADCAST: Mac = [0xff; 6];

/// The group of all nodes (RFC 4291 section 2.7.1), with its Ethernet address.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];

/// The frame that answers a question about an address of ours.
pub fn answer(question: &Question, own: Mac) -> Vec<u8> {
    match (question.target, question.asker) {
        (IpAddr::V4(vip), IpAddr::V4(asker)) => {
            arp(2, question.asker_mac, (own, vip), (question.asker_mac, asker))
        }
        (IpAddr::V6(vip), IpAddr::V6(asker)) if !asker.is_unspecified() => {
            // Solicited, and to replace what the asker knew.
            advertisement(question.asker_mac, (own, vip), asker, 0x60)
        }
        (vip, _) => announcement(vip, own),
    }
}

/// The frame that tells every machine of the network where the VIP is.
pub fn announcement(vip: IpAddr, own: Mac) -> Vec<u8> {
    match vip {
        IpAddr::V4(vip) => arp(1, BROADCAST, (own, vip), ([0; 6], vip)),
        IpAddr::V6(vip) => advertisement(ALL_NODES_MAC, (own, vip), ALL_NODES, 0x20),
    }
}

/// The frame that asks whether another machine has the VIP. It names no address of the asker (RFC 5227 section 2.1.1, RFC
/// 4862 section 5.4.2), so a machine that has the VIP answers it, which it does not with an announcement.
pub fn probe(vip: IpAddr, own: Mac) -> Vec<u8> {
    match vip {
        IpAddr::V4(vip) => arp(1, BROADCAST, (own, Ipv4Addr::UNSPECIFIED), ([0; 6], vip)),
        IpAddr::V6(vip) => {
            let group = solicited_node(vip);
            let [.., a, b, c, d] = group.octets();
            let mut icmp = vec![135, 0, 0, 0, 0, 0, 0, 0];
            icmp.extend(vip.octets());
            icmpv6([0x33, 0x33, a, b, c, d], own, (Ipv6Addr::UNSPECIFIED, group), icmp)
        }
    }
}

/// Group to which questions about an IPv6 address are sent.
pub fn solicited_node(vip: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = vip.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}

pub(super) fn ethernet(to: Mac, from: Mac, ethertype: [u8; 2]) -> Vec<u8> {
    [&to[..], &from, &ethertype].concat()
}

fn arp(operation: u8, to: Mac, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr)) -> Vec<u8> {
    let mut frame = ethernet(to, sender.0, [0x08, 0x06]);
    frame.extend([0, 1, 8, 0, 6, 4, 0, operation]);
    for (mac, ip) in [sender, target] {
        frame.extend(mac);
        frame.extend(ip.octets());
    }
    frame
}

fn advertisement(to: Mac, (own, vip): (Mac, Ipv6Addr), asker: Ipv6Addr, flags: u8) -> Vec<u8> {
    let mut icmp = vec![136, 0, 0, 0, flags, 0, 0, 0];
    icmp.extend(vip.octets());
    // Option: link-layer address of the target.
    icmp.extend([2, 1]);
    icmp.extend(own);
    icmpv6(to, own, (vip, asker), icmp)
}

/// A frame with a message of neighbour discovery, whose checksum is filled in.
fn icmpv6(to: Mac, own: Mac, (source, destination): (Ipv6Addr, Ipv6Addr), mut icmp: Vec<u8>) -> Vec<u8> {
    let length = icmp.len() as u8;
    let sum =
        checksum(&[&source.octets(), &destination.octets(), &[0, 0, 0, length, 0, 0, 0, ICMPV6], &icmp]);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = ethernet(to, own, [0x86, 0xdd]);
    frame.extend([0x60, 0, 0, 0, 0, length, ICMPV6, 255]);
    frame.extend(source.octets());
    frame.extend(destination.octets());
    frame.extend(icmp);
    frame
}

/// Internet checksum (RFC 1071) of parts, of which only the last one may have an odd length.
pub(super) fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let value = |word: &[u8]| u32::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]));
    let mut sum: u32 = words.map(value).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
