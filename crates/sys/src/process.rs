//! Sends signals to processes, after a proof that each process number still belongs to the intended process.
//!
//! A process number alone identifies no process: the kernel may give the number to another process as soon as the first
//! one has been waited for. So penstock signals only a child that has not been waited for, a process whose start time
//! is the one seen before, or the processes of a session that a child of penstock made: only descendants of the child
//! can be in that session (setsid(2)). Where penstock can prove none of these, it sends no signal. [`Process::signal`]
//! and [`OwnSession::signal`] are the only functions by which this program signals another process (a test looks for
//! others). On other hosts, the shell functions of `watcher/proof.sh` in `hosts` send the signals, after the same
//! proof.
//!
//! A process file descriptor (pidfd_open(2), Linux 5.3) refers to the same process for ever, and since Linux 6.9 also
//! to the process group that this process leads. Where there is no such descriptor, penstock reads /proc right before
//! the signal.

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

/// Environment variable that a command and all its descendants inherit. It identifies the descendants of a command that
/// has ended.
pub const VARIABLE: &str = "PENSTOCK_WATCHER";

/// Identifies a process of this machine until the next boot, within one PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId {
    pub process: i32,
    /// The start time of the process, in ticks after the boot (field 22 of `/proc/PID/stat`, proc_pid_stat(5)).
    pub start: u64,
}

/// The fields of `/proc/PID/stat` that penstock reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub life: ProcessState,
    /// The parent process; 0 if the parent is outside this PID namespace.
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    /// The start time, in ticks after the boot.
    pub start: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// The process runs, sleeps or is stopped.
    Runs,
    /// The process has ended, and its parent has not waited for it.
    Zombie,
}

/// The result of an attempt to send a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The kernel has accepted the signal for the intended process or process group.
    Signalled,
    /// The intended process or process group has ended.
    Gone,
    /// No signal was sent: penstock cannot prove that the process number still belongs to the intended process, or the
    /// kernel does not permit the signal.
    Unproved,
}

/// One process that may be signalled.
#[derive(Debug)]
pub struct Process {
    process: i32,
    /// The start time; `None` where /proc is not mounted.
    start: Option<u64>,
    /// A process file descriptor, which refers to the process even when the kernel has given its number to another
    /// process. `None` on kernels before 5.3, and where this program may open no further descriptor.
    pidfd: Option<OwnedFd>,
}

/// A child that leads its own session, together with its descendants that have stayed in this session.
#[derive(Debug)]
pub struct OwnSession {
    leader: Process,
    nonce: Nonce,
}

/// A random value in the environment of one command, which no other command has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nonce(String);

impl Process {
    /// Refers to a child of this program that has not been waited for. The function asks the kernel whether `process`
    /// is such a child: where SIGCHLD is ignored ([`heed_children`]), the kernel may already have given the number of
    /// an ended child to another process. If `process` is no such child, the returned `Process` never sends a signal.
    #[must_use]
    pub fn of_child(process: u32) -> Self {
        let process = process.cast_signed();
        let pidfd = open(process);
        let start = stat(process).map(|stat| stat.start);
        // This check comes last: until this program waits for a child, the kernel gives its number to no other process.
        match is_unreaped_child(process) {
            true => Self { process, start, pidfd },
            false => Self { process: 0, start: None, pidfd: None },
        }
    }

    /// Returns the process with this number and start time, if it still runs.
    #[must_use]
    pub fn find(id: ProcessId) -> Option<Self> {
        let ProcessId { process, start } = id;
        let pidfd = open(process);
        // The start time is read after the descriptor was opened: so the descriptor refers to the process with this
        // start time.
        let stat = stat(process)?;
        (stat.start == start && stat.life == ProcessState::Runs).then_some(Self {
            process,
            start: Some(start),
            pidfd,
        })
    }

    /// Returns the number and the start time of the process. `None` if the start time could not be read from /proc.
    #[must_use]
    pub fn id(&self) -> Option<ProcessId> {
        self.start.map(|start| ProcessId { process: self.process, start })
    }

    /// Sends a signal to the process, if its number still belongs to the intended process.
    pub fn signal(&self, signal: Signal) -> Sent {
        send(Target::Process(self), signal)
    }

