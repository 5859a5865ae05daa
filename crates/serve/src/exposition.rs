//! All counters as OpenMetrics text for Prometheus. Each scrape reads state and snapshot again and caches nothing, so a
//! scrape and `penstock ctl status` show the same values.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use config::Config;
use config::types::Transport;
use logic::balance::Availability;
use logic::grpc;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use proxy::front::Front;
use proxy::snapshot::{BackendPlan, ListenerPlan, PoolPlan, Snapshot};
use state::acme;
use state::data_path::PathReport;
use state::lock::lock;
use state::metrics::{Counter, LATENCY_BOUNDS, LatencySum, ListenerCounters};
use state::{Admission, State};
use tls::Store;

use crate::report::Statuses;
use crate::report::certificates::stores as certificate_stores;
use crate::report::descriptors::Descriptors;

/// Media type of the text of [`render`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub fn render(front: &Arc<Front>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("penstock");
    registry.register_collector(Box::new(FrontCollector(front.clone())));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

mod dsr;

struct FrontCollector(Arc<Front>);

impl fmt::Debug for FrontCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FrontCollector")
    }
}

impl Collector for FrontCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (state, snapshot) = (&self.0.state, self.0.snapshot.load());
        let mut out = Families(encoder);
        process(&mut out, state, &snapshot)?;
        encode_descriptors(&mut out, state)?;
        // Keep the configuration order: two scrapes can then be compared line by line.
        let listeners: Vec<_> = snapshot
            .config
            .listeners
            .iter()
            .filter_map(|listener| snapshot.listeners.get(&listener.name))
            .collect();
        encode_listeners(&mut out, &listeners)?;
        dsr::encode(&mut out, &self.0.state.services)?;
        encode_certificates(&mut out, &listeners)?;
        encode_orders(&mut out, &self.0.state, &snapshot.config)?;
        let backends: Vec<_> = snapshot
            .pools
            .iter()
            .flat_map(|pool| pool.backends.iter().map(move |backend| (&**pool, backend)))
            .collect();
        encode_pools(&mut out, &snapshot.pools, &backends)?;
        backend_gauges(&mut out, &backends)?;
        backend_counters(&mut out, &backends)
    }
}

fn process(out: &mut Families<'_>, state: &State, snapshot: &Snapshot) -> fmt::Result {
    let version = [([("version", env!("CARGO_PKG_VERSION"))], 1_u64)];
    out.gauges("build", "Always 1, labelled with the version of the program", version)?;
    let gauges = [
        ("uptime_seconds", "Time since the start of the process", state.started.elapsed().as_secs()),
        (
            "config_generation",
            "Number of the configuration that is served, counted from the start",
            snapshot.generation,
        ),
        ("workers", "Worker threads", state.workers as u64),
        (
            "draining",
            "1 when the process was told to stop and waits for its sessions",
            u64::from(state.draining.load(Relaxed)),
        ),
        ("connections", "Client connections open now", state.connections.load(Relaxed) as u64),
        ("connections_max", "Limit of client connections", state.max_connections.load(Relaxed) as u64),
        ("degraded", "Things that do not work as configured", state.degraded().len() as u64),
    ];
    for (name, help, value) in gauges {
        out.gauge(name, help, value)?;
    }
    let counters = [
        (
            "reloads_refused",
            "Reloads refused because the configuration was not valid",
            &state.reloads_refused,
        ),
        (
            "idle_clients_closed",
            "Idle client connections that were closed to make room for new ones",
            &state.evicted,
        ),
        (
            "admin_clients_closed",
            "Connections to the admin listener that were closed to make room for new ones",
            &state.admin_evicted,
        ),
        (
            "control_clients_closed",
            "Connections to the control socket that were closed to make room for new ones",
            &state.control_evicted,
        ),
        (
            "accept_pauses",
            "Times that accepting paused because descriptors or connections ran out",
            &state.accept_pauses,
        ),
        (
            "log_lines_dropped",
            "Lines of the access log and of events to syslog that the writer had no time for",
            &state.log_lines_dropped,
        ),
        (
            "log_lines_failed",
            "Lines of the access log and of events to syslog that could not be written",
            &state.log_lines_failed,
        ),
        (
            "log_lines_left_out",
            "Access-log lines about clients turned away at once that were left out: there are at most 100 a second for each listener",
            &state.log_lines_left_out,
        ),
        (
            "admin_clients_denied",
            "Connections to the admin listener that its access list denied",
            &state.admin_denied,
        ),
        ("session_panics", "Sessions that ended in a panic", &state.panics),
        ("state_stores", "Times that state for the next process was stored", &state.kept.stores),
        ("state_store_failures", "Attempts to store it that failed", &state.kept.failures),
    ];
    for (name, help, value) in counters {
        out.counter(name, help, value.load(Relaxed))?;
    }
    Ok(())
}

