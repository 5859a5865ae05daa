//! A fleet for experiments: SSH hosts in this process, each with its own loopback address and its own key.
//!
//! [`Lab::start`] creates the files (`lab/files.rs`), binds a socket for each host and serves it (`lab/host.rs`). A
//! connection passes through `lab/wire.rs`, which counts its bytes and can cut it, to `lab/session.rs`, which speaks
//! SSH. `lab/script.rs` and `lab/program.rs` interpret commands, so that 1,000 hosts need no process. `lab/fault.rs` is
//! the table of faults; `lab/raw.rs` has the faults before SSH begins. `lab/journal.rs` records what each host
//! received. The lab binds loopback addresses only. `crates/penstock/src/cmd/lab.rs` starts it, and writes programs
//! that use its configuration only.

mod accept;
mod call;
mod channel;
mod disconnect;
mod error;
pub mod fault;
mod files;
pub mod flood;
mod host;
mod journal;
mod name;
mod place;
mod program;
mod raw;
mod script;
mod session;
mod sftp;
mod wire;

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hosts::ssh::key::PublicKey;
use nix::errno::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub use channel::ESCAPES;
pub use disconnect::HOSTILE_DISCONNECT;
pub use error::LabError;
use fault::{Assignment, Kind};
use files::Files;
use host::{Host, Shared};
use journal::Journal;
use name::host_name;
use wire::OpenConnections;

/// Settings of a lab.
#[derive(Debug, Clone)]
pub struct Plan {
    pub hosts: usize,
    /// Directory of the files, created if it does not exist. A lab that is restarted in the same directory has the same
    /// identities.
    pub directory: PathBuf,
    /// Address of the first host; the others have the next addresses. All are in 127.0.0.0/8.
    pub first: Ipv4Addr,
    /// Port of all hosts. `None`: the kernel chooses it.
    pub port: Option<u16>,
    pub faults: Vec<Assignment>,
}

impl Plan {
    /// Creates a plan with defaults for the rest.
    pub fn new(hosts: usize, directory: impl Into<PathBuf>) -> Self {
        Self { hosts, directory: directory.into(), first: FIRST_ADDRESS, port: None, faults: Vec::new() }
    }
}

/// A running lab. Dropping it ends all hosts and connections; the directory stays.
#[derive(Debug)]
pub struct Lab {
    hosts: Vec<Arc<Host>>,
    directory: PathBuf,
    wires: Arc<OpenConnections>,
    tasks: Vec<JoinHandle<()>>,
    /// Hosts that accept no connection. Their sockets stay bound, so that no other program answers at these addresses.
    deaf: Vec<UnreachableHost>,
    /// Lock that keeps other labs out of the directory.
    _lock: Option<File>,
}

#[derive(Debug)]
#[allow(dead_code, reason = "what is held here works by being there")]
enum UnreachableHost {
    /// A bound socket that does not listen: the kernel refuses connections.
    Refusing(Socket),
    /// A socket with a full queue, and the connections that fill it: the kernel drops further SYN segments.
    Full(Socket, Vec<TcpStream>),
}

impl Lab {
    /// Starts the hosts in the caller's runtime. All of them listen when `start` returns.
    ///
    /// # Errors
    /// The directory cannot be written, or there are not enough addresses, descriptors or free ports.
    pub async fn start(plan: Plan) -> Result<Self, LabError> {
        let addresses = addresses(plan.first, plan.hosts)?;
        let faults = fault::assign(&plan.faults, plan.hosts)?;
        let files = Files::prepare(&plan.directory)?;
        let directory = files.directory().to_owned();
        let sockets = bind_all(&addresses, plan.port)?;
        let port = sockets.first().and_then(|socket| port_of(socket).ok()).unwrap_or(0);
        let shared = Shared {
            authorized: Arc::new(files.authorized_keys()?),
            journal: Arc::new(Journal::create(&directory)?),
            wires: Arc::new(OpenConnections::default()),
            files: directory.join("files"),
        };
        let mut lab = Self {
            hosts: Vec::with_capacity(plan.hosts),
            directory,
            wires: Arc::clone(&shared.wires),
            tasks: Vec::with_capacity(plan.hosts),
            deaf: Vec::new(),
            _lock: None,
        };
        for (number, ((address, fault), socket)) in addresses.into_iter().zip(faults).zip(sockets).enumerate()
        {
            let address = SocketAddr::V4(SocketAddrV4::new(address, port));
            let keys = files.keys_of(number, plan.hosts, fault.as_ref());
            let kind = fault.as_ref().map(|fault| fault.kind);
            let host =
                Arc::new(Host::new(number, host_name(number, plan.hosts), address, keys, fault, &shared)?);
            lab.hosts.push(Arc::clone(&host));
            let failed = |source| LabError::Bind { address, source };
            match kind {
                Some(Kind::Refuse) => lab.deaf.push(UnreachableHost::Refusing(socket)),
                Some(Kind::Blackhole) => lab.deaf.push(blackhole(socket, address).map_err(failed)?),
                _ => {
                    socket.listen(BACKLOG).map_err(failed)?;
                    let listener = TcpListener::from_std(socket.into()).map_err(failed)?;
                    lab.tasks.push(tokio::spawn(accept::accept(host, listener, Arc::clone(&shared.wires))));
                }
            }
        }
        lab._lock = Some(files.write(&lab.hosts)?);
        Ok(lab)
    }

