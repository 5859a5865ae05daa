//! Kerberos of the server: the library of GSSAPI and the keys of the service. Calls read files and may wait, so a few threads
//! beside the runtime make them.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use access::sasl::krb5::LONGEST;
use config::types::RemoteControl;
use state::State;
use sys::gssapi::{Accepted, Keys, Library};
use tokio::sync::Semaphore;

use crate::keytab::{Keytab, NamedBy};

/// Calls at the same time.
pub(super) const CALLS: usize = 4;

/// File in the state directory with the tokens that were seen.
const REPLAYS: &str = "kerberos-replays";

/// Subject of the list of degraded subjects.
const SUBJECT: &str = "control.kerberos";

#[derive(Debug)]
pub(in crate::control) struct Kerberos {
    /// `None`: not wanted at the start, or the library is not there.
    library: Option<Library>,
    /// Why it is not there.
    why: Option<String>,
    calls: Arc<Semaphore>,
}

impl Kerberos {
    /// Loads the library, if the configuration wants it. To be called before files are restricted.
    pub(in crate::control) fn load(remote: Option<&RemoteControl>) -> Self {
        let loaded = remote.and_then(|remote| remote.kerberos.as_ref()).map(|_| Library::load());
        let (library, why) = match loaded {
            None => (None, None),
            Some(Ok(library)) => (Some(library), None),
            Some(Err(why)) => (None, Some(why)),
        };
        Self { library, why, calls: Arc::new(Semaphore::new(CALLS)) }
    }

    /// Says what is wanted and cannot be had.
    pub(in crate::control) fn announce(&self, remote: Option<&RemoteControl>, state: &State) {
        let is_wanted = remote.is_some_and(|remote| remote.kerberos.is_some());
        match (&self.why, is_wanted && self.library.is_none()) {
            (Some(why), true) => state.degrade(SUBJECT, &format!("GS2-KRB5 is not offered: {why}")),
            (None, true) => state.degrade(SUBJECT, "GS2-KRB5 is not offered before the next start"),
            (_, false) => state.restore(SUBJECT),
        }
    }

    /// Whether GS2-KRB5-PLUS can be offered; the other one wants a file of tokens that were seen too.
    pub(super) fn is_there(&self, remote: &RemoteControl) -> bool {
        self.library.is_some() && remote.kerberos.is_some()
    }

    /// Accepts a token. The error is for the log.
    pub(super) async fn accept(
        &self,
        (remote, state): (&RemoteControl, &Arc<State>),
        replays: Option<PathBuf>,
        token: Vec<u8>,
        application_data: Vec<u8>,
    ) -> Result<Accepted, String> {
        let (Some(library), Some(settings)) = (self.library, remote.kerberos.clone()) else {
            return Err("Kerberos is not there".to_owned());
        };
        if token.len() > LONGEST {
            return Err("the token is too long".to_owned());
        }
        let host = match settings.host {
            Some(host) => host,
            None => nix::unistd::gethostname()
                .map(|name| name.to_string_lossy().into_owned())
                .map_err(|error| format!("the name of this machine: {error}"))?,
        };
        let service = format!("{}@{host}", settings.service);
        // The permit goes with the call: a client that leaves does not make room for more calls.
        let permit = self.calls.clone().acquire_owned().await.map_err(|_| "the process is ending")?;
        let (own, state) = (Keytab::of(Some(remote)), state.clone());
        let call = move || {
            let _permit = permit;
            if let Some(own) = &own {
                own.tell(&state);
                // Where the system has its keys the library knows best.
                if let Some(why) = own.fault().filter(|_| own.named_by == NamedBy::Configuration) {
                    return Err(why);
                }
            }
            let keys =
                Keys { keytab: settings.keytab.as_deref(), replays: replays.as_deref(), service: &service };
            library.accept(keys, &token, &application_data).map_err(|error| error.to_string())
        };
        tokio::task::spawn_blocking(call).await.map_err(|error| error.to_string())?
    }
}

/// File of the tokens that were seen: without it a token that is not bound to its connection could be used again.
pub(super) fn replays(state_directory: Option<&Path>) -> Option<PathBuf> {
    let directory = state_directory.or(state::state_directory::usual())?;
    Some(directory.join(REPLAYS))
}

/// Files that the library reads beside the keytab.
pub(crate) fn files() -> Vec<PathBuf> {
    let named = env::var_os("KRB5_CONFIG").filter(|value| !value.is_empty());
    match named {
        Some(paths) => env::split_paths(&paths).filter(|path| path.is_absolute()).collect(),
        None => vec![PathBuf::from("/etc/krb5.conf")],
    }
}
