//! Programs in the kernel (bpf(2)) that forward the packets of a `dsr` service: `crates/sys/bpf/dsr.bpf.c`.
//!
//! 1. [`Program::load`] makes the maps, or takes over those that an earlier process has pinned (`crates/sys/src/bpf/pins.rs`),
//!    and gives the program to the kernel. It needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, and so does
//! 2. [`Program::attach`], which puts the program on a network interface, or in the place of the one that an earlier process
//!    has left there.
//! 3. [`AttachedProgram`] is what stays: memory that the program reads and writes (`crates/sys/src/bpf/memory.rs`), for which no
//!    system call and no right is needed. Only a look at the table of flows is a call (`crates/sys/src/bpf/calls.rs`).

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use aya::maps::Map;
use aya::programs::{SchedClassifier, Xdp};
use aya::{Ebpf, EbpfLoader, TestRun, TestRunOptions, VerifierLogLevel};

mod beside;
mod calls;
mod clsact;
mod earlier;
mod hook;
mod memory;
mod pins;
mod place;

pub use beside::{behind_driver, generic};
pub use calls::{AFTER_START, Look, coarse_now};
use earlier::{Earlier, Taken};
pub use hook::Hook;
use memory::Memory;
use pins::{FlowsName, MAPS};
pub use pins::{
    Named, Pins, StalePins, Unpinned, directory_of, end_with_namespace, look, named, remove_empty,
};
use place::Place;

static TC: &[u8] = aya::include_bytes_aligned!("../bpf/dsr-tc.bpf.o");
static XDP: &[u8] = aya::include_bytes_aligned!("../bpf/dsr-xdp.bpf.o");

const NAME: &str = "penstock_dsr";

/// Words of the maps' values, as the program has them.
pub const SERVICE: usize = 12;
/// Two tables, each with a number of four bytes for every slot; the last half word is not used.
const TABLE: usize = SLOTS.div_ceil(2);
pub const SLOTS: usize = 65_537;
pub const BACKENDS: usize = 4096;
pub const BACKEND: usize = 7;
const COUNTERS: usize = 8;
const TALLY: usize = 4;
/// A bit for each port of TCP, then of UDP.
pub const TAKEN: usize = 2 * 65_536 / 64;
/// Words of each of the two tables of servers by their numbers.
pub const IDS: usize = 2 * 32_768;

/// Fewest flows of a table: the kernel throws away many at once when it is full.
const FEWEST_FLOWS: u32 = 4096;

/// Why a program does not forward packets.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    #[error("the kernel does not take the program: {}", chain(&**.0))]
    Load(Box<dyn std::error::Error + Send + Sync>),
    #[error(
        "it needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON at the start of the process; under systemd, SystemCallFilter= of the unit must allow bpf"
    )]
    NotPermitted,
    #[error(
        "the kernel has no bpf(2) (ENOSYS): it is built without CONFIG_BPF_SYSCALL, or a filter of system calls hides it; under systemd, SystemCallFilter= of the unit must allow bpf"
    )]
    NoCall,
    #[error("{0} is needed, or the kernel lacks what this program uses (EINVAL)")]
    TooOld(&'static str),
    #[error(
        "an XDP program is on {0} already, and it takes one: of another address of penstock, or of another owner; `bpftool net show dev {0}` names it"
    )]
    Occupied(String),
    #[error("the kernel does not attach it to {0}: {1}")]
    Unsupported(String, io::Error),
    #[error("its maps: {0}")]
    Maps(#[from] io::Error),
    /// Those that an earlier process has left are smaller than this program's.
    #[error("the maps of an earlier process have another form: {0} has {1} words instead of {2}")]
    OtherForm(String, usize, usize),
}

fn chain(error: &(dyn std::error::Error + Send + Sync + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        next = cause.source();
    }
    // The verifier tells a long story in many lines.
    text.lines().next().unwrap_or_default().chars().take(300).collect()
}

fn load_error(error: impl std::error::Error + Send + Sync + 'static) -> BpfError {
    refused(errno_of(&error)).unwrap_or_else(|| BpfError::Load(Box::new(error)))
}

