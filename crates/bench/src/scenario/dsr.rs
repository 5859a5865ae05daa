//! Cost of direct server return: packets of clients go through a balancer, replies go straight back.

use crate::contestant::Contestant;
use crate::context::{Context, Extent, descriptors_for};
use crate::error::Error;
use crate::limit::Limit;
use crate::load::http::Reuse;
use crate::load::packets::{OFFERED, SHARE};
use crate::namespace;
use crate::pairing::Pairing;
use crate::plan::{Group, Plan, Scenario};
use crate::process;
use crate::sample::{Better, Metric, Scale};
use crate::target::Program;
use network::{Interrupts, Offloads, Tools};
use setting::{ABOVE, BALANCER, Base, FLOWS, Setting, Work};
use way::{DIRECT, RUNGS, Way};

pub mod network;
pub mod setting;
pub mod way;

#[derive(Debug)]
pub struct Dsr;

impl Scenario for Dsr {
    fn name(&self) -> &'static str {
        "dsr"
    }

    fn question(&self) -> &'static str {
        "Direct server return: what does a packet, and a request, cost through the balancer?"
    }

    fn plan(&self, context: &Context) -> Result<Plan, Error> {
        let mut plan = Plan::default();
        namespace::permitted()?;
        let tools = match Tools::find() {
            Ok(tools) => tools,
            Err(error) => {
                plan.note_missing(error)?;
                return Ok(plan);
            }
        };
        let mut ways = vec![Way::Direct];
        ways.extend(RUNGS.iter().map(Way::Penstock));
        match Program::Pen.find(context) {
            Ok(_) => ways.push(Way::Pen),
            Err(error) => plan.note_missing(error)?,
        }
        let field = Field { context, tools, ways };
        plan.groups.extend(RATES.iter().map(|rate| field.packets(*rate)));
        // Without cores of its own, a machine has no interrupts of its own.
        if !context.cores.target.is_empty() && !context.cores.load.is_empty() {
            plan.groups.push(field.overload());
        }
        match Program::Nginx.find(context) {
            Ok(_) => field.plan_requests(&mut plan)?,
            Err(error) => plan.note_missing(error)?,
        }
        plan.notes.extend(NOTES.map(str::to_owned));
        Ok(plan)
    }
}

/// What groups are made of.
struct Field<'a> {
    context: &'a Context,
    tools: Tools,
    ways: Vec<Way>,
}

impl Field<'_> {
    /// Makes the groups of requests.
    fn plan_requests(&self, plan: &mut Plan) -> Result<(), Error> {
        let mut groups = Vec::new();
        match process::find("ethtool", "ethtool") {
            Ok(ethtool) => {
                let off = || Offloads::Off(ethtool.clone());
                groups.push(("requests-new", NEW, "", off()));
                groups.push(("requests-kept", KEPT, "", off()));
            }
            Err(error) => plan.note_missing(error)?,
        }
        groups.push((
            "requests-offload",
            KEPT,
            ", checksums left to the client's network card",
            Offloads::On,
        ));
        for (id, (reuse, connections, title), also, offloads) in groups {
            let work = Work::Requests { reuse, connections, offloads };
            let mut group = self.group(id, format!("{title}{also}"), "request", &work);
            group.descriptors = descriptors_for(connections);
            group.columns = vec![above(), balancer(), Metric::Rate, Metric::LatencyMedian];
            plan.groups.push(group);
        }
        Ok(())
    }

    /// Makes the group of one rate of packets, in thousands a second.
    fn packets(&self, thousands: u32) -> Group {
        let title = format!("{thousands},000 UDP packets of 60 bytes a second are sent, {FLOWS} flows");
        let work = Work::Packets { rate: f64::from(thousands) * 1e3, interrupts: Interrupts::Sender };
        let mut group = self.group(&format!("packets-{thousands}k"), title, "packet", &work);
        group.extent = if thousands == QUICK { Extent::Quick } else { Extent::Full };
        group.columns = vec![above(), balancer(), offered(), Metric::Rate, share()];
        let rungs = RUNGS.iter();
        group.limits = rungs
            .map(|rung| {
                let limit = f64::from(rung.percent_of_pen) / 100.0;
                Limit::ratio(rung.name, above(), &[Program::Pen.name()], limit)
            })
            .collect();
        group
    }

    /// Makes the group of a rate that is too high for pen. What a core does in interrupts while it is idle belongs to no
    /// process, so there is no CPU above `direct`.
    fn overload(&self) -> Group {
        let title = format!(
            "{OVERLOAD},000 UDP packets of 60 bytes a second are sent, and cores of their own receive them at the \
             balancer and the servers"
        );
        let cores = &self.context.cores;
        let interrupts = Interrupts::Own { balancer: cores.target.clone(), servers: cores.load.clone() };
        let work = Work::Packets { rate: f64::from(OVERLOAD) * 1e3, interrupts };
        let mut group = self.group(&format!("overload-{OVERLOAD}k"), title, "packet", &work);
        group.headline = share();
        group.columns = vec![offered(), Metric::Rate, balancer()];
        group.limits =
            RUNGS.first().map(|best| Limit::absolute(best.name, share(), ALL)).into_iter().collect();
        group
    }

    fn group(&self, id: &str, title: String, unit: &str, work: &Work) -> Group {
        let mut group = Group::new(id, title, unit, pairs(&self.ways));
        // Each contestant compares itself with the one before it that has no balancer.
        let base = Base::default();
        for way in &self.ways {
            let (way, tools, work, base) = (*way, self.tools.clone(), work.clone(), base.clone());
            let start = move |context: &Context| Setting::start(context, &tools, way, &work, base.clone());
            let contestant = Contestant::new(way.name(), start);
            let version = way.program().and_then(|program| program.version(self.context));
            group.contestants.push(match version {
                Some(version) => contestant.version(version),
                None => contestant,
            });
        }
        group
    }
}

