//! Cost of a handshake, a request, a gigabyte and an idle client in a TLS terminator.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::address::Address;
use crate::context::{Context, Extent, descriptors_for};
use crate::error::Error;
use crate::limit::Limit;
use crate::load::connector::{Client, Curve, Resumption};
use crate::load::http::{self, Pace, Reuse};
use crate::load::tcp::{self, Server, TrafficShape};
use crate::load::tls::{Load, Requests};
use crate::load::{Order, idle};
use crate::pairing::Pairing;
use crate::plan::{Group, Length, Plan, Scenario};
use crate::sample::Metric;
use crate::scenario::chain::{self, Chain, Count, Fresh, Links, Neighbour};
use crate::target::backend::HttpBackend;
use crate::target::certificate::Key;
use crate::target::front::{Front, Protocol, SPARE, Tls, TlsVersion};
use crate::target::{Program, nginx};
use crate::version;

#[derive(Debug)]
pub struct TlsTermination;

impl Scenario for TlsTermination {
    fn name(&self) -> &'static str {
        "tls"
    }

    fn question(&self) -> &'static str {
        "TLS termination: what do a handshake, a request, a gigabyte and an idle connection cost?"
    }

    fn plan(&self, context: &Context) -> Result<Plan, Error> {
        let mut plan = Plan::default();
        let all = [Program::Penstock, Program::Haproxy, Program::Nginx, Program::Hitch, Program::Pen];
        let programs = chain::present(context, &mut plan, &all)?;
        let mut relays = programs.clone();
        if programs.contains(&Program::Nginx)
            && let Err(error) = nginx::find_stream_module()
        {
            relays.retain(|program| *program != Program::Nginx);
            plan.note_missing(error)?;
        }
        let libraries = Libraries::of(context, &programs);
        for work in &Work::ALL {
            let takes_part = if work.protocol() == Protocol::Tcp { &relays } else { &programs };
            plan.groups.push(work.group(context, takes_part, &libraries)?);
        }
        plan.notes = notes();
        Ok(plan)
    }
}

fn notes() -> Vec<String> {
    let library = match version::of_package("libssl3") {
        Some(version) => format!("OpenSSL {version}"),
        None => "the OpenSSL that they were built with".to_owned(),
    };
    vec![
        format!(
            "hitch and pen use {library}, the others the library that stands behind their version. With another library \
             under them much of a difference in handshakes may go away: HAPROXY=PATH or NGINX=PATH measures another build, \
             and one with AWS-LC has limits of its own."
        ),
        "All are asked for the same: X25519 and AES-128-GCM; but pen for P-256, because it knows no other group. \
         Certificates are signed with their own key; the chain is one certificate."
            .to_owned(),
        "A handshake is a connection, the handshake itself with the sessions that the server hands out, and an \
         orderly end. penstock, haproxy and nginx do not go to the backend for it; hitch and pen do, because they \
         pass bytes on and cannot know that none will come."
            .to_owned(),
        "AES is faster in AWS-LC than in OpenSSL 3.0 where the processor has vector instructions for it: that shows in \
         streams."
            .to_owned(),
        "In requests, too, hitch and pen pass bytes on and understand none.".to_owned(),
        "In groups with a backlog a spinning process shares the target's core: the rate says how much was measured, not how \
         fast the target is."
            .to_owned(),
        "Memory is that of the target's processes (PSS), not of the kernel's sockets."
            .to_owned(),
    ]
}

/// Work of one group.
#[derive(Clone, Copy, Debug)]
struct Work {
    id: &'static str,
    title: &'static str,
    what: What,
    key: Key,
    version: TlsVersion,
    bar: Option<Bar>,
    extent: Extent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Handshakes(Resumption),
    Requests,
    Stream(TrafficShape),
    Idle,
}

const ALL_RIVALS: &[&str] = &["haproxy", "nginx", "hitch", "pen"];

