//! Requests of one connection that wait until the heads of the open ones leave room for theirs. Their fields are held as
//! the frame layer has decoded them: a value that came as a reference to the table of the connection is held once.

use std::collections::VecDeque;
use std::task::Context;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::request::Parts;
use logic::room;

/// How long a request waits before it is refused.
const PATIENCE: Duration = Duration::from_secs(room::WAITING_SECONDS);

/// Requests with a body that may wait: what has come of their bodies takes up to 64 KiB each of the connection's window,
/// which those that are served need.
const MOST_BODIES: usize = 4;

/// Cost of a field beside its text; the frame layer counts the same.
const EACH_FIELD: usize = 128;

/// A request that the frame layer has decoded.
pub(super) struct Arrived {
    pub(super) parts: Parts,
    pub(super) body: RecvStream,
    pub(super) respond: SendResponse<Bytes>,
    since: Instant,
    /// What its fields cost, once it waits.
    cost: usize,
}

impl Arrived {
    pub(super) fn new(parts: Parts, body: RecvStream, respond: SendResponse<Bytes>, since: Instant) -> Self {
        Self { parts, body, respond, since, cost: 0 }
    }

    fn measured(&self) -> usize {
        let fields = self.parts.headers.iter();
        let fields: usize = fields.map(|(name, value)| name.as_str().len() + value.len() + EACH_FIELD).sum();
        fields + self.parts.uri.path_and_query().map_or(0, |path| path.as_str().len())
    }

    /// When it is refused if it still waits.
    pub(super) fn due(&self) -> Instant {
        self.since + PATIENCE
    }
}

/// The waiting requests, in the order in which they came.
#[derive(Default)]
pub(super) struct Waiting {
    requests: VecDeque<Arrived>,
    cost: usize,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Adds a request at the end. `Err` if those that wait are too large, or too many of them have a body.
    pub(super) fn push(&mut self, mut arrived: Arrived) -> Result<(), Box<Arrived>> {
        arrived.cost = arrived.measured();
        let has_body = |one: &Arrived| !one.body.is_end_stream();
        let is_body_too_much =
            has_body(&arrived) && self.requests.iter().filter(|one| has_body(one)).count() >= MOST_BODIES;
        if is_body_too_much || self.cost.saturating_add(arrived.cost) > room::WAITING_HEADS {
            return Err(Box::new(arrived));
        }
        self.cost += arrived.cost;
        self.requests.push_back(arrived);
        Ok(())
    }

    pub(super) fn pop(&mut self) -> Option<Arrived> {
        let first = self.requests.pop_front()?;
        self.cost -= first.cost;
        if self.requests.is_empty() {
            self.requests = VecDeque::new();
        }
        Some(first)
    }

    /// Removes the requests that their client has reset. Returns their number.
    pub(super) fn drop_reset(&mut self, cx: &mut Context<'_>) -> usize {
        let before = self.requests.len();
        let cost = &mut self.cost;
        self.requests.retain_mut(|one| {
            let stays = one.respond.poll_reset(cx).is_pending();
            *cost -= if stays { 0 } else { one.cost };
            stays
        });
        before - self.requests.len()
    }

    /// Puts the first one back.
    pub(super) fn put_back(&mut self, first: Arrived) {
        self.cost += first.cost;
        self.requests.push_front(first);
    }

    /// When the first of them is refused.
    pub(super) fn due(&self) -> Option<Instant> {
        self.requests.front().map(Arrived::due)
    }
}
