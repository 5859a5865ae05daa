use proptest::prelude::*;

use super::frames::{Asker, Heard, filter, heard, packet, question};
use super::*;
use crate::dsr::filter::Instruction;
use crate::dsr::finding::State;
use crate::dsr::packet::{Content, ICMP, ICMPV6, TCP, UDP, parse};

const OWN: Mac = [2, 0, 0, 0, 0, 1];
const SERVER: Mac = [2, 0, 0, 0, 0, 2];
const STRANGER: Mac = [2, 0, 0, 0, 0, 3];
const PORT: u16 = 61_007;
const NUMBER: u32 = u32::MAX;
const VIPS: [&str; 2] = ["192.0.2.10:80", "[2001:db8::10]:80"];

fn vip(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn own(vip: SocketAddr) -> Asker {
    let ip = if vip.is_ipv4() { "192.0.2.2" } else { "2001:db8::2" };
    Asker { mac: OWN, ip: ip.parse().unwrap() }
}

/// Two backends; the second one never answers.
fn examination(text: &str, transports: Transports) -> Examination {
    let asker = own(vip("192.0.2.10:80")).ip;
    let port = if vip(text).port() == 0 { 8080 } else { vip(text).port() };
    let backend = |name: &str, ip: &str| Target {
        name: name.to_owned(),
        ip: ip.parse().unwrap(),
        port,
        asker,
        leg: Leg::Near,
    };
    let backends = vec![backend("a", "192.0.2.21"), backend("b", "192.0.2.22")];
    let service = Service { interface: "eth0".to_owned(), vip: vip(text), transports, backends };
    Examination::new(service, own(vip(text)), 1500, (PORT, NUMBER))
}

/// A packet from the VIP, as a server with it sends them.
fn from(vip: SocketAddr, protocol: u8, body: &[u8]) -> Vec<u8> {
    packet(&Asker { mac: SERVER, ip: vip.ip() }, OWN, own(vip).ip, (protocol, 64), body.to_vec()).unwrap()
}

fn segment(vip: SocketAddr, to: u16, acknowledged: u32, flags: u8) -> Vec<u8> {
    let mut body =
        [&vip.port().to_be_bytes()[..], &to.to_be_bytes(), &[0; 4], &acknowledged.to_be_bytes()].concat();
    body.extend([0x50, flags, 0, 0, 0, 0, 0, 0]);
    from(vip, TCP, &body)
}

fn echoed(vip: SocketAddr, id: u8, sequence: u8) -> Vec<u8> {
    let (protocol, kind) = if vip.is_ipv4() { (ICMP, 0) } else { (ICMPV6, 129) };
    from(vip, protocol, &[kind, 0, 0, 0, 0, id, 0, sequence])
}

/// That no process has the port to which this frame was sent.
fn unreachable(vip: SocketAddr, of: &[u8]) -> Vec<u8> {
    let (protocol, kind) = if vip.is_ipv4() { (ICMP, [3, 3]) } else { (ICMPV6, [1, 4]) };
    from(vip, protocol, &[&kind[..], &[0; 6], &of[14..]].concat())
}

fn claim(ip: &str, mac: Mac) -> Vec<u8> {
    crate::dsr::owner::announcement(ip.parse().unwrap(), mac)
}

fn states(found: &[Finding]) -> Vec<(&str, State)> {
    found.iter().map(|one| (one.check, one.state)).collect()
}

fn text_of<'a>(found: &'a [Finding], check: &str) -> &'a str {
    &found.iter().find(|one| one.check == check).unwrap_or_else(|| panic!("{found:?}")).text
}

