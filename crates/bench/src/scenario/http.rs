//! Cost that a reverse proxy adds to a request with a small reply, alone and with a real application as backend.

use std::time::Duration;

use crate::address::Address;
use crate::agent::Agent;
use crate::contestant::{Contestant, Running};
use crate::context::{Context, Extent, descriptors_for};
use crate::error::Error;
use crate::limit::Limit;
use crate::load::gauge::{Metered, Window};
use crate::load::http::{Load, Pace, Reuse};
use crate::load::{Order, idle};
use crate::pairing::Pairing;
use crate::plan::{Group, Length, Plan, Scenario};
use crate::sample::{Metric, Sample};
use crate::scenario::chain::{self, Chain, Count, Fresh, Links, Neighbour};
use crate::target::backend::HttpBackend;
use crate::target::front::{CoreSet, Front, Headers, Protocol, SPARE};
use crate::target::prepared::Target;
use crate::target::{Program, gunicorn};

#[derive(Debug)]
pub struct Http;

impl Scenario for Http {
    fn name(&self) -> &'static str {
        "http"
    }

    fn question(&self) -> &'static str {
        "Reverse proxies with small replies, over TCP and Unix backends: what does a request cost?"
    }

    fn plan(&self, context: &Context) -> Result<Plan, Error> {
        let mut plan = Plan::default();
        let mut rivals = Vec::new();
        for program in [Program::Haproxy, Program::Nginx, Program::Pen] {
            match program.find(context) {
                Ok(_) => rivals.push(program),
                Err(error) => plan.note_missing(error)?,
            }
        }
        plan.groups.extend(Work::ALL.iter().map(|work| work.group(context, &rivals)));
        plan.groups.push(idle(context, &rivals));
        match gunicorn::find() {
            Ok(_) => plan.groups.push(application(context, &rivals)),
            Err(error) => plan.note_missing(error)?,
        }
        plan.notes = vec![
            "`direct` is the backend alone, on the core that the proxies have: what there would be without a proxy."
                .to_owned(),
            "`pen` passes bytes on and understands none; the others read each request and write it anew.".to_owned(),
            "penstock, haproxy and nginx do the work of a front door: they add X-Forwarded-For, X-Forwarded-Proto, \
             X-Forwarded-Host and a random X-Request-ID to each request, and the latter to the response. penstock \
             adds Forwarded (RFC 7239) too. The limits count against these."
                .to_owned(),
            "`penstock-bare`, `haproxy-bare` and `nginx-bare` add none of these; penstock-bare adds `CDN-Loop` as \
             always, by which it detects request loops. They show what the headers cost, and have no limit."
                .to_owned(),
            "In groups with a backlog a spinning process shares the proxy's core, so that the proxy always finds \
             work when it runs, as under full load. CPU per request is then comparable; the rate says how much was measured, not how \
             fast the proxy is."
                .to_owned(),
            "Memory of idle connections is that of the proxy's processes (PSS), not of the kernel's sockets.".to_owned(),
        ];
        Ok(plan)
    }
}

/// Work of one group.
#[derive(Clone, Copy, Debug)]
struct Work {
    id: &'static str,
    title: &'static str,
    backend: Socket,
    reuse: Reuse,
    pace: Pace,
    company: Neighbour,
    /// Limit and goal of the ratio to the better of haproxy and nginx.
    limit: Option<(f64, f64)>,
    guests: ExtraContestants,
    extent: Extent,
}

/// Contestants beside those that do the same work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExtraContestants {
    None,
    /// Programs that add no headers.
    Bare,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Socket {
    Tcp,
    Unix,
}

