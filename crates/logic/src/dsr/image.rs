//! A service as the BPF programs know it (`crates/sys/bpf/dsr.bpf.c`): words of memory that they share with this process.
//! They decide as [`Director::handle`] does and hold the flows; what this process tells them is written here.

use std::net::IpAddr;
use std::time::Duration;

use super::explain::Found;
use super::filter::{self, Instruction};
use super::flows::{CLOSING, Class};
use super::fragments::LONGEST;
use super::id_table::IdTable;
use super::owner::Ownership;
use super::packet::{Flow, FragmentKey, Mac, Transport};
use super::ring::{BackendId, Place, Standing};
use super::tunnel::Tunnel;
use super::{Director, NEW_FLOWS_PER_SECOND, Service, Transports};

pub use super::id_table::SLOTS as ID_SLOTS;
pub use super::ring::BACKENDS;

/// `struct service`.
pub type ServiceWords = [u64; 12];

/// `struct backend`.
pub type BackendWords = [u64; 7];

/// How long after the last word of a process the program answers questions who has the VIP, and how much shorter its times for
/// that are than nanoseconds, in bits.
const SILENCE: Duration = Duration::from_secs(1);
const COARSE: u32 = 28;

/// Words of 64 bits that have one for each port.
pub const PORTS: usize = 65_536 / 64;

/// Slot without a backend.
const NO_BACKEND: u16 = u16::MAX;

/// What a program forwards that has these words; `None`: it lets all packets pass.
pub fn service_of(words: &ServiceWords) -> Option<Service> {
    let [switch, a, b, about, ..] = *words;
    let [high, low, tcp, udp, ..] = about.to_ne_bytes();
    let transports = match (tcp, udp) {
        _ if switch == 0 => return None,
        (0, 0) => return None,
        (0, _) => Transports::Udp,
        (_, 0) => Transports::Tcp,
        _ => Transports::TcpAndUdp,
    };
    Some(Service { vip: whole([a, b]), port: u16::from_be_bytes([high, low]), transports })
}

impl Director {
    /// The service, on an interface with the address `own`. The first word says which table is used, and whether the program
    /// decides at all: [`switch`].
    pub fn service_words(&self, own: Mac) -> ServiceWords {
        let version = if self.service.vip.is_ipv4() { 4 } else { 6 };
        let [a, b] = halves(self.service.vip);
        let has = |transport| u8::from(self.service.transports.has(transport));
        let port = self.service.port.to_be_bytes();
        // A length of 0: connection ids are not looked at.
        let [offset, length] = self.quic_id.map_or([0; 2], |place| [place.offset(), place.length()]);
        let about = [port[0], port[1], has(Transport::Tcp), has(Transport::Udp), version, offset, length, 0];
        let [key, further] = self.ring.key();
        // 0: no tunnel.
        let [room, further_room] = self.room.unwrap_or(0).to_ne_bytes();
        [
            0,
            a,
            b,
            u64::from_ne_bytes(about),
            key,
            further,
            nanoseconds(self.rules.tcp_idle),
            nanoseconds(self.rules.udp_idle),
            nanoseconds(CLOSING),
            with_mac(own, room, further_room),
            nanoseconds(LONGEST),
            // The program answers no question.
            u64::from_ne_bytes(concat(NEW_FLOWS_PER_SECOND.to_ne_bytes(), [0; 4])),
        ]
    }

    /// The backends by number.
    pub fn backend_words(&self) -> impl Iterator<Item = BackendWords> {
        let is_tunnelled = self.room.is_some();
        self.ring.places().take(BACKENDS).map(move |Place { mac, tunnel, standing, turn, identity }| {
            let standing = match standing {
                Standing::Open => 0,
                Standing::Draining => 1,
                Standing::Down => 2,
            };
            let is_known = mac.is_some() && (tunnel.is_some() || !is_tunnelled);
            let place = with_mac(mac.unwrap_or_default(), standing, is_known.into());
            let [[a, b], [c, d]] =
                tunnel.map_or([[0; 2]; 2], |tunnel| [halves(tunnel.from()), halves(tunnel.to())]);
            [place, turn.into(), identity, a, b, c, d]
        })
    }

    /// The table of new flows: of each slot the backend, and the one that follows once all Ethernet addresses are known.
    pub fn table(&mut self) -> Vec<u32> {
        let number = |owner: Option<u32>| {
            owner.filter(|owner| (*owner as usize) < BACKENDS).map_or(NO_BACKEND, |owner| owner as u16)
        };
        self.ring
            .owners()
            .map(|[now, later]| u32::from(number(now)) | u32::from(number(later)) << 16)
            .collect()
    }

