//! Cost of a connection, a gigabyte and an idle client in a TCP relay.

use std::time::Duration;

use crate::address::Address;
use crate::contestant::Contestant;
use crate::context::{Context, Extent, descriptors_for};
use crate::error::Error;
use crate::limit::Limit;
use crate::load::tcp::{Load, Server, TrafficShape};
use crate::load::{Order, idle};
use crate::pairing::Pairing;
use crate::plan::{Group, Length, Plan, Scenario};
use crate::sample::Metric;
use crate::scenario::chain::{self, Chain, Count, Fresh, Links, Neighbour};
use crate::target::front::{BackendEnd, Engine, Front, Protocol, SPARE, Splicing};
use crate::target::{Program, nginx};

#[derive(Debug)]
pub struct Tcp;

impl Scenario for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn question(&self) -> &'static str {
        "TCP relays: what do a new connection, a gigabyte and an idle connection cost?"
    }

    fn plan(&self, context: &Context) -> Result<Plan, Error> {
        let mut plan = Plan::default();
        let all = [Program::Penstock, Program::Haproxy, Program::Nginx, Program::Pen];
        let mut programs = chain::present(context, &mut plan, &all)?;
        if programs.contains(&Program::Nginx)
            && let Err(error) = nginx::find_stream_module()
        {
            programs.retain(|program| *program != Program::Nginx);
            plan.note_missing(error)?;
        }
        plan.groups.extend(Work::ALL.iter().map(|work| work.group(context, &programs)));
        plan.groups.push(idle(context, &programs));
        plan.notes = vec![
            "`direct` is the backend alone, on the core that the relays have. In bulk its CPU is that of one end, \
             which a relay spends twice."
                .to_owned(),
            "`haproxy-splice` is haproxy that is told to use splice(2), with pipes of 1 MiB; by itself it copies, and \
             so do nginx and pen. All have buffers of their usual size; larger ones make copying cheaper and idle \
             connections dearer."
                .to_owned(),
            "Splicing moves some work to kernel threads, which are no part of the relay's CPU: theirs has a column of \
             its own, and the sum has one. Work that they did for others meanwhile is in it too. Verdicts and limits look \
             at the relay's own."
                .to_owned(),
            "Both ends of a relay share one core, and take bulk out of their sockets without copying it."
                .to_owned(),
            "nginx closes the client's connection as soon as the backend has closed; penstock, haproxy and pen pass the end on \
             and wait for the client's own. `penstock-fast-close` does what nginx does (`fast-close = \"up\"`), and has a limit of \
             its own against it."
                .to_owned(),
            "`penstock` begins sessions in an io_uring where the kernel allows it; `penstock-epoll` has `engine = \"epoll\"`.".to_owned(),
            "In groups with a backlog a spinning process shares the relay's core: the rate says how much was measured, not how \
             fast the relay is."
                .to_owned(),
            "Memory is that of the relay's processes (PSS), not of the kernel's sockets, for which each connection \
             costs about the same with every relay."
                .to_owned(),
        ];
        Ok(plan)
    }
}

/// Work of one group.
#[derive(Clone, Copy, Debug)]
struct Work {
    id: &'static str,
    title: &'static str,
    conversation: TrafficShape,
    connections: usize,
    behind: Behind,
    company: Neighbour,
    extent: Extent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    Tcp,
    Unix,
}

/// How a program is told to relay.
#[derive(Clone, Copy, Debug)]
struct Settings {
    splicing: Splicing,
    backend_end: BackendEnd,
    engine: Engine,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { splicing: Splicing::Default, backend_end: BackendEnd::Default, engine: Engine::Default }
    }
}

