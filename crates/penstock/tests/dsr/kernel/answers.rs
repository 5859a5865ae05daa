//! Questions who has the address: the programs leave them to their process, and answer as it does once it is silent.

use std::net::IpAddr;
use std::time::Instant;

use logic::dsr::owner::{self, Ownership};
use logic::dsr::{Mac, Transports, Verdict, image};
use sys::bpf::{Tried, coarse_now};
use testing::tools::{self, Root};

use super::frames::{CLIENT, ICMPV6, OWN, client, ethernet, ipv6, vip};
use super::{Pair, service};

const OTHER: Mac = [2, 0, 0, 0, 0, 7];

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// The question of a client, to all or to a group.
fn question(target: IpAddr) -> Vec<u8> {
    let asker = client(target.is_ipv6(), 9);
    let mut frame = match target {
        IpAddr::V4(_) => {
            let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
            [&CLIENT[..], &octets(asker), &[0; 6], &octets(target)].iter().for_each(|part| arp.extend(*part));
            ethernet(0x0806, &arp)
        }
        IpAddr::V6(ip) => {
            let group = owner::solicited_node(ip).into();
            let icmp = [&[135, 0, 0, 0, 0, 0, 0, 0], &*octets(target), &[1, 1], &CLIENT].concat();
            ethernet(0x86dd, &ipv6(ICMPV6, [asker, group], &[], &icmp))
        }
    };
    frame[..6].copy_from_slice(if target.is_ipv4() { &[0xff; 6] } else { &[0x33, 0x33, 0xff, 0, 0, 0x10] });
    frame
}

#[test]
fn the_programs_of_an_owner_answer_once_its_process_is_silent_and_until_another_machine_has_the_address() {
    if tools::root("loads programs into the kernel") == Root::LeftOut {
        return;
    }
    for is_v6 in [false, true] {
        let mut pair = Pair::new(service(is_v6, Transports::Tcp));
        let asked = question(vip(is_v6));
        let verdict = pair.director.handle(&asked, OWN, Instant::now());
        let Verdict::Answer(expected) = verdict else { panic!("{verdict:?}") };
        let mut to_us = asked.clone();
        to_us[..6].copy_from_slice(&OWN);
        let words = |ownership, ago: u64| {
            let mut words = pair.director.service_words(OWN);
            image::set_answers(&mut words, ownership, coarse_now().saturating_sub(ago * 1_000_000_000));
            words
        };
        let (standby, silent) = (words(Ownership::Standby, 3), words(Ownership::Owner, 3));
        let mut alive = pair.director.service_words(OWN);
        image::set_answers(&mut alive, Ownership::Owner, coarse_now() + 3_600_000_000_000);
        for (program, name) in pair.programs.iter_mut().zip(["tc", "xdp"]) {
            for words in [&alive, &standby] {
                program.shared().set_service(words);
                let (tried, _) = program.try_out(&asked, &mut pair.out).unwrap();
                assert_eq!(tried, Tried::Passed, "{name}, IPv6 {is_v6}");
            }
            program.shared().set_service(&silent);
            for frame in [&asked, &to_us] {
                let (tried, length) = program.try_out(frame, &mut pair.out).unwrap();
                assert_eq!((tried, &pair.out[..length]), (Tried::Sent, &*expected), "{name}, IPv6 {is_v6}");
            }
            let (shorter, of_other) = (&asked[..asked.len() - 1], question(client(is_v6, 3)));
            // What it says itself, as a switch may send it back, is no claim of another machine.
            let own = owner::announcement(vip(is_v6), OWN);
            // Who asks before it takes the address is to have it.
            let probe = owner::probe(vip(is_v6), OTHER);
            for frame in [shorter, &of_other, &own, &probe] {
                let (tried, _) = program.try_out(frame, &mut pair.out).unwrap();
                assert_eq!(tried, Tried::Passed, "{name}, IPv6 {is_v6}");
            }
            let (tried, _) = program.try_out(&asked, &mut pair.out).unwrap();
            assert_eq!(tried, Tried::Sent, "{name}, IPv6 {is_v6}");
            for frame in [&owner::announcement(vip(is_v6), OTHER), &asked] {
                let (tried, _) = program.try_out(frame, &mut pair.out).unwrap();
                assert_eq!(tried, Tried::Passed, "{name}, IPv6 {is_v6}: another machine has the address");
            }
        }
    }
}