/// Translates an errno with which the kernel refuses bpf(2) as a whole. `None`: another error, of this call alone.
fn refused(errno: Option<i32>) -> Option<BpfError> {
    match errno {
        Some(nix::libc::EPERM | nix::libc::EACCES) => Some(BpfError::NotPermitted),
        Some(nix::libc::ENOSYS) => Some(BpfError::NoCall),
        _ => None,
    }
}

/// The error of the kernel below an error of the library.
fn errno_of(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return io.raw_os_error();
        }
        next = error.source();
    }
    None
}

/// A program in the kernel that is on no interface yet.
pub struct Program {
    ebpf: Ebpf,
    hook: Hook,
    maps: Maps,
    pins: Option<(Pins, FlowsName)>,
}

struct Maps {
    service: Memory,
    rings: Memory,
    backends: Memory,
    counters: Memory,
    tallies: Memory,
    taken: Memory,
    ids: Memory,
    flows: OwnedFd,
    fragments: OwnedFd,
    cpus: usize,
}

impl Program {
    /// Gives a program to the kernel, with room for `flows`. With `pins` its maps outlive the process, and those of an earlier
    /// one go on.
    pub fn load(hook: Hook, flows: u32, pins: Option<Pins>) -> Result<Self, BpfError> {
        let flows = flows.max(FEWEST_FLOWS);
        let pins = pins.map(|pins| {
            let name = FlowsName::choose(&pins, flows);
            (pins, name)
        });
        Self::load_with(hook, flows, pins)
    }

    /// The same with maps of its own beside those of an earlier process, which have another form. They take the names of those
    /// when the start has succeeded: until then the earlier program goes on with what it has.
    pub fn load_anew(hook: Hook, flows: u32, pins: Pins) -> Result<Self, BpfError> {
        let flows = flows.max(FEWEST_FLOWS);
        let name = FlowsName::anew(&pins, flows);
        Self::load_with(hook, flows, Some((pins, name)))
    }

    fn load_with(hook: Hook, flows: u32, pins: Option<(Pins, FlowsName)>) -> Result<Self, BpfError> {
        let cpus = calls::cpus()?;
        let paths =
            pins.as_ref().map(|(pins, flows)| MAPS.map(|name| (name, pins.path(&flows.of_map(name)))));
        let mut loader = EbpfLoader::new();
        loader
            .btf(None)
            .verifier_log_level(VerifierLogLevel::DISABLE)
            .map_max_entries("flows", flows)
            .map_max_entries("counters", cpus as u32)
            .map_max_entries("tallies", (cpus * BACKENDS) as u32);
        for (name, path) in paths.iter().flatten() {
            loader.map_pin_path(name, path.as_path());
        }
        let bytes = if hook.is_tc() { TC } else { XDP };
        let mut ebpf = loader.load(bytes).map_err(load_error)?;
        let program = ebpf.program_mut(NAME).ok_or_else(unknown)?;
        match hook {
            Hook::Tc | Hook::TcFilter => {
                <&mut SchedClassifier>::try_from(program).map_err(load_error)?.load()
            }
            Hook::Xdp | Hook::XdpGeneric => <&mut Xdp>::try_from(program).map_err(load_error)?.load(),
        }
        .map_err(|error| match (hook, errno_of(&error)) {
            // Programs for frames in several parts (BPF_F_XDP_HAS_FRAGS).
            (Hook::Xdp | Hook::XdpGeneric, Some(nix::libc::EINVAL)) => BpfError::TooOld("Linux 5.18"),
            _ => load_error(error),
        })?;
        let maps = Maps {
            service: mapped(&ebpf, "service", SERVICE)?,
            rings: mapped(&ebpf, "rings", 2 * TABLE)?,
            backends: mapped(&ebpf, "backends", BACKENDS * BACKEND)?,
            counters: mapped(&ebpf, "counters", cpus * COUNTERS)?,
            tallies: mapped(&ebpf, "tallies", cpus * BACKENDS * TALLY)?,
            taken: mapped(&ebpf, "taken", TAKEN)?,
            ids: mapped(&ebpf, "ids", 2 * IDS)?,
            flows: descriptor(&ebpf, "flows")?,
            fragments: descriptor(&ebpf, "fragments")?,
            cpus,
        };
        Ok(Self { ebpf, hook, maps, pins })
    }

