//! What moves the bytes of TCP sessions, in `penstock ctl status`.

use config::types::{Engine, Protocol};
use proxy::snapshot::Snapshot;
use serde::Serialize;
use state::engine::{EngineInUse, EngineState};

#[derive(Clone, Debug, Serialize)]
pub struct EngineReport {
    /// `process.engine` when the process began.
    pub chosen: &'static str,
    /// `epoll` or `io-uring`.
    pub in_use: &'static str,
    /// Why it is `epoll`, unless that was chosen.
    pub reason: Option<String>,
    /// With `io-uring`: the listeners that are served by epoll all the same.
    pub by_epoll: Vec<ByEpoll>,
    /// Workers that cannot use their io_uring, or no more, and why.
    pub failures: Vec<String>,
    #[serde(skip)]
    tells: Tells,
}

#[derive(Clone, Debug, Serialize)]
pub struct ByEpoll {
    pub listener: String,
    pub reason: &'static str,
    #[serde(skip)]
    tells: Tells,
}

/// Where the engine is told. What no other setting would change is in JSON only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tells {
    All,
    Programs,
}

impl EngineReport {
    pub fn read(engine: &EngineState, snapshot: &Snapshot) -> Self {
        let config = &snapshot.config;
        let (reason, tells) = match (&engine.in_use, engine.chosen) {
            (EngineInUse::EpollInstead(why), _) => (Some(why.clone()), Tells::All),
            (EngineInUse::IoUring, _) => (None, Tells::All),
            (EngineInUse::Epoll, Engine::Epoll) => (None, Tells::Programs),
            (EngineInUse::Epoll, Engine::Auto | Engine::IoUring) => {
                let could = config.listeners.iter().filter(|one| config.why_not_in_ring(one).is_none());
                let could: Vec<_> = could.map(|one| &*one.name).collect();
                match could.join(", ") {
                    none if none.is_empty() => {
                        (Some("no listener can use io_uring".to_owned()), Tells::Programs)
                    }
                    names => {
                        let why = format!(
                            "no listener could use it at the start; after an upgrade or a restart {names} could"
                        );
                        (Some(why), Tells::All)
                    }
                }
            }
        };
        let listeners = match engine.in_use {
            EngineInUse::IoUring => &*config.listeners,
            EngineInUse::Epoll | EngineInUse::EpollInstead(_) => &[],
        };
        let by_epoll = listeners.iter().filter_map(|listener| {
            let reason = config.why_not_in_ring(listener)?;
            let tells =
                if matches!(listener.protocol, Protocol::Tcp(_)) { Tells::All } else { Tells::Programs };
            Some(ByEpoll { listener: listener.name.to_string(), reason, tells })
        });
        let (chosen, in_use) = (engine.chosen.as_str(), engine.in_use.word());
        Self { chosen, in_use, reason, by_epoll: by_epoll.collect(), failures: engine.failures(), tells }
    }

    /// `engine: io-uring; by epoll: raw (tls)`; `None` if there is nothing to tell.
    pub fn line(&self) -> Option<String> {
        if self.tells == Tells::Programs {
            return None;
        }
        if let Some(why) = &self.reason {
            return Some(format!("engine: {}, not io-uring: {why}", self.in_use));
        }
        let told = self.by_epoll.iter().filter(|one| one.tells == Tells::All);
        let each: Vec<_> = told.map(|one| format!("{} ({})", one.listener, one.reason)).collect();
        let others = if each.is_empty() { String::new() } else { format!("; by epoll: {}", each.join(", ")) };
        let failures: String = self.failures.iter().map(|what| format!("; {what}")).collect();
        Some(format!("engine: {}{others}{failures}", self.in_use))
    }
}
