//! Backends that names in the DNS stand for: `dns:HOST:PORT` and `srv:NAME` in `backends`.
//!
//! 1. `crates/serve/src/discovery/task.rs`: a task for each name repeats its look-up, which
//!    `crates/serve/src/discovery/look_up.rs` makes.
//! 2. `crates/logic/src/discovery.rs` decides from the answers which backends there are.
//! 3. `crates/serve/src/discovery/expand.rs` puts them into a configuration in place of the name, and the supervisor serves that
//!    as a reload does. The text of the configuration, which live changes edit and `save` writes, keeps the name.
//!
//! A failed look-up changes nothing: the last backends stay. A name that never resolved is one backend, which is down.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use config::Config;
use config::types::{BackendAddress, DnsName, Pool, Standing};
use logic::discovery::{self, Answer, Members};
use logic::health::{Cause, Source, Verdict, VerdictOutcome};
use proxy::snapshot::Snapshot;
use state::State;
use state::events::Level;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::health::note_resolution;
use crate::per_backend::FIRST_LIMIT;

mod expand;
mod look_up;
mod task;

use task::Told;

/// Largest number of messages that wait; with more, the oldest are left out.
const MOST_UNTOLD: usize = 64;

/// Subject of what concerns all names.
pub(crate) const DISCOVERY: &str = "discovery";

/// A pool and a name in it.
type Key = (Arc<str>, DnsName);

/// Whether there are other backends to serve than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    Backends,
}

/// Whether the backends that the last answers had are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    Is,
    /// The next answer tries again, also if it has the same addresses.
    Not,
}

/// The names, with the backends that each stands for. Dropping it ends the look-ups.
pub(crate) struct Discoverer {
    state: Arc<State>,
    entries: HashMap<Key, Entry>,
    served: Served,
    /// Subjects and messages about changes that are not served yet.
    untold: VecDeque<(String, String)>,
    /// Number of earlier ones that were left out.
    left_out: usize,
    answers: mpsc::Receiver<Told>,
    /// For the tasks.
    tell: mpsc::Sender<Told>,
}

struct Entry {
    /// Dropping this sender ends the task.
    interval: watch::Sender<Duration>,
    misses: u32,
    /// Backends need an address of this family.
    source: Option<IpAddr>,
    members: Members,
    /// Whether a look-up has ended.
    looked_up: LookedUp,
    known: Known,
    /// A failure that its backend has not been told, and how long it took.
    failure: Option<(String, Duration)>,
}

/// Whether an answer had all backends of the name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    NotYet,
    All,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LookedUp {
    Never,
    Once,
}

impl Discoverer {
    pub(crate) fn new(state: Arc<State>) -> Self {
        let (tell, answers) = mpsc::channel(16);
        let untold = VecDeque::new();
        Self { state, entries: HashMap::new(), served: Served::Is, untold, left_out: 0, answers, tell }
    }

    pub(crate) fn has_names(&self) -> bool {
        !self.entries.is_empty()
    }

    /// Notes whether the last changes are served. What is, is said now: who reads an event sees the backends of it.
    pub(crate) fn note(&mut self, served: Served) {
        self.served = served;
        if served == Served::Is {
            let left_out = std::mem::take(&mut self.left_out);
            if left_out > 0 {
                let message = match left_out {
                    1 => "1 earlier change is not listed".to_owned(),
                    _ => format!("{left_out} earlier changes are not listed"),
                };
                self.state.events.record(Level::Info, DISCOVERY, message);
            }
            for (subject, message) in self.untold.drain(..) {
                self.state.events.record(Level::Info, subject, message);
            }
        }
    }

    fn tell_later(&mut self, subject: String, message: String) {
        if self.untold.len() == MOST_UNTOLD {
            self.untold.pop_front();
            self.left_out += 1;
        }
        self.untold.push_back((subject, message));
    }

    /// Starts the look-ups of names that are new in `config`, and waits for their first answers, but at most 2 s. Those that
    /// `config` does not have go on, until [`Self::keep_only`].
    pub(crate) async fn begin(&mut self, config: &Config) {
        for pool in &config.pools {
            for name in names(pool) {
                let key = (pool.name.clone(), name.clone());
                let entry = self.entries.entry(key.clone()).or_insert_with(|| {
                    let (interval, intervals) = watch::channel(pool.resolve_interval);
                    tokio::spawn(task::run(self.state.clone(), key, intervals, self.tell.clone()));
                    Entry::new(interval)
                });
                entry.set(pool);
            }
        }
        let all = async {
            while self.entries.values().any(|entry| entry.looked_up == LookedUp::Never) {
                let Some(told) = self.answers.recv().await else { return };
                self.take(told);
            }
        };
        // The others come later, as changes do.
        let _ = timeout(FIRST_LIMIT, all).await;
    }

