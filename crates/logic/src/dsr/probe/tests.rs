use super::*;
use crate::dsr::packet::{Content, parse};
use crate::health::dns::Name;

const OWN: Mac = [2, 0, 0, 0, 0, 1];
const A: Mac = [2, 0, 0, 0, 1, 1];
const B: Mac = [2, 0, 0, 0, 1, 2];
const RULE: Rule =
    Rule { interval: Duration::from_secs(2), timeout: Duration::from_secs(1), rise: 2, fall: 2 };

#[allow(clippy::disallowed_methods, reason = "a time must begin somewhere")]
fn moment(millis: u64) -> Moment {
    thread_local!(static START: Instant = Instant::now());
    let after = Duration::from_millis(millis);
    Moment { now: START.with(|start| *start) + after, at: SystemTime::UNIX_EPOCH + after }
}

fn ends(own: &str, vip: &str) -> Ends {
    Ends { own: own.parse().unwrap(), own_mac: OWN, vip: vip.parse().unwrap() }
}

fn v4() -> Ends {
    ends("192.0.2.1:40000", "192.0.2.10:80")
}

fn v6() -> Ends {
    ends("[2001:db8::1]:40000", "[2001:db8::10]:80")
}

/// The other end.
fn server(ends: Ends) -> Ends {
    Ends { own: ends.vip, own_mac: A, vip: ends.own }
}

