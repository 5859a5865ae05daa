//! Shows an operator the flows of a socket, and ends those that the operator names.
//!
//! The flows belong to the task of the socket (`crates/proxy/src/udp.rs`): a question waits in its mailbox
//! (`crates/proxy/src/udp/mailbox.rs`), and the task answers it between two batches.

use std::time::{Duration, Instant};

use logic::peers::Peer;
use logic::sessions::{Facts, SessionNumber, keep_largest};
use logic::udp::{FlowId, FlowKey};

use super::Server;
use super::flow::{End, Flow};
use super::mailbox::FlowQuestion;
use crate::arrival::canonical;
use crate::listing::{Asked, At, Backend, EndedSession, Place, Row, Scanned, Target, Whence};
use crate::live::Speaks;

/// Places of a table that one question looks at: some tenths of a millisecond.
const AT_ONCE: usize = 1024;

impl Server {
    /// Answers the questions of operators.
    pub(super) fn answer_questions(&mut self, now: Instant) {
        for question in self.registered.take() {
            match question {
                FlowQuestion::Scan { asked, from, answer } => drop(answer.send(self.scan(&asked, from, now))),
                FlowQuestion::Kill { targets, answer } => drop(answer.send(self.end_flows(&targets, now))),
            }
        }
    }

    fn scan(&self, asked: &Asked, from: usize, now: Instant) -> Scanned {
        let began = Instant::now();
        let end = from.saturating_add(AT_ONCE).min(self.table.places());
        let mut scanned = Scanned::default();
        let mut rates = self.registered.rates();
        for at in from.min(end)..end {
            let Some((_, key, last, flow)) = self.table.at(at) else { continue };
            let age = now.saturating_duration_since(flow.outcome.started());
            let backend = flow.backend().map(|(pool, index)| &pool.backends[index].state);
            let requests = [(backend.map_or("", |backend| &*backend.name), "")];
            let facts = Facts {
                number: self.number(flow),
                listener: &self.plan.state.name,
                client: client(key),
                age,
                requests: &requests,
            };
            if !asked.filter.matches(&facts) {
                continue;
            }
            let mut row = self.row(at, key, flow, age, now.saturating_duration_since(last));
            let bytes = row.bytes_in.saturating_add(row.bytes_out);
            row.rate = rates.measure(at, flow.serial as u32, bytes, began);
            scanned.matched += 1;
            scanned.unmeasured += usize::from(row.rate.is_none());
            scanned.rows.push(row);
        }
        keep_largest(&mut scanned.rows, asked.most, |row| row.key(asked.sort));
        scanned.next = match end < self.table.places() {
            true => Some(Whence::Flows { socket: self.registered.socket, from: end }),
            false => self.registered.next_socket().map(Whence::socket),
        };
        scanned.took = began.elapsed();
        scanned
    }

    fn number(&self, flow: &Flow) -> SessionNumber {
        SessionNumber::of_flow(flow.serial, self.worker.index, self.worker.front.state.workers)
    }

    fn row(&self, at: usize, key: &FlowKey, flow: &Flow, age: Duration, idle: Duration) -> Row {
        let backend = flow.backend().map(|(pool, index)| &pool.backends[index].state);
        let backend =
            backend.map(|backend| Backend { pool: backend.pool.clone(), name: backend.name.clone() });
        Row {
            place: Place {
                number: self.number(flow),
                worker: self.worker.index,
                at: At::Flow { socket: self.registered.socket, at },
            },
            listener: self.plan.state.name.clone(),
            client: client(key),
            speaks: Speaks::Udp,
            requests: 1,
            backends: backend.into_iter().collect(),
            request_id: None,
            bytes_in: flow.outcome.bytes_in,
            bytes_out: flow.outcome.bytes_out,
            rate: None,
            age,
            idle: Some(idle),
        }
    }

    /// Ends flows that are still there. The next datagram of such a client begins a new one.
    fn end_flows(&mut self, targets: &[Target], now: Instant) -> Vec<EndedSession> {
        let mut ended = Vec::new();
        for Target { place, .. } in targets {
            let At::Flow { at, .. } = place.at else { continue };
            let Some((id, row)) = self.named(*place, at, now) else { continue };
            if let Some(gone) = self.table.remove(id) {
                self.finish(gone, End::Killed);
                ended.push(EndedSession { row, requests: Vec::new() });
            }
        }
        ended
    }

    fn named(&self, place: Place, at: usize, now: Instant) -> Option<(FlowId, Row)> {
        let (id, key, last, flow) = self.table.at(at)?;
        if self.number(flow) != place.number {
            return None;
        }
        let age = now.saturating_duration_since(flow.outcome.started());
        Some((id, self.row(at, key, flow, age, now.saturating_duration_since(last))))
    }
}

fn client(key: &FlowKey) -> Peer {
    Peer::Ip(canonical(key.client()))
}
