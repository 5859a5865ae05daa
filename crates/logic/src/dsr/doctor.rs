//! Proves each part of a `dsr` service from the balancer, and says of what is broken what mends it.
//!
//! [`machine`] judges the balancer itself. An [`Examination`] has two steps of questions to the network: who has the VIP
//! and the addresses of the backends, then what each backend does with packets to the VIP. It makes the frames of its
//! questions, is told what comes in, and judges in the end (`crates/logic/src/dsr/doctor/judge.rs`). What answers say is
//! read by `crates/logic/src/dsr/doctor/frames.rs`. `crates/serve/src/doctor.rs` sends and receives.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::Transports;
use super::finding::Finding;
use super::machine::Forwarder;
use super::packet::{Mac, Transport};
use super::path::{Card, DataPath, LOST_BY_PROXY};
use super::tunnel::{self, Frames, Offload, Tunnel};

mod card;
pub mod frames;
mod judge;
#[cfg(test)]
mod tests;

use frames::{Asker, Heard};

/// State of the network interface of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Missing,
    NotEthernet,
    Down,
    NoCarrier,
    Up,
}

/// What the network card does (ethtool(8), `-k`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offloads {
    pub driver: String,
    pub lro: Switch,
    /// It takes VLAN tags off.
    pub vlan: Switch,
    /// Those that cut or join packets, for a reader: `tso`, `gso` and `gro` if they are on.
    pub on: Vec<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    On,
    Off,
}

/// What the balancer has of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balancer {
    pub interface: String,
    pub link: Link,
    /// Interface of the balancer that has the VIP, with the length of its prefix.
    pub vip_on: Option<(String, u8)>,
    /// Whether the kernel forwards packets of this family on the interface.
    pub forwarding: Switch,
    /// Who forwards those of the service; `None` if that is known only once it serves.
    pub forwarder: Option<Forwarder>,
    /// `None` if the card does not tell.
    pub offloads: Option<Offloads>,
    /// What the configuration asks for.
    pub data_path: DataPath,
    pub card: Card,
    /// Longest frame that the interface makes or takes (BIG TCP); `None` if the kernel does not tell.
    pub longest_frame: Option<u32>,
    pub backlog: Backlog,
}

/// The queue of received packets that each processor has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Largest number of packets that the queue holds (`net.core.netdev_max_backlog`). `None` if it cannot be read, as in a network
    /// namespace.
    pub limit: Option<u32>,
    /// Packets of all interfaces that found it full since the kernel started (`/proc/net/softnet_stat`).
    pub dropped: u64,
}

