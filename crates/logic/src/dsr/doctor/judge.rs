//! What the answers of an examination mean.

use super::{Answer, Backend, Examination, Leg};
use crate::dsr::Mac;
use crate::dsr::finding::Finding;
use crate::dsr::packet::{Transport, shown};

/// Longest packet of Ethernet without jumbo frames.
const COMMON_MTU: usize = 1500;

impl Examination {
    pub fn findings(&self) -> Vec<Finding> {
        let mut found = vec![self.owner()];
        if self.asker.ip.is_unspecified() {
            let family = if self.vip.is_ipv4() { "IPv4" } else { "IPv6" };
            let text = format!(
                "{} has no {family} address to which backends could answer: whether they take packets to {} cannot be told",
                self.interface,
                self.vip.ip()
            );
            found.push(Finding::unknown("own-address", text));
        }
        for one in &self.backends {
            found.push(self.neighbour(one));
            // Nothing else was asked of a backend that is not there, or without an address to which it could answer.
            if !one.macs.is_empty() && !self.asker.ip.is_unspecified() {
                found.extend(self.service(one));
                found.push(self.mtu(one));
            }
        }
        if self.backends.iter().any(|one| !one.macs.is_empty()) {
            found.push(self.return_path());
        }
        found.extend(self.not_asked());
        found
    }

    /// The way back does not lead over this machine.
    fn return_path(&self) -> Finding {
        let vip = self.vip.ip();
        Finding::unknown(
            "return-path",
            format!(
                "whether replies of backends reach clients of other networks cannot be told from here: their routes and a strict rp_filter decide (`penstock backend verify --vip {vip}` on each)"
            ),
        )
    }

    fn not_asked(&self) -> Option<Finding> {
        let (asked, left) = (self.backends.len(), self.left.len());
        let first = &self.left.first()?.name;
        let text = format!(
            "{left} of {} backends, from {first} on, were not asked: answers of more than {asked} cannot be told apart",
            asked + left
        );
        Some(Finding::unknown("not-asked", text))
    }

    fn owner(&self) -> Finding {
        let vip = self.vip.ip();
        let question = if vip.is_ipv4() { "ARP requests" } else { "neighbour solicitations" };
        if let (Some(lacks), true) = (self.lacks, self.owners.is_empty()) {
            let text = format!(
                "no machine on {} answers for {vip}: this one stands by, because it does not have {lacks}, and there is no other owner: no machine serves the clients",
                self.interface
            );
            let mend = [
                "systemctl status keepalived   # on both balancers: it gives one of them the address"
                    .to_owned(),
                format!(
                    "ip address add {lacks}/{} dev lo   # on one of them, without keepalived",
                    if lacks.is_ipv4() { 32 } else { 128 }
                ),
            ];
            return Finding::fault("vip-owner", text, mend.into());
        }
        if self.owners.is_empty() {
            return Finding::ok(
                "vip-owner",
                format!("no other machine on {} answers for {vip}", self.interface),
            );
        }
        let is_backend = |mac: &Mac| self.backends.iter().any(|one| one.macs.contains(mac));
        if let (Some(lacks), 1, false) = (self.lacks, self.owners.len(), self.owners.iter().any(is_backend)) {
            let text = format!(
                "one other machine on {} answers for {vip}, and this one stands by: it does not have {lacks}",
                self.interface
            );
            return Finding::ok("vip-owner", text);
        }
        let mut said = Vec::new();
        let mut mend = Vec::new();
        for mac in &self.owners {
            match self.backends.iter().find(|one| one.macs.contains(mac)) {
                Some(one) => {
                    said.push(format!(
                        "the backend {} ({}) answers {question} for {vip}",
                        one.target.name,
                        shown(*mac)
                    ));
                    mend.push(format!("penstock backend setup --vip {vip} --apply   # on {}", one.target.ip));
                    mend.push(format!("penstock backend verify --vip {vip}   # the same: is it on another interface than lo?"));
                }
                None => {
                    said.push(format!("another machine ({}) answers {question} for {vip}", shown(*mac)));
                    mend.push(format!("# take {vip} off the machine {}: a second balancer, or a server that is not in the pool", shown(*mac)));
                }
            }
        }
        Finding::fault(
            "vip-owner",
            format!("{}: clients that hear it do not come to this balancer", said.join(", and ")),
            mend,
        )
    }

