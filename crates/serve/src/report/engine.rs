//! What moves the bytes of TCP sessions, in `penstock ctl status`.

use proxy::snapshot::Snapshot;
use serde::Serialize;
use state::engine::EngineInUse;

#[derive(Clone, Debug, Serialize)]
pub struct EngineReport {
    /// `epoll` or `io-uring`.
    pub in_use: &'static str,
    /// Why it is not the one that was chosen.
    pub reason: Option<String>,
    /// With `io-uring`: the listeners that are served by epoll all the same.
    pub by_epoll: Vec<ByEpoll>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ByEpoll {
    pub listener: String,
    pub reason: &'static str,
}

impl EngineReport {
    pub fn read(engine: &EngineInUse, snapshot: &Snapshot) -> Self {
        let config = &snapshot.config;
        let reason = match engine {
            EngineInUse::EpollInstead(why) => Some(why.clone()),
            EngineInUse::Epoll | EngineInUse::IoUring => None,
        };
        let listeners = match engine {
            EngineInUse::IoUring => &*config.listeners,
            EngineInUse::Epoll | EngineInUse::EpollInstead(_) => &[],
        };
        let by_epoll = listeners.iter().filter_map(|listener| {
            let reason = config.why_not_in_ring(listener)?;
            Some(ByEpoll { listener: listener.name.to_string(), reason })
        });
        Self { in_use: engine.word(), reason, by_epoll: by_epoll.collect() }
    }

    /// `engine: io-uring; by epoll: web (its protocol is not tcp)`; `None` if epoll was chosen.
    pub fn line(&self) -> Option<String> {
        if let Some(why) = &self.reason {
            return Some(format!("engine: {}, not io-uring: {why}", self.in_use));
        }
        if self.in_use == EngineInUse::Epoll.word() {
            return None;
        }
        let each = self.by_epoll.iter().map(|one| format!("{} ({})", one.listener, one.reason));
        let each: Vec<_> = each.collect();
        let others = if each.is_empty() { String::new() } else { format!("; by epoll: {}", each.join(", ")) };
        Some(format!("engine: {}{others}", self.in_use))
    }
}
