//! A relay that passes bytes on and understands none: what do a connection, a gigabyte and an idle client cost?

use std::time::Duration;

use crate::address::Address;
use crate::context::{Context, Extent, descriptors_for};
use crate::error::Error;
use crate::load::Order;
use crate::load::idle;
use crate::load::tcp::{Conversation, Load, Server};
use crate::sample::Metric;
use crate::scenario::chain::{self, Chain, Company, Count, Fresh, Links};
use crate::scenario::{Bar, Contestant, Group, Length, Pairing, Plan, Scenario};
use crate::target::{Front, Program, Protocol, SPARE, Splicing, nginx};

/// The scenario `tcp`.
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
             its own, and the sum has one. Whoever else made them work meanwhile is in it too. Verdicts and bars look \
             at the relay's own."
                .to_owned(),
            "Both ends of a relay share one core, and take bulk out of their sockets without copying it."
                .to_owned(),
            "In groups with a backlog a spinning process shares the relay's core: the rate says how much was measured, not how \
             fast the relay is."
                .to_owned(),
            "Memory is that of the relay's processes (PSS), not of the kernel's sockets, for which each connection \
             costs about the same with everybody."
                .to_owned(),
        ];
        Ok(plan)
    }
}

/// What is asked of the relays.
#[derive(Clone, Copy, Debug)]
struct Work {
    id: &'static str,
    title: &'static str,
    conversation: Conversation,
    connections: usize,
    behind: Behind,
    company: Company,
    extent: Extent,
}

/// Where the backend listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    Tcp,
    Unix,
}

impl Work {
    const ALL: [Work; 7] = [
        Work {
            id: "connections",
            title: "new connections, 100 bytes each way, the relay always has a backlog",
            conversation: Conversation::Short,
            connections: CONNECTIONS,
            behind: Behind::Tcp,
            company: Company::Spinning,
            extent: Extent::Quick,
        },
        Work {
            id: "connections-alone",
            title: "new connections, 100 bytes each way, the relay has its core alone",
            conversation: Conversation::Short,
            connections: CONNECTIONS,
            behind: Behind::Tcp,
            company: Company::Alone,
            extent: Extent::Full,
        },
        Work {
            id: "download",
            title: "one stream from server to client",
            conversation: Conversation::Download,
            connections: 1,
            behind: Behind::Tcp,
            company: Company::Alone,
            extent: Extent::Quick,
        },
        Work {
            id: "upload",
            title: "one stream from client to server",
            conversation: Conversation::Upload,
            connections: 1,
            behind: Behind::Tcp,
            company: Company::Alone,
            extent: Extent::Quick,
        },
        Work {
            id: "messages",
            title: "100 bytes each way on kept connections, the relay always has a backlog",
            conversation: Conversation::Kept,
            connections: CONNECTIONS,
            behind: Behind::Tcp,
            company: Company::Spinning,
            extent: Extent::Full,
        },
        Work {
            id: "connections-unix",
            title: "new connections, 100 bytes each way, backend on a Unix socket, the relay always has a backlog",
            conversation: Conversation::Short,
            connections: CONNECTIONS,
            behind: Behind::Unix,
            company: Company::Spinning,
            extent: Extent::Full,
        },
        Work {
            id: "download-8",
            title: "eight streams from server to client",
            conversation: Conversation::Download,
            connections: 8,
            behind: Behind::Tcp,
            company: Company::Alone,
            extent: Extent::Full,
        },
    ];

    fn count(&self) -> Count {
        match self.conversation {
            Conversation::Short | Conversation::Kept => Count::Units,
            Conversation::Download | Conversation::Upload => Count::Gigabytes,
        }
    }

    fn group(&self, context: &Context, programs: &[Program]) -> Group {
        let work = *self;
        let bulk = work.count() == Count::Gigabytes;
        let unit = match work.conversation {
            Conversation::Short => "connection",
            Conversation::Kept => "message",
            Conversation::Download | Conversation::Upload => "GB",
        };
        let mut group = Group::new(work.id, work.title, unit, Pairing::Subject("penstock".to_owned()));
        group.extent = work.extent;
        group.descriptors = descriptors_for(work.connections);
        group.bars = work.bars();
        let backend = chain::backend_cpu();
        group.columns = match (work.count(), work.company) {
            (Count::Gigabytes, _) => {
                vec![Metric::Rate, chain::kernel_cpu(), chain::whole_cpu(), backend]
            }
            (Count::Units, Company::Spinning) => vec![Metric::Rate, backend],
            (Count::Units, Company::Alone) => {
                group.headline = Metric::Rate;
                vec![Metric::CpuPerUnit, Metric::LatencyMedian, Metric::Latency99]
            }
        };
        let direct = move |context: &Context| Chain::start(context, work.links(context, None)?);
        group.contestants.push(Contestant::new("direct", direct));
        // pen reaches its backends over TCP only.
        let suits = |program: &Program| *program != Program::Pen || work.behind == Behind::Tcp;
        for program in programs.iter().copied().filter(suits) {
            let mut add = |name: &str, splicing| {
                let start = move |context: &Context| {
                    Chain::start(context, work.links(context, Some((program, splicing)))?)
                };
                group.contestants.push(chain::contestant(context, name, program, start));
            };
            add(program.name(), Splicing::Default);
            if program == Program::Haproxy && bulk {
                add("haproxy-splice", Splicing::On);
            }
        }
        group
    }

    fn bars(&self) -> Vec<Bar> {
        let ratio = |metric, rivals: &[&str], must| Bar::ratio("penstock", metric, rivals, must);
        match self.id {
            "connections" => vec![ratio(Metric::CpuPerUnit, &["pen", "nginx"], 1.0).aim(0.87)],
            "download" | "upload" => vec![
                ratio(Metric::CpuPerUnit, &["haproxy-splice"], 1.05).aim(0.95),
                ratio(Metric::CpuPerUnit, &["pen"], 0.70),
                ratio(Metric::CpuPerUnit, &["nginx"], 0.45),
                // As fast, but for what no run can tell apart.
                ratio(Metric::Rate, &["haproxy-splice"], 0.95),
            ],
            _ => Vec::new(),
        }
    }

    fn links(&self, context: &Context, front: Option<(Program, Splicing)>) -> Result<Links, Error> {
        let behind = match self.behind {
            Behind::Tcp => context.free_tcp()?,
            Behind::Unix => context.free_unix(),
        };
        let front = match front {
            None => None,
            Some((program, splicing)) => {
                let front = Front::new(Protocol::Tcp, context.free_tcp()?, behind.clone());
                Some((program, front.splicing(splicing)))
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

/// Connections that are held.
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
                backend: Order::TcpServer(Server { listen: behind, conversation: Conversation::Kept }),
                front: Some((program, front)),
                company: Company::Alone,
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

/// Sessions in which nobody speaks are put away by penstock after 0.75 s at most, and their memory goes back to the system
/// 0.2 s later.
const REST: Duration = Duration::from_millis(1250);

const CONNECTIONS: usize = 64;
