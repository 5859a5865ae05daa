//! Hedging: a request that waits unusually long for its response is sent to a second backend as well (Dean and Barroso,
//! The Tail at Scale, 2013). This decides which requests, after which time, and how many: a slow pool must not get twice
//! its load.

use std::time::Duration;

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
    fn only_what_changes_nothing_may_be_sent_twice_at_once() {
        for method in ["GET", "HEAD", "OPTIONS", "TRACE"] {
            assert!(may_hedge(method), "{method}");
        }
        for method in ["PUT", "DELETE", "POST", "PATCH", "CONNECT", "get", ""] {
            assert!(!may_hedge(method), "{method}");
        }
    }
}
