//! What a program of an operator does without: it has no listeners of the front door and keeps its user, but it talks to
//! machines that it does not trust, holds keys, and starts programs that may need the rights of the user who started it.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::OnceLock;

use caps::{CapSet, Capability, CapsHashSet};
use nix::sys::prctl;
use nix::sys::resource::{self, Resource, rlim_t};
use nix::unistd::geteuid;

use super::{PrivilegeError, capability, errno, step};
use crate::threads;

/// Programs that this process may start, now or later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Programs {
    /// None.
    None,
    /// Those that carry its connections, such as `ProxyCommand` and `ssh`. They may have set-user-ID bits (sudo).
    Carriers,
    /// Also some that the operator named for a purpose of their own: a job, a mount helper, a shell. Capabilities that this
    /// process inherited may be meant for them.
    Named,
}

/// Gives up what this process does not need, for all threads that it starts later: core dumps, inherited capabilities that
/// are not meant for `programs`, capabilities of its own threads except `NEEDED`, and new privileges if it starts no
/// program.
///
/// Programs that root starts get all capabilities of root again. They gain them by execve(2), with two effects: the kernel
/// forgets a PR_SET_PDEATHSIG that was set before, and hides their environment, by which they are found and ended, from who
/// lacks CAP_SYS_PTRACE. So root without that capability, as in many containers, keeps what it has.
pub fn reduce(programs: Programs) -> Result<(), PrivilegeError> {
    let threads = threads::count().map_err(step("counting the threads of this process"))?;
    if threads > 1 {
        return Err(PrivilegeError::Threads { threads });
    }
    no_core_dumps().map_err(errno("switching core dumps off"))?;
    if programs != Programs::Named {
        for set in [CapSet::Ambient, CapSet::Inheritable] {
            if !caps::read(None, set).map_err(capability("reading the capabilities"))?.is_empty() {
                caps::clear(None, set).map_err(capability("clearing the inherited capabilities"))?;
            }
        }
    }
    let permitted = caps::read(None, CapSet::Permitted).map_err(capability("reading the capabilities"))?;
    let hidden = geteuid().is_root() && !permitted.contains(&Capability::CAP_SYS_PTRACE);
    if programs == Programs::None || !hidden {
        reduce_threads()?;
    }
    if programs == Programs::None {
        prctl::set_no_new_privs().map_err(errno("disabling new privileges"))?;
    }
    Ok(())
}

/// Reduces the effective and the permitted set. Ambient capabilities stay permitted.
fn reduce_threads() -> Result<(), PrivilegeError> {
    let passed_on = caps::read(None, CapSet::Ambient).map_err(capability("reading the capabilities"))?;
    for (set, kept) in [(CapSet::Effective, CapsHashSet::new()), (CapSet::Permitted, passed_on)] {
        let before = caps::read(None, set).map_err(capability("reading the capabilities"))?;
        let after: CapsHashSet =
            before.iter().copied().filter(|one| is_needed(*one) || kept.contains(one)).collect();
        if after != before {
            caps::set(None, set, &after).map_err(capability("setting the capabilities"))?;
        }
    }
    Ok(())
}

fn is_needed(capability: Capability) -> bool {
    NEEDED.iter().any(|(needed, _)| *needed == capability)
}

/// Names in capabilities(7) of what root keeps in its own threads, and why.
pub fn needed() -> impl Iterator<Item = (String, &'static str)> {
    NEEDED.into_iter().map(|(capability, why)| (capability.to_string(), why))
}

/// Gives `command` the limit of core dumps that this process had before [`reduce`].
pub fn with_core_limit(command: &mut Command) {
    let Some(&(soft, hard)) = BEFORE.get() else { return };
    let prepare = move || resource::setrlimit(Resource::RLIMIT_CORE, soft, hard).map_err(io::Error::from);
    // SAFETY: the closure runs between fork and exec. It makes one system call on values that were computed before, takes no
    // lock and allocates nothing; an `io::Error` from an errno does not allocate either.
    unsafe { command.pre_exec(prepare) };
}

/// The process stays readable for programs of its user (PR_SET_DUMPABLE): `ssh -E` opens a pipe of ours below /proc, and who
/// ends a command finds its processes, which may be ours, by their environment. So the limit alone must be enough, and for 0
/// the kernel still starts a program that collects dumps (core(5)). For 1 it does not, and a file would be too short.
fn no_core_dumps() -> nix::Result<()> {
    let (soft, hard) = resource::getrlimit(Resource::RLIMIT_CORE)?;
    let _ = BEFORE.set((soft, hard));
    resource::setrlimit(Resource::RLIMIT_CORE, NO_DUMP.min(hard), hard)
}

static BEFORE: OnceLock<(rlim_t, rlim_t)> = OnceLock::new();
const NO_DUMP: rlim_t = 1;

/// What commands for operators do with rights of root.
const NEEDED: [(Capability, &str); 9] = [
    (Capability::CAP_CHOWN, FILES),
    (Capability::CAP_DAC_OVERRIDE, FILES),
    (Capability::CAP_DAC_READ_SEARCH, FILES),
    (Capability::CAP_FOWNER, FILES),
    (Capability::CAP_FSETID, FILES),
    (Capability::CAP_KILL, "ends started programs that changed their user"),
    (Capability::CAP_NET_BIND_SERVICE, "forwards listen on low ports"),
    (Capability::CAP_SYS_PTRACE, "finds started programs by their environment"),
    (Capability::CAP_SYS_RESOURCE, "raises the limit of descriptors"),
];
const FILES: &str = "files and keys of any user";
