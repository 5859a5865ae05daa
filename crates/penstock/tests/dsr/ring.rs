//! The ring through which frames come to the process.

use std::fs;

use testing::tools::{self, Root};
use testing::{eventually, secs};

use super::network::{BALANCER, Network, VIP, config};

/// Writes datagrams for the service into the interface tap0, as a virtual machine behind it would send them: so many plain
/// ones, and before them perhaps one whose fragments are left to the card (UFO), for which the kernel has no form when it
/// gives it to a packet socket.
const GUEST: &str = r#"
import fcntl, os, struct, sys
ethernet, plain, large = bytes.fromhex(sys.argv[1].replace(":", "")), int(sys.argv[2]), sys.argv[3] == "large"
tap = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tap, 0x400454ca, struct.pack("16sH22x", b"tap0", 0x0002 | 0x1000 | 0x4000))
def checksum(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    total = (total & 0xffff) + (total >> 16)
    return ~((total & 0xffff) + (total >> 16)) & 0xffff
def frame(length, offload):
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28 + length, 1, 0, 64, 17, 0, bytes([198, 18, 0, 1]), bytes([10, 77, 0, 100]))
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    udp = struct.pack("!HHHH", 10000, 80, 8 + length, 0x1234 if offload else 0) + b"x" * length
    return offload + bytes(10 - len(offload)) + ethernet + bytes([2, 0, 0, 0, 0, 12, 8, 0]) + ip + udp
if large:
    os.write(tap, frame(3000, struct.pack("<BBHHHH", 1, 3, 42, 1000, 34, 6)))
for _ in range(plain):
    os.write(tap, frame(100, b""))
"#;

#[test]
fn a_frame_that_the_kernel_cannot_describe_ends_the_ring_and_not_the_service() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    network.ip(BALANCER, &["tuntap", "add", "dev", "tap0", "mode", "tap", "vnet_hdr"]);
    network.ip(BALANCER, &["link", "set", "tap0", "up"]);
    let ethernet = network.run(BALANCER, &["cat", "/sys/class/net/tap0/address"]);
    let send = |plain: &str, large| {
        network.run(BALANCER, &["python3", "-c", GUEST, ethernet.trim(), plain, large]);
    };
    let listener = "transport = \"udp\"\ndata-path = \"af_packet\"";
    let text = config(&format!("\"{VIP}:80\""), listener, "health = \"off\"").replace("\"eth0\"", "\"tap0\"");
    let server = network.balancer(&text);
    // No backend is behind the interface.
    let taken = || {
        let service = server.ctl_json(&["dsr", "status"])["services"][0].clone();
        service["dropped"]["packet-no-backend"].as_u64().or(Some(0))
    };
    eventually("the service takes packets", secs(20), || {
        send("1", "");
        (taken()? > 0).then_some(())
    });
    let memory = fs::read_to_string(format!("/proc/{}/maps", server.pid())).unwrap();
    assert!(memory.contains(" socket:["), "no ring: {memory}");
    let before = taken().unwrap();
    send("0", "large");
    eventually("it takes packets after the other one", secs(20), || {
        send("1", "");
        (taken()? > before).then_some(())
    });
    // Each is taken from now on.
    let before = taken().unwrap();
    send("500", "");
    eventually("it takes all", secs(20), || (taken()? >= before + 500).then_some(()));
}
