//! Units of the decision: frames in, verdicts out.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;

mod backends;
mod explained;
mod flows;
mod kernel;
mod ownership;
mod packets;
mod quic;
mod traced;

const OWN: Mac = [2, 0, 0, 0, 0, 1];
const CLIENT: Mac = [2, 0, 0, 0, 0, 9];
const KEY: [u64; 2] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const FIN: u8 = 0x11;
const NAMES: [&str; 10] = ["b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8", "b9"];

fn v4() -> Service {
    Service { vip: Ipv4Addr::new(192, 0, 2, 10).into(), port: 80, transports: Transports::TcpAndUdp }
}

fn v6() -> Service {
    Service { vip: "2001:db8::10".parse().unwrap(), port: 80, transports: Transports::Tcp }
}

#[allow(clippy::disallowed_methods, reason = "a time must begin somewhere")]
fn start() -> Instant {
    Instant::now()
}

fn mac(backend: usize) -> Mac {
    [2, 0, 0, 0, 1, backend as u8]
}

fn standing(at: usize, standing: Standing) -> Vec<Backend<'static>> {
    let of = |one| if one == at { standing } else { Standing::Open };
    let backend = |(one, name)| Backend { name, weight: 1, standing: of(one) };
    NAMES.into_iter().enumerate().map(backend).collect()
}

fn director(service: Service) -> (Director, Instant) {
    let now = start();
    let rules =
        Rules { flows: 10_000, tcp_idle: Duration::from_secs(3600), udp_idle: Duration::from_secs(30) };
    let mut director = Director::new(service, rules, KEY, now);
    director.set_backends(&standing(0, Standing::Open));
    for (at, name) in NAMES.into_iter().enumerate() {
        assert!(director.set_mac(name, mac(at)));
    }
    (director, now)
}

fn ipv4(protocol: u8, client: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [&OWN[..], &CLIENT, &[8, 0, 0x45, 0]].concat();
    frame.extend((20 + payload.len() as u16).to_be_bytes());
    frame.extend([0x12, 0x34]);
    frame.extend(fragment.to_be_bytes());
    frame.extend([64, protocol, 0, 0, 192, 0, 2, client, 192, 0, 2, 10]);
    frame.extend(payload);
    frame
}

fn segment(port: u16, to: u16, flags: u8) -> Vec<u8> {
    let mut segment = port.to_be_bytes().to_vec();
    segment.extend(to.to_be_bytes());
    segment.extend([0; 8]);
    segment.extend([0x50, flags, 0, 0, 0, 0, 0, 0]);
    segment
}

fn tcp(port: u16, flags: u8) -> Vec<u8> {
    ipv4(packet::TCP, 1, 0x4000, &segment(port, 80, flags))
}

fn udp(port: u16, to: u16) -> Vec<u8> {
    let mut payload = port.to_be_bytes().to_vec();
    payload.extend(to.to_be_bytes());
    payload.extend([0, 12, 0, 0, 1, 2, 3, 4]);
    ipv4(packet::UDP, 1, 0, &payload)
}

fn ipv6(headers: &[u8], first: u8, to: Ipv6Addr, payload: &[u8]) -> Vec<u8> {
    let mut frame = [&OWN[..], &CLIENT, &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
    frame.extend(((headers.len() + payload.len()) as u16).to_be_bytes());
    frame.extend([first, 255]);
    frame.extend("2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
    frame.extend(to.octets());
    frame.extend(headers);
    frame.extend(payload);
    frame
}

/// The backend of a frame, by its Ethernet address.
fn sent(director: &mut Director, frame: &[u8], now: Instant) -> Option<usize> {
    match director.handle(frame, OWN, now) {
        Verdict::Forward { to, .. } => (0..NAMES.len()).find(|at| mac(*at) == to),
        _ => None,
    }
}

fn flows(director: &Director) -> HashMap<String, u32> {
    director.backends().map(|(_, name, flows)| (name.to_owned(), flows)).collect()
}
