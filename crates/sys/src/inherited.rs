//! Listening sockets that systemd opened for us (socket activation, sd_listen_fds(3)).
//!
//! Called once, first thing in `main`, before any thread: it takes the variables out of the environment so that
//! no program started from here believes they are meant for it.

use std::env;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use socket2::{SockRef, Type};

use crate::threads;

/// Where an inherited socket listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// TCP over IPv4 or IPv6.
    Tcp(SocketAddr),
    /// A Unix stream socket with a path.
    Unix(PathBuf),
}

/// One listening socket, nonblocking and closed on exec.
#[derive(Debug)]
pub struct Inherited {
    /// `FileDescriptorName=` of the socket unit; `unknown` when none was passed.
    pub name: String,
    /// The socket. Turn it into a `TcpListener` or `UnixListener` after a look at `address`.
    pub socket: OwnedFd,
    /// Where it listens.
    pub address: ListenAddress,
}

/// Why the sockets that were passed cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InheritedError {
    /// Asked too late: with other threads running, the environment cannot be changed safely.
    #[error("inherited sockets must be taken before threads start, but {threads} are running")]
    Threads {
        /// How many there are.
        threads: usize,
    },
    /// A variable is there and makes no sense.
    #[error("{variable} is \"{value}\", which is not a number that makes sense there")]
    Variable {
        /// `LISTEN_PID` or `LISTEN_FDS`.
        variable: &'static str,
        /// What it held.
        value: String,
    },
    /// Not a listening TCP or Unix stream socket.
    #[error(
        "inherited socket \"{name}\" (descriptor {descriptor}) is not a listening TCP or Unix stream socket"
    )]
    Unsupported {
        /// Its name.
        name: String,
        /// Its number.
        descriptor: RawFd,
    },
    /// The descriptor cannot be used at all.
    #[error("using inherited socket \"{name}\" (descriptor {descriptor}) failed")]
    Io {
        /// Its name.
        name: String,
        /// Its number.
        descriptor: RawFd,
        /// The kernel's reason.
        source: io::Error,
    },
    /// `/proc` cannot be read.
    #[error("counting the threads of this process failed")]
    Proc(#[source] io::Error),
}

/// The sockets passed to this process, in the order of the socket units; none when it was started otherwise.
///
/// A second call finds none.
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
        // SAFETY: this is the only thread (counted above), so nobody reads the environment meanwhile.
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
    /// One name per descriptor. Empty when the sockets are for another process than `own`.
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
    // SAFETY: it is open, and LISTEN_PID gave it to this process; the variables are gone, so this happens once.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    match prepare(&socket) {
        Ok(Some(address)) => Ok(Inherited { name, socket, address }),
        Ok(None) => Err(InheritedError::Unsupported { name, descriptor }),
        // Whatever is not a socket says so here.
        Err(error) if error.raw_os_error() == Some(libc::ENOTSOCK) => {
            Err(InheritedError::Unsupported { name, descriptor })
        }
        Err(source) => Err(InheritedError::Io { name, descriptor, source }),
    }
}

fn prepare(fd: &OwnedFd) -> io::Result<Option<ListenAddress>> {
    fcntl(fd.as_fd(), FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    let socket = SockRef::from(fd);
    if socket.r#type()? != Type::STREAM || !socket.is_listener()? {
        return Ok(None);
    }
    socket.set_nonblocking(true)?;
    let local = socket.local_addr()?;
    let tcp = local.as_socket().map(ListenAddress::Tcp);
    Ok(tcp.or_else(|| local.as_pathname().map(Path::to_owned).map(ListenAddress::Unix)))
}

/// systemd passes descriptors from this number on (SD_LISTEN_FDS_START).
const FIRST_DESCRIPTOR: RawFd = 3;
/// More than any service has; keeps a wild number from being taken for a count.
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
