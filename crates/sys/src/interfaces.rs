//! Network interfaces of this machine: their state, addresses, MTU, and what their network cards do for the kernel.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::ifaddrs::getifaddrs;
use nix::libc;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

mod details;
mod driver;

pub use details::{Details, details};
pub use driver::{DriverFeatures, Transmission};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub kind: Kind,
    pub link: Link,
    pub addresses: Vec<Address>,
}

/// How an interface answers the question who has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Loopback,
    /// By ARP and neighbour discovery.
    Answers,
    /// Not at all (tunnels, dummy interfaces).
    Silent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Switched off.
    Down,
    /// Switched on, and nothing is at the other end.
    NoCarrier,
    Up,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    pub ip: IpAddr,
    /// Bits of the network.
    pub prefix: u8,
}

/// All interfaces with their addresses, by name.
pub fn all() -> io::Result<Vec<Interface>> {
    let mut found: BTreeMap<String, Interface> = BTreeMap::new();
    for entry in getifaddrs()? {
        // An IPv4 address has its label, which may be longer than the name of its interface: `lo:0`.
        let name = entry.interface_name.split(':').next().unwrap_or_default().to_owned();
        let has = |flag| entry.flags.contains(flag);
        let kind = match () {
            () if has(InterfaceFlags::IFF_LOOPBACK) => Kind::Loopback,
            () if has(InterfaceFlags::IFF_NOARP) => Kind::Silent,
            () => Kind::Answers,
        };
        let link = match (has(InterfaceFlags::IFF_UP), has(InterfaceFlags::IFF_RUNNING)) {
            (false, _) => Link::Down,
            (true, false) => Link::NoCarrier,
            (true, true) => Link::Up,
        };
        let interface =
            found.entry(name.clone()).or_insert(Interface { name, kind, link, addresses: Vec::new() });
        if let Some(ip) = entry.address.as_ref().and_then(ip) {
            let mask = entry.netmask.as_ref().and_then(ip_of_mask);
            let longest = if ip.is_ipv4() { 32 } else { 128 };
            interface.addresses.push(Address { ip, prefix: mask.unwrap_or(longest) });
        }
    }
    Ok(found.into_values().collect())
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
}

fn ip_of_mask(mask: &SockaddrStorage) -> Option<u8> {
    let ones = match ip(mask)? {
        IpAddr::V4(mask) => mask.to_bits().count_ones(),
        IpAddr::V6(mask) => mask.to_bits().count_ones(),
    };
    u8::try_from(ones).ok()
}

/// What a network card does for the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offloads {
    pub driver: String,
    /// It puts packets together that it has received (large receive offload).
    pub lro: Switch,
    /// The kernel does that.
    pub gro: Switch,
    /// It cuts large packets that it sends (TCP segmentation offload).
    pub tso: Switch,
    /// The kernel does that, as late as possible.
    pub gso: Switch,
    /// It takes VLAN tags off frames that it receives.
    pub vlan: Switch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    On,
    Off,
}

/// What the network card of an interface does (ethtool(8), `-k`).
pub fn offloads(interface: &str) -> io::Result<Offloads> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let ask = |command: u32| -> io::Result<u32> {
        let mut value = [command, 0];
        ethtool(&socket, interface, value.as_mut_ptr().cast())?;
        Ok(value[1])
    };
    let switch = |is_on: bool| if is_on { Switch::On } else { Switch::Off };
    let flags = ask(ETHTOOL_GFLAGS)?;
    Ok(Offloads {
        driver: driver(interface)?.0,
        lro: switch(flags & ETH_FLAG_LRO != 0),
        gro: switch(ask(ETHTOOL_GGRO)? != 0),
        tso: switch(ask(ETHTOOL_GTSO)? != 0),
        gso: switch(ask(ETHTOOL_GGSO)? != 0),
        vlan: switch(flags & ETH_FLAG_RXVLAN != 0),
    })
}

/// The driver of an interface, and where its card is: empty for what software makes.
pub fn driver(interface: &str) -> io::Result<(String, String)> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // `struct ethtool_drvinfo`: the command, then driver, its version, firmware and bus in 32 bytes each.
    let mut information = [0_u8; DRIVER_INFORMATION];
    information[..4].copy_from_slice(&ETHTOOL_GDRVINFO.to_ne_bytes());
    ethtool(&socket, interface, information.as_mut_ptr().cast())?;
    let text = |at: usize| {
        let text = information[at..at + 32].split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    };
    Ok((text(4), text(100)))
}

/// State of the link of an interface, as it is at this moment. The flag of [`all`] follows a lost link up to a second later.
pub fn link(interface: &str) -> io::Result<Link> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let mut asked = request(interface)?;
    // SAFETY: the kernel reads the name and writes the flags, both within the struct, which lives until the call returns.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as _, &raw mut asked) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above has written this field; it is an integer, of which all values are valid.
    let flags = libc::c_int::from(unsafe { asked.ifr_ifru.ifru_flags });
    if flags & libc::IFF_UP == 0 {
        return Ok(Link::Down);
    }
    let mut value = [ETHTOOL_GLINK, 0];
    let has_carrier = match ethtool(&socket, interface, value.as_mut_ptr().cast()) {
        Ok(()) => value[1] != 0,
        // A driver that does not tell.
        Err(_) => flags & libc::IFF_RUNNING != 0,
    };
    Ok(if has_carrier { Link::Up } else { Link::NoCarrier })
}

/// Longest packet of an interface.
pub fn mtu(interface: &str) -> io::Result<u32> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let mut request = request(interface)?;
    // SAFETY: the kernel reads the name and writes the MTU, both within the struct, which lives until the call returns.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above has written this field; it is an integer, of which all values are valid.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(io::Error::other)
}

/// Asks ethtool's interface of the kernel; `data` begins with a command and has room for its answer.
fn ethtool(socket: &UdpSocket, interface: &str, data: *mut libc::c_char) -> io::Result<()> {
    let mut request = request(interface)?;
    request.ifr_ifru.ifru_data = data;
    // SAFETY: all callers give memory that lives until the call returns and has the length of the struct of its command:
    // `ethtool_value` (8 bytes) or `ethtool_drvinfo` (196 bytes).
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn request(interface: &str) -> io::Result<libc::ifreq> {
    // SAFETY: zeroes are a value of this struct of integers and pointers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    if interface.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// linux/sockios.h
const SIOCETHTOOL: libc::c_ulong = 0x8946;

// linux/ethtool.h
const ETHTOOL_GLINK: u32 = 0x0a;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GTSO: u32 = 0x1e;
const ETHTOOL_GGSO: u32 = 0x23;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_GGRO: u32 = 0x2b;
const ETH_FLAG_LRO: u32 = 1 << 15;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;
const DRIVER_INFORMATION: usize = 196;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_its_address_and_mtu_and_a_missing_interface_is_an_error() {
        let all = all().unwrap();
        let loopback = all.iter().find(|one| one.kind == Kind::Loopback).unwrap();
        assert!(mtu(&loopback.name).unwrap() >= 1280);
        let address = Address { ip: Ipv4Addr::LOCALHOST.into(), prefix: 8 };
        assert!(loopback.link == Link::Down || loopback.addresses.contains(&address), "{loopback:?}");
        assert_eq!(link(&loopback.name).unwrap(), loopback.link);
        assert!(link("no-such").is_err());
        assert!(mtu("no-such").is_err() && offloads("no-such").is_err());
        assert!(mtu("a-name-that-is-too-long").is_err());
    }
}