    /// Returns true if the number still belongs to this process, which may be a zombie. If /proc does not show the
    /// process, the number of a child that has not been waited for still belongs to the child.
    fn still_has_its_number(&self) -> bool {
        match (stat(self.process), self.start) {
            (Some(stat), Some(start)) => stat.start == start,
            (None, Some(_)) if is_proc_mounted() => false,
            _ => is_unreaped_child(self.process),
        }
    }
}

impl OwnSession {
    /// Refers to the session of a child. The caller must have prepared the child's command with [`own_session`] and
    /// [`mark`], and must not have waited for the child.
    #[must_use]
    pub fn of_child(process: u32, nonce: Nonce) -> Self {
        Self { leader: Process::of_child(process), nonce }
    }

    /// Returns the child that leads the session.
    #[must_use]
    pub fn leader(&self) -> &Process {
        &self.leader
    }

    /// Returns the nonce in the environment of the child, which its descendants inherit.
    #[must_use]
    pub fn nonce(&self) -> &Nonce {
        &self.nonce
    }

    /// Sends a signal to the process group of the child. Descendants that have left the group or the session do not get
    /// the signal.
    pub fn signal(&self, signal: Signal) -> Sent {
        match send(Target::Group(&self.leader), signal) {
            // The child has been waited for, and no descriptor refers to its process group: another group may have its
            // number by now. So each member is proved and signalled by itself.
            Sent::Unproved => {
                let reached =
                    self.members().filter(|member| member.signal(signal) == Sent::Signalled).count();
                if reached > 0 { Sent::Signalled } else { Sent::Unproved }
            }
            sent => sent,
        }
    }

    /// Returns true if the child's process group may still have members. A child that has not been waited for is a
    /// member.
    #[must_use]
    pub fn is_left(&self) -> bool {
        match send_to_group_by(&self.leader, None) {
            Ok(()) => true,
            Err(Errno::ESRCH) => false,
            // kill(2) delivers signal 0 to no process. If another group has the number by now, the function returns
            // true although the child's group has ended.
            Err(_) => killpg(Pid::from_raw(self.leader.process), None) != Err(Errno::ESRCH),
        }
    }