/// Limits of the ratio to the best of some rivals.
#[derive(Clone, Copy, Debug)]
struct Bar {
    rivals: &'static [&'static str],
    limit: f64,
    goal: f64,
    /// Limit against rivals with AWS-LC, where it differs: what handshakes and streams cost is mostly the library.
    same_library: Option<f64>,
}

impl Bar {
    fn limits(self, libraries: &Libraries) -> Vec<Limit> {
        let ratio = |rivals: &[&str], limit| Limit::ratio("penstock", Metric::CpuPerUnit, rivals, limit);
        let (same, others): (Vec<&str>, Vec<&str>) = self
            .rivals
            .iter()
            .copied()
            .partition(|rival| self.same_library.is_some() && libraries.is_ours(rival));
        let same = self.same_library.filter(|_| !same.is_empty()).map(|limit| ratio(&same, limit));
        let others = (!others.is_empty()).then(|| ratio(&others, self.limit).goal(self.goal));
        same.into_iter().chain(others).collect()
    }
}

/// TLS libraries of the programs that tell theirs.
struct Libraries(BTreeMap<&'static str, String>);

impl Libraries {
    fn of(context: &Context, programs: &[Program]) -> Self {
        let library = |program: &Program| Some((program.name(), program.tls_library(context)?));
        Libraries(programs.iter().filter_map(library).collect())
    }

    /// Whether the program runs with AWS-LC, as penstock does.
    fn is_ours(&self, program: &str) -> bool {
        self.0.get(program).is_some_and(|library| library.contains("AWS-LC"))
    }
}

impl Work {
    const ALL: [Work; 12] = [
        Work {
            id: "full-p256-tls13",
            title: "full handshakes, ECDSA P-256, TLS 1.3, server at full load",
            what: What::Handshakes(Resumption::Never),
            key: Key::EcdsaP256,
            version: TlsVersion::V13,
            bar: Some(Bar { rivals: ALL_RIVALS, limit: 0.48, goal: 0.43, same_library: Some(0.80) }),
            extent: Extent::Quick,
        },
        Work {
            id: "full-rsa-tls13",
            title: "full handshakes, RSA-2048, TLS 1.3, server at full load",
            what: What::Handshakes(Resumption::Never),
            key: Key::Rsa2048,
            version: TlsVersion::V13,
            bar: Some(Bar { rivals: ALL_RIVALS, limit: 0.75, goal: 0.70, same_library: Some(0.92) }),
            extent: Extent::Quick,
        },
        Work {
            id: "resumed-p256-tls13",
            title: "resumed handshakes, ECDSA P-256, TLS 1.3, server at full load",
            what: What::Handshakes(Resumption::Always),
            key: Key::EcdsaP256,
            version: TlsVersion::V13,
            bar: Some(Bar { rivals: ALL_RIVALS, limit: 0.50, goal: 0.46, same_library: Some(0.75) }),
            extent: Extent::Quick,
        },
        Work {
            id: "requests",
            title: "HTTPS requests on kept connections, small replies, TLS 1.3, server at full load",
            what: What::Requests,
            key: Key::EcdsaP256,
            version: TlsVersion::V13,
            bar: Some(Bar { rivals: &["haproxy", "nginx"], limit: 0.80, goal: 0.75, same_library: None }),
            extent: Extent::Quick,
        },
        Work {
            id: "download",
            title: "one stream from server to client, TLS 1.3",
            what: What::Stream(TrafficShape::Download),
            key: Key::EcdsaP256,
            version: TlsVersion::V13,
            bar: Some(Bar { rivals: &["haproxy"], limit: 1.05, goal: 0.95, same_library: Some(0.65) }),
            extent: Extent::Quick,
        },
        Work {
            id: "idle",
            title: "connections, idle after one HTTPS request, TLS 1.3: user memory",
            what: What::Idle,
            key: Key::EcdsaP256,
            version: TlsVersion::V13,
            bar: None,
            extent: Extent::Quick,
        },
        Work {
            id: "upload",
            title: "one stream from client to server, TLS 1.3",
            what: What::Stream(TrafficShape::Upload),
            key: Key::EcdsaP256,
            version: TlsVersion::V13,
            bar: Some(Bar { rivals: &["haproxy"], limit: 1.05, goal: 0.95, same_library: Some(0.65) }),
            extent: Extent::Full,
        },
        Work {
            id: "resumed-rsa-tls13",
            title: "resumed handshakes, RSA-2048, TLS 1.3, server at full load",
            what: What::Handshakes(Resumption::Always),
            key: Key::Rsa2048,
            version: TlsVersion::V13,
            bar: Some(Bar { rivals: ALL_RIVALS, limit: 0.50, goal: 0.46, same_library: Some(0.75) }),
            extent: Extent::Full,
        },
        Work {
            id: "full-p256-tls12",
            title: "full handshakes, ECDSA P-256, TLS 1.2, server at full load",
            what: What::Handshakes(Resumption::Never),
            key: Key::EcdsaP256,
            version: TlsVersion::V12,
            bar: None,
            extent: Extent::Full,
        },
        Work {
            id: "full-rsa-tls12",
            title: "full handshakes, RSA-2048, TLS 1.2, server at full load",
            what: What::Handshakes(Resumption::Never),
            key: Key::Rsa2048,
            version: TlsVersion::V12,
            bar: None,
            extent: Extent::Full,
        },
        Work {
            id: "resumed-p256-tls12",
            title: "resumed handshakes, ECDSA P-256, TLS 1.2, server at full load",
            what: What::Handshakes(Resumption::Always),
            key: Key::EcdsaP256,
            version: TlsVersion::V12,
            bar: None,
            extent: Extent::Full,
        },
        Work {
            id: "resumed-rsa-tls12",
            title: "resumed handshakes, RSA-2048, TLS 1.2, server at full load",
            what: What::Handshakes(Resumption::Always),
            key: Key::Rsa2048,
            version: TlsVersion::V12,
            bar: None,
            extent: Extent::Full,
        },
    ];

    fn unit(&self) -> &'static str {
        match self.what {
            What::Handshakes(_) => "handshake",
            What::Requests => "request",
            What::Stream(_) => "GB",
            What::Idle => "connection",
        }
    }

    fn protocol(&self) -> Protocol {
        match self.what {
            What::Stream(_) => Protocol::Tcp,
            What::Handshakes(_) | What::Requests | What::Idle => Protocol::Http,
        }
    }

    fn group(&self, context: &Context, programs: &[Program], libraries: &Libraries) -> Result<Group, Error> {
        let connections = context.holdable(HELD);
        let mut group = match self.what {
            What::Idle => {
                chain::idle_group(format!("{connections} {}", self.title), 15.0 * 1024.0, 10.0 * 1024.0)
            }
            _ => Group::new(self.id, self.title, self.unit(), Pairing::Subject("penstock".to_owned())),
        };
        group.extent = self.extent;
        if self.what != What::Idle {
            group.descriptors = descriptors_for(CONNECTIONS);
        }
        let backend = chain::backend_cpu();
        match self.what {
            What::Handshakes(_) => group.columns = vec![Metric::Rate],
            What::Requests => group.columns = vec![Metric::Rate, backend],
            What::Stream(_) => group.columns = vec![Metric::Rate, backend],
            What::Idle => group.length = Length::Own(OPENING),
        }
        group.limits.extend(self.bar.into_iter().flat_map(|bar| bar.limits(libraries)));
        let site = Site { work: *self, connections, certificate: Rc::default() };
        for program in programs.iter().copied() {
            let (site, connections) = (site.clone(), site.connections);
            let links = move |context: &Context| site.terminator(context, program);
            let name = program.name();
            let contestant = match self.what {
                What::Idle => {
                    let start = move |_: &Context| Ok(Fresh::new(connections, links.clone()));
                    chain::contestant(context, name, program, start)
                }
                _ => {
                    let start = move |context: &Context| Chain::start(context, links(context)?);
                    chain::contestant(context, name, program, start)
                }
            };
            group.contestants.push(match (&contestant.version, libraries.0.get(name)) {
                (Some(version), Some(library)) => {
                    let named = format!("{version}, {library}");
                    contestant.version(named)
                }
                _ => contestant,
            });
        }
        Ok(group)
    }
}

