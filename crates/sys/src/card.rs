//! What kind of network interface one is (ethtool, `SIOCETHTOOL`).

use std::io;
use std::mem::size_of_val;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use nix::libc;

/// linux/ethtool.h
const DRIVER_INFORMATION: u32 = 3;

#[repr(C)]
struct DriverInformation {
    command: u32,
    driver: [u8; 32],
    version: [u8; 32],
    firmware: [u8; 32],
    bus: [u8; 32],
    rom: [u8; 32],
    reserved: [u8; 12],
    lengths: [u32; 5],
}

/// The driver of an interface, and where its card is: empty for what software makes.
pub fn driver(interface: &str) -> io::Result<(String, String)> {
    let socket = UdpSocket::bind(("127.0.0.1", 0)).or_else(|_| UdpSocket::bind(("::", 0)))?;
    let mut information = DriverInformation {
        command: DRIVER_INFORMATION,
        driver: [0; 32],
        version: [0; 32],
        firmware: [0; 32],
        bus: [0; 32],
        rom: [0; 32],
        reserved: [0; 12],
        lengths: [0; 5],
    };
    // SAFETY: zeroes are a value of this struct of integers and pointers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = size_of_val(&request.ifr_name) - 1;
    for (place, byte) in request.ifr_name.iter_mut().zip(interface.bytes()).take(room) {
        *place = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut information).cast();
    // SAFETY: the request names its struct of this command, which lives until the call returns.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((text(&information.driver), text(&information.bus)))
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
