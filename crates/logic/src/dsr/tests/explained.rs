//! What is said of a decision, which is what is decided then.

use super::*;
use crate::dsr::explain::{Decision, Phase, Why};
use crate::dsr::packet::Transport;

fn flow(port: u16) -> Flow {
    let client = Ipv4Addr::new(192, 0, 2, 1).into();
    Flow { client, client_port: port, vip: v4().vip, port: 80, transport: Transport::Tcp }
}

#[test]
fn what_is_explained_is_what_is_done() {
    let (mut director, now) = director(v4());
    let mut whys = std::collections::HashSet::new();
    for round in 0..3 {
        for port in 1..300 {
            let explained = director.explain(&flow(port), now);
            // The port is used again by a new connection after an old one.
            let done = sent(&mut director, &tcp(port, if round == 0 { SYN } else { ACK }), now);
            match explained.decision {
                Decision::Forward { backend, to, why } => {
                    whys.insert(why as u8);
                    assert_eq!((Some(to), Some(&*backend)), (done.map(mac), done.map(|at| NAMES[at])));
                }
                other => assert_eq!(done, None, "{other:?}"),
            }
        }
        match round {
            0 => director.set_backends(&standing(4, Standing::Down)),
            1 => assert!(director.forget_mac("b5")),
            _ => {}
        }
    }
    assert_eq!(whys.len(), 3, "known, moved, table");
    let moved = (1..300).map(|port| director.explain(&flow(port), now));
    let moved: Vec<_> = moved.filter(|it| it.home.as_deref() == Some("b4")).collect();
    assert!(!moved.is_empty() && moved.iter().all(|it| it.table.as_deref() != Some("b4")));
    let without = director.explain(&flow(1), now).backends.into_iter().find(|it| it.name == "b5").unwrap();
    assert_eq!((without.mac, without.standing), (None, Some(Standing::Open)));
    assert!(without.flows > 0);
}

#[test]
fn an_explanation_says_how_long_a_flow_is_silent_and_remembers_none() {
    let (mut director, now) = director(v4());
    let first = director.explain(&flow(1), now);
    assert_eq!((first.known, director.flows()), (None, 0));
    assert!(matches!(first.decision, Decision::Forward { why: Why::Table, .. }));
    sent(&mut director, &tcp(1, SYN), now);
    let later = now + Duration::from_secs(5);
    let known = director.explain(&flow(1), later).known.unwrap();
    assert_eq!((known.phase, known.silent), (Phase::Open, Duration::from_secs(5)));
    sent(&mut director, &tcp(1, FIN), later);
    assert_eq!(director.explain(&flow(1), later).known.unwrap().phase, Phase::Closing);
}