    /// The servers by their numbers in connection ids of QUIC.
    pub fn id_table(&mut self) -> IdTable {
        IdTable::new(self.ring.ids())
    }

    /// Changes whenever [`Self::table`] or [`Self::id_table`] does.
    pub fn revision(&self) -> u32 {
        self.ring.revision()
    }

    /// Takes over the flows that an earlier process has given to backends. To be called before backends are set.
    pub fn adopt(&mut self, backends: &[BackendWords]) {
        let used = backends.iter().rposition(|words| words[2] != 0).map_or(0, |last| last + 1);
        self.ring.adopt(backends[..used].iter().map(|&[place, turn, identity, a, b, c, d]| {
            let [m0, m1, m2, m3, m4, m5, standing, is_known] = place.to_ne_bytes();
            let standing = match standing {
                0 => Standing::Open,
                1 => Standing::Draining,
                _ => Standing::Down,
            };
            let mac = (is_known == 1).then_some([m0, m1, m2, m3, m4, m5]);
            let tunnel =
                ([a, b, c, d] != [0; 4]).then(|| Tunnel::new(whole([a, b]), whole([c, d]))).flatten();
            Place { mac, tunnel, standing, turn: turn as u32, identity }
        }));
        self.ring.count_elsewhere();
    }

    /// Ports that a service on every port leaves to other services: a bit for each of TCP, then of UDP.
    pub fn taken_words(&self) -> Vec<u64> {
        let mut words = vec![0; 2 * PORTS];
        for (port, transports) in &self.others {
            let (at, bit) = (usize::from(*port) / 64, 1 << (port % 64));
            for (transport, first) in [(Transport::Tcp, 0), (Transport::Udp, PORTS)] {
                if transports.has(transport) {
                    words[first + at] |= bit;
                }
            }
        }
        words
    }

    /// The key of a flow in the program's table: `struct flow`.
    pub fn flow_key(&self, flow: &Flow) -> [u8; 24] {
        let client = match flow.client {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        let transport = match flow.transport {
            Transport::Tcp => 6,
            Transport::Udp => 17,
        };
        let mut key = [0; 24];
        key[..16].copy_from_slice(&client);
        key[16..18].copy_from_slice(&flow.client_port.to_be_bytes());
        key[18] = transport;
        if self.service.port == 0 {
            key[20..22].copy_from_slice(&flow.port.to_be_bytes());
        }
        key
    }

    /// The key of a packet that was cut into fragments, in the program's table of them: `struct fragment`.
    pub fn fragment_key(key: &FragmentKey) -> [u8; 40] {
        let mut bytes = [0; 40];
        let ends = [key.source, key.destination].map(halves).concat();
        for (place, half) in bytes.chunks_exact_mut(8).zip(ends) {
            place.copy_from_slice(&half.to_ne_bytes());
        }
        bytes[32..36].copy_from_slice(&key.id.to_ne_bytes());
        bytes[36] = key.protocol;
        bytes
    }

    /// Whether the program sends a later fragment to the backend of the first one, by the value of the entry of its packet
    /// (`struct held`) and the program's clock.
    pub fn is_followed(&self, held: &[u8; 16], now: u64) -> bool {
        let [a, b, _, _, t0, t1, t2, t3, since @ ..] = *held;
        let backend = BackendId(u16::from_ne_bytes([a, b]).into());
        now.saturating_sub(u64::from_ne_bytes(since)) < nanoseconds(LONGEST)
            && self.ring.is_turn(backend, u32::from_ne_bytes([t0, t1, t2, t3]))
            && self.ring.mac(backend).is_some()
    }

    /// What the program remembers of a flow, by the value of its entry.
    pub(super) fn remembered(&self, known: &[u8], now: u64) -> Option<Found> {
        let backend = self.entry(known, now)?;
        let (head, seen) = known.split_first_chunk::<8>()?;
        let seen = u64::from_ne_bytes(seen.try_into().ok()?);
        let class = match head[2] {
            0 => Class::Tcp,
            1 => Class::Closing,
            _ => Class::Udp,
        };
        Some(Found { backend, class, silent: Duration::from_nanos(now.saturating_sub(seen)) })
    }

    /// The backend of a flow in the program's table, unless the program would forget it. `now` is its clock, in nanoseconds.
    pub fn owner(&self, known: &[u8], now: u64) -> Option<BackendId> {
        self.entry(known, now).filter(|backend| self.ring.keeps(*backend))
    }

    /// The same, also of a backend that is down.
    fn entry(&self, known: &[u8], now: u64) -> Option<BackendId> {
        let (head, seen) = known.split_first_chunk::<8>()?;
        let seen = u64::from_ne_bytes(seen.try_into().ok()?);
        let [a, b, class, _, turn @ ..] = *head;
        let backend = BackendId(u16::from_ne_bytes([a, b]).into());
        let idle = match class {
            0 => self.rules.tcp_idle,
            1 => CLOSING,
            _ => self.rules.udp_idle,
        };
        let is_alive = now.saturating_sub(seen) < nanoseconds(idle);
        let is_turn =
            self.ring.name(backend).is_some() && self.ring.turn(backend) == u32::from_ne_bytes(turn);
        (is_alive && is_turn).then_some(backend)
    }

    /// Tells how many flows each backend has, by number.
    pub fn set_flows(&mut self, flows: &[u32]) {
        self.ring.set_flows(flows);
    }

    /// Flows are remembered here again, from now on.
    pub fn decide_here(&mut self) {
        self.ring.count_here();
    }

    /// Frames that come to this process while a program decides: the questions and claims about the address.
    pub fn owner_filter(&self) -> Vec<Instruction> {
        filter::questions(&self.service)
    }
}

impl BackendId {
    /// Its place among [`Director::backend_words`].
    pub fn number(self) -> usize {
        self.0 as usize
    }

