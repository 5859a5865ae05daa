//! Services of `dsr` listeners, for `penstock ctl dsr`.

use std::time::Duration;

use logic::dsr::explain::{BackendView, Decision, Explanation, Phase, Why};
use logic::dsr::packet::{Flow, Transport, shown};
use logic::dsr::path::{LOST_BY_PROXY, Rung};
use serde::Serialize;
use state::dsr::{BackendOfService, ServiceReport, TarpitReport, VipReport};
use text::table::Table;
use text::terminal::line;
use text::units;
use text::wrap::wrapped;

use super::tables::{WIDTH, push_line};

/// Text in place of the list, after a start that no operator has confirmed in time.
pub const GIVEN_UP: &str = "the services of dsr listeners are given up: the start was not confirmed in time (--commit-confirm)\n  \
                            hint: start penstock again, and confirm it with `penstock ctl confirm`\n";

/// Lists the services with their backends, as they were up to a second ago.
pub fn services(services: &[ServiceReport]) -> String {
    if services.is_empty() {
        return "no dsr listener is served: protocol = \"dsr\" makes one\n".to_owned();
    }
    let mut out = String::new();
    for service in services {
        match service.path == Rung::Proxy.as_str() {
            true => push_proxied(&mut out, service),
            false => push_forwarded(&mut out, service),
        }
    }
    out
}

/// A service whose packets are forwarded.
fn push_forwarded(out: &mut String, service: &ServiceReport) {
    let ethernet = service.ethernet.as_deref().unwrap_or("GONE");
    push_line(
        out,
        &format!(
            "SERVICE {} {} (listener.{}): {}by {}{}, {} {ethernet}, pool {}",
            line(&service.address),
            service.transport,
            line(&service.listener),
            if service.ownership == "standby" { "STANDBY, " } else { "" },
            service.path,
            if service.mode == "ipip" { " through tunnels" } else { "" },
            line(&service.interface),
            line(&service.pool),
        ),
    );
    let dropped: Vec<_> = service.dropped.iter().map(|(why, count)| format!("{why} {count}")).collect();
    let dropped = if dropped.is_empty() { "0".to_owned() } else { dropped.join(", ") };
    let traced = match service.traces {
        0 => String::new(),
        traces => format!("; seen by {}", units::count(traces, "trace")),
    };
    push_line(
        out,
        &format!(
            "  flows {} of {}; packets {}, {}; dropped {dropped}; passed over {}, questions answered {}{traced}",
            service.flows,
            service.max_flows,
            service.packets,
            units::bytes(service.bytes),
            service.passed,
            service.answered,
        ),
    );
    if let Some(tarpit) = &service.tarpit {
        push_line(out, &tarpit_line(tarpit));
    }
    let mut table = Table::indented("  ");
    table.header(["backend", "state", "address", "ethernet", ">flows", ">packets", ">bytes"]);
    for backend in &service.backends {
        table.row([
            line(&backend.name),
            backend.state.to_owned(),
            vip_word(backend),
            backend.ethernet.clone().unwrap_or_else(|| "unknown".to_owned()),
            backend.flows.to_string(),
            backend.packets.to_string(),
            units::bytes(backend.bytes),
        ]);
    }
    out.push_str(&table.render());
    for backend in &service.backends {
        if let Some(cause) = backend.vip.as_ref().and_then(|vip| vip.cause.as_ref()) {
            let start = format!("  {}: ", line(&backend.name));
            push_line(out, &wrapped(&start, "    ", &line(cause), WIDTH));
        }
    }
}

/// A service without packets.
fn push_proxied(out: &mut String, service: &ServiceReport) {
    let ServiceReport { address, transport, listener, pool, .. } = service;
    let (address, listener, pool) = (line(address), line(listener), line(pool));
    push_line(out, &format!("SERVICE {address} {transport} (listener.{listener}): by proxy, pool {pool}"));
    push_line(out, &wrapped("  no packet is forwarded: ", "  ", LOST_BY_PROXY, WIDTH));
    let mut table = Table::indented("  ");
    table.header(["backend", "state", ">sessions"]);
    for backend in &service.backends {
        table.row([line(&backend.name), backend.state.to_owned(), backend.flows.to_string()]);
    }
    out.push_str(&table.render());
}

