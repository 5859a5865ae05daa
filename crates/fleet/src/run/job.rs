//! The job of a run: a command, or a copy of files.

use std::time::Duration;

use ssh::Moved;

use super::copy::order as copy;
use super::engine::Watcher;
use super::input::Input;

#[derive(Debug, Clone)]
pub enum Job {
    Command(Order),
    Copy(copy::Order),
}

impl Job {
    pub(super) fn done(&self) -> Done {
        match self {
            Self::Command(_) => Done::Ran,
            Self::Copy(order) => match order.what {
                copy::What::Put { .. } => Done::Put(order.moved()),
                copy::What::Get { .. } => Done::Got(order.moved()),
            },
        }
    }
}

/// Creates random letters and digits that a host cannot guess, for [`Order::nonce`].
#[must_use]
pub fn nonce() -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("{:016x}", RandomState::new().hash_one(std::process::id()))
}

#[derive(Debug, Clone)]
pub struct Order {
    /// Command line for the remote shell.
    pub command: String,
    pub input: Input,
    /// Whether the command ends when the connection is lost.
    pub watcher: Watcher,
    /// Letters and digits that a host cannot guess. The watcher prints them, which marks the start of the command's
    /// output.
    pub nonce: String,
    /// Time limit of each phase before the command starts.
    pub connect_timeout: Duration,
    pub timeout: Option<Duration>,
}

/// Totals over all hosts that ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    Ran,
    Put(Moved),
    Got(Moved),
}
