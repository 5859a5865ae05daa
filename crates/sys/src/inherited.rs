//! Listening sockets, and those for datagrams, that systemd has opened and passed to this process (socket activation,
//! sd_listen_fds(3)).
//!
//! The binary calls this module once, at the start of `main`, before it starts any thread: [`inherited`] removes the
//! variables from the environment, so that programs that penstock starts do not take the sockets for their own.

use std::env;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use socket2::{Protocol, SockRef, Type};

use crate::threads;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    Tcp(SocketAddr),
    Udp(SocketAddr),
    /// Packets to this address, which is no address of this machine. Never inherited.
    Packets(SocketAddr),
    Unix(PathBuf),
}

/// One listening socket, nonblocking and with close-on-exec.
#[derive(Debug)]
pub struct Inherited {
    /// `FileDescriptorName=` of the socket unit; `unknown` if systemd passed no name.
    pub name: String,
    /// The socket. The caller makes it a `TcpListener`, `UdpSocket` or `UnixListener`, according to `address`.
    pub socket: OwnedFd,
    pub address: ListenAddress,
}

/// Reason why the passed sockets cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InheritedError {
    /// Other threads run already, so the environment cannot be changed safely.
    #[error("inherited sockets must be taken before threads start, but {threads} are running")]
    Threads { threads: usize },
    /// The value of a variable is not valid.
    #[error("{variable} is \"{value}\", which is out of range")]
    Variable { variable: &'static str, value: String },
    #[error(
        "inherited socket \"{name}\" (descriptor {descriptor}) is not a listening TCP or Unix stream socket, nor a bound UDP \
         socket"
    )]
    Unsupported { name: String, descriptor: RawFd },
    /// The descriptor cannot be used.
    #[error("using inherited socket \"{name}\" (descriptor {descriptor}) failed")]
    Io { name: String, descriptor: RawFd, source: io::Error },
    #[error("counting the threads of this process failed")]
    Proc(#[source] io::Error),
}

/// Returns the sockets that were passed to this process, in the order of the socket units. Empty if none were passed,
/// and at a second call.
pub fn inherited() -> Result<Vec<Inherited>, InheritedError> {
    let variable = |name| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let passed = Passed {
        pid: variable("LISTEN_PID"),
        count: variable("LISTEN_FDS"),
        names: variable("LISTEN_FDNAMES"),
    };
    if passed.pid.is_none() && passed.count.is_none() && passed.names.is_none() {
        return Ok(Vec::new());
    }
    let threads = threads::count().map_err(InheritedError::Proc)?;
    if threads > 1 {
        return Err(InheritedError::Threads { threads });
    }
    for name in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID"] {
        // SAFETY: this is the only thread (counted above), so no other thread reads the environment at the same time.
        unsafe { env::remove_var(name) };
    }
    let names = passed.names_for(std::process::id())?;
    (FIRST_DESCRIPTOR..).zip(names).map(|(descriptor, name)| take(descriptor, name)).collect()
}

struct Passed {
    pid: Option<String>,
    count: Option<String>,
    names: Option<String>,
}

impl Passed {
    /// Returns one name per descriptor. Empty if `LISTEN_PID` is not `own`: the sockets are for another process.
    fn names_for(self, own: u32) -> Result<Vec<String>, InheritedError> {
        let (Some(pid), Some(count)) = (self.pid, self.count) else { return Ok(Vec::new()) };
        match pid.parse::<u32>() {
            Ok(pid) if pid == own => {}
            Ok(_) => return Ok(Vec::new()),
            Err(_) => return Err(InheritedError::Variable { variable: "LISTEN_PID", value: pid }),
        }
        let count = match count.parse::<usize>() {
            Ok(number) if number <= MOST_DESCRIPTORS => number,
            _ => return Err(InheritedError::Variable { variable: "LISTEN_FDS", value: count }),
        };
        let names = self.names.unwrap_or_default();
        let mut names: Vec<String> =
            names.split(':').filter(|name| !name.is_empty()).take(count).map(str::to_owned).collect();
        names.resize(count, "unknown".to_owned());
        Ok(names)
    }
}

