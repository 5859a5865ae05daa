//! Where packets of one address of a `dsr` listener are forwarded: opens the best rung that works, while the process still
//! has the rights for it. `crates/logic/src/dsr/path.rs` says which ones are tried.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use config::types::DsrSettings;
use logic::dsr::path::{
    Card, DataPath as Asked, LOST_BY_PROXY, OF_NAMESPACE, Refusal, Rung, ladder, without_packets,
};
use sys::bpf::{AttachedProgram, BpfError, Hook, Pins, Program, Unpinned, end_with_namespace};
use sys::interfaces::DriverFeatures;

use crate::lock::lock;

mod beside;
mod stale;

use beside::Beside;

pub use stale::{Overlap, StalePrograms, overlapping};

/// The rung of an address.
#[derive(Debug)]
pub struct DataPath {
    /// The program in the kernel; `None` with a packet socket.
    pub attached: Option<AttachedProgram>,
    /// The program of an earlier process that had another path; it goes away when this one is kept.
    pub earlier: Option<Pins>,
    /// What tells whether packets that the program sends arrive, where that can change.
    pub driver: Option<DriverFeatures>,
    pub report: PathReport,
}

/// What is said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathReport {
    pub rung: Rung,
    /// Where the program sits, if there is one.
    pub hook: Option<Hook>,
    /// Rungs that are not used, with reasons.
    pub refused: Vec<Refusal>,
    /// Why the program ends with the process, if it does.
    pub unpinned: Option<String>,
    pub before: Before,
}

/// What an earlier process had left in the place of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    Nothing,
    /// A program, whose flows go on.
    Program,
    /// A program whose maps have another form: its flows are forgotten.
    OtherForm,
}

impl PathReport {
    /// `packets are forwarded by the kernel (tc); xdp: eth0 is a virtual interface (veth): ...`
    pub fn line(&self) -> String {
        let refused = self.refused.iter().map(|one| format!("; {}: {}", one.rung, one.reason));
        let unpinned = self.unpinned.iter().map(|why| format!("; a crash of this process ends it: {why}"));
        if self.rung == Rung::Proxy {
            let refused: String = refused.collect();
            return format!(
                "no packet is forwarded: connections and datagrams are taken by this process (proxy): {LOST_BY_PROXY}{refused}"
            );
        }
        let by = match self.rung {
            Rung::AfPacket => "this process (af_packet)".to_owned(),
            rung if self.hook == Some(Hook::TcFilter) => {
                format!("the kernel ({rung}, by a filter of clsact: TCX needs Linux 6.6)")
            }
            rung => format!("the kernel ({rung})"),
        };
        let before = match self.before {
            Before::Nothing => "",
            Before::Program => ", in the place of the program that an earlier start had left",
            Before::OtherForm => {
                ", in the place of the program that an earlier start had left, whose flows are forgotten: its maps have another form"
            }
        };
        format!("packets are forwarded by {by}{before}{}", refused.chain(unpinned).collect::<String>())
    }
}

/// Opens the path for an address on an interface.
pub fn open(listener: &str, vip: SocketAddr, settings: &DsrSettings, index: u32) -> Result<DataPath, String> {
    let interface = &*settings.interface;
    let (rungs, mut refused) = ladder(settings.data_path, interface, &card(interface));
    let name = name_of(interface, listener, vip);
    if let Err(taken @ Unpinned::Taken(_)) = Pins::open_existing(&name) {
        return Err(format!("{taken}: it forwards what comes to this address on {interface}"));
    }
    let owner = lock(&stale::START).owner.clone();
    let beside = Beside::look(interface, index, &name, owner.as_deref());
    for rung in rungs {
        let hooks: &[Hook] = match rung {
            Rung::Xdp => &[Hook::Xdp],
            Rung::XdpGeneric => &[Hook::XdpGeneric],
            Rung::Tc => of_tc(),
            // `crates/state/src/listen/proxied.rs` has it.
            Rung::Proxy => continue,
            Rung::AfPacket => {
                let earlier = Pins::open_existing(&name).ok();
                let report =
                    PathReport { rung, hook: None, refused, unpinned: None, before: Before::Nothing };
                return Ok(DataPath { attached: None, earlier, driver: None, report });
            }
        };
        if let Some(reason) = beside.refusal(rung, interface) {
            refused.push(Refusal { rung, reason });
            continue;
        }
        match first_that_works(&name, hooks, settings, index) {
            Ok(Opened { attached, unpinned, maps }) => {
                let before = match (attached.goes_on(), maps) {
                    (true, Maps::Usable) => Before::Program,
                    (_, Maps::OtherForm) => Before::OtherForm,
                    (false, Maps::Usable) => Before::Nothing,
                };
                let hook = Some(attached.hook());
                let report = PathReport { rung, hook, refused, unpinned, before };
                let driver = driver_to_ask(rung, interface);
                return Ok(DataPath { attached: Some(attached), earlier: None, driver, report });
            }
            Err(reason) => refused.push(Refusal { rung, reason }),
        }
    }
    let _ = Pins::open_existing(&name).map(|pins| pins.remove_unused());
    let reasons: Vec<_> = refused.iter().map(|one| format!("{}: {}", one.rung, one.reason)).collect();
    Err(format!("{}; data-path = \"auto\" takes what works", reasons.join("; ")))
}

