//! The gate of a new key: it is used only after its record was visible at every server for twice the TTL, so that no
//! cache can still answer without it (RFC 7671 section 8.1); and the record of the old key goes only after the old key has
//! left. Time is passed in.

use std::time::{Duration, Instant};

/// What one server says of the new record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Glance {
    /// It has the record, with this TTL in seconds.
    Visible(u32),
    /// It answers without the record.
    Lacking,
    /// It does not answer, or not for this zone: what it tells others is not known.
    Silent,
}

/// What one address of the service shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    New,
    Old,
    Silent,
}

/// What may be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A server lacks the record, or an address still shows the old key: look again soon.
    NotEverywhere,
    /// It is everywhere, and stays so until then if nothing changes.
    Wait(Duration),
    /// The next step may be done.
    Go,
}

/// The gate of one new key.
#[derive(Clone, Debug)]
pub struct Gate {
    /// How long caches may answer from before the record was there, or with it.
    longest_ttl: u32,
    /// Since when the record has been visible everywhere without interruption.
    everywhere: Option<Instant>,
    /// Since when the new key has been shown everywhere.
    left: Option<Instant>,
}

impl Gate {
    /// `ttl_before` is that of the records that were there before, or, if there were none, the time for which a cache
    /// remembers that (RFC 2308 section 5).
    pub fn new(ttl_before: u32) -> Self {
        Self { longest_ttl: ttl_before, everywhere: None, left: None }
    }

    /// Takes what all servers say at `now`. [`Step::Go`]: the new key may be used. A server that lacks the record or is
    /// silent starts the time anew: what it told in between is not known.
    pub fn servers(&mut self, servers: &[Glance], now: Instant) -> Step {
        let mut is_everywhere = !servers.is_empty();
        for server in servers {
            match server {
                Glance::Visible(ttl) => self.longest_ttl = self.longest_ttl.max(*ttl),
                Glance::Lacking | Glance::Silent => is_everywhere = false,
            }
        }
        let wait = self.wait();
        after(&mut self.everywhere, is_everywhere, wait, now)
    }

    /// Takes what all addresses of the service show at `now`, after the new key was put in use. [`Step::Go`]: the old key
    /// has left, and its record may go.
    pub fn services(&mut self, shown: &[Shown], now: Instant) -> Step {
        let is_new = !shown.is_empty() && shown.iter().all(|shown| *shown == Shown::New);
        after(&mut self.left, is_new, SETTLED, now)
    }

    /// A cache may remember for this long what a server said of the time before the record was there.
    pub fn remember(&mut self, ttl: u32) {
        self.longest_ttl = self.longest_ttl.max(ttl);
    }

    /// The time for which the record must have been visible.
    pub fn wait(&self) -> Duration {
        Duration::from_secs(2 * u64::from(self.longest_ttl))
    }
}

/// Time for which every look must have found the new key: a service may have several processes.
const SETTLED: Duration = Duration::from_secs(1);

fn after(since: &mut Option<Instant>, holds: bool, wait: Duration, now: Instant) -> Step {
    if !holds {
        *since = None;
        return Step::NotEverywhere;
    }
    let passed = now.saturating_duration_since(*since.get_or_insert(now));
    match wait.checked_sub(passed) {
        None | Some(Duration::ZERO) => Step::Go,
        Some(rest) => Step::Wait(rest),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "a test needs some instant to count from")]

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn new_key_is_used_only_after_two_ttls_at_every_server() {
        use Glance::{Lacking, Silent, Visible};
        let start = Instant::now();
        let mut gate = Gate::new(2);
        assert_eq!(gate.servers(&[], start), Step::NotEverywhere, "no server is no proof");
        assert_eq!(gate.servers(&[Visible(2), Lacking], start), Step::NotEverywhere);
        let visible = start + SECOND;
        assert_eq!(gate.servers(&[Visible(2), Visible(2)], visible), Step::Wait(4 * SECOND));
        assert_eq!(gate.servers(&[Visible(2), Visible(2)], visible + 3 * SECOND), Step::Wait(SECOND));
        // One that loses it again, or says nothing, starts it anew.
        for fault in [Lacking, Silent] {
            assert_eq!(gate.servers(&[fault, Visible(2)], visible + 3 * SECOND), Step::NotEverywhere);
            assert_eq!(gate.servers(&[Visible(2), Visible(2)], visible + 4 * SECOND), Step::Wait(4 * SECOND));
        }
        // A longer TTL at one of them counts.
        assert_eq!(gate.servers(&[Visible(5), Visible(2)], visible + 8 * SECOND), Step::Wait(6 * SECOND));
        assert_eq!(gate.servers(&[Visible(2), Visible(2)], visible + 14 * SECOND), Step::Go);
        assert_eq!(gate.wait(), 10 * SECOND);
    }

    #[test]
    fn what_was_remembered_before_counts_too() {
        let start = Instant::now();
        let mut gate = Gate::new(3600);
        assert_eq!(gate.servers(&[Glance::Visible(2)], start), Step::Wait(7200 * SECOND));
        // One that was silent when the others were asked.
        gate.remember(7200);
        assert_eq!(gate.servers(&[Glance::Visible(2)], start), Step::Wait(14_400 * SECOND));
    }

    #[test]
    fn old_record_goes_only_after_the_old_key_has_left() {
        let start = Instant::now();
        let mut gate = Gate::new(1);
        assert_eq!(gate.services(&[Shown::New, Shown::Old], start), Step::NotEverywhere);
        assert_eq!(gate.services(&[Shown::New, Shown::New], start), Step::Wait(SETTLED));
        assert_eq!(gate.services(&[Shown::New, Shown::Silent], start + SETTLED), Step::NotEverywhere);
        assert_eq!(gate.services(&[Shown::New, Shown::New], start + SETTLED), Step::Wait(SETTLED));
        assert_eq!(gate.services(&[Shown::New, Shown::New], start + 2 * SETTLED), Step::Go);
        assert_eq!(gate.services(&[], start), Step::NotEverywhere);
    }
}
