//! Files that may not grow any more (`ulimit -f`, RLIMIT_FSIZE).

use std::io;

use nix::libc::c_int;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Lets a write beyond the limit of file sizes fail with `EFBIG`, where the signal for it (SIGXFSZ) would end the process
/// without a word. A signal that is ignored already stays so. Programs that are started are not concerned: `exec` gives them
/// back what is usual (signal(7)).
///
/// # Errors
/// The system refuses.
pub fn survive() -> io::Result<()> {
    let nothing = SigAction::new(SigHandler::Handler(do_nothing), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing, so it may run at any moment.
    let before = unsafe { sigaction(Signal::SIGXFSZ, &nothing) }?;
    if matches!(before.handler(), SigHandler::SigIgn) {
        // SAFETY: to ignore a signal runs no code of ours.
        unsafe { sigaction(Signal::SIGXFSZ, &before) }?;
    }
    Ok(())
}

extern "C" fn do_nothing(_: c_int) {}
