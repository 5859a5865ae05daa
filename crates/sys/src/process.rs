//! Processes that this program may signal, and the proof that they are those that it means.
//!
//! A number alone identifies no process: the kernel gives it to another one as soon as the first is waited for. So what is
//! signalled is a child that was not waited for, a process whose start time is the one that was seen before, or the
//! processes of a session that a child of ours made: only its descendants can be in that (setsid(2)). Where none of this
//! can be shown, nothing is signalled. [`Process::signal`] and [`OwnSession::signal`] are the only way by which this program
//! signals another process (a test looks for others); what runs on other hosts is signalled by `leash/proof.sh` of `logic`,
//! which proves the same.
//!
//! A descriptor of a process (pidfd_open(2), Linux 5.3) stands for it for ever, and since Linux 6.9 for the group that it leads. Where
//! there is none, a look comes right before the signal.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::fs;
use std::hash::BuildHasher;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigHandler, Signal, kill, killpg, signal};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpgid, getsid};

/// The variable in the environment of a command and of all that it starts by which they are known when the command itself
/// has ended.
pub const VARIABLE: &str = "PENSTOCK_LEASH";

/// What identifies a process of this machine until the next boot, as it is seen from one PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId {
    /// Its number.
    pub process: i32,
    /// When it was started, in ticks after the boot (field 22 of `/proc/PID/stat`, proc_pid_stat(5)).
    pub start: u64,
}

/// What `/proc/PID/stat` says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Whether it has ended and was not waited for.
    pub life: Life,
    /// Its parent; 0 if that cannot be seen from here.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// Its session.
    pub session: i32,
    /// When it was started.
    pub start: u64,
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It may do something, if only on SIGCONT.
    Runs,
    /// It has ended; its parent has not waited for it.
    Zombie,
}

/// What became of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The kernel took it for what was meant.
    Signalled,
    /// What was meant has ended.
    Gone,
    /// What was meant cannot be proved to be what it was, or the kernel does not let us signal it: nothing was signalled.
    Unproved,
}

/// One process that may be signalled.
#[derive(Debug)]
pub struct Process {
    process: i32,
    /// Unknown where /proc is not mounted.
    start: Option<u64>,
    /// Stands for the process also when its number has been given to another one. Missing on kernels before 5.3, and where
    /// no descriptor is left.
    pidfd: Option<OwnedFd>,
}

/// A child that leads a session of its own, with all its descendants that have stayed in that session.
#[derive(Debug)]
pub struct OwnSession {
    leader: Process,
    nonce: Nonce,
}

/// A name that no other command has, in the environment of one that is about to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nonce(String);

impl Process {
    /// A child of ours. It must not have been waited for: the kernel is asked whether it is one, because where SIGCHLD is
    /// ignored ([`heed_children`]) the number of a child that has ended may be another process's already. Such a one is never
    /// signalled.
    #[must_use]
    pub fn of_child(process: u32) -> Self {
        let process = process.cast_signed();
        let pidfd = open(process);
        let start = stat(process).map(|stat| stat.start);
        // Looked at last: as long as a child is not waited for, its number is its own.
        match is_unreaped_child(process) {
            true => Self { process, start, pidfd },
            false => Self { process: 0, start: None, pidfd: None },
        }
    }

    /// The process that was seen before, if it still runs.
    #[must_use]
    pub fn find(id: ProcessId) -> Option<Self> {
        let ProcessId { process, start } = id;
        let pidfd = open(process);
        // Looked at after it was opened: so the descriptor stands for the process that has this start time.
        let stat = stat(process)?;
        (stat.start == start && stat.life == Life::Runs).then_some(Self {
            process,
            start: Some(start),
            pidfd,
        })
    }

    /// What identifies it, where /proc told its start time.
    #[must_use]
    pub fn id(&self) -> Option<ProcessId> {
        self.start.map(|start| ProcessId { process: self.process, start })
    }

    /// Sends it a signal if it is still the process that was meant.
    pub fn signal(&self, signal: Signal) -> Sent {
        send(Target::Process(self), signal)
    }

    /// Whether its number still stands for it, be it as a zombie. Where /proc does not tell, a child that was not waited for has
    /// its number still.
    fn still_has_its_number(&self) -> bool {
        match (stat(self.process), self.start) {
            (Some(stat), Some(start)) => stat.start == start,
            (None, Some(_)) if is_proc_mounted() => false,
            _ => is_unreaped_child(self.process),
        }
    }
}

impl OwnSession {
    /// The session that a child leads, which was started from a command after [`own_session`] and [`mark`], and not waited for
    /// since.
    #[must_use]
    pub fn of_child(process: u32, nonce: Nonce) -> Self {
        Self { leader: Process::of_child(process), nonce }
    }