    pub fn at(number: usize) -> Self {
        Self(number as u32)
    }
}

/// The first word of a service that is served with one of two tables.
pub fn switch(table: u32) -> u64 {
    u64::from_ne_bytes(concat(table.to_ne_bytes(), 1_u32.to_ne_bytes()))
}

/// Lets the program of the owner answer questions who has the VIP once this is not said again for a second. `now` is its
/// clock, in nanoseconds.
pub fn set_answers(words: &mut ServiceWords, ownership: Ownership, now: u64) {
    let after = match ownership {
        Ownership::Owner => (now.saturating_add(nanoseconds(SILENCE)) >> COARSE) as u32,
        Ownership::Standby => 0,
    };
    let [new_flows, _] = split(words[11]);
    words[11] = u64::from_ne_bytes(concat(new_flows, after.to_ne_bytes()));
}

fn split(word: u64) -> [[u8; 4]; 2] {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    [[a, b, c, d], [e, f, g, h]]
}

fn concat([a, b, c, d]: [u8; 4], [e, f, g, h]: [u8; 4]) -> [u8; 8] {
    [a, b, c, d, e, f, g, h]
}

/// An address of either family, as the program has it.
fn halves(ip: IpAddr) -> [u64; 2] {
    let octets = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let (a, b) = octets.split_at(8);
    [a, b].map(|half| u64::from_ne_bytes(half.try_into().unwrap_or_default()))
}

fn whole([a, b]: [u64; 2]) -> IpAddr {
    let mut octets = [0; 16];
    octets[..8].copy_from_slice(&a.to_ne_bytes());
    octets[8..].copy_from_slice(&b.to_ne_bytes());
    IpAddr::from(octets).to_canonical()
}

fn with_mac([a, b, c, d, e, f]: Mac, one: u8, other: u8) -> u64 {
    u64::from_ne_bytes([a, b, c, d, e, f, one, other])
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::explain::{Decision, Entry, Why};
    use super::super::{Backend, Rules, Service, Transports};
    use super::*;

    const NAMES: [&str; 3] = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"];

    #[allow(clippy::disallowed_methods, reason = "a time must begin somewhere")]
    fn director() -> Director {
        let service = Service { vip: [192, 0, 2, 10].into(), port: 80, transports: Transports::Tcp };
        let second = Duration::from_secs(1);
        let rules = Rules { flows: 100, tcp_idle: second, udp_idle: second };
        Director::new(service, rules, [1, 2], Instant::now())
    }

    fn open(names: &[&'static str]) -> Vec<Backend<'static>> {
        names.iter().map(|name| Backend { name, weight: 1, standing: Standing::Open }).collect()
    }

    #[test]
    fn the_next_process_gives_backends_the_numbers_that_flows_know_them_by() {
        let mut first = director();
        first.set_backends(&open(&NAMES));
        for (at, name) in NAMES.into_iter().enumerate() {
            assert!(first.set_mac(name, [2, 0, 0, 0, 0, at as u8]));
        }
        let (mut words, table): (Vec<_>, _) = (first.backend_words().collect(), first.table());
        words.resize(BACKENDS, [0; 7]);
        let mut next = director();
        next.adopt(&words);
        next.set_backends(&open(&[NAMES[2], NAMES[0]]));
        assert_eq!(next.backend_words().collect::<Vec<_>>(), words[..3], "with their Ethernet addresses");
        assert_eq!(next.backends().map(|(_, name, _)| name).collect::<Vec<_>>(), [NAMES[0], NAMES[2]]);
        // Flows of the one that is not there any more may go on.
        let known = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(next.owner(&known, 999_999_999), Some(BackendId::at(1)));
        assert_eq!(next.owner(&known, 1_000_000_000), None, "silent for too long");
        next.set_flows(&[0, 1, 0]);
        next.set_backends(&open(&[NAMES[2], NAMES[0], "10.0.0.4:80"]));
        assert_eq!(next.backends().count(), 3);
        next.set_flows(&[0, 0, 0]);
        next.set_backends(&open(&[NAMES[2], NAMES[0], "10.0.0.4:80", "10.0.0.5:80"]));
        assert_eq!(next.owner(&known, 0), None, "its number has another backend now");
        next.set_backends(&open(&NAMES));
        let differing = next.table().iter().zip(&table).filter(|(a, b)| a != b).count();
        assert!(differing > 0, "a backend whose Ethernet address is not known");
    }

    #[test]
    fn a_count_that_began_before_a_backend_was_removed_does_not_free_its_number() {
        let mut director = director();
        director.adopt(&[]);
        director.set_backends(&open(&NAMES));
        director.set_backends(&open(&NAMES[..2]));
        // Its last flow began behind the place of the count.
        director.set_flows(&[1, 1, 0]);
        director.set_backends(&open(&[NAMES[0], NAMES[1], "10.0.0.4:80"]));
        assert_eq!(director.name(BackendId::at(2)), Some(NAMES[2]));
        assert_eq!(director.name(BackendId::at(3)), Some("10.0.0.4:80"));
        director.set_flows(&[1, 1, 0, 0]);
        director.set_backends(&open(&[NAMES[0], NAMES[1], "10.0.0.4:80", "10.0.0.5:80"]));
        assert_eq!(director.name(BackendId::at(2)), Some("10.0.0.5:80"));
    }

    #[test]
    fn backends_without_a_place_in_the_program_leave_no_slot_without_an_owner() {
        let names: Vec<String> = (0..BACKENDS + 4).map(|at| format!("b{at}")).collect();
        let backend = |name| Backend { name, weight: 1, standing: Standing::Open };
        let backends: Vec<_> = names.iter().map(|name| backend(name)).collect();
        let mut director = director();
        director.adopt(&[]);
        director.set_backends(&backends);
        names.iter().for_each(|name| assert!(director.set_mac(name, [2, 0, 0, 0, 0, 1])));
        let none = u32::from(NO_BACKEND);
        assert!(director.table().iter().all(|slot| slot & 0xffff != none && slot >> 16 != none));
        director.decide_here();
        assert!(director.table().iter().any(|slot| slot & 0xffff == none), "this process has them all");
    }

    #[test]
    fn a_flow_of_a_backend_that_is_down_is_remembered_and_told_as_moved() {
        let mut director = director();
        director.set_backends(&open(&NAMES));
        for (at, name) in NAMES.into_iter().enumerate() {
            assert!(director.set_mac(name, [2, 0, 0, 0, 0, at as u8]));
        }
        let flow = Flow {
            client: [192, 0, 2, 1].into(),
            client_port: 1,
            vip: [192, 0, 2, 10].into(),
            port: 80,
            transport: Transport::Tcp,
        };
        let entry = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let why = |director: &mut Director| match director
            .explain_in_kernel(&flow, Entry::Found(&entry), 0)
            .decision
        {
            Decision::Forward { backend, why, .. } => (backend, why),
            other => panic!("{other:?}"),
        };
        assert_eq!(why(&mut director), (NAMES[1].to_owned(), Why::Known));
        let mut backends = open(&NAMES);
        backends[1].standing = Standing::Down;
        director.set_backends(&backends);
        let (backend, moved) = why(&mut director);
        assert!(moved == Why::Moved && backend != NAMES[1], "{backend}");
        assert_eq!(director.owner(&entry, 0), None, "it has no flow");
        let unknown = director.explain_in_kernel(&flow, Entry::Unreadable, 0);
        assert!(matches!(unknown.decision, Decision::Forward { why: Why::Unread, .. }), "{unknown:?}");
    }
}
