//! Limits of the kernel on what a server may hold.

use super::facts::{Descriptors, Limits, Measured};
use crate::finding::Finding;

/// Below this many descriptors a server on the open internet can be filled by a few clients.
const FEW: u64 = 8192;

/// Descriptors of a connection: the client, and a backend.
const OF_CONNECTION: u64 = 2;

pub(super) fn judge(limits: &Limits) -> Vec<Finding> {
    let mut found = vec![descriptors(limits.descriptors)];
    found.extend(limits.listen_queue.map(|length| listen_queue(length, limits.backlog)));
    found.push(tracked(limits.tracked));
    found
}

fn descriptors(descriptors: Descriptors) -> Finding {
    let Descriptors { hard, measured, connections } = descriptors;
    let of = match measured {
        Measured::Server => "the server",
        Measured::Here => "this shell",
    };
    let wanted = connections
        .map_or(FEW, |connections| connections.saturating_mul(OF_CONNECTION).saturating_add(FEW / 8));
    if hard >= wanted {
        let text = format!("{of} may open {hard} descriptors, two for each client connection");
        return Finding::ok("descriptors", text);
    }
    let text = format!(
        "{of} may open {hard} descriptors only, fewer than {wanted}: about {} client connections",
        hard.saturating_sub(hard / 4) / OF_CONNECTION
    );
    let mend = match measured {
        Measured::Server => "systemctl edit penstock   # [Service] LimitNOFILE=1048576",
        Measured::Here => {
            "ulimit -Hn 1048576   # as root, before the start; the service of the package has it"
        }
    };
    Finding::fault("descriptors", text, vec![mend.to_owned()])
}

fn listen_queue(length: u64, backlog: u64) -> Finding {
    if length >= backlog {
        return Finding::ok(
            "listen-queue",
            format!("net.core.somaxconn is {length}: queues of {backlog} fit"),
        );
    }
    Finding::fault(
        "listen-queue",
        format!(
            "net.core.somaxconn is {length}, and a listener asks for a queue of {backlog}: a burst of clients finds it full"
        ),
        vec![format!(
            "sysctl -w net.core.somaxconn={backlog}   # and in /etc/sysctl.d, for the next start of the machine"
        )],
    )
}

fn tracked(tracked: Option<(u64, u64)>) -> Finding {
    let check = "connection-tracking";
    match tracked {
        None => Finding::ok(check, "the packet filter keeps no table of connections"),
        Some((now, most)) if now.saturating_mul(10) >= most.saturating_mul(9) => Finding::fault(
            check,
            format!(
                "the packet filter's table of connections is full: {now} of {most}. The kernel drops new clients"
            ),
            vec![format!("sysctl -w net.netfilter.nf_conntrack_max={}", most.saturating_mul(4))],
        ),
        Some((now, most)) => {
            Finding::ok(check, format!("the packet filter's table of connections has {now} of {most}"))
        }
    }
}
