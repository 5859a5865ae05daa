//! System calls for one datagram at a time, made directly.
//!
//! The functions of the C library for them are cancellation points (pthreads(7)): in a process with threads, glibc changes
//! a flag of the thread by an atomic instruction before each system call and after it. That took 3 % of the CPU of a query
//! (perf, 29 November 2026), and penstock cancels no thread.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;

/// send(2) on a connected socket, without a wait.
pub(super) fn send(socket: BorrowedFd<'_>, datagram: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let (no_address, no_length) = (std::ptr::null::<libc::sockaddr>(), 0 as libc::socklen_t);
    // SAFETY: `datagram` lives until the call returns, with its true length; the kernel only reads it.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_sendto,
            socket.as_raw_fd(),
            datagram.as_ptr(),
            datagram.len(),
            flags,
            no_address,
            no_length,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// recv(2), without a wait. With [`libc::MSG_TRUNC`] the length of the whole datagram, of which `room` has the beginning.
pub(super) fn receive(socket: BorrowedFd<'_>, room: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
    let (no_address, no_length) =
        (std::ptr::null_mut::<libc::sockaddr>(), std::ptr::null_mut::<libc::socklen_t>());
    // SAFETY: `room` lives until the call returns, with its true length.
    let received = unsafe {
        libc::syscall(
            libc::SYS_recvfrom,
            socket.as_raw_fd(),
            room.as_mut_ptr(),
            room.len(),
            flags | libc::MSG_DONTWAIT,
            no_address,
            no_length,
        )
    };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

/// connect(2), which does not wait for a UDP socket.
///
/// # Safety
/// `address` points to an address of `length` bytes that lives until the call returns.
pub(super) unsafe fn connect(
    socket: BorrowedFd<'_>,
    address: *const libc::sockaddr,
    length: libc::socklen_t,
) -> io::Result<()> {
    // SAFETY: the caller vouches for the address; the kernel only reads it.
    let done = unsafe { libc::syscall(libc::SYS_connect, socket.as_raw_fd(), address, length) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