fn encode_descriptors(out: &mut Families<'_>, state: &State) -> fmt::Result {
    let descriptors = Descriptors::read(state);
    for (name, help, value) in [
        ("descriptors_open", "Descriptors open now, of all kinds", descriptors.open.unwrap_or(0)),
        ("descriptors_max", "Descriptors that the process may open", descriptors.limit.unwrap_or(0)),
        ("descriptors_reserve", "Descriptors that traffic never gets", descriptors.reserve),
        ("descriptors_traffic_max", "Descriptors for traffic", descriptors.traffic_limit),
        ("descriptor_sources", "Addresses from which clients are connected", descriptors.sources),
    ] {
        out.gauge(name, help, value as u64)?;
    }
    let kinds = descriptors.by_use.kinds().map(|(kind, count)| ([("kind", kind)], count as u64));
    out.gauges("descriptors_traffic", "Descriptors that traffic has taken, by use", kinds)?;
    let refused = descriptors.refused.into_iter().map(|(reason, count)| ([("reason", reason)], count));
    out.counters(
        "descriptors_refused",
        "Clients and requests that were refused descriptors, by reason",
        refused,
    )?;
    out.counter(
        "idle_backends_closed",
        "Idle backend connections closed because others needed their descriptors",
        descriptors.idle_closed,
    )
}

fn encode_listeners(out: &mut Families<'_>, listeners: &[&Arc<ListenerPlan>]) -> fmt::Result {
    let each =
        |value: fn(&ListenerPlan) -> u64| listeners.iter().map(move |plan| (listener(plan), value(plan)));
    out.gauges(
        "listener_connections",
        "Client connections open now",
        each(|plan| plan.state.connections.load(Relaxed) as u64),
    )?;
    out.gauges(
        "listener_tarpit",
        "Denied clients that are held now",
        each(|plan| plan.state.tarpit.load(Relaxed) as u64),
    )?;
    out.counters(
        "listener_accepted",
        "Client connections accepted",
        each(|plan| plan.state.counters.sum(|block| &block.connections)),
    )?;
    out.counters(
        "listener_delayed",
        "Client connections that waited because their address had flooded",
        each(|plan| plan.state.counters.sum(|block| &block.delayed)),
    )?;
    out.counters(
        "listener_sessions",
        "Sessions ended: HTTP requests, TCP connections and UDP flows",
        each(|plan| plan.state.counters.sum(|block| &block.sessions)),
    )?;
    let responses = listeners.iter().flat_map(|plan| {
        let classes = Statuses::sum(&plan.state.counters, |block| &block.statuses).classes();
        classes.map(|(class, count)| ([("listener", name_of(plan)), ("code", class)], count))
    });
    out.counters("listener_responses", "HTTP answers by class of their status", responses)?;
    out.counters(
        "listener_received_bytes",
        "Bytes from clients, after TLS",
        each(|plan| plan.state.counters.sum(|block| &block.bytes_in)),
    )?;
    out.counters(
        "listener_sent_bytes",
        "Bytes to clients, before TLS",
        each(|plan| plan.state.counters.sum(|block| &block.bytes_out)),
    )?;
    out.counters(
        "listener_slowed",
        "Times that a session held bytes because of its limit of bytes a second",
        each(|plan| plan.state.counters.sum(|block| &block.slowed)),
    )?;
    out.counters(
        "listener_slowed_bytes",
        "Bytes that were held for that",
        each(|plan| plan.state.counters.sum(|block| &block.slowed_bytes)),
    )?;
    type Datagrams = fn(&ListenerCounters) -> &Counter;
    let counters: [(&str, &str, Datagrams); 3] = [
        ("listener_received_datagrams", "UDP datagrams from clients", |block| &block.datagrams_in),
        ("listener_sent_datagrams", "UDP datagrams to clients", |block| &block.datagrams_out),
        ("listener_dropped_datagrams", "UDP datagrams that were dropped", |block| &block.datagrams_dropped),
    ];
    for (name, help, of) in counters {
        let udp = listeners.iter();
        let udp = udp.filter(|plan| plan.settings.protocol.transport() == Transport::Datagram);
        out.counters(name, help, udp.map(|plan| (listener(plan), plan.state.counters.sum(of))))?;
    }
    let counters: [(&str, &str, Datagrams); 3] = [
        ("listener_forwarded_packets", "Packets to backends of dsr listeners", |block| {
            &block.packets_forwarded
        }),
        ("listener_dropped_packets", "Packets for dsr listeners that were dropped", |block| {
            &block.packets_dropped
        }),
        ("listener_passed_packets", "Packets that dsr listeners saw and that were not for them", |block| {
            &block.packets_passed
        }),
    ];
    for (name, help, of) in counters {
        let dsr = listeners.iter().filter(|plan| plan.settings.dsr().is_some());
        out.counters(name, help, dsr.map(|plan| (listener(plan), plan.state.counters.sum(of))))?;
    }
    let paths = listeners.iter().flat_map(|plan| {
        let paths = lock(&plan.state.paths);
        let label = |(address, path): (&String, &PathReport)| {
            let labels = [
                ("listener", plan.state.name.to_string()),
                ("address", address.clone()),
                ("path", path.rung.to_string()),
            ];
            (labels, 1_u64)
        };
        paths.iter().map(label).collect::<Vec<_>>()
    });
    out.gauges(
        "listener_data_path",
        "Where packets to an address of a dsr listener are forwarded: 1",
        paths,
    )?;
    let endings = listeners.iter().flat_map(|plan| {
        let endings = plan.state.endings().into_iter();
        endings.map(|(reason, count)| ([("listener", name_of(plan)), ("reason", reason)], count))
    });
    out.counters("listener_endings", "Sessions that ended with an error, by reason", endings)?;
    let latencies = listeners
        .iter()
        .map(|plan| (listener(plan), plan.state.counters.sum_latency(|block| &block.latency)));
    out.histograms("listener_session_seconds", "Time from a session's first byte to its end", latencies)
}