    /// Returns the processes in the group and session of the child that have the child's nonce or are children of this
    /// process.
    fn members(&self) -> impl Iterator<Item = Process> {
        let (leader, own) = (self.leader.process, std::process::id().cast_signed());
        // Another process may have the child's number by now, and may lead a session of the same number.
        let given_again = stat(leader).is_some_and(|stat| Some(stat.start) != self.leader.start);
        let candidates = (!given_again).then(all).into_iter().flatten();
        candidates.filter_map(move |process| {
            let stat = stat(process)?;
            let is_in = stat.group == leader && stat.session == leader && stat.life == ProcessState::Runs;
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

/// Makes a command start as the leader of its own session: only the command and its descendants can be in this session.
/// The session has no controlling terminal, so the kernel does not stop the command when it reads from a terminal, and
/// Ctrl-C does not reach the command.
pub fn own_session(command: &mut Command) {
    // SAFETY: the closure runs between fork and exec, and makes one system call, which takes no argument and allocates
    // nothing; an `io::Error` from an errno does not allocate either.
    unsafe { command.pre_exec(|| Ok(nix::unistd::setsid().map(drop)?)) };
}

/// Adds a new nonce to the environment of a command.
pub fn mark(command: &mut Command) -> Nonce {
    let number = || RandomState::new().hash_one(std::process::id());
    let nonce = format!("{:016x}{:016x}", number(), number());
    command.env(VARIABLE, &nonce);
    Nonce(nonce)
}

/// Starts a command in its own session.
///
/// # Errors
/// The command cannot be started.
pub fn spawn(command: &mut Command) -> io::Result<(Child, OwnSession)> {
    own_session(command);
    let nonce = mark(command);
    let child = command.spawn()?;
    let session = OwnSession::of_child(child.id(), nonce);
    Ok((child, session))
}

/// Restores the default action of SIGCHLD, so that a child that has ended stays a zombie until this program waits for
/// the child. A parent process may have started penstock with SIGCHLD ignored: the kernel would then reap children at
/// once, give their numbers to other processes, and report no exit status (wait(2), "NOTES"). Call this function before
/// the first child is started.
///
/// # Errors
/// The kernel refuses to change the action.
pub fn heed_children() -> io::Result<()> {
    // SAFETY: the default action runs no code of ours.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    Ok(())
}

/// Returns true if a child has ended. The function does not wait for the child, so the child keeps its number.
#[must_use]
pub fn has_ended(child: u32) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let seen = waitid(Id::Pid(Pid::from_raw(child.cast_signed())), flags);
    !matches!(seen, Ok(WaitStatus::StillAlive))
}

/// Reads `/proc/PID/stat` of a process; `None` if no process has this number, or if /proc does not show the process.
#[must_use]
pub fn stat(process: i32) -> Option<Stat> {
    parse(&fs::read(format!("/proc/{process}/stat")).ok()?)
}

/// Returns the numbers of all processes that /proc shows.
pub fn all() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns true if the environment with which a process was started has this variable with this value. The function
/// does not see changes that the process has made to its environment later.
#[must_use]
pub fn has_variable(process: i32, name: &str, value: &str) -> bool {
    let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
    let is_it = |one: &[u8]| {
        let value_of = one.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
        value_of == Some(value.as_bytes())
    };
    environment.split(|byte| *byte == 0).any(is_it)
}

/// Returns true if a process has this number now.
#[must_use]
pub fn is_taken(process: i32) -> bool {
    // kill(2) delivers signal 0 to no process.
    process > 0 && kill(Pid::from_raw(process), None) != Err(Errno::ESRCH)
}

/// The receiver of a signal.
#[derive(Clone, Copy)]
enum Target<'a> {
    Process(&'a Process),
    /// The process group that this process leads or has led.
    Group(&'a Process),
}

/// The only function of this program that sends a signal to another process.
fn send(target: Target<'_>, signal: Signal) -> Sent {
    let (Target::Process(process) | Target::Group(process)) = target;
    // For kill(2), 0 means the process group of the caller, and -1 every process that the caller may signal. 1 is init.
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
            // While the number belongs to the process, even as a zombie, no other process and no other group has the
            // number.
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

/// Signals the process group that the process leads or has led. The descriptor refers to this group even when the
/// kernel has given the number to another process (Linux 6.9).
fn send_to_group_by(process: &Process, signal: Option<Signal>) -> nix::Result<()> {
    send_by(process, signal, PIDFD_SIGNAL_PROCESS_GROUP)
}

/// Signals a process by its descriptor. EBADF: the process has no descriptor. ENOSYS, EPERM: the kernel does not have
/// the system call, or a system call filter refuses the call. EINVAL: the kernel does not know the flag.
fn send_by(process: &Process, signal: Option<Signal>, flags: libc::c_uint) -> nix::Result<()> {
    let pidfd = process.pidfd.as_ref().ok_or(Errno::EBADF)?;
    let signal = signal.map_or(0, |signal| signal as libc::c_int);
    // SAFETY: the descriptor is open while it is borrowed, and for a null pointer the kernel fills in the signal
    // information that kill(2) would give.
    let sent = unsafe {
        let none = std::ptr::null::<libc::siginfo_t>();
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, none, flags)
    };
    Errno::result(sent).map(drop)
}

fn open(process: i32) -> Option<OwnedFd> {
    // SAFETY: the call takes two numbers, and returns a new descriptor, which this program owns, or -1.
    let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
    let opened = i32::try_from(Errno::result(opened).ok()?).ok()?;
    // SAFETY: the kernel has just opened this descriptor, with close-on-exec, and no other part of the program has it.
    Some(unsafe { OwnedFd::from_raw_fd(opened) })
}

/// Parses a line of `/proc/PID/stat`. The process name in parentheses may contain any byte; a state letter and numbers
/// follow the last parenthesis.
fn parse(line: &[u8]) -> Option<Stat> {
    let after = line.iter().rposition(|byte| *byte == b')')? + 1;
    let mut words = std::str::from_utf8(&line[after..]).ok()?.split_ascii_whitespace();
    let life = if words.next()? == "Z" { ProcessState::Zombie } else { ProcessState::Runs };
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
