//! A chain of load, program and backend, for the scenarios of relays and of TLS.

use std::cell::RefCell;
use std::time::Duration;

use crate::address::Address;
use crate::agent::Agent;
use crate::contestant::{Contestant, Running};
use crate::context::{Context, descriptors_for};
use crate::error::Error;
use crate::limit::Limit;
use crate::load::gauge::{Metered, Window};
use crate::load::{Order, idle};
use crate::meter::Processes;
use crate::pairing::Pairing;
use crate::plan::{Group, Length, Plan};
use crate::sample::{Better, Metric, Sample, Scale};
use crate::target::Program;
use crate::target::front::Front;
use crate::target::prepared::Target;

/// Description of a chain.
pub(super) struct Links {
    /// Server at the end of the chain.
    pub backend: Order,
    /// Measured program. `None`: the backend itself is measured, on the target's core.
    pub front: Option<(Program, Front)>,
    pub company: Neighbour,
    /// Makes the load's order from the server's address and the process whose memory is read.
    pub load: Box<dyn Fn(Address, i32) -> Order>,
    pub count: Count,
}

/// Other processes on the target's core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Neighbour {
    Alone,
    /// A process that uses all idle time, so that the target always has a backlog when it runs.
    Spinning,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    Units,
    Gigabytes,
}

pub(super) struct Chain {
    target: Option<Target>,
    backend: Agent,
    /// Ends with the chain.
    _spinner: Option<Agent>,
    order: Order,
    count: Count,
}

impl Chain {
    pub(super) fn start(context: &Context, links: Links) -> Result<Self, Error> {
        let cores = if links.front.is_some() { &context.cores.load } else { &context.cores.target };
        let (backend, addresses) = Agent::serve(context, "backend", links.backend, cores)?;
        let target = match links.front {
            Some((program, front)) => Some(program.start(context, &front)?),
            None => None,
        };
        let spinner = match links.company {
            Neighbour::Alone => None,
            Neighbour::Spinning => {
                Some(Agent::serve(context, "spinner", Order::Spin, &context.cores.target)?.0)
            }
        };
        let (server, pid) = match (&target, addresses.into_iter().next()) {
            (Some(target), _) => (target.address.clone(), target.process.pid()),
            (None, Some(address)) => (address, backend.pid()),
            (None, None) => {
                let what = "backend".to_owned();
                return Err(Error::Load { what, text: "it listens nowhere".to_owned() });
            }
        };
        let order = (links.load)(server, pid);
        Ok(Chain { target, backend, _spinner: spinner, order, count: links.count })
    }

    fn metered(&self) -> Vec<Metered> {
        let backend = self.backend.pid();
        let mut metered = match &self.target {
            None => vec![tree("target", backend)],
            Some(target) => vec![tree("target", target.process.pid()), tree("backend", backend)],
        };
        // Splicing causes work in kernel threads.
        if self.count == Count::Gigabytes {
            metered.extend(Processes::read().kthreadd().map(|root| tree(KERNEL, root)));
        }
        metered
    }
}

impl Running for Chain {
    fn configuration(&self) -> String {
        self.target.as_ref().map(|target| target.configuration.clone()).unwrap_or_default()
    }

    fn trial(&mut self, context: &Context, window: Window) -> Result<Sample, Error> {
        if let Some(target) = &mut self.target {
            target.process.check()?;
        }
        let metered = self.metered();
        let tally = Agent::load(context, "load", self.order.clone(), window, metered)?;
        let gigabytes = tally.bytes as f64 / 1e9;
        let mut sample = tally.sample(&["target"]);
        if self.count == Count::Gigabytes {
            // `tally.sample` has divided by one unit, because this load counts bytes only.
            sample.figures.values_mut().for_each(|value| *value /= gigabytes);
            sample.figures.retain(|_, value| value.is_finite());
            sample.units = gigabytes;
            let whole = Metric::CpuPerUnit.of(&sample).zip(kernel_cpu().of(&sample));
            sample.figures.extend(whole.map(|(own, kernel)| (WHOLE.to_owned(), own + kernel)));
        }
        Ok(sample)
    }
}

fn tree(name: &str, pid: i32) -> Metered {
    Metered { name: name.to_owned(), pid }
}

