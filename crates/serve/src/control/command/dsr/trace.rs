//! `dsr trace`: packets of services with what was decided about each, for the client to write into a file.

use std::collections::BTreeSet;

use logic::dsr::path::Rung;
use logic::dsr::trace::{Wanted, verdicts};
use logic::pcapng::frames;
use logic::peers::PeerSetEntry;
use proxy::front::Front;
use serde_json::json;
use state::dsr::ServiceReport;
use state::dsr::trace::MOST;
use state::events::Level;
use text::nearest::nearest;
use text::units;

use crate::control::command::capture::{Running, limits};
use crate::control::command::packets::Source;

/// Largest number of packets of a trace.
const MOST_PACKETS: u64 = 1_000_000_000;

/// Starts a trace. The error is a refusal with its reason, or `None` for wrong usage.
pub(in crate::control) fn run(
    front: &Front,
    who: &str,
    arguments: &[&str],
) -> Result<Running, Option<String>> {
    let ["for", time, "size", size, "packets", packets, filters @ ..] = arguments else { return Err(None) };
    let (time, size) = limits(time, size)?;
    let packets = packets.parse::<u64>().ok().filter(|packets| (1..=MOST_PACKETS).contains(packets));
    let packets = packets.ok_or_else(|| format!("a trace has 1 to {MOST_PACKETS} packets"))?;
    let services: Vec<_> = front.state.services.all().into_iter().map(|(report, _)| report).collect();
    let wanted = wanted(&services, filters)?;
    let seen: Vec<_> = services.iter().filter(|it| wanted.has_service(&it.listener, &it.address)).collect();
    if let Some(why) = no_packets(&seen) {
        return Err(Some(why));
    }
    let notes: Vec<String> = seen.iter().filter_map(|service| unseen(service)).collect();
    let tracing = front.state.services.traces().start(wanted, packets).ok_or_else(|| {
        format!("{MOST} traces run already: that is the limit; `ctl events` says whose they are")
    })?;
    let which = filters.chunks(2).map(|pair| format!(", {}", pair.join(" "))).collect::<String>();
    let message = format!("{who} traces packets of dsr services{which} for {}", units::duration(time));
    front.state.events.record(Level::Warning, "trace", message);
    let note = (!notes.is_empty()).then(|| format!("#{}", json!({ "notes": notes })));
    Ok(Running {
        source: Source::Trace(tracing),
        time,
        size,
        packets,
        what: "trace of dsr services".to_owned(),
        start: frames::start(concat!("penstock ", env!("CARGO_PKG_VERSION"))),
        note,
    })
}

fn wanted(services: &[ServiceReport], filters: &[&str]) -> Result<Wanted, Option<String>> {
    if services.is_empty() {
        return Err(Some("no dsr listener is served: there are no packets to trace".to_owned()));
    }
    let mut wanted = Wanted::default();
    for pair in filters.chunks(2) {
        let [word, value] = *pair else { return Err(None) };
        match word {
            "from" => match value.parse::<PeerSetEntry>() {
                Ok(PeerSetEntry::Unix) => {
                    return Err(Some(
                        "from: packets have no Unix socket: name an address or a network".to_owned(),
                    ));
                }
                Ok(entry) => wanted.from = Some([entry].into_iter().collect()),
                Err(error) => return Err(Some(format!("from: {error}"))),
            },
            "service" => {
                let names = services.iter().flat_map(|it| [&*it.listener, &*it.address]);
                wanted.service = Some(known("dsr listener or address", value, names)?);
            }
            "backend" => {
                let names = services.iter().flat_map(|it| it.backends.iter().map(|backend| &*backend.name));
                wanted.backend = Some(known("backend of a dsr listener", value, names)?);
            }
            "verdict" => wanted.verdict = Some(known("verdict", value, verdicts().into_iter())?),
            _ => return Err(None),
        }
    }
    Ok(wanted)
}

