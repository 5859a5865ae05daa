//! A fleet to try things on: SSH hosts in this process, each on a loopback address of its own with a key of its own.
//!
//! [`Lab::start`] makes the files (`lab/files.rs`), binds a socket for each host and serves it (`lab/host.rs`): a
//! connection goes through `lab/wire.rs`, which counts its bytes and can cut it, to `lab/session.rs`, which speaks
//! SSH. Commands are interpreted here (`lab/script.rs`, `lab/program.rs`), so that a thousand hosts cost no process.
//! `lab/fault.rs` is the table of what can be wrong; what is wrong before SSH is in `lab/raw.rs`. What each host received is in `lab/journal.rs`.
//! Never binds anything but loopback. `crates/penstock/src/cmd/lab.rs` starts it, and writes the programs that see it alone.

mod channel;
pub mod fault;
mod files;
pub mod flood;
mod host;
mod journal;
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

use logic::ssh::key::PublicKey;
use nix::errno::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub use channel::{ESCAPES, HOSTILE_FAREWELL};
use fault::{Assignment, FaultError, Kind};
use files::Files;
use host::{Host, Shared};
use journal::Journal;
use wire::Wires;

/// Whether that is the home which a lab gives its clients: nothing there is of the user, and it goes with the lab. `LAB` in
/// the environment says where that is.
#[must_use]
pub fn is_inside(home: &str) -> bool {
    std::env::var_os("LAB")
        .is_some_and(|lab| !lab.is_empty() && Path::new(home) == Path::new(&lab).join("home"))
}

/// What a lab is to be.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How many hosts.
    pub hosts: usize,
    /// Where its files go. It is made if it is not there. A lab that is started again in the same directory has the
    /// same identities.
    pub directory: PathBuf,
    /// The address of the first host; the others follow. All of them are in 127.0.0.0/8.
    pub first: Ipv4Addr,
    /// The port of all hosts; without it the kernel chooses one.
    pub port: Option<u16>,
    /// What is wrong with which hosts.
    pub faults: Vec<Assignment>,
}

impl Plan {
    /// A plan with everything else as usual.
    pub fn new(hosts: usize, directory: impl Into<PathBuf>) -> Self {
        Self { hosts, directory: directory.into(), first: FIRST_ADDRESS, port: None, faults: Vec::new() }
    }
}

/// A running lab. It ends, with all connections, when this is dropped; the directory stays.
#[derive(Debug)]
pub struct Lab {
    hosts: Vec<Arc<Host>>,
    directory: PathBuf,
    wires: Arc<Wires>,
    tasks: Vec<JoinHandle<()>>,
    /// Held as long as the lab runs, so that nobody else answers there.
    deaf: Vec<Deaf>,
    /// Keeps other labs out of the directory.
    _lock: Option<File>,
}

/// A host that takes no connection.
#[derive(Debug)]
#[allow(dead_code, reason = "what is held here works by being there")]
enum Deaf {
    /// Bound and not listening: the kernel refuses.
    Refusing(Socket),
    /// Its queue of connections is full, so that the kernel drops what else comes: with those that fill it.
    Full(Socket, Vec<TcpStream>),
}

impl Lab {
    /// Starts the hosts in the runtime of the caller. When this returns, all of them listen.
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
            wires: Arc::new(Wires::default()),
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
                Some(Kind::Refuse) => lab.deaf.push(Deaf::Refusing(socket)),
                Some(Kind::Blackhole) => lab.deaf.push(blackhole(socket, address).map_err(failed)?),
                _ => {
                    socket.listen(BACKLOG).map_err(failed)?;
                    let listener = TcpListener::from_std(socket.into()).map_err(failed)?;
                    lab.tasks.push(tokio::spawn(host::accept(host, listener, Arc::clone(&shared.wires))));
                }
            }
        }
        lab._lock = Some(files.write(&lab.hosts)?);
        Ok(lab)
    }

    /// The names of the hosts, in order: `lab001`, ...
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.hosts.iter().map(|host| host.name.as_str())
    }

    /// Where a host listens.
    pub fn address(&self, name: &str) -> Option<SocketAddr> {
        self.host(name).map(|host| host.address)
    }

    /// The key with which a host proves who it is.
    pub fn key(&self, name: &str) -> Option<&PublicKey> {
        self.host(name).map(|host| &host.public)
    }

    /// The directory with `hosts`, `ssh_config`, `known_hosts`, `client_key` and `journal`, from the root.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Puts a script for `sh` into `bin` of the directory, and gives where that is. It becomes whole at once: a shell that
    /// runs the one of the last time reads that to its end.
    ///
    /// # Errors
    /// It cannot be written, or others can write to `bin`.
    pub fn add_program(&self, name: &str, script: &str) -> Result<PathBuf, LabError> {
        let path = place::make(&self.directory, "bin")?.join(name);
        place::replace(&path, script.as_bytes(), 0o700)?;
        Ok(path)
    }

    /// What a host received so far: its lines of the journal, without its name.
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

