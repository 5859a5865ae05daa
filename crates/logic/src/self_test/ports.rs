//! Addresses that the configuration listens on, and who has them.

use super::facts::{Holder, Port, Server};
use crate::finding::Finding;

pub(super) fn judge(port: &Port, server: Option<&Server>) -> Finding {
    let Port { key, address, protocol, number, holder, refused } = port;
    let what = format!("{key}: {protocol} {address}");
    if let Some(why) = refused {
        return Finding::fault(
            "port",
            format!("{what} cannot be had, so a start is refused: {why}"),
            vec![format!("ip -brief address   # the addresses of this machine; {key} needs one of them")],
        );
    }
    match holder {
        None => Finding::ok("port", format!("{what} is free")),
        Some(Holder::Process { process, .. }) if server.is_some_and(|server| server.process == *process) => {
            Finding::ok("port", format!("{what} is served by process {process}"))
        }
        Some(Holder::Process { name, process }) => Finding::fault(
            "port",
            format!("{what} is taken by {name} (process {process}): a start is refused"),
            vec![format!("# stop {name}, or take another address than {address} in {key}")],
        ),
        Some(Holder::Hidden) if server.is_some() => Finding::unknown(
            "port",
            format!("{what} is taken; run this as root to see whether the server has it"),
        ),
        Some(Holder::Hidden) => Finding::fault(
            "port",
            format!("{what} is taken by a process of another user: a start is refused"),
            vec![format!(
                "ss --listening --processes --{protocol} 'sport = :{number}'   # as root it names the process"
            )],
        ),
    }
}