/// State shared by the contestants of a group.
#[derive(Clone)]
struct Site {
    work: Work,
    /// Number of idle connections, in the group that has them.
    connections: usize,
    /// Made when the first contestant starts.
    certificate: Rc<RefCell<Option<Tls>>>,
}

impl Site {
    fn terminator(&self, context: &Context, program: Program) -> Result<Links, Error> {
        let work = self.work;
        let behind = context.free_tcp()?;
        let tls = self.certificate(context)?;
        let resumption = match work.what {
            What::Handshakes(resumption) => resumption,
            _ => Resumption::Never,
        };
        let group = if program == Program::Pen { Curve::P256 } else { Curve::X25519 };
        let client =
            Client { certificate: tls.certificate.clone(), version: work.version, resumption, group };
        let mut front = Front::new(work.protocol(), context.free_tcp()?, behind.clone()).tls(tls);
        if work.what == What::Idle {
            front = front.connections(self.connections + SPARE);
        }
        let backend = match work.what {
            What::Stream(conversation) => Order::TcpServer(Server { listen: behind, conversation }),
            _ => Order::HttpBackend(HttpBackend { listen: vec![behind], body: BODY }),
        };
        let company = match work.what {
            What::Handshakes(_) | What::Requests => Neighbour::Spinning,
            What::Stream(_) | What::Idle => Neighbour::Alone,
        };
        let count = match work.what {
            What::Stream(_) => Count::Gigabytes,
            _ => Count::Units,
        };
        let held = self.connections;
        let load = move |server, holder| work.load(server, client.clone(), held, holder);
        Ok(Links { backend, front: Some((program, front)), company, load: Box::new(load), count })
    }

