//! A network with a way through it, ready for trials.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use super::network::{INTERFACE, Interrupts, Machine, Network, Offloads, SERVICE, Tools, Use};
use super::way::{Transport, Way};
use crate::address::Address;
use crate::agent::Agent;
use crate::contestant::Running;
use crate::context::Context;
use crate::error::Error;
use crate::load::gauge::{INTERRUPTS, Metered, Tally, Window};
use crate::load::http::{Load, Pace, Reuse};
use crate::load::{Order, packets};
use crate::meter::{self, Processes};
use crate::process::{Launch, Process};
use crate::sample::Sample;
use crate::target::Program;

/// What is sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    Packets {
        /// Packets per second.
        rate: f64,
        interrupts: Interrupts,
    },
    Requests {
        reuse: Reuse,
        connections: usize,
        offloads: Offloads,
    },
}

/// CPU time per unit of the way without a balancer, in the round that is measured: the first contestant of each round sets
/// it for the others.
pub type Base = Rc<Cell<Option<f64>>>;

/// Figure of what a unit costs more than without a balancer.
pub const ABOVE: &str = "above-direct";

/// Figure of what the balancer's process costs.
pub const BALANCER: &str = "balancer";

pub struct Setting {
    way: Way,
    base: Base,
    balancer: Option<Process>,
    servers: Vec<Process>,
    network: Network,
    configuration: String,
    order: Order,
}

impl Setting {
    pub fn start(context: &Context, tools: &Tools, way: Way, work: &Work, base: Base) -> Result<Self, Error> {
        let first = way.first();
        let (usage, transport) = match work {
            Work::Packets { interrupts, .. } => (Use::Packets(interrupts.clone()), Transport::Udp),
            Work::Requests { offloads, .. } => {
                (Use::Connections { first, offloads: offloads.clone() }, Transport::Tcp)
            }
        };
        let network = Network::create(context, tools, &usage)?;
        let mut everything = network.commands.clone();
        let mut servers = Vec::new();
        if let Work::Requests { .. } = work {
            for server in [0, 1] {
                let (process, text) = web_server(context, &network, server)?;
                servers.push(process);
                everything.push_str(&format!("# nginx on server {}\n{text}", server + 1));
            }
        }
        let (balancer, text) = way.start(context, &network, transport)?;
        // The rest is equal for all ways, but for the machine to which the client sends: told once.
        let configuration = if balancer.is_some() { text } else { everything };
        let order = match work {
            Work::Packets { rate, .. } => Order::Packets(packets::Load {
                interface: INTERFACE.to_owned(),
                from: Machine::Client.ethernet(),
                to: first.ethernet(),
                destination: SERVICE,
                flows: FLOWS,
                rate: *rate,
                ends: way.ends().iter().map(|server| end(&network, *server)).collect(),
            }),
            Work::Requests { reuse, connections, .. } => Order::Http(Load {
                server: Address::Tcp(SocketAddr::V4(SERVICE)),
                path: "/".to_owned(),
                connections: *connections,
                reuse: *reuse,
                pace: Pace::Closed,
            }),
        };
        Ok(Setting { way, base, balancer, servers, network, configuration, order })
    }

    /// Everything that works on a packet.
    fn metered(&mut self) -> Result<Vec<Metered>, Error> {
        let tree = |name: String, pid: i32| Metered { name, pid };
        let mut metered = vec![tree("load".to_owned(), 0)];
        if let Some(balancer) = &mut self.balancer {
            balancer.check()?;
            metered.push(tree(BALANCER.to_owned(), balancer.pid()));
        }
        for (number, server) in self.servers.iter_mut().enumerate() {
            server.check()?;
            metered.push(tree(format!("server-{number}"), server.pid()));
        }
        let threads = Processes::read().softirq_threads().into_iter().enumerate();
        metered.extend(threads.map(|(number, pid)| tree(format!("softirq-{number}"), pid)));
        if meter::interrupts_are_apart() {
            metered.push(tree("interrupts".to_owned(), INTERRUPTS));
        }
        Ok(metered)
    }
}

impl Running for Setting {
    fn configuration(&self) -> String {
        self.configuration.clone()
    }

