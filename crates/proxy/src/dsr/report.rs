//! What operators see of a service (`crates/state/src/dsr.rs`), and what they ask it.

use std::collections::HashSet;
use std::time::Instant;

use logic::dsr::Standing;
use logic::dsr::explain::{Entry, Explanation};
use logic::dsr::machine;
use logic::dsr::packet::{Flow, shown};
use logic::health::{State as HealthState, VerdictOutcome};
use state::dsr::{BackendOfService, Question, ServiceReport, VipReport};
use sys::bpf::coarse_now;

use super::Server;
use super::backends::missing_subject;

impl Server {
    /// Tells operators how it stands.
    pub(super) fn publish(&self) {
        // Before its first look the service knows neither its interface nor its backends.
        if self.ticks == 0 {
            return;
        }
        let Some(settings) = self.settings() else { return };
        let report = ServiceReport {
            listener: self.key.listener.to_string(),
            address: self.key.bind.to_string(),
            transport: settings.transports.as_str(),
            path: self.path.rung().as_str(),
            mode: settings.mode.as_str(),
            ownership: self.ownership.unwrap_or_default().as_str(),
            interface: settings.interface.to_string(),
            ethernet: self.interface.map(|it| shown(it.mac)),
            pool: self.known.pool(settings.pool).settings.name.to_string(),
            flows: self.director.flows(),
            max_flows: settings.max_flows,
            packets: self.totals.packets,
            bytes: self.totals.bytes,
            passed: self.totals.passed,
            answered: self.totals.answered,
            dropped: self.totals.dropped.clone(),
            traces: self.tracer.count(),
            tarpit: self.tarpit.report(),
            backends: self.backends_of_service(),
        };
        self.worker.front.state.services.publish(report, &self.desk);
    }

    fn backends_of_service(&self) -> Vec<BackendOfService> {
        let views = self.director.views().into_iter();
        let all = views.map(|view| {
            let (packets, bytes) = self.gauges.sent(&view.name);
            BackendOfService {
                state: match view.standing {
                    Some(Standing::Open) => "open",
                    Some(Standing::Draining) => "draining",
                    Some(Standing::Down) => "down",
                    None => "removed",
                },
                ethernet: view.mac.map(shown),
                flows: view.flows,
                packets,
                bytes,
                vip: self.vip_report(&view.name),
                name: view.name,
            }
        });
        all.collect()
    }

    fn vip_report(&self, backend: &str) -> Option<VipReport> {
        let health = self.probes.prober()?.health(backend);
        let state = health.map_or(HealthState::Unchecked, |health| health.state());
        let failed = health
            .filter(|_| state == HealthState::Down)
            .and_then(|health| health.verdicts().find(|verdict| verdict.outcome == VerdictOutcome::Fail));
        Some(VipReport { state: state.word(), cause: failed.map(|verdict| verdict.cause.to_string()) })
    }

    /// Answers a question of an operator.
    pub(super) fn answer(&mut self, question: Question) {
        match question {
            Question::Explain { flow, answer } => {
                // Who has asked may have left.
                let _ = answer.send(self.explain(&flow));
            }
            Question::Follow { done } => {
                self.set_backends(Instant::now());
                self.tell_program();
                let _ = done.send(());
            }
        }
    }

    fn explain(&mut self, flow: &Flow) -> Explanation {
        let interface = self.settings().map_or(String::new(), |it| it.interface.to_string());
        let explained = self.explain_decision(flow);
        Explanation {
            no_packets: self.no_link().map(|why| machine::no_packets(&interface, why)),
            ..explained
        }
    }

    fn explain_decision(&mut self, flow: &Flow) -> Explanation {
        match &self.kernel {
            None => self.director.explain(flow, Instant::now()),
            Some(kernel) => {
                let found = kernel.attached.shared().look_up_flow(&self.director.flow_key(flow));
                let entry = match &found {
                    Ok(Some(entry)) => Entry::Found(entry),
                    Ok(None) => Entry::None,
                    Err(_) => Entry::Unreadable,
                };
                self.director.explain_in_kernel(flow, entry, coarse_now())
            }
        }
    }
}

impl Drop for Server {
    /// Of a service that ends nothing is degraded. What another address of the listener misses is told again.
    fn drop(&mut self) {
        let state = &self.worker.front.state;
        state.services.withdraw(&self.key.listener, &self.key.bind.to_string(), &self.desk);
        let own = self.subject();
        let missing: HashSet<_> =
            self.gauges.names().map(|name| missing_subject(&self.key.listener, name)).collect();
        state.forget_degraded(|degraded| {
            missing.contains(degraded)
                || degraded.strip_prefix(&*own).is_some_and(|rest| rest.starts_with('.'))
        });
    }
}
