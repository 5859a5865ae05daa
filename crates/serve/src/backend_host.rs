//! A server behind a `dsr` listener, which this machine is: reads what it has, sets it up, and takes that back. What is
//! needed is decided by `crates/logic/src/dsr/backend_host.rs`; what a set-up has changed is kept by
//! `crates/serve/src/backend_host/record.rs`, and `crates/serve/src/backend_host/tunnel.rs` is about tunnels to it.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use logic::dsr::Transports;
use logic::dsr::backend_host::persist::{File, MARK, Persist, files};
use logic::dsr::backend_host::settings::{Set, usual};
use logic::dsr::backend_host::setup::{Step, steps, tunnel_steps};
use logic::dsr::backend_host::tunnel::Lacks;
use logic::dsr::backend_host::undo::{self, Before, Changed};
use logic::dsr::backend_host::verify::Listening;
use logic::dsr::backend_host::{ALL, Address, Facts, Key, LOOPBACK, Vip, default_routes, receives, single};
use sys::interfaces::{self, Kind, Link};

mod machine;
mod record;
mod tunnel;

pub use machine::HostError;
use machine::{program, read_setting, setting_path};
use record::Records;
pub use tunnel::read_rules;

/// Reads what this machine has. `interface` is where packets of clients come in; `None`: the one of the default route, or
/// all that answer ARP requests.
pub fn facts(interface: Option<&str>) -> Result<Facts, HostError> {
    let all = interfaces::all().map_err(HostError::Network)?;
    // Without IPv4 there is no such file.
    let routes = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    let default_routes = default_routes(&routes);
    let chosen = match interface {
        Some(LOOPBACK) => return Err(HostError::OnLoopback),
        Some(name) if all.iter().any(|one| one.name == name) => vec![name.to_owned()],
        Some(name) => return Err(HostError::NoInterface(name.to_owned())),
        None if !default_routes.is_empty() => default_routes.clone(),
        None => {
            let answers = all.iter().filter(|one| one.kind == Kind::Answers && one.link != Link::Down);
            answers.map(|one| one.name.clone()).collect()
        }
    };
    let addresses = all.iter().flat_map(|one| {
        let of = |address: &interfaces::Address| Address {
            interface: one.name.clone(),
            ip: address.ip,
            prefix: address.prefix,
        };
        one.addresses.iter().map(of).collect::<Vec<_>>()
    });
    let mut facts = Facts { addresses: addresses.collect(), default_routes, ..Facts::default() };
    for conf in chosen.iter().map(String::as_str).chain([ALL]) {
        for key in Key::ALL {
            read_setting(&mut facts, conf, *key)?;
        }
    }
    facts.interfaces = chosen;
    tunnel::read(&mut facts, &all)?;
    Ok(facts)
}

/// Whether a process of this machine serves an address that the machine has. `None` without a port.
pub fn listening(vip: &Vip) -> Option<Listening> {
    let (port, transports) = vip.service?;
    let address = SocketAddr::new(vip.ip, port);
    let each = match transports {
        Transports::Tcp => vec![tcp(address)],
        Transports::Udp => vec![udp(address)],
        Transports::TcpAndUdp => vec![tcp(address), udp(address)],
    };
    let worst = each.iter().find(|one| **one != Listening::Yes);
    Some(worst.copied().unwrap_or(Listening::Yes))
}

/// A connection tells more than the list of sockets: one of IPv6 may take IPv4 as well, or not.
fn tcp(address: SocketAddr) -> Listening {
    match TcpStream::connect_timeout(&address, PATIENCE) {
        Ok(_) => Listening::Yes,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Listening::No,
        Err(_) => Listening::Silent,
    }
}

const PATIENCE: Duration = Duration::from_secs(1);

fn udp(address: SocketAddr) -> Listening {
    let lists = ["/proc/net/udp", "/proc/net/udp6"];
    let has = |list: &&str| std::fs::read_to_string(list).is_ok_and(|text| receives(&text, address));
    if lists.iter().any(has) { Listening::Yes } else { Listening::No }
}

