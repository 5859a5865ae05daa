//! Changes to an ordinary user for the rest of the process, after everything that needs root was opened.
//!
//! The front door calls [`drop_to`] or [`stay`] once, after it has bound the listeners and before it starts the workers: while there is
//! a single thread, because capabilities and the no-new-privileges flag belong to a thread, and later threads inherit
//! them. After the call, neither this process nor a program that it starts can become root again, and the process
//! writes no core dump. Commands for operators call [`reduce`] at their start, and keep their user.

use std::collections::HashSet;
use std::ffi::CString;
use std::io;
use std::path::Path;

use caps::{CapSet, CapsHashSet};
use nix::errno::Errno;
use nix::fcntl::{self, AtFlags, OFlag};
use nix::sys::prctl;
use nix::sys::resource::{self, Resource};
use nix::sys::stat::{self, Mode, SFlag};
use nix::unistd::{self, Gid, Group, Uid, User};

use crate::threads;

mod asked;
mod reduced;

pub use asked::{Reach, Who, all_unreachable, unreachable};
pub use reduced::{Programs, needed, reduce, with_core_limit};

/// A capability of root that the process may keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Capability {
    /// CAP_NET_BIND_SERVICE: listens on ports below 1024, for listeners that a reload adds.
    NetBindService,
    /// CAP_NET_RAW: opens packet sockets, for `dsr` listeners that a reload adds; connects to backends from the addresses of
    /// clients.
    NetRaw,
    /// CAP_NET_ADMIN: removes a filter of clsact, which a `dsr` listener has on kernels without TCX.
    NetAdmin,
}

/// User, groups and capabilities of this process after the change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// User id: the real, the effective and the saved one.
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups, in ascending order.
    pub groups: Vec<u32>,
    /// Requested capabilities that the process still has. A capability that the process did not have before is not in
    /// the list.
    pub kept: Vec<Capability>,
}

/// Reason why the privileges were not dropped. The process must end: some of the steps may have been done.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// Other threads run already: they would keep their capabilities.
    #[error("privileges must be dropped before threads start, but {threads} are running")]
    Threads { threads: usize },
    #[error("no user named \"{user}\": create it (useradd --system {user}) or name another one")]
    NoSuchUser { user: String },
    #[error("no group named \"{group}\": create it (groupadd --system {group}) or name another one")]
    NoSuchGroup { group: String },
    /// The requested user or group is root.
    #[error("\"{name}\" has the id of root: name an ordinary user and group")]
    StaysRoot {
        /// Name of the requested user or group.
        name: String,
    },
    /// This process does not run as root: only root can become another user.
    #[error(
        "cannot become user \"{user}\" as uid {uid}: start as root, start as \"{user}\", or configure no user"
    )]
    NotRoot { user: String, uid: u32 },
    #[error("{step} failed")]
    Step {
        /// Description of the step.
        step: &'static str,
        source: io::Error,
    },
    /// All steps succeeded, but the final check found that the process still has a right of root.
    #[error("privileges were dropped, but {left} is still there")]
    NotGone { left: &'static str },
}

/// Changes to the user `user`, with `group` (default: its primary group), its supplementary groups and the capabilities
/// in `keep`. If the process runs as `user` already, the function only gives up the remaining rights: systemd's ambient
/// capabilities except `keep`, new privileges, core dumps. Fails if the process runs as a third user who is not root.
pub fn drop_to(user: &str, group: Option<&str>, keep: &[Capability]) -> Result<Dropped, PrivilegeError> {
    let threads = threads::count().map_err(step("counting the threads of this process"))?;
    if threads > 1 {
        return Err(PrivilegeError::Threads { threads });
    }
    let target = Target::find(user, group)?;
    if unistd::geteuid().is_root() {
        target.become_it(keep)?;
    } else if unistd::getuid() != target.uid || unistd::getgid() != target.gid {
        return Err(PrivilegeError::NotRoot { user: user.to_owned(), uid: unistd::getuid().as_raw() });
    }
    let kept = give_up(keep)?;
    target.verify()?;
    dropped(kept)
}

