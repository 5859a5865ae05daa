//! What a trace tells of a frame, which is what is decided about it.

use super::*;
use crate::dsr::trace::{Memory, Told, Traced, Wanted, verdicts};
use crate::dsr::tunnel::{Cutting, Offload};

fn told(director: &mut Director, frame: &[u8], now: Instant) -> Told {
    director.tell(frame, OWN, Memory::Here(now), &Offload::default())
}

/// Tells and decides, and compares both.
fn agree(director: &mut Director, frame: &[u8], now: Instant) -> Told {
    let told = told(director, frame, now);
    let (verdict, backend) = match director.handle(frame, OWN, now) {
        Verdict::Forward { backend, .. } => (Traced::Forwarded, director.name(backend).map(str::to_owned)),
        Verdict::Drop(why) => {
            assert_eq!(told.reason, Some(why.word()));
            (Traced::Dropped, told.backend.clone())
        }
        Verdict::Pass | Verdict::Conflict(_) => (Traced::Passed, None),
        Verdict::Answer(_) => (Traced::Answered, None),
    };
    assert_eq!((told.verdict, &told.backend), (verdict, &backend), "{told:?}");
    told
}

#[test]
fn what_is_told_is_what_is_done_with_every_kind_of_frame() {
    let (mut director, now) = director(v4());
    let mut sentences = std::collections::BTreeSet::new();
    for round in 0..3 {
        for port in 1..200 {
            for flags in [SYN, ACK, FIN, SYN] {
                sentences.insert(
                    agree(&mut director, &tcp(port, flags), now)
                        .sentence
                        .split(": ")
                        .last()
                        .unwrap()
                        .to_owned(),
                );
            }
            agree(&mut director, &udp(port, 80), now);
            agree(&mut director, &udp(port, 81), now);
            // The first of several fragments, and a later one; and one without its first.
            let first = ipv4(packet::TCP, 1, 0x2000, &segment(port, 80, ACK));
            agree(&mut director, &first, now);
            agree(&mut director, &ipv4(packet::TCP, 1, 0x0010, &[0; 16]), now);
            let mut unknown = ipv4(packet::TCP, 1, 0x0010, &[0; 16]);
            unknown[18..20].copy_from_slice(&[port as u8, 0xee]);
            agree(&mut director, &unknown, now);
        }
        director.set_backends(&standing(round, Standing::Down));
        if round == 1 {
            director.forget_mac(NAMES[7]);
        }
    }
    for length in 0..60 {
        agree(&mut director, &tcp(1, SYN)[..length.min(54)], now);
    }
    for part in ["the flow is remembered", "the table has this one"] {
        assert!(sentences.iter().any(|one| one.contains(part)), "{part}: {sentences:?}");
    }
    director.set_backends(&[]);
    let dropped = agree(&mut director, &tcp(9_999, SYN), now);
    assert_eq!(dropped.reason, Some("packet-no-backend"));
}

#[test]
fn a_trace_shows_only_what_is_wanted() {
    let (mut director, now) = director(v4());
    let forwarded = told(&mut director, &tcp(40_000, SYN), now);
    let passed = told(&mut director, &udp(40_000, 81), now);
    director.set_backends(&[]);
    let dropped = told(&mut director, &tcp(40_000, SYN), now);
    let network = |text: &str| Some([text.parse().unwrap()].into_iter().collect());
    let seen = |wanted: &Wanted| [&forwarded, &passed, &dropped].map(|told| wanted.has(told));
    assert_eq!(seen(&Wanted::default()), [true; 3]);
    for (from, is_seen) in
        [("192.0.2.0/24", true), ("192.0.2.1", true), ("192.0.2.2", false), ("::/0", false)]
    {
        assert_eq!(seen(&Wanted { from: network(from), ..Wanted::default() }), [is_seen; 3], "{from}");
    }
    let of = |word: &str| seen(&Wanted { verdict: Some(word.to_owned()), ..Wanted::default() });
    assert_eq!(of("forwarded"), [true, false, false]);
    assert_eq!(of("passed"), [false, true, false]);
    assert_eq!((of("dropped"), of("packet-no-backend")), ([false, false, true], [false, false, true]));
    assert!(verdicts().contains(&"packet-no-backend") && verdicts().contains(&"answered"));
    let backend = |name: &str| Wanted { backend: Some(name.to_owned()), ..Wanted::default() };
    assert_eq!(seen(&backend(forwarded.backend.as_ref().unwrap())), [true, false, false]);
    assert_eq!(seen(&backend("b99")), [false; 3]);
    let service = |name: &str| Wanted { service: Some(name.to_owned()), ..Wanted::default() };
    for (name, has) in [("web", true), ("192.0.2.10:80", true), ("other", false)] {
        assert_eq!(service(name).has_service("web", "192.0.2.10:80"), has, "{name}");
    }
}

#[test]
fn what_does_not_fit_into_a_tunnel_is_told_as_dropped_with_the_reason() {
    let (mut director, now) = director(v4());
    director.set_room(Some(100));
    let long = ipv4(packet::TCP, 1, 0, &[&segment(9, 80, ACK)[..], &[0; 90]].concat());
    let offload = |cut| Offload { sum: None, cut };
    let tell = |director: &mut Director, memory, frame: &[u8], cut| {
        let told = director.tell(frame, OWN, memory, &offload(cut));
        (told.verdict, told.reason)
    };
    let dropped = |why: Dropped| (Traced::Dropped, Some(why.word()));
    let here = Memory::Here(now);
    assert_eq!(tell(&mut director, here, &long, Cutting::No), dropped(Dropped::NoBackend), "no way");
    for name in NAMES {
        let ends = [9, 8].map(|last| IpAddr::from([192, 0, 2, last]));
        director.set_tunnel(name, Tunnel::new(ends[0], ends[1]));
    }
    let kernel = Memory::Kernel { entry: None, now: 0 };
    for memory in [here, kernel] {
        let mut of = |frame: &[u8], cut| tell(&mut director, memory, frame, cut);
        assert_eq!(of(&tcp(9, SYN), Cutting::No), (Traced::Forwarded, None));
        assert_eq!(of(&long, Cutting::No), dropped(Dropped::TooLong));
        assert_eq!(of(&long, Cutting::Tcp(40)), (Traced::Forwarded, None), "its segments fit");
        assert_eq!(of(&long, Cutting::Other), dropped(Dropped::NotSegmented));
    }
}

#[test]
fn a_question_is_answered_by_the_owner_of_the_address_alone() {
    let (mut director, now) = director(v4());
    let IpAddr::V4(vip) = v4().vip else { panic!() };
    let question = |asker: [u8; 4]| {
        let mut frame = vec![0xff; 6];
        frame.extend(CLIENT);
        frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        frame.extend(CLIENT);
        frame.extend(asker);
        frame.extend([0; 6]);
        frame.extend(vip.octets());
        frame
    };
    let asked = agree(&mut director, &question([198, 51, 100, 1]), now);
    assert_eq!(asked.verdict, Traced::Answered);
    let standby = asked.on_standby();
    assert!(standby.verdict == Traced::Passed && standby.sentence.contains("standby"), "{standby:?}");
    let forwarded = agree(&mut director, &tcp(1, SYN), now);
    assert_eq!(forwarded.clone().on_standby(), forwarded);
}
