//! What the supervisor keeps for an upgrade, and what it knows after one.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use config::Config;
use config::types::BindAddress;
use state::kept::traffic::Traffic;
use sys::pid_file::PidFile;
use tokio::sync::{Notify, oneshot};

use crate::acceptor::Bound;
use crate::upgrade::Launch;
use crate::upgrade::guardian::Guardian;
use crate::upgrade::hand_over::Newer;

/// What an upgrade needs beside what the supervisor has.
pub(super) struct Means {
    pub(super) guardian: Result<Arc<Guardian>, String>,
    pub(super) admin: Option<(String, OwnedFd, Option<sys::socket::SocketFile>)>,
    /// Ends the admin listener.
    pub(super) admin_off: Arc<Notify>,
    pub(super) pid_file: Option<PidFile>,
}

/// The next process serves, and this one ends with its last session.
pub(super) struct HandedOver {
    pub(super) newer: Newer,
    pub(super) limit: Duration,
    /// What the next process knows to be counted here.
    pub(super) counted: Option<Traffic>,
    pub(super) told: Option<oneshot::Receiver<()>>,
}

impl Means {
    pub(super) fn new(
        guardian: Result<Guardian, String>,
        admin: Option<(&BindAddress, &Bound)>,
        pid_file: Option<PidFile>,
    ) -> Self {
        let shared = admin.and_then(|(bind, listener)| {
            let (socket, file) = listener.share().ok()?;
            Some((bind.to_string(), socket, file))
        });
        let guardian = guardian.and_then(|guardian| guardian.confirm().map(|()| Arc::new(guardian)));
        Self { guardian, admin: shared, admin_off: Arc::default(), pid_file }
    }

    /// Closes the further descriptor of the admin listener: the file of a Unix socket is removed only when no process has it
    /// open any more.
    pub(super) fn close_admin(&mut self) {
        self.admin = None;
    }
}

/// Starts the guardian, if operators can ask for an upgrade. The error says why there is none.
pub(super) fn start_guardian(launch: &Result<Launch, String>, config: &Config) -> Result<Guardian, String> {
    let launch = launch.as_ref().map_err(String::clone)?;
    if config.control.is_none() {
        return Err("it has no control socket".to_owned());
    }
    Guardian::start(launch).map_err(|error| {
        let why = format!("the process that would start the next one cannot be started: {error}");
        tracing::warn!("upgrades are not possible: {why}");
        why
    })
}