    /// Names of the hosts, in order: `lab001`, ...
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.hosts.iter().map(|host| host.name.as_str())
    }

    pub fn address(&self, name: &str) -> Option<SocketAddr> {
        self.host(name).map(|host| host.address)
    }

    /// Public host key of a host.
    pub fn key(&self, name: &str) -> Option<&PublicKey> {
        self.host(name).map(|host| &host.public)
    }

    /// Absolute path of the directory with `hosts`, `ssh_config`, `known_hosts`, `client_key` and `journal`.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Writes a script for `sh` to `bin` in the directory, and returns its path. The file is replaced by a rename: a
    /// shell that runs the earlier version reads that version to its end.
    ///
    /// # Errors
    /// The file cannot be written, or other users can write to `bin`.
    pub fn add_program(&self, name: &str, script: &str) -> Result<PathBuf, LabError> {
        let path = place::make(&self.directory, "bin")?.join(name);
        place::replace(&path, script.as_bytes(), 0o700)?;
        Ok(path)
    }

    /// The events of a host so far: its lines of the journal, without its name.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn journal(&self, name: &str) -> io::Result<Vec<String>> {
        journal::lines(&self.directory, name)
    }

    fn host(&self, name: &str) -> Option<&Host> {
        self.hosts.iter().find(|host| host.name == name).map(Arc::as_ref)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        self.wires.cut_all();
    }
}

/// One address for each host. Addresses that end in 0 or 255 are left out: users take them for network addresses.
fn addresses(first: Ipv4Addr, hosts: usize) -> Result<Vec<Ipv4Addr>, LabError> {
    let all = (u32::from(first)..=u32::from(Ipv4Addr::new(127, 255, 255, 254)))
        .filter(|bits| !matches!(bits & 0xff, 0 | 0xff))
        .map(Ipv4Addr::from)
        .take(hosts);
    let all: Vec<_> = all.collect();
    if !first.is_loopback() || all.len() < hosts {
        return Err(LabError::Addresses { hosts, first });
    }
    Ok(all)
}

/// Binds the same port on all addresses. The kernel chooses a port that is free on the first address; if the port is in
/// use on another address, the next attempt uses another port.
fn bind_all(addresses: &[Ipv4Addr], port: Option<u16>) -> Result<Vec<Socket>, LabError> {
    let mut tries = if port.is_some() { 1 } else { 20 };
    loop {
        tries -= 1;
        let mut chosen = port.unwrap_or(0);
        let mut sockets = Vec::with_capacity(addresses.len());
        let mut failed = None;
        for address in addresses {
            let at = SocketAddr::V4(SocketAddrV4::new(*address, chosen));
            match bind(at).and_then(|socket| Ok((port_of(&socket)?, socket))) {
                Ok((port, socket)) => {
                    chosen = port;
                    sockets.push(socket);
                }
                Err(source) => {
                    failed = Some(LabError::Bind { address: at, source });
                    break;
                }
            }
        }
        match failed {
            None => return Ok(sockets),
            Some(LabError::Bind { source, .. }) if source.raw_os_error() == Some(Errno::EMFILE as i32) => {
                let limit = raise_descriptors().unwrap_or(sockets.len() as u64);
                return Err(LabError::Descriptors { hosts: addresses.len(), limit });
            }
            Some(LabError::Bind { address, source })
                if source.kind() == io::ErrorKind::AddrInUse && port.is_some() =>
            {
                return Err(LabError::PortTaken { address, source });
            }
            Some(LabError::Bind { source, .. }) if source.kind() == io::ErrorKind::AddrInUse && tries > 0 => {
            }
            Some(error) => return Err(error),
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    // A restarted lab finds connections of the earlier lab in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn port_of(socket: &Socket) -> io::Result<u16> {
    Ok(socket.local_addr()?.as_socket().map_or(0, |address| address.port()))
}

/// Makes a socket whose SYNs Linux drops, by a full queue of connections. A queue of length 0 holds one connection; the
/// second one is for kernels that count differently.
fn blackhole(socket: Socket, address: SocketAddr) -> io::Result<UnreachableHost> {
    socket.listen(0)?;
    let mut held = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, FULL_AFTER) {
        held.push(stream);
        if held.len() > 4 {
            return Err(io::Error::other("its queue of connections is never full"));
        }
    }
    Ok(UnreachableHost::Full(socket, held))
}

/// Time limit of a connection on loopback: after it the SYN was dropped.
const FULL_AFTER: Duration = Duration::from_millis(50);

/// Queue length of each host (listen(2)).
const BACKLOG: i32 = 1024;

/// An address far from those that other programs use on loopback.
const FIRST_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 66, 0, 1);

/// Raises the limit of open descriptors to its maximum, and returns the new limit. A lab needs one descriptor for each
/// host and one for each connection.
///
/// # Errors
/// The system call failed.
pub fn raise_descriptors() -> io::Result<u64> {
    sys::descriptors::raise_limit()
}
