//! Looks at the files by which users and operators log in, at a start and a reload: one that cannot be used is degraded before
//! the first log-in fails. Each log-in says it too: `crates/serve/src/logins.rs` of the file of users,
//! `crates/serve/src/keytab.rs` of the keys of the service.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use config::Config;
use state::State;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::keytab::Keytab;
use crate::logins::{Logins, SUBJECT, subject};

/// Time that a start and a reload wait for the disk.
const LIMIT: Duration = Duration::from_secs(2);

pub(crate) async fn look(config: &Config, logins: &Logins, state: &Arc<State>) {
    let remote = config.remote_control();
    let files: Vec<&Path> = [
        remote.and_then(|remote| remote.users.as_deref()),
        config.admin.as_ref().and_then(|admin| admin.users.as_deref()),
        config.otp.as_ref().and_then(|otp| otp.users.as_deref()),
    ]
    .into_iter()
    .flatten()
    .collect();
    let subjects: Vec<String> = files.iter().map(|path| subject(path)).collect();
    let is_gone = |known: &str| known.starts_with(SUBJECT) && !subjects.iter().any(|one| one == known);
    state.forget_degraded(is_gone);
    let keys = Keytab::of(remote);
    if keys.is_none() {
        state.forget_degraded(|subject| subject == Keytab::SUBJECT);
    }
    let looking = async {
        for path in files {
            // What is wrong is told as degraded.
            let _ = logins.users(Some(path)).await;
        }
        if let Some(keys) = keys {
            let state = state.clone();
            let _ = spawn_blocking(move || keys.tell(&state)).await;
        }
    };
    // A look that takes longer goes on. The next log-in tells a fault that it meets, too.
    let _ = timeout(LIMIT, looking).await;
}
