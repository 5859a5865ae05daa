//! A load, something in between, and a backend: what the scenarios of relays and of TLS are made of.

use std::cell::RefCell;
use std::time::Duration;

use crate::address::Address;
use crate::agent::Agent;
use crate::context::{Context, descriptors_for};
use crate::error::Error;
use crate::load::{Metered, Order, Window, idle};
use crate::meter::Processes;
use crate::sample::{Better, Metric, Sample, Scale};
use crate::scenario::{Bar, Contestant, Group, Length, Pairing, Plan, Running};
use crate::target::{Front, Program, Target};

/// A chain as it is wanted.
pub(super) struct Links {
    /// The server behind it all.
    pub backend: Order,
    /// What is measured. None: the backend itself, on the core that the others have.
    pub front: Option<(Program, Front)>,
    /// Who else is on the target's core.
    pub company: Company,
    /// The load, given where to go and whose memory to read.
    pub load: Box<dyn Fn(Address, i32) -> Order>,
    /// What is counted.
    pub count: Count,
}

/// Who else is on the target's core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Company {
    /// Nobody.
    Alone,
    /// A process that takes all time that the target leaves, so that the target always finds work when it runs.
    Spinning,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    /// The load's units.
    Units,
    /// Bytes, in GB.
    Gigabytes,
}

/// A chain that is up.
pub(super) struct Chain {
    target: Option<Target>,
    backend: Agent,
    /// Ends with the rest.
    _spinner: Option<Agent>,
    order: Order,
    count: Count,
}

impl Chain {
    /// Starts it from its end.
    pub fn start(context: &Context, links: Links) -> Result<Self, Error> {
        let cores = if links.front.is_some() { &context.cores.load } else { &context.cores.target };
        let (backend, addresses) = Agent::serve(context, "backend", links.backend, cores)?;
        let target = match links.front {
            Some((program, front)) => Some(program.start(context, &front)?),
            None => None,
        };
        let spinner = match links.company {
            Company::Alone => None,
            Company::Spinning => {
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
        // Splicing makes kernel threads work.
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
            // Without units, the figures of CPU time are whole.
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

/// A chain that is started anew for each trial: memory that a program has once had, it may keep.
pub(super) struct Fresh<F> {
    links: F,
    configuration: RefCell<String>,
    connections: usize,
}

impl<F: Fn(&Context) -> Result<Links, Error>> Fresh<F> {
    /// What `links` gives, with so many connections.
    pub fn new(connections: usize, links: F) -> Self {
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
        // All is done before the window opens.
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

/// A group without contestants that is judged by the memory of connections that do nothing; `must` and `aim` are bytes
/// for each of them.
pub(super) fn idle_group(title: String, must: f64, aim: f64) -> Group {
    let mut group = Group::new("idle", title, "connection", Pairing::Subject("penstock".to_owned()));
    let [growth, all] = memory();
    group.bars = vec![Bar::absolute("penstock", growth.clone(), must).aim(aim)];
    group.headline = growth;
    group.columns = vec![all];
    group.length = Length::Own(FRESH);
    group.descriptors = descriptors_for(idle::LEAST);
    group
}

/// Connections that are held where one costs little: many, to make what is not theirs small.
pub(super) const MANY: usize = 9000;
/// What it takes to start a chain anew, to open its connections, and to wait until its memory has settled.
pub(super) const FRESH: Duration = Duration::from_millis(1000);

/// Programs that are here; the others are noted as missing.
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

/// A program as a contestant, under a name of its own.
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

/// CPU time that the backend spent on a unit of work: it does the same for everybody, so a round in which it differs is
/// a bad one.
pub(super) fn backend_cpu() -> Metric {
    cpu_figure("backend-cpu", "backend's CPU")
}

/// CPU time that kernel threads spent on a unit of work.
pub(super) fn kernel_cpu() -> Metric {
    cpu_figure("kernel-cpu", "kernel threads' CPU")
}

/// CPU time of the target and of kernel threads together for a unit of work: what a target moves to them is in it.
pub(super) fn whole_cpu() -> Metric {
    cpu_figure(WHOLE, "both together")
}

fn cpu_figure(key: &str, title: &str) -> Metric {
    let (key, title) = (key.to_owned(), title.to_owned());
    Metric::Figure { key, title, scale: Scale::Seconds, better: Better::Lower }
}

const KERNEL: &str = "kernel";
const WHOLE: &str = "whole-cpu";

/// Memory figures of held connections: growth, and all of it.
pub(super) fn memory() -> [Metric; 2] {
    [(idle::GROWTH, "memory per connection"), (idle::ALL, "all memory / connections")]
        .map(|(key, title)| bytes(key, title))
}

/// A figure in bytes.
pub(super) fn bytes(key: &str, title: &str) -> Metric {
    Metric::Figure {
        key: key.to_owned(),
        title: title.to_owned(),
        scale: Scale::Bytes,
        better: Better::Lower,
    }
}
