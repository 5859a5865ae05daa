//! Program for the kernel (classic BPF, socket filter) that leaves only frames which a service may want: packets to its
//! VIP and port, ICMP and fragments to its VIP, and questions and claims about the VIP. It is coarse on purpose:
//! [`super::Director::handle`] decides, and sees what passes here.

use std::net::IpAddr;

use super::{Service, Transports};
use crate::dsr::packet::{ICMP, ICMPV6, Mac, TCP, UDP};

/// One instruction, as `struct sock_filter` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub code: u16,
    /// Instructions that are left out if the test is true.
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

// Codes of linux/bpf_common.h: BPF_LD or BPF_LDX, size, mode.
pub(super) const LD_WORD: u16 = 0x20;
pub(super) const LD_HALF: u16 = 0x28;
pub(super) const LD_BYTE: u16 = 0x30;
/// The length of the frame.
const LD_LENGTH: u16 = 0x80;
/// A half word at the index register plus `k`.
const LD_HALF_INDEXED: u16 = 0x48;
/// The index register becomes the length of the IPv4 header at `k`.
const LDX_HEADER: u16 = 0xb1;
pub(super) const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
pub(super) const JUMP_ANY_BIT: u16 = 0x45;
pub(super) const RETURN: u16 = 0x06;

/// Offsets of what the kernel knows beside the frame (linux/filter.h, SKF_AD_OFF).
pub(super) const AD_PACKET_TYPE: u32 = 0xffff_f000 + 4;
pub(super) const AD_VLAN_TAG: u32 = 0xffff_f000 + 44;

/// Number of a VLAN in its tag. 0 is none: such a tag has a priority only (IEEE 802.1Q).
pub(super) const VLAN: u32 = 0x0fff;

/// A frame that was sent to this machine alone (PACKET_HOST).
pub(super) const TO_US: u32 = 0;

/// The whole frame.
const ALL: u32 = 0xffff_ffff;

pub(super) const IP: u32 = 14;

/// What passes beside TCP and UDP. Other protocols stay outside: frames of some cannot even be received (SCTP whose
/// segments are still one frame).
const BESIDE_IPV4: [u8; 1] = [ICMP];
/// ICMP, and the extension headers that [`crate::dsr::packet::parse`] passes over.
const BESIDE_IPV6: [u8; 6] = [ICMPV6, 0, 43, 44, 51, 60];

/// Where a test goes if it fails.
enum Target {
    Accept,
    Reject,
}

/// Instructions whose tests lead on, or out; the ways out are filled in at the end.
#[derive(Default)]
struct Program {
    instructions: Vec<Instruction>,
    /// Instruction, whether its true side is meant, and where it leads.
    open: Vec<(usize, bool, Target)>,
}

impl Program {
    fn push(&mut self, code: u16, k: u32) {
        self.instructions.push(Instruction { code, jt: 0, jf: 0, k });
    }

    /// Goes on if the accumulator is `k`.
    fn expect(&mut self, k: u32, otherwise: Target) {
        self.open.push((self.instructions.len(), false, otherwise));
        self.push(JUMP_EQUAL, k);
    }

    /// Leaves if the accumulator is `k`.
    fn leave_if(&mut self, k: u32, to: Target) {
        self.open.push((self.instructions.len(), true, to));
        self.push(JUMP_EQUAL, k);
    }

    /// Leaves if the accumulator is greater than `k`.
    fn leave_if_greater(&mut self, k: u32, to: Target) {
        self.open.push((self.instructions.len(), true, to));
        self.push(JUMP_GREATER, k);
    }

    /// Leaves if the accumulator has any bit of `k`.
    fn leave_if_any_bit(&mut self, k: u32, to: Target) {
        self.open.push((self.instructions.len(), true, to));
        self.push(JUMP_ANY_BIT, k);
    }

    /// Goes on if the 16 or 4 bytes at `at` are the address.
    fn expect_address(&mut self, at: u32, ip: IpAddr) {
        let octets = match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        for (word, at) in octets.chunks_exact(4).zip((at..).step_by(4)) {
            self.push(LD_WORD, at);
            self.expect(u32::from_be_bytes([word[0], word[1], word[2], word[3]]), Target::Reject);
        }
    }

    /// Appends a comparison with `k`, and `block`, which the kernel skips if they differ.
    fn when(&mut self, k: u32, block: impl FnOnce(&mut Self)) {
        let at = self.instructions.len();
        self.push(JUMP_EQUAL, k);
        block(self);
        // The blocks are short; a longer one would be rejected by the kernel and seen by the tests.
        self.instructions[at].jf = (self.instructions.len() - at - 1) as u8;
    }

    /// Accepts questions and claims about the VIP. Of other frames of IPv4 the accumulator has the type afterwards; of IPv6
    /// only they go on.
    fn expect_question(&mut self, vip: IpAddr) {
        // A tag that the kernel has cut off: the frame is of a VLAN, which has an interface of its own.
        self.push(LD_HALF, AD_VLAN_TAG);
        self.leave_if_any_bit(VLAN, Target::Reject);
        self.push(LD_HALF, 12);
        match vip {
            IpAddr::V4(ip) => self.when(0x0806, |program| {
                // A question about the VIP, or what its sender says of it.
                program.push(LD_WORD, IP + 24);
                program.leave_if(ip.to_bits(), Target::Accept);
                program.expect_address(IP + 14, vip);
                program.push(RETURN, ALL);
            }),
            IpAddr::V6(_) => {
                self.expect(0x86dd, Target::Reject);
                // Neighbour solicitation and advertisement, which may be to a group.
                self.push(LD_BYTE, IP + 6);
                self.when(58, |program| {
                    program.push(LD_BYTE, IP + 40);
                    for kind in [135, 136] {
                        program.when(kind, |program| {
                            program.expect_address(IP + 48, vip);
                            program.push(RETURN, ALL);
                        });
                    }
                });
            }
        }
    }