fn encode_pools(
    out: &mut Families<'_>,
    pools: &[Arc<PoolPlan>],
    backends: &[(&PoolPlan, &BackendPlan)],
) -> fmt::Result {
    let name = |plan: &'_ Arc<PoolPlan>| [("pool", plan.settings.name.to_string())];
    let waiting = pools.iter().map(|plan| (name(plan), plan.queue.waiting() as u64));
    out.gauges("pool_queued", "Sessions that wait for a busy backend", waiting)?;
    let healthy = pools.iter().map(|plan| {
        let is_healthy = |(pool, backend): &&(&PoolPlan, &BackendPlan)| {
            pool.id == plan.id && backend.state.health_state().availability() == Availability::Available
        };
        (name(plan), backends.iter().filter(is_healthy).count() as u64)
    });
    out.gauges("pool_healthy_backends", "Backends that are not down or ejected", healthy)?;
    let fallen = pools.iter().map(|plan| (name(plan), plan.state.fallback_sessions.load(Relaxed)));
    out.counters("pool_fallback_sessions", "Sessions that went to the fallback of the pool", fallen)?;
    let stopped = pools.iter().map(|plan| (name(plan), plan.state.ejections_stopped.load(Relaxed)));
    let help = "Backends not ejected although traffic fails, because too few others would be left";
    out.counters("pool_ejections_stopped", help, stopped)?;
    let refused = pools.iter().map(|plan| (name(plan), plan.state.retries_refused.load(Relaxed)));
    out.counters("pool_retries_refused", "Retries that the retry budget of the pool did not allow", refused)
}

fn backend_gauges(out: &mut Families<'_>, backends: &[(&PoolPlan, &BackendPlan)]) -> fmt::Result {
    let each = |value: fn(&BackendPlan) -> u64| {
        backends.iter().map(move |(pool, backend)| (backend_labels(pool, backend), value(backend)))
    };
    let up = |backend: &BackendPlan| {
        u64::from(backend.state.health_state().availability() == Availability::Available)
    };
    out.gauges("backend_up", "1 unless checks or traffic say that it does not work", each(up))?;
    let states = backends.iter().map(|(pool, backend)| {
        let [first, second] = backend_labels(pool, backend);
        ([first, second, ("state", backend.state.health_state().word().into())], 1_u64)
    });
    out.gauges("backend_state", "Always 1, labelled with the state of health", states)?;
    out.gauges(
        "backend_draining",
        "1 if the backend gets no new sessions: an operator drains it, or the DNS does not have it any more",
        each(|backend| u64::from(backend.state.admission() == Admission::Draining)),
    )?;
    out.gauges(
        "backend_weight",
        "Share of sessions, relative to its neighbours",
        each(|backend| u64::from(backend.state.weight_override().unwrap_or(backend.settings.weight))),
    )?;
    out.gauges(
        "backend_in_flight",
        "Sessions now",
        each(|backend| u64::from(backend.state.in_flight.load(Relaxed))),
    )?;
    out.gauges(
        "backend_addresses",
        "Addresses that its name resolves to",
        each(|backend| backend.state.addresses.load().len() as u64),
    )
}