    /// Puts the program on an interface. One that an earlier process of this service has left there is replaced, without a
    /// moment between them, and so is one of XDP that is `stale`; one of another owner is not. Until [`AttachedProgram::keep`]
    /// this is undone when the value is dropped.
    pub fn attach(
        self,
        interface: &str,
        index: u32,
        stale: &[StalePins],
    ) -> Result<AttachedProgram, BpfError> {
        let attached = self.put_on(interface, index, stale);
        match attached {
            Ok((place, before)) => Ok(AttachedProgram {
                hook: self.hook,
                index,
                maps: self.maps,
                pins: self.pins,
                before: Some(before),
                place,
            }),
            Err(error) => {
                if let Some((pins, flows)) = &self.pins {
                    flows.undo(pins);
                }
                Err(error)
            }
        }
    }

    fn put_on(&self, interface: &str, index: u32, stale: &[StalePins]) -> Result<(Place, Earlier), BpfError> {
        let wrong = |error: io::Error| attach_error(interface, self.hook, error);
        let program = self.ebpf.program(NAME).ok_or_else(unknown)?;
        let program = program.fd().map_err(load_error)?.as_fd();
        if self.hook == Hook::TcFilter {
            let pins = self.pins.as_ref().map(|(pins, _)| pins);
            // A filter outlives its process in any case.
            let pins = pins.ok_or_else(|| wrong(io::Error::other("a filter needs a name in /sys/fs/bpf")))?;
            return earlier::put_filter(pins, index, program).map_err(wrong);
        }
        if let Some((_, link)) = self.own_link(self.hook, index) {
            let before = Earlier::Program(calls::program_of(link.as_fd()).ok());
            calls::replace(link.as_fd(), program).map_err(wrong)?;
            return Ok((Place::Link(link), before));
        }
        // An interface has one program of XDP.
        let is_xdp = !self.hook.is_tc();
        if let Some((_, link)) = stale.iter().filter(|_| is_xdp).find_map(|one| one.link(self.hook, index)) {
            let before = Earlier::OfAnother(calls::program_of(link.as_fd()).ok());
            self.pin(&link)?;
            return match calls::replace(link.as_fd(), program) {
                Ok(()) => Ok((Place::Link(link), before)),
                Err(error) => {
                    let _ = self.pins.as_ref().map(|(pins, _)| pins.remove_one(self.hook.pin()));
                    Err(wrong(error))
                }
            };
        }
        let taken = self.leave_other_mode(index, stale)?;
        let (kind, flags) = self.hook.attach();
        let attached = calls::attach(program, index, kind, flags)
            .map_err(wrong)
            .and_then(|link| self.pin(&link).map(|()| link).map_err(BpfError::from));
        match (attached, taken) {
            (Ok(link), Some(taken)) => Ok((Place::Link(link), Earlier::OtherMode(taken))),
            (Ok(link), None) => Ok((Place::Link(link), Earlier::Nothing)),
            (Err(error), taken) => {
                if let Some(taken) = taken {
                    taken.put_back(index);
                }
                Err(error)
            }
        }
    }

    /// The link that an earlier process of this service has left on an interface, with its name. One that was on an interface
    /// that is gone is on none.
    fn own_link(&self, hook: Hook, index: u32) -> Option<(PathBuf, OwnedFd)> {
        let path = self.pins.as_ref()?.0.path(hook.pin());
        let link = calls::get(&path).ok()?;
        calls::interface_of(link.as_fd()).is_ok_and(|found| found == index).then_some((path, link))
    }

    /// Gives the link its name.
    fn pin(&self, link: &OwnedFd) -> io::Result<()> {
        let Some((pins, _)) = &self.pins else { return Ok(()) };
        let path = pins.path(self.hook.pin());
        let _ = std::fs::remove_file(&path);
        calls::pin(link.as_fd(), &path)
    }