/// A set-up of this machine.
#[derive(Debug)]
pub struct Order {
    pub vips: Vec<IpAddr>,
    pub interface: Option<String>,
    pub persist: Option<Persist>,
    /// Those whose packets come through tunnels, and the MTU of these.
    pub tunnelled: (Vec<IpAddr>, u16),
    /// Directory of what was there before.
    pub state: PathBuf,
}

/// Does what this machine lacks. `tell` is called after each step. After an error, [`undo()`] takes back what was done.
pub fn apply(order: &Order, mut tell: impl FnMut(&str)) -> Result<(), HostError> {
    let facts = facts(order.interface.as_deref())?;
    let conf = order.interface.as_deref().unwrap_or(ALL);
    for file in order.vips.iter().flat_map(|ip| files_of(order.persist, *ip, &usual(conf))) {
        content(&file)?;
    }
    let mut records = Records::open(&order.state)?;
    let (tunnelled, mtu) = (&order.tunnelled.0, order.tunnelled.1);
    let facts = match &tunnelled[..] {
        [] => facts,
        _ => {
            let mut facts = facts;
            tunnel::read_rules(&mut facts, tunnelled);
            for step in tunnel_steps(tunnelled, &facts, mtu) {
                let Step::Tunnel(lacks) = step else { continue };
                let (Lacks::Device(ip) | Lacks::Rule(ip, _)) = lacks;
                let before = records.of(ip).clone();
                match lacks {
                    Lacks::Device(_) => records.of(ip).tunnel.has_device = true,
                    Lacks::Rule(..) => records.of(ip).tunnel.has_table = true,
                }
                records.save(ip)?;
                if let Err(error) = tunnel::make(lacks) {
                    *records.of(ip) = before;
                    records.save(ip)?;
                    return Err(error);
                }
                tell(&Step::Tunnel(lacks).command());
            }
            self::facts(order.interface.as_deref())?
        }
    };
    for step in steps(&order.vips, &facts, order.interface.as_deref()) {
        // Settings are for all IPv4 addresses: the first one has them until it is undone.
        let ip = match &step {
            Step::Add(ip) => Some(*ip),
            Step::Set(_) => order.vips.iter().find(|ip| ip.is_ipv4()).copied(),
            Step::Tunnel(_) => None,
        };
        let Some(ip) = ip else { continue };
        let before = records.of(ip).clone();
        let record = records.of(ip);
        let was = match &step {
            Step::Add(_) => {
                record.address = Before::Absent;
                String::new()
            }
            Step::Set(set) => {
                let from = facts.value(&set.conf, set.key);
                record.note(Changed { set: set.clone(), from });
                format!("   # it was {from}")
            }
            Step::Tunnel(_) => String::new(),
        };
        // Before the change: after a crash it can be taken back.
        records.save(ip)?;
        if let Err(error) = perform(&step) {
            *records.of(ip) = before;
            records.save(ip)?;
            return Err(error);
        }
        tell(&format!("{}{was}", step.command()));
    }
    for ip in &order.vips {
        if ip.is_ipv4() {
            records.keep(*ip)?;
        }
        let mut sets = usual(conf).to_vec();
        let more: Vec<_> = records.of(*ip).settings.iter().map(|changed| changed.set.clone()).collect();
        sets.extend(
            more.into_iter()
                .filter(|set| !sets.iter().any(|one| one.path() == set.path()))
                .collect::<Vec<_>>(),
        );
        for file in files_of(order.persist, *ip, &sets) {
            let is_new = content(&file)?.is_none_or(|text| text != file.text);
            records.of(*ip).note_file(file.clone());
            records.save(*ip)?;
            if is_new {
                write(&file)?;
                tell(&format!("wrote {}", file.path));
            }
        }
    }
    Ok(())
}

fn files_of(persist: Option<Persist>, ip: IpAddr, sets: &[Set]) -> Vec<File> {
    persist.map(|persist| files(persist, ip, sets)).unwrap_or_default()
}