impl Work {
    const ALL: [Work; 7] = [
        Work {
            id: "keep-alive-tcp",
            title: "kept connections, TCP backend, the proxy always has a backlog",
            backend: Socket::Tcp,
            reuse: Reuse::Keep,
            pace: Pace::Closed,
            company: Neighbour::Spinning,
            limit: Some((0.80, 0.75)),
            guests: ExtraContestants::Bare,
            extent: Extent::Quick,
        },
        Work {
            id: "keep-alive-unix",
            title: "kept connections, Unix-socket backend, the proxy always has a backlog",
            backend: Socket::Unix,
            reuse: Reuse::Keep,
            pace: Pace::Closed,
            company: Neighbour::Spinning,
            limit: Some((0.80, 0.75)),
            guests: ExtraContestants::Bare,
            extent: Extent::Quick,
        },
        Work {
            id: "new-connection",
            title: "a new client connection for each request, TCP backend, the proxy always has a backlog",
            backend: Socket::Tcp,
            reuse: Reuse::Never,
            pace: Pace::Closed,
            company: Neighbour::Spinning,
            limit: Some((0.95, 0.85)),
            guests: ExtraContestants::None,
            extent: Extent::Quick,
        },
        Work {
            id: "keep-alive-tcp-alone",
            title: "kept connections, TCP backend, the proxy has its core alone",
            backend: Socket::Tcp,
            reuse: Reuse::Keep,
            pace: Pace::Closed,
            company: Neighbour::Alone,
            limit: None,
            guests: ExtraContestants::None,
            extent: Extent::Full,
        },
        Work {
            id: "latency",
            title: "5,000 requests a second on kept connections, TCP backend: latency from the intended send time",
            backend: Socket::Tcp,
            reuse: Reuse::Keep,
            pace: Pace::Open(5000.0),
            company: Neighbour::Alone,
            limit: None,
            guests: ExtraContestants::None,
            extent: Extent::Quick,
        },
        Work {
            id: "new-connection-unix",
            title: "a new client connection for each request, Unix-socket backend, the proxy always has a backlog",
            backend: Socket::Unix,
            reuse: Reuse::Never,
            pace: Pace::Closed,
            company: Neighbour::Spinning,
            limit: None,
            guests: ExtraContestants::None,
            extent: Extent::Full,
        },
        Work {
            id: "latency-unix",
            title: "5,000 requests a second on kept connections, Unix-socket backend: latency from the intended send \
                    time",
            backend: Socket::Unix,
            reuse: Reuse::Keep,
            pace: Pace::Open(5000.0),
            company: Neighbour::Alone,
            limit: None,
            guests: ExtraContestants::None,
            extent: Extent::Full,
        },
    ];

    fn group(self, context: &Context, rivals: &[Program]) -> Group {
        let mut group = Group::new(self.id, self.title, "request", Pairing::Subject("penstock".to_owned()));
        match (self.pace, self.company) {
            // Beside the spinner, latency depends on the scheduler and not on the proxy.
            (Pace::Closed, Neighbour::Spinning) => group.columns = vec![Metric::Rate, chain::backend_cpu()],
            (Pace::Closed, Neighbour::Alone) => group.columns.push(chain::backend_cpu()),
            (Pace::Open(_), _) => {
                group.headline = Metric::Latency99;
                group.columns =
                    vec![Metric::LatencyMedian, Metric::Latency999, Metric::CpuPerUnit, Metric::Rate];
            }
        }
        group.extent = self.extent;
        group.descriptors = descriptors_for(CONNECTIONS);
        let rivals_of = &["haproxy", "nginx"];
        let limit = |(limit, goal)| Limit::ratio("penstock", Metric::CpuPerUnit, rivals_of, limit).goal(goal);
        group.limits.extend(self.limit.map(limit));
        let direct = move |context: &Context| Chain::start(context, self.links(context, None)?);
        group.contestants.push(Contestant::new("direct", direct));
        // pen connects to its backends over TCP only.
        let suits = |program: &Program| *program != Program::Pen || self.backend == Socket::Tcp;
        let equals = [Program::Penstock].into_iter().chain(rivals.iter().copied().filter(suits));
        let bare = [Program::Penstock]
            .into_iter()
            .chain(rivals.iter().copied())
            .filter(|program| self.guests == ExtraContestants::Bare && *program != Program::Pen);
        let equals = equals.map(|program| (program.name().to_owned(), program, Headers::Added));
        let bare = bare.map(|program| (format!("{}-bare", program.name()), program, Headers::Untouched));
        for (name, program, headers) in equals.chain(bare) {
            let start = move |context: &Context| {
                Chain::start(context, self.links(context, Some((program, headers)))?)
            };
            group.contestants.push(chain::contestant(context, &name, program, start));
        }
        group
    }
}

impl Work {
    /// Describes the chain with a proxy and its headers, or without one.
    fn links(self, context: &Context, front: Option<(Program, Headers)>) -> Result<Links, Error> {
        let behind = match self.backend {
            Socket::Tcp => context.free_tcp()?,
            Socket::Unix => context.free_unix(),
        };
        let front = match front {
            None => None,
            Some((program, headers)) => {
                let front = Front::new(Protocol::Http, context.free_tcp()?, behind.clone());
                Some((program, front.headers(headers)))
            }
        };
        Ok(Links {
            backend: Order::HttpBackend(HttpBackend { listen: vec![behind], body: BODY }),
            front,
            company: self.company,
            load: Box::new(move |server, _| Order::Http(self.load(server))),
            count: Count::Units,
        })
    }

    fn load(self, server: Address) -> Load {
        Load { server, path: "/".to_owned(), connections: CONNECTIONS, reuse: self.reuse, pace: self.pace }
    }
}

