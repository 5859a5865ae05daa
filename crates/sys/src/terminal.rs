//! The width of a terminal, and what was typed there.

use std::io;
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

/// Returns how many bytes may be read without waiting (FIONREAD, `ioctl_tty(2)`): of a terminal those of whole lines.
pub fn typed(descriptor: &impl AsFd) -> io::Result<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel writes one int, which lives until the call has
    // returned.
    let result = unsafe { libc::ioctl(descriptor.as_fd().as_raw_fd(), libc::FIONREAD, &raw mut count) };
    nix::errno::Errno::result(result)?;
    Ok(usize::try_from(count).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_terminal_has_no_columns() {
        assert_eq!(columns(&std::fs::File::open("/dev/null").unwrap()), None);
    }

    #[test]
    fn what_waits_is_counted_and_stays() {
        use std::io::{Read, Write};
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        assert_eq!(typed(&reader).unwrap(), 0);
        writer.write_all(b"ls\n").unwrap();
        assert_eq!((typed(&reader).unwrap(), typed(&reader).unwrap()), (3, 3));
        reader.read_exact(&mut [0; 3]).unwrap();
        assert_eq!(typed(&reader).unwrap(), 0);
    }
}
