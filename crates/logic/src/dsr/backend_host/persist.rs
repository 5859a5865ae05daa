//! Files by which a server has its addresses and settings again after a restart of the machine.

use std::net::IpAddr;

use super::settings::Set;
use super::{LOOPBACK, single};

text::words! {
    /// What sets up the network of a machine at its start.
    pub enum Persist: "way to persist" {
        SystemdNetworkd = "systemd-networkd",
        Ifupdown = "ifupdown",
        Netplan = "netplan",
        /// The settings alone: something else has the addresses.
        SysctlD = "sysctl.d",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub path: String,
    pub text: String,
    pub mode: u32,
}

/// What the first line of each file of ours holds.
pub const MARK: &str = "Written by penstock backend setup";

/// All programs but Netplan, whose files may hold passwords.
const FOR_ALL: u32 = 0o644;
const FOR_ROOT: u32 = 0o600;

/// The configuration files that add a VIP, and make the settings that it needs, at each boot of a server.
pub fn files(persist: Persist, ip: IpAddr, sets: &[Set]) -> Vec<File> {
    let head = format!("# {MARK}; penstock backend undo --vip {ip} removes it.\n");
    // Dots and colons are no letters of names in interfaces(5).
    let name = ip.to_string().replace(['.', ':'], "-");
    let (address, sets) = (format!("{ip}/{}", single(ip)), if ip.is_ipv4() { sets } else { &[] });
    let file = |path: String, body: &str, mode| File { path, text: format!("{head}{body}"), mode };
    let mut lines: Vec<_> = sets.iter().map(|set| format!("{} = {}\n", set.name(), set.to)).collect();
    lines.insert(
        0,
        format!("# {ip} is on {LOOPBACK}: no ARP request for it is answered, and none names it.\n"),
    );
    let sysctl = (!sets.is_empty())
        .then(|| file(format!("/etc/sysctl.d/60-penstock-vip-{name}.conf"), &lines.concat(), FOR_ALL));
    match persist {
        Persist::SysctlD => sysctl.into_iter().collect(),
        Persist::SystemdNetworkd => {
            let network = format!("/etc/systemd/network/50-penstock-{LOOPBACK}.network");
            // One file of all for an interface counts (systemd.network(5)), with all files in its directory.
            let shared = File {
                text: format!("# {MARK}; its addresses are in {network}.d.\n[Match]\nName={LOOPBACK}\n"),
                path: network.clone(),
                mode: FOR_ALL,
            };
            let own =
                file(format!("{network}.d/{name}.conf"), &format!("[Network]\nAddress={address}\n"), FOR_ALL);
            sysctl.into_iter().chain([shared, own]).collect()
        }
        Persist::Netplan => {
            let body = format!(
                "network:\n  version: 2\n  ethernets:\n    {LOOPBACK}:\n      renderer: networkd\n      match:\n        name: {LOOPBACK}\n      addresses:\n        - \"{address}\"\n"
            );
            let own = file(format!("/etc/netplan/60-penstock-vip-{name}.yaml"), &body, FOR_ROOT);
            sysctl.into_iter().chain([own]).collect()
        }
        Persist::Ifupdown => {
            let family = if ip.is_ipv4() { "inet" } else { "inet6" };
            let words: Vec<_> = sets.iter().map(Set::assignment).collect();
            let before = match words.is_empty() {
                true => String::new(),
                false => format!("    pre-up sysctl -qw {}\n", words.join(" ")),
            };
            let body = format!(
                "# /etc/network/interfaces must have: source /etc/network/interfaces.d/*\n\
                 iface {LOOPBACK} {family} static\n    address {address}\n{before}"
            );
            vec![file(format!("/etc/network/interfaces.d/penstock-vip-{name}"), &body, FOR_ALL)]
        }
    }
}
