//! The limit of the size of a file (`ulimit -f`).

use std::io;

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// From here on a write beyond the limit of the size of a file fails with EFBIG, instead of ending this program by SIGXFSZ
/// (setrlimit(2)). Programs that it starts have the signal as the system has it, since a handler, other than a signal that is
/// ignored, does not outlive execve(2). A signal that whoever started us ignores stays ignored.
///
/// # Errors
/// The system refuses, which it has no reason to.
pub fn survive_file_size_limit() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let ours = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing at all, so it may interrupt anything.
    let before = unsafe { sigaction(Signal::SIGXFSZ, &ours) }?;
    if matches!(before.handler(), SigHandler::SigIgn) {
        // SAFETY: it is what was there before, and it runs no code.
        unsafe { sigaction(Signal::SIGXFSZ, &before) }?;
    }
    Ok(())
}