fn tarpit_line(tarpit: &TarpitReport) -> String {
    format!(
        "  tarpit {}: addresses answered {}, of machines {}; SYNs {}, window probes {}; over {} a second: {} not answered",
        tarpit.networks.join(" "),
        tarpit.addresses,
        tarpit.used,
        tarpit.tarpitted,
        tarpit.held,
        tarpit.rate,
        tarpit.limited,
    )
}

/// Whether a backend accepts the virtual address.
fn vip_word(backend: &BackendOfService) -> String {
    match &backend.vip {
        None => "not checked".to_owned(),
        Some(vip) => match vip.state {
            "up" => "accepted".to_owned(),
            "down" => "NOT accepted".to_owned(),
            other => other.to_owned(),
        },
    }
}

/// The answer of `ctl dsr explain`.
#[derive(Clone, Debug, Serialize)]
pub struct ExplainReport {
    pub from: String,
    pub to: String,
    /// `tcp` or `udp`.
    pub transport: &'static str,
    /// `forward`, `drop`, `tarpit`, or `pass`: no service has the destination.
    pub verdict: &'static str,
    /// Why, in a sentence.
    pub reason: String,
    pub listener: Option<String>,
    /// The service as in `bind`.
    pub service: Option<String>,
    /// The backend that gets the packet, and its Ethernet address.
    pub backend: Option<String>,
    pub ethernet: Option<String>,
    pub flow: Option<FlowReport>,
    /// Backend of the flow in the table as it is.
    pub table: Option<String>,
    /// Backend of the flow in the table if all backends took flows.
    pub home: Option<String>,
    pub backends: Vec<ExplainedBackend>,
    #[serde(skip)]
    memory: Memory,
}

/// Whether it could be looked up which flows are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Read,
    Unread,
}

#[derive(Clone, Debug, Serialize)]
pub struct FlowReport {
    pub backend: String,
    /// `open` or `closing`.
    pub phase: &'static str,
    pub silent_seconds: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct ExplainedBackend {
    pub name: String,
    /// `open`, `draining`, `down` or `removed`.
    pub state: &'static str,
    pub weight: u32,
    pub ethernet: Option<String>,
    pub flows: u32,
    pub vip: Option<VipReport>,
}

impl ExplainReport {
    fn new(flow: &Flow, verdict: &'static str, reason: String) -> Self {
        let address = |ip, port| std::net::SocketAddr::new(ip, port).to_string();
        Self {
            from: address(flow.client, flow.client_port),
            to: address(flow.vip, flow.port),
            transport: match flow.transport {
                Transport::Tcp => "tcp",
                Transport::Udp => "udp",
            },
            verdict,
            reason,
            listener: None,
            service: None,
            backend: None,
            ethernet: None,
            flow: None,
            table: None,
            home: None,
            backends: Vec::new(),
            memory: Memory::Read,
        }
    }

    /// A packet to an address that a tarpit may answer for.
    pub(crate) fn held(flow: &Flow, service: &ServiceReport, network: &str) -> Self {
        let reason = match flow.transport {
            Transport::Tcp => format!(
                "to the tarpit of listener.{} ({network}): it answers a SYN, and holds the client, unless a machine has the address",
                service.listener
            ),
            Transport::Udp => format!(
                "passed over: the address is in the tarpit of listener.{} ({network}), which answers TCP alone",
                service.listener
            ),
        };
        let verdict = if flow.transport == Transport::Tcp { "tarpit" } else { "pass" };
        Self { listener: Some(service.listener.clone()), ..Self::new(flow, verdict, reason) }
    }

    /// A packet that no service takes.
    pub(crate) fn passed(flow: &Flow, reason: String) -> Self {
        Self::new(flow, "pass", reason)
    }

