//! Cost of the path to a backend, on the host and in a container.
//!
//! A container engine publishes a port in two ways: the kernel changes the destination of connections (DNAT), and a
//! userland proxy relays those from the host's loopback interface. They are compared with a Unix socket in a directory
//! that host and container share, with the container's own address, with a container that uses the host's network, and
//! with a backend outside a container.

use std::time::Instant;

use crate::address::Address;
use crate::agent::Agent;
use crate::contestant::{Contestant, Running};
use crate::context::{Context, Extent, descriptors_for};
use crate::error::Error;
use crate::load::Order;
use crate::load::gauge::{Metered, Tally, Window};
use crate::load::http::{Load, Pace, Reuse};
use crate::meter::Processes;
use crate::namespace::{self, Namespace};
use crate::pairing::Pairing;
use crate::plan::{Group, Plan, Scenario};
use crate::process::Process;
use crate::sample::{Better, Metric, Sample, Scale};
use crate::target::backend::HttpBackend;
use crate::target::front::{CoreSet, Front, Protocol};
use crate::target::prepared::Prepared;
use crate::target::{Program, gunicorn};
use docker::Engine;
use network::{ANY, CONTAINER, LOOPBACK, Network, PUBLISHED, Tools, Translation, tcp};
use proxy::Userland;

mod contained;
pub mod docker;
pub mod network;
pub mod proxy;

#[derive(Debug)]
pub struct Forwarded;

impl Scenario for Forwarded {
    fn name(&self) -> &'static str {
        "forwarded"
    }

    fn question(&self) -> &'static str {
        "A backend in a container, through a forwarded port and through a Unix socket: what does the way cost?"
    }

    fn plan(&self, context: &Context) -> Result<Plan, Error> {
        let mut plan = Plan::default();
        match namespace::permitted().and_then(|()| Tools::find()) {
            Ok(tools) => plan_namespaces(context, &mut plan, &tools)?,
            Err(missing @ Error::Missing { .. }) => plan.note_missing(missing)?,
            // A user without permission for namespaces may still use a container engine.
            Err(Error::Unsupported { what, why }) if Engine::find().is_ok() => {
                plan.notes.push(format!("{what} is not possible here: {why}"));
            }
            Err(other) => return Err(other),
        }
        match Engine::find() {
            Ok(engine) => {
                plan.notes.push(format!(
                    "Groups `docker-...` are by {} itself. Its containers have Docker's default seccomp filter, \
                     whose cost is in every system call of the backend: `host-network` shows it beside `loopback`.",
                    engine.version
                ));
                plan.groups.extend(Work::ALL.iter().map(|work| contained::group(&engine, *work)));
            }
            Err(error) => plan.notes.push(format!(
                "Docker itself took no part ({error}): namespaces made by the run stand in, connected as Docker \
                 connects them."
            )),
        }
        Ok(plan)
    }
}

