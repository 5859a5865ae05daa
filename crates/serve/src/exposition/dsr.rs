//! Services of `dsr` listeners, as their workers last told: what became of packets, and what each backend got.

use std::fmt;

use state::dsr::{ServiceReport, Services};

use super::Families;

pub(super) fn encode(out: &mut Families<'_>, services: &Services) -> fmt::Result {
    let all: Vec<ServiceReport> = services.all().into_iter().map(|(report, _)| report).collect();
    let packets = all.iter().flat_map(|service| {
        verdicts(service).into_iter().map(move |(verdict, reason, count)| {
            let labels = [
                ("listener", service.listener.as_str()),
                ("address", service.address.as_str()),
                ("verdict", verdict),
                ("reason", reason),
            ];
            (labels, count)
        })
    });
    out.counters(
        "dsr_packets",
        "Packets that an address of a dsr listener saw, by what became of them",
        packets,
    )?;
    let backends = || {
        all.iter().flat_map(|service| {
            service.backends.iter().map(move |backend| {
                let labels = [
                    ("listener", service.listener.as_str()),
                    ("address", service.address.as_str()),
                    ("pool", service.pool.as_str()),
                    ("backend", backend.name.as_str()),
                ];
                (labels, backend)
            })
        })
    };
    out.counters(
        "dsr_backend_packets",
        "Packets from an address of a dsr listener to a backend",
        backends().map(|(labels, backend)| (labels, backend.packets)),
    )?;
    out.counters(
        "dsr_backend_bytes",
        "Bytes of frames from an address of a dsr listener to a backend",
        backends().map(|(labels, backend)| (labels, backend.bytes)),
    )?;
    out.gauges(
        "dsr_backend_flows",
        "Flows of an address of a dsr listener that are remembered for a backend",
        backends().map(|(labels, backend)| (labels, u64::from(backend.flows))),
    )
}

/// Verdict, reason of a drop, and number.
fn verdicts(service: &ServiceReport) -> Vec<(&'static str, &'static str, u64)> {
    let mut all = vec![
        ("forwarded", "", service.packets),
        ("passed", "", service.passed),
        ("answered", "", service.answered),
    ];
    all.extend(service.dropped.iter().map(|(reason, count)| ("dropped", *reason, *count)));
    if let Some(tarpit) = &service.tarpit {
        all.extend([
            ("tarpitted", "", tarpit.tarpitted),
            ("held", "", tarpit.held),
            ("limited", "", tarpit.limited),
        ]);
    }
    all
}