fn backend_counters(out: &mut Families<'_>, backends: &[(&PoolPlan, &BackendPlan)]) -> fmt::Result {
    let each = |value: fn(&BackendPlan) -> u64| {
        backends.iter().map(move |(pool, backend)| (backend_labels(pool, backend), value(backend)))
    };
    let counters: [BackendCounter; 12] = [
        ("backend_sessions", "Sessions given to it", |backend| {
            backend.state.counters.sum(|block| &block.sessions)
        }),
        ("backend_connects", "Connections opened", |backend| {
            backend.state.counters.sum(|block| &block.connects)
        }),
        ("backend_reused", "Idle connections used again", |backend| {
            backend.state.counters.sum(|block| &block.reused)
        }),
        ("backend_failures", "Attempts that failed", |backend| {
            backend.state.counters.sum(|block| &block.failures)
        }),
        ("backend_tls_failures", "TLS handshakes that failed", |backend| {
            backend.state.counters.sum(|block| &block.tls_failures)
        }),
        ("backend_floods", "HTTP/2 connections ended for a flood of frames", |backend| {
            backend.state.counters.sum(|block| &block.floods)
        }),
        ("backend_retries", "Attempts that failed and were made again elsewhere", |backend| {
            backend.state.counters.sum(|block| &block.retries)
        }),
        ("backend_moved", "Requests that went elsewhere when it was judged down", |backend| {
            backend.state.counters.sum(|block| &block.moved)
        }),
        ("backend_hedges", "Copies sent to it because another backend was slow", |backend| {
            backend.state.counters.sum(|block| &block.hedges)
        }),
        ("backend_hedge_wins", "Copies that it answered first", |backend| {
            backend.state.counters.sum(|block| &block.hedge_wins)
        }),
        ("backend_sent_bytes", "Bytes sent to it", |backend| {
            backend.state.counters.sum(|block| &block.bytes_in)
        }),
        ("backend_received_bytes", "Bytes received from it", |backend| {
            backend.state.counters.sum(|block| &block.bytes_out)
        }),
    ];
    for (name, help, value) in counters {
        out.counters(name, help, each(value))?;
    }
    let responses = backends.iter().flat_map(|(pool, backend)| {
        let classes = Statuses::sum(&backend.state.counters, |block| &block.statuses).classes();
        classes.map(|(class, count)| {
            let [first, second] = backend_labels(pool, backend);
            ([first, second, ("code", class.into())], count)
        })
    });
    out.counters("backend_responses", "HTTP answers by class of their status", responses)?;
    // A backend that speaks no gRPC has no lines.
    let calls = backends.iter().flat_map(|(pool, backend)| {
        (0..grpc::STATUSES).filter_map(move |code| {
            let count = backend.state.counters.sum(|block| &block.grpc_statuses[code]);
            let [first, second] = backend_labels(pool, backend);
            (count > 0).then(|| ([first, second, ("code", code.to_string())], count))
        })
    });
    out.counters("backend_grpc_responses", "gRPC answers by grpc-status", calls)?;
    let latencies = backends.iter().map(|(pool, backend)| {
        (backend_labels(pool, backend), backend.state.counters.sum_latency(|block| &block.latency))
    });
    out.histograms(
        "backend_response_seconds",
        "Time to its first byte (HTTP) or of the connect (TCP)",
        latencies,
    )
}

