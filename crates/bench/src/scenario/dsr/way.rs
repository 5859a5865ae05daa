//! Ways of packets to the servers: straight there, or through a balancer that forwards them.

use std::ffi::OsString;

use super::network::{INTERFACE, Machine, Network, SERVICE};
use crate::context::Context;
use crate::error::Error;
use crate::process::{Launch, Process};
use crate::target::Program;

/// Way of a packet from the client to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// No balancer: a server has the address of the service.
    Direct,
    Penstock(&'static Rung),
    Pen,
}

/// Way of penstock to forward packets.
#[derive(Debug, PartialEq, Eq)]
pub struct Rung {
    /// Name of the contestant.
    pub name: &'static str,
    /// Lines of the listener's configuration that select the rung.
    selection: &'static str,
    /// Limit of the CPU time per packet above `direct`, as a percentage of pen's.
    pub percent_of_pen: u8,
}

/// Those that virtual network cards have, the fastest first.
pub const RUNGS: &[Rung] = &[
    Rung { name: "penstock-tc", selection: "data-path = \"tc\"\n", percent_of_pen: 10 },
    Rung { name: "penstock-xdp-generic", selection: "data-path = \"xdp-generic\"\n", percent_of_pen: 10 },
    Rung { name: "penstock-af_packet", selection: "data-path = \"af_packet\"\n", percent_of_pen: 50 },
];

/// Transport protocol of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Udp,
}

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Way::Direct => DIRECT,
            Way::Penstock(rung) => rung.name,
            Way::Pen => Program::Pen.name(),
        }
    }

    pub fn program(self) -> Option<Program> {
        match self {
            Way::Direct => None,
            Way::Penstock(_) => Some(Program::Penstock),
            Way::Pen => Some(Program::Pen),
        }
    }

    /// Machine to which the client sends its packets.
    pub fn first(self) -> Machine {
        match self {
            Way::Direct => Machine::Server(0),
            Way::Penstock(_) | Way::Pen => Machine::Balancer,
        }
    }

    /// Servers that packets reach.
    pub fn ends(self) -> &'static [usize] {
        match self {
            Way::Direct => &[0],
            Way::Penstock(_) | Way::Pen => &[0, 1],
        }
    }

    /// Starts the balancer, if there is one, on the target's cores. Also returns its configuration.
    pub fn start(
        self,
        context: &Context,
        network: &Network,
        transport: Transport,
    ) -> Result<(Option<Process>, String), Error> {
        let Some(program) = self.program() else {
            return Ok((None, String::new()));
        };
        let (arguments, configuration) = self.arguments(context, transport)?;
        let launch = Launch::new(program.name(), program.find(context)?, &context.cores.target);
        let process = Process::start(context, &network.balancer.launch(launch.args(arguments)))?;
        Ok((Some(process), configuration))
    }

    fn arguments(self, context: &Context, transport: Transport) -> Result<(Vec<OsString>, String), Error> {
        let servers = [0, 1].map(|server| Machine::Server(server).address());
        match self {
            Way::Direct => Ok((Vec::new(), String::new())),
            Way::Penstock(rung) => {
                let configuration = penstock(rung, transport);
                let path = context.write("penstock.toml", &configuration)?;
                Ok((vec!["serve".into(), "--config".into(), path.into()], configuration))
            }
            Way::Pen => {
                // By address and port of the client (-r): all load comes from few addresses.
                let mut words = vec!["-f".to_owned(), "-r".to_owned()];
                words.extend((transport == Transport::Udp).then(|| "-U".to_owned()));
                words.extend(["-O".to_owned(), format!("dsr_if {INTERFACE}"), SERVICE.to_string()]);
                words.extend(servers.map(|server| server.to_string()));
                let quoted =
                    words.join(" ").replace(&format!("dsr_if {INTERFACE}"), &format!("'dsr_if {INTERFACE}'"));
                Ok((words.into_iter().map(OsString::from).collect(), format!("pen {quoted}\n")))
            }
        }
    }
}

fn penstock(rung: &Rung, transport: Transport) -> String {
    let transport = match transport {
        Transport::Tcp => "tcp",
        Transport::Udp => "udp",
    };
    let [one, other] = [0, 1].map(|server| Machine::Server(server).address());
    let port = SERVICE.port();
    // pen checks no server.
    format!(
        "\
[process]
workers = 1
drain-timeout = \"100ms\"

[access-log]
target = \"off\"

[listener.bench]
bind = [\"{SERVICE}\"]
protocol = \"dsr\"
interface = \"{INTERFACE}\"
transport = \"{transport}\"
pool = \"bench\"
{}
[pool.bench]
backends = [\"{one}:{port}\", \"{other}:{port}\"]
balance = \"maglev\"
health = \"off\"
",
        rung.selection
    )
}

/// Name of the way without a balancer.
pub const DIRECT: &str = "direct";
