//! All scenarios.

use crate::plan::Scenario;

mod chain;
pub mod ciphers;
pub mod dsr;
pub mod fleet;
pub mod forwarded;
pub mod http;
pub mod sockets;
pub mod tcp;
pub mod tls;
pub mod truststore;
pub mod udp;

/// Returns all scenarios in the order in which `all` runs them.
pub fn all() -> Vec<Box<dyn Scenario>> {
    vec![
        Box::new(sockets::Sockets),
        Box::new(http::Http),
        Box::new(forwarded::Forwarded),
        Box::new(tcp::Tcp),
        Box::new(udp::Udp),
        Box::new(dsr::Dsr),
        Box::new(tls::TlsTermination),
        Box::new(truststore::TrustStores),
        Box::new(fleet::Fleet),
        Box::new(ciphers::Ciphers),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::context::{Context, Extent, Interrupt};
    use crate::run;
    use crate::selection::{self, Selection};

    #[test]
    fn every_scenario_has_its_own_name() {
        let mut names: Vec<_> = all().iter().map(|scenario| scenario.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().len());
    }

    /// Group, figure, rivals, limit, goal.
    type Row = (&'static str, &'static str, &'static [&'static str], f64, Option<f64>);

    /// All limits of the project.
    const LIMITS: &[Row] = &[
        ("http/keep-alive-tcp", "CPU per request", &["haproxy", "nginx"], 0.80, Some(0.75)),
        ("http/keep-alive-unix", "CPU per request", &["haproxy", "nginx"], 0.80, Some(0.75)),
        ("http/new-connection", "CPU per request", &["haproxy", "nginx"], 0.95, Some(0.85)),
        ("http/idle", "memory per connection", &[], 900.0, Some(524.0)),
        ("tcp/connections", "CPU per connection", &["pen", "nginx"], 1.0, Some(0.87)),
        ("tcp/connections", "CPU per connection", &["nginx"], 1.0, Some(0.87)),
        ("tcp/connections-unix", "CPU per connection", &["haproxy", "nginx"], 1.0, Some(0.87)),
        ("tcp/connections-unix", "CPU per connection", &["nginx"], 1.0, Some(0.87)),
        ("tcp/download", "CPU per GB", &["haproxy-splice"], 1.05, Some(0.95)),
        ("tcp/download", "CPU per GB", &["pen"], 0.70, None),
        ("tcp/download", "CPU per GB", &["nginx"], 0.45, None),
        ("tcp/download", "GB/s", &["haproxy-splice"], 0.95, None),
        ("tcp/upload", "CPU per GB", &["haproxy-splice"], 1.05, Some(0.95)),
        ("tcp/upload", "CPU per GB", &["pen"], 0.70, None),
        ("tcp/upload", "CPU per GB", &["nginx"], 0.45, None),
        ("tcp/upload", "GB/s", &["haproxy-splice"], 0.95, None),
        ("tcp/idle", "memory per connection", &[], 1024.0, Some(307.2)),
        ("udp/queries", "CPU per query", &["nginx", "pen"], 0.70, None),
        ("udp/flow", "CPU per exchange", &["nginx", "pen"], 0.70, None),
        ("dsr/packets-25k", "CPU above direct", &["pen"], 0.1, None),
        ("dsr/packets-25k", "CPU above direct", &["pen"], 0.1, None),
        ("dsr/packets-25k", "CPU above direct", &["pen"], 0.5, None),
        ("dsr/packets-50k", "CPU above direct", &["pen"], 0.1, None),
        ("dsr/packets-50k", "CPU above direct", &["pen"], 0.1, None),
        ("dsr/packets-50k", "CPU above direct", &["pen"], 0.5, None),
        ("dsr/packets-100k", "CPU above direct", &["pen"], 0.1, None),
        ("dsr/packets-100k", "CPU above direct", &["pen"], 0.1, None),
        ("dsr/packets-100k", "CPU above direct", &["pen"], 0.5, None),
        ("dsr/packets-200k", "CPU above direct", &["pen"], 0.1, None),
        ("dsr/packets-200k", "CPU above direct", &["pen"], 0.1, None),
        ("dsr/packets-200k", "CPU above direct", &["pen"], 0.5, None),
        ("dsr/overload-350k", "share that arrived", &[], 0.99, None),
        ("tls/full-p256-tls13", "CPU per handshake", &["haproxy", "nginx", "hitch", "pen"], 0.48, Some(0.43)),
        ("tls/full-rsa-tls13", "CPU per handshake", &["haproxy", "nginx", "hitch", "pen"], 0.75, Some(0.70)),
        (
            "tls/resumed-p256-tls13",
            "CPU per handshake",
            &["haproxy", "nginx", "hitch", "pen"],
            0.50,
            Some(0.46),
        ),
        ("tls/requests", "CPU per request", &["haproxy", "nginx"], 0.80, Some(0.75)),
        ("tls/download", "CPU per GB", &["haproxy"], 1.05, Some(0.95)),
        ("tls/idle", "memory per connection", &[], 15_360.0, Some(10_240.0)),
        ("tls/upload", "CPU per GB", &["haproxy"], 1.05, Some(0.95)),
        (
            "tls/resumed-rsa-tls13",
            "CPU per handshake",
            &["haproxy", "nginx", "hitch", "pen"],
            0.50,
            Some(0.46),
        ),
        ("truststore/bundle", "CPU per certificate", &[], 10e-6, Some(5e-6)),
        ("truststore/bundle", "t(4000)/t(1000)", &[], 5.0, None),
        ("fleet/hosts-100", "CPU per host", &["parallel-ssh", "pdsh", "clush"], 1.0 / 5.0, None),
        ("fleet/hosts-100", "time per host", &["parallel-ssh", "pdsh", "clush"], 1.0 / 3.0, None),
        ("fleet/hosts-100", "memory per session", &[], 1e6, None),
        ("fleet/hosts-1000", "CPU per host", &["parallel-ssh", "pdsh", "clush"], 1.0 / 5.0, None),
        ("fleet/hosts-1000", "time per host", &["parallel-ssh", "pdsh", "clush"], 1.0 / 3.0, None),
        ("fleet/hosts-1000", "memory per session", &[], 1e6, None),
        ("ciphers/down-aes128-gcm", "CPU per GB", &["openssh"], 0.5, None),
        ("ciphers/down-aes256-gcm", "CPU per GB", &["openssh"], 0.5, None),
        ("ciphers/down-chacha20-poly1305", "CPU per GB", &["openssh"], 0.5, None),
        ("ciphers/up-aes128-gcm", "CPU per GB", &["openssh"], 0.5, None),
        ("ciphers/up-aes256-gcm", "CPU per GB", &["openssh"], 0.5, None),
        ("ciphers/up-chacha20-poly1305", "CPU per GB", &["openssh"], 0.5, None),
    ];

    #[test]
    fn every_bar_is_in_its_group_with_its_rivals_and_limits() {
        let context = Context::new("/nonexistent".into(), Interrupt::default(), Extent::Full).unwrap();
        let mut found = Vec::new();
        // Scenarios that this machine, or this user, cannot run.
        let mut impossible = Vec::new();
        if context.cores.target.is_empty() || context.cores.load.is_empty() {
            impossible.push("dsr/overload".to_owned());
        }
        for scenario in all() {
            let Ok(plan) = scenario.plan(&context) else {
                impossible.push(format!("{}/", scenario.name()));
                continue;
            };
            for group in &plan.groups {
                for limit in &group.limits {
                    assert!(limit.subject.starts_with("penstock"), "{}", limit.subject);
                    let place = format!("{}/{}", scenario.name(), group.id);
                    let metric = limit.metric.title(&group.unit);
                    found.push((place, metric, limit.rivals().to_vec(), limit.value, limit.goal));
                }
            }
        }
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let possible = |place: &str| !impossible.iter().any(|name| place.starts_with(name));
        let expected: Vec<_> = LIMITS
            .iter()
            .filter(|(place, ..)| possible(place))
            .map(|(place, metric, rivals, limit, goal)| {
                ((*place).to_owned(), (*metric).to_owned(), own(rivals), *limit, *goal)
            })
            .collect();
        let mut differences: Vec<_> = found.iter().filter(|limit| !expected.contains(limit)).collect();
        differences.extend(expected.iter().filter(|limit| !found.contains(limit)));
        assert_eq!((differences, found.len()), (Vec::new(), expected.len()));
    }

    #[test]
    fn all_scenarios_take_at_most_seven_minutes_in_a_quick_run() {
        let context = Context::new("/nonexistent".into(), Interrupt::default(), Extent::Quick).unwrap();
        let planned = Selection::all().plan(&context).unwrap();
        let estimate = selection::estimate(&planned, run::QUICK);
        assert!(estimate <= Duration::from_secs(420), "{estimate:?}");
    }
}
