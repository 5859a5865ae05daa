//! The identity of the process at the other end of a Unix socket, as the kernel reports it.

use std::io;
use std::os::fd::AsFd;

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
    fn a_socket_without_a_peer_has_no_credentials() {
        let lonely = UnixDatagram::unbound().unwrap();
        assert_eq!(credentials(&lonely).unwrap_err().kind(), io::ErrorKind::NotConnected);
    }
}
