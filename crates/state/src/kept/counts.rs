//! Counters by name. Numbers of names that this version does not know are dropped.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use logic::grpc;
use serde::{Deserialize, Serialize};

use crate::State;
use crate::metrics::{BackendCounters, Counter, LATENCY_BOUNDS, LatencySum, ListenerCounters, PerWorker};

/// Numbers other than zero.
pub(super) type Counts = BTreeMap<Cow<'static, str>, u64>;

/// No counter of a real process comes near it; sums of numbers up to it do not overflow.
const MOST: u64 = 1 << 52;

const STATUSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

const GRPC: [&str; grpc::STATUSES] = [
    "grpc-0", "grpc-1", "grpc-2", "grpc-3", "grpc-4", "grpc-5", "grpc-6", "grpc-7", "grpc-8", "grpc-9",
    "grpc-10", "grpc-11", "grpc-12", "grpc-13", "grpc-14", "grpc-15", "grpc-16",
];

/// A count read from a file, limited so that no sum overflows.
pub(super) fn bounded(count: u64) -> u64 {
    count.min(MOST)
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Histogram {
    buckets: Vec<u64>,
    total_micros: u64,
    longest_micros: u64,
}

impl Histogram {
    pub(super) fn of(sum: &LatencySum) -> Option<Self> {
        let LatencySum { buckets, total_micros, longest_micros } = *sum;
        (sum.count() > 0).then(|| Self { buckets: buckets.to_vec(), total_micros, longest_micros })
    }

    /// What is more than before; `None` if it is nothing.
    pub(super) fn difference(now: Option<&Self>, before: Option<&Self>) -> Option<Self> {
        let (now, Some(before)) = (now?, before) else { return now.cloned() };
        let less = |(now, before): (&u64, &u64)| now.saturating_sub(*before);
        let buckets: Vec<u64> = now.buckets.iter().zip(&before.buckets).map(less).collect();
        buckets.iter().any(|count| *count > 0).then(|| Self {
            buckets,
            total_micros: now.total_micros.saturating_sub(before.total_micros),
            longest_micros: now.longest_micros,
        })
    }

    /// `None` if it has other buckets than this version.
    pub(super) fn sum(&self) -> Option<LatencySum> {
        let mut buckets = [0; LATENCY_BOUNDS.len() + 1];
        if self.buckets.len() != buckets.len() {
            return None;
        }
        buckets.iter_mut().zip(&self.buckets).for_each(|(bucket, count)| *bucket = bounded(*count));
        let (total, longest) = (bounded(self.total_micros), bounded(self.longest_micros));
        Some(LatencySum { buckets, total_micros: total, longest_micros: longest })
    }
}

/// What is more than before. Counters only increase.
pub(super) fn difference(counts: &Counts, before: &Counts) -> Counts {
    let more = counts
        .iter()
        .map(|(name, count)| (name.clone(), count.saturating_sub(before.get(name).copied().unwrap_or(0))));
    more.filter(|(_, count)| *count > 0).collect()
}

/// Sums of all workers.
pub(super) fn gather<T>(workers: &PerWorker<T>, named: fn(&T) -> Vec<(&'static str, &Counter)>) -> Counts {
    let mut counts = Counts::new();
    for (name, counter) in workers.iter().flat_map(named) {
        if counter.get() > 0 {
            *counts.entry(name.into()).or_insert(0) += counter.get();
        }
    }
    counts
}

/// Adds to the block of the first worker, before it runs.
pub(super) fn restore<T>(
    counts: &Counts,
    workers: &PerWorker<T>,
    named: fn(&T) -> Vec<(&'static str, &Counter)>,
) {
    for (name, counter) in named(workers.of(0)) {
        counter.add(bounded(counts.get(name).copied().unwrap_or(0)));
    }
}

pub(super) fn of_listener(block: &ListenerCounters) -> Vec<(&'static str, &Counter)> {
    // Every field, so that a new counter does not compile before its author decides whether it is kept.
    let ListenerCounters {
        connections,
        delayed,
        sessions,
        statuses,
        bytes_in,
        bytes_out,
        slowed,
        slowed_bytes,
        datagrams_in,
        datagrams_out,
        datagrams_dropped,
        packets_forwarded,
        packets_dropped,
        packets_passed,
        latency: _,
    } = block;
    let mut all = vec![
        ("connections", connections),
        ("delayed", delayed),
        ("sessions", sessions),
        ("bytes-in", bytes_in),
        ("bytes-out", bytes_out),
        ("slowed", slowed),
        ("slowed-bytes", slowed_bytes),
        ("datagrams-in", datagrams_in),
        ("datagrams-out", datagrams_out),
        ("datagrams-dropped", datagrams_dropped),
        ("packets-forwarded", packets_forwarded),
        ("packets-dropped", packets_dropped),
        ("packets-passed", packets_passed),
    ];
    all.extend(STATUSES.into_iter().zip(statuses));
    all
}

pub(super) fn of_backend(block: &BackendCounters) -> Vec<(&'static str, &Counter)> {
    let BackendCounters {
        sessions,
        statuses,
        grpc_statuses,
        connects,
        reused,
        retries,
        moved,
        hedges,
        hedge_wins,
        failures,
        // An error rate is judged anew.
        passes: _,
        errors: _,
        tls_failures,
        floods,
        bytes_in,
        bytes_out,
        latency: _,
    } = block;
    let mut all = vec![
        ("sessions", sessions),
        ("connects", connects),
        ("reused", reused),
        ("retries", retries),
        ("moved", moved),
        ("hedges", hedges),
        ("hedge-wins", hedge_wins),
        ("failures", failures),
        ("tls-failures", tls_failures),
        ("floods", floods),
        ("bytes-in", bytes_in),
        ("bytes-out", bytes_out),
    ];
    all.extend(STATUSES.into_iter().zip(statuses));
    all.extend(GRPC.into_iter().zip(grpc_statuses));
    all
}

/// Counters of the whole process, as `/metrics` has them.
pub(super) fn of_process(state: &State) -> Vec<(&'static str, &AtomicU64)> {
    let mut all = vec![
        ("reloads-refused", &state.reloads_refused),
        ("idle-clients-closed", &state.evicted),
        ("admin-clients-closed", &*state.admin_evicted),
        ("control-clients-closed", &*state.control_evicted),
        ("accept-pauses", &state.accept_pauses),
        ("log-lines-dropped", &state.log_lines_dropped),
        ("log-lines-failed", &state.log_lines_failed),
        ("log-lines-left-out", &state.log_lines_left_out),
        ("admin-clients-denied", &state.admin_denied),
        ("panics", &state.panics),
        ("idle-backends-closed", &state.account.idle_closed),
        ("acme-issued", &state.acme.issued),
        ("acme-failures", &state.acme.failed),
        ("state-stores", &state.kept.stores),
        ("state-store-failures", &state.kept.failures),
    ];
    all.extend(state.account.refusal_counters());
    all
}

pub(super) fn gather_process(state: &State) -> Counts {
    let all = of_process(state).into_iter().map(|(name, counter)| (name.into(), counter.load(Relaxed)));
    all.filter(|(_, count)| *count > 0).collect()
}

pub(super) fn restore_process(counts: &Counts, state: &State) {
    for (name, counter) in of_process(state) {
        counter.fetch_add(bounded(counts.get(name).copied().unwrap_or(0)), Relaxed);
    }
}