/// Why a start would refuse the path that the configuration asks for, as far as that can be seen without attaching a program.
pub fn refusal(listener: &str, vip: SocketAddr, settings: &DsrSettings) -> Option<String> {
    let interface = &*settings.interface;
    let rung = match settings.data_path {
        Asked::Tc => Rung::Tc,
        Asked::XdpGeneric => Rung::XdpGeneric,
        Asked::Auto | Asked::Xdp | Asked::AfPacket | Asked::Proxy => return None,
    };
    let index = sys::packet::index_of(interface)?;
    Beside::look(interface, index, &name_of(interface, listener, vip), None).refusal(rung, interface)
}

/// The last rung, which needs no packet. `why` no packet can be had; `None`: none is asked for.
pub fn proxied(listener: &str, vip: SocketAddr, settings: &DsrSettings, why: Option<&str>) -> DataPath {
    let interface = &*settings.interface;
    let refused = why.map_or(Vec::new(), |why| without_packets(interface, &card(interface), why));
    let report =
        PathReport { rung: Rung::Proxy, hook: None, refused, unpinned: None, before: Before::Nothing };
    let earlier = Pins::open_existing(&name_of(interface, listener, vip)).ok();
    DataPath { attached: None, earlier, driver: None, report }
}

/// Name of the program of an address, and of its maps.
fn name_of(interface: &str, listener: &str, vip: SocketAddr) -> String {
    format!("{interface}-{listener}-{}-{}", vip.ip(), vip.port())
}

/// How a program comes behind the driver: the older way where the kernel does not have TCX. Tests ask for that one.
fn of_tc() -> &'static [Hook] {
    match std::env::var_os("PENSTOCK_TEST_WITHOUT_TCX") {
        Some(_) => &[Hook::TcFilter],
        None => &[Hook::Tc, Hook::TcFilter],
    }
}

struct Opened {
    attached: AttachedProgram,
    unpinned: Option<String>,
    maps: Maps,
}

/// Maps that an earlier process has left, if there are any.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Maps {
    Usable,
    OtherForm,
}

fn first_that_works(
    name: &str,
    hooks: &[Hook],
    settings: &DsrSettings,
    index: u32,
) -> Result<Opened, String> {
    let mut reasons = Vec::new();
    for hook in hooks {
        match open_program(name, *hook, settings, index) {
            Ok(opened) => return Ok(opened),
            Err(NotOpened::WithoutTcx(reason)) => reasons.push(reason),
            Err(NotOpened::Other(reason)) => {
                reasons.push(reason);
                break;
            }
        }
    }
    Err(reasons.join("; as a filter of clsact: "))
}

/// Why a program is not on its interface.
enum NotOpened {
    /// The kernel does not have TCX.
    WithoutTcx(String),
    Other(String),
}

impl NotOpened {
    fn new(error: &BpfError) -> Self {
        match error {
            BpfError::TooOld(_) => Self::WithoutTcx(error.to_string()),
            BpfError::Unsupported(_, cause) if cause.kind() == io::ErrorKind::Unsupported => {
                Self::WithoutTcx(error.to_string())
            }
            _ => Self::Other(error.to_string()),
        }
    }
}

