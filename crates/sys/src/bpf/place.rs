//! What holds a program on its interface.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::clsact::{Filter, Qdisc};
use super::{Hook, Pins, calls};

pub(super) enum Place {
    Link(OwnedFd),
    Filter { filter: Filter, name: String, qdisc: Qdisc },
}

impl Place {
    /// Puts another program in the place of this one, without a moment between the two.
    pub(super) fn replace(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        match self {
            Self::Link(link) => calls::replace(link.as_fd(), program),
            Self::Filter { filter, name, .. } => filter.replace(name, program),
        }
    }

    /// Takes the program off the interface, before the call returns.
    pub(super) fn leave(&self) -> io::Result<()> {
        match self {
            Self::Link(link) => calls::detach(link.as_fd()),
            Self::Filter { .. } => self.leave_filter(),
        }
    }

    /// The same of a filter. A link ends with its name and its descriptor.
    pub(super) fn leave_filter(&self) -> io::Result<()> {
        match self {
            Self::Link(_) => Ok(()),
            Self::Filter { filter, qdisc, .. } => filter.remove(*qdisc),
        }
    }
}

/// Gives the program of a filter its name, in the place of an earlier one. Without the right to it that one stays.
pub(super) fn name_program(pins: &Pins, program: BorrowedFd<'_>) -> io::Result<()> {
    let path = pins.path(Hook::TcFilter.pin());
    let beside = path.with_file_name("filter-next");
    let _ = fs::remove_file(&beside);
    calls::pin(program, &beside)?;
    fs::rename(beside, path)
}