/// The ones' complement sum of a packet with its pseudo header: all ones, if its checksum is right.
fn sum(frame: &[u8]) -> u16 {
    let is_v4 = frame[12] == 8;
    let (addresses, protocol, payload) = match is_v4 {
        true => (&frame[26..34], frame[23], &frame[34..]),
        false => (&frame[22..54], frame[20], &frame[54..]),
    };
    let mut all = addresses.to_vec();
    all.extend((payload.len() as u32).to_be_bytes());
    all.extend([0, 0, 0, protocol]);
    all.extend(payload);
    if all.len() % 2 == 1 {
        all.push(0);
    }
    let mut sum: u32 = all.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[test]
fn probes_are_packets_of_one_hop_with_right_checksums() {
    for ends in [v4(), v6()] {
        let frames = [
            ends.syn(A, 7),
            ends.reset(A, 8),
            ends.datagram(A, b"odd").unwrap(),
            ends.datagram(A, b"").unwrap(),
            ends.back(A, &Back::Data { sequence: 8, acknowledged: 9, payload: b"odd".to_vec() }),
            ends.back(A, &Back::Data { sequence: 8, acknowledged: 9, payload: Vec::new() }),
        ];
        for frame in frames {
            assert_eq!((&frame[..6], &frame[6..12]), (&A[..], &OWN[..]));
            assert_eq!(sum(&frame), 0xffff, "{frame:?}");
            let hops = if ends.own.is_ipv4() { frame[22] } else { frame[21] };
            assert_eq!(hops, 1);
            let Content::Segment(segment) = parse(&frame).unwrap().content else { panic!("no segment") };
            let flow = segment.flow;
            assert_eq!((flow.client, flow.client_port), (ends.own.ip(), ends.own.port()));
            assert_eq!((flow.vip, flow.port), (ends.vip.ip(), ends.vip.port()));
            if ends.own.is_ipv4() {
                let header: u32 =
                    frame[14..34].chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
                assert_eq!((header & 0xffff) + (header >> 16), 0xffff, "the checksum of the header");
            }
        }
        assert_eq!(ends.datagram(A, &[0; 65_536]), None);
    }
}

#[test]
fn replies_are_read_and_other_frames_are_not() {
    for ends in [v4(), v6()] {
        let other = server(ends);
        let flag = |frame: Vec<u8>, flags: u8, acknowledged: u32| {
            let mut frame = frame;
            let at = if ends.own.is_ipv4() { 34 } else { 54 };
            frame[at + 13] = flags;
            frame[at + 8..at + 12].copy_from_slice(&u32::to_be_bytes(acknowledged));
            frame
        };
        let reply = |said| {
            let sequence = if matches!(said, Said::Datagram(_)) { 0 } else { 1 };
            Some(Reply { from: A, port: 80, sequence, said })
        };
        let accepted = flag(other.syn(OWN, 1), 0x12, 8);
        assert_eq!(ends.read(&accepted), reply(Said::Accepted(8)));
        assert_eq!(ends.read(&flag(other.syn(OWN, 1), 0x14, 8)), reply(Said::Refused(8)));
        assert_eq!(ends.read(&other.datagram(OWN, b"yes").unwrap()), reply(Said::Datagram(b"yes")));
        assert_eq!(ends.read(&other.syn(OWN, 1)), None, "a SYN");
        let ack = Said::Segment { acknowledged: 8, payload: b"", is_last: false };
        assert_eq!(ends.read(&flag(other.syn(OWN, 1), 0x10, 8)), reply(ack));
        let data = Back::Data { sequence: 1, acknowledged: 9, payload: b"some".to_vec() };
        let some = Said::Segment { acknowledged: 9, payload: b"some", is_last: false };
        assert_eq!(ends.read(&other.back(OWN, &data)), reply(some));
        let last = Said::Segment { acknowledged: 9, payload: b"some", is_last: true };
        assert_eq!(ends.read(&flag(other.back(OWN, &data), 0x11, 9)), reply(last));
        assert_eq!(ends.read(&ends.syn(A, 7)), None, "our own one");
        let mut port = ends;
        port.own.set_port(40_001);
        assert_eq!(port.read(&accepted), None);
        for length in 0..accepted.len() {
            ends.read(&accepted[..length]);
        }
    }
}

/// An ICMP error about our datagram.
fn error(ends: Ends, kind: [u8; 2]) -> Vec<u8> {
    let sent = ends.datagram(A, b"question").unwrap();
    let mut error = server(ends).datagram(OWN, &[]).unwrap();
    let (header, protocol, at) = if ends.own.is_ipv4() {
        (34, crate::dsr::packet::ICMP, 23)
    } else {
        (54, crate::dsr::packet::ICMPV6, 20)
    };
    error.truncate(header);
    error[at] = protocol;
    error.extend([kind[0], kind[1], 0, 0, 0, 0, 0, 0]);
    error.extend(&sent[14..]);
    let (at, before) = if ends.own.is_ipv4() { (16, 14) } else { (18, 54) };
    let length = (error.len() - before) as u16;
    error[at..at + 2].copy_from_slice(&length.to_be_bytes());
    error
}

#[test]
fn errors_tell_a_closed_port_from_a_server_that_lacks_the_address_and_from_a_filter() {
    let all = [
        (v4(), [3, 3], Said::Unreachable),
        (v4(), [11, 0], Said::SentOn),
        (v4(), [3, 13], Said::Rejected),
        (v4(), [3, 1], Said::Rejected),
        (v6(), [1, 4], Said::Unreachable),
        (v6(), [3, 0], Said::SentOn),
        (v6(), [1, 1], Said::Rejected),
    ];
    for (ends, kind, said) in all {
        let reply = Reply { from: A, port: 80, sequence: 0, said };
        assert_eq!(ends.read(&error(ends, kind)), Some(reply), "{kind:?}");
    }
    for (transport, said, text) in [
        (
            Transport::Tcp,
            Said::SentOn,
            "it sends packets to 192.0.2.10:80 on like a router: its loopback lacks the address",
        ),
        (Transport::Tcp, Said::Unreachable, "a filter rejects packets to 192.0.2.10:80"),
        (Transport::Udp, Said::Unreachable, "no process listens on 192.0.2.10:80"),
        (Transport::Udp, Said::Rejected, "a filter rejects packets to 192.0.2.10:80"),
    ] {
        let mut prober =
            prober(Check::Datagram { send: b"ping"[..].into(), expect: b""[..].into() }, transport);
        assert!(prober.ask(&name(1), A, 80, moment(0).now, 1).is_some());
        let change = prober.handle(&reply(A, said), moment(1), 0.5).unwrap();
        assert_eq!((change.event, change.cause.to_string()), (Event::WentDown, text.to_owned()));
    }
}

fn prober(check: Check, transport: Transport) -> Prober {
    Prober::new(check, transport, RULE, "192.0.2.10".parse().unwrap())
}

fn name(backend: u8) -> Arc<str> {
    format!("b{backend}").into()
}

fn reply(from: Mac, said: Said<'_>) -> Reply<'_> {
    Reply { from, port: 80, sequence: 0, said }
}

#[test]
fn the_transport_follows_from_the_service_and_the_check() {
    let dns = Check::Dns { name: Name::new("example.org").unwrap() };
    for (transports, check, expected) in [
        (Transports::Tcp, &Check::Tcp, Some(Transport::Tcp)),
        (Transports::Tcp, &dns, Some(Transport::Tcp)),
        (Transports::Udp, &Check::Tcp, None),
        (Transports::Udp, &dns, Some(Transport::Udp)),
        (Transports::TcpAndUdp, &Check::Tcp, Some(Transport::Tcp)),
        (Transports::TcpAndUdp, &dns, Some(Transport::Udp)),
    ] {
        assert_eq!(transport(transports, check), expected, "{transports:?} {check:?}");
    }
}

#[test]
fn a_backend_that_does_not_answer_is_down_and_returns_by_the_rule_of_the_check() {
    let mut prober = prober(Check::Tcp, Transport::Tcp);
    let ask = |prober: &mut Prober, millis| prober.ask(&name(1), A, 80, moment(millis).now, 41);
    let expire = |prober: &mut Prober, millis| prober.expire(moment(millis), 0.5);
    let accept = |prober: &mut Prober, millis| {
        prober.handle(&reply(A, Said::Accepted(42)), moment(millis), 0.5).map(|change| change.event)
    };
    assert_eq!(ask(&mut prober, 0), Some(Question::Syn { sequence: 41 }));
    assert_eq!(ask(&mut prober, 10), None, "one at a time");
    assert_eq!(accept(&mut prober, 20), Some(Event::WentUp));
    assert_eq!((ask(&mut prober, 2010), accept(&mut prober, 2011)), (None, None), "it was not asked");
    assert_eq!(ask(&mut prober, 2020), Some(Question::Syn { sequence: 41 }), "the same one again");
    assert_eq!(expire(&mut prober, 3019), Expired::None);
    assert_eq!(expire(&mut prober, 3020), Expired::One(None), "the first failure in a row");
    assert!(!prober.is_down("b1") && ask(&mut prober, 5020).is_some());
    let Expired::One(Some(change)) = expire(&mut prober, 6020) else { panic!("no change") };
    assert_eq!((change.event, &*change.backend), (Event::WentDown, "b1"));
    assert_eq!(
        change.cause.to_string(),
        "no answer from 192.0.2.10:80 within 1 s: its loopback lacks the address, or a filter drops the packets"
    );
    assert!(prober.is_down("b1") && ask(&mut prober, 8020).is_some());
    assert_eq!(prober.overdue(moment(9020).now), [name(1)]);
    prober.set_own("b1", OwnAddress::Fails);
    let Expired::One(Some(change)) = expire(&mut prober, 9020) else {
        panic!("the reason is another one now")
    };
    let cause = change.cause.to_string();
    assert!(
        change.event == Event::WentDown && cause.contains("its own address fails the check, too"),
        "{cause}"
    );
    assert!(ask(&mut prober, 12_020).is_some());
    assert_eq!(expire(&mut prober, 13_020), Expired::One(None), "that is known");
    assert!(ask(&mut prober, 16_020).is_some());
    prober.set_own("b1", OwnAddress::Answers);
    prober.set_mode(Mode::Ipip);
    let Expired::One(Some(change)) = expire(&mut prober, 17_020) else {
        panic!("it lacks the address again")
    };
    let cause = change.cause.to_string();
    assert!(cause.contains("it has no tunnel device that is up, its loopback lacks the address"), "{cause}");
    assert!(ask(&mut prober, 20_020).is_some());
    prober.forget_asked();
    assert_eq!(expire(&mut prober, 30_000), Expired::None, "without a link no backend is blamed");
    assert!(ask(&mut prober, 30_020).is_some());
    let accept = |prober: &mut Prober, millis: u64| accept(prober, millis + 22_000);
    let ask = |prober: &mut Prober, millis: u64| ask(prober, millis + 22_000);
    assert_eq!(accept(&mut prober, 8030), None);
    assert!(ask(&mut prober, 10_030).is_some());
    assert_eq!(accept(&mut prober, 10_040), Some(Event::WentUp));
    prober.retain(&HashSet::new());
    assert!(prober.health("b1").is_none());
}

#[test]
fn open_questions_have_numbers_of_their_own_and_those_of_ended_ones_are_used_again() {
    let mut prober = prober(Check::Dns { name: Name::new("example.org").unwrap() }, Transport::Udp);
    let ids = |prober: &Prober| {
        let all = prober.backends.values().filter_map(|probed| probed.asked.as_ref().map(|asked| asked.id));
        all.collect::<HashSet<_>>()
    };
    // The same number is drawn each time.
    for backend in 0..200 {
        assert!(prober.ask(&name(backend), A, 53, moment(0).now, 7 << 32).is_some());
    }
    assert_eq!(ids(&prober), (7..207).collect());
    prober.forget_asked();
    for backend in 200..210 {
        assert!(prober.ask(&name(backend), A, 53, moment(0).now, 7 << 32).is_some());
    }
    assert_eq!(ids(&prober), (7..17).collect());
}

#[test]
fn a_reply_is_for_the_backend_whose_sequence_number_it_has() {
    let mut prober = prober(Check::Tcp, Transport::Tcp);
    assert!(prober.ask(&name(1), A, 80, moment(0).now, 100).is_some());
    assert!(prober.ask(&name(2), B, 80, moment(0).now, 200).is_some());
    let refused = reply(A, Said::Refused(201));
    let change = prober.handle(&refused, moment(5), 0.5).unwrap();
    assert_eq!((&*change.backend, change.event), ("b2", Event::WentDown), "the first verdict decides");
    assert_eq!(change.cause.to_string(), "no process listens on 192.0.2.10:80");
    assert_eq!(prober.handle(&refused, moment(6), 0.5), None, "there is no question any more");
    let other_port = Reply { port: 81, ..reply(A, Said::Accepted(101)) };
    assert_eq!(prober.handle(&other_port, moment(6), 0.5), None);
    assert_eq!(prober.handle(&reply(B, Said::Accepted(102)), moment(6), 0.5), None);
    assert!(prober.handle(&reply(B, Said::Accepted(101)), moment(6), 0.5).is_some(), "from any card of it");
}

#[test]
fn datagrams_are_told_apart_by_their_number_or_by_their_sender() {
    let asked = Name::new("example.org").unwrap();
    let mut prober = prober(Check::Dns { name: asked.clone() }, Transport::Udp);
    let ask =
        |prober: &mut Prober, backend, mac| match prober.ask(&name(backend), mac, 53, moment(0).now, 7 << 32)
        {
            Some(Question::Datagram(question)) => u16::from_be_bytes([question[0], question[1]]),
            other => panic!("{other:?}"),
        };
    let ids = (ask(&mut prober, 1, A), ask(&mut prober, 2, B));
    assert_eq!(ids, (7, 8), "two open questions have two numbers");
    let answer = |id| {
        let mut answer = asked.question(id);
        answer[2] |= 0x80;
        answer
    };
    let (second, neither) = (answer(8), answer(9));
    let of = |from, datagram| Reply { from, port: 53, sequence: 0, said: Said::Datagram(datagram) };
    assert_eq!(prober.handle(&of(A, &neither), moment(1), 0.5), None);
    assert_eq!(&*prober.handle(&of(A, &second), moment(1), 0.5).unwrap().backend, "b2");
    let Expired::One(Some(change)) = prober.expire(moment(1000), 0.5) else { panic!("no change") };
    assert_eq!((&*change.backend, change.cause), ("b1", Cause::WrongReply));

    let check = Check::Datagram { send: b"ping"[..].into(), expect: b"pong"[..].into() };
    let mut prober = self::prober(check, Transport::Udp);
    for (backend, mac) in [(1, A), (2, B)] {
        let question = prober.ask(&name(backend), mac, 53, moment(0).now, 0);
        assert_eq!(question, Some(Question::Datagram(b"ping".to_vec())));
    }
    assert_eq!(&*prober.handle(&of(B, b"pong!"), moment(1), 0.5).unwrap().backend, "b2");
    let unreachable = Reply { from: A, port: 53, sequence: 0, said: Said::Unreachable };
    assert_eq!(&*prober.handle(&unreachable, moment(1), 0.5).unwrap().backend, "b1");
}

#[test]
fn a_reload_keeps_what_is_known_unless_it_asks_in_another_way() {
    let mut prober = prober(Check::Tcp, Transport::Tcp);
    prober.ask(&name(1), A, 80, moment(0).now, 1);
    prober.handle(&reply(A, Said::Refused(2)), moment(1), 0.5);
    let vip = "192.0.2.10".parse().unwrap();
    let faster = Rule { interval: Duration::from_millis(500), ..RULE };
    assert!(prober.adopt(&Check::Tcp, Transport::Tcp, faster, vip, moment(10).now) && prober.is_down("b1"));
    assert!(prober.ask(&name(1), A, 80, moment(10).now, 1).is_some(), "with the new interval");
    let other = "192.0.2.11".parse().unwrap();
    assert!(!prober.adopt(&Check::Tcp, Transport::Tcp, faster, other, moment(10).now));
}

fn http() -> Prober {
    let check = Check::Http {
        path: "/".into(),
        host: None,
        method: crate::health::CheckMethod::Get,
        expect: crate::health::StatusRange::default(),
    };
    prober(check, Transport::Tcp)
}

/// A segment of a server in whose SYN was this number.
fn said(from: Mac, sequence: u32, acknowledged: u32, payload: &[u8]) -> Reply<'_> {
    let said = Said::Segment { acknowledged, payload, is_last: false };
    Reply { from, port: 80, sequence, said }
}

#[test]
fn an_http_check_asks_through_the_address_and_its_answer_is_the_verdict() {
    let mut prober = http();
    assert_eq!(prober.ask(&name(1), A, 80, moment(0).now, 41), Some(Question::Syn { sequence: 41 }));
    let accepted = Reply { sequence: 700, ..reply(A, Said::Accepted(42)) };
    let mut length = 0;
    for _ in 0..2 {
        // The server has not seen the request, or it says this twice.
        let heard = prober.hear(&accepted, moment(1), 0.5);
        let Some((Some(to), Back::Data { sequence: 42, acknowledged: 701, payload })) = heard.back else {
            panic!("{heard:?}")
        };
        assert!(
            heard.change.is_none() && &*to == "b1" && payload.starts_with(b"GET / HTTP/1.1\r\nHost: b1\r\n")
        );
        length = payload.len() as u32;
    }
    let end = 42 + length;
    assert_eq!(prober.hear(&said(A, 701, end, b""), moment(2), 0.5), Heard::default());
    assert_eq!(prober.hear(&said(A, 701, end + 1, b"HTTP"), moment(2), 0.5), Heard::default(), "another one");
    let heard = prober.hear(&said(B, 701, end, b"HTTP/1.1 200 OK\r\n\r\n"), moment(3), 0.5);
    assert_eq!(heard.change.map(|change| change.event), Some(Event::WentUp), "also by another way back");
    assert_eq!(
        heard.back,
        Some((Some(name(1)), Back::Data { sequence: end, acknowledged: 720, payload: Vec::new() }))
    );
    let mut last = said(A, 720, end, b"body");
    if let Said::Segment { is_last, .. } = &mut last.said {
        *is_last = true;
    }
    let heard = prober.hear(&last, moment(4), 0.5);
    assert_eq!(heard, Heard { change: None, back: Some((Some(name(1)), Back::Reset { sequence: end })) });
    assert_eq!(prober.hear(&last, moment(5), 0.5), Heard::default(), "it is over");
}

#[test]
fn an_http_check_that_fails_through_the_address_says_why() {
    type Fail<'a> = &'a dyn Fn(&mut Prober, u32) -> Heard;
    let causes: [(&str, Fail<'_>); 3] = [
        ("HTTP 503", &|prober, end| {
            prober.hear(&said(A, 701, end, b"HTTP/1.1 503 No\r\n\r\n"), moment(3), 0.5)
        }),
        ("connection closed before an answer came", &|prober, _| {
            let reset = Reply { sequence: 701, ..reply(A, Said::Refused(0)) };
            prober.hear(&reset, moment(3), 0.5)
        }),
        ("connected, but no answer within 1 s", &|prober, _| match prober.expire(moment(1000), 0.5) {
            Expired::One(change) => Heard { change, back: None },
            Expired::None => Heard::default(),
        }),
    ];
    for (expected, fail) in causes {
        let mut prober = http();
        prober.ask(&name(1), A, 80, moment(0).now, 41);
        let accepted = Reply { sequence: 700, ..reply(A, Said::Accepted(42)) };
        let Some((_, Back::Data { payload, .. })) = prober.hear(&accepted, moment(1), 0.5).back else {
            panic!("no request")
        };
        let change = fail(&mut prober, 42 + payload.len() as u32).change.unwrap();
        assert_eq!(change.event, Event::WentDown);
        assert!(change.cause.to_string().contains(expected), "{}", change.cause);
        // What is left of it at the server is ended, and the next one may begin.
        assert!(prober.ask(&name(1), A, 80, moment(4000).now, 41).is_some());
        let left = prober.hear(&said(A, 800, 42 + payload.len() as u32, b""), moment(4001), 0.5);
        let reset = Back::Reset { sequence: 42 + payload.len() as u32 };
        assert_eq!(left, Heard { change: None, back: Some((Some(name(1)), reset)) });
    }
}

#[test]
fn a_connection_that_nobody_waits_for_is_reset() {
    for mut prober in [http(), prober(Check::Tcp, Transport::Tcp)] {
        let heard = prober.hear(&reply(A, Said::Accepted(42)), moment(1), 0.5);
        assert_eq!(heard, Heard { change: None, back: Some((None, Back::Reset { sequence: 42 })) });
    }
    let mut prober = prober(Check::Tcp, Transport::Tcp);
    prober.ask(&name(1), A, 80, moment(0).now, 41);
    let heard = prober.hear(&reply(A, Said::Accepted(42)), moment(1), 0.5);
    assert_eq!(heard.back, Some((Some(name(1)), Back::Reset { sequence: 42 })));
    assert_eq!(heard.change.map(|change| change.event), Some(Event::WentUp));
}