/// penstock parks connections 1 to 2 s after their last request, and returns their memory to the system 0.2 s later.
const REST: Duration = Duration::from_millis(2500);

/// Makes the group of idle connections.
fn idle(context: &Context, rivals: &[Program]) -> Group {
    let connections = context.holdable(chain::MANY);
    let seconds = REST.as_secs_f32();
    let title = format!(
        "{connections} connections, idle for {seconds} s after one request, TCP backend: user memory"
    );
    let mut group = chain::idle_group(title, 900.0, 524.0);
    group.columns.push(chain::bytes(idle::BEFORE_REST, "before they idled"));
    group.length = Length::Own(chain::FRESH + REST);
    let rivals = rivals.iter().copied().filter(|program| *program != Program::Pen);
    for program in [Program::Penstock].into_iter().chain(rivals) {
        let links = move |context: &Context| {
            let behind = context.free_tcp()?;
            let front = Front::new(Protocol::Http, context.free_tcp()?, behind.clone());
            let front = front.connections(connections + SPARE);
            let load = move |server: Address, holder| {
                let (talk, tls) = (idle::Talk::Http, None);
                Order::Idle(idle::Load { server, connections, talk, rest: REST, tls, holder })
            };
            Ok(Links {
                backend: Order::HttpBackend(HttpBackend { listen: vec![behind], body: BODY }),
                front: Some((program, front)),
                company: Neighbour::Alone,
                load: Box::new(load),
                count: Count::Units,
            })
        };
        let start = move |_: &Context| Ok(Fresh::new(connections, links));
        group.contestants.push(chain::contestant(context, program.name(), program, start));
    }
    group
}

/// Makes the group of a real application: Flask under gunicorn behind each proxy, over both kinds of socket.
fn application(context: &Context, rivals: &[Program]) -> Group {
    let title = "Flask under gunicorn (one worker) behind each proxy, over TCP and over a Unix socket, 10 connections";
    let fronts = rivals.iter().copied().filter(|program| *program != Program::Pen);
    let fronts: Vec<_> = [Program::Penstock].into_iter().chain(fronts).collect();
    let pairs =
        fronts.iter().map(|program| (format!("{}-unix", program.name()), format!("{}-tcp", program.name())));
    let mut group = Group::new("application", title, "request", Pairing::Pairs(pairs.collect()));
    group.extent = Extent::Quick;
    group.descriptors = descriptors_for(CALLERS);
    group.headline = Metric::Rate;
    group.columns = vec![Metric::CpuPerUnit, Metric::LatencyMedian, Metric::Latency99];
    for program in fronts {
        for socket in [Socket::Tcp, Socket::Unix] {
            let suffix = if socket == Socket::Tcp { "tcp" } else { "unix" };
            let name = format!("{}-{suffix}", program.name());
            let contestant = Contestant::new(name, move |context| Stack::start(context, program, socket));
            group.contestants.push(contestant.version(program.version(context).unwrap_or_default()));
        }
    }
    group
}

/// A proxy with its application, which has the target's core alone.
struct Stack {
    front: Target,
    application: Target,
}

impl Stack {
    fn start(context: &Context, program: Program, socket: Socket) -> Result<Self, Error> {
        let behind = match socket {
            Socket::Tcp => context.free_tcp()?,
            Socket::Unix => context.free_unix(),
        };
        let application = gunicorn::start(context, &behind)?;
        let front = Front::new(Protocol::Http, context.free_tcp()?, behind).on(CoreSet::Load);
        let front = program.start(context, &front)?;
        Ok(Stack { front, application })
    }
}

impl Running for Stack {
    fn configuration(&self) -> String {
        format!("{}\n{}", self.front.configuration, self.application.configuration)
    }

    fn trial(&mut self, context: &Context, window: Window) -> Result<Sample, Error> {
        self.front.process.check()?;
        self.application.process.check()?;
        let server = self.front.address.clone();
        let load = Load {
            server,
            path: "/".to_owned(),
            connections: CALLERS,
            reuse: Reuse::Keep,
            pace: Pace::Closed,
        };
        let pids = [("front", &self.front), ("application", &self.application)];
        let metered = pids.map(|(name, target)| metered(name, target.process.pid())).to_vec();
        let tally = Agent::load(context, "http load", Order::Http(load), window, metered)?;
        Ok(tally.sample(&["front", "application"]))
    }
}

fn metered(name: &str, pid: i32) -> Metered {
    Metered { name: name.to_owned(), pid }
}

const BODY: usize = 100;
const CONNECTIONS: usize = 64;
/// Number of connections to an application that serves one request at a time.
const CALLERS: usize = 10;