fn take(descriptor: RawFd, name: String) -> Result<Inherited, InheritedError> {
    // SAFETY: F_GETFD only asks whether the number is an open descriptor; it touches no memory.
    if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1 {
        return Err(InheritedError::Io { name, descriptor, source: io::Error::last_os_error() });
    }
    // SAFETY: the descriptor is open, and LISTEN_PID gave it to this process; the variables have been removed, so this
    // code takes the descriptor only once.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    match prepare(&socket) {
        Ok(Some(address)) => Ok(Inherited { name, socket, address }),
        Ok(None) => Err(InheritedError::Unsupported { name, descriptor }),
        Err(error) if error.raw_os_error() == Some(libc::ENOTSOCK) => {
            Err(InheritedError::Unsupported { name, descriptor })
        }
        Err(source) => Err(InheritedError::Io { name, descriptor, source }),
    }
}

/// The address of a socket that another process has passed on: `None` unless it listens (TCP, Unix) or is bound (UDP). It
/// becomes nonblocking and close-on-exec. The address of a Unix socket is that of its bind, which a rename may have changed.
pub fn listening(fd: &OwnedFd) -> io::Result<Option<ListenAddress>> {
    prepare(fd)
}

fn prepare(fd: &OwnedFd) -> io::Result<Option<ListenAddress>> {
    fcntl(fd.as_fd(), FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    let socket = SockRef::from(fd);
    let local = socket.local_addr()?;
    if let (Type::DGRAM, Some(Protocol::UDP), Some(address)) =
        (socket.r#type()?, socket.protocol()?, local.as_socket())
    {
        // Without a port it is not bound, and no client could know it.
        let is_bound = address.port() != 0;
        if is_bound {
            socket.set_nonblocking(true)?;
            crate::datagram::prepare(&socket, address)?;
        }
        return Ok(is_bound.then_some(ListenAddress::Udp(address)));
    }
    if socket.r#type()? != Type::STREAM || !socket.is_listener()? {
        return Ok(None);
    }
    socket.set_nonblocking(true)?;
    let tcp = local.as_socket().map(ListenAddress::Tcp);
    Ok(tcp.or_else(|| local.as_pathname().map(Path::to_owned).map(ListenAddress::Unix)))
}

/// Number of the first descriptor that systemd passes (SD_LISTEN_FDS_START).
const FIRST_DESCRIPTOR: RawFd = 3;
/// Limit of `LISTEN_FDS`: a higher value is an error. No real service has so many sockets.
const MOST_DESCRIPTORS: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(pid: &str, count: &str, names: &str) -> Passed {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Passed { pid: some(pid), count: some(count), names: some(names) }
    }

    #[test]
    fn names_belong_to_descriptors_in_order_and_missing_ones_are_unknown() {
        assert_eq!(passed("7", "2", "web:api").names_for(7).unwrap(), ["web", "api"]);
        assert_eq!(passed("7", "3", "web").names_for(7).unwrap(), ["web", "unknown", "unknown"]);
        assert_eq!(passed("7", "1", "web:api").names_for(7).unwrap(), ["web"]);
        assert_eq!(passed("7", "1", "").names_for(7).unwrap(), ["unknown"]);
    }

    #[test]
    fn sockets_of_another_process_are_not_ours() {
        assert!(passed("8", "2", "").names_for(7).unwrap().is_empty());
        assert!(passed("", "2", "").names_for(7).unwrap().is_empty());
        assert!(passed("7", "", "web").names_for(7).unwrap().is_empty());
    }

    #[test]
    fn numbers_that_make_no_sense_are_named() {
        for (pid, count, variable) in
            [("x", "1", "LISTEN_PID"), ("7", "-1", "LISTEN_FDS"), ("7", "99999999", "LISTEN_FDS")]
        {
            let error = passed(pid, count, "").names_for(7).unwrap_err().to_string();
            assert!(error.starts_with(variable), "{error}");
        }
    }
}
