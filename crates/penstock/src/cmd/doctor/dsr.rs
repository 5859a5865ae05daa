//! `penstock doctor dsr`: proves on this machine that what `dsr` listeners need outside of it is there. Decisions:
//! `logic::dsr::doctor`; what is sent: `serve::doctor`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use config::types::BindAddress;
use config::{Config, Environment, Quick};
use logic::dsr::machine::Forwarder;
use logic::dsr::path::Rung;
use logic::finding::Finding;
use serde_json::{Value, json};
use serve::doctor::{self, Report, Running, Serving};

use crate::cmd::findings;
use crate::ctl::client::Client;
use crate::load;
use crate::output::{Failure, plain, plain_lines, print, print_failed, print_json};

/// Prove each leg of the dsr listeners, from the balancer
///
/// Looks at the interface, at who answers for each VIP, and sends to each backend what a client would send: the beginning
/// of a connection to the VIP (which is reset at once), or an empty datagram, and echo requests as long as the MTU. May run
/// beside a balancer that serves. Needs CAP_NET_RAW.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The configuration of the balancer; without it the one that PENSTOCK_CONFIG names, or /etc/penstock/penstock.toml
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Without a file: the network interface, as of `penstock serve`
    #[arg(long, value_name = "INTERFACE", requires_all = ["listen", "backend"], conflicts_with = "config")]
    dsr: Option<String>,
    /// Without a file: the virtual address with its port; may be repeated
    #[arg(long, short, value_name = "ADDRESS", requires = "dsr")]
    listen: Vec<String>,
    /// Without a file: a backend; may be repeated
    #[arg(long, short, value_name = "ADDRESS", requires = "dsr")]
    backend: Vec<String>,
    /// Without a file: tcp, udp or tcp-and-udp
    #[arg(long, value_name = "PROTOCOL", requires = "dsr")]
    protocol: Option<String>,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  penstock doctor dsr
  penstock doctor dsr --config /etc/penstock/penstock.toml --json
  penstock doctor dsr --dsr eth1 --listen 192.0.2.10:80 --backend 192.0.2.21 --backend 192.0.2.22

Exit codes: 0 all is well; 1 something is not, or nothing could be asked; 2 wrong usage, or a wrong configuration.";

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let reports = match &arguments.dsr {
        Some(interface) => doctor::examine(&of_flags(arguments, interface)?, None, &Running::default()),
        None => {
            let (config, file) = of_file(arguments)?;
            let socket = config.control.as_ref().map(|control| &*control.socket);
            doctor::examine(&config, Some(&file), &socket.and_then(running).unwrap_or_default())
        }
    };
    let reports = reports.map_err(Failure::runtime)?;
    report(arguments, &reports)
}

/// What `penstock serve` would serve with these flags.
fn of_flags(arguments: &Arguments, interface: &str) -> Result<Config, Failure> {
    let quick = Quick {
        listen: arguments.listen.clone(),
        backends: arguments.backend.clone(),
        dsr: Some(interface.to_owned()),
        protocol: arguments.protocol.clone(),
        ..Quick::default()
    };
    let loaded = config::quick(&quick, &Environment::default());
    loaded.map(|loaded| loaded.config).map_err(|faults| Failure::Usage(faults.render()))
}

fn of_file(arguments: &Arguments) -> Result<(Config, PathBuf), Failure> {
    let Some(file) = load::usual(arguments.config.as_deref()) else {
        return Err(Failure::usage(
            "no configuration is named\n  hint: penstock doctor dsr --config FILE, or the flags of `penstock serve`: \
             penstock doctor dsr --dsr eth1 --listen 192.0.2.10:80 --backend 192.0.2.21",
        ));
    };
    let loaded = load::file(&file, &load::environment())?;
    if !loaded.config.listeners.iter().any(|listener| listener.dsr().is_some()) {
        return Err(Failure::usage(format_args!(
            "{} has no listener with protocol = \"dsr\"",
            plain(&file.display().to_string())
        )));
    }
    Ok((loaded.config, file))
}

/// Time limit of the process that serves.
const PATIENCE: Duration = Duration::from_secs(2);

/// Who forwards packets in the process that serves the same configuration; `None` if there is none, or it does not tell.
fn running(socket: &Path) -> Option<Running> {
    let ask = |line: &str| -> Option<Value> {
        let answer = Client::connect(socket, PATIENCE).ok()?.ask(line).ok()?;
        serde_json::from_str(&answer.lines.join("\n")).ok()
    };
    let (status, all) = (ask("dsr status json")?, ask("status json").unwrap_or_default());
    let path = |listener: &str, address: &str| {
        let listener = all["listeners"].as_array()?.iter().find(|one| one["name"] == listener)?;
        listener["paths"].as_array()?.iter().find(|one| one["address"] == address)
    };
    let one = |service: &Value| {
        let word = |key: &str| service[key].as_str().map(str::to_owned);
        let forwarder = match service["path"].as_str()?.parse::<Rung>().ok()? {
            Rung::AfPacket => Forwarder::Process,
            Rung::Proxy => Forwarder::Kernel,
            Rung::Xdp | Rung::XdpGeneric | Rung::Tc => Forwarder::Program,
        };
        let (listener, address) = (word("listener")?, word("address")?);
        let unpinned = path(&listener, &address).and_then(|path| path["unpinned"].as_str());
        let serving = Serving { forwarder, unpinned: unpinned.map(str::to_owned) };
        Some(((listener, address), serving))
    };
    Some(status["services"].as_array()?.iter().filter_map(one).collect())
}

fn report(arguments: &Arguments, reports: &[Report]) -> Result<(), Failure> {
    let faults = reports.iter().flat_map(|report| &report.findings).filter(|one| one.is_fault()).count();
    if arguments.json {
        let services: Vec<_> = reports.iter().map(as_json).collect();
        let report = json!({ "ok": faults == 0, "services": services });
        print_json(&format!("{report:#}\n"))?;
        return if faults == 0 { Ok(()) } else { Err(Failure::Status(1)) };
    }
    let text: Vec<_> = reports.iter().map(as_text).collect();
    let text = plain_lines(&text.join("\n"));
    if faults == 0 { print(&text) } else { Err(print_failed(&text, 1)) }
}

fn as_text(report: &Report) -> String {
    let Report { listener, vip, interface, findings } = report;
    format!("listener.{listener}: {} on {interface}\n{}", shown(*vip), findings::text(findings))
}

/// As in `bind`.
fn shown(vip: SocketAddr) -> String {
    match vip.port() {
        0 => BindAddress::EveryPort(vip.ip()).to_string(),
        _ => vip.to_string(),
    }
}

fn as_json(report: &Report) -> serde_json::Value {
    json!({
        "listener": report.listener,
        "vip": shown(report.vip),
        "interface": report.interface,
        "ok": !report.findings.iter().any(Finding::is_fault),
        "findings": findings::json(&report.findings),
    })
}
