//! Sentences for operators about the balancer itself: what keeps packets from a service, and the command that mends it.
//! `crates/proxy/src/dsr/machine.rs` watches for it.

use std::net::IpAddr;

use text::shell::word;

/// Why nothing arrives at the interface of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLink {
    /// There is no such interface.
    Missing,
    /// The interface is switched off.
    Down,
    NoCarrier,
}

/// Where packets of the service are forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarder {
    /// By this process: the kernel has them as well.
    Process,
    /// By a program that takes them from the kernel.
    Program,
    /// The kernel has them alone, and gives connections to this process.
    Kernel,
}

pub fn no_link(interface: &str, why: NoLink) -> String {
    match why {
        NoLink::Missing => format!(
            "there is no network interface {interface}, and nothing is known of its backends: `ip link` shows them all"
        ),
        NoLink::Down => format!(
            "{interface} is down, and nothing is known of its backends: `ip link set {} up`",
            word(interface)
        ),
        NoLink::NoCarrier => format!(
            "{interface} is up and has no link, and nothing is known of its backends: its cable, or the port at the other end, is out"
        ),
    }
}

/// What becomes of a packet of a client meanwhile.
pub fn no_packets(interface: &str, why: NoLink) -> String {
    match why {
        NoLink::Missing => format!("no packet comes in: there is no network interface {interface}"),
        NoLink::Down => {
            format!("no packet comes in: {interface} is down: `ip link set {} up`", word(interface))
        }
        NoLink::NoCarrier => format!(
            "no packet comes in: {interface} is up and has no link: its cable, or the port at the other end, is out"
        ),
    }
}

/// The machine has the address of the service, on this interface with this prefix if that is known.
pub fn own_address(vip: IpAddr, on: Option<(&str, u8)>, forwarder: Forwarder) -> String {
    let what = match forwarder {
        Forwarder::Process | Forwarder::Kernel => "its kernel answers clients itself, with resets",
        Forwarder::Program => {
            "its kernel answers what is not for the service, and the next start of penstock is refused"
        }
    };
    match on {
        Some((name, prefix)) => format!(
            "{name} of this machine has {vip} now: {what}: `ip address del {vip}/{prefix} dev {}`",
            word(name)
        ),
        None => {
            format!("this machine has {vip} now: {what}: `ip route show table local` tells where")
        }
    }
}

/// The machine does not have the address of a service that needs it (`data-path = "proxy"`).
pub fn lost_address(vip: IpAddr, interface: &str) -> String {
    let prefix = if vip.is_ipv4() { 32 } else { 128 };
    format!(
        "this machine does not have {vip} any more: no client reaches the service here: `ip address add {vip}/{prefix} dev {}`",
        word(interface)
    )
}

/// The kernel forwards packets of this family on the interface.
pub fn forwarding(vip: IpAddr, interface: &str) -> String {
    let family = if vip.is_ipv4() { "ipv4" } else { "ipv6" };
    format!(
        "the kernel forwards packets on {interface}, those of this service as well, and tells clients that no machine has the address: `sysctl -w net/{family}/conf/{}/forwarding=0`",
        word(interface)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sentence_has_the_command_that_mends_it() {
        let (v4, v6) = ("192.0.2.10".parse().unwrap(), "2001:db8::10".parse().unwrap());
        for (text, parts) in [
            (no_link("eth0", NoLink::Down), ["eth0 is down", "`ip link set eth0 up`"]),
            (no_link("eth0", NoLink::NoCarrier), ["has no link", "cable"]),
            (no_link("eth0", NoLink::Missing), ["no network interface eth0", "`ip link`"]),
            (no_packets("eth0", NoLink::Missing), ["no packet comes in", "no network interface eth0"]),
            (no_packets("e'0", NoLink::Down), ["no packet comes in", "`ip link set 'e'\\''0' up`"]),
            (no_packets("eth0", NoLink::NoCarrier), ["no packet comes in", "cable"]),
            (
                own_address(v4, Some(("lo", 32)), Forwarder::Process),
                ["with resets", "`ip address del 192.0.2.10/32 dev lo`"],
            ),
            (
                own_address(v6, Some(("eth1", 64)), Forwarder::Program),
                ["the next start", "`ip address del 2001:db8::10/64 dev eth1`"],
            ),
            (own_address(v4, None, Forwarder::Process), ["this machine has 192.0.2.10", "table local"]),
            (
                lost_address(v6, "eth0"),
                ["not have 2001:db8::10 any more", "`ip address add 2001:db8::10/128 dev eth0`"],
            ),
            (forwarding(v4, "eth0"), ["no machine has", "sysctl -w net/ipv4/conf/eth0/forwarding=0"]),
            (forwarding(v6, "e'0"), ["no machine has", "sysctl -w net/ipv6/conf/'e'\\''0'/forwarding=0"]),
        ] {
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
    }
}
