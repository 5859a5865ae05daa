//! Identification and authorization of control clients.

use std::sync::Arc;

use proxy::front::Front;
use tokio::net::UnixStream;

/// Credentials of the client process, from the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerCredentials {
    pub(super) uid: u32,
    /// `None` if the client runs in another PID namespace.
    pub(super) pid: Option<i32>,
}

impl std::fmt::Display for PeerCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "uid {} (pid {pid})", self.uid),
            None => write!(f, "uid {}", self.uid),
        }
    }
}

/// State that all control sessions share.
pub(super) struct Shared {
    pub(super) front: Arc<Front>,
    pub(super) owner: u32,
}

impl Shared {
    /// Admits root and the user of this process, by the kernel's peer credentials. Returns the refusal for other users.
    pub(super) fn admit(&self, stream: &UnixStream) -> Result<PeerCredentials, String> {
        let peer = stream.peer_cred().map_err(|error| format!("cannot tell who is there: {error}"))?;
        let allowed = [0, self.owner, nix::unistd::geteuid().as_raw()];
        if allowed.contains(&peer.uid()) {
            Ok(PeerCredentials { uid: peer.uid(), pid: peer.pid() })
        } else {
            Err(format!("uid {} may not control this process", peer.uid()))
        }
    }
}
