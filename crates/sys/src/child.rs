//! Child processes that end with their parent, and that can be restricted to given CPU cores.

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

use crate::process;

/// Makes `command` start its process as leader of its own session ([`process::own_session`]) and on `cores` only
/// (empty: on all cores). The kernel sends SIGTERM to the process when the *thread* that started the process ends
/// (PR_SET_PDEATHSIG): start the process from a thread that lives long enough. Processes that the child starts do not
/// inherit the parent-death signal; [`process::OwnSession::signal`] reaches them.
pub fn end_with_parent(command: &mut Command, cores: &[usize]) -> nix::Result<()> {
    end_with_parent_by(command, cores, Signal::SIGTERM)
}

/// Does the same as [`end_with_parent`], with `signal` in place of SIGTERM.
pub fn end_with_parent_by(command: &mut Command, cores: &[usize], signal: Signal) -> nix::Result<()> {
    let mut set = CpuSet::new();
    for core in cores {
        set.set(*core)?;
    }
    let restrict = !cores.is_empty();
    let parent = Pid::this();
    process::own_session(command);
    let prepare = move || {
        prctl::set_pdeathsig(signal)?;
        // If the parent has ended before `set_pdeathsig`, the kernel sends no signal.
        if getppid() != parent {
            return Err(nix::Error::ESRCH.into());
        }
        if restrict {
            sched_setaffinity(Pid::from_raw(0), &set)?;
        }
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec. It makes three system calls on values that were computed
    // before, takes no lock and allocates nothing; an `io::Error` from an errno does not allocate either.
    unsafe { command.pre_exec(prepare) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_runs_on_its_core_in_its_own_session() {
        let core = *crate::cpu::usable().unwrap().last().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "grep Cpus_allowed_list /proc/self/status; ps -o sid= -p $$; echo $$"]);
        end_with_parent(&mut command, &[core]).unwrap();
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let words: Vec<_> = text.split_whitespace().collect();
        assert_eq!(words[1], core.to_string(), "{text}");
        assert_eq!(words[2], words[3], "{text}");
    }
}