    /// The child.
    #[must_use]
    pub fn leader(&self) -> &Process {
        &self.leader
    }

    /// The nonce in the environment of all in it.
    #[must_use]
    pub fn nonce(&self) -> &Nonce {
        &self.nonce
    }

    /// Sends a signal to the process group of the child. Those that have left the group or the session are not reached.
    pub fn signal(&self, signal: Signal) -> Sent {
        match send(Target::Group(&self.leader), signal) {
            // The child was waited for, and there is no descriptor that stands for its group: the number of that may be
            // another's by now.
            Sent::Unproved => {
                let reached =
                    self.members().filter(|member| member.signal(signal) == Sent::Signalled).count();
                if reached > 0 { Sent::Signalled } else { Sent::Unproved }
            }
            sent => sent,
        }
    }

    /// Whether something may be left in its process group, the child included until it is waited for.
    #[must_use]
    pub fn is_left(&self) -> bool {
        match send_to_group_by(&self.leader, None) {
            Ok(()) => true,
            Err(Errno::ESRCH) => false,
            // Signal 0 is sent to no process. The number may be another group's: then this is said too often.
            Err(_) => killpg(Pid::from_raw(self.leader.process), None) != Err(Errno::ESRCH),
        }
    }

    /// The processes in the group and session of the child that have its nonce, or that this process has adopted.
    fn members(&self) -> impl Iterator<Item = Process> {
        let (leader, own) = (self.leader.process, std::process::id().cast_signed());
        // Another process that has the number by now may lead another session of that number.
        let given_again = stat(leader).is_some_and(|stat| Some(stat.start) != self.leader.start);
        let candidates = (!given_again).then(all).into_iter().flatten();
        candidates.filter_map(move |process| {
            let stat = stat(process)?;
            let is_in = stat.group == leader && stat.session == leader && stat.life == Life::Runs;
            let is_ours = is_in && (stat.parent == own || has_variable(process, VARIABLE, &self.nonce.0));
            is_ours.then(|| Process::find(ProcessId { process, start: stat.start }))?
        })
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Has a command lead a session of its own when it is started: no process but its descendants can be in that. It has no
/// controlling terminal then, so it cannot stop when it reads from one, and Ctrl-C does not reach it.
pub fn own_session(command: &mut Command) {
    // SAFETY: the closure runs between fork and exec, and makes one system call, which takes no argument and allocates
    // nothing; an `io::Error` from an errno does not allocate either.
    unsafe { command.pre_exec(|| Ok(nix::unistd::setsid().map(drop)?)) };
}

/// Puts a nonce in the environment of a command.
pub fn mark(command: &mut Command) -> Nonce {
    let number = || RandomState::new().hash_one(std::process::id());
    let nonce = format!("{:016x}{:016x}", number(), number());
    command.env(VARIABLE, &nonce);
    Nonce(nonce)
}

/// Starts a command in a session of its own.
///
/// # Errors
/// It cannot be started.
pub fn spawn(command: &mut Command) -> io::Result<(Child, OwnSession)> {
    own_session(command);
    let nonce = mark(command);
    let child = command.spawn()?;
    let session = OwnSession::of_child(child.id(), nonce);
    Ok((child, session))
}

/// Lets children that end wait until we ask how they ended, also where the program that started us ignores SIGCHLD: the kernel
/// would reap them, give their numbers to other processes at once, and tell us nothing (wait(2), "NOTES"). To be called before
/// the first child is started.
///
/// # Errors
/// The kernel refuses.
pub fn heed_children() -> io::Result<()> {
    // SAFETY: the default action runs no code of ours.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    Ok(())
}

/// Whether a child has ended, and was not waited for: its number stays its own until that.
#[must_use]
pub fn has_ended(child: u32) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let seen = waitid(Id::Pid(Pid::from_raw(child.cast_signed())), flags);
    !matches!(seen, Ok(WaitStatus::StillAlive))
}

/// What the kernel says of a process; `None` if there is none, or if /proc does not show it.
#[must_use]
pub fn stat(process: i32) -> Option<Stat> {
    parse(&fs::read(format!("/proc/{process}/stat")).ok()?)
}

/// The numbers of all processes that can be seen from here.
pub fn all() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether the environment with which a process was started has this variable with this value. What the process itself has
/// changed since is not seen.
#[must_use]
pub fn has_variable(process: i32, name: &str, value: &str) -> bool {
    let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
    let is_it = |one: &[u8]| {
        let value_of = one.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
        value_of == Some(value.as_bytes())
    };
    environment.split(|byte| *byte == 0).any(is_it)
}

/// Whether a process has this number now, whichever it is.
#[must_use]
pub fn is_taken(process: i32) -> bool {
    // Signal 0 is sent to no process.
    process > 0 && kill(Pid::from_raw(process), None) != Err(Errno::ESRCH)
}

/// What is signalled.
#[derive(Clone, Copy)]
enum Target<'a> {
    Process(&'a Process),
    /// The group that this process leads, or led.
    Group(&'a Process),
}

/// The one place of the program from which a signal goes to another process.
fn send(target: Target<'_>, signal: Signal) -> Sent {
    let (Target::Process(process) | Target::Group(process)) = target;
    // kill(2): 0 is our own group, and -1 is every process that we may signal. 1 is init.
    if process.process <= 1 {
        return Sent::Unproved;
    }
    let number = Pid::from_raw(process.process);
    let by_descriptor = match target {
        Target::Process(process) => send_by(process, Some(signal), 0),
        Target::Group(process) => send_to_group_by(process, Some(signal)),
    };
    let sent = match by_descriptor {
        Err(Errno::ENOSYS | Errno::EINVAL | Errno::EBADF | Errno::EPERM) => {
            // A number that still stands for the process, be it a zombie, is neither another's nor another group's.
            match target {
                _ if !process.still_has_its_number() => return Sent::Unproved,
                Target::Process(_) => kill(number, signal),
                Target::Group(_) if leads_session(number) => killpg(number, signal),
                Target::Group(_) => return Sent::Unproved,
            }
        }
        sent => sent,
    };
    match sent {
        Ok(()) => Sent::Signalled,
        Err(Errno::ESRCH) => Sent::Gone,
        Err(_) => Sent::Unproved,
    }
}

fn leads_session(process: Pid) -> bool {
    getsid(Some(process)) == Ok(process) && getpgid(Some(process)) == Ok(process)
}

fn is_unreaped_child(process: i32) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    process > 1 && waitid(Id::Pid(Pid::from_raw(process)), flags).is_ok()
}

fn is_proc_mounted() -> bool {
    stat(std::process::id().cast_signed()).is_some()
}

/// To the group that the process leads, or led: the descriptor stands for the number as it was then (Linux 6.9).
fn send_to_group_by(process: &Process, signal: Option<Signal>) -> nix::Result<()> {
    send_by(process, signal, PIDFD_SIGNAL_PROCESS_GROUP)
}

/// By its descriptor. EBADF: it has none; ENOSYS, EPERM: the kernel, or a filter of system calls, has no such call; EINVAL: it
/// does not know the flag.
fn send_by(process: &Process, signal: Option<Signal>, flags: libc::c_uint) -> nix::Result<()> {
    let pidfd = process.pidfd.as_ref().ok_or(Errno::EBADF)?;
    let signal = signal.map_or(0, |signal| signal as libc::c_int);
    // SAFETY: the descriptor is open while it is borrowed, and the kernel takes a null pointer for the information that
    // kill(2) would give.
    let sent = unsafe {
        let none = std::ptr::null::<libc::siginfo_t>();
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, none, flags)
    };
    Errno::result(sent).map(drop)
}