    /// Goes back to `config`, after [`Self::begin`] with another one that is not served. The next answer serves what came
    /// meanwhile.
    pub(crate) fn back_to(&mut self, config: &Config) {
        for pool in &config.pools {
            for name in names(pool) {
                if let Some(entry) = self.entries.get_mut(&(pool.name.clone(), name.clone())) {
                    entry.set(pool);
                }
            }
        }
        self.keep_only(config);
        self.served = Served::Not;
    }

    /// Ends the look-ups of names that `config` does not have.
    pub(crate) fn keep_only(&mut self, config: &Config) {
        self.entries.retain(|(pool, name), _| {
            let mut pools = config.pools.iter().filter(|known| known.name == *pool);
            let stays = pools.any(|known| names(known).any(|known| known == name));
            if !stays {
                let gone = subject(pool, name);
                self.state.forget_degraded(|degraded| degraded == gone);
            }
            stays
        });
    }

    /// Returns `config` with the backends that its names stand for.
    pub(crate) fn expand(&self, config: &Config) -> Config {
        expanded(config, |key| self.entries.get(key).map(|entry| &entry.members))
    }

    /// Like [`Self::expand`], but a name that `served` has gets no backend that `served` does not have.
    pub(crate) fn expand_within(&self, config: &Config, served: &Config) -> Config {
        let mut within: HashMap<&Key, Members> = HashMap::new();
        for (key, entry) in &self.entries {
            let (pool, name) = key;
            let pools = served.pools.iter().filter(|known| known.name == *pool);
            let mut is_new = true;
            let mut addresses = HashSet::new();
            for backend in pools.flat_map(|pool| &pool.backends) {
                match &backend.address {
                    BackendAddress::Dns(of) if of == name => is_new = false,
                    BackendAddress::Discovered { name: of, address } if **of == *name => {
                        is_new = false;
                        addresses.insert(*address);
                    }
                    _ => {}
                }
            }
            let members = &entry.members;
            let members = if is_new { members.clone() } else { members.only(|it| addresses.contains(&it)) };
            within.insert(key, members);
        }
        expanded(config, |key| within.get(key))
    }

    /// Waits for the next answer and takes it in, with those that have come meanwhile.
    pub(crate) async fn next(&mut self) -> Change {
        let Some(told) = self.answers.recv().await else { return std::future::pending().await };
        let mut change = self.take(told);
        while let Ok(told) = self.answers.try_recv() {
            if self.take(told) == Change::Backends {
                change = Change::Backends;
            }
        }
        change
    }

    /// Forgets backends that are leaving and have no sessions.
    pub(crate) fn forget_idle(&mut self, snapshot: &Snapshot) -> Change {
        let mut messages = Vec::new();
        for ((pool, name), entry) in &mut self.entries {
            if !entry.members.has_leaving() {
                continue;
            }
            let plan = snapshot.pools.iter().find(|plan| plan.settings.name == *pool);
            let busy: Vec<SocketAddr> = plan
                .iter()
                .flat_map(|plan| &plan.backends)
                .filter(|backend| backend.state.in_flight.load(Relaxed) > 0)
                .filter_map(|backend| match &backend.settings.address {
                    BackendAddress::Discovered { name: of, address } if **of == *name => Some(*address),
                    _ => None,
                })
                .collect();
            let gone = entry.members.forget_idle(|address| !busy.contains(&address));
            if !gone.is_empty() {
                messages.push((subject(pool, name), format!("removed: {}", discovery::listed(&gone))));
            }
        }
        let change = if messages.is_empty() { Change::None } else { Change::Backends };
        messages.into_iter().for_each(|(subject, message)| self.tell_later(subject, message));
        change
    }

    /// Gives each backend whose name has never resolved the resolver's error. Drops stored marks of operators for backends
    /// that no name can bring any more.
    pub(crate) fn tell_failures(&mut self, snapshot: &Snapshot) {
        if self.served == Served::Is {
            self.state.awaited.forget(|pool, backend| {
                let mut may_come = self.entries.iter().filter(|(_, entry)| entry.known != Known::All);
                !may_come.any(|((of, name), _)| **of == *pool && name.may_have(backend))
            });
        }
        for plan in &snapshot.pools {
            for backend in &plan.backends {
                let BackendAddress::Dns(name) = &backend.settings.address else { continue };
                let key = (plan.settings.name.clone(), name.clone());
                let failure = self.entries.get_mut(&key).and_then(|entry| entry.failure.take());
                if let Some((reason, took)) = failure {
                    let cause = Cause::Unresolvable(reason);
                    let (at, source, outcome) = (SystemTime::now(), Source::Resolver, VerdictOutcome::Fail);
                    note_resolution(
                        &self.state,
                        &backend.state,
                        Verdict { at, source, outcome, cause, took },
                    );
                }
            }
        }
    }

