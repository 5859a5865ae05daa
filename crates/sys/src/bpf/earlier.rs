//! What was on the link of a program before a start that may still fail.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::calls;

pub(super) enum Earlier {
    Nothing,
    /// The program of an earlier process. `None`: this user may not open it, and its successor, which has the same maps, stays
    /// in its place.
    Program(Option<OwnedFd>),
}

impl Earlier {
    /// The program of a link.
    pub(super) fn of(link: BorrowedFd<'_>) -> Self {
        Self::Program(calls::program_of(link).ok())
    }

    /// Puts the earlier program back, without a moment between the two.
    pub(super) fn put_back(&self, link: BorrowedFd<'_>) {
        if let Self::Program(Some(program)) = self {
            // Where the kernel does not take it back, its successor forwards packets with the same maps.
            let _ = calls::replace(link, program.as_fd());
        }
    }
}