impl Work {
    const ALL: [Work; 7] = [
        Work {
            id: "connections",
            title: "new connections, 100 bytes each way, the relay always has a backlog",
            conversation: TrafficShape::Short,
            connections: CONNECTIONS,
            behind: Behind::Tcp,
            company: Neighbour::Spinning,
            extent: Extent::Quick,
        },
        Work {
            id: "connections-alone",
            title: "new connections, 100 bytes each way, the relay has its core alone",
            conversation: TrafficShape::Short,
            connections: CONNECTIONS,
            behind: Behind::Tcp,
            company: Neighbour::Alone,
            extent: Extent::Full,
        },
        Work {
            id: "download",
            title: "one stream from server to client",
            conversation: TrafficShape::Download,
            connections: 1,
            behind: Behind::Tcp,
            company: Neighbour::Alone,
            extent: Extent::Quick,
        },
        Work {
            id: "upload",
            title: "one stream from client to server",
            conversation: TrafficShape::Upload,
            connections: 1,
            behind: Behind::Tcp,
            company: Neighbour::Alone,
            extent: Extent::Quick,
        },
        Work {
            id: "messages",
            title: "100 bytes each way on kept connections, the relay always has a backlog",
            conversation: TrafficShape::Kept,
            connections: CONNECTIONS,
            behind: Behind::Tcp,
            company: Neighbour::Spinning,
            extent: Extent::Full,
        },
        Work {
            id: "connections-unix",
            title: "new connections, 100 bytes each way, backend on a Unix socket, the relay always has a backlog",
            conversation: TrafficShape::Short,
            connections: CONNECTIONS,
            behind: Behind::Unix,
            company: Neighbour::Spinning,
            extent: Extent::Quick,
        },
        Work {
            id: "download-8",
            title: "eight streams from server to client",
            conversation: TrafficShape::Download,
            connections: 8,
            behind: Behind::Tcp,
            company: Neighbour::Alone,
            extent: Extent::Full,
        },
    ];

    fn count(&self) -> Count {
        match self.conversation {
            TrafficShape::Short | TrafficShape::Kept => Count::Units,
            TrafficShape::Download | TrafficShape::Upload => Count::Gigabytes,
        }
    }

    fn group(&self, context: &Context, programs: &[Program]) -> Group {
        let work = *self;
        let bulk = work.count() == Count::Gigabytes;
        let unit = match work.conversation {
            TrafficShape::Short => "connection",
            TrafficShape::Kept => "message",
            TrafficShape::Download | TrafficShape::Upload => "GB",
        };
        let mut group = Group::new(work.id, work.title, unit, Pairing::Subject("penstock".to_owned()));
        group.extent = work.extent;
        group.descriptors = descriptors_for(work.connections);
        group.limits = work.limits();
        let backend = chain::backend_cpu();
        group.columns = match (work.count(), work.company) {
            (Count::Gigabytes, _) => {
                vec![Metric::Rate, chain::kernel_cpu(), chain::whole_cpu(), backend]
            }
            (Count::Units, Neighbour::Spinning) => vec![Metric::Rate, backend],
            (Count::Units, Neighbour::Alone) => {
                group.headline = Metric::Rate;
                vec![Metric::CpuPerUnit, Metric::LatencyMedian, Metric::Latency99]
            }
        };
        let direct = move |context: &Context| Chain::start(context, work.links(context, None)?);
        group.contestants.push(Contestant::new("direct", direct));
        // pen connects to its backends over TCP only.
        let suits = |program: &Program| *program != Program::Pen || work.behind == Behind::Tcp;
        for program in programs.iter().copied().filter(suits) {
            let mut add = |name: &str, settings| {
                let start = move |context: &Context| {
                    Chain::start(context, work.links(context, Some((program, settings)))?)
                };
                group.contestants.push(chain::contestant(context, name, program, start));
            };
            add(program.name(), Settings::default());
            if program == Program::Haproxy && bulk {
                add("haproxy-splice", Settings { splicing: Splicing::On, ..Settings::default() });
            }
            if program == Program::Penstock && work.conversation == TrafficShape::Short {
                add(EPOLL, Settings { engine: Engine::Epoll, ..Settings::default() });
                add(FAST_CLOSE, Settings { backend_end: BackendEnd::EndsSession, ..Settings::default() });
            }
        }
        group
    }