    fn take(&mut self, told: Told) -> Change {
        let Told { key, found, took } = told;
        // The name may have been removed meanwhile.
        let Some(entry) = self.entries.get_mut(&key) else { return Change::None };
        entry.looked_up = LookedUp::Once;
        let subject = subject(&key.0, &key.1);
        let answer = match found.and_then(|answer| entry.usable(answer)) {
            Ok(answer) => answer,
            Err(reason) => {
                let kept = entry.members.iter().filter(|member| member.standing == Standing::Here).count();
                let why = match kept {
                    0 => format!("name does not resolve: {reason}"),
                    _ => format!(
                        "name does not resolve any more: {reason}; keeping the last {}",
                        text::units::count(kept, "backend")
                    ),
                };
                self.state.degrade(&subject, &why);
                entry.failure = Some((reason, took));
                return Change::None;
            }
        };
        entry.failure = None;
        if answer.unknown.is_empty() {
            entry.known = Known::All;
        }
        let is_first = entry.members.is_empty();
        let changes = entry.members.answered(&answer, entry.misses);
        if changes.any() && !is_first {
            self.tell_later(subject.clone(), changes.to_string());
        }
        match (changes.left_out, answer.unknown.len()) {
            (0, 0) => self.state.restore(&subject),
            (0, _) => {
                let unknown = answer.unknown.iter().take(4).map(|target| text::terminal::line(target));
                let unknown = unknown.collect::<Vec<_>>().join(", ");
                let why = format!("targets that do not resolve, whose backends stay: {unknown}");
                self.state.degrade(&subject, &why);
            }
            (left_out, _) => {
                let why = format!(
                    "its answer has {} more: a name stands for at most {} backends",
                    text::units::count_of(left_out, "address", "addresses"),
                    discovery::MOST
                );
                self.state.degrade(&subject, &why);
            }
        }
        if changes.any() || self.served == Served::Not { Change::Backends } else { Change::None }
    }
}

impl Entry {
    fn new(interval: watch::Sender<Duration>) -> Self {
        Self {
            interval,
            misses: 1,
            source: None,
            members: Members::default(),
            looked_up: LookedUp::Never,
            known: Known::NotYet,
            failure: None,
        }
    }

    /// Takes over the settings of its pool.
    fn set(&mut self, pool: &Pool) {
        self.misses = pool.resolve_misses;
        self.source = pool.source_address.ours();
        let interval = pool.resolve_interval;
        self.interval.send_if_modified(|before| std::mem::replace(before, interval) != interval);
    }

    /// Leaves out addresses that cannot be connected to. The error says why none is left.
    fn usable(&self, mut answer: Answer) -> Result<Answer, String> {
        let sample = answer.found.first().map(|found| found.address);
        let fits =
            |address: SocketAddr| self.source.is_none_or(|source| source.is_ipv4() == address.is_ipv4());
        answer.found.retain(|found| discovery::is_usable(found.address) && fits(found.address));
        match sample {
            _ if !answer.found.is_empty() => Ok(answer),
            Some(sample) if discovery::is_usable(sample) => {
                Err("no address of the family of source-address".to_owned())
            }
            Some(sample) => Err(format!("no server can be at {sample}")),
            None if answer.unknown.is_empty() => Err("no address".to_owned()),
            None => Err("no target of its SRV records resolves".to_owned()),
        }
    }
}

/// Returns `config` with `members` in place of its names.
fn expanded<'m>(config: &Config, members: impl Fn(&Key) -> Option<&'m Members>) -> Config {
    let mut config = config.clone();
    for pool in &mut config.pools {
        let name = pool.name.clone();
        expand::pool(pool, |dns| members(&(name.clone(), dns.clone())));
    }
    config
}

/// Names of a pool that stand for backends.
fn names(pool: &Pool) -> impl Iterator<Item = &DnsName> {
    pool.backends.iter().filter_map(|backend| match &backend.address {
        BackendAddress::Dns(name) => Some(name),
        _ => None,
    })
}

/// Subject in events and in the list of degraded subjects.
fn subject(pool: &str, name: &DnsName) -> String {
    format!("pool.{pool}.{name}")
}

#[cfg(test)]
mod tests;