fn plan_namespaces(context: &Context, plan: &mut Plan, tools: &Tools) -> Result<(), Error> {
    let (userland, missing) = Userland::find();
    for error in missing {
        plan.note_missing(error)?;
    }
    if userland.iter().any(|program| matches!(program, Userland::Socat(_))) {
        plan.notes.push(
            "socat relays with a process for each connection, docker-proxy with one process for all."
                .to_owned(),
        );
    }
    let ways = [Way::Loopback, Way::Unix, Way::Bridge, Way::Translated];
    let ways: Vec<_> = ways.into_iter().chain(userland.into_iter().map(Way::Userland)).collect();
    plan.groups.extend(Work::ALL.iter().map(|work| work.group(tools, &ways)));
    let front = Program::Nginx.find(context).map(|_| Program::Nginx);
    let front = match front {
        Ok(front) => front,
        Err(error) => {
            plan.note_missing(error)?;
            Program::Penstock
        }
    };
    match gunicorn::find() {
        Ok(_) => plan.groups.push(application(tools, front, &ways)),
        Err(error) => plan.note_missing(error)?,
    }
    plan.notes.push(format!(
        "dnat: a rule of {} changes the destination of connections to an address of the host; every packet is \
         tracked, as on every machine with Docker. Connections that have ended are forgotten after 1 s instead of \
         120 s, so that a long run does not fill the table (nf_conntrack_max).",
        tools.filter_name()
    ));
    plan.notes.push(
        "CPU is that of clients, backend and everything between them together: a way through the kernel is paid by \
         the sender, and no single process shows it."
            .to_owned(),
    );
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Work {
    id: &'static str,
    title: &'static str,
    reuse: Reuse,
    connections: usize,
    body: usize,
    extent: Extent,
}

impl Work {
    const ALL: [Work; 3] = [
        Work {
            id: "new-connection",
            title: "a new connection for each request, 10 at once, replies of 100 B",
            reuse: Reuse::Never,
            connections: 10,
            body: 100,
            extent: Extent::Quick,
        },
        Work {
            id: "keep-alive",
            title: "64 kept connections, replies of 100 B",
            reuse: Reuse::Keep,
            connections: 64,
            body: 100,
            extent: Extent::Quick,
        },
        Work {
            id: "large",
            title: "10 kept connections, replies of 256 KiB",
            reuse: Reuse::Keep,
            connections: 10,
            body: 256 << 10,
            extent: Extent::Full,
        },
    ];

    fn group(self, tools: &Tools, ways: &[Way]) -> Group {
        let pairs = pairs(ways.iter().map(Way::name));
        let mut group = Group::new(self.id, format!("{}, in namespaces", self.title), "request", pairs);
        group.extent = self.extent;
        group.descriptors = descriptors_for(self.connections);
        group.columns.extend([forwarder_cpu(), kernel_cpu()]);
        for way in ways {
            let way = way.clone();
            let (name, version, tools) = (way.name(), way.version(), tools.clone());
            let contestant =
                Contestant::new(name, move |context| Setting::start(context, &tools, &way, self));
            group.contestants.push(versioned(contestant, version));
        }
        group
    }

    fn load(self, server: Address) -> Load {
        let (connections, reuse) = (self.connections, self.reuse);
        Load { server, path: "/".to_owned(), connections, reuse, pace: Pace::Closed }
    }
}

/// Path from clients on the host to the backend.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Way {
    /// No container: the backend runs on the host.
    Loopback,
    /// A Unix socket in a shared directory.
    Unix,
    /// The container's own address, reachable only from the host.
    Bridge,
    /// An address of the host whose connections the kernel forwards (DNAT).
    Translated,
    /// The host's loopback interface with a relaying process.
    Userland(Userland),
}

impl Way {
    fn name(&self) -> &'static str {
        match self {
            Way::Loopback => "loopback",
            Way::Unix => "unix",
            Way::Bridge => "bridge",
            Way::Translated => "dnat",
            Way::Userland(program) => program.name(),
        }
    }

    fn version(&self) -> Option<String> {
        match self {
            Way::Userland(program) => program.version(),
            _ => None,
        }
    }

    /// The rules of an engine: DNAT is active for both kinds of published port.
    fn translation(&self) -> Translation {
        match self {
            Way::Translated | Way::Userland(_) => Translation::Destination,
            Way::Loopback | Way::Unix | Way::Bridge => Translation::None,
        }
    }

    /// Returns the backend's listening address, and the address for clients.
    fn addresses(&self, context: &Context) -> (Address, Address) {
        match self {
            Way::Loopback => (tcp(LOOPBACK), tcp(LOOPBACK)),
            Way::Unix => {
                let socket = context.free_unix();
                (socket.clone(), socket)
            }
            Way::Bridge => (tcp(ANY), tcp(CONTAINER)),
            Way::Translated => (tcp(ANY), tcp(PUBLISHED)),
            Way::Userland(_) => (tcp(ANY), tcp(LOOPBACK)),
        }
    }
}

/// Pairs every path with each path without forwarding that precedes it.
fn pairs<'a>(names: impl Iterator<Item = &'a str>) -> Pairing {
    let names: Vec<_> = names.collect();
    let mut pairs = Vec::new();
    for reference in ["loopback", "unix", HOST_NETWORK] {
        let others = names.iter().skip_while(|name| **name != reference).skip(1);
        pairs.extend(others.map(|name| ((*name).to_owned(), reference.to_owned())));
    }
    Pairing::Pairs(pairs)
}

/// A backend in its own namespaces, and the path to it.
struct Setting {
    front: Option<Process>,
    forwarder: Option<Process>,
    backend: Backend,
    network: Network,
    configuration: String,
    load: Load,
}

