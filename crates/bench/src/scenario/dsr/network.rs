//! Four machines in network namespaces, connected by a bridge: a client, a balancer and two servers. Each has one network
//! card, `eth0`, whose Ethernet address the bridge is told, so that it floods nothing.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;

use crate::context::Context;
use crate::error::Error;
use crate::namespace::{self, Namespace};
use crate::process;

#[derive(Debug)]
pub struct Network {
    pub client: Namespace,
    pub balancer: Namespace,
    pub servers: [Namespace; 2],
    /// The shell commands that the bench ran to make the network; the report shows them.
    pub commands: String,
    bridge: Namespace,
}

/// Programs that create the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tools {
    namespaces: namespace::Tools,
    bridge: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    Client,
    Balancer,
    Server(usize),
}

/// What a network is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// Servers drop the packets for the [`VIP`] as not theirs.
    Packets(Interrupts),
    /// Servers have the [`VIP`], and the client sends what is for it to the first machine on the way.
    Connections { first: Machine, offloads: Offloads },
}

/// Cores that receive packets in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interrupts {
    /// The one that sends, as virtual network cards have it.
    Sender,
    /// Those of the machine that receives, as the network card of a real one has them.
    Own { balancer: Vec<usize>, servers: Vec<usize> },
}

/// What the client leaves to its network card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offloads {
    /// What it does by default: checksums and the segmentation of what is sent.
    On,
    /// Nothing: switched off with this `ethtool`.
    Off(PathBuf),
}

impl Tools {
    pub fn find() -> Result<Self, Error> {
        let namespaces = namespace::Tools::find()?;
        Ok(Tools { namespaces, bridge: process::find("bridge", "iproute2")? })
    }
}

impl Machine {
    const ALL: [Machine; 4] = [Machine::Client, Machine::Balancer, Machine::Server(0), Machine::Server(1)];

    fn number(self) -> u8 {
        match self {
            Machine::Client => 12,
            Machine::Balancer => 13,
            Machine::Server(index) => 14 + index as u8,
        }
    }

    pub fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, self.number())
    }

    /// Address of its network card, one that is administered locally.
    pub fn ethernet(self) -> [u8; 6] {
        [2, 0, 0, 0, 0, self.number()]
    }

    fn ethernet_words(self) -> String {
        format!("02:00:00:00:00:{:02x}", self.number())
    }

    fn name(self) -> String {
        match self {
            Machine::Client => "client".to_owned(),
            Machine::Balancer => "balancer".to_owned(),
            Machine::Server(index) => format!("server {}", index + 1),
        }
    }

    /// Commands of its side of the network.
    fn commands(self, ip: &str, usage: &Use) -> String {
        let mut commands = format!(
            "\
[ ! -e {SETTINGS}/ipv6/conf/all/disable_ipv6 ] || echo 1 > {SETTINGS}/ipv6/conf/all/disable_ipv6
echo 0 > {SETTINGS}/ipv4/ip_forward
echo 0 > {SETTINGS}/ipv4/conf/all/rp_filter
echo 0 > {SETTINGS}/ipv4/conf/eth0/rp_filter
{ip} link set lo up
{ip} link set eth0 address {}
{ip} address add {}/24 dev eth0
",
            self.ethernet_words(),
            self.address()
        );
        let mut receives = None;
        match (self, usage) {
            (Machine::Balancer, Use::Packets(Interrupts::Own { balancer, .. })) => receives = Some(balancer),
            (Machine::Server(_), Use::Packets(Interrupts::Own { servers, .. })) => receives = Some(servers),
            (Machine::Server(_), Use::Connections { .. }) => commands.push_str(&format!(
                "\
echo 1 > {SETTINGS}/ipv4/conf/all/arp_ignore
echo 2 > {SETTINGS}/ipv4/conf/all/arp_announce
{ip} address add {VIP}/32 dev lo
"
            )),
            (Machine::Client, Use::Connections { offloads: Offloads::Off(ethtool), .. }) => {
                commands.push_str(&format!("{} -K eth0 tx off\n", ethtool.display()));
            }
            _ => {}
        }
        commands.push_str(&format!("{ip} link set eth0 up\n"));
        commands.extend(receives.map(|cores| steering(cores)));
        if let (Machine::Client, Use::Connections { first, .. }) = (self, usage) {
            let first = first.ethernet_words();
            commands.push_str(&format!("{ip} neigh replace {VIP} lladdr {first} dev eth0 nud permanent\n"));
        }
        commands
    }
}

/// Command that lets some cores receive what comes to the machine (receive packet steering). The files that set it are
/// those of the network in which the file system was mounted.
fn steering(cores: &[usize]) -> String {
    let mask = cores.iter().fold(0_u64, |mask, core| mask | 1_u64.checked_shl(*core as u32).unwrap_or(0));
    let file = "/sys/class/net/eth0/queues/rx-0/rps_cpus";
    format!("unshare --mount /bin/sh -ec 'mount -t sysfs sysfs /sys; echo {mask:x} > {file}'\n")
}