/// What can be seen on the balancer alone.
pub fn machine(balancer: &Balancer, vip: IpAddr) -> Vec<Finding> {
    let Balancer { interface, link, vip_on, forwarding, forwarder, offloads, data_path, card, .. } = balancer;
    let name = text::shell::word(interface);
    let fault = |text: String, mend: String| Finding::fault("link", text, vec![mend]);
    let mut found = vec![match link {
        Link::Missing => fault(format!("there is no network interface {interface}"), "ip link".to_owned()),
        Link::NotEthernet => fault(
            format!("{interface} is no Ethernet interface"),
            "ip link   # name one with link/ether".to_owned(),
        ),
        Link::Down => fault(format!("{interface} is down"), format!("ip link set {name} up")),
        Link::NoCarrier => fault(
            format!("{interface} is up and has no link: its cable, or the port at the other end, is out"),
            format!("# connect {interface}, or switch the port at its other end on"),
        ),
        Link::Up => Finding::ok("link", format!("{interface} is up")),
    }];
    if *forwarder == Some(Forwarder::Kernel) {
        found.extend(proxied(vip_on.is_some(), vip, &name));
        return found;
    }
    found.push(match vip_on {
        None => Finding::ok("vip-not-local", format!("no interface of this machine has {vip}")),
        Some((on, prefix)) => Finding::fault(
            "vip-not-local",
            format!("{on} of this machine has {vip}: its kernel answers clients itself, with resets"),
            vec![format!("ip address del {vip}/{prefix} dev {}", text::shell::word(on))],
        ),
    });
    found.push(forwarding_of(*forwarding, *forwarder, interface, vip));
    let loses = match (data_path, card) {
        (DataPath::Xdp, Card::Virtual(driver)) => Some(driver),
        _ => None,
    };
    found.push(match (offloads, loses) {
        (_, Some(driver)) => Finding::fault(
            "offload",
            format!(
                "{interface} is a virtual interface ({driver}), and data-path = \"xdp\" loses the checksums and segments that it leaves to a card: servers drop such packets"
            ),
            vec!["# set data-path = \"auto\" for the listener: it takes tc here".to_owned()],
        ),
        (None, None) => Finding::unknown("offload", format!("{interface} does not tell its offloads")),
        (Some(offloads), None) if offloads.lro == Switch::On => Finding::fault(
            "offload",
            format!("{interface} ({}) has LRO on: packets that the card has put together cannot be forwarded", offloads.driver),
            vec![format!("ethtool -K {name} lro off")],
        ),
        (Some(Offloads { driver, on, .. }), None) => Finding::ok(
            "offload",
            format!(
                "offloads of {interface} ({driver}: {}) need no change: large packets and unfinished checksums are forwarded as they are",
                if on.is_empty() { "all off".to_owned() } else { format!("{} on", on.join(", ")) }
            ),
        ),
    });
    found.extend(card::findings(balancer));
    found.extend(full_backlog(balancer.backlog));
    found
}

/// Packets of a service are lost before any program sees them, where the queue of a processor is full.
fn full_backlog(Backlog { limit, dropped }: Backlog) -> Option<Finding> {
    let now = limit.map_or(String::new(), |limit| format!(", now {limit}"));
    let text = format!(
        "{dropped} packets of all interfaces were dropped since the kernel started, because the queue of a processor was full: if that \
         number grows under load (second column of /proc/net/softnet_stat, hexadecimal), a longer queue keeps them: \
         net.core.netdev_max_backlog = 10000{now}"
    );
    (dropped > 0).then(|| Finding::unknown("backlog", text))
}

/// Of a service without packets: the kernel takes what comes to the address.
fn proxied(is_here: bool, vip: IpAddr, interface: &str) -> [Finding; 2] {
    let prefix = if vip.is_ipv4() { 32 } else { 128 };
    [
        match is_here {
            true => Finding::ok("vip-local", format!("this machine has {vip}, as data-path proxy needs it")),
            false => Finding::fault(
                "vip-local",
                format!(
                    "no interface of this machine has {vip}, and data-path proxy takes connections to own addresses alone"
                ),
                vec![format!("ip address add {vip}/{prefix} dev {interface}")],
            ),
        },
        Finding::ok("data-path", format!("no packet is forwarded (data-path proxy): {LOST_BY_PROXY}")),
    ]
}

/// A kernel that forwards packets may do so for the networks behind this machine: it is told to stop only where it takes those
/// of the service.
fn forwarding_of(forwarding: Switch, forwarder: Option<Forwarder>, interface: &str, vip: IpAddr) -> Finding {
    let check = "forwarding";
    match (forwarding, forwarder) {
        (Switch::Off, _) => Finding::ok(check, format!("the kernel forwards no packets on {interface}")),
        (Switch::On, Some(Forwarder::Program)) => Finding::ok(
            check,
            format!(
                "the kernel forwards packets on {interface}, and a program takes those of the service before that"
            ),
        ),
        (Switch::On, Some(Forwarder::Process | Forwarder::Kernel)) => {
            let family = if vip.is_ipv4() { "ipv4" } else { "ipv6" };
            Finding::fault(
                check,
                format!(
                    "the kernel forwards packets on {interface}, those of the service as well: clients hear that no machine has {vip}"
                ),
                vec![format!("sysctl -w net/{family}/conf/{}/forwarding=0", text::shell::word(interface))],
            )
        }
        (Switch::On, None) => Finding::unknown(
            check,
            format!(
                "the kernel forwards packets on {interface}: where the data path of the service is af_packet, those of the service as well, so that clients hear that no machine has {vip}; tc and xdp take them before that, and `penstock ctl dsr status` names the path while it serves"
            ),
        ),
    }
}