    /// Takes the XDP program of an earlier process off the interface that had the other mode: an interface has one.
    fn leave_other_mode(&self, index: u32, stale: &[StalePins]) -> io::Result<Option<Taken>> {
        let other = match self.hook {
            Hook::Tc | Hook::TcFilter => return Ok(None),
            Hook::Xdp => Hook::XdpGeneric,
            Hook::XdpGeneric => Hook::Xdp,
        };
        let left = || stale.iter().find_map(|one| one.link(other, index));
        let found = self.own_link(other, index).or_else(left);
        found.map(|(name, link)| Taken::take(link.as_fd(), other, name)).transpose()
    }

    /// What the program does with one frame: whether it is passed on, dropped or sent, and the frame as it is then.
    pub fn try_out(&mut self, frame: &[u8], out: &mut [u8]) -> Result<(Tried, usize), BpfError> {
        let program = self.ebpf.program_mut(NAME).ok_or_else(unknown)?;
        let options =
            TestRunOptions { data_in: Some(frame), data_out: Some(out), repeat: 1, ..Default::default() };
        let result = match self.hook {
            Hook::Tc | Hook::TcFilter => {
                <&mut SchedClassifier>::try_from(program).map_err(load_error)?.test_run(options)
            }
            Hook::Xdp | Hook::XdpGeneric => {
                <&mut Xdp>::try_from(program).map_err(load_error)?.test_run(options)
            }
        };
        let result = result.map_err(load_error)?;
        let tried = match (self.hook, result.return_value) {
            (Hook::Tc | Hook::TcFilter, 7) | (Hook::Xdp | Hook::XdpGeneric, 3) => Tried::Sent,
            (Hook::Tc | Hook::TcFilter, 2) | (Hook::Xdp | Hook::XdpGeneric, 1) => Tried::Dropped,
            _ => Tried::Passed,
        };
        Ok((tried, result.data_size_out as usize))
    }

    /// The memory of the program, to try it out without an interface.
    pub fn shared(&self) -> Shared<'_> {
        Shared(&self.maps)
    }
}

/// What a program did with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    Passed,
    Dropped,
    Sent,
}

/// A program on an interface. It stays there, when this is dropped, if it is pinned; else it is taken away.
pub struct AttachedProgram {
    hook: Hook,
    index: u32,
    maps: Maps,
    pins: Option<(Pins, FlowsName)>,
    /// What was there, until it is sure that this one stays.
    before: Option<Earlier>,
    place: Place,
}

impl fmt::Debug for AttachedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttachedProgram")
            .field("hook", &self.hook)
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

impl AttachedProgram {
    pub fn hook(&self) -> Hook {
        self.hook
    }

    /// The interface that it is on.
    pub fn index(&self) -> u32 {
        self.index
    }

    pub fn shared(&self) -> Shared<'_> {
        Shared(&self.maps)
    }

    /// The start has succeeded: from now on the program stays until [`AttachedProgram::detach`], and one that an earlier process has
    /// left in another place of the interface goes away.
    pub fn keep(&mut self) {
        if self.before.take().is_none() {
            return;
        }
        let Some((pins, flows)) = &self.pins else { return };
        flows.keep(pins);
        for other in [Hook::Tc, Hook::TcFilter, Hook::Xdp, Hook::XdpGeneric] {
            if other.pin() == self.hook.pin() {
                continue;
            }
            if other == Hook::TcFilter {
                // An error is told by the next start, which finds it again.
                let _ = pins.remove_filter();
            }
            // It has none, as a rule.
            let _ = pins.remove_one(other.pin());
        }
    }

    /// Lets all packets pass, and forgets the flows: the program goes away when this is dropped.
    pub fn detach(&self) -> io::Result<()> {
        self.shared().stop();
        self.pins.as_ref().map_or(Ok(()), |(pins, flows)| {
            self.place.leave_filter().and(flows.remove(pins)).and(pins.remove())
        })
    }

    /// Whether the process needs CAP_NET_ADMIN to take the program away, or one that it replaces: a filter has no descriptor.
    pub fn needs_rights(&self) -> bool {
        self.hook == Hook::TcFilter || self.pins.as_ref().is_some_and(|(pins, _)| pins.needs_rights())
    }

    /// Whether it has taken over the maps of an earlier process, and the flows in them.
    pub fn goes_on(&self) -> bool {
        let is_taken_over = self.pins.as_ref().is_none_or(|(_, flows)| !flows.is_anew());
        is_taken_over && matches!(self.before, Some(Earlier::Program(_)))
    }

    /// Its directory as a path that needs no right to the ones above it; `None` if it is not pinned.
    pub fn directory(&self) -> Option<PathBuf> {
        self.pins.as_ref().map(|(pins, _)| pins.by_descriptor())
    }
}

