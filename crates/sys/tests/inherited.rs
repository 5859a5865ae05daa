//! Sockets passed as systemd passes them: from descriptor 3 on, to a process of its own.
//!
//! Has its own `main`: the harness runs every test beside its main thread, and `inherited` demands a single one.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::env;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use socket2::{Domain, Socket, Type};
use sys::socket::{InheritedError, ListenAddress, inherited};

const ROLE: &str = "PENSTOCK_TEST_INHERIT";

fn main() {
    if env::var_os(ROLE).is_some() {
        return take_and_tell();
    }
    tcp_and_unix_sockets_arrive_with_name_and_address();
    a_udp_socket_arrives_if_it_is_bound();
    a_descriptor_that_is_no_listening_socket_is_named();
    println!("inherited sockets: 3 tests passed");
}

fn tcp_and_unix_sockets_arrive_with_name_and_address() {
    let directory = tempfile::tempdir().unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let unix = UnixListener::bind(directory.path().join("s.sock")).unwrap();
    let expected = format!(
        "web Tcp({})\nunknown Unix({:?})\n",
        tcp.local_addr().unwrap(),
        directory.path().join("s.sock"),
    );
    assert_eq!(told_by_child(tcp.into(), unix.into()), expected);
}

fn a_udp_socket_arrives_if_it_is_bound() {
    let tcp = || TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let expected = format!("unknown Udp({})\n", udp.local_addr().unwrap());
    let told = told_by_child(tcp().into(), udp.into());
    assert!(told.ends_with(&expected), "{told}");
    let unbound = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
    let told = told_by_child(tcp().into(), unbound.into());
    assert!(told.contains("nor a bound UDP socket"), "{told}");
}

fn a_descriptor_that_is_no_listening_socket_is_named() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    let told = told_by_child(tcp.into(), file.into());
    assert!(told.contains("descriptor 4) is not a listening"), "{told}");
}

fn told_by_child(third: OwnedFd, fourth: OwnedFd) -> String {
    // The shell puts the sockets at 3 and 4 and, like systemd, sets LISTEN_PID to the process it becomes.
    let script =
        r#"exec 3<&0 4>&1 0</dev/null 1>&2; LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=web exec "$@""#;
    let child = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(env::current_exe().unwrap())
        .env(ROLE, "child")
        .stdin(Stdio::from(third))
        .stdout(Stdio::from(fourth))
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stderr).into_owned();
    assert!(child.status.success(), "{output}");
    output
}

fn take_and_tell() {
    let told = match inherited() {
        Ok(sockets) => {
            for socket in &sockets {
                let flags = FdFlag::from_bits_retain(fcntl(&socket.socket, FcntlArg::F_GETFD).unwrap());
                assert!(flags.contains(FdFlag::FD_CLOEXEC));
            }
            sockets.iter().map(|socket| format!("{} {}\n", socket.name, text(&socket.address))).collect()
        }
        Err(error @ InheritedError::Unsupported { .. }) => error.to_string(),
        Err(error) => panic!("{error}"),
    };
    assert!(env::vars_os().all(|(name, _)| !name.to_string_lossy().starts_with("LISTEN_")));
    assert!(inherited().unwrap().is_empty());
    eprint!("{told}");
}

fn text(address: &ListenAddress) -> String {
    match address {
        ListenAddress::Tcp(address) => format!("Tcp({address})"),
        ListenAddress::Udp(address) => format!("Udp({address})"),
        ListenAddress::Packets(address) => format!("Packets({address})"),
        ListenAddress::Unix(path) => format!("Unix({path:?})"),
    }
}