    fn limits(&self) -> Vec<Limit> {
        let ratio = |metric, rivals: &[&str], limit| Limit::ratio("penstock", metric, rivals, limit);
        let fast_close = || Limit::ratio(FAST_CLOSE, Metric::CpuPerUnit, &["nginx"], 1.0).goal(0.87);
        match self.id {
            "connections" => vec![ratio(Metric::CpuPerUnit, &["pen", "nginx"], 1.0).goal(0.87), fast_close()],
            "connections-unix" => {
                vec![ratio(Metric::CpuPerUnit, &["haproxy", "nginx"], 1.0).goal(0.87), fast_close()]
            }
            "download" | "upload" => vec![
                ratio(Metric::CpuPerUnit, &["haproxy-splice"], 1.05).goal(0.95),
                ratio(Metric::CpuPerUnit, &["pen"], 0.70),
                ratio(Metric::CpuPerUnit, &["nginx"], 0.45),
                // At least as fast, with a tolerance for differences that no run can resolve.
                ratio(Metric::Rate, &["haproxy-splice"], 0.95),
            ],
            _ => Vec::new(),
        }
    }

    fn links(&self, context: &Context, front: Option<(Program, Settings)>) -> Result<Links, Error> {
        let behind = match self.behind {
            Behind::Tcp => context.free_tcp()?,
            Behind::Unix => context.free_unix(),
        };
        let front = match front {
            None => None,
            Some((program, settings)) => {
                let front = Front::new(Protocol::Tcp, context.free_tcp()?, behind.clone());
                let front = front.splicing(settings.splicing).backend_end(settings.backend_end);
                Some((program, front.engine(settings.engine)))
            }
        };
        let (conversation, connections) = (self.conversation, self.connections);
        Ok(Links {
            backend: Order::TcpServer(Server { listen: behind, conversation }),
            front,
            company: self.company,
            load: Box::new(move |server, _| {
                Order::Tcp(Load { server, conversation, connections, tls: None })
            }),
            count: self.count(),
        })
    }
}

/// Makes the group of idle connections.
fn idle(context: &Context, programs: &[Program]) -> Group {
    let connections = context.holdable(chain::MANY);
    let seconds = REST.as_secs_f32();
    let title =
        format!("{connections} connections, idle for {seconds} s after 100 bytes each way: user memory");
    let mut group = chain::idle_group(title, 1024.0, 0.3 * 1024.0);
    group.columns.push(chain::bytes(idle::BEFORE_REST, "before they idled"));
    group.length = Length::Own(chain::FRESH + REST);
    group.extent = Extent::Quick;
    for program in programs.iter().copied() {
        let links = move |context: &Context| {
            let behind = context.free_tcp()?;
            let front = Front::new(Protocol::Tcp, context.free_tcp()?, behind.clone())
                .connections(connections + SPARE);
            Ok(Links {
                backend: Order::TcpServer(Server { listen: behind, conversation: TrafficShape::Kept }),
                front: Some((program, front)),
                company: Neighbour::Alone,
                load: Box::new(move |server: Address, holder| {
                    Order::Idle(idle::Load {
                        server,
                        connections,
                        talk: idle::Talk::Bytes,
                        rest: REST,
                        tls: None,
                        holder,
                    })
                }),
                count: Count::Units,
            })
        };
        let start = move |_: &Context| Ok(Fresh::new(connections, links));
        group.contestants.push(chain::contestant(context, program.name(), program, start));
    }
    group
}

/// penstock parks silent sessions after at most 0.75 s, and returns their memory to the system 0.2 s later.
const REST: Duration = Duration::from_millis(1250);

const CONNECTIONS: usize = 64;

/// penstock with `process.engine = "epoll"`.
const EPOLL: &str = "penstock-epoll";

/// penstock, told to end a session when its backend has closed.
const FAST_CLOSE: &str = "penstock-fast-close";
