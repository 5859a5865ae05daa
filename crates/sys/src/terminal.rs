//! How wide a terminal is.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

use nix::libc;

/// Columns of the terminal behind `descriptor` now (TIOCGWINSZ, `ioctl_tty(2)`); `None` if it is none, or does not know.
pub fn columns(descriptor: &impl AsFd) -> Option<usize> {
    let mut size = MaybeUninit::<libc::winsize>::zeroed();
    // SAFETY: the descriptor is open for as long as it is borrowed, and the kernel writes at most a winsize, for which
    // there is room until the call has returned.
    let result = unsafe { libc::ioctl(descriptor.as_fd().as_raw_fd(), libc::TIOCGWINSZ, size.as_mut_ptr()) };
    // SAFETY: all of it was zero before, which is a winsize.
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
