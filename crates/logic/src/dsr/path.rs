//! Where packets of a service are forwarded: in the driver of the network card, behind it, or by this process. The best
//! that works is taken; what is better and does not work is told with its reason.

use std::fmt::Display;
use std::time::Duration;

text::words! {
    /// What the configuration asks for.
    #[derive(Default)]
    pub enum DataPath: "data path" {
        /// The best that works.
        #[default]
        Auto = "auto",
        Xdp = "xdp",
        XdpGeneric = "xdp-generic",
        Tc = "tc",
        AfPacket = "af_packet",
        /// None is forwarded: the process takes connections and datagrams, as a `tcp` or `udp` listener does.
        Proxy = "proxy",
    }
}

text::words! {
    /// Where packets are forwarded.
    pub enum Rung: "data path" {
        /// By a program in the driver of the network card.
        Xdp = "xdp",
        /// The same program behind a driver that does not run it.
        XdpGeneric = "xdp-generic",
        /// By a program where packets leave the driver.
        Tc = "tc",
        /// By this process, with a packet socket.
        AfPacket = "af_packet",
        /// Not at all: the process takes connections and datagrams.
        Proxy = "proxy",
    }
}

text::words! {
    /// What becomes of the program at a stop of this process.
    #[derive(Default)]
    pub enum AtStop: "end of a data path" {
        #[default]
        Detach = "detach",
        Keep = "keep",
    }
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Card {
    Physical,
    /// Made by software, with this driver.
    Virtual(String),
}

/// A rung that is not taken, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub rung: Rung,
    pub reason: String,
}

/// What is tried, in this order, and what is not tried.
pub fn ladder(asked: DataPath, interface: &str, card: &Card) -> (Vec<Rung>, Vec<Refusal>) {
    let one = |rung| (vec![rung], Vec::new());
    match (asked, card) {
        (DataPath::Xdp, _) => one(Rung::Xdp),
        (DataPath::XdpGeneric, _) => one(Rung::XdpGeneric),
        (DataPath::Tc, _) => one(Rung::Tc),
        (DataPath::AfPacket, _) => one(Rung::AfPacket),
        (DataPath::Proxy, _) => one(Rung::Proxy),
        (DataPath::Auto, Card::Physical) => (vec![Rung::Xdp, Rung::Tc, Rung::AfPacket], Vec::new()),
        (DataPath::Auto, Card::Virtual(driver)) => {
            let reason = format!(
                "{interface} is a virtual interface ({driver}): checksums and segments that it leaves to a card would be lost"
            );
            (vec![Rung::Tc, Rung::AfPacket], vec![Refusal { rung: Rung::Xdp, reason }])
        }
    }
}

/// The rungs that this machine would have, each with the reason why packets cannot be had at all.
pub fn without_packets(interface: &str, card: &Card, reason: &str) -> Vec<Refusal> {
    let (rungs, mut refused) = ladder(DataPath::Auto, interface, card);
    refused.extend(rungs.into_iter().map(|rung| Refusal { rung, reason: reason.to_owned() }));
    refused
}

/// Why the names of a program end with the process although it could make them.
pub const OF_NAMESPACE: &str = "its names are in a /sys/fs/bpf that this mount namespace has alone (PrivateMounts= of the unit, unshare, ip netns exec), and \
                                end with it, so that the next start finds neither program nor flows: mount it for all before the start (`mount -t bpf bpf \
                                /sys/fs/bpf`)";

/// What a client or a backend loses where no packet is forwarded.
pub const LOST_BY_PROXY: &str = "replies go through this machine, and backends see an address of it instead of the client's (unless the pool has \
                                 source-address = \"client\")";

/// What the end of the task of an address in a panic means.
pub fn task_failed(address: impl Display, rung: Rung, pause: Duration) -> String {
    let consequence = match rung {
        Rung::AfPacket => {
            "its packets wait until then, and its flows are forgotten: most go to the same backends all the same"
        }
        Rung::Proxy => "its connections go on",
        Rung::Tc | Rung::Xdp | Rung::XdpGeneric => {
            "the program in the kernel forwards on meanwhile, with all flows, and learns of no change of backends"
        }
    };
    format!(
        "the task of {address} failed (a fault of penstock: the process log has the place) and begins anew in {} s; {consequence}",
        pause.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_interface_has_no_xdp_unless_it_is_asked_for() {
        let veth = Card::Virtual("veth".to_owned());
        let (rungs, refused) = ladder(DataPath::Auto, "eth0", &veth);
        assert_eq!(rungs, [Rung::Tc, Rung::AfPacket]);
        assert!(
            refused[0].rung == Rung::Xdp && refused[0].reason.contains("eth0 is a virtual interface (veth)")
        );
        assert_eq!(ladder(DataPath::Auto, "eth0", &Card::Physical).0, [Rung::Xdp, Rung::Tc, Rung::AfPacket]);
        for (asked, rung) in [(DataPath::Xdp, Rung::Xdp), (DataPath::AfPacket, Rung::AfPacket)] {
            assert_eq!(
                ladder(asked, "eth0", &veth),
                (vec![rung], Vec::new()),
                "what is asked for, or nothing"
            );
        }
    }

    #[test]
    fn the_last_rung_is_taken_with_the_reason_against_each_other_one() {
        let veth = Card::Virtual("veth".to_owned());
        assert_eq!(ladder(DataPath::Proxy, "eth0", &veth), (vec![Rung::Proxy], Vec::new()));
        let refused = without_packets("eth0", &veth, "no right");
        let rungs: Vec<_> = refused.iter().map(|one| one.rung).collect();
        assert_eq!(rungs, [Rung::Xdp, Rung::Tc, Rung::AfPacket]);
        assert!(refused[0].reason.contains("virtual") && refused[2].reason == "no right");
    }

    #[test]
    fn the_end_of_a_task_says_of_flows_what_is_so_on_its_path() {
        let said = |rung| task_failed("192.0.2.10:80", rung, Duration::from_secs(1));
        for rung in [Rung::Tc, Rung::Xdp, Rung::XdpGeneric] {
            assert!(said(rung).contains("forwards on meanwhile") && !said(rung).contains("forgotten"));
        }
        let text = said(Rung::AfPacket);
        assert!(
            text.starts_with("the task of 192.0.2.10:80 failed") && text.contains("anew in 1 s; its packets")
        );
        assert!(text.contains("its flows are forgotten"), "{text}");
    }
}