    fn neighbour(&self, one: &Backend) -> Finding {
        let (name, ip, interface) = (&one.target.name, one.target.ip, &self.interface);
        let macs: Vec<_> = one.macs.iter().map(|mac| shown(*mac)).collect();
        match (one.target.leg, &macs[..]) {
            (Leg::Own, _) => {
                return Finding::fault(
                    "backend-neighbour",
                    format!(
                        "{name}: {ip} is an address of this machine: packets reach only backends on other machines"
                    ),
                    vec![format!("# take {name} out of the pool")],
                );
            }
            (Leg::NoRoute, _) => {
                return Finding::fault(
                    "backend-neighbour",
                    format!("{name}: no route leads to {ip} through {interface}"),
                    vec![format!("ip route add {ip} via ROUTER dev {}", ::text::shell::word(interface))],
                );
            }
            (Leg::Tunnel { next, .. }, []) if next != ip => {
                return Finding::fault(
                    "backend-neighbour",
                    format!(
                        "{name}: no machine on {interface} answers for {next}, the router on the way to {ip}"
                    ),
                    vec![format!(
                        "# start {next}, repair its link, or correct the route to {ip}: `ip route get {ip}`"
                    )],
                );
            }
            (Leg::Tunnel { next, .. }, [mac]) if next != ip => {
                return Finding::ok(
                    "backend-neighbour",
                    format!("{name}: the way to {ip} leads over {next}, which is the machine {mac}"),
                );
            }
            _ => {}
        }
        match &macs[..] {
            [] => Finding::fault(
                "backend-neighbour",
                format!(
                    "{name}: no machine on {interface} answers for {ip}: it is off, its link is down, or it is on another network"
                ),
                vec![format!(
                    "# start {ip}, repair its link, or correct its address: it must be on the network of {interface}"
                )],
            ),
            [mac] => Finding::ok("backend-neighbour", format!("{name}: {ip} is the machine {mac}")),
            several => Finding::fault(
                "backend-neighbour",
                format!("{name}: several machines answer for {ip}: {}", several.join(", ")),
                vec![format!("# give {ip} to one machine")],
            ),
        }
    }

    fn service(&self, one: &Backend) -> Vec<Finding> {
        let kinds = [(Transport::Tcp, "backend-tcp", one.tcp), (Transport::Udp, "backend-udp", one.udp)];
        let asked = kinds.into_iter().filter(|(transport, ..)| self.transports.has(*transport));
        asked.map(|(transport, check, answer)| self.port(one, transport, check, answer)).collect()
    }

    fn port(
        &self,
        one: &Backend,
        transport: Transport,
        check: &'static str,
        answer: Option<Answer>,
    ) -> Finding {
        let (name, vip) = (&one.target.name, self.at(one));
        let (protocol, packets) = match transport {
            Transport::Tcp => ("TCP", "connections"),
            Transport::Udp => ("UDP", "datagrams"),
        };
        let has_vip = one.echo[0] || one.tcp.is_some() || one.udp.is_some();
        match (answer, has_vip) {
            (Some(Answer::Accepted), _) => {
                Finding::ok(check, format!("{name} takes {protocol} {packets} to {vip}"))
            }
            (Some(Answer::Refused), _) => Finding::fault(
                check,
                format!(
                    "{name} has {}, and no process there has {protocol} port {} of it: {packets} are refused",
                    vip.ip(),
                    vip.port()
                ),
                vec![format!(
                    "# on {}: start the service, or let it listen on {vip} or on all addresses",
                    one.target.ip
                )],
            ),
            // A service need not answer a datagram that says nothing.
            (None, true) if transport == Transport::Udp => {
                Finding::ok(check, format!("{name} has {}, and refuses no {packets} to {vip}", vip.ip()))
            }
            (None, true) => Finding::fault(
                check,
                format!(
                    "{name} has {}, and drops {packets} to {protocol} port {}: a filter of it",
                    vip.ip(),
                    vip.port()
                ),
                vec![format!("nft list ruleset   # on {}", one.target.ip)],
            ),
            (None, false) => Finding::fault(
                check,
                format!(
                    "{name} does not answer packets to {vip}: {}its loopback interface lacks the address, or a filter drops them",
                    if one.target.leg == Leg::Near { "" } else { "it has no tunnel device that is up, " }
                ),
                vec![format!(
                    "penstock backend setup --vip {}{} --apply   # on {}",
                    vip.ip(),
                    if one.target.leg == Leg::Near { "" } else { " --mode ipip" },
                    one.target.ip
                )],
            ),
        }
    }

