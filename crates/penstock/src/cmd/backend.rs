//! `penstock backend`: a server behind a `dsr` listener, on which this runs. Decisions: `logic::dsr::backend_host`; what it
//! does to the machine: `serve::backend_host`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use logic::dsr::Transports;
use logic::dsr::backend_host::persist::Persist;
use logic::dsr::backend_host::verify::{self, Listening};
use logic::dsr::backend_host::{ALL, Facts, Vip, VipText, setup, tunnel};
use logic::dsr::tunnel::Mode;
use logic::finding::Finding;
use serde_json::json;
use serve::backend_host::{self, Order};

use super::findings;
use crate::load;
use crate::output::{Failure, complain, plain, plain_lines, print, print_failed, print_json};

/// Make this machine a server behind direct server return, or find out what it lacks
///
/// A server behind a listener with `protocol = "dsr"` has the virtual address (VIP) of the service on its loopback
/// interface, and answers no ARP request for it. Run this on the server; `penstock doctor dsr` looks from the balancer.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Verify(Verify),
    Setup(Setup),
    Undo(Undo),
}

/// Say line by line what is needed here, whether it is so, and the command that mends it
///
/// Changes nothing. Of a VIP with a port it also tests whether a process serves it: by a connection (TCP), or in the
/// kernel's list of sockets (UDP).
#[derive(Debug, Args)]
#[command(after_help = VERIFY_EXAMPLES)]
struct Verify {
    #[command(flatten)]
    vips: Vips,
    #[arg(
        long,
        value_name = "PROTOCOL",
        default_value = "tcp",
        help = format!("Transport protocol of the ports of --vip: {}", text::words::alternatives(Transports::WORDS))
    )]
    transport: Transports,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// Print a script that sets a server up, or set this one up
///
/// The script is the same for every server, and may be run again. With --apply this machine gets what it lacks, and what
/// was there before is kept for `penstock backend undo`.
#[derive(Debug, Args)]
#[command(after_help = SETUP_EXAMPLES)]
struct Setup {
    #[command(flatten)]
    vips: Vips,
    /// Do it here
    #[arg(long)]
    apply: bool,
    #[arg(
        long,
        value_name = "SYSTEM",
        help = format!(
            "Make it last over a restart of the machine, by files for {}; a file that is not ours is never overwritten",
            text::words::alternatives(Persist::WORDS)
        )
    )]
    persist: Option<Persist>,
    /// Keep what was there before in this directory
    #[arg(long, value_name = "DIR", default_value = STATE)]
    state: PathBuf,
}

/// Take back what `penstock backend setup --apply` has changed here, and nothing else
///
/// An address that was there before stays, and so does a setting or a file that was changed since.
#[derive(Debug, Args)]
#[command(after_help = UNDO_EXAMPLES)]
struct Undo {
    /// The VIP; may be repeated
    #[arg(long, value_name = "ADDRESS", required = true)]
    vip: Vec<VipText>,
    /// The directory in which the set-up has kept what was there before
    #[arg(long, value_name = "DIR", default_value = STATE)]
    state: PathBuf,
}

/// Addresses, and where clients come in.
#[derive(Debug, Args)]
struct Vips {
    // Not a doc comment: rustdoc takes brackets for a link.
    #[arg(
        long,
        value_name = "ADDRESS",
        help = "The VIP, also with its port: 192.0.2.10, 192.0.2.10:80, 2001:db8::10, [2001:db8::10]:80; may be repeated"
    )]
    vip: Vec<VipText>,
    /// All VIPs of the dsr listeners in this configuration of the balancer
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The network interface on which packets of clients come in; without it the one of the default route, and settings
    /// are made for all
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    #[arg(
        long,
        value_name = "MODE",
        default_value = Mode::default().as_str(),
        help = format!("How packets come here, as in the listener: {}; with --config it says that", text::words::alternatives(Mode::WORDS))
    )]
    mode: Mode,
    /// Longest packet that the network between the balancer and this server carries, for the segments that fit into a tunnel
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u16).range(576..))]
    mtu: u16,
}

const STATE: &str = "/var/lib/penstock";

const EXAMPLES: &str = "\
Examples:
  penstock backend verify --vip 192.0.2.10:80
  penstock backend setup --vip 192.0.2.10 --vip 2001:db8::10 --apply --persist netplan
  penstock backend setup --vip 192.0.2.10 --mode ipip --apply
  penstock backend setup --vip 192.0.2.10 > vip.sh && penstock run -w 'web[1-3]' --script vip.sh
  penstock backend undo --vip 192.0.2.10";

