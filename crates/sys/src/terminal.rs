//! The width of a terminal.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

use nix::libc;

/// Returns the columns of the terminal `descriptor` (TIOCGWINSZ, `ioctl_tty(2)`). `None` if it is no terminal, or the
/// terminal does not report its width.
pub fn columns(descriptor: &impl AsFd) -> Option<usize> {
    let mut size = MaybeUninit::<libc::winsize>::zeroed();
    // SAFETY: the descriptor is open while it is borrowed, and the kernel writes at most one winsize; `size` has room
    // for one until the call has returned.
    let result = unsafe { libc::ioctl(descriptor.as_fd().as_raw_fd(), libc::TIOCGWINSZ, size.as_mut_ptr()) };
    // SAFETY: all bytes of `size` were set to zero, which is a valid winsize.
    let size = unsafe { size.assume_init() };
    (result == 0 && size.ws_col > 0).then(|| usize::from(size.ws_col))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_terminal_has_no_columns() {
        assert_eq!(columns(&std::fs::File::open("/dev/null").unwrap()), None);
    }
}
