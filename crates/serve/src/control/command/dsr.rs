//! `dsr`: services of `dsr` listeners, and what they would do with a packet.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use logic::dsr::packet::{Flow, Transport};
use logic::dsr::path::Rung;
use logic::dsr::tarpit;
use proxy::front::Front;
use state::dsr::start_confirmation::Phase;
use state::dsr::{Question, Served, ServiceReport};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::report::dsr::ExplainReport;

pub(super) mod trace;

/// Time limit of a worker's answer.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// Why no packet is taken after a start that no operator has confirmed.
const GIVEN_UP: &str = "passed over: the services of dsr listeners are given up, because the start was not confirmed in time \
                        (--commit-confirm); start penstock again";

pub(super) enum Asked {
    Status,
    Explain(Flow),
}

/// The error is a refusal with its reason, or `None` for wrong usage.
pub(super) fn read(arguments: &[&str]) -> Result<Asked, Option<String>> {
    match *arguments {
        ["status"] => Ok(Asked::Status),
        ["explain", from, to, transport] => Ok(Asked::Explain(flow(from, to, transport)?)),
        _ => Err(None),
    }
}

fn flow(from: &str, to: &str, transport: &str) -> Result<Flow, String> {
    let address = |text: &str| {
        let shown: String = text.chars().take(60).collect();
        let read = text.parse::<SocketAddr>().map(|address| (address.ip().to_canonical(), address.port()));
        read.map_err(|_| format!("\"{shown}\" is no address and port, such as 203.0.113.7:40000"))
    };
    let ((client, client_port), (vip, port)) = (address(from)?, address(to)?);
    if client.is_ipv4() != vip.is_ipv4() {
        return Err("both addresses of a packet are IPv4, or both are IPv6".into());
    }
    let transport = match transport {
        "tcp" => Transport::Tcp,
        "udp" => Transport::Udp,
        _ => return Err("the transport of a packet is tcp or udp".into()),
    };
    Ok(Flow { client, client_port, vip, port, transport })
}

pub(super) async fn explain(front: &Front, flow: Flow) -> Result<ExplainReport, String> {
    let all = front.state.services.all();
    if all.is_empty() && front.state.services.start_confirmation.phase() == Phase::GivenUp {
        return Ok(ExplainReport::passed(&flow, GIVEN_UP.to_owned()));
    }
    if all.iter().any(|(report, _)| vip(&report.address).is_some_and(|it| it.0 == flow.client)) {
        return Err(format!("{} is the address of a service, and no client sends from it", flow.client));
    }
    let (service, desk) = match found(&all, &flow) {
        Ok(found) => found,
        Err(why) => {
            let held = all.iter().find_map(|(report, _)| Some((report, network_of(report, &flow)?)));
            return Ok(match held {
                Some((report, network)) => ExplainReport::held(&flow, report, network),
                None => ExplainReport::passed(&flow, why),
            });
        }
    };
    if service.path == Rung::Proxy.as_str() {
        return Err(format!(
            "no packet to {} is forwarded (data-path proxy): the backend of a session is chosen as for a tcp or udp listener, when it begins",
            service.address
        ));
    }
    let (answer, answered) = oneshot::channel();
    let busy = || {
        format!(
            "the worker of {} has not answered within {} s: it is busy or stopped; ask again",
            service.address,
            ANSWER_TIME.as_secs()
        )
    };
    desk.try_send(Question::Explain { flow, answer }).map_err(|_| busy())?;
    let explained = timeout(ANSWER_TIME, answered).await.map_err(|_| busy())?.map_err(|_| busy())?;
    Ok(ExplainReport::read(&flow, service, explained))
}

/// The network of a service's tarpit that has the destination.
fn network_of<'a>(report: &'a ServiceReport, flow: &Flow) -> Option<&'a str> {
    let networks = &report.tarpit.as_ref()?.networks;
    let has = |network: &&String| tarpit::has(network, flow.vip);
    networks.iter().find(has).map(String::as_str)
}

/// The service that takes a packet; the error says why none does.
fn found<'a>(all: &'a [Served], flow: &Flow) -> Result<&'a Served, String> {
    let vip = |report: &ServiceReport| vip(&report.address);
    let here: Vec<_> =
        all.iter().filter(|(report, _)| vip(report).is_some_and(|it| it.0 == flow.vip)).collect();
    if here.is_empty() {
        return Err(format!("passed over: no dsr listener has the address {}", flow.vip));
    }
    let has = |report: &ServiceReport| match flow.transport {
        Transport::Tcp => report.transport.contains("tcp"),
        Transport::Udp => report.transport.contains("udp"),
    };
    let takes = |port: Option<u16>| {
        here.iter().find(|(report, _)| vip(report).is_some_and(|it| it.1 == port) && has(report)).copied()
    };
    // A service of one port is before one of every port.
    takes(Some(flow.port)).or_else(|| takes(None)).ok_or_else(|| {
        let services: Vec<_> =
            here.iter().map(|(report, _)| format!("{} {}", report.address, report.transport)).collect();
        format!(
            "passed over: no dsr listener has this port and transport; there are: {}",
            services.join(", ")
        )
    })
}

/// Address and port of a service; no port: every one.
fn vip(text: &str) -> Option<(IpAddr, Option<u16>)> {
    match text.strip_suffix(":*") {
        Some(ip) => {
            let ip = ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')).unwrap_or(ip);
            Some((ip.parse::<IpAddr>().ok()?.to_canonical(), None))
        }
        None => {
            text.parse::<SocketAddr>().ok().map(|address| (address.ip().to_canonical(), Some(address.port())))
        }
    }
}