    /// Whether the port of the service is at the accumulator's next load; leaves in any case.
    fn finish_ports(&mut self, transports: Transports, load: (u16, u32), port: u16, beside: &[u8]) {
        // The accumulator has the protocol.
        let wanted: &[u8] = match transports {
            Transports::Tcp => &[TCP],
            Transports::Udp => &[UDP],
            Transports::TcpAndUdp => &[TCP, UDP],
        };
        for &protocol in wanted {
            self.when(protocol.into(), |program| {
                if port != 0 {
                    program.push(load.0, load.1);
                    program.expect(port.into(), Target::Reject);
                }
                program.push(RETURN, ALL);
            });
        }
        for &protocol in beside {
            self.leave_if(protocol.into(), Target::Accept);
        }
        self.push(RETURN, 0);
    }

    /// Leaves in any case: accepts the frames of these senders.
    fn finish_senders(&mut self, from: &[Mac]) {
        if from.is_empty() || from.len() > SENDERS {
            return self.push(RETURN, ALL);
        }
        for [a, b, c, d, e, f] in from {
            self.push(LD_WORD, 6);
            self.when(u32::from_be_bytes([*a, *b, *c, *d]), |program| {
                program.push(LD_HALF, 10);
                program.leave_if(u16::from_be_bytes([*e, *f]).into(), Target::Accept);
            });
        }
        self.push(RETURN, 0);
    }

    fn finish(mut self) -> Vec<Instruction> {
        let accept = self.instructions.len();
        self.push(RETURN, ALL);
        self.push(RETURN, 0);
        for (at, is_true, target) in self.open {
            let target = match target {
                Target::Accept => accept,
                Target::Reject => accept + 1,
            };
            let distance = (target - at - 1) as u8;
            let instruction = &mut self.instructions[at];
            *(if is_true { &mut instruction.jt } else { &mut instruction.jf }) = distance;
        }
        self.instructions
    }
}

/// The program of a service. It reads frames from their Ethernet header on.
pub fn program(service: &Service) -> Vec<Instruction> {
    let Service { vip, port, transports } = *service;
    let mut program = Program::default();
    program.expect_question(vip);
    match vip {
        IpAddr::V4(_) => {
            program.expect(0x0800, Target::Reject);
            program.push(LD_BYTE, AD_PACKET_TYPE);
            program.expect(TO_US, Target::Reject);
            program.expect_address(IP + 16, vip);
            // Fragments but the first one have no ports.
            program.push(LD_HALF, IP + 6);
            program.leave_if_any_bit(0x1fff, Target::Accept);
            program.push(LDX_HEADER, IP);
            program.push(LD_BYTE, IP + 9);
            program.finish_ports(transports, (LD_HALF_INDEXED, IP + 2), port, &BESIDE_IPV4);
        }
        IpAddr::V6(_) => {
            program.push(LD_BYTE, AD_PACKET_TYPE);
            program.expect(TO_US, Target::Reject);
            program.expect_address(IP + 24, vip);
            program.push(LD_BYTE, IP + 6);
            program.finish_ports(transports, (LD_HALF, IP + 42), port, &BESIDE_IPV6);
        }
    }
    program.finish()
}

/// The program of a service whose packets stay in the kernel: it leaves questions and claims about the VIP.
pub fn questions(service: &Service) -> Vec<Instruction> {
    let mut program = Program::default();
    program.expect_question(service.vip);
    program.push(RETURN, 0);
    program.finish()
}

/// Senders that [`claims`] can tell apart.
const SENDERS: usize = 16;

/// A program that leaves what these machines say of their own addresses when they are asked: ARP replies, and advertisements of
/// neighbour discovery. What others say, however often, takes no place before it. Of more than a few machines all are heard.
pub fn claims(from: &[Mac]) -> Vec<Instruction> {
    let mut program = Program::default();
    program.push(LD_HALF, 12);
    program.when(0x0806, |program| {
        program.push(LD_HALF, IP + 6);
        program.expect(2, Target::Reject);
        program.finish_senders(from);
    });
    program.expect(0x86dd, Target::Reject);
    program.push(LD_BYTE, IP + 6);
    program.expect(ICMPV6.into(), Target::Reject);
    program.push(LD_BYTE, IP + 40);
    program.expect(136, Target::Reject);
    program.finish_senders(from);
    program.finish()
}

/// [`questions`] if the packets travel through tunnels that have room for so many bytes: it also leaves packets to the VIP that are
/// longer, and not longer than one packet of this network can be.
pub fn questions_and_long(service: &Service, room: u16, most: u16) -> Vec<Instruction> {
    let mut program = Program::default();
    program.expect_question(service.vip);
    let at = match service.vip {
        IpAddr::V4(_) => {
            program.expect(0x0800, Target::Reject);
            IP + 16
        }
        IpAddr::V6(_) => IP + 24,
    };
    program.push(LD_BYTE, AD_PACKET_TYPE);
    program.expect(TO_US, Target::Reject);
    program.expect_address(at, service.vip);
    program.push(LD_LENGTH, 0);
    program.leave_if_greater(IP + u32::from(most), Target::Reject);
    program.leave_if_greater(IP + u32::from(room), Target::Accept);
    program.push(RETURN, 0);
    program.finish()
}