fn encode_certificates(out: &mut Families<'_>, listeners: &[&Arc<ListenerPlan>]) -> fmt::Result {
    let stores = certificate_stores(listeners.iter().map(|plan| &***plan));
    let directory = |store: &Store| store.directory().display().to_string();
    let counts = stores.iter().flat_map(|store| {
        let directory = directory(store);
        store.count().map(|(standing, count)| {
            ([("directory", directory.clone()), ("state", standing.word().to_owned())], count as u64)
        })
    });
    out.gauges("certificates", "Certificates by their state; all but ok are broken", counts)?;
    let expiries = stores.iter().flat_map(|store| {
        let directory = directory(store);
        store
            .expiries()
            .into_iter()
            .map(move |(name, seconds)| ([("directory", directory.clone()), ("certificate", name)], seconds))
    });
    out.gauges("certificate_expiry_seconds", "When a served certificate ends, in Unix time", expiries)?;
    let times: Vec<_> = stores
        .iter()
        .flat_map(|store| {
            let directory = directory(store);
            store.staple_times().into_iter().map(move |(name, since, until)| {
                ([("directory", directory.clone()), ("certificate", name)], since, until)
            })
        })
        .collect();
    let since = times.iter().map(|(labels, since, _)| (labels.clone(), *since));
    out.gauges("staple_update_seconds", "When what a staple says was known, in Unix time", since)?;
    let until = times.iter().map(|(labels, _, until)| (labels.clone(), *until));
    out.gauges("staple_expiry_seconds", "When a staple ends, in Unix time", until)?;
    let (fetched, failed) = stores.first().map(|store| store.staples().counts()).unwrap_or_default();
    out.counter("ocsp_fetches", "OCSP responses that were fetched and are good", fetched)?;
    out.counter("ocsp_failures", "Attempts to fetch an OCSP response that failed", failed)
}

fn encode_orders(out: &mut Families<'_>, state: &State, config: &Config) -> fmt::Result {
    let board = &state.acme;
    out.counter("acme_issued", "Certificates that authorities have issued", board.issued.load(Relaxed))?;
    out.counter("acme_failures", "Orders of certificates that failed", board.failed.load(Relaxed))?;
    let standings: Vec<_> = config
        .acme
        .iter()
        .flat_map(|section| {
            let label = move |(name, standing): (Arc<str>, acme::RenewalState)| {
                ([("acme", section.name.to_string()), ("certificate", name.to_string())], standing)
            };
            board.of_section(&section.name).into_iter().map(label)
        })
        .collect();
    let failures = standings.iter().map(|(labels, standing)| (labels.clone(), u64::from(standing.failures)));
    out.gauges(
        "acme_failures_in_a_row",
        "Orders of a certificate that failed since the last success",
        failures,
    )?;
    let due = standings.iter().map(|(labels, standing)| {
        let at = standing.next.at.duration_since(SystemTime::UNIX_EPOCH);
        (labels.clone(), at.map_or(0, |at| at.as_secs()))
    });
    out.gauges("acme_next_order_seconds", "When a certificate is ordered next, in Unix time", due)
}

/// Name, help text and reader of a backend counter.
type BackendCounter = (&'static str, &'static str, fn(&BackendPlan) -> u64);

fn listener(plan: &ListenerPlan) -> [(&'static str, String); 1] {
    [("listener", plan.state.name.to_string())]
}

fn name_of(plan: &ListenerPlan) -> &str {
    &plan.state.name
}

fn backend_labels(pool: &PoolPlan, backend: &BackendPlan) -> [(&'static str, String); 2] {
    [("pool", pool.settings.name.to_string()), ("backend", backend.state.name.to_string())]
}

/// Writes metric families: a description, then one sample or histogram per label set. Counters get the suffix `_total`.
struct Families<'a>(DescriptorEncoder<'a>);

impl Families<'_> {
    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut sample = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        sample.encode_counter::<NoLabelSet, u64, u64>(&value, None)
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in samples {
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&value, None)?;
        }
        Ok(())
    }

    fn gauges<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in samples {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn histograms<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, LatencySum)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, sum) in samples {
            let buckets = exposed_buckets(&sum);
            let seconds = sum.total_micros as f64 / 1e6;
            family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
                seconds,
                sum.count(),
                &buckets,
                None,
            )?;
        }
        Ok(())
    }
}

/// Merges ten buckets per decade into three (1, 2.5, 5), because Prometheus stores one time series per bucket.
fn exposed_buckets(sum: &LatencySum) -> Vec<(f64, u64)> {
    let mut buckets = Vec::new();
    let mut count = 0;
    for (at, observed) in sum.buckets.iter().enumerate() {
        count += observed;
        let bound = LATENCY_BOUNDS.get(at);
        if bound.is_none() || matches!(at % 10, 0 | 4 | 7) {
            buckets.push((bound.map_or(f64::INFINITY, |micros| *micros as f64 / 1e6), count));
            count = 0;
        }
    }
    buckets
}

#[cfg(test)]
mod tests;