/// Why a lab does not start.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A file or directory.
    #[error("the lab cannot {doing} {path}")]
    File {
        /// What was tried.
        doing: &'static str,
        /// With what.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// A key in the directory is no key, or one could not be made.
    #[error("the lab cannot make the keys in {path}: {why}")]
    Keys {
        /// The directory.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// The directory is somebody else's.
    #[error(
        "the lab would replace files in {path}, which is not the directory of a lab: it has `{file}`\n  \
         hint: name an empty directory, or one that is not there yet"
    )]
    Foreign {
        /// The directory.
        path: String,
        /// Something that is in it.
        file: String,
    },
    /// Others can put links and files there.
    #[error("the lab would write to {path}, which {how}\n  hint: {hint}")]
    Unsafe {
        /// The directory, or one in it or above it.
        path: String,
        /// Whose it is, or who can write to it.
        how: String,
        /// What helps.
        hint: String,
    },
    /// The directory has a lab.
    #[error("a lab runs in {path} already\n  hint: end it, or start this one in another directory")]
    Busy {
        /// The directory.
        path: String,
    },
    /// A fault that cannot be had.
    #[error(transparent)]
    Fault(#[from] FaultError),
    /// No socket.
    #[error("the lab cannot listen on {address}")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The port that was asked for is in use.
    #[error(
        "the lab cannot listen on {address}: {source}\n  hint: without --port it takes one that is free everywhere"
    )]
    PortTaken {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// No more descriptors.
    #[error(
        "{hosts} hosts need {hosts} open files and one for each connection; this process may have {limit}\n  \
         hint: fewer hosts, or more with ulimit -n"
    )]
    Descriptors {
        /// How many hosts were asked for.
        hosts: usize,
        /// How many open files there may be.
        limit: u64,
    },
    /// The addresses do not fit.
    #[error(
        "{hosts} hosts from {first} on do not fit into 127.0.0.0/8; a lab listens on loopback addresses only"
    )]
    Addresses {
        /// How many were asked for.
        hosts: usize,
        /// From where on.
        first: Ipv4Addr,
    },
}

/// `lab001`; four digits from 1,000 hosts on.
fn host_name(number: usize, hosts: usize) -> String {
    let width = hosts.to_string().len().max(3);
    format!("{PREFIX}{:0width$}", number + 1)
}

/// What all names begin with; also the group of all hosts.
const PREFIX: &str = "lab";

/// One address each, without those that end in 0 or 255, which people take for networks.
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

/// The same port on all addresses. The kernel knows a free one for the first address only; where another address has
/// it in use, the next try has another port.
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
    // A lab that is started again finds connections of the last one in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn port_of(socket: &Socket) -> io::Result<u16> {
    Ok(socket.local_addr()?.as_socket().map_or(0, |address| address.port()))
}

/// Linux drops the SYN of a connection for which there is no room in the queue of those to be accepted. A queue of
/// length 0 holds one; a second one is tried for kernels that count otherwise.
fn blackhole(socket: Socket, address: SocketAddr) -> io::Result<Deaf> {
    socket.listen(0)?;
    let mut held = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, FULL_AFTER) {
        held.push(stream);
        if held.len() > 4 {
            return Err(io::Error::other("its queue of connections is never full"));
        }
    }
    Ok(Deaf::Full(socket, held))
}

/// A connection on loopback that takes longer was dropped.
const FULL_AFTER: Duration = Duration::from_millis(50);

/// Connections that wait to be accepted, for each host.
const BACKLOG: i32 = 1024;

/// Far from what other programs use on loopback.
const FIRST_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 66, 0, 1);

/// Raises the limit of open descriptors as far as it goes, and gives it: a lab needs one for each host and one for each
/// connection.
///
/// # Errors
/// The operating system refuses.
pub fn raise_descriptors() -> io::Result<u64> {
    sys::descriptors::raise_limit()
}