enum Backend {
    Small(Agent),
    Application(Process),
}

impl Setting {
    fn start(context: &Context, tools: &Tools, way: &Way, work: Work) -> Result<Self, Error> {
        let network = Network::create(context, tools, way.translation())?;
        let (listen, server) = way.addresses(context);
        let launch = Agent::launch(context, "backend", &context.cores.target);
        let launch = network.place(way).launch(launch);
        let order = Order::HttpBackend(HttpBackend { listen: vec![listen], body: work.body });
        let (agent, _) = Agent::serve_as(context, &launch, order)?;
        let mut setting = Setting {
            front: None,
            forwarder: None,
            backend: Backend::Small(agent),
            configuration: network.commands.clone(),
            network,
            load: work.load(server),
        };
        setting.start_forwarder(context, way)?;
        Ok(setting)
    }

    /// Starts an application in the container and a reverse proxy on the host.
    fn with_application(context: &Context, tools: &Tools, way: &Way, front: Program) -> Result<Self, Error> {
        let network = Network::create(context, tools, way.translation())?;
        let (listen, server) = way.addresses(context);
        let Prepared { launch, configuration } = gunicorn::prepare(context, &listen)?;
        let place = network.place(way);
        let mut application = Process::start(context, &place.launch(launch))?;
        let ready = if listen == tcp(ANY) { tcp(LOOPBACK) } else { listen };
        place.wait_listening(context, &mut application, &ready)?;
        let mut setting = Setting {
            front: None,
            forwarder: None,
            backend: Backend::Application(application),
            configuration: format!("{}\n{configuration}\n", network.commands),
            network,
            load: Work { reuse: Reuse::Keep, ..Work::ALL[0] }.load(tcp(FRONT)),
        };
        setting.start_forwarder(context, way)?;
        let ends = Front::new(Protocol::Http, tcp(FRONT), server).on(CoreSet::Load);
        let Prepared { launch, configuration } = front.prepare(context, &ends)?;
        let host = &setting.network.host;
        let mut process = Process::start(context, &host.launch(launch))?;
        host.wait_listening(context, &mut process, &tcp(FRONT))?;
        setting.front = Some(process);
        setting.configuration.push_str(&configuration);
        Ok(setting)
    }

    fn start_forwarder(&mut self, context: &Context, way: &Way) -> Result<(), Error> {
        let Way::Userland(program) = way else {
            return Ok(());
        };
        let host = &self.network.host;
        let launch = program.launch(context, LOOPBACK, CONTAINER);
        let mut process = Process::start(context, &host.launch(launch))?;
        host.wait_listening(context, &mut process, &tcp(LOOPBACK))?;
        self.forwarder = Some(process);
        self.configuration.push_str("# the userland proxy, in the host's namespace\n");
        self.configuration.push_str(&program.command(LOOPBACK, CONTAINER));
        Ok(())
    }
}

impl Network {
    fn place(&self, way: &Way) -> &Namespace {
        if *way == Way::Loopback { &self.host } else { &self.container }
    }
}

impl Running for Setting {
    fn configuration(&self) -> String {
        self.configuration.clone()
    }

    fn trial(&mut self, context: &Context, window: Window) -> Result<Sample, Error> {
        let backend = match &mut self.backend {
            Backend::Small(agent) => agent.pid(),
            Backend::Application(process) => {
                process.check()?;
                process.pid()
            }
        };
        let mut metered = vec![meter_of(LOAD, 0), meter_of(BACKEND, backend)];
        for (name, process) in [(FORWARDER, &mut self.forwarder), (FRONT_NAME, &mut self.front)] {
            if let Some(process) = process {
                process.check()?;
                metered.push(meter_of(name, process.pid()));
            }
        }
        let launch = Agent::launch(context, "http load", &context.cores.load);
        let launch = self.network.host.launch(launch);
        watched(|| Agent::load_as(context, &launch, Order::Http(self.load.clone()), window, metered))
    }
}

