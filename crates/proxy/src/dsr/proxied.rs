//! A service without packets: its connections and datagrams come to sockets of their own, as those of `tcp` and `udp`
//! listeners. Here is what operators are told of it, in one worker.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use logic::balance::{Admission, Availability, Unhealthy};
use logic::dsr::machine;
use state::data_path::DataPath;
use state::dsr::{BackendOfService, Question, ServiceReport};
use state::listen::BoundKey;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::machine::DISCARD;
use super::path::Path;
use crate::accept::CloseSignal;
use crate::upstream;
use crate::worker::Worker;

/// How often it is told how the service stands.
const TICK: Duration = Duration::from_secs(1);

/// Tells operators of one address until it is closed.
pub(crate) async fn run(worker: Rc<Worker>, key: BoundKey, path: DataPath, close_signal: Rc<CloseSignal>) {
    let path = Path::new(path);
    path.tell(&worker, &key);
    let (desk, mut questions) = mpsc::channel(state::dsr::WAITING);
    let services = &worker.front.state.services;
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = close_signal.closed() => break,
            _ = tick.tick() => {
                look_for_address(&worker, &key);
                if let Some(report) = report(&worker, &key, &path, Instant::now()) {
                    services.publish(report, &desk);
                }
            }
            Some(question) = questions.recv() => match question {
                // The control socket explains such a service itself.
                Question::Explain { answer, .. } => drop(answer),
                Question::Follow { done } => {
                    // Each session reads what operators have changed.
                    let _ = done.send(());
                }
            },
        }
    }
    services.withdraw(&key.listener, &key.bind.to_string(), &desk);
    let subject = address_subject(&key);
    worker.front.state.forget_degraded(|degraded| degraded == subject);
    path.close(&worker, &key);
}

fn address_subject(key: &BoundKey) -> String {
    format!("listener.{}.{}.own-address", key.listener, key.bind)
}

/// The kernel gives connections to this process for addresses of this machine alone.
fn look_for_address(worker: &Worker, key: &BoundKey) {
    let (Some(vip), state) = (key.bind.vip(), &worker.front.state) else { return };
    let current = worker.current();
    let Some(settings) = current.listeners.get(&key.listener).and_then(|it| it.settings.dsr()) else {
        return;
    };
    // What cannot be found out now stays as it was.
    match sys::datagram::is_local(SocketAddr::new(vip.ip(), DISCARD)) {
        Ok(true) => state.restore(&address_subject(key)),
        Ok(false) => {
            state.degrade(&address_subject(key), &machine::lost_address(vip.ip(), &settings.interface));
        }
        Err(_) => {}
    }
}

fn report(worker: &Worker, key: &BoundKey, path: &Path, now: Instant) -> Option<ServiceReport> {
    let current = worker.current();
    let settings = current.listeners.get(&key.listener)?.settings.dsr()?;
    let pool = current.pool(settings.pool);
    let standings = || upstream::standings(pool, None, now);
    let (_, unhealthy) = logic::balance::candidates(standings, pool.settings.all_down);
    let backend = |(plan, one): (&crate::snapshot::BackendPlan, logic::balance::Standing)| {
        let is_out = one.health.availability() != Availability::Available && unhealthy == Unhealthy::Excluded;
        BackendOfService {
            name: plan.state.name.to_string(),
            state: match one.admission {
                _ if is_out => "down",
                Admission::Ready => "open",
                Admission::Draining => "draining",
            },
            ethernet: None,
            flows: plan.state.in_flight.load(std::sync::atomic::Ordering::Relaxed),
            packets: 0,
            bytes: 0,
            vip: None,
        }
    };
    let backends: Vec<_> = pool.backends.iter().zip(standings()).map(backend).collect();
    Some(ServiceReport {
        listener: key.listener.to_string(),
        address: key.bind.to_string(),
        transport: settings.transports.as_str(),
        path: path.rung().as_str(),
        mode: settings.mode.as_str(),
        ownership: "owner",
        interface: settings.interface.to_string(),
        pool: pool.settings.name.to_string(),
        flows: backends.iter().map(|one| one.flows as usize).sum(),
        max_flows: settings.max_flows,
        backends,
        ..ServiceReport::default()
    })
}
