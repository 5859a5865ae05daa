//! What was on the interface of a program before a start that may still fail.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use super::pins::FlowsName;
use super::{Hook, Pins, calls};

pub(super) enum Earlier {
    Nothing,
    /// The program of an earlier process of this service, on the same link. `None`: this user may not open it, and its
    /// successor, which has the same maps, stays in its place.
    Program(Option<OwnedFd>),
    /// The same of another service, whose name the link has as well.
    OfAnother(Option<OwnedFd>),
    /// It was in the other mode of XDP. The name of its link is still there.
    OtherMode(Taken),
}

/// A program that was taken off its interface.
pub(super) struct Taken {
    program: Option<OwnedFd>,
    hook: Hook,
    name: PathBuf,
}

impl Taken {
    /// Takes the program of a link off the interface.
    pub(super) fn take(link: BorrowedFd<'_>, hook: Hook, name: PathBuf) -> std::io::Result<Self> {
        let program = calls::program_of(link).ok();
        calls::detach(link)?;
        Ok(Self { program, hook, name })
    }

    /// Puts it on the interface again. Returns whether it is there.
    pub(super) fn put_back(&self, index: u32) -> bool {
        let Some(program) = &self.program else { return false };
        let (kind, flags) = self.hook.attach();
        let Ok(link) = calls::attach(program.as_fd(), index, kind, flags) else { return false };
        let _ = fs::remove_file(&self.name);
        calls::pin(link.as_fd(), &self.name).is_ok()
    }
}

impl Earlier {
    /// Undoes what a start has done that has failed: the program of `link` goes, and the earlier one is there again.
    pub(super) fn put_back(
        &self,
        link: BorrowedFd<'_>,
        hook: Hook,
        index: u32,
        pins: Option<&(Pins, FlowsName)>,
    ) {
        match self {
            Self::Nothing => forget(hook, pins),
            Self::Program(earlier) => {
                // Where the kernel does not take it back, its successor forwards packets with the same maps.
                let is_back = earlier.as_ref().is_some_and(|it| calls::replace(link, it.as_fd()).is_ok());
                if let (true, Some((pins, flows))) = (is_back, pins) {
                    flows.undo(pins);
                }
            }
            Self::OfAnother(earlier) => {
                if let Some(program) = earlier {
                    let _ = calls::replace(link, program.as_fd());
                }
                forget(hook, pins);
            }
            Self::OtherMode(taken) => {
                // A process that has given up the right to do this leaves the program where it is.
                if taken.program.is_some() && calls::detach(link).is_ok() && taken.put_back(index) {
                    forget(hook, pins);
                }
            }
        }
    }
}

/// Forgets a link and what was made for it. Without its name it goes away with its descriptor. Maps that another program uses
/// keep their names.
fn forget(hook: Hook, pins: Option<&(Pins, FlowsName)>) {
    if let Some((pins, flows)) = pins {
        let _ = pins.remove_one(hook.pin());
        flows.undo(pins);
        let _ = pins.remove_unused();
    }
}
