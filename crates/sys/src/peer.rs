//! The identity of the process at the other end of a Unix socket, as the kernel reports it.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

/// The process that connected, with its identity at the moment of the connection (SO_PEERCRED, unix(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    /// Process id; `None` if the process is in a PID namespace that this process cannot see. For logs only: the kernel
    /// may have given the id to another process since.
    pub pid: Option<u32>,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

/// Returns the credentials of the peer of a connected Unix stream socket.
pub fn credentials<S: AsFd>(stream: &S) -> io::Result<Credentials> {
    let peer = getsockopt(stream, PeerCredentials)?;
    let pid = u32::try_from(peer.pid()).ok().filter(|pid| *pid > 0);
    // A socket that is not connected has no peer: the kernel then reports pid 0, and ids with all bits set.
    if pid.is_none() && peer.uid() == u32::MAX {
        return Err(io::ErrorKind::NotConnected.into());
    }
    Ok(Credentials { pid, uid: peer.uid(), gid: peer.gid() })
}

/// Returns the supplementary groups of the peer at the moment of the connection (SO_PEERGROUPS, since Linux 4.13).
pub fn groups<S: AsFd>(stream: &S) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; 32];
    // Once more with the size that the kernel asks for; a process has 65,536 groups at most.
    for _ in 0..2 {
        let mut length = (groups.len() * size_of::<u32>()) as nix::libc::socklen_t;
        // SAFETY: `groups` has room for `length` bytes, any bytes are valid numbers, and the kernel writes no more.
        let result = unsafe {
            nix::libc::getsockopt(
                stream.as_fd().as_raw_fd(),
                nix::libc::SOL_SOCKET,
                nix::libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = (length as usize / size_of::<u32>()).min(65_536);
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(nix::libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
    Err(io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use nix::unistd::{getegid, geteuid};

    use super::*;

    #[test]
    fn the_peer_of_an_own_socket_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let own =
            Credentials { pid: Some(std::process::id()), uid: geteuid().as_raw(), gid: getegid().as_raw() };
        assert_eq!(credentials(&one).unwrap(), own);
    }

    #[test]
    fn the_groups_of_an_own_socket_pair_are_those_of_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let own: Vec<u32> =
            nix::unistd::getgroups().unwrap().into_iter().map(|group| group.as_raw()).collect();
        assert_eq!(groups(&one).unwrap(), own);
    }

    #[test]
    fn a_socket_without_a_peer_has_no_credentials() {
        let lonely = UnixDatagram::unbound().unwrap();
        assert_eq!(credentials(&lonely).unwrap_err().kind(), io::ErrorKind::NotConnected);
    }
}