    pub(crate) fn read(flow: &Flow, service: &ServiceReport, explained: Explanation) -> Self {
        let (verdict, reason) = reason(&explained);
        let (backend, ethernet) = match &explained.decision {
            _ if explained.no_packets.is_some() => (None, None),
            Decision::Forward { backend, to, .. } => (Some(backend.clone()), Some(shown(*to))),
            Decision::NoEthernetAddress { backend } => (Some(backend.clone()), None),
            Decision::Drop(_) => (None, None),
        };
        let memory = match explained.decision {
            Decision::Forward { why: Why::Unread, .. } => Memory::Unread,
            _ => Memory::Read,
        };
        let vip = |name: &str| service.backends.iter().find(|one| one.name == name)?.vip.clone();
        let backend_of = |view: BackendView| ExplainedBackend {
            state: match view.standing {
                Some(logic::dsr::Standing::Open) => "open",
                Some(logic::dsr::Standing::Draining) => "draining",
                Some(logic::dsr::Standing::Down) => "down",
                None => "removed",
            },
            weight: view.weight / logic::balance::WEIGHT_UNIT,
            ethernet: view.mac.map(shown),
            flows: view.flows,
            vip: vip(&view.name),
            name: view.name,
        };
        Self {
            listener: Some(service.listener.clone()),
            service: Some(service.address.clone()),
            backend,
            ethernet,
            flow: explained.known.map(|known| FlowReport {
                backend: known.backend,
                phase: match known.phase {
                    Phase::Open => "open",
                    Phase::Closing => "closing",
                },
                silent_seconds: known.silent.as_secs_f64(),
            }),
            table: explained.table,
            home: explained.home,
            backends: explained.backends.into_iter().map(backend_of).collect(),
            memory,
            ..Self::new(flow, verdict, reason)
        }
    }

    pub fn text(&self) -> String {
        let mut out = String::new();
        push_line(&mut out, &format!("{} {} -> {}", self.transport, self.from, self.to));
        if let (Some(listener), Some(service)) = (&self.listener, &self.service) {
            push_line(&mut out, &format!("  service: {} of listener.{}", line(service), line(listener)));
            push_line(&mut out, &format!("  flow: {}", self.flow_words()));
            let name = |name: &Option<String>| name.as_deref().map_or("none".to_owned(), line);
            let home = match self.home != self.table {
                true => format!(" (if all took flows: {})", name(&self.home)),
                false => String::new(),
            };
            push_line(&mut out, &format!("  table: {}{home}", name(&self.table)));
            let mut table = Table::indented("  ");
            table.header(["backend", "state", ">weight", "ethernet", ">flows"]);
            for backend in &self.backends {
                table.row([
                    line(&backend.name),
                    backend.state.to_owned(),
                    backend.weight.to_string(),
                    backend.ethernet.clone().unwrap_or_else(|| "unknown".to_owned()),
                    backend.flows.to_string(),
                ]);
            }
            out.push_str(&table.render());
            for backend in &self.backends {
                if let Some(cause) = backend.vip.as_ref().and_then(|vip| vip.cause.as_ref()) {
                    push_line(&mut out, &format!("  {}: {}", line(&backend.name), line(cause)));
                }
            }
        }
        push_line(&mut out, &wrapped("=> ", "   ", &line(&self.reason), WIDTH));
        out
    }

    fn flow_words(&self) -> String {
        match &self.flow {
            None if self.memory == Memory::Unread => "whether it is remembered is not known".to_owned(),
            None => "not remembered".to_owned(),
            Some(flow) => {
                let silent = units::duration(Duration::from_secs_f64(flow.silent_seconds.max(0.0)));
                let closing = match flow.phase {
                    "closing" => ", which the client has ended: a SYN begins a new one",
                    _ => "",
                };
                format!("remembered for {}, silent for {silent}{closing}", line(&flow.backend))
            }
        }
    }
}

fn reason(explained: &Explanation) -> (&'static str, String) {
    if let Some(why) = &explained.no_packets {
        return ("drop", why.clone());
    }
    let verdict = match &explained.decision {
        Decision::Forward { .. } => "forward",
        Decision::NoEthernetAddress { .. } | Decision::Drop(_) => "drop",
    };
    (verdict, explained.decision.sentence())
}
