//! Becomes an ordinary user for good, after everything that needs root was opened.
//!
//! Called once by the binary, between binding and starting the workers: while there is a single thread, because
//! capabilities and the no-new-privileges flag belong to a thread and are inherited by those started later.
//! After it, nothing this process does or starts can become root again, and it leaves no core dump.

use std::collections::HashSet;
use std::ffi::CString;
use std::io;

use caps::{CapSet, CapsHashSet};
use nix::errno::Errno;
use nix::sys::prctl;
use nix::unistd::{self, Gid, Group, Uid, User};

use crate::threads;

/// A power of root that may be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Capability {
    /// Listening on ports below 1024 (CAP_NET_BIND_SERVICE): for listeners that a reload adds.
    NetBindService,
}

/// What this process is from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// The user, as real, effective and saved id.
    pub uid: u32,
    /// The group, likewise.
    pub gid: u32,
    /// The supplementary groups, ascending.
    pub groups: Vec<u32>,
    /// Those of the asked-for capabilities that are still there; fewer when they were not there before.
    pub kept: Vec<Capability>,
}

/// Why privileges were not dropped. The process must not go on: some of the steps may have happened.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// Asked too late: the other threads would keep their powers.
    #[error("privileges must be dropped before threads start, but {threads} are running")]
    Threads {
        /// How many there are.
        threads: usize,
    },
    /// The user database has no such user.
    #[error("no user named \"{user}\": create it (useradd --system {user}) or name another one")]
    NoSuchUser {
        /// The name asked for.
        user: String,
    },
    /// The group database has no such group.
    #[error("no group named \"{group}\": create it (groupadd --system {group}) or name another one")]
    NoSuchGroup {
        /// The name asked for.
        group: String,
    },
    /// A user or group that is root is no drop at all.
    #[error("\"{name}\" has the id of root: name an ordinary user and group")]
    StaysRoot {
        /// The user or group asked for.
        name: String,
    },
    /// Only root can become somebody else.
    #[error(
        "cannot become user \"{user}\" as uid {uid}: start as root, start as \"{user}\", or configure no user"
    )]
    NotRoot {
        /// The user asked for.
        user: String,
        /// Who we are.
        uid: u32,
    },
    /// A system call failed.
    #[error("{step} failed")]
    Step {
        /// What was being done.
        step: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
    /// Everything seemed to work, and yet a power is still there.
    #[error("privileges were dropped, but {left} is still there")]
    NotGone {
        /// Which one.
        left: &'static str,
    },
}

/// Becomes `user`, with `group` (its primary group when absent), its supplementary groups and the powers in `keep`.
///
/// Started as that user already, it only gives up what is left to give up (systemd's ambient capabilities except
/// `keep`, new privileges, core dumps). Started as anybody else but root, it fails.
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
    let kept = keep_only(keep)?;
    prctl::set_no_new_privs().map_err(errno("giving up new privileges"))?;
    prctl::set_dumpable(false).map_err(errno("switching core dumps off"))?;
    target.verify()?;
    let mut groups: Vec<u32> =
        unistd::getgroups().map_err(errno("reading the groups"))?.into_iter().map(Gid::as_raw).collect();
    groups.sort_unstable();
    Ok(Dropped { uid: target.uid.as_raw(), gid: target.gid.as_raw(), groups, kept })
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
        let found = User::from_name(user).map_err(errno("looking the user up"))?.ok_or_else(no_user)?;
        let gid = match group {
            None => found.gid,
            Some(group) => {
                let no_group = || PrivilegeError::NoSuchGroup { group: group.to_owned() };
                Group::from_name(group).map_err(errno("looking the group up"))?.ok_or_else(no_group)?.gid
            }
        };
        if found.uid.is_root() || gid.as_raw() == 0 {
            let name = if found.uid.is_root() { user } else { group.unwrap_or(user) };
            return Err(PrivilegeError::StaysRoot { name: name.to_owned() });
        }
        Ok(Self { name, uid: found.uid, gid })
    }

    fn become_it(&self, keep: &[Capability]) -> Result<(), PrivilegeError> {
        // While still root: it needs CAP_SETPCAP. With a narrow bounding set, no program started from here can gain
        // a capability from its file. Containers may not have that power; no-new-privileges then does the same job.
        for capability in caps::runtime::thread_all_supported() {
            if !keep.iter().any(|kept| kept.kernel() == capability) {
                let _ = caps::drop(None, CapSet::Bounding, capability);
            }
        }
        prctl::set_keepcaps(!keep.is_empty())
            .map_err(errno("keeping capabilities over the change of user"))?;
        // Groups first: the user we become may not change them.
        unistd::initgroups(&self.name, self.gid).map_err(errno("setting the supplementary groups"))?;
        unistd::setresgid(self.gid, self.gid, self.gid).map_err(errno("setting the group"))?;
        unistd::setresuid(self.uid, self.uid, self.uid).map_err(errno("setting the user"))?;
        prctl::set_keepcaps(false).map_err(errno("keeping capabilities no longer"))
    }

    fn verify(&self) -> Result<(), PrivilegeError> {
        let users = unistd::getresuid().map_err(errno("reading the user"))?;
        if [users.real, users.effective, users.saved] != [self.uid; 3] {
            return Err(PrivilegeError::NotGone { left: "another user id" });
        }
        let groups = unistd::getresgid().map_err(errno("reading the group"))?;
        if [groups.real, groups.effective, groups.saved] != [self.gid; 3] {
            return Err(PrivilegeError::NotGone { left: "another group id" });
        }
        let root = Uid::from_raw(0);
        if unistd::setuid(root).is_ok() || unistd::setresuid(root, root, root).is_ok() {
            return Err(PrivilegeError::NotGone { left: "the way back to root" });
        }
        if unistd::setgid(Gid::from_raw(0)).is_ok() {
            return Err(PrivilegeError::NotGone { left: "the way back to group 0" });
        }
        Ok(())
    }
}

impl Capability {
    fn kernel(self) -> caps::Capability {
        match self {
            Self::NetBindService => caps::Capability::CAP_NET_BIND_SERVICE,
        }
    }
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
    // The ambient and inheritable sets would hand powers on to programs started from here.
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
