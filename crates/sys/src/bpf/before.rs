//! A program on an interface as long as the start of its process may fail: then it is taken away again, or what was there
//! before comes back.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{Hook, Plane, calls};

/// What was on the link of a program.
pub(super) enum Before {
    Nothing,
    /// The program of an earlier process. `None`: this user may not open it, and its successor, which has the same maps, stays
    /// in its place.
    Program(Option<OwnedFd>),
}

impl Before {
    /// The program of a link.
    pub(super) fn of(link: BorrowedFd<'_>) -> Self {
        Self::Program(calls::program_of(link).ok())
    }
}

impl Plane {
    /// The start has succeeded: from now on the program stays until [`Plane::detach`], and one that an earlier process has
    /// left in another place of the interface goes away.
    pub fn keep(&mut self) {
        if self.before.take().is_none() {
            return;
        }
        let Some(pins) = &self.pins else { return };
        for other in
            [Hook::Tc, Hook::Xdp, Hook::XdpGeneric].into_iter().filter(|other| other.pin() != self.hook.pin())
        {
            // It has none, as a rule.
            let _ = pins.remove_one(other.pin());
        }
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        match (self.before.take(), &self.pins) {
            (Some(Before::Program(Some(program))), _) => {
                // Where the kernel does not take it back, its successor forwards packets with the same maps.
                let _ = calls::replace(self.link.as_fd(), program.as_fd());
            }
            (Some(Before::Nothing), Some(pins)) => {
                // Without its name it goes away with the link. Maps that another program uses keep their names.
                let _ = pins.remove_one(self.hook.pin()).and_then(|()| pins.remove_unused());
            }
            (Some(Before::Program(None)) | None, _) | (Some(Before::Nothing), None) => {}
        }
    }
}