/// Gives the Unix socket at `path` to the user that [`drop_to`] will change to. Does nothing unless root calls it.
pub fn give_socket(path: &Path, user: &str, group: Option<&str>) -> Result<(), PrivilegeError> {
    if !unistd::geteuid().is_root() {
        return Ok(());
    }
    let target = Target::find(user, group)?;
    let wrong = |source| PrivilegeError::Step { step: "giving the control socket to the user", source };
    // Who may write to the directory might have put another file there.
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = fcntl::open(path, flags, Mode::empty()).map_err(|error| wrong(error.into()))?;
    let kind = stat::fstat(&file).map_err(|error| wrong(error.into()))?.st_mode & SFlag::S_IFMT.bits();
    if kind != SFlag::S_IFSOCK.bits() {
        return Err(wrong(io::Error::other("another file is in its place")));
    }
    unistd::fchownat(&file, "", Some(target.uid), Some(target.gid), AtFlags::AT_EMPTY_PATH)
        .map_err(|error| wrong(error.into()))
}

/// Gives a directory to the user that [`drop_to`] will change to. Does nothing unless root calls it.
pub fn give_directory(path: &Path, user: &str, group: Option<&str>) -> Result<(), PrivilegeError> {
    if !unistd::geteuid().is_root() {
        return Ok(());
    }
    let target = Target::find(user, group)?;
    let wrong = |source| PrivilegeError::Step { step: "giving a directory to the user", source };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let directory = fcntl::open(path, flags, Mode::empty()).map_err(|error| wrong(error.into()))?;
    unistd::fchownat(&directory, "", Some(target.uid), Some(target.gid), AtFlags::AT_EMPTY_PATH)
        .map_err(|error| wrong(error.into()))
}

/// Keeps the user and gives up the rest: all capabilities but those in `keep`, new privileges, core dumps. Root keeps
/// what belongs to it: its files.
pub fn stay(keep: &[Capability]) -> Result<Dropped, PrivilegeError> {
    let threads = threads::count().map_err(step("counting the threads of this process"))?;
    if threads > 1 {
        return Err(PrivilegeError::Threads { threads });
    }
    reduce_bounding(keep);
    dropped(give_up(keep)?)
}

/// Gives up all capabilities except `keep`, new privileges and core dumps.
fn give_up(keep: &[Capability]) -> Result<Vec<Capability>, PrivilegeError> {
    let kept = keep_only(keep)?;
    prctl::set_no_new_privs().map_err(errno("disabling new privileges"))?;
    prctl::set_dumpable(false).map_err(errno("switching core dumps off"))?;
    // The flag above ends with execve(2), the limit does not.
    resource::setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(errno("switching core dumps off"))?;
    Ok(kept)
}

fn dropped(kept: Vec<Capability>) -> Result<Dropped, PrivilegeError> {
    let mut groups: Vec<u32> =
        unistd::getgroups().map_err(errno("reading the groups"))?.into_iter().map(Gid::as_raw).collect();
    groups.sort_unstable();
    Ok(Dropped { uid: unistd::getuid().as_raw(), gid: unistd::getgid().as_raw(), groups, kept })
}

/// Reduces the bounding set, which needs CAP_SETPCAP. With a narrow bounding set, no program that this process starts
/// can gain a capability from its file. In a container the call may fail; then no-new-privileges has the same effect.
fn reduce_bounding(keep: &[Capability]) {
    for capability in caps::runtime::thread_all_supported() {
        if !keep.iter().any(|kept| kept.kernel() == capability) {
            let _ = caps::drop(None, CapSet::Bounding, capability);
        }
    }
}

/// Looks a user up by name. A machine without /etc/passwd, such as an image that holds one program, has no users.
///
/// # Errors
/// The databases of users cannot be asked.
pub fn user(name: &str) -> nix::Result<Option<User>> {
    none_without_database(User::from_name(name))
}

/// Looks a group up by name, as [`user`] does.
///
/// # Errors
/// The databases of groups cannot be asked.
pub fn group(name: &str) -> nix::Result<Option<Group>> {
    none_without_database(Group::from_name(name))
}

/// The C library says "no such entry" by these errors, too (getpwnam(3)).
fn none_without_database<T>(found: nix::Result<Option<T>>) -> nix::Result<Option<T>> {
    match found {
        Err(Errno::ENOENT | Errno::ESRCH) => Ok(None),
        found => found,
    }
}

struct Target {
    name: CString,
    uid: Uid,
    gid: Gid,
}