const VERIFY_EXAMPLES: &str = "\
Examples:
  penstock backend verify --vip 192.0.2.10
  penstock backend verify --vip 192.0.2.10:53 --transport udp --interface eth0
  penstock run -w 'web[1-3]' -- penstock backend verify --vip 192.0.2.10:80

Exit codes: 0 all is well; 1 something is not, or this machine could not be read; 2 wrong usage.";

const SETUP_EXAMPLES: &str = "\
Examples:
  penstock backend setup --vip 192.0.2.10                            shows what it is
  penstock backend setup --vip 192.0.2.10 --apply --persist ifupdown
  penstock backend setup --vip 192.0.2.10 > vip.sh && penstock run -w 'web[1-3]' --script vip.sh
  penstock run -w 'web[1-3]' -- penstock backend setup --vip 192.0.2.10 --apply

Exit codes: 0 done, and all is well; 1 it failed, or something is left that it does not mend; 2 wrong usage.";

const UNDO_EXAMPLES: &str = "\
Examples:
  penstock backend undo --vip 192.0.2.10";

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::Verify(arguments) => verify(arguments),
        Command::Setup(arguments) => setup(arguments),
        Command::Undo(arguments) => {
            for vip in &arguments.vip {
                backend_host::undo(vip.ip, &arguments.state, say).map_err(Failure::runtime)?;
            }
            Ok(())
        }
    }
}

fn verify(arguments: &Verify) -> Result<(), Failure> {
    let (vips, tunnelled) = arguments.vips.all(arguments.transport)?;
    let mut facts = facts(&arguments.vips)?;
    backend_host::read_rules(&mut facts, &tunnelled);
    let conf = arguments.vips.interface.as_deref();
    let mut found = examine(&facts, &vips, conf, backend_host::listening);
    found.extend(tunnelled.iter().flat_map(|ip| tunnel::findings(&facts, *ip, arguments.vips.mtu)));
    let is_well = !found.iter().any(Finding::is_fault);
    if arguments.json {
        let all: Vec<_> = vips.iter().map(ToString::to_string).collect();
        let report = json!({
            "ok": is_well,
            "vips": all,
            "interfaces": facts.interfaces,
            "findings": findings::json(&found),
        });
        print_json(&format!("{report:#}\n"))?;
    } else {
        let text = plain_lines(&findings::text(&found));
        if !is_well {
            return Err(print_failed(&text, 1));
        }
        print(&text)?;
    }
    if is_well { Ok(()) } else { Err(Failure::Status(1)) }
}

/// Everything that is found of these addresses.
fn examine(
    facts: &Facts,
    vips: &[Vip],
    interface: Option<&str>,
    listening: fn(&Vip) -> Option<Listening>,
) -> Vec<Finding> {
    let mut found = Vec::new();
    if vips.iter().any(|vip| vip.ip.is_ipv4()) {
        found.extend(verify::settings(facts, interface.unwrap_or(ALL)));
    }
    for vip in vips {
        // Without the address, a connection would go to another machine.
        let listening = if facts.has(vip.ip) { listening(vip) } else { None };
        found.extend(verify::address(facts, vip, listening));
    }
    found
}

