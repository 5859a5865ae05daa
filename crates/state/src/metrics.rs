//! Counters: one block per worker, written only by that worker; a reader sums the blocks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use logic::grpc;

/// Upper bounds of the latency buckets in microseconds; one more bucket has no upper bound. Ten per decade (Renard
/// series R10), so that an estimate inside a bucket is wrong by a quarter at most.
#[rustfmt::skip]
pub const LATENCY_BOUNDS: [u64; 70] = [
    10, 12, 16, 20, 25, 31, 40, 50, 63, 80,
    100, 125, 160, 200, 250, 315, 400, 500, 630, 800,
    1_000, 1_250, 1_600, 2_000, 2_500, 3_150, 4_000, 5_000, 6_300, 8_000,
    10_000, 12_500, 16_000, 20_000, 25_000, 31_500, 40_000, 50_000, 63_000, 80_000,
    100_000, 125_000, 160_000, 200_000, 250_000, 315_000, 400_000, 500_000, 630_000, 800_000,
    1_000_000, 1_250_000, 1_600_000, 2_000_000, 2_500_000, 3_150_000, 4_000_000, 5_000_000, 6_300_000, 8_000_000,
    10_000_000, 12_500_000, 16_000_000, 20_000_000, 25_000_000, 31_500_000, 40_000_000, 50_000_000, 63_000_000, 80_000_000,
];

#[derive(Debug)]
pub struct PerWorker<T>(Box<[Padded<T>]>);

/// Keeps the blocks of two workers on different cache lines (two lines: the prefetcher loads pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded<T>(T);

impl<T: Default> PerWorker<T> {
    pub fn new(workers: usize) -> Self {
        Self((0..workers.max(1)).map(|_| Padded::default()).collect())
    }
}

impl<T> PerWorker<T> {
    pub fn of(&self, worker: usize) -> &T {
        &self.0[worker.min(self.0.len() - 1)].0
    }

    /// Sum of one counter over all workers.
    pub fn sum(&self, counter: impl Fn(&T) -> &Counter) -> u64 {
        self.0.iter().map(|block| counter(&block.0).get()).sum()
    }

    /// Histogram over all workers.
    pub fn sum_latency(&self, latency: impl Fn(&T) -> &Latency) -> LatencySum {
        let mut sum = LatencySum::default();
        for block in self.iter().map(latency) {
            for (total, count) in sum.buckets.iter_mut().zip(block.buckets()) {
                *total = total.wrapping_add(count);
            }
            sum.total_micros = sum.total_micros.wrapping_add(block.total_micros());
            sum.longest_micros = sum.longest_micros.max(block.longest_micros());
        }
        sum
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|block| &block.0)
    }
}