    /// Packets of clients are as long as the segments allow that a backend announces, and those of other networks have at most
    /// [`COMMON_MTU`] bytes.
    fn too_long(&self, one: &Backend) -> Option<Finding> {
        let (name, vip, longest) = (&one.target.name, self.vip.ip(), self.longest(one));
        let segment = one.segment?;
        let headers = if vip.is_ipv4() { 40 } else { 60 };
        let sent = (usize::from(segment) + headers).min(COMMON_MTU);
        if sent <= longest {
            return None;
        }
        let interface = &self.interface;
        let begin = format!(
            "{name} announces TCP segments of {segment} bytes for {vip}, so that clients send packets of {sent} bytes"
        );
        let (text, mend) = match one.target.leg {
            Leg::Near | Leg::NoRoute | Leg::Own => (
                format!("{begin}, and {interface} takes {longest}: uploads stall"),
                format!("ip link set {} mtu {sent}", ::text::shell::word(interface)),
            ),
            Leg::Tunnel { .. } => {
                let of = if self.mtu == COMMON_MTU { String::new() } else { format!(" --mtu {}", self.mtu) };
                (
                    format!(
                        "{begin}, and {longest} fit into its tunnel: uploads begin with packets that are refused"
                    ),
                    format!(
                        "penstock backend setup --vip {vip} --mode ipip{of} --apply   # on {}",
                        one.target.ip
                    ),
                )
            }
        };
        Some(Finding::fault("backend-mtu", text, vec![mend]))
    }

    fn mtu(&self, one: &Backend) -> Finding {
        let (name, vip, mtu) = (&one.target.name, self.vip.ip(), self.longest(one));
        if let Some(too_long) = self.too_long(one).filter(|_| one.echo != [true, false]) {
            return too_long;
        }
        match one.echo {
            [_, true] => {
                Finding::ok("backend-mtu", format!("{name} gets packets of {mtu} bytes, and they come back"))
            }
            [true, false] if one.target.leg != Leg::Near => Finding::fault(
                "backend-mtu",
                format!(
                    "{name} answers a short packet to {vip} and none of {mtu} bytes, which with those of its tunnel are the MTU of {}: large uploads stall",
                    self.interface
                ),
                vec![format!(
                    "ip link set {} mtu LENGTH   # that of the network between here and {}",
                    ::text::shell::word(&self.interface),
                    one.target.ip
                )],
            ),
            [true, false] => Finding::fault(
                "backend-mtu",
                format!(
                    "{name} answers a short packet to {vip} and none of {mtu} bytes, the MTU of {}: large uploads stall",
                    self.interface
                ),
                vec![format!(
                    "ip link set DEVICE mtu {mtu}   # on {}, and in every switch between",
                    one.target.ip
                )],
            ),
            [false, false] => Finding::unknown(
                "backend-mtu",
                format!(
                    "{name}: whether packets of {mtu} bytes arrive cannot be told: it answers no echo request to {vip}"
                ),
            ),
        }
    }
}