/// A start would refuse the path that the configuration asks for.
pub fn refused(asked: DataPath, interface: &str, why: &str) -> Finding {
    Finding::fault(
        "data-path",
        format!("a start refuses data-path = \"{asked}\": {why}"),
        vec![
            format!("bpftool net show dev {}   # names the program", text::shell::word(interface)),
            "# end it, or set data-path = \"auto\" for the listener: it takes what works".to_owned(),
        ],
    )
}

/// A program that no process has takes the packets of a service: it ends by this command.
pub fn overlapped(why: &str, command: &str) -> Finding {
    Finding::fault("left-program", format!("a start is refused: {why}"), vec![command.to_owned()])
}

/// A process that did not answer as the one of this configuration has claimed the address, with a socket of this name.
pub fn claimed(interface: &str, socket: &str) -> Finding {
    Finding::unknown(
        "claimed",
        format!(
            "a process forwards what comes to this address on {interface}, and does not answer at the control socket of this \
             configuration: a start beside it is refused; `ss -xap | grep {socket}` shows which process it is"
        ),
    )
}

/// The program of a service ends with its process, for this reason.
pub fn unpinned(why: &str) -> Finding {
    Finding::unknown("names", format!("a crash of the process ends the program and its flows: {why}"))
}

/// Who forwards packets, if the configuration alone decides it.
pub fn forwarder(asked: DataPath, port: u16) -> Option<Forwarder> {
    match asked {
        DataPath::AfPacket => Some(Forwarder::Process),
        DataPath::Proxy => Some(Forwarder::Kernel),
        // A program forwards one port.
        DataPath::Auto if port == 0 => Some(Forwarder::Process),
        DataPath::Auto => None,
        DataPath::Xdp | DataPath::XdpGeneric | DataPath::Tc => Some(Forwarder::Program),
    }
}

/// A backend of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name in the configuration.
    pub name: String,
    pub ip: IpAddr,
    /// Port of the virtual address that is asked there.
    pub port: u16,
    /// Our address of its family, from which the network is asked where it is; unspecified if there is none.
    pub asker: IpAddr,
    pub leg: Leg,
}

/// How packets reach a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leg {
    /// As they are: it is on the network of the interface.
    Near,
    /// Through a tunnel, by this machine: a router, or the backend itself.
    Tunnel { next: IpAddr, tunnel: Tunnel },
    /// Through a tunnel, and the routing table knows no way.
    NoRoute,
    /// Not at all: this machine has its address.
    Own,
}

impl Target {
    /// The machine to which packets are handed; `None` if there is no way.
    pub fn machine(&self) -> Option<IpAddr> {
        match self.leg {
            Leg::Near => Some(self.ip),
            Leg::Tunnel { next, .. } => Some(next),
            Leg::NoRoute | Leg::Own => None,
        }
    }
}

/// Questions about one service.
#[derive(Debug)]
pub struct Examination {
    interface: String,
    vip: SocketAddr,
    transports: Transports,
    asker: Asker,
    mtu: usize,
    /// A port of ours that no socket has.
    port: u16,
    /// The first sequence number; the place of a backend is added.
    number: u32,
    owners: BTreeSet<Mac>,
    /// The address that the owner of the VIP has, if this machine does not have it: another balancer may answer.
    lacks: Option<IpAddr>,
    backends: Vec<Backend>,
    /// Those for which there is no room.
    left: Vec<Target>,
}