/// Number that only increases.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// A plain load and store is enough, because only the owning worker writes.
    pub fn add(&self, amount: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(amount), Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counters of one listener in one worker.
#[derive(Debug, Default)]
pub struct ListenerCounters {
    pub connections: Counter,
    /// Connections that waited because their address had flooded.
    pub delayed: Counter,
    /// Ended sessions (HTTP: requests; TCP: connections; UDP: flows).
    pub sessions: Counter,
    /// HTTP responses by class: 1xx to 5xx.
    pub statuses: [Counter; 5],
    /// Bytes from clients (heads and bodies, after TLS).
    pub bytes_in: Counter,
    pub bytes_out: Counter,
    /// Times that a session held bytes because of its limit of bytes a second.
    pub slowed: Counter,
    pub slowed_bytes: Counter,
    /// UDP datagrams from clients, also those that were dropped.
    pub datagrams_in: Counter,
    /// UDP datagrams to clients.
    pub datagrams_out: Counter,
    /// UDP datagrams of either direction that were dropped.
    pub datagrams_dropped: Counter,
    /// Packets of a `dsr` listener that went to backends. Several segments that the kernel has put together are one.
    pub packets_forwarded: Counter,
    /// Packets for a `dsr` listener that were dropped.
    pub packets_dropped: Counter,
    /// Packets that a `dsr` listener saw and that were not for it.
    pub packets_passed: Counter,
    /// Time from a session's first byte to its end.
    pub latency: Latency,
}

/// Counters of one backend in one worker.
#[derive(Debug, Default)]
pub struct BackendCounters {
    pub sessions: Counter,
    /// HTTP responses by class: 1xx to 5xx.
    pub statuses: [Counter; 5],
    /// gRPC responses by `grpc-status`.
    pub grpc_statuses: [Counter; grpc::STATUSES],
    pub connects: Counter,
    /// Idle connections that were reused.
    pub reused: Counter,
    /// Failed attempts that were retried on another backend.
    pub retries: Counter,
    /// Requests that left this backend for another one when it was judged down or ejected.
    pub moved: Counter,
    /// Copies sent to it because another backend was slow.
    pub hedges: Counter,
    /// Copies among [`Self::hedges`] whose response began first.
    pub hedge_wins: Counter,
    pub failures: Counter,
    /// Sessions that went well, for the error rate.
    pub passes: Counter,
    /// Failures and answers of class 5xx, for the error rate.
    pub errors: Counter,
    /// Connections whose TLS handshake failed.
    pub tls_failures: Counter,
    /// HTTP/2 connections that ended because the backend exceeded a budget of frames.
    pub floods: Counter,
    pub bytes_in: Counter,
    pub bytes_out: Counter,
    /// Time to the first byte of the response (HTTP) or to the end of connecting (TCP).
    pub latency: Latency,
}

/// Histogram with fixed buckets.
#[derive(Debug)]
pub struct Latency {
    buckets: [Counter; LATENCY_BOUNDS.len() + 1],
    total_micros: Counter,
    longest_micros: Counter,
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            buckets: std::array::from_fn(|_| Counter::default()),
            total_micros: Counter::default(),
            longest_micros: Counter::default(),
        }
    }
}

impl Latency {
    pub fn observe(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.buckets[LATENCY_BOUNDS.partition_point(|bound| *bound < micros)].add(1);
        self.total_micros.add(micros);
        if micros > self.longest_micros.get() {
            self.longest_micros.0.store(micros, Relaxed);
        }
    }

    /// Adds what another histogram has counted.
    pub fn add(&self, sum: &LatencySum) {
        self.buckets.iter().zip(sum.buckets).for_each(|(bucket, count)| bucket.add(count));
        self.total_micros.add(sum.total_micros);
        self.longest_micros.0.fetch_max(sum.longest_micros, Relaxed);
    }

    /// Count of each bucket, not cumulative; the last bucket has no upper bound.
    pub fn buckets(&self) -> impl Iterator<Item = u64> + '_ {
        self.buckets.iter().map(Counter::get)
    }

    /// Sum of all observed times in microseconds.
    pub fn total_micros(&self) -> u64 {
        self.total_micros.get()
    }

    pub fn longest_micros(&self) -> u64 {
        self.longest_micros.get()
    }
}

/// Histogram at one moment, over all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencySum {
    /// Count of each bucket, not cumulative; the last bucket has no upper bound.
    pub buckets: [u64; LATENCY_BOUNDS.len() + 1],
    /// Sum of all observed times in microseconds.
    pub total_micros: u64,
    pub longest_micros: u64,
}

impl Default for LatencySum {
    fn default() -> Self {
        Self { buckets: [0; LATENCY_BOUNDS.len() + 1], total_micros: 0, longest_micros: 0 }
    }
}

impl LatencySum {
    /// What was observed since `before`. The longest time is that of all.
    #[must_use]
    pub fn since(&self, before: &LatencySum) -> LatencySum {
        LatencySum {
            buckets: std::array::from_fn(|at| self.buckets[at].saturating_sub(before.buckets[at])),
            total_micros: self.total_micros.saturating_sub(before.total_micros),
            longest_micros: self.longest_micros,
        }
    }