impl Drop for AttachedProgram {
    /// Undoes the start, if it has failed.
    fn drop(&mut self) {
        if let Some(before) = self.before.take() {
            before.put_back(&self.place, self.hook, self.index, self.pins.as_ref());
        }
    }
}

/// Memory that a program and this process have in common.
#[derive(Clone, Copy)]
pub struct Shared<'a>(&'a Maps);

/// What the program has counted since it was first loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub forwarded: u64,
    pub bytes: u64,
    pub began: u64,
    pub passed: u64,
    pub no_backend: u64,
    /// Frames with many segments that do not fit into a tunnel.
    pub not_segmented: u64,
}

/// The same for one backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tallied {
    pub packets: u64,
    pub bytes: u64,
    pub began: u64,
}

impl Shared<'_> {
    /// Describes the service. Its first word is that of [`Self::switch`].
    pub fn set_service(&self, words: &[u64; SERVICE]) {
        for (place, word) in self.0.service.words().iter().zip(words).skip(1) {
            place.store(*word, RELAXED);
        }
    }

    /// Says which ports other services of the address have: for a service on every port.
    pub fn set_taken(&self, words: &[u64]) {
        self.0.taken.words().iter().zip(words).for_each(|(place, word)| place.store(*word, RELAXED));
    }

    /// Writes one of the two tables of servers by their numbers, which the program does not use now.
    pub fn set_ids(&self, which: usize, words: &[u64]) {
        let table = self.0.ids.words().chunks_exact(IDS).nth(which).unwrap_or_default();
        table.iter().zip(words).for_each(|(place, word)| place.store(*word, RELAXED));
    }

    /// Writes one of the two tables, which the program does not use now.
    pub fn set_table(&self, which: usize, numbers: &[u32]) {
        let table = self.0.rings.words().chunks_exact(TABLE).nth(which).unwrap_or_default();
        for (place, pair) in table.iter().zip(numbers.chunks(2)) {
            let pair = [pair.first(), pair.get(1)].map(|number| number.copied().unwrap_or(0).to_ne_bytes());
            place.store(u64::from_ne_bytes(concat(pair)), RELAXED);
        }
    }

    /// The first word of the service: which table is used, and whether the program decides.
    pub fn switched(&self) -> u64 {
        self.0.service.words()[0].load(RELAXED)
    }

    /// Uses a table that was written before.
    pub fn switch(&self, word: u64) {
        self.0.service.words()[0].store(word, std::sync::atomic::Ordering::Release);
    }

    /// Lets all packets pass.
    pub fn stop(&self) {
        self.switch(0);
    }

    pub fn backends(&self) -> Vec<[u64; BACKEND]> {
        self.0.backends.words().chunks_exact(BACKEND).map(read_backend).collect()
    }

    /// Describes a backend. While it becomes another one, flows of the earlier one are not sent to it, and none while the ends
    /// of its tunnel change.
    pub fn set_backend(&self, number: usize, words: &[u64; BACKEND]) {
        let Some(places) = self.0.backends.words().chunks_exact(BACKEND).nth(number) else { return };
        let now = read_backend(places);
        if now == *words {
            return;
        }
        if now[1] != words[1] || now[3..] != words[3..] {
            // Without an address that is known.
            places[0].store(0, std::sync::atomic::Ordering::Release);
        }
        for (place, word) in places.iter().zip(words).rev() {
            place.store(*word, std::sync::atomic::Ordering::Release);
        }
    }

    pub fn counted(&self) -> Counted {
        let mut all = Counted::default();
        for block in self.0.counters.words().chunks_exact(COUNTERS) {
            let read = |at: usize| block[at].load(RELAXED);
            all.forwarded += read(0);
            all.bytes += read(1);
            all.began += read(2);
            all.passed += read(3);
            all.no_backend += read(4);
            all.not_segmented += read(7);
        }
        all
    }

    pub fn tallied(&self, backend: usize) -> Tallied {
        let mut all = Tallied::default();
        for cpu in 0..self.0.cpus {
            let at = (cpu * BACKENDS + backend) * TALLY;
            if let Some([packets, bytes, began, _]) = self.0.tallies.words().get(at..at + TALLY) {
                all.packets += packets.load(RELAXED);
                all.bytes += bytes.load(RELAXED);
                all.began += began.load(RELAXED);
            }
        }
        all
    }

    /// The entry of a flow in the table of flows.
    pub fn look_up_flow(&self, key: &[u8; calls::KEY]) -> io::Result<Option<[u8; calls::VALUE]>> {
        calls::look_up(self.0.flows.as_fd(), key)
    }

    /// The entry of a packet that was cut, in the table of fragments.
    pub fn look_up_fragment(
        &self,
        key: &[u8; calls::FRAGMENT_KEY],
    ) -> io::Result<Option<[u8; calls::VALUE]>> {
        calls::look_up(self.0.fragments.as_fd(), key)
    }

    /// The next part of the table of flows, with the values of its entries. The end is `Ok(true)`.
    pub fn look_at_flows(&self, look: &mut Look, each: impl FnMut(&[u8; 16])) -> io::Result<bool> {
        calls::look_at_entries(self.0.flows.as_fd(), look, each)
    }
}

