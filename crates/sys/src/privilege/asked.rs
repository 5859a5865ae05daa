//! Asks the kernel what a user may do with paths, without becoming it for good. Only root can ask, while there is one
//! thread: the question is answered for the rights that this thread takes for its time.

use std::path::Path;

use caps::{CapSet, Capability};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{self, AccessFlags, Uid};

use super::{PrivilegeError, Target, capability, errno, step};
use crate::threads;

/// Kind of access to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    Read,
    /// Writes to a file, or connects to a socket.
    Write,
    /// Makes and removes files in a directory.
    Change,
}

/// Whose rights are asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who<'a> {
    User {
        name: &'a str,
        group: Option<&'a str>,
    },
    /// Root without its capabilities, as [`super::stay`] leaves it: the files of others are closed to it as to anybody.
    BareRoot,
}

/// Returns the first of `paths` that `user` may not reach as asked. A path that does not exist is no answer.
pub fn unreachable<'a>(
    user: &str,
    paths: impl IntoIterator<Item = (&'a Path, Reach)>,
) -> Result<Option<&'a Path>, PrivilegeError> {
    with_rights_of(Who::User { name: user, group: None }, || {
        paths.into_iter().find(|(path, reach)| is_refused(path, *reach)).map(|(path, _)| path)
    })
}

/// The same for all of `paths`.
pub fn all_unreachable<'a>(
    who: Who<'_>,
    paths: impl IntoIterator<Item = (&'a Path, Reach)>,
) -> Result<Vec<&'a Path>, PrivilegeError> {
    with_rights_of(who, || {
        let refused = paths.into_iter().filter(|(path, reach)| is_refused(path, *reach));
        refused.map(|(path, _)| path).collect()
    })
}

fn with_rights_of<T>(who: Who<'_>, ask: impl FnOnce() -> T) -> Result<T, PrivilegeError> {
    let threads = threads::count().map_err(step("counting the threads of this process"))?;
    if threads > 1 {
        return Err(PrivilegeError::Threads { threads });
    }
    match who {
        Who::User { name, group } => as_user(&Target::find(name, group)?, ask),
        Who::BareRoot => without_file_rights(ask),
    }
}

fn as_user<T>(target: &Target, ask: impl FnOnce() -> T) -> Result<T, PrivilegeError> {
    let groups = unistd::getgroups().map_err(errno("reading the groups"))?;
    let gid = unistd::getegid();
    unistd::initgroups(&target.name, target.gid).map_err(errno("setting the supplementary groups"))?;
    unistd::setegid(target.gid).map_err(errno("setting the group"))?;
    unistd::seteuid(target.uid).map_err(errno("setting the user"))?;
    let answer = ask();
    unistd::seteuid(Uid::from_raw(0)).map_err(errno("taking the user back"))?;
    unistd::setegid(gid).map_err(errno("taking the group back"))?;
    unistd::setgroups(&groups).map_err(errno("taking the groups back"))?;
    Ok(answer)
}

fn without_file_rights<T>(ask: impl FnOnce() -> T) -> Result<T, PrivilegeError> {
    let before = caps::read(None, CapSet::Effective).map_err(capability("reading the capabilities"))?;
    let mut less = before.clone();
    less.remove(&Capability::CAP_DAC_OVERRIDE);
    less.remove(&Capability::CAP_DAC_READ_SEARCH);
    caps::set(None, CapSet::Effective, &less).map_err(capability("lowering the capabilities"))?;
    let answer = ask();
    caps::set(None, CapSet::Effective, &before).map_err(capability("taking the capabilities back"))?;
    Ok(answer)
}

fn is_refused(path: &Path, reach: Reach) -> bool {
    let flags = match reach {
        Reach::Read => AccessFlags::R_OK,
        Reach::Write => AccessFlags::W_OK,
        Reach::Change => AccessFlags::W_OK | AccessFlags::X_OK,
    };
    let asked = unistd::faccessat(AT_FDCWD, path, flags, AtFlags::AT_EACCESS);
    matches!(asked, Err(Errno::EACCES | Errno::EROFS))
}
