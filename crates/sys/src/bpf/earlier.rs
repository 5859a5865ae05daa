//! What was on the interface of a program before a start that may still fail.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use super::clsact::{self, Qdisc};
use super::pins::{FlowsName, QDISC};
use super::place::{Place, name_program};
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
    pub(super) fn take(link: BorrowedFd<'_>, hook: Hook, name: PathBuf) -> io::Result<Self> {
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
    /// Undoes what a start has done that has failed: the program at `place` goes, and the earlier one is there again.
    pub(super) fn put_back(&self, place: &Place, hook: Hook, index: u32, pins: Option<&(Pins, FlowsName)>) {
        match self {
            Self::Nothing => {
                // An error leaves a filter whose program lets all pass.
                let _ = place.leave_filter();
                forget(hook, pins);
            }
            Self::Program(earlier) => {
                // Where the kernel does not take it back, its successor forwards packets with the same maps.
                let is_back = earlier.as_ref().is_some_and(|it| place.replace(it.as_fd()).is_ok());
                if let (true, Some((pins, flows))) = (is_back, pins) {
                    if let (Hook::TcFilter, Some(program)) = (hook, earlier) {
                        // The name of the program that was put back: the next start needs it to put that back again.
                        let _ = name_program(pins, program.as_fd());
                    }
                    flows.undo(pins);
                }
            }
            Self::OfAnother(earlier) => {
                if let Some(program) = earlier {
                    let _ = place.replace(program.as_fd());
                }
                forget(hook, pins);
            }
            Self::OtherMode(taken) => {
                // A process that has given up the right to do this leaves the program where it is.
                if taken.program.is_some() && place.leave().is_ok() && taken.put_back(index) {
                    forget(hook, pins);
                }
            }
        }
    }
}

/// Puts a program on an interface by a filter, in the place of the one that an earlier process of the service has left there.
/// The name of the program says that the service has a filter.
pub(super) fn put_filter(pins: &Pins, index: u32, program: BorrowedFd<'_>) -> io::Result<(Place, Earlier)> {
    let (name, path) = (pins.filter_name(), pins.path(Hook::TcFilter.pin()));
    let (place, before) = match clsact::find(index, &name)? {
        Some(filter) => {
            let is_ours = pins.has(QDISC) || pins.shares_made_qdisc(index);
            let qdisc = if is_ours { Qdisc::Made } else { Qdisc::WasThere };
            let before = calls::get(&path).ok();
            filter.replace(&name, program)?;
            (Place::Filter { filter, name, qdisc }, Earlier::Program(before))
        }
        None => {
            let (filter, qdisc) = clsact::add(index, &name, program)?;
            let qdisc = if pins.shares_made_qdisc(index) { Qdisc::Made } else { qdisc };
            if qdisc == Qdisc::WasThere && pins.has(QDISC) {
                // The mark of an earlier run, whose qdisc is gone.
                let _ = pins.remove_one(QDISC);
            }
            (Place::Filter { filter, name, qdisc }, Earlier::Nothing)
        }
    };
    let is_made = matches!(&place, Place::Filter { qdisc: Qdisc::Made, .. });
    let named = name_program(pins, program).and_then(|()| if is_made { pins.mark(QDISC) } else { Ok(()) });
    if let Err(error) = named {
        match &before {
            Earlier::Program(Some(earlier)) => drop(place.replace(earlier.as_fd())),
            _ => drop(place.leave()),
        }
        return Err(error);
    }
    Ok((place, before))
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
