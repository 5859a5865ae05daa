//! Services of `dsr` listeners as their workers last told, for operators; and where to ask such a worker.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use logic::dsr::explain::Explanation;
use logic::dsr::packet::Flow;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::lock::lock;

pub mod start_confirmation;
pub mod trace;

use trace::Traces;

/// Questions that may wait for one service.
pub const WAITING: usize = 8;

/// What the worker of a service is asked.
pub enum Question {
    /// What it would do with the next packet of a flow.
    Explain { flow: Flow, answer: oneshot::Sender<Explanation> },
    /// To follow what operators have changed of backends, and to say so.
    Follow { done: oneshot::Sender<()> },
}

/// One address of a `dsr` listener.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ServiceReport {
    /// NAME of `[listener.NAME]`.
    pub listener: String,
    /// The virtual address with its port, as in `bind`.
    pub address: String,
    /// `tcp`, `udp` or `tcp-and-udp`.
    pub transport: &'static str,
    /// What forwards the packets: a word of `logic::dsr::path::Rung`.
    pub path: &'static str,
    /// How packets reach backends: a word of `logic::dsr::tunnel::Mode`.
    pub mode: &'static str,
    /// `owner`: this machine answers for the address; `standby`: it does not, because it lacks `owner-address`.
    pub ownership: &'static str,
    pub interface: String,
    /// Ethernet address of the interface; `None` while it is gone.
    pub ethernet: Option<String>,
    pub pool: String,
    /// Flows that are remembered.
    pub flows: usize,
    pub max_flows: usize,
    /// Packets to backends.
    pub packets: u64,
    /// Bytes of frames to backends.
    pub bytes: u64,
    /// Packets that were seen and were not for this service.
    pub passed: u64,
    /// Questions who has the address that were answered.
    pub answered: u64,
    /// Packets that were dropped, by reason.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Traces that see its packets.
    pub traces: usize,
    /// The tarpit of the listener, which its first address has.
    pub tarpit: Option<TarpitReport>,
    pub backends: Vec<BackendOfService>,
}

/// Addresses that no machine has, and that hold clients.
#[derive(Clone, Debug, Serialize)]
pub struct TarpitReport {
    pub networks: Vec<String>,
    /// Packets a second that are sent, at most.
    pub rate: u32,
    /// Addresses that are answered now.
    pub addresses: usize,
    /// Addresses of the networks that a machine has, as far as someone asked for them.
    pub used: usize,
    /// SYNs that were answered.
    pub tarpitted: u64,
    /// Window probes that were answered.
    pub held: u64,
    /// What was not answered because of the limit.
    pub limited: u64,
}

/// A backend of a service.
#[derive(Clone, Debug, Serialize)]
pub struct BackendOfService {
    pub name: String,
    /// `open`, `draining` or `down`; `removed`: it is not configured any more, and keeps its flows.
    pub state: &'static str,
    /// Ethernet address; `None`: it answers no question for it, and gets no new flows.
    pub ethernet: Option<String>,
    pub flows: u32,
    pub packets: u64,
    pub bytes: u64,
    /// Whether it accepts the virtual address; `None`: the pool has no check that asks that.
    pub vip: Option<VipReport>,
}

/// Result of the probes of a backend.
#[derive(Clone, Debug, Serialize)]
pub struct VipReport {
    /// `unchecked`, `up` or `down`.
    pub state: &'static str,
    /// Why it failed last, as long as it is down.
    pub cause: Option<String>,
}

/// A service, with the place where its worker is asked.
pub type Served = (ServiceReport, mpsc::Sender<Question>);

/// All services of this process, by listener and address.
#[derive(Default)]
pub struct Services {
    all: Mutex<BTreeMap<(String, String), Served>>,
    traces: Traces,
    /// Whether they are given up unless an operator confirms the start.
    pub start_confirmation: start_confirmation::StartConfirmation,
}

impl Services {
    /// Traces of their packets.
    pub fn traces(&self) -> &Traces {
        &self.traces
    }

    pub fn publish(&self, report: ServiceReport, questions: &mpsc::Sender<Question>) {
        let key = (report.listener.clone(), report.address.clone());
        lock(&self.all).insert(key, (report, questions.clone()));
    }

    /// Forgets a service that ends, unless another task serves it already.
    pub fn withdraw(&self, listener: &str, address: &str, questions: &mpsc::Sender<Question>) {
        let mut all = lock(&self.all);
        let key = (listener.to_owned(), address.to_owned());
        if all.get(&key).is_some_and(|(_, known)| known.same_channel(questions)) {
            all.remove(&key);
        }
    }

    /// Sorted by listener and address.
    pub fn all(&self) -> Vec<Served> {
        lock(&self.all).values().cloned().collect()
    }

    /// Waits until all services follow what operators have changed of backends before this call. Returns the addresses of
    /// those that have not said so in time.
    pub async fn followed_within(&self, limit: Duration) -> Vec<String> {
        let deadline = Instant::now() + limit;
        let desks: Vec<_> =
            lock(&self.all).iter().map(|((_, address), (_, desk))| (address.clone(), desk.clone())).collect();
        let mut asked = Vec::new();
        for (address, desk) in desks {
            let (done, followed) = oneshot::channel();
            // One that ends forgets the question, and gives no new flows.
            asked.push(match timeout_at(deadline, desk.send(Question::Follow { done })).await {
                Ok(_) => (address, Some(followed)),
                Err(_) => (address, None),
            });
        }
        let mut late = Vec::new();
        for (address, followed) in asked {
            let is_late = match followed {
                Some(followed) => timeout_at(deadline, followed).await.is_err(),
                None => true,
            };
            if is_late {
                late.push(address);
            }
        }
        late
    }

    /// What the services say of a backend of a pool: listener, address and result of the probes.
    pub fn probes(&self, pool: &str, backend: &str) -> Vec<(String, String, VipReport)> {
        let all = lock(&self.all);
        let of_pool = all.values().map(|(report, _)| report).filter(|report| report.pool == pool);
        let result = |report: &ServiceReport| {
            let found = report.backends.iter().find(|one| one.name == backend)?;
            Some((report.listener.clone(), report.address.clone(), found.vip.clone()?))
        };
        of_pool.filter_map(result).collect()
    }
}
