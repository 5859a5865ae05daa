//! Hedging: a request that waits unusually long for its response is sent to a second backend as well (Dean and Barroso,
//! The Tail at Scale, 2013). This decides which requests, after which time, and how many: a slow pool must not get twice
//! its load.

use std::time::Duration;

use crate::health::Cause;

/// When a copy is sent, and to which part of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    pub after: After,
    /// Largest part of the requests that gets a copy, in percent.
    pub budget: u8,
}

/// How long a request waits before its copy is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    Fixed(Duration),
    /// The time in which this percentage of the latest responses began.
    Percentile(u8),
}

impl After {
    /// Percentiles that may be configured. Below the median, most copies would be sent for nothing.
    pub const PERCENTILES: std::ops::RangeInclusive<u8> = 50..=99;
}

/// Tests whether a request may be sent to two backends at once: a safe method (RFC 9110 section 9.2.1) changes nothing. An
/// idempotent one is not enough, because the slower of two copies could undo a later request.
pub fn may_hedge(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE")
}

/// Most requests of one backend that go on after their copies have won, however many failures eject it.
const MOST_LOST_RACES: u32 = 16;

/// Number of requests of one backend that may go on at the same time after their copies have won; `failures` in a row eject
/// the backend (0: none do). They end at the time limit of the response, so as many as eject it are enough, and however fast
/// a silent backend gets requests, it holds no more connections than these.
pub fn most_lost_races(failures: u32) -> u32 {
    failures.min(MOST_LOST_RACES)
}

/// How a request ended that went on after its copy had won.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// Its response began.
    Answered,
    /// The time limit of the response passed.
    Silent,
    /// The backend closed the connection.
    Closed,
    /// It ended for a reason that is no fault of the backend, or the backend is known to be down.
    Ended,
}

/// What the end of such a request says of its backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Says {
    /// It is slow and works: its failures are not in a row any more.
    Works,
    /// It fails, as if there had been no copy.
    Fails(Cause),
    Nothing,
}

impl Late {
    /// What it says of the backend, whose time limit for a response is `limit`. That a copy was faster says nothing: most of
    /// the requests that are copied are only slow.
    pub fn says(self, limit: Duration) -> Says {
        match self {
            Self::Answered => Says::Works,
            Self::Silent => Says::Fails(Cause::NoAnswer { after: limit }),
            Self::Closed => Says::Fails(Cause::ClosedEarly),
            Self::Ended => Says::Nothing,
        }
    }
}

/// Status in the first bytes of a response; 0 if they do not have it.
pub fn status_of(response: &[u8]) -> u16 {
    let digits = response.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5));
    digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok()).unwrap_or(0)
}

/// Copies that may be sent at once after a calm time.
const BURST: u32 = 10;

/// Part of the budget that a copy costs, in percent of a request.
const COPY: u32 = 100;

/// What a worker knows of the requests to one pool.
#[derive(Clone, Debug)]
pub struct Hedging {
    latencies: Latencies,
    /// Unused budget, in percent of a request.
    credit: u32,
}

impl Default for Hedging {
    fn default() -> Self {
        Self { latencies: Latencies::default(), credit: BURST * COPY }
    }
}

impl Hedging {
    /// What a request sees whose pool is not configured any more: nothing is known, and nothing may be spent.
    pub fn without_budget() -> Self {
        Self { credit: 0, ..Self::default() }
    }

    /// Counts a request that may get a copy.
    pub fn count(&mut self, rule: &Rule) {
        self.credit = (self.credit + u32::from(rule.budget)).min(BURST * COPY);
    }

    /// Returns after which time a request gets a copy. `None` while too little is known.
    pub fn after(&mut self, rule: &Rule) -> Option<Duration> {
        match rule.after {
            After::Fixed(after) => Some(after),
            After::Percentile(percent) => self.latencies.percentile(percent),
        }
    }

    /// Tests whether the budget has one copy left.
    pub fn may_spend(&self) -> bool {
        self.credit >= COPY
    }

    /// Takes the budget for one copy. `false` if it is used up.
    pub fn spend(&mut self) -> bool {
        match self.credit.checked_sub(COPY) {
            Some(rest) => {
                self.credit = rest;
                true
            }
            None => false,
        }
    }

    /// Records the time from a request to the first byte of its response, or to the time when its copy won.
    pub fn observe(&mut self, took: Duration) {
        self.latencies.observe(took);
    }
}

/// Histogram of the latest latencies. Each power of two of microseconds has eight buckets: an estimate is too high by an
/// eighth at most.
#[derive(Clone, Debug)]
struct Latencies {
    buckets: Box<[u16; BUCKETS]>,
    total: u32,
    since_estimate: u32,
    estimate: Option<(u8, Duration)>,
}

/// Up to 2^30 microseconds (18 minutes).
const BUCKETS: usize = 28 * 8;

/// Latencies after which all counts are halved, so that old ones lose their weight.
const MEMORY: u32 = 2_000;

/// Latencies that must be known for an estimate.
const ENOUGH: u32 = 100;

/// Latencies after which the estimate is made anew.
const ESTIMATE_EVERY: u32 = 16;

impl Default for Latencies {
    fn default() -> Self {
        Self { buckets: Box::new([0; BUCKETS]), total: 0, since_estimate: 0, estimate: None }
    }
}

impl Latencies {
    fn observe(&mut self, took: Duration) {
        self.buckets[bucket(took)] += 1;
        self.total += 1;
        self.since_estimate += 1;
        if self.total >= MEMORY {
            self.buckets.iter_mut().for_each(|count| *count /= 2);
            self.total = self.buckets.iter().map(|count| u32::from(*count)).sum();
        }
    }