impl Target {
    fn find(user: &str, group: Option<&str>) -> Result<Self, PrivilegeError> {
        let no_user = || PrivilegeError::NoSuchUser { user: user.to_owned() };
        let name = CString::new(user).map_err(|_| no_user())?;
        let found = self::user(user).map_err(errno("looking the user up"))?.ok_or_else(no_user)?;
        let gid = match group {
            None => found.gid,
            Some(group) => {
                let no_group = || PrivilegeError::NoSuchGroup { group: group.to_owned() };
                self::group(group).map_err(errno("looking the group up"))?.ok_or_else(no_group)?.gid
            }
        };
        if found.uid.is_root() || gid.as_raw() == 0 {
            let name = if found.uid.is_root() { user } else { group.unwrap_or(user) };
            return Err(PrivilegeError::StaysRoot { name: name.to_owned() });
        }
        Ok(Self { name, uid: found.uid, gid })
    }

    fn become_it(&self, keep: &[Capability]) -> Result<(), PrivilegeError> {
        // Before the change of user, which takes CAP_SETPCAP away.
        reduce_bounding(keep);
        prctl::set_keepcaps(!keep.is_empty())
            .map_err(errno("keeping capabilities over the change of user"))?;
        // The groups come first: the new user may not change them.
        unistd::initgroups(&self.name, self.gid).map_err(errno("setting the supplementary groups"))?;
        unistd::setresgid(self.gid, self.gid, self.gid).map_err(errno("setting the group"))?;
        unistd::setresuid(self.uid, self.uid, self.uid).map_err(errno("setting the user"))?;
        prctl::set_keepcaps(false).map_err(errno("keeping capabilities no longer"))
    }

    fn verify(&self) -> Result<(), PrivilegeError> {
        let users = unistd::getresuid().map_err(errno("reading the user"))?;
        if [users.real, users.effective, users.saved] != [self.uid; 3] {
            return Err(PrivilegeError::NotGone { left: "an earlier user id" });
        }
        let groups = unistd::getresgid().map_err(errno("reading the group"))?;
        if [groups.real, groups.effective, groups.saved] != [self.gid; 3] {
            return Err(PrivilegeError::NotGone { left: "an earlier group id" });
        }
        let root = Uid::from_raw(0);
        if unistd::setuid(root).is_ok() || unistd::setresuid(root, root, root).is_ok() {
            return Err(PrivilegeError::NotGone { left: "the right to become root again" });
        }
        if unistd::setgid(Gid::from_raw(0)).is_ok() {
            return Err(PrivilegeError::NotGone { left: "the right to take group 0 again" });
        }
        Ok(())
    }
}

impl Capability {
    /// What the process may still do with it.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NetBindService => "a reload may bind ports below 1024",
            Self::NetRaw => "for packet sockets of dsr listeners, and source-address = \"client\" of pools",
            Self::NetAdmin => "to remove the filter of a dsr listener: this kernel has no TCX",
        }
    }

    /// Name in capabilities(7).
    pub const fn name(self) -> &'static str {
        match self {
            Self::NetBindService => "CAP_NET_BIND_SERVICE",
            Self::NetRaw => "CAP_NET_RAW",
            Self::NetAdmin => "CAP_NET_ADMIN",
        }
    }

    fn kernel(self) -> caps::Capability {
        match self {
            Self::NetBindService => caps::Capability::CAP_NET_BIND_SERVICE,
            Self::NetRaw => caps::Capability::CAP_NET_RAW,
            Self::NetAdmin => caps::Capability::CAP_NET_ADMIN,
        }
    }
}

/// The capabilities that this thread has or could take up, of those that a program started by it may need: not CAP_NET_ADMIN,
/// which is kept for the end of this process alone.
pub fn permitted() -> Vec<Capability> {
    let permitted = caps::read(None, CapSet::Permitted).unwrap_or_default();
    let all = [Capability::NetBindService, Capability::NetRaw];
    all.into_iter().filter(|one| permitted.contains(&one.kernel())).collect()
}

/// The capabilities of [`Capability`] that a process could be given: those in the bounding set of this one.
pub fn can_be_given() -> Vec<Capability> {
    among(caps::read(None, CapSet::Bounding))
}

/// Whether this process may become another user. Root may lack that right: in a container, and in the next process after an
/// upgrade.
pub fn may_change_user() -> bool {
    let effective = caps::read(None, CapSet::Effective).unwrap_or_default();
    let needed = [caps::Capability::CAP_SETGID, caps::Capability::CAP_SETUID];
    needed.iter().all(|one| effective.contains(one))
}

