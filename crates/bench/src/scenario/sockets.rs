//! Cost of the kinds of socket between two processes. With one connection per message, the cost of the connection
//! dominates; on a kept connection, the cost of the bytes.

use crate::address::Address;
use crate::agent::Agent;
use crate::contestant::{Contestant, Running};
use crate::context::{Context, Extent};
use crate::error::Error;
use crate::load::Order;
use crate::load::gauge::{Metered, Window};
use crate::load::message::{Client, Exchange, Peer, Server};
use crate::pairing::Pairing;
use crate::plan::{Group, Plan, Scenario};
use crate::sample::{Metric, Sample};

#[derive(Debug)]
pub struct Sockets;

impl Scenario for Sockets {
    fn name(&self) -> &'static str {
        "sockets"
    }

    fn question(&self) -> &'static str {
        "TCP over loopback against the kinds of Unix sockets: what does a message cost?"
    }

    fn plan(&self, _: &Context) -> Result<Plan, Error> {
        let mut plan = Plan::default();
        plan.groups.extend(EACH.iter().map(|(size, extent)| group(Exchange::Connection, *size, *extent)));
        plan.groups.extend(KEPT.iter().map(|(size, extent)| group(Exchange::Kept, *size, *extent)));
        plan.notes = vec![
            "CPU is that of both ends together: on loopback the sender pays for the receiver's share of the network \
             stack, so one end alone says nothing."
                .to_owned(),
            "Sequenced packets travel in packets of at most 64 KiB; all other kinds are written in pieces of 64 KiB."
                .to_owned(),
        ];
        Ok(plan)
    }
}

/// Message sizes with one connection per message.
const EACH: &[(usize, Extent)] = &[(12, Extent::Quick), (64 << 10, Extent::Full)];
/// Message sizes on a kept connection.
const KEPT: &[(usize, Extent)] = &[
    (16, Extent::Quick),
    (256, Extent::Full),
    (4 << 10, Extent::Full),
    (64 << 10, Extent::Full),
    (1 << 20, Extent::Quick),
    (16 << 20, Extent::Full),
    (64 << 20, Extent::Full),
];

fn group(exchange: Exchange, size: usize, extent: Extent) -> Group {
    let size_shown = size_text(size);
    let (id, title) = match exchange {
        Exchange::Connection => ("connection", format!("{size_shown} messages, a new connection for each")),
        Exchange::Kept => ("kept", format!("1-byte request, {size_shown} reply, persistent connection")),
    };
    let mut group =
        Group::new(format!("{id}-{size}"), title, "message", Pairing::Reference("tcp".to_owned()));
    group.extent = extent;
    group.columns = vec![Metric::Rate, Metric::LatencyMedian, Metric::Latency99];
    let kinds = Kind::ALL.into_iter().filter(|kind| kind.suits(exchange));
    group.contestants = kinds.map(|kind| kind.contestant(exchange, size)).collect();
    group
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tcp,
    Unix,
    Abstract,
    Seqpacket,
    Socketpair,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Tcp, Kind::Unix, Kind::Abstract, Kind::Seqpacket, Kind::Socketpair];

    fn name(self) -> &'static str {
        match self {
            Kind::Tcp => "tcp",
            Kind::Unix => "unix",
            Kind::Abstract => "abstract",
            Kind::Seqpacket => "seqpacket",
            Kind::Socketpair => "socketpair",
        }
    }

    /// A socketpair(2) is always connected, so it cannot open a connection per message.
    fn suits(self, exchange: Exchange) -> bool {
        self != Kind::Socketpair || exchange == Exchange::Kept
    }

    fn contestant(self, exchange: Exchange, size: usize) -> Contestant {
        Contestant::new(self.name(), move |context| Pair::start(context, self, exchange, size))
    }

    fn address(self, context: &Context) -> Option<Address> {
        let path = context.path("s");
        match self {
            Kind::Tcp => Some(Address::Tcp(([127, 0, 0, 1], 0).into())),
            Kind::Unix => Some(Address::Unix(path)),
            Kind::Abstract => Some(Address::Abstract(path.display().to_string())),
            Kind::Seqpacket => Some(Address::Seqpacket(path)),
            Kind::Socketpair => None,
        }
    }
}

/// A client of the load generator, and its server. `server` is `None` for a socketpair: the client makes it and starts a
/// server at its other end.
struct Pair {
    server: Option<Agent>,
    client: Client,
}

impl Pair {
    fn start(context: &Context, kind: Kind, exchange: Exchange, size: usize) -> Result<Self, Error> {
        let cores = &context.cores.target;
        let Some(listen) = kind.address(context) else {
            return Ok(Pair {
                server: None,
                client: Client { peer: Peer::Child(cores.clone()), exchange, size },
            });
        };
        let order = Order::MessageServer(Server { listen: listen.clone(), exchange, size });
        let (server, mut addresses) = Agent::serve(context, "message server", order, cores)?;
        let address = addresses.pop().unwrap_or(listen);
        Ok(Pair { server: Some(server), client: Client { peer: Peer::Listens(address), exchange, size } })
    }
}

impl Running for Pair {
    fn configuration(&self) -> String {
        String::new()
    }

    fn trial(&mut self, context: &Context, window: Window) -> Result<Sample, Error> {
        let mut metered = vec![Metered { name: "client".to_owned(), pid: 0 }];
        metered.extend(
            self.server.as_ref().map(|server| Metered { name: "server".to_owned(), pid: server.pid() }),
        );
        let order = Order::MessageClient(self.client.clone());
        let tally = Agent::load(context, "message client", order, window, metered)?;
        Ok(tally.sample(&["client", "server"]))
    }
}

fn size_text(size: usize) -> String {
    match size {
        size if size >= 1 << 20 => format!("{} MiB", size >> 20),
        size if size >= 1 << 10 => format!("{} KiB", size >> 10),
        size => format!("{size} B"),
    }
}
