//! Counters: one block per worker, written only by it, summed when somebody asks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub mod exposition;

/// Upper bounds of the latency buckets, in microseconds; one more bucket takes the rest.
pub const LATENCY_BOUNDS: [u64; 14] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 5_000_000,
    30_000_000,
];

/// One block of `T` per worker.
#[derive(Debug)]
pub struct PerWorker<T>(Box<[Padded<T>]>);

/// Keeps blocks of two workers off one cache line (two lines: the prefetcher fetches pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded<T>(T);

impl<T: Default> PerWorker<T> {
    /// A block for each of `workers`.
    pub fn new(workers: usize) -> Self {
        Self((0..workers.max(1)).map(|_| Padded::default()).collect())
    }
}

impl<T> PerWorker<T> {
    /// The block of one worker.
    pub fn of(&self, worker: usize) -> &T {
        &self.0[worker.min(self.0.len() - 1)].0
    }

    /// Sum of one counter over all workers.
    pub fn sum(&self, counter: impl Fn(&T) -> &Counter) -> u64 {
        self.0.iter().map(|block| counter(&block.0).get()).sum()
    }

    /// One histogram, summed over all workers.
    pub fn sum_latency(&self, latency: impl Fn(&T) -> &Latency) -> LatencySum {
        let mut sum = LatencySum::default();
        for block in self.iter().map(latency) {
            for (total, count) in sum.buckets.iter_mut().zip(block.buckets()) {
                *total = total.wrapping_add(count);
            }
            sum.total_micros = sum.total_micros.wrapping_add(block.total_micros());
        }
        sum
    }

    /// All blocks.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|block| &block.0)
    }
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds. A plain load and store: only the owning worker writes.
    pub fn add(&self, amount: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(amount), Relaxed);
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Of one listener, by one worker.
#[derive(Debug, Default)]
pub struct ListenerCounters {
    /// Client connections accepted.
    pub connections: Counter,
    /// Sessions ended (HTTP: requests; TCP: connections).
    pub sessions: Counter,
    /// HTTP answers by class: 1xx to 5xx.
    pub statuses: [Counter; 5],
    /// Bytes from clients (heads and bodies, after TLS).
    pub bytes_in: Counter,
    /// Bytes to clients.
    pub bytes_out: Counter,
    /// Time from a session's first byte to its end.
    pub latency: Latency,
}

/// Of one backend, by one worker.
#[derive(Debug, Default)]
pub struct BackendCounters {
    /// Sessions given to it.
    pub sessions: Counter,
    /// HTTP answers by class.
    pub statuses: [Counter; 5],
    /// Connections opened.
    pub connects: Counter,
    /// Idle connections used again.
    pub reused: Counter,
    /// Attempts that failed and were made again elsewhere.
    pub retries: Counter,
    /// Attempts that failed.
    pub failures: Counter,
    /// Bytes sent to it.
    pub bytes_in: Counter,
    /// Bytes received from it.
    pub bytes_out: Counter,
    /// Time to the response's first byte (HTTP) or of the connect (TCP).
    pub latency: Latency,
}

/// A histogram with fixed buckets.
#[derive(Debug, Default)]
pub struct Latency {
    buckets: [Counter; LATENCY_BOUNDS.len() + 1],
    total_micros: Counter,
}

impl Latency {
    /// Counts one session.
    pub fn observe(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = LATENCY_BOUNDS.iter().position(|bound| micros <= *bound).unwrap_or(LATENCY_BOUNDS.len());
        self.buckets[bucket].add(1);
        self.total_micros.add(micros);
    }

    /// Counts per bucket, not accumulated; the last one is beyond every bound.
    pub fn buckets(&self) -> impl Iterator<Item = u64> + '_ {
        self.buckets.iter().map(Counter::get)
    }

    /// Sum of all observed times in microseconds.
    pub fn total_micros(&self) -> u64 {
        self.total_micros.get()
    }
}

/// A histogram as it was at one moment, over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencySum {
    /// Counts per bucket, not accumulated; the last one is beyond every bound.
    pub buckets: [u64; LATENCY_BOUNDS.len() + 1],
    /// Sum of all observed times in microseconds.
    pub total_micros: u64,
}

impl LatencySum {
    /// How many times were observed.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Estimate of the time that a share `quantile` (0 to 1) of all observed ones does not exceed: linear within its
    /// bucket; beyond the last bound, that bound. `None` when nothing was observed.
    pub fn quantile(&self, quantile: f64) -> Option<Duration> {
        let wanted = quantile.clamp(0.0, 1.0) * self.count() as f64;
        let mut below = 0.0;
        let mut lower = 0;
        for (at, count) in self.buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
            let Some(upper) = LATENCY_BOUNDS.get(at) else { break };
            lower = at.checked_sub(1).map_or(0, |before| LATENCY_BOUNDS[before]);
            let count = *count as f64;
            if below + count >= wanted {
                let share = (wanted - below).max(0.0) / count;
                let micros = lower as f64 + share * (*upper - lower) as f64;
                return Some(Duration::from_micros(micros as u64));
            }
            below += count;
            lower = *upper;
        }
        let beyond = self.buckets[LATENCY_BOUNDS.len()] > 0;
        let last = if beyond { LATENCY_BOUNDS[LATENCY_BOUNDS.len() - 1] } else { lower };
        (self.count() > 0).then_some(Duration::from_micros(last))
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
    fn a_time_beyond_every_bucket_counts_as_the_last_bound() {
        assert_eq!(observed(&[Duration::from_secs(400)]).quantile(0.99), Some(Duration::from_secs(30)));
        assert_eq!(observed(&[]).quantile(0.99), None);
    }
}