/// Sum of all words of a frame above IP with its pseudo header, which is all ones if the checksum is right.
fn is_right(frame: &[u8]) -> bool {
    let ip = &frame[14..];
    let (pseudo, body, protocol) = match ip[0] >> 4 {
        4 => (&ip[12..20], &ip[20..], ip[9]),
        _ => (&ip[8..40], &ip[40..], ip[6]),
    };
    let mut sum = if protocol == ICMP { 0 } else { u64::from(protocol) + body.len() as u64 };
    let pseudo = if protocol == ICMP { &[] } else { pseudo };
    for word in pseudo.chunks(2).chain(body.chunks(2)) {
        sum += u64::from(word[0]) << 8 | u64::from(word.get(1).copied().unwrap_or(0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum == 0xffff
}

#[test]
fn questions_are_frames_that_other_machines_understand() {
    for text in VIPS {
        let (vip, asker) = (vip(text), own(vip(text)));
        let frame = question(&asker, vip.ip()).unwrap();
        let Some(Content::Question(asked)) = parse(&frame).map(|packet| packet.content) else {
            panic!("{frame:x?}")
        };
        assert_eq!((asked.target, asked.asker, asked.asker_mac), (vip.ip(), asker.ip, OWN));
        assert!(vip.is_ipv4() || is_right(&frame));
        let mut examination = examination(text, Transports::TcpAndUdp);
        assert!(examination.questions(Step::Packets).is_empty(), "no backend is known");
        examination.handle(&claim("192.0.2.21", SERVER));
        let frames = examination.questions(Step::Packets);
        assert_eq!(frames.len(), 4);
        for frame in &frames {
            assert!(is_right(frame) && frame[..12] == [SERVER, OWN].concat(), "{frame:x?}");
            assert_eq!(frame[if vip.is_ipv4() { 22 } else { 21 }], 1, "hops: no server sends it on");
        }
        let lengths: Vec<_> = frames.iter().map(Vec::len).collect();
        assert_eq!(lengths[3], 1514, "as long as the MTU: {lengths:?}");
        for (frame, transport) in frames.iter().zip([Transport::Tcp, Transport::Udp]) {
            let Some(Content::Segment(segment)) = parse(frame).map(|packet| packet.content) else { panic!() };
            let flow = segment.flow;
            assert_eq!(
                (flow.client, flow.vip, flow.port, flow.transport),
                (asker.ip, vip.ip(), 80, transport)
            );
            assert!(segment.begins);
        }
    }
}

#[test]
fn a_backend_that_answers_everything_is_well_and_its_connection_is_ended() {
    for text in VIPS {
        let vip = vip(text);
        let mut examination = examination(text, Transports::TcpAndUdp);
        // Its address is asked by ARP also if the VIP is one of IPv6.
        examination.handle(&claim("192.0.2.21", SERVER));
        let udp = examination.questions(Step::Packets)[1].clone();
        let reset = examination.handle(&segment(vip, PORT, NUMBER.wrapping_add(1), 0x12)).unwrap();
        let Some(Content::Segment(ended)) = parse(&reset).map(|packet| packet.content) else { panic!() };
        assert!(ended.ends && is_right(&reset) && reset[..6] == SERVER);
        let numbers = if vip.is_ipv4() { 38 } else { 58 };
        assert_eq!(reset[numbers..numbers + 4], NUMBER.wrapping_add(1).to_be_bytes());
        assert!(!examination.is_done(Step::Packets));
        examination.handle(&unreachable(vip, &udp));
        examination.handle(&echoed(vip, 0, 0));
        examination.handle(&echoed(vip, 0, 1));
        assert!(examination.is_done(Step::Packets) && examination.questions(Step::Packets).is_empty());
        let found = examination.findings();
        assert_eq!(
            states(&found),
            [
                ("vip-owner", State::Ok),
                ("backend-neighbour", State::Ok),
                ("backend-tcp", State::Ok),
                ("backend-udp", State::Fault),
                ("backend-mtu", State::Ok),
                ("backend-neighbour", State::Fault),
                ("return-path", State::Unknown),
            ],
            "{found:#?}"
        );
        assert!(text_of(&found, "backend-udp").contains("no process there has UDP port 80"), "{found:#?}");
        assert!(found[5].text.starts_with("b: no machine on eth0 answers for 192.0.2.22"), "{found:#?}");
    }
}

/// The answer to the first SYN, with these options.
fn accepted(vip: SocketAddr, options: &[u8]) -> Vec<u8> {
    let head = [vip.port().to_be_bytes(), PORT.to_be_bytes()].concat();
    let mut body = [&head[..], &[0; 4], &NUMBER.wrapping_add(1).to_be_bytes()].concat();
    body.extend([0x50 + (options.len() as u8 / 4) * 16, 0x12, 0, 0, 0, 0, 0, 0]);
    from(vip, TCP, &[&body, options].concat())
}

#[test]
fn segments_that_are_announced_and_do_not_fit_are_told() {
    let said = |text: &str, mtu, options: &[u8]| {
        let vip = vip(text);
        let mut examination = examination(text, Transports::Tcp);
        examination.mtu = mtu;
        examination.handle(&claim("192.0.2.21", SERVER));
        examination.handle(&accepted(vip, options));
        (0..2).for_each(|sequence| drop(examination.handle(&echoed(vip, 0, sequence))));
        let found = examination.findings();
        let one = found.iter().find(|one| one.check == "backend-mtu").unwrap().clone();
        (one.state, one.text, one.mend)
    };
    let [v4, v6] = VIPS;
    for (text, mtu, options, state) in [
        (v4, 1500, &[2, 4, 5, 0xb4][..], State::Ok),
        (v4, 1499, &[2, 4, 5, 0xb4], State::Fault),
        // Behind other options, of which one has a wrong length, and beside none.
        (v4, 1499, &[1, 1, 4, 2, 2, 4, 5, 0xb4], State::Fault),
        (v4, 1499, &[1, 0, 4, 2, 2, 4, 5, 0xb4], State::Ok),
        (v4, 1499, &[9, 0, 2, 4, 5, 0xb4, 0, 0], State::Fault),
        (v4, 1499, &[3, 90, 2, 4], State::Ok),
        (v4, 1499, &[], State::Ok),
        // 1400 bytes, which are announced by a server with that MTU.
        (v4, 1400, &[2, 4, 5, 0x50], State::Ok),
        // Jumbo frames of the servers alone: no client of another network sends any.
        (v4, 1500, &[2, 4, 0x22, 0xd8], State::Ok),
        (v4, 1300, &[2, 4, 0x22, 0xd8], State::Fault),
        (v6, 1500, &[2, 4, 5, 0xa0], State::Ok),
        (v6, 1499, &[2, 4, 5, 0xa0], State::Fault),
    ] {
        let (found, words, mend) = said(text, mtu, options);
        assert_eq!(found, state, "{text} {mtu} {options:x?}: {words}");
        if found == State::Fault {
            assert!(words.contains(&format!("1500 bytes, and eth0 takes {mtu}: uploads stall")), "{words}");
            assert_eq!(mend, ["ip link set eth0 mtu 1500"]);
        }
    }
}

#[test]
fn silence_and_refusal_have_their_own_sentences() {
    for text in VIPS {
        let vip = vip(text);
        let known = || {
            let mut examination = examination(text, Transports::Tcp);
            examination.handle(&claim("192.0.2.21", SERVER));
            examination
        };
        let silent = known().findings();
        assert!(
            text_of(&silent, "backend-tcp").contains("its loopback interface lacks the address, or a filter")
        );
        assert_eq!(
            silent[2].mend,
            [format!("penstock backend setup --vip {} --apply   # on 192.0.2.21", vip.ip())]
        );
        assert_eq!(silent[3].state, State::Unknown, "the MTU: {silent:#?}");
        let mut filtered = known();
        filtered.handle(&echoed(vip, 0, 0));
        let filtered = filtered.findings();
        assert!(text_of(&filtered, "backend-tcp").contains("drops connections to TCP port 80: a filter"));
        assert!(text_of(&filtered, "backend-mtu").contains("answers a short packet"), "{filtered:#?}");
        let mut refused = known();
        refused.handle(&segment(vip, PORT, NUMBER.wrapping_add(1), 0x14));
        assert!(text_of(&refused.findings(), "backend-tcp").contains("no process there has TCP port 80"));
        // Numbers of other connections are no answers.
        let mut other = known();
        assert_eq!(other.handle(&segment(vip, PORT, NUMBER.wrapping_add(9), 0x12)), None);
        assert_eq!(other.findings(), known().findings());
    }
}

#[test]
fn of_an_address_with_every_port_that_of_the_backend_is_asked() {
    let mut examination = examination("192.0.2.10:0", Transports::TcpAndUdp);
    examination.handle(&claim("192.0.2.21", SERVER));
    for frame in &examination.questions(Step::Packets)[..2] {
        let Some(Content::Segment(segment)) = parse(frame).map(|packet| packet.content) else { panic!() };
        assert_eq!(segment.flow.port, 8080);
    }
    let reset = examination.handle(&segment(vip("192.0.2.10:8080"), PORT, NUMBER.wrapping_add(1), 0x12));
    let Some(Content::Segment(ended)) = parse(&reset.unwrap()).map(|packet| packet.content) else { panic!() };
    assert!(ended.ends && ended.flow.port == 8080);
    let found = examination.findings();
    let text = text_of(&found, "backend-tcp");
    assert_eq!(text, "a takes TCP connections to 192.0.2.10:8080", "{found:#?}");
}

#[test]
fn who_else_answers_for_the_vip_is_named_as_a_backend_or_as_a_stranger() {
    for text in VIPS {
        let ip = vip(text).ip().to_string();
        let mut examination = examination(text, Transports::Tcp);
        examination.handle(&claim("192.0.2.21", SERVER));
        examination.handle(&claim(&ip, OWN));
        assert_eq!(examination.findings()[0].state, State::Ok, "our own claim");
        examination.handle(&claim(&ip, SERVER));
        let found = examination.findings();
        assert!(found[0].text.starts_with("the backend a (02:00:00:00:00:02) answers "), "{found:#?}");
        examination.handle(&claim(&ip, STRANGER));
        let found = examination.findings();
        assert!(found[0].text.contains("another machine (02:00:00:00:00:03) answers "), "{found:#?}");
        examination.handle(&claim("192.0.2.21", STRANGER));
        let found = examination.findings();
        assert!(found[1].text.contains("several machines answer for 192.0.2.21"), "{found:#?}");
    }
}

#[test]
fn one_other_balancer_may_answer_while_this_one_stands_by() {
    for text in VIPS {
        let ip = vip(text).ip().to_string();
        let mut examination = examination(text, Transports::Tcp);
        examination.stand_by("169.254.77.10".parse().unwrap());
        examination.handle(&claim("192.0.2.21", SERVER));
        let found = examination.findings().swap_remove(0);
        assert!(
            found.is_fault() && found.text.contains("no machine serves the clients"),
            "both stand by: {found:?}"
        );
        assert!(found.mend[1].starts_with("ip address add 169.254.77.10/32 dev lo"), "{found:?}");
        examination.handle(&claim(&ip, STRANGER));
        let found = examination.findings().swap_remove(0);
        assert!(found.state == State::Ok && found.text.contains("stands by: it does not have 169.254.77.10"));
        examination.handle(&claim(&ip, SERVER));
        assert!(examination.findings()[0].is_fault(), "a backend answers, too");
    }
}

#[test]
fn without_an_address_of_its_own_the_balancer_asks_what_it_can() {
    let mut examination = examination(VIPS[0], Transports::Tcp);
    examination.asker.ip = "0.0.0.0".parse().unwrap();
    examination.handle(&claim("192.0.2.21", SERVER));
    assert_eq!(examination.questions(Step::Owners).len(), 3);
    assert!(examination.questions(Step::Packets).is_empty() && examination.is_done(Step::Packets));
    let found = examination.findings();
    assert_eq!(found[1].state, State::Unknown, "{found:#?}");
    assert!(found[1].text.contains("eth0 has no IPv4 address"), "{found:#?}");
}

#[test]
fn what_the_balancer_has_of_its_own_is_judged() {
    let good = Balancer {
        interface: "eth0".to_owned(),
        link: Link::Up,
        vip_on: None,
        forwarding: Switch::Off,
        forwarder: None,
        offloads: Some(Offloads {
            driver: "virtio_net".to_owned(),
            lro: Switch::Off,
            vlan: Switch::On,
            on: vec!["tso", "gso"],
        }),
        data_path: DataPath::Auto,
        card: Card::Virtual("virtio_net".to_owned()),
        longest_frame: Some(65_536),
        backlog: Backlog { limit: Some(1000), dropped: 0 },
    };
    let ip = vip(VIPS[0]).ip();
    let found = machine(&good, ip);
    assert!(found.iter().all(|one| one.state == State::Ok), "{found:#?}");
    assert!(text_of(&found, "offload").contains("(virtio_net: tso, gso on) need no change"), "{found:#?}");
    let lro = Offloads { lro: Switch::On, ..good.offloads.clone().unwrap() };
    for (bad, check, mend) in [
        (Balancer { link: Link::Down, ..good.clone() }, "link", "ip link set eth0 up"),
        (
            Balancer { vip_on: Some(("lo".to_owned(), 32)), ..good.clone() },
            "vip-not-local",
            "ip address del 192.0.2.10/32 dev lo",
        ),
        (
            Balancer { forwarding: Switch::On, forwarder: Some(Forwarder::Process), ..good.clone() },
            "forwarding",
            "sysctl -w net/ipv4/conf/eth0/forwarding=0",
        ),
        (Balancer { offloads: Some(lro), ..good.clone() }, "offload", "ethtool -K eth0 lro off"),
        (
            Balancer { data_path: DataPath::Xdp, ..good.clone() },
            "offload",
            "# set data-path = \"auto\" for the listener: it takes tc here",
        ),
        (
            Balancer { longest_frame: Some(131_072), ..good.clone() },
            "big-tcp",
            "ip link set eth0 gso_max_size 65536 gro_max_size 65536 gso_ipv4_max_size 65536 gro_ipv4_max_size 65536",
        ),
    ] {
        let found = machine(&bad, ip);
        let faults: Vec<_> = found.iter().filter(|one| one.is_fault()).collect();
        assert_eq!((faults.len(), faults[0].check, &*faults[0].mend[0]), (1, check, mend), "{found:#?}");
    }
    // Of a router nothing is switched off that no client notices.
    for (forwarder, state, part) in [
        (Some(Forwarder::Program), State::Ok, "a program takes those of the service before that"),
        (None, State::Unknown, "where the data path of the service is af_packet"),
    ] {
        let found = machine(&Balancer { forwarding: Switch::On, forwarder, ..good.clone() }, ip);
        let one = found.iter().find(|one| one.check == "forwarding").unwrap();
        assert!(one.state == state && one.text.contains(part) && one.mend.is_empty(), "{one:?}");
    }
    let silent = machine(&Balancer { longest_frame: None, ..good.clone() }, ip);
    assert_eq!(silent.last().unwrap().state, State::Unknown, "{silent:#?}");
    let full = machine(&Balancer { backlog: Backlog { limit: Some(1000), dropped: 7 }, ..good.clone() }, ip);
    let last = full.last().unwrap();
    assert!(last.state == State::Unknown && last.text.starts_with("7 packets of all interfaces"), "{last:?}");
    assert!(last.text.contains("net.core.netdev_max_backlog = 10000, now 1000"), "{last:?}");
    let mut physical = Balancer { data_path: DataPath::Xdp, card: Card::Physical, ..good };
    let found = machine(&physical, ip);
    let last = found.last().unwrap();
    assert!(last.state == State::Unknown && last.text.contains("`ethtool -K eth0 rxvlan off`"), "{found:#?}");
    physical.offloads.as_mut().unwrap().vlan = Switch::Off;
    assert!(machine(&physical, ip).iter().all(|one| one.state == State::Ok));
}

#[test]
fn backends_whose_answers_could_be_taken_for_those_of_others_are_not_asked_and_that_is_said() {
    for (transports, asked) in
        [(Transports::Udp, 4535), (Transports::TcpAndUdp, 4535), (Transports::Tcp, 65_536)]
    {
        for more in [0, 5] {
            let target = |number: usize| Target {
                name: format!("b{number}"),
                ip: IpAddr::from([10, (number >> 16) as u8, (number >> 8) as u8, number as u8]),
                port: 80,
                asker: own(vip(VIPS[0])).ip,
                leg: Leg::Near,
            };
            let backends = (0..asked + more).map(target).collect();
            let service = Service { interface: "eth0".to_owned(), vip: vip(VIPS[0]), transports, backends };
            let examination = Examination::new(service, own(vip(VIPS[0])), 1500, (PORT, NUMBER));
            assert_eq!(examination.questions(Step::Owners).len(), 1 + asked);
            let found = examination.findings();
            let said = found.iter().find(|one| one.check == "not-asked").map(|one| one.text.as_str());
            let expected = format!("5 of {} backends, from b{asked} on, were not asked", asked + more);
            assert_eq!(said.is_some_and(|text| text.starts_with(&expected)), more > 0, "{said:?}");
        }
    }
    let ports: BTreeSet<_> = (0..MOST_BY_PORT).map(|at| port_of(PORT, at)).collect();
    assert_eq!(ports.len(), MOST_BY_PORT);
}

/// Runs a program of the kernel.
fn passes(program: &[Instruction], frame: &[u8]) -> bool {
    let load = |at: u32, size: usize| {
        let bytes = frame.get(at as usize..at as usize + size)?;
        Some(bytes.iter().fold(0_u32, |all, byte| all << 8 | u32::from(*byte)))
    };
    let (mut a, mut at) = (0_u32, 0);
    loop {
        let Instruction { code, jt, jf, k } = program[at];
        at += 1;
        let size = match code {
            0x20 => 4,
            0x28 => 2,
            0x30 => 1,
            0x15 => {
                at += usize::from(if a == k { jt } else { jf });
                continue;
            }
            _ => return k > 0,
        };
        let Some(value) = load(k, size) else { return false };
        a = value;
    }
}

#[test]
fn the_filter_leaves_answers_and_no_packet_of_a_client() {
    for text in VIPS {
        let vip = vip(text);
        let program = filter(vip.ip());
        for frame in [
            segment(vip, PORT, 1, 0x12),
            from(vip, UDP, &[0, 80, 0, 9, 0, 8, 0, 0]),
            echoed(vip, 0, 0),
            claim(&vip.ip().to_string(), SERVER),
            claim("192.0.2.21", SERVER),
            claim("2001:db8::21", SERVER),
        ] {
            assert!(passes(&program, &frame), "{text}: {frame:x?}");
            assert!(!passes(&program, &frame[..13]));
        }
        let client = Asker { mac: STRANGER, ..own(vip) };
        for frame in [frames::syn(&client, OWN, vip, 9, 1), frames::datagram(&client, OWN, vip, 9)] {
            assert!(!passes(&program, &frame.unwrap()), "{text}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_frame_makes_a_panic(
        kind in 0..6_usize,
        family in 0..2_usize,
        changes in proptest::collection::vec((0..100_usize, any::<u8>()), 0..6),
        length in 0..120_usize,
    ) {
        let vip = vip(VIPS[family]);
        let mut examination = examination(VIPS[family], Transports::TcpAndUdp);
        examination.handle(&claim("192.0.2.21", SERVER));
        let sent = examination.questions(Step::Packets);
        let mut frame = match kind {
            0 => segment(vip, PORT, NUMBER, 0x12),
            1 => unreachable(vip, &sent[1]),
            2 => echoed(vip, 0, 1),
            3 => claim("192.0.2.21", STRANGER),
            4 => vec![0; length],
            _ => from(vip, UDP, &[0, 80, 0, 9, 0, 8, 0, 0]),
        };
        for (at, byte) in changes {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        frame.truncate(length.max(1));
        let _ = heard(&frame, &own(vip), vip);
        examination.handle(&frame);
        let _ = examination.findings();
    }
}

#[test]
fn an_answer_to_another_machine_or_of_another_port_is_none() {
    let at = vip(VIPS[0]);
    let frame = segment(at, PORT, 8, 0x12);
    assert_eq!(heard(&frame, &own(at), at), Some(Heard::Accepted { number: 7, next: 8, segment: None }));
    let other = Asker { ip: "192.0.2.3".parse().unwrap(), ..own(at) };
    assert_eq!(heard(&frame, &other, at), None);
    assert_eq!(heard(&frame, &own(at), vip("192.0.2.10:81")), None);
    assert_eq!(heard(&frame, &own(at), vip("192.0.2.11:80")), None);
}

#[test]
fn through_a_tunnel_the_router_is_looked_for_and_packets_travel_in_others() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let tunnel = Tunnel::new(ip("192.0.2.2"), ip("198.51.100.21")).unwrap();
    let target = |name: &str, leg| Target {
        name: name.to_owned(),
        ip: ip("198.51.100.21"),
        port: 80,
        asker: ip("192.0.2.2"),
        leg,
    };
    let backends =
        vec![target("a", Leg::Tunnel { next: ip("192.0.2.1"), tunnel }), target("b", Leg::NoRoute)];
    let transports = Transports::Tcp;
    let service = Service { interface: "eth0".to_owned(), vip: vip(VIPS[0]), transports, backends };
    let mut examination = Examination::new(service, own(vip(VIPS[0])), 1500, (PORT, NUMBER));
    assert_eq!(examination.questions(Step::Owners).len(), 2, "who has the VIP, and who is the router");
    let found = examination.findings();
    assert!(text_of(&found, "backend-neighbour").contains("answers for 192.0.2.1, the router on the way to"));
    examination.handle(&claim("192.0.2.1", SERVER));
    let frames = examination.questions(Step::Packets);
    let lengths: Vec<_> = frames.iter().map(Vec::len).collect();
    assert_eq!(lengths, [74, 62, 1514], "a SYN, and echo requests of which one fills the tunnel");
    for frame in &frames {
        assert_eq!(frame[..14], [&SERVER[..], &OWN, &[8, 0]].concat());
        assert_eq!((frame[23], &frame[26..34]), (4, &[192, 0, 2, 2, 198, 51, 100, 21][..]));
        assert_eq!(frame[50..54], [192, 0, 2, 10]);
    }
    let accepted = segment(vip(VIPS[0]), PORT, NUMBER.wrapping_add(1), 0x12);
    let reset = examination.handle(&accepted).unwrap();
    assert_eq!((reset[23], reset.len()), (4, 74));
    examination.handle(&echoed(vip(VIPS[0]), 0, 0));
    let found = examination.findings();
    assert!(text_of(&found, "backend-neighbour").contains("leads over 192.0.2.1, which is the machine"));
    assert!(text_of(&found, "backend-mtu").contains("none of 1480 bytes"), "{found:?}");
    let last = &found[found.len() - 2];
    assert!(last.text.contains("no route leads to 198.51.100.21 through eth0"), "{found:?}");
}
