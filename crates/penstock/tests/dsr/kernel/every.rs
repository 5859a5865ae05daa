//! A service on every port: the programs forward all ports but those of other services, and tell flows apart by them.

use logic::dsr::{Service, Standing, Transports};
use sys::bpf::Tried;
use testing::tools::{self, Root};

use super::frames::{ACK, FIN, SYN, TCP, UDP, client, error, plain, vip};
use super::named::named;
use super::{Pair, open};

#[test]
fn the_programs_forward_every_port_but_those_of_other_services_as_the_process_does() {
    if tools::root("loads programs into the kernel") == Root::LeftOut {
        return;
    }
    for is_v6 in [false, true] {
        let service = Service { vip: vip(is_v6), port: 0, transports: Transports::TcpAndUdp };
        let others = [
            (0, Transports::Udp),
            (53, Transports::TcpAndUdp),
            (63, Transports::Tcp),
            (64, Transports::Udp),
            (65_535, Transports::Tcp),
        ];
        let mut pair = Pair::new(service);
        pair.director.set_others(others.to_vec());
        pair.draw();
        for (protocol, transport) in [(TCP, Transports::Tcp), (UDP, Transports::Udp)] {
            for port in [0, 1, 52, 53, 54, 62, 63, 64, 65, 80, 443, 5053, 32_768, 65_534, 65_535] {
                let is_taken = |(other, of): &(u16, Transports)| {
                    *other == port && (*of == Transports::TcpAndUdp || *of == transport)
                };
                let expected = if others.iter().any(is_taken) { Tried::Passed } else { Tried::Sent };
                let frame = plain(is_v6, protocol, 1, 1000, port, SYN);
                assert_eq!(pair.compare(&frame), expected, "{transport:?} {port}");
            }
        }
        // One port of the client, and many of the service: each is a flow of its own, which stays where it began.
        let all = |pair: &mut Pair, flags| {
            for port in 2000..3000 {
                assert_eq!(pair.compare(&plain(is_v6, TCP, 7, 1234, port, flags)), Tried::Sent, "{port}");
            }
        };
        all(&mut pair, SYN);
        let mut backends = open();
        backends[1].standing = Standing::Draining;
        backends[2].standing = Standing::Down;
        pair.backends(&backends);
        all(&mut pair, ACK);
        for port in 2000..2100 {
            // Packets that the client says are too big, of both transports.
            for protocol in [TCP, UDP] {
                pair.compare(&error(is_v6, if is_v6 { 2 } else { 3 }, protocol, 7, [1234, port], 8));
            }
        }
        let flow = |port| logic::dsr::packet::Flow {
            client: client(is_v6, 7),
            client_port: 1234,
            vip: vip(is_v6),
            port,
            transport: logic::dsr::Transport::Tcp,
        };
        let keys = [2000, 2001].map(|port| pair.director.flow_key(&flow(port)));
        assert!(keys[0] != keys[1]);
        for key in keys {
            let found = pair.programs.each_ref().map(|one| one.shared().look_up_flow(&key).unwrap());
            assert!(found.iter().all(Option::is_some), "{found:?}");
        }
        all(&mut pair, FIN);
        // The frames of a service on one port, of which a part is for others now.
        for (_, frame, _) in named(is_v6) {
            (15..=frame.len()).for_each(|length| {
                pair.compare(&frame[..length]);
            });
        }
        pair.director.set_others(Vec::new());
        pair.draw();
        assert_eq!(pair.compare(&plain(is_v6, TCP, 1, 1000, 53, SYN)), Tried::Sent);
        pair.check_counters();
    }
}
