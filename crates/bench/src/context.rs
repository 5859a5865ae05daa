//! Environment of every contestant: this program, a directory, cores, ports, and the interruption flag.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::address::Address;
use crate::error::{Error, ErrorContext};
use crate::scratch::Scratch;

/// Environment of a run. Dropping it removes its directory.
#[derive(Debug)]
pub struct Context {
    /// Path of this program, for `serve` and `bench-load`.
    pub program: PathBuf,
    pub cores: Cores,
    /// Set on SIGINT and other signals that end the run.
    pub interrupt: Interrupt,
    /// Selects all groups or only the quick ones.
    pub extent: Extent,
    /// Hard limit of open descriptors, which every process of the run may use.
    pub descriptors: u64,
    scratch: Scratch,
    names: Cell<u32>,
    port: Cell<u16>,
    versions: RefCell<BTreeMap<&'static str, Option<String>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Extent {
    Full,
    /// Only the most important groups: all scenarios together take about seven minutes.
    Quick,
}

/// Cores of the measured process and of the load. Empty lists: no pinning.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Cores {
    pub target: Vec<usize>,
    /// Cores of load generators and backends.
    pub load: Vec<usize>,
}

/// Number of the signal that interrupts the run, or 0.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicI32>);

impl Context {
    /// Makes a context with a new private directory, and assigns cores to target and load.
    pub fn new(program: PathBuf, interrupt: Interrupt, extent: Extent) -> Result<Self, Error> {
        let usable = sys::cpu::usable().doing("find out which cores may be used")?;
        // Every process started from now on inherits the limit.
        let descriptors = sys::descriptors::raise_limit().doing("raise the limit of open descriptors")?;
        let scratch = Scratch::make()?;
        // Spread the first ports of parallel runs, whose process ids are often neighbours: some programs share a port
        // with another process that listens there (SO_REUSEPORT).
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

    /// Returns a unique path in the run's directory for a file, a socket or a log; the path ends in `name`.
    pub fn path(&self, name: &str) -> PathBuf {
        let number = self.names.get();
        self.names.set(number + 1);
        self.directory().join(format!("{number}-{name}"))
    }

    /// Directory of the run, removed at its end.
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }

    /// Message about the environment for the user, before the run.
    pub fn notice(&self) -> Option<&str> {
        self.scratch.notice()
    }

    /// Returns a loopback address with a free port below the range of outgoing connections (ip_local_port_range).
    ///
    /// Programs that cannot report a port selected by the kernel need one selected in advance; the range of outgoing
    /// connections is avoided because a benchmark opens many.
    pub fn free_tcp(&self) -> Result<Address, Error> {
        self.free_port(|address| TcpListener::bind(address).is_ok()).map(Address::Tcp)
    }

    /// The same for UDP.
    pub fn free_udp(&self) -> Result<Address, Error> {
        self.free_port(|address| UdpSocket::bind(address).is_ok()).map(Address::Udp)
    }

    fn free_port(&self, is_free: impl Fn(SocketAddr) -> bool) -> Result<SocketAddr, Error> {
        let first = self.port.get();
        for offset in 0..20_000_u32 {
            let port = 10_000 + ((u32::from(first) - 10_000 + offset) % 20_000) as u16;
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            if is_free(address) {
                self.port.set(if port == 29_999 { 10_000 } else { port + 1 });
                return Ok(address);
            }
        }
        Err(io::Error::from(ErrorKind::AddrInUse)).doing("find a free port")
    }

    /// Returns a new Unix socket address in the run's directory.
    pub fn free_unix(&self) -> Address {
        Address::Unix(self.path("s"))
    }

    /// Writes a file into the run's directory.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf, Error> {
        let path = self.path(name);
        fs::write(&path, text).doing(format!("write {}", path.display()))?;
        Ok(path)
    }

    /// Returns the version of a program. `ask` runs at most once per program.
    pub(crate) fn version_of(
        &self,
        program: &'static str,
        ask: impl FnOnce() -> Option<String>,
    ) -> Option<String> {
        self.versions.borrow_mut().entry(program).or_insert_with(ask).clone()
    }

    /// Limits `wanted` connections to the number that each program can hold within the limit of descriptors.
    pub fn holdable(&self, wanted: usize) -> usize {
        let limit = usize::try_from(self.descriptors).unwrap_or(usize::MAX);
        wanted.min((limit / 5).saturating_mul(2).saturating_sub(RESERVED))
    }

    /// Returns an error if the run was interrupted.
    pub fn check(&self) -> Result<(), Error> {
        if self.interrupt.signal().is_some() { Err(Error::Interrupted) } else { Ok(()) }
    }
}

/// Number of descriptors that a program between clients and backends needs for `connections`: 2.5 each, because haproxy
/// reserves half a descriptor per connection for pipes.
pub fn descriptors_for(connections: usize) -> u64 {
    (connections + RESERVED) as u64 * 5 / 2
}

/// Allowance for a program's own descriptors, counted in connections.
const RESERVED: usize = 200;

impl Cores {
    /// Assigns the first usable core to the target and the second to the load. No pinning with one core.
    pub fn split(usable: &[usize]) -> Self {
        match usable {
            [target, load, ..] => Cores { target: vec![*target], load: vec![*load] },
            _ => Cores::default(),
        }
    }
}

impl Interrupt {
    /// Interrupts the run. Only the first signal counts.
    pub fn set(&self, signal: Signal) {
        let _ = self.0.compare_exchange(0, signal as i32, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Signal that interrupted the run.
    pub fn signal(&self) -> Option<Signal> {
        Signal::try_from(self.0.load(Ordering::Relaxed)).ok()
    }
}
