//! Replies that a flow waits for. One that is lost must not keep its flow for ever: the client goes on to send, and a flow
//! ends with the last reply that is due.

use std::time::{Duration, Instant};

/// Time within which a client without a reply has asked again: resolvers wait five seconds at most.
pub(super) const ASKED_AGAIN: Duration = Duration::from_secs(6);

/// Replies to the datagrams of one flow. The newest datagram counts as answered first: what is left then is old, and lost
/// after twice `ASKED_AGAIN` at the latest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    /// Replies to datagrams since `since`.
    recent: u32,
    /// Replies to datagrams of the time before, as long as that.
    earlier: u32,
    lost: u32,
    since: Instant,
    /// When the first datagram was sent since the last reply.
    asked: Option<Instant>,
}

impl Due {
    pub(super) fn new(now: Instant) -> Self {
        Self { recent: 0, earlier: 0, lost: 0, since: now, asked: None }
    }

    /// Datagrams have come for which so many replies are due.
    pub(super) fn add(&mut self, replies: u32, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        if passed >= ASKED_AGAIN {
            let gone = if passed >= 2 * ASKED_AGAIN { self.count() } else { self.earlier };
            self.lost = self.lost.saturating_add(gone);
            self.earlier = if passed >= 2 * ASKED_AGAIN { 0 } else { self.recent };
            (self.recent, self.since) = (0, now);
        }
        self.recent = self.recent.saturating_add(replies);
        self.asked.get_or_insert(now);
    }

    pub(super) fn add_further(&mut self, replies: u32) {
        self.recent = self.recent.saturating_add(replies);
    }

    pub(super) fn take(&mut self, replies: u32) {
        let recent = replies.min(self.recent);
        self.recent -= recent;
        self.earlier = self.earlier.saturating_sub(replies - recent);
        self.asked = None;
    }

    /// Replies that may still come.
    pub(super) fn count(&self) -> u32 {
        self.recent.saturating_add(self.earlier)
    }

    /// All that have not come.
    pub(super) fn missing(&self) -> u32 {
        self.count().saturating_add(self.lost)
    }

    /// Tests whether the client goes on to ask although none has come for so long that it has asked again.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.asked.is_some_and(|asked| now.saturating_duration_since(asked) >= ASKED_AGAIN)
    }
}