#[derive(Debug)]
struct Backend {
    target: Target,
    macs: BTreeSet<Mac>,
    tcp: Option<Answer>,
    /// The longest TCP segment that it takes from clients, if it says so.
    segment: Option<u16>,
    udp: Option<Answer>,
    /// Echo replies that have come: to a short request, and to one as long as the MTU.
    echo: [bool; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Accepted,
    Refused,
}

/// Of what the questions of a step are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Who has the addresses?
    Owners,
    /// What becomes of packets to the VIP?
    Packets,
}

impl Step {
    pub const ALL: [Self; 2] = [Self::Owners, Self::Packets];
}

/// What the questions begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub interface: String,
    /// Port 0 is every port.
    pub vip: SocketAddr,
    pub transports: Transports,
    pub backends: Vec<Target>,
}

/// Machines that are named, at most: anybody on the network can claim an address.
const MOST_MACS: usize = 8;

/// Most backends of an examination: an echo request has a number for as many.
const MOST: usize = 65_536;

/// The same where datagrams are sent: their answers are told apart by our port.
const MOST_BY_PORT: usize = (u16::MAX - FIRST_PORT) as usize;

impl Examination {
    /// `port` and `number` are chosen at random, so that no answer to an earlier examination is taken for one to this.
    pub fn new(service: Service, asker: Asker, mtu: u32, (port, number): (u16, u32)) -> Self {
        let new = |target| Backend {
            target,
            macs: BTreeSet::new(),
            tcp: None,
            segment: None,
            udp: None,
            echo: [false; 2],
        };
        let most = if service.transports.has(Transport::Udp) { MOST_BY_PORT } else { MOST };
        let mut targets = service.backends;
        let left = targets.split_off(most.min(targets.len()));
        Self {
            interface: service.interface,
            vip: service.vip,
            transports: service.transports,
            asker,
            mtu: mtu as usize,
            port,
            number,
            owners: BTreeSet::new(),
            lacks: None,
            backends: targets.into_iter().map(new).collect(),
            left,
        }
    }

    /// This machine stands by for another balancer, because it lacks an address.
    pub fn stand_by(&mut self, lacks: IpAddr) {
        self.lacks = Some(lacks);
    }

    /// Frames of the questions of a step that have no answer yet. Who has an address is asked each time: a second machine
    /// may answer.
    pub fn questions(&self, step: Step) -> Vec<Vec<u8>> {
        match step {
            Step::Owners => {
                let of = |one: &Backend| {
                    frames::question(&Asker { ip: one.target.asker, ..self.asker }, one.target.machine()?)
                };
                let vip = frames::question(&self.asker, self.vip.ip());
                vip.into_iter().chain(self.backends.iter().filter_map(of)).collect()
            }
            // An answer could not come back.
            Step::Packets if self.asker.ip.is_unspecified() => Vec::new(),
            Step::Packets => {
                self.backends.iter().enumerate().flat_map(|(at, one)| self.packets(at, one)).collect()
            }
        }
    }

    fn packets(&self, at: usize, one: &Backend) -> Vec<Vec<u8>> {
        let (asker, Some(&mac)) = (&self.asker, one.macs.first()) else { return Vec::new() };
        let mut all = Vec::new();
        let vip = self.at(one);
        if self.transports.has(Transport::Tcp) && one.tcp.is_none() {
            all.push(frames::syn(asker, mac, vip, self.port, self.number.wrapping_add(at as u32)));
        }
        if self.transports.has(Transport::Udp) && one.udp.is_none() {
            all.push(frames::datagram(asker, mac, vip, port_of(self.port, at)));
        }
        for (sequence, length) in [0, self.longest(one)].into_iter().enumerate() {
            if !one.echo[sequence] {
                let id = (at as u16, sequence as u16);
                all.push(frames::echo(asker, mac, self.vip.ip(), id, length));
            }
        }
        all.into_iter().flatten().filter_map(|frame| on_way(&one.target, frame)).collect()
    }

    /// Longest packet that fits on the way to a backend.
    fn longest(&self, one: &Backend) -> usize {
        match one.target.leg {
            Leg::Near | Leg::NoRoute | Leg::Own => self.mtu,
            Leg::Tunnel { .. } => tunnel::room(self.vip.ip(), self.mtu as u32).into(),
        }
    }