/// The capabilities of [`Capability`] that another process has.
pub fn of_process(process: u32) -> Vec<Capability> {
    among(caps::read(Some(process.cast_signed()), CapSet::Permitted))
}

fn among(set: Result<CapsHashSet, caps::errors::CapsError>) -> Vec<Capability> {
    let set = set.unwrap_or_default();
    let all = [Capability::NetBindService, Capability::NetRaw, Capability::NetAdmin];
    all.into_iter().filter(|one| set.contains(&one.kernel())).collect()
}

/// Runs `start`, which starts a program that inherits the capabilities of [`permitted`]. If the kernel refuses to pass them
/// on, the program starts without them, and reports by itself what it may not do.
pub fn with_inherited<T>(start: impl FnOnce() -> T) -> T {
    let own: CapsHashSet = permitted().iter().map(|one| one.kernel()).collect();
    if own.is_empty() {
        return start();
    }
    // Only what is inheritable can be ambient.
    let _ = caps::set(None, CapSet::Inheritable, &own).and_then(|()| caps::set(None, CapSet::Ambient, &own));
    let started = start();
    // Also where only the first set was raised. The kernel refuses neither: both become smaller.
    let _ = caps::clear(None, CapSet::Ambient);
    let _ = caps::clear(None, CapSet::Inheritable);
    started
}

fn keep_only(keep: &[Capability]) -> Result<Vec<Capability>, PrivilegeError> {
    let permitted = caps::read(None, CapSet::Permitted).map_err(capability("reading the capabilities"))?;
    let mut kept: Vec<Capability> = Vec::new();
    for asked in keep {
        if permitted.contains(&asked.kernel()) && !kept.contains(asked) {
            kept.push(*asked);
        }
    }
    let wanted: CapsHashSet = kept.iter().map(|kept| kept.kernel()).collect();
    // Programs that this process starts would inherit the ambient and inheritable sets.
    caps::clear(None, CapSet::Ambient).map_err(capability("clearing the ambient capabilities"))?;
    caps::clear(None, CapSet::Inheritable).map_err(capability("clearing the inheritable capabilities"))?;
    caps::set(None, CapSet::Effective, &wanted).map_err(capability("setting the effective capabilities"))?;
    caps::set(None, CapSet::Permitted, &wanted).map_err(capability("setting the permitted capabilities"))?;
    for set in [CapSet::Effective, CapSet::Permitted] {
        let now: HashSet<_> = caps::read(None, set).map_err(capability("reading the capabilities"))?;
        if now != wanted {
            return Err(PrivilegeError::NotGone { left: "a capability" });
        }
    }
    Ok(kept)
}

fn step(step: &'static str) -> impl FnOnce(io::Error) -> PrivilegeError {
    move |source| PrivilegeError::Step { step, source }
}

fn errno(step: &'static str) -> impl FnOnce(Errno) -> PrivilegeError {
    move |errno| PrivilegeError::Step { step, source: errno.into() }
}

fn capability(step: &'static str) -> impl FnOnce(caps::errors::CapsError) -> PrivilegeError {
    move |error| PrivilegeError::Step { step, source: io::Error::other(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_or_group_that_does_not_exist_is_named_with_the_remedy() {
        let error = Target::find("no-such-user-here", None).err().unwrap().to_string();
        assert!(error.contains("\"no-such-user-here\"") && error.contains("useradd"), "{error}");
        let error = Target::find("nobody", Some("no-such-group-here")).err().unwrap().to_string();
        assert!(error.contains("\"no-such-group-here\"") && error.contains("groupadd"), "{error}");
        assert!(matches!(Target::find("no\0body", None), Err(PrivilegeError::NoSuchUser { .. })));
    }

    #[test]
    fn root_is_not_a_user_to_drop_to() {
        assert!(matches!(Target::find("root", None), Err(PrivilegeError::StaysRoot { .. })));
        assert!(matches!(Target::find("nobody", Some("root")), Err(PrivilegeError::StaysRoot { .. })));
    }

    #[test]
    fn dropping_with_a_second_thread_running_is_refused() {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let second = std::thread::spawn(move || held.recv());
        let error = drop_to("nobody", None, &[]).unwrap_err();
        assert!(matches!(error, PrivilegeError::Threads { threads } if threads > 1), "{error}");
        drop(hold);
        let _ = second.join().unwrap();
    }
}
