use std::collections::{HashMap, HashSet};

use logic::health::State as HealthState;

use super::*;
use crate::report::fixture;

/// Checks every line. Returns the value of each sample by its name with labels.
fn samples(text: &str) -> HashMap<String, f64> {
    let mut families = HashMap::new();
    let mut found = HashMap::new();
    let mut described = HashSet::new();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.last(), Some(&"# EOF"));
    for line in &lines[..lines.len() - 1] {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("HELP has a text");
            assert!(described.insert(name.to_owned()), "described twice: {name}");
            assert!(!help.is_empty());
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("TYPE has a type");
            assert!(described.contains(name));
            families.insert(name.to_owned(), kind.to_owned());
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line}"));
        let name = sample.split('{').next().unwrap();
        assert!(name.starts_with("penstock_"), "{line}");
        let known = ["", "_total", "_bucket", "_sum", "_count"].iter().any(|suffix| {
            name.strip_suffix(suffix).and_then(|family| families.get(family)).is_some_and(
                |kind| match *suffix {
                    "" => kind == "gauge",
                    "_total" => kind == "counter",
                    _ => kind == "histogram",
                },
            )
        });
        assert!(known, "no family for {line}");
        let value = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
        assert!(found.insert(sample.to_owned(), value).is_none(), "twice: {line}");
    }
    found
}

#[test]
fn every_line_belongs_to_a_described_family_and_counts_are_right() {
    let front = fixture::front("backends = ['127.0.0.1:1', { address = 'unix:/run/app.sock', weight = 4 }]");
    let snapshot = front.snapshot.load();
    let backend = &snapshot.pools[0].backends[1].state;
    backend.counters.of(0).sessions.add(3);
    backend.counters.of(1).sessions.add(4);
    backend.counters.of(0).statuses[4].add(2);
    backend.counters.of(1).latency.observe(std::time::Duration::from_millis(3));
    backend.counters.of(0).latency.observe(std::time::Duration::from_secs(60));
    backend.publish_health(HealthState::Down, std::time::Instant::now());
    (0..9).for_each(|at| snapshot.listeners["web"].state.count_ending(at % 2, "client-closed"));
    front.state.log_lines_dropped.store(11, Relaxed);

    let found = samples(&render(&front).unwrap());
    let labels = "pool=\"app\",backend=\"unix:/run/app.sock\"";
    let expected = [
        (format!("penstock_backend_sessions_total{{{labels}}}"), 7.0),
        (format!("penstock_backend_up{{{labels}}}"), 0.0),
        (format!("penstock_backend_weight{{{labels}}}"), 4.0),
        (format!("penstock_backend_state{{{labels},state=\"down\"}}"), 1.0),
        (format!("penstock_backend_responses_total{{{labels},code=\"5xx\"}}"), 2.0),
        (format!("penstock_backend_response_seconds_count{{{labels}}}"), 2.0),
        (format!("penstock_backend_response_seconds_sum{{{labels}}}"), 60.003),
        (format!("penstock_backend_response_seconds_bucket{{le=\"0.0025\",{labels}}}"), 0.0),
        (format!("penstock_backend_response_seconds_bucket{{le=\"0.005\",{labels}}}"), 1.0),
        (format!("penstock_backend_response_seconds_bucket{{le=\"+Inf\",{labels}}}"), 2.0),
        ("penstock_backend_up{pool=\"app\",backend=\"127.0.0.1:1\"}".to_owned(), 1.0),
        ("penstock_pool_healthy_backends{pool=\"app\"}".to_owned(), 1.0),
        ("penstock_listener_endings_total{listener=\"web\",reason=\"client-closed\"}".to_owned(), 9.0),
        ("penstock_log_lines_dropped_total".to_owned(), 11.0),
    ];
    for (sample, value) in expected {
        assert_eq!(found.get(&sample), Some(&value), "{sample}");
    }
}

#[test]
fn a_path_cannot_forge_a_sample() {
    let front = fixture::front(r#"backends = ["unix:/run/a\"} 1\\.sock"]"#);
    let found = samples(&render(&front).unwrap());
    assert!(found.contains_key(r#"penstock_backend_up{pool="app",backend="unix:/run/a\"} 1\\.sock"}"#));
}
