//! Network namespaces in the layout of Docker: a host with a bridge, a container behind it, and a rule that forwards a
//! port. Both namespaces are made for the run, so that the machine's own network is unchanged.
//!
//! A namespace without a name ends with the process that holds it, together with its interfaces and rules. Therefore
//! even a killed run leaves nothing behind.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};

use crate::address::Address;
use crate::context::Context;
use crate::error::{Error, ErrorContext};
use crate::process::{self, Ending, Launch, Process};

/// A network namespace and the process that holds it.
#[derive(Debug)]
pub struct Namespace {
    holder: Process,
    enter: PathBuf,
}

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
    ip: PathBuf,
    unshare: PathBuf,
    nsenter: PathBuf,
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
        Ok(Tools {
            ip: process::find("ip", "iproute2")?,
            unshare: process::find("unshare", "util-linux")?,
            nsenter: process::find("nsenter", "util-linux")?,
            filter,
        })
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

impl Namespace {
    /// Makes a namespace with only a loopback interface, which is down.
    fn create(context: &Context, tools: &Tools, name: &str) -> Result<Self, Error> {
        let launch = Launch::new(name, &tools.unshare, &[]).args(["--net", "--", "sleep", "infinity"]);
        let mut holder = Process::start(context, &launch)?;
        let enter = PathBuf::from(format!("/proc/{}/ns/net", holder.pid()));
        let own =
            fs::read_link("/proc/self/ns/net").doing("look at the network namespace of this process")?;
        let start = Instant::now();
        // Wait until unshare(1) has left the namespace of this process.
        while fs::read_link(&enter).is_ok_and(|link| link == own) {
            context.check()?;
            if start.elapsed() > LIMIT {
                let (seconds, log) = (LIMIT.as_secs(), holder.last_words());
                return Err(Error::NotReady { what: name.to_owned(), seconds, log });
            }
            thread::sleep(POLL);
        }
        holder.check()?;
        Ok(Namespace { holder, enter })
    }

    /// Wraps a command to run in this namespace. nsenter(1) keeps the process id that the command would have outside.
    pub fn launch(&self, tools: &Tools, launch: Launch) -> Launch {
        let inside = Launch::new(launch.name, &tools.nsenter, &launch.cores)
            .arg(format!("--net={}", self.enter.display()))
            .arg("--")
            .arg(launch.program)
            .args(launch.arguments);
        Launch { environment: launch.environment, directory: launch.directory, ..inside }
    }

    /// Waits until `process` accepts connections at `address` in this namespace.
    pub fn wait_listening(
        &self,
        context: &Context,
        process: &mut Process,
        address: &Address,
    ) -> Result<(), Error> {
        let start = Instant::now();
        while self.connect(address).is_err() {
            context.check()?;
            process.check()?;
            if start.elapsed() > LIMIT {
                let (what, seconds, log) = (process.name().to_owned(), LIMIT.as_secs(), process.last_words());
                return Err(Error::NotReady { what, seconds, log });
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Connects on a separate thread, because setns(2) moves its calling thread into the namespace.
    fn connect(&self, address: &Address) -> io::Result<()> {
        let connect = || {
            setns(File::open(&self.enter)?, CloneFlags::CLONE_NEWNET)?;
            address.connect().map(drop)
        };
        thread::scope(|scope| scope.spawn(connect).join())
            .unwrap_or_else(|_| Err(io::Error::other("connecting panicked")))
    }

    fn run(&self, context: &Context, tools: &Tools, name: &str, commands: &str) -> Result<(), Error> {
        let shell = Launch::new(name, "/bin/sh", &[]).arg("-ec").arg(commands);
        let mut process = Process::start(context, &self.launch(tools, shell))?;
        match process.wait(context, LIMIT)? {
            Ending::Well => Ok(()),
            Ending::Badly => Err(Error::Ended { what: name.to_owned(), log: process.last_words() }),
        }
    }
}

impl Network {
    /// Makes both namespaces and connects them.
    pub fn create(context: &Context, tools: &Tools, translation: Translation) -> Result<Self, Error> {
        let host = Namespace::create(context, tools, "host namespace")?;
        let container = Namespace::create(context, tools, "container namespace")?;
        let ip = tools.ip.display();
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
            container.holder.pid()
        );
        let inner = format!(
            "\
{ip} link set lo up
{ip} address add {address}/24 dev eth0
{ip} link set eth0 up
{ip} route add default via {GATEWAY}
"
        );
        host.run(context, tools, "host's network", &outer)?;
        container.run(context, tools, "container's network", &inner)?;
        let commands = format!("# in the host's namespace\n{outer}# in the container's namespace\n{inner}");
        // Process ids are of no use in a report.
        let commands = commands.replace(&format!("netns {}", container.holder.pid()), "netns CONTAINER");
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

/// Returns an error with advice if this process may not make network namespaces.
pub fn permitted() -> Result<(), Error> {
    let status = fs::read_to_string("/proc/self/status").doing("read what this process may do")?;
    if may_make_networks(&status) {
        return Ok(());
    }
    let what = "making network namespaces".to_owned();
    let why =
        "it needs root: run it with sudo, or as `unshare --user --map-root-user penstock bench ...`, which \
               Debian allows to everybody"
            .to_owned();
    Err(Error::Unsupported { what, why })
}

/// Looks for CAP_NET_ADMIN and CAP_SYS_ADMIN among the effective capabilities (proc_pid_status(5), capabilities(7)).
fn may_make_networks(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or_default();
    let needed = 1 << 12 | 1 << 21;
    set & needed == needed
}

const GATEWAY: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const LIMIT: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(3);

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::context::{Extent, Interrupt};

    #[test]
    fn capabilities_decide_whether_networks_can_be_made() {
        assert!(may_make_networks("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(!may_make_networks("CapEff:\t0000000000000000\n"));
        assert!(!may_make_networks("CapEff:\t0000000000001000\n"));
        assert!(!may_make_networks(""));
    }

    #[test]
    fn a_network_is_reached_from_inside_only_and_ends_with_its_value() {
        let (Ok(()), Ok(tools)) = (permitted(), Tools::find()) else {
            return;
        };
        let context = Context::new("/nonexistent".into(), Interrupt::default(), Extent::Quick).unwrap();
        let network = Network::create(&context, &tools, Translation::Destination).unwrap();
        let listener = thread::scope(|scope| {
            scope
                .spawn(|| {
                    setns(File::open(&network.container.enter).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
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
        let holders = [&network.host, &network.container].map(|namespace| namespace.enter.clone());
        drop(network);
        assert!(holders.iter().all(|path| !path.exists()), "{holders:?}");
    }
}