impl Network {
    /// Makes the machines and connects them.
    pub fn create(context: &Context, tools: &Tools, usage: &Use) -> Result<Self, Error> {
        let create = |name: &str| Namespace::create(context, &tools.namespaces, name);
        let machine = |machine: Machine| create(&machine.name());
        let mut network = Network {
            bridge: create("bridge")?,
            client: machine(Machine::Client)?,
            balancer: machine(Machine::Balancer)?,
            servers: [machine(Machine::Server(0))?, machine(Machine::Server(1))?],
            commands: String::new(),
        };
        let (ip, fdb) = (tools.namespaces.ip.display().to_string(), tools.bridge.display());
        // With Docker on the machine, frames on bridges would pass the packet filter of IP.
        let mut commands = format!(
            "\
[ ! -e {SETTINGS}/{BRIDGE_FILTER} ] || echo 0 > {SETTINGS}/{BRIDGE_FILTER}
{ip} link add bridge0 type bridge mcast_snooping 0
{ip} link set bridge0 up
"
        );
        for machine in Machine::ALL {
            let (port, ethernet) = (format!("port{}", machine.number()), machine.ethernet_words());
            let pid = network.machine(machine).pid();
            commands.push_str(&format!(
                "\
{ip} link add {port} type veth peer name eth0 netns {pid}
{ip} link set {port} master bridge0 up
{fdb} fdb replace {ethernet} dev {port} master static
"
            ));
        }
        network.bridge.run(context, "the bridge's network", &commands)?;
        let mut told = format!("# bridge\n{commands}");
        for machine in Machine::ALL {
            // Process ids are of no use in a report.
            told = told.replace(&format!("netns {}\n", network.machine(machine).pid()), "netns MACHINE\n");
            let commands = machine.commands(&ip, usage);
            network.machine(machine).run(
                context,
                &format!("network of the {}", machine.name()),
                &commands,
            )?;
            told.push_str(&format!("# {}\n{commands}", machine.name()));
        }
        network.commands = told;
        Ok(network)
    }

    pub fn machine(&self, machine: Machine) -> &Namespace {
        match machine {
            Machine::Client => &self.client,
            Machine::Balancer => &self.balancer,
            Machine::Server(index) => &self.servers[index],
        }
    }
}

/// Address of the service.
pub const VIP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 100);

/// Address and port of the service.
pub const SERVICE: SocketAddrV4 = SocketAddrV4::new(VIP, 80);

/// Network interface of each machine.
pub const INTERFACE: &str = "eth0";

const SETTINGS: &str = "/proc/sys/net";
const BRIDGE_FILTER: &str = "bridge/bridge-nf-call-iptables";

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io;
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::thread;
    use std::time::Duration;

    use nix::sched::{CloneFlags, setns};

    use super::*;
    use crate::context::{Extent, Interrupt};

    /// Does something in a namespace, on a thread of its own.
    fn inside<T: Send>(namespace: &Namespace, work: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            setns(File::open(namespace.path()).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
            work()
        };
        thread::scope(|scope| scope.spawn(enter).join().unwrap())
    }

    #[test]
    fn packets_are_steered_to_the_cores_of_a_machine() {
        let own = Use::Packets(Interrupts::Own { balancer: vec![0, 2], servers: vec![1] });
        let steered = |machine: Machine| machine.commands("ip", &own);
        assert!(steered(Machine::Balancer).contains("echo 5 > /sys/class/net/eth0/queues/rx-0/rps_cpus"));
        assert!(steered(Machine::Server(1)).contains("echo 2 > "));
        assert!(!steered(Machine::Client).contains("rps_cpus"));
        assert!(!Machine::Balancer.commands("ip", &Use::Packets(Interrupts::Sender)).contains("rps_cpus"));
    }

    #[test]
    fn a_server_is_reached_at_the_address_of_the_service_and_the_network_ends_with_its_value() {
        let (Ok(()), Ok(tools)) = (namespace::permitted(), Tools::find()) else {
            return;
        };
        let context = Context::new("/nonexistent".into(), Interrupt::default(), Extent::Quick).unwrap();
        let usage = Use::Connections { first: Machine::Server(1), offloads: Offloads::On };
        let network = Network::create(&context, &tools, &usage).unwrap();
        let listener = inside(&network.servers[1], || TcpListener::bind(SERVICE).unwrap());
        let connect = || -> io::Result<TcpStream> {
            TcpStream::connect_timeout(&SocketAddr::V4(SERVICE), Duration::from_secs(30))
        };
        let stream = inside(&network.client, connect).unwrap();
        let (_, peer) = listener.accept().unwrap();
        assert_eq!(peer, stream.local_addr().unwrap());
        assert_eq!(peer.ip(), Machine::Client.address());
        drop((stream, listener));
        let holders = Machine::ALL.map(|machine| network.machine(machine).path().to_owned());
        drop(network);
        assert!(holders.iter().all(|path| !path.exists()), "{holders:?}");
    }
}