fn read_backend(words: &[AtomicU64]) -> [u64; BACKEND] {
    std::array::from_fn(|at| words.get(at).map_or(0, |word| word.load(RELAXED)))
}

const RELAXED: std::sync::atomic::Ordering = std::sync::atomic::Ordering::Relaxed;

fn concat([[a, b, c, d], [e, f, g, h]]: [[u8; 4]; 2]) -> [u8; 8] {
    [a, b, c, d, e, f, g, h]
}

fn unknown() -> BpfError {
    BpfError::Maps(io::Error::from(io::ErrorKind::NotFound))
}

fn map<'a>(ebpf: &'a Ebpf, name: &str) -> Result<&'a aya::maps::MapData, BpfError> {
    match ebpf.map(name) {
        Some(Map::Array(data) | Map::LruHashMap(data)) => Ok(data),
        _ => Err(unknown()),
    }
}

fn mapped(ebpf: &Ebpf, name: &str, words: usize) -> Result<Memory, BpfError> {
    let data = map(ebpf, name)?;
    let info = data.info().map_err(load_error)?;
    let is = info.value_size().next_multiple_of(8) as usize / 8 * info.max_entries() as usize;
    if is < words {
        return Err(BpfError::OtherForm(name.to_owned(), is, words));
    }
    Ok(Memory::map(data.fd().as_fd(), words)?)
}

fn descriptor(ebpf: &Ebpf, name: &str) -> Result<OwnedFd, BpfError> {
    Ok(map(ebpf, name)?.fd().as_fd().try_clone_to_owned()?)
}

fn attach_error(interface: &str, hook: Hook, error: io::Error) -> BpfError {
    match error.raw_os_error() {
        Some(nix::libc::EINVAL) if hook == Hook::Tc => BpfError::TooOld("Linux 6.6"),
        Some(nix::libc::EBUSY | nix::libc::EEXIST) => BpfError::Occupied(interface.to_owned()),
        Some(nix::libc::EPERM | nix::libc::EACCES) => BpfError::NotPermitted,
        _ => BpfError::Unsupported(interface.to_owned(), error),
    }
}
