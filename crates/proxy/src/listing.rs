//! What operators ask for of open sessions, and what they are told.

use std::sync::Arc;
use std::time::Duration;

use logic::peers::Peer;
use logic::sessions::{Filter, SessionNumber, Sort, Weight};
use sys::tcp_info::TcpInfo;

use crate::live::Speaks;

/// What is asked for.
#[derive(Debug)]
pub struct Asked {
    pub filter: Filter,
    pub sort: Sort,
    /// Sessions that are wanted at most.
    pub most: usize,
}

/// Where a session is found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    pub number: SessionNumber,
    /// Index of its worker.
    pub worker: usize,
    pub at: At,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum At {
    /// Index in its worker's table of connections.
    Connection(usize),
    /// Index of a socket for UDP, and in its table of flows.
    Flow { socket: usize, at: usize },
}

impl Place {
    /// Whose task has the session: that of a socket for UDP, or of the worker.
    pub fn socket(&self) -> Option<usize> {
        match self.at {
            At::Connection(_) => None,
            At::Flow { socket, .. } => Some(socket),
        }
    }
}

/// Where a worker goes on looking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// At the connection with this index.
    Connections(usize),
    /// At a place in the table of flows of a socket for UDP.
    Flows { socket: usize, from: usize },
}

impl Whence {
    pub const START: Self = Self::Connections(0);

    /// The first flow of a socket.
    pub(crate) fn socket(socket: usize) -> Self {
        Self::Flows { socket, from: 0 }
    }
}

/// What is to be ended.
#[derive(Clone, Debug)]
pub struct Target {
    pub place: Place,
    /// Ids of requests that are ended alone; none: the whole session ends.
    pub requests: Vec<String>,
}

/// A session that was ended, as it was before.
#[derive(Clone, Debug)]
pub struct EndedSession {
    pub row: Row,
    /// Ids of the requests that were ended alone; none: the whole session has ended.
    pub requests: Vec<String>,
}

/// One open session.
#[derive(Clone, Debug)]
pub struct Row {
    pub place: Place,
    pub listener: Arc<str>,
    pub client: Peer,
    pub speaks: Speaks,
    /// Requests that run; a TCP session is one.
    pub requests: u32,
    /// Backends of these, without repetition, that of the newest first.
    pub backends: Vec<Backend>,
    /// Id of the newest request.
    pub request_id: Option<String>,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Bytes a second in both directions since it was looked at before; `None` at the first look.
    pub rate: Option<u64>,
    pub age: Duration,
    /// Time since its last request, if no request runs.
    pub idle: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    pub pool: Arc<str>,
    pub name: Arc<str>,
}

impl Row {
    /// What rows are ordered by.
    pub fn key(&self, sort: Sort) -> (u64, SessionNumber) {
        let weight = Weight {
            age: self.age,
            bytes: self.bytes_in.saturating_add(self.bytes_out),
            rate: self.rate,
            requests: self.requests,
        };
        (sort.key(&weight), self.place.number)
    }
}

/// Answer to one question.
#[derive(Debug, Default)]
pub struct Scanned {
    /// The first of the sessions that match, in the order that was asked for.
    pub rows: Vec<Row>,
    /// Sessions that match.
    pub matched: usize,
    /// Where to go on; `None` at the end.
    pub next: Option<Whence>,
    /// Time that the worker took for it.
    pub took: Duration,
    /// Sessions among those that match without a rate.
    pub unmeasured: usize,
}

/// What the kernel knows of the connections of a session.
#[derive(Clone, Copy, Debug)]
pub struct Sockets {
    pub place: Place,
    pub client: Option<TcpInfo>,
    /// Of the newest request that has one.
    pub backend: Option<TcpInfo>,
}