    fn certificate(&self, context: &Context) -> Result<Tls, Error> {
        let mut made = self.certificate.borrow_mut();
        match &*made {
            Some(tls) => Ok(tls.clone()),
            None => Ok(made.insert(Tls::generate(context, self.work.key, self.work.version)?).clone()),
        }
    }
}

impl Work {
    fn load(&self, server: Address, client: Client, held: usize, holder: i32) -> Order {
        let connections = CONNECTIONS;
        match self.what {
            What::Handshakes(_) => Order::Handshakes(Load { server, client, connections: HANDSHAKES }),
            What::Requests => {
                let (path, reuse, pace) = ("/".to_owned(), Reuse::Keep, Pace::Closed);
                let requests = http::Load { server, path, connections, reuse, pace };
                Order::Https(Requests { requests, client })
            }
            What::Stream(conversation) => {
                Order::Tcp(tcp::Load { server, conversation, connections: 1, tls: Some(client) })
            }
            What::Idle => {
                let (talk, tls) = (idle::Talk::Http, Some(client));
                Order::Idle(idle::Load { server, connections: held, talk, rest: Duration::ZERO, tls, holder })
            }
        }
    }
}

const CONNECTIONS: usize = 32;
/// Number of parallel handshakes: few, so that handshakes that cross an end of the window hardly count.
const HANDSHAKES: usize = 8;
const BODY: usize = 100;
/// Number of idle TLS connections if the descriptor limit allows: enough to make unrelated memory negligible.
const HELD: usize = 1000;
/// Time for restarting a chain and completing the handshakes.
const OPENING: Duration = Duration::from_millis(1200);

#[cfg(test)]
mod tests;
