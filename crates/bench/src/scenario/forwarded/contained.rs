//! The backend in a Docker container, and the paths to it that Docker provides.

use super::docker::{Container, Engine, Reach};
use super::{
    BACKEND, FORWARDER, HOST_NETWORK, LOAD, Work, forwarder_cpu, kernel_cpu, meter_of, pairs, watched,
};
use crate::agent::Agent;
use crate::contestant::{Contestant, Running};
use crate::context::{Context, descriptors_for};
use crate::error::Error;
use crate::load::Order;
use crate::load::gauge::Window;
use crate::load::http::Load;
use crate::plan::Group;
use crate::sample::Sample;
use crate::target::backend::HttpBackend;

/// Makes the group with the same work as in our own namespaces.
pub(super) fn group(engine: &Engine, work: Work) -> Group {
    let pairs = pairs(Way::ALL.iter().map(|way| way.name()));
    let (id, title) = (format!("docker-{}", work.id), format!("{}, in a container of Docker", work.title));
    let mut group = Group::new(id, title, "request", pairs);
    group.extent = work.extent;
    group.descriptors = descriptors_for(work.connections);
    group.columns.extend([forwarder_cpu(), kernel_cpu()]);
    for way in Way::ALL {
        let (version, engine) = (engine.version.clone(), engine.clone());
        let contestant =
            Contestant::new(way.name(), move |context| Contained::start(context, &engine, way, work));
        group.contestants.push(contestant.version(version));
    }
    group
}

/// Path from clients to the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// No container: the backend runs on the host.
    Loopback,
    Container(Reach),
}

impl Way {
    const ALL: [Way; 5] = [
        Way::Loopback,
        Way::Container(Reach::Socket),
        Way::Container(Reach::HostNetwork),
        Way::Container(Reach::Translated),
        Way::Container(Reach::Userland),
    ];

    fn name(self) -> &'static str {
        match self {
            Way::Loopback => "loopback",
            Way::Container(Reach::Socket) => "unix",
            Way::Container(Reach::HostNetwork) => HOST_NETWORK,
            Way::Container(Reach::Translated) => "dnat",
            Way::Container(Reach::Userland) => "docker-proxy",
        }
    }
}

/// A backend in a Docker container (or on the host), with its load.
struct Contained {
    server: Server,
    load: Load,
}

enum Server {
    Here(Agent),
    There(Container),
}

impl Contained {
    fn start(context: &Context, engine: &Engine, way: Way, work: Work) -> Result<Self, Error> {
        let (server, address) = match way {
            Way::Loopback => {
                let listen = context.free_tcp()?;
                let order = Order::HttpBackend(HttpBackend { listen: vec![listen.clone()], body: work.body });
                let (agent, _) = Agent::serve(context, "backend", order, &context.cores.target)?;
                (Server::Here(agent), listen)
            }
            Way::Container(reach) => {
                let container = engine.start(context, work.body, reach)?;
                let address = container.address.clone();
                (Server::There(container), address)
            }
        };
        Ok(Contained { server, load: work.load(address) })
    }
}

impl Running for Contained {
    fn configuration(&self) -> String {
        match &self.server {
            Server::Here(_) => String::new(),
            Server::There(container) => container.command.clone(),
        }
    }

    fn trial(&mut self, context: &Context, window: Window) -> Result<Sample, Error> {
        let (backend, forwarder) = match &self.server {
            Server::Here(agent) => (agent.pid(), None),
            Server::There(container) => (container.pid, container.proxy),
        };
        let mut metered = vec![meter_of(LOAD, 0), meter_of(BACKEND, backend)];
        metered.extend(forwarder.map(|pid| meter_of(FORWARDER, pid)));
        watched(|| Agent::load(context, "http load", Order::Http(self.load.clone()), window, metered))
    }

    fn elsewhere(&self) -> Vec<i32> {
        match &self.server {
            Server::Here(_) => Vec::new(),
            Server::There(container) => std::iter::once(container.pid).chain(container.proxy).collect(),
        }
    }
}
