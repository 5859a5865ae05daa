//! Shows an operator the open sessions of a worker, a part at each question, and ends those that the operator names.

use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use logic::sessions::{Facts, Filter, SessionNumber, keep_largest};
use sys::tcp_info;

use super::{ConnectionHandle, Worker};
use crate::listing::{Asked, At, Backend, EndedSession, Place, Row, Scanned, Sockets, Target, Whence};
use crate::live::{Killed, NO_SOCKET};

/// Connections that one question looks at: some tenths of a millisecond.
const AT_ONCE: usize = 1024;

impl Worker {
    /// Looks at the next connections, from the index `from` on.
    pub(super) fn scan(&self, asked: &Asked, from: usize) -> Scanned {
        let began = Instant::now();
        let connections = self.connections.borrow();
        let end = from.saturating_add(AT_ONCE).min(connections.controls.len());
        let mut scanned = Scanned::default();
        let mut rates = self.rates.borrow_mut();
        for at in from.min(end)..end {
            let Some(handle) = &connections.controls[at] else { continue };
            let serial = connections.serials[at];
            if !self.matches(handle, serial, &asked.filter) {
                continue;
            }
            let place =
                Place { number: self.session_number(serial), worker: self.index, at: At::Connection(at) };
            let mut row = self.row(handle, place, began);
            row.rate = rates.measure(at, serial, row.bytes_in.saturating_add(row.bytes_out), began);
            scanned.matched += 1;
            scanned.unmeasured += usize::from(row.rate.is_none());
            scanned.rows.push(row);
        }
        keep_largest(&mut scanned.rows, asked.most, |row| row.key(asked.sort));
        scanned.next = match end < connections.controls.len() {
            true => Some(Whence::Connections(end)),
            false => self.mailboxes.first_from(0).map(Whence::socket),
        };
        scanned.took = began.elapsed();
        scanned
    }

    fn session_number(&self, serial: u32) -> SessionNumber {
        SessionNumber::new(serial, self.index, self.front.state.workers)
    }

    fn age(&self, handle: &ConnectionHandle) -> Duration {
        handle.live.age(self.front.state.started.elapsed())
    }

    fn matches(&self, handle: &ConnectionHandle, serial: u32, filter: &Filter) -> bool {
        let Some(listener) = &handle.live.listener else { return false };
        let mut requests = Vec::new();
        if filter.looks_at_requests() {
            self.running.of(&handle.live, |entry| {
                requests.push((entry.backend.clone(), entry.request_id.as_str().to_owned()));
            });
        }
        let requests: Vec<_> = requests
            .iter()
            .map(|(backend, id)| (backend.as_ref().map_or("", |backend| &*backend.name), id.as_str()))
            .collect();
        filter.matches(&Facts {
            number: self.session_number(serial),
            listener: &listener.name,
            client: handle.live.client(),
            age: self.age(handle),
            requests: &requests,
        })
    }

    fn row(&self, handle: &ConnectionHandle, place: Place, now: Instant) -> Row {
        let live = &handle.live;
        let mut row = Row {
            place,
            listener: live.listener.as_ref().map_or_else(|| "".into(), |listener| listener.name.clone()),
            client: live.client(),
            speaks: live.speaks.get(),
            requests: 0,
            backends: Vec::new(),
            request_id: None,
            bytes_in: live.up.get(),
            bytes_out: live.down.get(),
            rate: None,
            age: self.age(handle),
            idle: handle.idle_since().map(|since| now.saturating_duration_since(since)),
        };
        self.running.of(live, |entry| {
            row.requests += 1;
            if let Some(state) = &entry.backend
                && !row.backends.iter().any(|known| *known.name == *state.name && *known.pool == *state.pool)
            {
                row.backends.push(Backend { pool: state.pool.clone(), name: state.name.clone() });
            }
            if row.request_id.is_none() && !entry.request_id.is_none() {
                row.request_id = Some(entry.request_id.as_str().to_owned());
            }
            if let Some(totals) = &entry.totals {
                row.bytes_in = row.bytes_in.wrapping_add(totals.up.get());
                row.bytes_out = row.bytes_out.wrapping_add(totals.down.get());
            }
        });
        row
    }

    /// Asks the kernel for the connections of sessions.
    pub(super) fn tcp_of(&self, places: &[Place]) -> Vec<Sockets> {
        let ask = |socket| if socket == NO_SOCKET { None } else { tcp_info::read(socket) };
        let all = places.iter().filter_map(|place| {
            let handle = self.connection(*place)?;
            let mut backend = NO_SOCKET;
            self.running.of(&handle.live, |entry| {
                if backend == NO_SOCKET {
                    backend = entry.socket;
                }
            });
            Some(Sockets { place: *place, client: ask(handle.live.socket.get()), backend: ask(backend) })
        });
        all.collect()
    }

    /// Finds a connection, if it is still open.
    fn connection(&self, place: Place) -> Option<Rc<ConnectionHandle>> {
        let connections = self.connections.borrow();
        let At::Connection(at) = place.at else { return None };
        let serial = *connections.serials.get(at)?;
        if self.session_number(serial) != place.number {
            return None;
        }
        connections.controls.get(at)?.clone()
    }

    /// Ends sessions at once: client and backend get a reset, so that none takes what was cut for complete. Returns those
    /// that were open.
    pub(super) fn end_sessions(&self, targets: &[Target]) -> Vec<EndedSession> {
        let mut killed = Vec::new();
        for Target { place, requests } in targets {
            let Some(handle) = self.connection(*place) else { continue };
            if !requests.is_empty() {
                killed.extend(self.end_requests(&handle, *place, requests));
                continue;
            }
            let live = &handle.live;
            if live.killed.replace(Killed::Yes) == Killed::Yes {
                continue;
            }
            let row = self.row(&handle, *place, Instant::now());
            killed.push(EndedSession { row, requests: Vec::new() });
            reset_on_close(live.socket.get());
            self.running.of(live, |entry| reset_on_close(entry.socket));
            if let Some(key) = handle.idle_key() {
                self.idle_sessions.end(key);
            } else if let Some(task) = live.task.take() {
                // Its connections are closed when the runtime drops it.
                task.abort();
            }
        }
        killed
    }

    /// Ends requests of a connection that has several. The client's connection and its other streams go on.
    fn end_requests(
        &self,
        handle: &ConnectionHandle,
        place: Place,
        requests: &[String],
    ) -> Option<EndedSession> {
        let row = self.row(handle, place, Instant::now());
        let mut ended = Vec::new();
        self.running.of(&handle.live, |entry| {
            let id = entry.request_id.as_str();
            let Some(cut) = entry.cut.as_ref().filter(|_| requests.iter().any(|wanted| wanted == id)) else {
                return;
            };
            if cut.killed.replace(Killed::Yes) == Killed::Yes {
                return;
            }
            ended.push(id.to_owned());
            reset_on_close(entry.socket);
            if let Some(task) = cut.task.take() {
                // The runtime drops the stream, which tells the client so.
                task.abort();
            }
        });
        (!ended.is_empty()).then_some(EndedSession { row, requests: ended })
    }
}

/// Makes the kernel reset a connection of this worker when it is closed.
fn reset_on_close(socket: RawFd) {
    if socket != NO_SOCKET {
        tcp_info::reset_on_close(socket);
    }
}