    fn percentile(&mut self, percent: u8) -> Option<Duration> {
        if self.total < ENOUGH {
            return None;
        }
        if let Some((known, estimate)) = self.estimate
            && known == percent
            && self.since_estimate < ESTIMATE_EVERY
        {
            return Some(estimate);
        }
        let above = self.total * (100 - u32::from(percent.min(100))) / 100;
        let mut seen = 0;
        let highest = (0..BUCKETS).rev().find(|at| {
            seen += u32::from(self.buckets[*at]);
            seen > above
        });
        let estimate = upper_bound(highest.unwrap_or_default());
        self.since_estimate = 0;
        self.estimate = Some((percent, estimate));
        Some(estimate)
    }
}

/// The first sixteen buckets have a microsecond each, those after them an eighth of a power of two.
fn bucket(took: Duration) -> usize {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    let Some(exponent) = micros.checked_ilog2().filter(|exponent| *exponent >= 3) else {
        return usize::try_from(micros).unwrap_or_default();
    };
    let eighth = (micros >> (exponent - 3)) & 7;
    let at = (exponent - 2) * 8 + u32::try_from(eighth).unwrap_or_default();
    usize::try_from(at).unwrap_or(BUCKETS).min(BUCKETS - 1)
}

/// Smallest latency that is longer than all of a bucket.
fn upper_bound(bucket: usize) -> Duration {
    let at = bucket as u64 + 1;
    let micros = match at {
        0..16 => at,
        _ => (8 + at % 8) << (at / 8 - 1),
    };
    Duration::from_micros(micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    const P95: Rule = Rule { after: After::Percentile(95), budget: 5 };

    fn millis(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn every_latency_lies_just_below_the_bound_of_its_bucket() {
        for micros in (0..5_000).chain((5_000..200_000_000).step_by(9_973)) {
            let took = Duration::from_micros(micros);
            let bound = upper_bound(bucket(took));
            assert!(took < bound, "{micros}");
            assert!(bound.as_micros() as u64 <= micros + micros / 8 + 1, "{micros}: {bound:?}");
        }
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
    }

    #[test]
    fn nothing_is_hedged_before_enough_is_known_but_after_a_fixed_time() {
        let mut hedging = Hedging::default();
        for _ in 1..ENOUGH {
            hedging.observe(millis(1));
        }
        assert_eq!(hedging.after(&P95), None);
        let fixed = Rule { after: After::Fixed(millis(50)), budget: 5 };
        assert_eq!(hedging.after(&fixed), Some(millis(50)));
        hedging.observe(millis(1));
        assert!(hedging.after(&P95).is_some());
    }

    #[test]
    fn the_wait_follows_the_percentile_of_the_latest_responses() {
        let mut hedging = Hedging::default();
        let mut observe = |count, slow_every, slow: u64| {
            for at in 0..count {
                hedging.observe(millis(if at % slow_every == 0 { slow } else { 10 }));
            }
            hedging.after(&P95).unwrap()
        };
        // 4 % are slow: the percentile is among the fast ones. Of 8 % it is among the slow ones.
        let fast = observe(1_000, 25, 500);
        assert!(fast > millis(10) && fast < millis(12), "{fast:?}");
        let slow = observe(4_000, 12, 500);
        assert!(slow > millis(500) && slow < millis(570), "{slow:?}");
        let fast = observe(10_000, 10_000, 500);
        assert!(fast > millis(10) && fast < millis(12), "{fast:?}");
    }

    #[test]
    fn copies_stay_within_the_budget_however_slow_the_pool_is() {
        let mut hedging = Hedging::default();
        let mut copies = 0;
        for _ in 0..10_000 {
            hedging.count(&P95);
            if hedging.spend() {
                copies += 1;
            }
            hedging.observe(millis(2_000));
        }
        assert_eq!(copies, 10_000 * 5 / 100 + BURST - 1);
    }

    #[test]
    fn a_backend_is_judged_by_the_ends_of_its_requests_and_not_by_lost_races() {
        let limit = millis(500);
        assert_eq!(Late::Answered.says(limit), Says::Works);
        assert_eq!(Late::Silent.says(limit), Says::Fails(Cause::NoAnswer { after: limit }));
        assert_eq!(Late::Closed.says(limit), Says::Fails(Cause::ClosedEarly));
        assert_eq!(Late::Ended.says(limit), Says::Nothing);
    }

    #[test]
    fn as_many_lost_races_go_on_as_eject_a_backend_and_no_more_than_a_few() {
        assert_eq!([0, 1, 5, 16, 17, u32::MAX].map(most_lost_races), [0, 1, 5, 16, 16, 16]);
    }

    #[test]
    fn the_status_is_that_of_the_first_line() {
        for (response, status) in [
            (&b"HTTP/1.1 503 Service Unavailable\r\n"[..], 503),
            (b"HTTP/1.0 200", 200),
            (b"HTTP/1.1 20", 0),
            (b"HTTP/1.1 x00 ", 0),
            (b"", 0),
            (b"\x16\x03\x01 200 200", 0),
        ] {
            assert_eq!(status_of(response), status);
        }
    }

    #[test]
    fn only_what_changes_nothing_may_be_sent_twice_at_once() {
        for method in ["GET", "HEAD", "OPTIONS", "TRACE"] {
            assert!(may_hedge(method), "{method}");
        }
        for method in ["PUT", "DELETE", "POST", "PATCH", "CONNECT", "get", ""] {
            assert!(!may_hedge(method), "{method}");
        }
    }
}
