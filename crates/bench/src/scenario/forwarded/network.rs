//! Network namespaces in the layout of Docker: a host with a bridge, a container behind it, and a rule that forwards a
//! port.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;

use crate::address::Address;
use crate::context::Context;
use crate::error::Error;
use crate::namespace::{self, Namespace};
use crate::process;

/// A host and a container, connected as Docker connects them.
#[derive(Debug)]
pub struct Network {
    pub host: Namespace,
    pub container: Namespace,
    pub commands: String,
}

/// Programs that create the networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tools {
    namespaces: namespace::Tools,
    filter: Filter,
}

/// Firewall program that forwards a port.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Filter {
    Nftables(PathBuf),
    Iptables(PathBuf),
}

/// Whether the kernel forwards a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// No rule, and no connection tracking.
    None,
    /// The destination of connections to [`PUBLISHED`] becomes the container's address.
    Destination,
}

impl Tools {
    pub fn find() -> Result<Self, Error> {
        let filter = match process::find("nft", "nftables") {
            Ok(nft) => Filter::Nftables(nft),
            Err(missing) => {
                process::find("iptables", "iptables").map(Filter::Iptables).map_err(|_| missing)?
            }
        };
        Ok(Tools { namespaces: namespace::Tools::find()?, filter })
    }

    /// Name of the firewall program.
    pub fn filter_name(&self) -> &'static str {
        match self.filter {
            Filter::Nftables(_) => "nftables",
            Filter::Iptables(_) => "iptables",
        }
    }

    /// Commands that forward the port.
    fn translation(&self) -> String {
        let (from, port, to) = (PUBLISHED.ip(), PUBLISHED.port(), CONTAINER);
        let short = "echo 1 > /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_time_wait";
        match &self.filter {
            Filter::Nftables(nft) => format!(
                "\
{} -f - <<'END'
table ip bench {{
  chain output {{
    type nat hook output priority -100
    ip daddr {from} tcp dport {port} dnat to {to}
  }}
  chain postrouting {{
    type nat hook postrouting priority 100
  }}
}}
END
{short}
",
                nft.display()
            ),
            Filter::Iptables(iptables) => format!(
                "{} -t nat -A OUTPUT -p tcp -d {from} --dport {port} -j DNAT --to-destination {to}\n{short}\n",
                iptables.display()
            ),
        }
    }
}

impl Network {
    /// Makes both namespaces and connects them.
    pub fn create(context: &Context, tools: &Tools, translation: Translation) -> Result<Self, Error> {
        let host = Namespace::create(context, &tools.namespaces, "host namespace")?;
        let container = Namespace::create(context, &tools.namespaces, "container namespace")?;
        let ip = tools.namespaces.ip.display();
        let (own, address) = (PUBLISHED.ip(), CONTAINER.ip());
        let rule = match translation {
            Translation::None => String::new(),
            Translation::Destination => tools.translation(),
        };
        let outer = format!(
            "\
{ip} link set lo up
{ip} address add {own}/32 dev lo
{ip} link add bridge0 type bridge
{ip} address add {GATEWAY}/24 dev bridge0
{ip} link set bridge0 up
{ip} link add veth0 type veth peer name eth0 netns {}
{ip} link set veth0 master bridge0 up
{rule}",
            container.pid()
        );
        let inner = format!(
            "\
{ip} link set lo up
{ip} address add {address}/24 dev eth0
{ip} link set eth0 up
{ip} route add default via {GATEWAY}
"
        );
        host.run(context, "host's network", &outer)?;
        container.run(context, "container's network", &inner)?;
        let commands = format!("# in the host's namespace\n{outer}# in the container's namespace\n{inner}");
        // Process ids are of no use in a report.
        let commands = commands.replace(&format!("netns {}", container.pid()), "netns CONTAINER");
        Ok(Network { host, container, commands })
    }
}

/// Published address and port on the host (address range of RFC 5737).
pub const PUBLISHED: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 8000);

/// Address and port of the backend on the bridge.
pub const CONTAINER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 2), 8000);

/// Loopback address of the host with the same port.
pub const LOOPBACK: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8000);

/// All addresses of a namespace with the same port.
pub const ANY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 8000);

pub fn tcp(address: SocketAddrV4) -> Address {
    Address::Tcp(SocketAddr::V4(address))
}

const GATEWAY: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::TcpListener;
    use std::thread;

    use nix::sched::{CloneFlags, setns};

    use super::*;
    use crate::context::{Extent, Interrupt};

    #[test]
    fn a_network_is_reached_from_inside_only_and_ends_with_its_value() {
        let (Ok(()), Ok(tools)) = (namespace::permitted(), Tools::find()) else {
            return;
        };
        let context = Context::new("/nonexistent".into(), Interrupt::default(), Extent::Quick).unwrap();
        let network = Network::create(&context, &tools, Translation::Destination).unwrap();
        let listener = thread::scope(|scope| {
            scope
                .spawn(|| {
                    setns(File::open(network.container.path()).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
                    TcpListener::bind(ANY).unwrap()
                })
                .join()
                .unwrap()
        });
        for address in [PUBLISHED, CONTAINER] {
            network.host.connect(&tcp(address)).unwrap();
            assert_eq!(listener.accept().unwrap().0.local_addr().unwrap(), SocketAddr::V4(CONTAINER));
        }
        network.host.connect(&tcp(LOOPBACK)).unwrap_err();
        drop(listener);
        let holders = [&network.host, &network.container].map(|namespace| namespace.path().to_owned());
        drop(network);
        assert!(holders.iter().all(|path| !path.exists()), "{holders:?}");
    }
}