/// Pairs every balancer with the way without one, and penstock with pen.
fn pairs(ways: &[Way]) -> Pairing {
    let name = |way: &Way| way.name().to_owned();
    let balancers = ways.iter().filter(|way| **way != Way::Direct);
    let mut pairs: Vec<_> = balancers.map(|way| (name(way), DIRECT.to_owned())).collect();
    let rungs = ways.iter().filter(|way| matches!(way, Way::Penstock(_)));
    pairs.extend(rungs.map(|way| (name(way), name(&Way::Pen))));
    Pairing::Pairs(pairs)
}

fn above() -> Metric {
    figure(ABOVE, "CPU above direct", Scale::Seconds, Better::Lower)
}

fn balancer() -> Metric {
    figure(BALANCER, "balancer's process", Scale::Seconds, Better::Lower)
}

fn offered() -> Metric {
    figure(OFFERED, "sent/s", Scale::Count, Better::Higher)
}

fn share() -> Metric {
    figure(SHARE, "share that arrived", Scale::Count, Better::Higher)
}

fn figure(key: &str, title: &str, scale: Scale, better: Better) -> Metric {
    Metric::Figure { key: key.to_owned(), title: title.to_owned(), scale, better }
}

/// Thousands of packets per second.
const RATES: [u32; 4] = [25, 50, 100, 200];

/// Thousands of packets per second of which pen forwards less than half where its core receives them, too.
const OVERLOAD: u32 = 350;

/// Share of packets that arrive if none is lost: at both ends of the window some are on their way.
const ALL: f64 = 0.99;

/// The one in every run.
const QUICK: u32 = 100;

/// How connections are used, how many there are at once, and both in words.
type Connections = (Reuse, usize, &'static str);
const NEW: Connections =
    (Reuse::Never, 10, "a new connection for each request, 10 at once, replies of 100 B by nginx");
const KEPT: Connections = (Reuse::Keep, 64, "64 kept connections, replies of 100 B by nginx");

const NOTES: [&str; 6] = [
    "Client, balancer and two servers are network namespaces with virtual network cards (veth) on a bridge. `direct` has \
     no balancer: the client sends to the first server.",
    "CPU is that of everything that works on a packet together: client, balancer, servers, the kernel's threads for \
     network interfaces. What a packet costs in the kernel is paid by the process that sends it, so no single process \
     shows what a balancer costs: `CPU above direct` does, round by round.",
    "`packets`: sent at a constant rate from one packet socket, also if some are lost (open loop). Servers drop them \
     behind the network card, whose statistics count them (`packets/s`, `share that arrived`).",
    "`overload`: what a balancer receives interrupts its own core, as on a real machine (receive packet steering); in the \
     other groups the client's core does that work. A core that is idle does it for no process, so CPU is that of the \
     balancer's process for each packet that arrived.",
    "`requests-new` and `requests-kept`: the client calculates its checksums itself (`ethtool -K eth0 tx off`) on every \
     way, because pen forwards packets whose checksums are left to a virtual network card with wrong ones. \
     `requests-offload` leaves them to the card, which is the default.",
    "pen chooses by the client's address and port (`-r`), and remembers no flow. Neither balancer checks the servers.",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rung_is_compared_with_pen_and_every_balancer_with_none() {
        let ways = [Way::Direct, Way::Penstock(&RUNGS[2]), Way::Pen];
        let Pairing::Pairs(found) = pairs(&ways) else { panic!("not pairs") };
        let expected = [("penstock-af_packet", "direct"), ("pen", "direct"), ("penstock-af_packet", "pen")];
        assert_eq!(found, expected.map(|(one, other)| (one.to_owned(), other.to_owned())));
    }
}