    /// Adds one time.
    pub fn observe(&mut self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.buckets[LATENCY_BOUNDS.partition_point(|bound| *bound < micros)] += 1;
        self.total_micros = self.total_micros.saturating_add(micros);
        self.longest_micros = self.longest_micros.max(micros);
    }

    /// Adds the times of another histogram.
    pub fn add(&mut self, other: &Self) {
        self.buckets.iter_mut().zip(other.buckets).for_each(|(count, more)| *count += more);
        self.total_micros = self.total_micros.saturating_add(other.total_micros);
        self.longest_micros = self.longest_micros.max(other.longest_micros);
    }

    /// Number of observed times.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Estimates the time that the share `quantile` (0 to 1) of all observed times does not exceed: linear inside a
    /// bucket, and never above the longest observed time. `None` if nothing was observed.
    pub fn quantile(&self, quantile: f64) -> Option<Duration> {
        let wanted = quantile.clamp(0.0, 1.0) * self.count() as f64;
        let longest = self.longest_micros;
        let mut below = 0.0;
        for (at, count) in self.buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = *count as f64;
            if below + count >= wanted {
                let lower = at.checked_sub(1).map_or(0, |before| LATENCY_BOUNDS[before]);
                let upper = LATENCY_BOUNDS.get(at).copied().unwrap_or(longest).max(lower);
                let share = (wanted - below).max(0.0) / count;
                let micros = lower as f64 + share * (upper - lower) as f64;
                return Some(Duration::from_micros((micros as u64).min(longest)));
            }
            below += count;
        }
        (self.count() > 0).then_some(Duration::from_micros(longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(times: &[Duration]) -> LatencySum {
        let workers = PerWorker::<Latency>::new(3);
        for (at, time) in times.iter().enumerate() {
            workers.of(at % 3).observe(*time);
        }
        workers.sum_latency(|latency| latency)
    }

    #[test]
    fn sums_over_all_workers() {
        let sum = observed(&[Duration::from_millis(2); 10]);
        assert_eq!((sum.count(), sum.total_micros), (10, 20_000));
    }

    #[test]
    fn quantiles_lie_in_the_bucket_that_holds_them() {
        let mut times = vec![Duration::from_micros(400); 98];
        times.extend([Duration::from_millis(70); 2]);
        let sum = observed(&times);
        let (half, high) = (sum.quantile(0.5).unwrap(), sum.quantile(0.99).unwrap());
        assert!((250..=500).contains(&half.as_micros()), "{half:?}");
        assert!((50..=100).contains(&high.as_millis()), "{high:?}");
    }

    #[test]
    fn a_time_beyond_every_bucket_is_known_by_the_longest() {
        let half_known = observed(&[Duration::from_secs(400)]).quantile(0.99).unwrap();
        assert!((80..=400).contains(&half_known.as_secs()), "{half_known:?}");
        assert_eq!(observed(&[Duration::from_secs(400)]).quantile(1.0), Some(Duration::from_secs(400)));
        assert_eq!(observed(&[]).quantile(0.99), None);
    }

    #[test]
    fn an_estimate_is_never_longer_than_what_was_observed_nor_a_quarter_off() {
        for millis in [1, 3, 20, 261, 4_000] {
            let sum = observed(&[Duration::from_millis(millis); 9]);
            for quantile in [0.5, 0.99] {
                let seen = sum.quantile(quantile).unwrap().as_micros() as f64 / 1_000.0;
                assert!(seen <= millis as f64 && seen >= millis as f64 * 0.75, "{seen} ms of {millis} ms");
            }
        }
    }

    #[test]
    fn bounds_rise_and_every_coarse_one_is_among_them() {
        assert!(LATENCY_BOUNDS.windows(2).all(|pair| pair[0] < pair[1]));
        assert!([250, 1_000, 2_500, 100_000, 1_000_000].iter().all(|bound| LATENCY_BOUNDS.contains(bound)));
    }
}