fn open(process: i32) -> Option<OwnedFd> {
    // SAFETY: the call takes two numbers, and gives a new descriptor, which is ours, or -1.
    let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
    let opened = i32::try_from(Errno::result(opened).ok()?).ok()?;
    // SAFETY: the kernel has just made it, close-on-exec, and no other part of the program has it.
    Some(unsafe { OwnedFd::from_raw_fd(opened) })
}

/// The name in parentheses may hold any byte; only numbers follow the last parenthesis.
fn parse(line: &[u8]) -> Option<Stat> {
    let after = line.iter().rposition(|byte| *byte == b')')? + 1;
    let mut words = std::str::from_utf8(&line[after..]).ok()?.split_ascii_whitespace();
    let life = if words.next()? == "Z" { Life::Zombie } else { Life::Runs };
    let mut number = || words.next()?.parse::<i64>().ok();
    let mut id = || number().and_then(|number| i32::try_from(number).ok());
    let (parent, group, session) = (id()?, id()?, id()?);
    // Fields 7 to 21.
    let start = words.nth(15)?.parse().ok()?;
    Some(Stat { life, parent, group, session, start })
}

/// `PIDFD_SIGNAL_PROCESS_GROUP` of linux/pidfd.h.
const PIDFD_SIGNAL_PROCESS_GROUP: libc::c_uint = 1 << 2;

#[cfg(test)]
mod tests;