fn setup(arguments: &Setup) -> Result<(), Failure> {
    let (vips, tunnelled) = arguments.vips.all(Transports::Tcp)?;
    if let Some(persist) = arguments.persist.filter(|_| !tunnelled.is_empty()) {
        return Err(Failure::usage(format_args!(
            "--persist {persist} does not know tunnels yet\n  hint: without it, run what is printed at each start of the machine"
        )));
    }
    let tunnels = (&tunnelled[..], arguments.vips.mtu);
    let mut ips: Vec<IpAddr> = Vec::new();
    for vip in &vips {
        if !ips.contains(&vip.ip) {
            ips.push(vip.ip);
        }
    }
    let interface = arguments.vips.interface.clone();
    // Of another machine, for which a script may be, nothing is known here.
    let here = backend_host::facts(None).unwrap_or_default();
    if let Some(own) = ips.iter().find_map(|ip| verify::own_address(&here, *ip)) {
        return Err(Failure::usage(format_args!(
            "{}\n  hint: --vip is the address of the service, which clients know and the balancer answers for",
            plain(&own)
        )));
    }
    if !arguments.apply {
        if let Some(name) = interface.as_deref().filter(|name| !logic::dsr::backend_host::undo::is_conf(name))
        {
            let name = plain(name);
            return Err(Failure::usage(format_args!("{name:?} is no name of a network interface")));
        }
        return print(&setup::script(&ips, interface.as_deref(), arguments.persist, tunnels));
    }
    // Wrong names are wrong usage, before anything is changed.
    facts(&arguments.vips)?;
    let order = Order {
        vips: ips,
        interface,
        persist: arguments.persist,
        tunnelled: (tunnelled.clone(), arguments.vips.mtu),
        state: arguments.state.clone(),
    };
    backend_host::apply(&order, say).map_err(Failure::runtime)?;
    let mut facts = facts(&arguments.vips)?;
    backend_host::read_rules(&mut facts, &tunnelled);
    let mut found = examine(&facts, &vips, order.interface.as_deref(), |_| None);
    found.extend(tunnelled.iter().flat_map(|ip| tunnel::findings(&facts, *ip, arguments.vips.mtu)));
    let left: Vec<_> = found.into_iter().filter(Finding::is_fault).collect();
    if left.is_empty() {
        let lasts = match order.persist {
            Some(_) => "",
            None if tunnelled.is_empty() => ", until it starts again: --persist makes it last",
            None => ", until it starts again: run what `backend setup` prints at each start",
        };
        return say_result(&format!("ok: this server is set up for {}{lasts}\n", names(&order.vips)));
    }
    complain("error: this is left, and `setup` does not mend it:\n");
    Err(print_failed(&plain_lines(&findings::text(&left)), 1))
}

fn say_result(text: &str) -> Result<(), Failure> {
    print(&plain_lines(text))
}

fn names(ips: &[IpAddr]) -> String {
    ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}

/// Tells a step. It is done whether or not anybody reads this.
fn say(text: &str) {
    let _ = print(&format!("{}\n", plain(text)));
}

fn facts(vips: &Vips) -> Result<Facts, Failure> {
    backend_host::facts(vips.interface.as_deref()).map_err(|error| match error {
        backend_host::HostError::NoInterface(_) | backend_host::HostError::OnLoopback => {
            Failure::usage(plain(&error.to_string()))
        }
        error => Failure::runtime(error),
    })
}

impl Vips {
    /// The addresses of the command line and of the configuration, each once, and those whose packets come through tunnels.
    /// `transports` is that of the command line.
    fn all(&self, transports: Transports) -> Result<(Vec<Vip>, Vec<IpAddr>), Failure> {
        let written = |vip: &VipText| Vip { ip: vip.ip, service: vip.port.map(|port| (port, transports)) };
        let mut all: Vec<_> = self.vip.iter().map(written).collect();
        let mut tunnelled: Vec<IpAddr> = Vec::new();
        let mut add = |ip: IpAddr, mode: Mode| {
            if mode == Mode::Ipip && !tunnelled.contains(&ip) {
                tunnelled.push(ip);
            }
        };
        self.vip.iter().for_each(|vip| add(vip.ip, self.mode));
        if let Some(file) = &self.config {
            let loaded = load::file(file, &load::environment())?;
            for listener in &loaded.config.listeners {
                let Some(dsr) = listener.dsr() else { continue };
                let addresses = listener.binds.iter().filter_map(config::types::BindAddress::vip);
                addresses.clone().for_each(|vip| add(vip.ip(), dsr.mode));
                // Of an address with every port none is the service's own.
                let service = |port| (port != 0).then_some((port, dsr.transports));
                all.extend(addresses.map(|vip| Vip { ip: vip.ip(), service: service(vip.port()) }));
            }
            if all.is_empty() {
                return Err(Failure::usage(format_args!(
                    "{} has no listener with protocol = \"dsr\"\n  hint: --vip 192.0.2.10 names an address",
                    plain(&file.display().to_string())
                )));
            }
        }
        if all.is_empty() {
            return Err(Failure::usage(
                "no address is named\n  hint: --vip 192.0.2.10, or --config FILE with the configuration of the balancer",
            ));
        }
        let mut each: Vec<Vip> = Vec::new();
        for vip in all {
            if !each.contains(&vip) {
                each.push(vip);
            }
        }
        Ok((each, tunnelled))
    }
}
