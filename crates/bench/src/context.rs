//! What every contestant is given: our own program, a directory, cores, ports, and whether to stop.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::address::Address;
use crate::error::{Doing, Error};
use crate::scratch::Scratch;

/// Surroundings of a run. Dropping it removes its directory.
#[derive(Debug)]
pub struct Context {
    /// This very program, for `serve` and `bench-load`.
    pub program: PathBuf,
    /// Who runs where.
    pub cores: Cores,
    /// Set on Ctrl-C and its relatives.
    pub interrupt: Interrupt,
    /// How much a scenario should plan for.
    pub extent: Extent,
    /// How many descriptors each process of the run may have open: the hard limit, which this process has too.
    pub descriptors: u64,
    scratch: Scratch,
    names: Cell<u32>,
    port: Cell<u16>,
    versions: RefCell<BTreeMap<&'static str, Option<String>>>,
}

/// How much of a scenario is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Extent {
    /// Everything.
    Full,
    /// The groups that matter most: all scenarios together take about seven minutes.
    Quick,
}

/// The cores of the measured process, and those of load and backends. Empty: no pinning.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Cores {
    /// Cores of what is measured.
    pub target: Vec<usize>,
    /// Cores of load generators and backends.
    pub load: Vec<usize>,
}

/// Says that the run is to end soon, and because of which signal. 0: it is not.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicI32>);

impl Context {
    /// A context with a fresh private directory, and the cores split between target and load.
    pub fn new(program: PathBuf, interrupt: Interrupt, extent: Extent) -> Result<Self, Error> {
        let usable = sys::cpu::usable().doing("find out which cores may be used")?;
        // Whatever is started from now on gets that limit.
        let descriptors = sys::descriptors::raise_limit().doing("raise the limit of open descriptors")?;
        let scratch = Scratch::make()?;
        // Two runs at once, whose process ids are often neighbours, begin far from each other: some programs share a
        // port with whoever else listens there (SO_REUSEPORT).
        let port = Cell::new(10_000 + (process::id().wrapping_mul(499) % 20_000) as u16);
        Ok(Context {
            program,
            cores: Cores::split(&usable),
            interrupt,
            extent,
            descriptors,
            scratch,
            names: Cell::new(0),
            port,
            versions: RefCell::default(),
        })
    }

    /// A path for a file, a socket or a log that nobody else has; it ends in `name`.
    pub fn path(&self, name: &str) -> PathBuf {
        let number = self.names.get();
        self.names.set(number + 1);
        self.directory().join(format!("{number}-{name}"))
    }

    /// The directory that goes away with the run.
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }

    /// What a person should know about the surroundings before a run.
    pub fn notice(&self) -> Option<&str> {
        self.scratch.notice()
    }

    /// An address on the loopback interface with a port that is free, and that no outgoing connection takes.
    ///
    /// Programs that cannot say which port they got need one chosen for them; it is below the range of outgoing
    /// connections (ip_local_port_range), of which a benchmark makes many.
    pub fn free_tcp(&self) -> Result<Address, Error> {
        let first = self.port.get();
        for offset in 0..20_000_u32 {
            let port = 10_000 + ((u32::from(first) - 10_000 + offset) % 20_000) as u16;
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            if TcpListener::bind(address).is_ok() {
                self.port.set(if port == 29_999 { 10_000 } else { port + 1 });
                return Ok(Address::Tcp(address));
            }
        }
        Err(io::Error::from(ErrorKind::AddrInUse)).doing("find a free port")
    }

    /// A Unix socket's address in the run's directory.
    pub fn free_unix(&self) -> Address {
        Address::Unix(self.path("s"))
    }

    /// Writes a file into the run's directory.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf, Error> {
        let path = self.path(name);
        fs::write(&path, text).doing(format!("write {}", path.display()))?;
        Ok(path)
    }

    /// The version of a program, which is asked for it once.
    pub(crate) fn version_of(
        &self,
        program: &'static str,
        ask: impl FnOnce() -> Option<String>,
    ) -> Option<String> {
        self.versions.borrow_mut().entry(program).or_insert_with(ask).clone()
    }

    /// How many connections each program can hold, if so many are wanted: what the limit of descriptors allows.
    pub fn holdable(&self, wanted: usize) -> usize {
        let limit = usize::try_from(self.descriptors).unwrap_or(usize::MAX);
        wanted.min((limit / 5).saturating_mul(2).saturating_sub(RESERVED))
    }

    /// An error if the run is to end.
    pub fn check(&self) -> Result<(), Error> {
        if self.interrupt.signal().is_some() { Err(Error::Interrupted) } else { Ok(()) }
    }
}

/// How many descriptors a program between clients and backends needs to hold so many connections: two for each, and
/// haproxy wants half of one more for pipes that it reserves.
pub fn descriptors_for(connections: usize) -> u64 {
    (connections + RESERVED) as u64 * 5 / 2
}

/// Connections whose descriptors programs have for themselves.
const RESERVED: usize = 200;

impl Cores {
    /// The first core is the target's, the second the load's. With one core there is nothing to split.
    pub fn split(usable: &[usize]) -> Self {
        match usable {
            [target, load, ..] => Cores { target: vec![*target], load: vec![*load] },
            _ => Cores::default(),
        }
    }
}

impl Interrupt {
    /// Ends the run at the next opportunity. The first signal is the one that counts.
    pub fn set(&self, signal: Signal) {
        let _ = self.0.compare_exchange(0, signal as i32, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The signal because of which the run is to end.
    pub fn signal(&self) -> Option<Signal> {
        Signal::try_from(self.0.load(Ordering::Relaxed)).ok()
    }
}
