//! The kernel, and what every program of this machine shares.

use super::facts::{IoUring, Ipv6, Kernel, Resolver, Use};
use crate::finding::Finding;
use crate::rings::WantedRings;

/// First version of Landlock that restricts signals as well.
const ALL_OF_LANDLOCK: u32 = 6;
/// First kernel with TCX links.
const TCX: (u32, u32) = (6, 6);

pub(super) fn sandbox(kernel: &Kernel) -> [Finding; 2] {
    let landlock = match kernel.landlock {
        None => Finding::fault(
            "landlock",
            "this kernel has no Landlock, or it is switched off: a server may use every file of its user",
            vec![
                "cat /sys/kernel/security/lsm   # add landlock to lsm= of the kernel's command line"
                    .to_owned(),
            ],
        ),
        Some(version) if version < ALL_OF_LANDLOCK => Finding::ok(
            "landlock",
            format!(
                "Landlock has version {version}: files are restricted, signals from version {ALL_OF_LANDLOCK} on"
            ),
        ),
        Some(version) => Finding::ok(
            "landlock",
            format!("Landlock has version {version}: files and signals are restricted"),
        ),
    };
    let seccomp = match kernel.seccomp {
        true => Finding::ok("seccomp", "the kernel can refuse system calls (seccomp)"),
        false => Finding::fault(
            "seccomp",
            "this kernel cannot refuse system calls: a server may make every one",
            vec!["# take a kernel that is built with CONFIG_SECCOMP_FILTER".to_owned()],
        ),
    };
    [landlock, seccomp]
}

/// Features that are used where they are there. None of them is needed, unless the configuration says so.
pub(super) fn features(kernel: &Kernel) -> Vec<Finding> {
    let Kernel { release, ktls, bpf, bpf_use, io_uring, .. } = kernel;
    let tcx = kernel.version().is_some_and(|version| version >= TCX);
    let bpf = match (bpf, bpf_use) {
        (true, _) => Finding::ok("bpf", "/sys/fs/bpf is mounted: programs of dsr outlive a restart"),
        (false, Use::NotNeeded) => {
            Finding::ok("bpf", "/sys/fs/bpf is not mounted; only dsr listeners use it")
        }
        (false, Use::Needed) => Finding::fault(
            "bpf",
            "/sys/fs/bpf is not mounted: a program of dsr ends with its process, and its flows are forgotten",
            vec!["mount -t bpf bpf /sys/fs/bpf".to_owned()],
        ),
    };
    let tcx = match tcx {
        true => format!("Linux {release} has TCX links, which dsr uses"),
        false => format!("Linux {release} has no TCX links (6.6 has): dsr takes filters of tc instead"),
    };
    let ktls = match ktls {
        true => "the kernel has TLS (kTLS)",
        false => "the kernel's TLS (kTLS) is not loaded; nothing needs it (`modprobe tls` loads it)",
    };
    vec![bpf, Finding::ok("tcx", tcx), Finding::ok("ktls", ktls), self::io_uring(io_uring)]
}

fn io_uring(io_uring: &IoUring) -> Finding {
    let off = match (io_uring.disabled, &io_uring.fault) {
        // A server may have fewer rights than this process.
        (Some(1..), _) => Some("it is switched off (kernel.io_uring_disabled)"),
        (_, fault) => fault.as_deref(),
    };
    match (io_uring.wanted, off) {
        (WantedRings::None, _) => Finding::ok("io-uring", "io_uring is not used, and may be switched off"),
        (_, None) => {
            Finding::ok("io-uring", "io_uring can be used: TCP sessions begin in it (process.engine)")
        }
        (WantedRings::IfAllowed, Some(why)) => Finding::ok(
            "io-uring",
            format!(
                "io_uring cannot be used: {why}; TCP sessions are served by epoll, which takes more CPU time"
            ),
        ),
        (WantedRings::Asked, Some(why)) => Finding::fault(
            "io-uring",
            format!(
                "process.engine asks for io_uring, which cannot be used: {why}; TCP sessions are served by epoll"
            ),
            vec!["sysctl -w kernel.io_uring_disabled=0   # or set process.engine = \"auto\"".to_owned()],
        ),
    }
}

pub(super) fn resolver(resolver: &Resolver) -> Finding {
    let Resolver { servers, names } = resolver;
    let lost: Vec<_> =
        names.iter().filter_map(|(name, why)| Some(format!("{name}: {}", why.as_ref()?))).collect();
    let from = match servers.is_empty() {
        true => "/etc/resolv.conf names no server".to_owned(),
        false => format!("servers in /etc/resolv.conf: {}", servers.join(", ")),
    };
    if !lost.is_empty() {
        let text = format!("names of the configuration do not resolve: {} ({from})", lost.join("; "));
        return Finding::fault(
            "resolver",
            text,
            vec!["getent ahosts NAME   # asks as every program here does".to_owned()],
        );
    }
    let text = match names.len() {
        0 => format!("no name of the configuration needs the DNS; {from}"),
        count => format!("{} of the configuration resolved; {from}", text::units::count(count, "name")),
    };
    Finding::ok("resolver", text)
}

pub(super) fn ipv6(ipv6: &Ipv6) -> Finding {
    match (ipv6.kernel, ipv6.address, ipv6.named_by.first()) {
        (false, _, Some(key)) => Finding::fault(
            "ipv6",
            format!("{key} is an IPv6 address, and the kernel has no IPv6"),
            vec![
                "sysctl -w net.ipv6.conf.all.disable_ipv6=0   # or take ipv6.disable=1 from its command line"
                    .to_owned(),
            ],
        ),
        (false, _, None) => Finding::ok("ipv6", "the kernel has no IPv6: `:80` is every IPv4 address"),
        (true, false, _) => {
            Finding::ok("ipv6", "the kernel has IPv6, and this machine no address in it for other machines")
        }
        (true, true, _) => {
            Finding::ok("ipv6", "this machine has an IPv6 address: `:80` is every IPv6 and IPv4 address")
        }
    }
}
