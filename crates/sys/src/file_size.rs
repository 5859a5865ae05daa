//! The limit of the size of a file that a process writes (`ulimit -f`).

use std::io;

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Installs a handler for SIGXFSZ: from then on, a write beyond the limit of the size of a file fails with EFBIG, and
/// the signal does not end this program (setrlimit(2)). Programs that penstock starts have the default action of the
/// signal, since execve(2) does not keep handlers. If the parent process of penstock ignores the signal, the signal
/// stays ignored.
///
/// # Errors
/// The kernel refuses the change of the signal's action. No known case.
pub fn survive_file_size_limit() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let ours = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler has no code, so it may interrupt any code.
    let before = unsafe { sigaction(Signal::SIGXFSZ, &ours) }?;
    if matches!(before.handler(), SigHandler::SigIgn) {
        // SAFETY: `before` is the action that was set before, and SIG_IGN runs no code.
        unsafe { sigaction(Signal::SIGXFSZ, &before) }?;
    }
    Ok(())
}
