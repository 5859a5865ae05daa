//! What the kernel leaves out before the decision.

use proptest::prelude::*;

use super::*;

fn filtered(program: &[filter::Instruction], frame: &[u8], is_for_us: bool) -> bool {
    filtered_of(program, frame, is_for_us, 0)
}

/// What the kernel does with a program (socket filter) and a frame from which it has cut off this VLAN tag: whether the
/// frame is accepted.
fn filtered_of(program: &[filter::Instruction], frame: &[u8], is_for_us: bool, tag: u32) -> bool {
    let load = |at: u32, size: usize| {
        let bytes = frame.get(at as usize..at as usize + size)?;
        Some(bytes.iter().fold(0_u32, |all, byte| all << 8 | u32::from(*byte)))
    };
    let (mut a, mut x, mut at) = (0_u32, 0_u32, 0);
    loop {
        let filter::Instruction { code, jt, jf, k } = program[at];
        at += 1;
        let loaded = match code {
            0x30 if k == 0xffff_f000 + 4 => Some(u32::from(!is_for_us)),
            0x28 if k == 0xffff_f000 + 44 => Some(tag),
            0x20 => load(k, 4),
            0x28 => load(k, 2),
            0x30 => load(k, 1),
            0x48 => load(x + k, 2),
            0xb1 => load(k, 1).map(|byte| x = (byte & 0xf) * 4).map(|()| a),
            0x15 | 0x45 => {
                let is_true = if code == 0x15 { a == k } else { a & k != 0 };
                at += usize::from(if is_true { jt } else { jf });
                Some(a)
            }
            0x06 => return k > 0,
            _ => panic!("instruction {code:#x}"),
        };
        match loaded {
            Some(value) => a = value,
            None => return false,
        }
    }
}

#[test]
fn the_filter_of_the_kernel_leaves_what_is_for_the_service_and_little_else() {
    let service = Service { transports: Transports::Tcp, ..v4() };
    let program = filter::program(&service);
    let accepts = |frame: &[u8]| filtered(&program, frame, true);
    assert!(accepts(&tcp(1, SYN)) && !filtered(&program, &tcp(1, SYN), false));
    assert!(!accepts(&udp(1, 80)), "another transport");
    assert!(!accepts(&ipv4(packet::TCP, 1, 0, &segment(1, 443, SYN))), "another port");
    assert!(accepts(&ipv4(packet::UDP, 1, 100, &[0; 8])), "a fragment may be of a TCP segment");
    assert!(accepts(&ipv4(packet::ICMP, 1, 0, &[3; 40])));
    assert!(!accepts(&ipv4(132, 1, 0, &segment(1, 80, SYN))), "SCTP");
    assert!(accepts(&owner::announcement(service.vip, CLIENT)));
    assert!(!accepts(&owner::announcement(Ipv4Addr::new(192, 0, 2, 11).into(), CLIENT)));
    let program = filter::program(&v6());
    let IpAddr::V6(vip) = v6().vip else { panic!() };
    assert!(filtered(&program, &ipv6(&[], packet::TCP, vip, &segment(1, 80, SYN)), true));
    assert!(!filtered(&program, &ipv6(&[], packet::TCP, vip, &segment(1, 81, SYN)), true));
    assert!(filtered(&program, &owner::announcement(vip.into(), CLIENT), false));
    assert!(filtered(&program, &ipv6(&[], packet::ICMPV6, vip, &[2; 60]), true));
    assert!(!filtered(&program, &ipv6(&[], packet::UDP, vip, &segment(1, 80, SYN)), true));
    assert!(!filtered(&program, &ipv6(&[], 132, vip, &segment(1, 80, SYN)), true));
    for extension in [0, 43, 44, 51, 60] {
        assert!(filtered(
            &program,
            &ipv6(&[packet::TCP, 0, 0, 0, 0, 0, 0, 0], extension, vip, &[0; 20]),
            true
        ));
    }
}

#[test]
fn a_tag_that_names_no_vlan_is_no_obstacle() {
    for service in [Service { transports: Transports::Tcp, ..v4() }, v6()] {
        let IpAddr::V6(vip) = v6().vip else { panic!() };
        let frame = match service.vip {
            IpAddr::V4(_) => tcp(1, SYN),
            IpAddr::V6(_) => ipv6(&[], packet::TCP, vip, &segment(1, 80, SYN)),
        };
        let program = filter::program(&service);
        // Priority 3, and the bit that a frame may be dropped.
        assert!(filtered_of(&program, &frame, true, 0x7000));
        assert!(!filtered_of(&program, &frame, true, 0x6007), "of VLAN 7, which has its own interface");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Starts from a good frame, of which a few bytes are others and the end is missing.
    #[test]
    fn nothing_that_is_forwarded_or_answered_is_held_back_by_the_filter(
        kind in 0..8_usize,
        changes in proptest::collection::vec((0..100_usize, any::<u8>()), 0..4),
        length in 0..120_usize,
        every_port in any::<bool>(),
    ) {
        let IpAddr::V6(vip) = v6().vip else { panic!() };
        let is_v6 = kind >= 5;
        let mut frame = match kind {
            0 => tcp(40_000, SYN),
            1 => udp(40_000, 80),
            2 => ipv4(packet::UDP, 1, 0x2000, &[0, 9, 0, 80, 0, 0, 0, 0]),
            3 => ipv4(packet::ICMP, 1, 0, &[&[3, 4, 0, 0, 0, 0, 0, 0][..], &tcp(80, ACK)[14..]].concat()),
            4 => owner::announcement(v4().vip, CLIENT),
            5 => ipv6(&[], packet::TCP, vip, &segment(40_000, 80, SYN)),
            6 => ipv6(&[packet::TCP, 0, 0, 0, 0, 0, 0, 0], 60, vip, &segment(40_000, 80, SYN)),
            _ => owner::announcement(vip.into(), CLIENT),
        };
        for (at, byte) in changes {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        frame.truncate(length);
        let service = if is_v6 { v6() } else { v4() };
        let service = if every_port { Service { port: 0, ..service } } else { service };
        let (mut director, now) = director(service);
        let is_tagged = frame.get(12..14).is_some_and(|kind| matches!(kind, [0x81, 0] | [0x88, 0xa8]));
        if director.handle(&frame, OWN, now) != Verdict::Pass && !is_tagged {
            prop_assert!(filtered(&filter::program(&service), &frame, true), "{frame:?}");
        }
    }
}

#[test]
fn the_words_of_a_service_say_what_it_forwards_and_with_which_other_one_it_overlaps() {
    let every_port = Service { port: 0, transports: Transports::Udp, ..v6() };
    for service in [v4(), v6(), every_port] {
        let (director, _) = director(service);
        let mut words = director.service_words(OWN);
        assert_eq!(image::service_of(&words), None, "it lets all packets pass");
        words[0] = 1;
        assert_eq!(image::service_of(&words), Some(service));
    }
    let of = |port, transports| Service { port, transports, ..v4() };
    for (other, does) in [
        (v4(), true),
        (of(0, Transports::Udp), true),
        (of(81, Transports::Tcp), false),
        (Service { transports: Transports::Tcp, ..v6() }, false),
    ] {
        assert_eq!((v4().overlaps(&other), other.overlaps(&v4())), (does, does), "{other:?}");
    }
    assert!(!of(80, Transports::Tcp).overlaps(&of(80, Transports::Udp)));
}