    fn trial(&mut self, context: &Context, window: Window) -> Result<Sample, Error> {
        let metered = self.metered()?;
        let launch = self.network.client.launch(Agent::launch(context, "load", &context.cores.load));
        let tally = Agent::load_as(context, &launch, self.order.clone(), window, metered)?;
        Ok(sample(tally, self.way, &self.base))
    }
}

/// Converts the tally of a trial: all that was metered is the CPU time of the work.
fn sample(mut tally: Tally, way: Way, base: &Base) -> Sample {
    let units = (tally.units as f64).max(1.0);
    let all: f64 = tally.cpu.values().map(|cpu| cpu.total).sum();
    if way == Way::Direct {
        base.set((tally.units > 0).then_some(all / units));
    } else if let Some(base) = base.get() {
        tally.figures.insert(ABOVE.to_owned(), all / units - base);
    }
    let balancer = tally.cpu.get(BALANCER).map(|cpu| cpu.total / units);
    tally.figures.extend(balancer.map(|cpu| (BALANCER.to_owned(), cpu)));
    let names: Vec<_> = tally.cpu.keys().cloned().collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    tally.sample(&names)
}

fn end(network: &Network, server: usize) -> packets::End {
    packets::End { pid: network.servers[server].pid(), interface: INTERFACE.to_owned() }
}

/// Starts nginx on a server, which answers each request with 100 bytes, and waits until it listens.
fn web_server(context: &Context, network: &Network, server: usize) -> Result<(Process, String), Error> {
    let prefix = context.path("nginx");
    let scratch = prefix.display();
    let user = if nix::unistd::geteuid().is_root() { "user root;\n" } else { "" };
    let body = "x".repeat(BODY);
    let configuration = format!(
        "\
{user}worker_processes 1;
daemon off;
pid {scratch}/nginx.pid;
error_log stderr error;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {scratch}/body;
    proxy_temp_path {scratch}/proxy;
    fastcgi_temp_path {scratch}/fastcgi;
    scgi_temp_path {scratch}/scgi;
    uwsgi_temp_path {scratch}/uwsgi;
    keepalive_requests 1000000000;
    server {{
        listen {SERVICE};
        location / {{ return 200 \"{body}\"; }}
    }}
}}
"
    );
    let path = context.write("nginx.conf", &configuration)?;
    std::fs::create_dir_all(&prefix)
        .map_err(|source| Error::Io { doing: format!("create {scratch}"), source })?;
    let launch = Launch::new("nginx", Program::Nginx.find(context)?, &context.cores.load)
        .arg("-p")
        .arg(&prefix)
        .args(["-e", "stderr", "-c"])
        .arg(path);
    let machine = &network.servers[server];
    let mut process = Process::start(context, &machine.launch(launch))?;
    machine.wait_listening(context, &mut process, &Address::Tcp(SocketAddr::V4(SERVICE)))?;
    Ok((process, configuration))
}

/// Flows of packets.
pub const FLOWS: u16 = 5_000;

/// Length of the body of a response.
const BODY: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::Cpu;
    use crate::sample::Metric;

    fn tally(cpu: &[(&str, f64)]) -> Tally {
        let cpu =
            cpu.iter().map(|(name, total)| ((*name).to_owned(), Cpu { total: *total, ..Cpu::default() }));
        Tally { units: 10, seconds: 1.0, cpu: cpu.collect(), ..Tally::default() }
    }

    #[test]
    fn everything_that_works_on_a_packet_is_counted_and_the_way_without_a_balancer_is_the_base() {
        let base = Base::default();
        let used = [("load", 1.0), (BALANCER, 2.0), ("softirq-0", 0.5)];
        let early = sample(tally(&used), Way::Pen, &base);
        assert_eq!(early.figures.get(ABOVE), None, "no base yet");
        let direct = sample(tally(&[("load", 1.0), ("softirq-0", 0.5)]), Way::Direct, &base);
        assert_eq!((Metric::CpuPerUnit.of(&direct), direct.figures.get(ABOVE)), (Some(0.15), None));
        let through = sample(tally(&used), Way::Pen, &base);
        assert_eq!(Metric::CpuPerUnit.of(&through), Some(0.35));
        assert!((through.figures[ABOVE] - 0.2).abs() < 1e-9);
        assert_eq!(through.figures[BALANCER], 0.2);
    }
}