fn perform(step: &Step) -> Result<(), HostError> {
    match step {
        Step::Set(set) => write_setting(set),
        Step::Add(address) => ip("add", *address),
        Step::Tunnel(lacks) => tunnel::make(*lacks),
    }
}

fn write_setting(set: &Set) -> Result<(), HostError> {
    let path = setting_path(set);
    std::fs::write(&path, set.to.to_string()).map_err(|error| HostError::Write(path, error))
}

/// Adds an address to the loopback interface, or deletes it there.
fn ip(verb: &str, address: IpAddr) -> Result<(), HostError> {
    let place = format!("{address}/{}", single(address));
    program("ip", &["address", verb, &place, "dev", LOOPBACK], "iproute2").map(drop).map_err(|error| {
        match (error, address) {
            (HostError::Program(words, said), IpAddr::V6(_)) if verb == "add" => {
                let hint = "`sysctl net.ipv6.conf.lo.disable_ipv6` tells whether IPv6 is switched off";
                HostError::Program(words, format!("{said} ({hint})"))
            }
            (error, _) => error,
        }
    })
}

/// The text of a file of ours; `None` if there is none. Another file in its place is an error.
fn content(file: &File) -> Result<Option<String>, HostError> {
    let path = PathBuf::from(&file.path);
    let bytes = match sys::file::read(&path, LONGEST) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(HostError::Read(path, error)),
    };
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match text.lines().next() {
        Some(first) if first.contains(MARK) => Ok(Some(text)),
        _ => Err(HostError::Foreign(path)),
    }
}

/// Longer than any file of ours.
const LONGEST: u64 = 1 << 20;

fn write(file: &File) -> Result<(), HostError> {
    use std::os::unix::fs::PermissionsExt;
    let path = PathBuf::from(&file.path);
    let directory = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(directory)
        .and_then(|()| state::state_directory::write(&path, file.text.as_bytes()))
        .and_then(|()| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(file.mode)))
        .map_err(|error| HostError::Write(path, error))
}

/// Takes back what the set-up of an address has changed. `tell` is called for each step, and for what stays.
pub fn undo(address: IpAddr, state: &Path, mut tell: impl FnMut(&str)) -> Result<(), HostError> {
    let none = || HostError::NoRecord(record::path(state, address));
    if !state.exists() {
        return Err(none());
    }
    let mut records = Records::open(state)?;
    let record = records.existing(address).cloned().ok_or_else(none)?;
    let mut facts = facts(None)?;
    for changed in &record.settings {
        read_setting(&mut facts, &changed.set.conf, changed.set.key)?;
    }
    let others: Vec<_> = records.others(address).cloned().collect();
    let undo = undo::undo(&record, &others, &facts);
    if let Some((heir, settings)) = undo.handed_over {
        let heir = others[heir].ip;
        settings.into_iter().for_each(|changed| records.of(heir).note(changed));
        records.save(heir)?;
    }
    // The address first: without it no ARP request is answered for it.
    if let Some(address) = undo.address {
        ip("del", address)?;
        tell(&format!("ip address del {address}/{} dev {LOOPBACK}", single(address)));
    }
    for set in &undo.settings {
        write_setting(set)?;
        tell(&set.command());
    }
    tunnel::take_back(undo.table, undo.device, &mut tell)?;
    let mut stays = undo.stays;
    for file in &undo.files {
        match content(file) {
            Ok(None) => {}
            Ok(Some(text)) if text == file.text => {
                let path = Path::new(&file.path);
                std::fs::remove_file(path).map_err(|error| HostError::Write(path.to_owned(), error))?;
                if let Some(directory) = path.parent().filter(|_| file.path.contains(".network.d/")) {
                    // Made for such files: it goes with the last one, and stays with any other one in it.
                    let _ = std::fs::remove_dir(directory);
                }
                tell(&format!("removed {}", file.path));
            }
            Ok(Some(_)) | Err(HostError::Foreign(_)) => {
                stays.push(format!("{}: it was changed since", file.path))
            }
            Err(error) => return Err(error),
        }
    }
    stays.iter().for_each(|what| tell(&format!("# stays: {what}")));
    records.forget(address)
}