/// Makes the group of a typical deployment: a reverse proxy on the host, an application in a container.
fn application(tools: &Tools, front: Program, ways: &[Way]) -> Group {
    let title =
        format!("{} on the host, Flask under gunicorn (one worker) in namespaces, 10 clients", front.name());
    let mut group = Group::new("application", title, "request", pairs(ways.iter().map(Way::name)));
    group.extent = Extent::Quick;
    group.descriptors = descriptors_for(Work::ALL[0].connections);
    group.headline = Metric::Rate;
    group.columns =
        vec![Metric::CpuPerUnit, Metric::LatencyMedian, Metric::Latency99, forwarder_cpu(), kernel_cpu()];
    for way in ways {
        let way = way.clone();
        let (name, version, tools) = (way.name(), way.version(), tools.clone());
        let start = move |context: &Context| Setting::with_application(context, &tools, &way, front);
        group.contestants.push(versioned(Contestant::new(name, start), version));
    }
    group
}

/// Converts a load's tally to a sample with the CPU time of forwarder and kernel threads. The time of kernel threads is
/// read before and after the whole load process, and scaled to the window.
fn watched(load: impl FnOnce() -> Result<Tally, Error>) -> Result<Sample, Error> {
    let kernel_threads = || Processes::read().kernel_threads();
    let (before, begin) = (kernel_threads(), Instant::now());
    let mut tally = load()?;
    let kernel = (kernel_threads() - before) * tally.seconds / begin.elapsed().as_secs_f64();
    let units = (tally.units as f64).max(1.0);
    tally.figures.insert(KERNEL.to_owned(), kernel / units);
    let forwarder = tally.cpu.get(FORWARDER).copied();
    tally.figures.extend(forwarder.map(|cpu| (FORWARDER.to_owned(), cpu.total / units)));
    Ok(tally.sample(&[LOAD, BACKEND, FORWARDER, FRONT_NAME]))
}

fn versioned(contestant: Contestant, version: Option<String>) -> Contestant {
    match version {
        Some(version) => contestant.version(version),
        None => contestant,
    }
}

fn meter_of(name: &str, pid: i32) -> Metered {
    Metered { name: name.to_owned(), pid }
}

fn forwarder_cpu() -> Metric {
    figure(FORWARDER, "of it forwarder")
}

fn kernel_cpu() -> Metric {
    figure(KERNEL, "+ kernel threads")
}

fn figure(key: &str, title: &str) -> Metric {
    let (key, title) = (key.to_owned(), title.to_owned());
    Metric::Figure { key, title, scale: Scale::Seconds, better: Better::Lower }
}

/// Listening address of the application's reverse proxy on the host.
const FRONT: std::net::SocketAddrV4 = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 8080);

/// Path to a container that uses the host's network.
const HOST_NETWORK: &str = "host-network";

const LOAD: &str = "load";
const BACKEND: &str = "backend";
const FORWARDER: &str = "forwarder";
const FRONT_NAME: &str = "front";
const KERNEL: &str = "kernel-threads";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::Cpu;

    #[test]
    fn every_forwarded_way_is_compared_with_both_that_need_no_forwarding() {
        let paired = |names: &[&str]| match pairs(names.iter().copied()) {
            Pairing::Pairs(found) => found,
            _ => panic!("not pairs"),
        };
        let owned = |(one, other): (&str, &str)| (one.to_owned(), other.to_owned());
        let expected = [("unix", "loopback"), ("dnat", "loopback"), ("dnat", "unix")];
        assert_eq!(paired(&["loopback", "unix", "dnat"]), expected.map(owned));
        let found = paired(&["loopback", "unix", "host-network", "dnat"]);
        let expected = [("host-network", "loopback"), ("host-network", "unix"), ("dnat", "host-network")];
        assert!(expected.map(owned).iter().all(|pair| found.contains(pair)), "{found:?}");
        assert_eq!(found.len(), 6);
    }

    #[test]
    fn what_the_forwarder_and_the_kernel_spend_is_shown_beside_the_sum() {
        let cpu = |total| Cpu { total, ..Cpu::default() };
        let cpus = [(LOAD, 1.0), (BACKEND, 2.0), (FORWARDER, 4.0)];
        let cpu = cpus.map(|(name, total)| (name.to_owned(), cpu(total))).into();
        let sample = watched(|| Ok(Tally { units: 10, seconds: 1.0, cpu, ..Tally::default() })).unwrap();
        assert_eq!(Metric::CpuPerUnit.of(&sample), Some(0.7));
        assert_eq!(forwarder_cpu().of(&sample), Some(0.4));
        assert!(kernel_cpu().of(&sample).is_some());
    }
}