/// A chain that is restarted for each trial: a program may keep memory from an earlier trial.
pub(super) struct Fresh<F> {
    links: F,
    configuration: RefCell<String>,
    connections: usize,
}

impl<F: Fn(&Context) -> Result<Links, Error>> Fresh<F> {
    /// Makes a contestant from the chain that `links` returns, with `connections` connections.
    pub(super) fn new(connections: usize, links: F) -> Self {
        Fresh { links, configuration: RefCell::default(), connections }
    }
}

impl<F: Fn(&Context) -> Result<Links, Error>> Running for Fresh<F> {
    fn configuration(&self) -> String {
        self.configuration.borrow().clone()
    }

    fn trial(&mut self, context: &Context, _: Window) -> Result<Sample, Error> {
        let mut chain = Chain::start(context, (self.links)(context)?)?;
        self.configuration.replace(chain.configuration());
        // The idle load does all its work before the window opens.
        let none = Window { warm_up: Default::default(), duration: Default::default() };
        let mut sample = chain.trial(context, none)?;
        sample.units = self.connections as f64;
        sample.cpu = None;
        sample
            .figures
            .retain(|name, _| [idle::GROWTH, idle::BEFORE_REST, idle::ALL].contains(&name.as_str()));
        Ok(sample)
    }
}

/// Makes a group without contestants for the memory of idle connections; `limit` and `goal` are bytes per connection.
pub(super) fn idle_group(title: String, limit: f64, goal: f64) -> Group {
    let mut group = Group::new("idle", title, "connection", Pairing::Subject("penstock".to_owned()));
    let [growth, all] = memory();
    group.limits = vec![Limit::absolute("penstock", growth.clone(), limit).goal(goal)];
    group.headline = growth;
    group.columns = vec![all];
    group.length = Length::Own(FRESH);
    group.descriptors = descriptors_for(idle::LEAST);
    group
}

/// Number of idle plain connections: many, so that memory unrelated to connections has little effect.
pub(super) const MANY: usize = 9000;
/// Time for restarting a chain, opening its connections, and waiting until its memory is stable.
pub(super) const FRESH: Duration = Duration::from_millis(1000);

/// Returns the installed programs and notes the others as missing.
pub(super) fn present(
    context: &Context,
    plan: &mut Plan,
    programs: &[Program],
) -> Result<Vec<Program>, Error> {
    let mut present = Vec::new();
    for program in programs {
        match program.find(context) {
            Ok(_) => present.push(*program),
            Err(error) => plan.note_missing(error)?,
        }
    }
    Ok(present)
}

/// Makes a contestant of a program under another name.
pub(super) fn contestant<R: Running + 'static>(
    context: &Context,
    name: &str,
    program: Program,
    start: impl Fn(&Context) -> Result<R, Error> + 'static,
) -> Contestant {
    let contestant = Contestant::new(name, start);
    match program.version(context) {
        Some(version) => contestant.version(version),
        None => contestant,
    }
}

/// CPU time of the backend per unit of work. It should be equal for all contestants: a difference shows a bad round.
pub(super) fn backend_cpu() -> Metric {
    cpu_figure("backend-cpu", "backend's CPU")
}

/// CPU time of kernel threads per unit of work.
pub(super) fn kernel_cpu() -> Metric {
    cpu_figure("kernel-cpu", "kernel threads' CPU")
}

/// CPU time of the target and of kernel threads per unit of work, which includes work that the target moved there.
pub(super) fn whole_cpu() -> Metric {
    cpu_figure(WHOLE, "both together")
}

fn cpu_figure(key: &str, title: &str) -> Metric {
    let (key, title) = (key.to_owned(), title.to_owned());
    Metric::Figure { key, title, scale: Scale::Seconds, better: Better::Lower }
}

const KERNEL: &str = "kernel";
const WHOLE: &str = "whole-cpu";

/// Memory figures per idle connection: growth, and total.
pub(super) fn memory() -> [Metric; 2] {
    [(idle::GROWTH, "memory per connection"), (idle::ALL, "all memory / connections")]
        .map(|(key, title)| bytes(key, title))
}

pub(super) fn bytes(key: &str, title: &str) -> Metric {
    Metric::Figure {
        key: key.to_owned(),
        title: title.to_owned(),
        scale: Scale::Bytes,
        better: Better::Lower,
    }
}
