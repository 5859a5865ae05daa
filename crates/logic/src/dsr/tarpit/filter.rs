//! Program for the kernel that leaves the tarpit only what may concern it: questions and claims about an address of its
//! networks, and TCP to one. It is coarse: [`super::Tarpit::handle`] decides.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::dsr::filter::{
    AD_PACKET_TYPE, AD_VLAN_TAG, IP, Instruction, JUMP_ANY_BIT, JUMP_EQUAL, LD_BYTE, LD_HALF, LD_WORD,
    RETURN, TO_US, VLAN,
};
use crate::dsr::packet::{ICMPV6, TCP};

// Beside those of the other filter (linux/bpf_common.h).
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;

/// Bytes of a frame that are taken: its headers and a few more.
const ACCEPT: u32 = 256;

/// The program of these networks.
pub fn program(networks: &[IpNet]) -> Vec<Instruction> {
    let of = |is_v4: bool| -> Vec<IpNet> {
        networks.iter().copied().filter(|network| network.addr().is_ipv4() == is_v4).collect()
    };
    let (v4, v6) = (of(true), of(false));
    let mut program = Vec::new();
    // A VLAN has an interface of its own.
    load(&mut program, LD_HALF, AD_VLAN_TAG);
    program.push(Instruction { code: JUMP_ANY_BIT, jt: 0, jf: 1, k: VLAN });
    load(&mut program, RETURN, 0);
    load(&mut program, LD_HALF, 12);
    when(&mut program, 0x0806, {
        let mut block = Vec::new();
        // Who is asked for, and who says that it has an address.
        networks_at(&mut block, IP + 24, &v4);
        networks_at(&mut block, IP + 14, &v4);
        block
    });
    when(&mut program, 0x0800, {
        let mut block = to_this_machine();
        load(&mut block, LD_HALF, IP + 6);
        block.push(Instruction { code: JUMP_ANY_BIT, jt: 0, jf: 1, k: 0x3fff });
        load(&mut block, RETURN, 0);
        load(&mut block, LD_BYTE, IP + 9);
        expect(&mut block, TCP.into());
        networks_at(&mut block, IP + 16, &v4);
        block
    });
    when(&mut program, 0x86dd, {
        let mut block = Vec::new();
        load(&mut block, LD_BYTE, IP + 6);
        when(&mut block, ICMPV6.into(), {
            let mut block = Vec::new();
            load(&mut block, LD_BYTE, IP + 40);
            // Neighbour solicitation and advertisement.
            block.push(Instruction { code: JUMP_EQUAL, jt: 2, jf: 0, k: 135 });
            expect(&mut block, 136);
            networks_at(&mut block, IP + 48, &v6);
            // From which address a machine asks.
            networks_at(&mut block, IP + 8, &v6);
            block
        });
        expect(&mut block, TCP.into());
        block.extend(to_this_machine());
        networks_at(&mut block, IP + 24, &v6);
        block
    });
    load(&mut program, RETURN, 0);
    program
}

fn load(program: &mut Vec<Instruction>, code: u16, k: u32) {
    program.push(Instruction { code, jt: 0, jf: 0, k });
}

/// Leaves unless the accumulator is `k`.
fn expect(program: &mut Vec<Instruction>, k: u32) {
    program.push(Instruction { code: JUMP_EQUAL, jt: 1, jf: 0, k });
    load(program, RETURN, 0);
}

fn to_this_machine() -> Vec<Instruction> {
    let mut block = Vec::new();
    load(&mut block, LD_BYTE, AD_PACKET_TYPE);
    expect(&mut block, TO_US);
    block
}

/// Runs `block`, which has no way on, if the accumulator is `k`.
fn when(program: &mut Vec<Instruction>, k: u32, mut block: Vec<Instruction>) {
    load(&mut block, RETURN, 0);
    program.push(Instruction { code: JUMP_EQUAL, jt: 1, jf: 0, k });
    load(program, JUMP, block.len() as u32);
    program.extend(block);
}

/// Accepts the frame if the address at this place is in one of the networks.
fn networks_at(program: &mut Vec<Instruction>, at: u32, networks: &[IpNet]) {
    for network in networks {
        let (address, mask) = (octets(network.network()), octets(network.netmask()));
        let words = |octets: &[u8]| -> Vec<u32> {
            octets
                .chunks_exact(4)
                .map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
                .collect()
        };
        let compared: Vec<_> = (at..)
            .step_by(4)
            .zip(words(&address).into_iter().zip(words(&mask)))
            .filter(|(_, (_, mask))| *mask != 0)
            .collect();
        for (left, (at, (word, mask))) in (0..compared.len()).rev().zip(compared) {
            load(program, LD_WORD, at);
            load(program, AND, mask);
            // Behind the other words, and the end.
            let behind = (left * 3 + 1) as u8;
            program.push(Instruction { code: JUMP_EQUAL, jt: 0, jf: behind, k: word });
        }
        load(program, RETURN, ACCEPT);
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}