/// The value, if it is one of the names.
fn known<'a>(
    what: &str,
    value: &str,
    names: impl Iterator<Item = &'a str>,
) -> Result<String, Option<String>> {
    let names: BTreeSet<&str> = names.collect();
    if names.contains(value) {
        return Ok(value.to_owned());
    }
    let near = nearest(value, names.iter().copied());
    let near = near.map_or(String::new(), |near| format!(", did you mean \"{near}\"?"));
    let shown: String = value.chars().take(60).collect();
    let some: Vec<_> = names.into_iter().take(20).collect();
    Err(Some(format!("no {what} \"{shown}\"{near}; there are: {}", some.join(", "))))
}

/// Why a trace of these services would be empty, if none of them has packets.
fn no_packets(seen: &[&ServiceReport]) -> Option<String> {
    if seen.iter().any(|service| service.path != Rung::Proxy.as_str()) {
        return None;
    }
    seen.first().and_then(|service| unseen(service))
}

/// What a trace does not see of a service. `None` if it sees all.
fn unseen(service: &ServiceReport) -> Option<String> {
    if service.path == Rung::Proxy.as_str() {
        return Some(format!(
            "no packet of {} is forwarded (data-path proxy): a trace has none of it; `penstock ctl sessions` shows its sessions",
            service.address
        ));
    }
    service.path.starts_with("xdp").then(|| {
        format!(
            "{} is served by {}, which is before all packet sockets: what it forwards or drops is not in the trace, only \
             what it passes on and questions who has the address; `penstock ctl dsr explain` tells of any packet, and \
             data-path = \"tc\" lets a trace see all",
            service.address, service.path
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(path: &'static str) -> ServiceReport {
        ServiceReport {
            listener: "video".to_owned(),
            address: "192.0.2.10:80".to_owned(),
            transport: "tcp",
            path,
            mode: "l2",
            ownership: "owner",
            interface: "eth0".to_owned(),
            ethernet: None,
            pool: "video".to_owned(),
            flows: 0,
            max_flows: 1,
            packets: 0,
            bytes: 0,
            passed: 0,
            answered: 0,
            dropped: Default::default(),
            traces: 0,
            tarpit: None,
            backends: Vec::new(),
        }
    }

    #[test]
    fn a_filter_that_can_match_nothing_is_refused_with_what_there_is() {
        let all = [service("tc")];
        let said =
            |filters: &[&str]| wanted(&all, filters).map_err(|why| why.unwrap_or_else(|| "usage".to_owned()));
        assert!(said(&["from", "203.0.113.0/24", "service", "video", "verdict", "dropped"]).is_ok());
        for (filters, part) in [
            (&["service", "vide"][..], "no dsr listener or address \"vide\", did you mean \"video\"?"),
            (&["backend", "10.0.0.1:80"], "no backend of a dsr listener \"10.0.0.1:80\"; there are: "),
            (
                &["verdict", "drop"],
                "there are: answered, dropped, forwarded, packet-no-backend, packet-not-segmented, packet-too-long, passed, tarpitted",
            ),
            (&["from", "203.0.113.1/24"], "from: "),
            (&["from", "unix"], "no Unix socket"),
            (&["from"], "usage"),
            (&["whence", "192.0.2.1"], "usage"),
        ] {
            let refused = said(filters).unwrap_err();
            assert!(refused.contains(part), "{filters:?}: {refused}");
        }
        assert!(wanted(&[], &[]).unwrap_err().unwrap().contains("no dsr listener is served"));
        assert!(unseen(&all[0]).is_none() && unseen(&service("xdp-generic")).is_some());
        let (proxied, forwarded) = (service("proxy"), service("tc"));
        assert!(no_packets(&[&proxied, &proxied]).unwrap().contains("a trace has none of it"));
        assert_eq!((no_packets(&[&proxied, &forwarded]), no_packets(&[])), (None, None));
    }
}
