//! Cost of a datagram in a relay of UDP.

use crate::address::Address;
use crate::contestant::Contestant;
use crate::context::{Context, Extent};
use crate::error::Error;
use crate::limit::Limit;
use crate::load::Order;
use crate::load::udp::{Load, Server, Talk, WINDOW};
use crate::pairing::Pairing;
use crate::plan::{Group, Plan, Scenario};
use crate::sample::Metric;
use crate::scenario::chain::{self, Chain, Count, Links, Neighbour};
use crate::target::front::{Front, Protocol, Replies};
use crate::target::{Program, nginx};

#[derive(Debug)]
pub struct Udp;

impl Scenario for Udp {
    fn name(&self) -> &'static str {
        "udp"
    }

    fn question(&self) -> &'static str {
        "UDP relays: what do a query and a datagram of a long flow cost?"
    }

    fn plan(&self, context: &Context) -> Result<Plan, Error> {
        let mut plan = Plan::default();
        let mut programs =
            chain::present(context, &mut plan, &[Program::Penstock, Program::Nginx, Program::Pen])?;
        if programs.contains(&Program::Nginx)
            && let Err(error) = nginx::find_stream_module()
        {
            programs.retain(|program| *program != Program::Nginx);
            plan.note_missing(error)?;
        }
        plan.groups.extend(Work::ALL.iter().map(|work| work.group(context, &programs)));
        plan.notes = vec![
            "`direct` is the backend alone, on the core that the relays have.".to_owned(),
            "In `queries` penstock and nginx end a flow with its reply. pen keeps it until its table of 256 is full."
                .to_owned(),
            "The sender pays for the receiver's share of the network stack: the CPU of a relay is mostly the kernel's, \
             and that of its two sends."
                .to_owned(),
            "A spinning process shares the relay's core: the rate says how much was measured, not how fast the relay is."
                .to_owned(),
        ];
        Ok(plan)
    }
}

/// Work of one group.
#[derive(Clone, Copy, Debug)]
struct Work {
    id: &'static str,
    unit: &'static str,
    talk: Talk,
    clients: usize,
    extent: Extent,
}

impl Work {
    const ALL: [Work; 4] = [
        Work { id: "queries", unit: "query", talk: Talk::Queries, clients: MANY, extent: Extent::Quick },
        Work { id: "flow", unit: "exchange", talk: Talk::Kept, clients: 1, extent: Extent::Quick },
        Work { id: "flows", unit: "exchange", talk: Talk::Kept, clients: FLOWS, extent: Extent::Full },
        Work { id: "download", unit: "datagram", talk: Talk::Download, clients: 1, extent: Extent::Full },
    ];

    fn title(&self) -> String {
        let flows = match self.clients {
            1 => "one flow".to_owned(),
            clients => format!("{clients} flows"),
        };
        match self.talk {
            Talk::Queries => {
                format!("100 bytes from a new port and 100 bytes back, {} clients at once", self.clients)
            }
            Talk::Kept => format!("{flows}, 100 bytes each way, {WINDOW} datagrams on their way in each"),
            Talk::Download => format!("{flows}, {WINDOW} datagrams of 1,200 bytes for each question"),
        }
    }

    fn replies(&self) -> Replies {
        match self.talk {
            Talk::Queries => Replies::One,
            Talk::Kept | Talk::Download => Replies::Any,
        }
    }

    fn group(&self, context: &Context, programs: &[Program]) -> Group {
        let work = *self;
        let mut group = Group::new(work.id, work.title(), work.unit, Pairing::Subject("penstock".to_owned()));
        group.extent = work.extent;
        group.descriptors = FRONT as u64 * 3;
        group.columns = vec![Metric::Rate, chain::backend_cpu(), Metric::LatencyMedian];
        let direct = move |context: &Context| Chain::start(context, work.links(context, None)?);
        group.contestants.push(Contestant::new("direct", direct));
        for program in programs.iter().copied() {
            let start = move |context: &Context| Chain::start(context, work.links(context, Some(program))?);
            group.contestants.push(chain::contestant(context, program.name(), program, start));
        }
        if work.extent == Extent::Quick {
            group.limits = vec![Limit::ratio("penstock", Metric::CpuPerUnit, &["nginx", "pen"], 0.7)];
        }
        group
    }

    fn links(&self, context: &Context, front: Option<Program>) -> Result<Links, Error> {
        let behind = context.free_udp()?;
        let front = match front {
            None => None,
            Some(program) => {
                let front = Front::new(Protocol::Udp(self.replies()), context.free_udp()?, behind.clone());
                Some((program, front.connections(FRONT)))
            }
        };
        let (talk, clients) = (self.talk, self.clients);
        Ok(Links {
            backend: Order::UdpServer(Server { listen: behind, talk }),
            front,
            company: Neighbour::Spinning,
            load: Box::new(move |server: Address, _| Order::Udp(Load { server, talk, clients })),
            count: Count::Units,
        })
    }
}

/// Long flows at once: the datagrams of all fit into the receive buffer of a socket.
const FLOWS: usize = 6;

/// Queries at once.
const MANY: usize = 64;

/// Flows that a relay is told to hold.
const FRONT: usize = 256;