    /// The virtual address with the port that a backend is asked for.
    fn at(&self, one: &Backend) -> SocketAddr {
        SocketAddr::new(self.vip.ip(), one.target.port)
    }

    /// Whether a step needs no further answer. Machines that have an address are waited for to the end.
    pub fn is_done(&self, step: Step) -> bool {
        let wants_udp = self.transports.has(Transport::Udp);
        let has_all = |one: &Backend| {
            (!self.transports.has(Transport::Tcp) || one.tcp.is_some())
                && (!wants_udp || one.udp.is_some())
                && one.echo == [true; 2]
        };
        let cannot = self.asker.ip.is_unspecified();
        step == Step::Packets
            && (cannot || self.backends.iter().all(|one| one.macs.is_empty() || has_all(one)))
    }

    /// Takes a frame that the interface has received. Returns one to send, if any.
    pub fn handle(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        match frames::heard(frame, &self.asker, self.vip)? {
            Heard::Claim { mac, .. } if mac == self.asker.mac => {}
            Heard::Claim { address, mac } => {
                let vip = (address == self.vip.ip()).then_some(&mut self.owners);
                let of = self.backends.iter_mut().filter(|one| one.target.machine() == Some(address));
                for macs in vip.into_iter().chain(of.map(|one| &mut one.macs)) {
                    if macs.len() < MOST_MACS {
                        macs.insert(mac);
                    }
                }
            }
            Heard::Accepted { number, next, segment } => {
                let (asker, ip, port) = (self.asker, self.vip.ip(), self.port);
                let one = self.numbered(number)?;
                let vip = SocketAddr::new(ip, one.target.port);
                (one.tcp, one.segment) = (Some(Answer::Accepted), segment);
                let reset = frames::reset(&asker, *one.macs.first()?, vip, port, next)?;
                return on_way(&one.target, reset);
            }
            Heard::Refused { number } => self.numbered(number)?.tcp = Some(Answer::Refused),
            Heard::Datagram { port } => self.of_port(port)?.udp = Some(Answer::Accepted),
            Heard::Unreachable { port } => self.of_port(port)?.udp = Some(Answer::Refused),
            Heard::Echo { id, sequence } => {
                *self.backends.get_mut(usize::from(id))?.echo.get_mut(usize::from(sequence))? = true;
            }
        }
        None
    }

    fn numbered(&mut self, number: u32) -> Option<&mut Backend> {
        self.backends.get_mut(number.wrapping_sub(self.number) as usize)
    }

    fn of_port(&mut self, port: u16) -> Option<&mut Backend> {
        let first = self.port;
        self.backends.iter_mut().enumerate().find(|(at, _)| port_of(first, *at) == port).map(|(_, one)| one)
    }
}

/// A frame to a backend as it travels: in its tunnel, if it has one.
fn on_way(target: &Target, frame: Vec<u8>) -> Option<Vec<u8>> {
    let Leg::Tunnel { tunnel, .. } = target.leg else { return Some(frame) };
    let (to, own) = (frame.get(..6)?.try_into().ok()?, frame.get(6..12)?.try_into().ok()?);
    // How much fits is what is to be found out.
    let way = tunnel::Way { own, to, tunnel, room: u16::MAX - tunnel::overhead(tunnel.to()) };
    let mut frames = Frames::default();
    tunnel::encapsulate(&frame, &Offload::default(), &way, &mut frames).ok()?;
    frames.waiting().next().map(<[u8]>::to_vec)
}

/// Our port of a datagram to a backend: above those that the kernel gives to sockets by itself.
fn port_of(first: u16, at: usize) -> u16 {
    FIRST_PORT + ((usize::from(first.saturating_sub(FIRST_PORT)) + at) % MOST_BY_PORT) as u16
}

/// The first port of ours (`net.ipv4.ip_local_port_range` ends before it by default).
pub const FIRST_PORT: u16 = 61_000;