fn open_program(name: &str, hook: Hook, settings: &DsrSettings, index: u32) -> Result<Opened, NotOpened> {
    let (pins, unpinned) = match Pins::open(name) {
        Ok(pins) => {
            // Without it a later start leaves the program alone.
            let _ = lock(&stale::START).owner.as_deref().map(|owner| pins.set_owner(owner));
            (Some(pins), end_with_namespace().then(|| OF_NAMESPACE.to_owned()))
        }
        Err(had @ (Unpinned::Taken(_) | Unpinned::Foreign(_))) => {
            return Err(NotOpened::Other(had.to_string()));
        }
        Err(error @ Unpinned::Io(..)) => (None, Some(error.to_string())),
    };
    let flows = u32::try_from(settings.max_flows).unwrap_or(u32::MAX);
    let has_maps = pins.as_ref().is_some_and(Pins::has_maps);
    let start = lock(&stale::START);
    let (program, maps) = match Program::load(hook, flows, pins) {
        // The kernel may say this in many ways; without those maps the program is taken. What is in them is lost, and the program
        // that has them goes on until this one is in its place.
        Err(_) if has_maps && Program::load(hook, 0, None).is_ok() => {
            let again = Pins::open(name).map_err(|error| NotOpened::Other(error.to_string()))?;
            (Program::load_anew(hook, flows, again), Maps::OtherForm)
        }
        loaded => (loaded, Maps::Usable),
    };
    let attached = program.and_then(|program| program.attach(&settings.interface, index, &start.stale));
    attached.map(|attached| Opened { attached, unpinned, maps }).map_err(|error| NotOpened::new(&error))
}

/// What a veth does with packets of XDP depends on the interface at its other end. All other drivers that take a program send
/// what it gives back. The socket is opened while the process may.
fn driver_to_ask(rung: Rung, interface: &str) -> Option<DriverFeatures> {
    let is_veth = card(interface) == Card::Virtual("veth".to_owned());
    (rung == Rung::Xdp && is_veth).then(DriverFeatures::open)?.ok()
}

/// What kind of network interface this is.
pub fn card(interface: &str) -> Card {
    match sys::interfaces::driver(interface) {
        Ok((driver, bus)) if !bus.is_empty() && bus != "N/A" && driver != "virtio_net" => Card::Physical,
        Ok((driver, _)) if !driver.is_empty() => Card::Virtual(driver),
        _ => Card::Virtual("no driver".to_owned()),
    }
}

// What `logic` writes is what the program reads.
const _: () = {
    use logic::dsr::image::{BACKENDS, BackendWords, ServiceWords};
    assert!(BACKENDS == sys::bpf::BACKENDS && 2 * logic::dsr::image::PORTS == sys::bpf::TAKEN);
    assert!(logic::balance::maglev::SLOTS == sys::bpf::SLOTS);
    assert!(2 * logic::dsr::image::ID_SLOTS == sys::bpf::IDS);
    assert!(
        size_of::<ServiceWords>() == 8 * sys::bpf::SERVICE
            && size_of::<BackendWords>() == 8 * sys::bpf::BACKEND
    );
};

impl DataPath {
    /// Whether CAP_NET_ADMIN is needed to take the program away.
    pub fn needs_rights(&self) -> bool {
        self.attached.as_ref().is_some_and(AttachedProgram::needs_rights)
            || self.earlier.as_ref().is_some_and(Pins::needs_rights)
    }

    /// Directory of the program's names, for the user that the process becomes.
    pub fn directory(&self) -> Option<PathBuf> {
        match &self.attached {
            Some(attached) => attached.directory(),
            None => self.earlier.as_ref().map(Pins::by_descriptor),
        }
    }

    /// The start has succeeded. Without this, what was there before the start is there again when this is dropped. An error
    /// means that the program of an earlier process forwards on beside this path.
    pub fn keep(&mut self) -> io::Result<()> {
        if let Some(attached) = &mut self.attached {
            attached.keep();
        }
        self.earlier.take().map_or(Ok(()), |earlier| earlier.remove())
    }
}
