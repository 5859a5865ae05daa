//! Who speaks on the control socket, and who may.

use std::sync::Arc;

use tokio::net::UnixStream;

use crate::front::Front;

/// Who is at the other end, as the kernel says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Who {
    pub(super) uid: u32,
    /// Absent when it lives in another PID namespace.
    pub(super) pid: Option<i32>,
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "uid {} (pid {pid})", self.uid),
            None => write!(f, "uid {}", self.uid),
        }
    }
}

/// What all sessions share.
pub(super) struct Shared {
    pub(super) front: Arc<Front>,
    pub(super) owner: u32,
}

impl Shared {
    /// The kernel says who connected; root and whoever runs this process may.
    pub(super) fn admit(&self, stream: &UnixStream) -> Result<Who, String> {
        let peer = stream.peer_cred().map_err(|error| format!("cannot tell who is there: {error}"))?;
        let allowed = [0, self.owner, nix::unistd::geteuid().as_raw()];
        if allowed.contains(&peer.uid()) {
            Ok(Who { uid: peer.uid(), pid: peer.pid() })
        } else {
            Err(format!("uid {} may not control this process", peer.uid()))
        }
    }
}
