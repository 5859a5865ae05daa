//! What moves the bytes of TCP sessions in this process, for workers and reports.

use std::io;
use std::sync::Mutex;

use config::Config;
use config::types::Engine;
use logic::rings::WantedRings;
use nix::errno::Errno;
use sys::ring::Ring;

use crate::lock::lock;

/// The engine of the process.
#[derive(Default)]
pub struct EngineState {
    /// `process.engine` when the process began.
    pub chosen: Engine,
    pub in_use: EngineInUse,
    /// Rings for workers that have not begun yet.
    rings: Mutex<Vec<Ring>>,
    /// Workers that have no ring any more, and why.
    failures: Mutex<Vec<String>>,
}

/// The engine that is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EngineInUse {
    /// It was chosen, or no listener could use another one.
    #[default]
    Epoll,
    IoUring,
    /// There is no io_uring, with the reason.
    EpollInstead(String),
}

impl EngineState {
    /// Makes the rings that a configuration wants, or finds that they cannot be had. To be called before the process gives up
    /// io_uring_setup(2).
    pub fn make(config: &Config, workers: usize) -> Self {
        let chosen = config.process.engine;
        if config.wanted_rings() == WantedRings::None {
            return Self { chosen, ..Self::default() };
        }
        let rings: io::Result<Vec<_>> = (0..workers).map(|_| Ring::new()).collect();
        match rings {
            Ok(rings) => Self {
                chosen,
                in_use: EngineInUse::IoUring,
                rings: Mutex::new(rings),
                failures: Mutex::default(),
            },
            Err(error) => {
                Self { chosen, in_use: EngineInUse::EpollInstead(reason(&error)), ..Self::default() }
            }
        }
    }

    /// Why this process cannot make a ring; `None` if it can.
    pub fn why_no_ring() -> Option<String> {
        Ring::new().err().map(|error| reason(&error))
    }

    /// The ring of a worker that begins. `None` if it is served by epoll.
    pub fn take_ring(&self) -> Option<Ring> {
        lock(&self.rings).pop()
    }

    /// Notes that a worker cannot use its ring, or no more, and is served by epoll.
    pub fn note_failure(&self, what: String) {
        lock(&self.failures).push(what);
    }

    pub fn failures(&self) -> Vec<String> {
        lock(&self.failures).clone()
    }
}

impl EngineInUse {
    /// The engine in a word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Epoll | Self::EpollInstead(_) => Engine::Epoll.as_str(),
            Self::IoUring => Engine::IoUring.as_str(),
        }
    }
}

/// Why there is no ring, and what to do.
fn reason(error: &io::Error) -> String {
    let why = match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOSYS) => {
            "this kernel has no io_uring, or a container hides it: Linux 6.0 or newer is needed"
        }
        Some(Errno::EPERM | Errno::EACCES) => {
            "it is forbidden here: set kernel.io_uring_disabled to 0, and allow io_uring in the seccomp profile of the container"
        }
        Some(Errno::EINVAL) => "this kernel is too old: Linux 6.0 or newer is needed",
        Some(Errno::EMFILE | Errno::ENFILE) => "no descriptor is free: raise LimitNOFILE",
        Some(Errno::ENOMEM) => "too little memory is free, or may be locked: raise LimitMEMLOCK",
        _ => "the kernel refuses it",
    };
    format!("{why} ({error})")
}
