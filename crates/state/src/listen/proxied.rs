//! A `dsr` service whose packets cannot be forwarded, or are not to be: sockets of TCP and UDP at its address, for every worker.
//! The kernel takes what comes there, so that this machine must have the address.

use config::types::DsrSettings;
use logic::dsr::Transport;
use sys::socket::DualStack;

use super::{
    Bound, BoundKey, Holder, OpenAddress, Socket, Transport as Carrier, explain, open_tcp, open_udp,
    worker_of,
};
use crate::data_path;

/// Length of the queue of connections that wait to be accepted: the default of `backlog`.
const BACKLOG: u32 = 4096;

/// Opens the sockets of a service. `why` no packet can be had; `None`: none is asked for.
pub(super) fn open(
    key: BoundKey,
    settings: &DsrSettings,
    why: Option<&str>,
    holder: Holder<'_>,
    workers: usize,
) -> Result<Bound, String> {
    let instead = |reason: String| match why {
        None => reason,
        Some(why) => format!("{why}; and without packets (data-path proxy): {reason}"),
    };
    let vip = key.bind.vip().filter(|vip| vip.port() != 0);
    let Some(vip) = vip else {
        return Err(instead("every port of an address is for packets alone".to_owned()));
    };
    if matches!(sys::datagram::is_local(vip), Ok(false)) {
        let prefix = if vip.is_ipv4() { 32 } else { 128 };
        return Err(instead(format!(
            "this machine does not have {0}, and its kernel takes connections to own addresses alone: `ip address add {0}/{prefix} dev {1}`",
            vip.ip(),
            text::shell::word(&settings.interface)
        )));
    }
    let mut all = Bound {
        key: key.clone(),
        sockets: Vec::new(),
        open: OpenAddress { addresses: Vec::new(), shared: None, file: None, claim: None },
    };
    all.sockets.resize_with(workers, Vec::new);
    for transport in [Transport::Tcp, Transport::Udp].into_iter().filter(|it| settings.transports.has(*it)) {
        let (opened, carrier) = match transport {
            Transport::Tcp => {
                (open_tcp(key.clone(), vip, DualStack::V6Only, BACKLOG, holder, workers), Carrier::Stream)
            }
            Transport::Udp => {
                (open_udp(key.clone(), vip, DualStack::V6Only, holder, workers), Carrier::Datagram)
            }
        };
        let opened = opened.map_err(|error| instead(explain(&error, holder, carrier)))?;
        all.open.addresses.extend(opened.open.addresses);
        for (worker, sockets) in all.sockets.iter_mut().zip(opened.sockets) {
            worker.extend(sockets);
        }
    }
    let path = data_path::proxied(&key.listener, vip, settings, why);
    if let Some(worker) = all.sockets.get_mut(worker_of(&key, vip, workers)) {
        worker.push(Socket::Proxied(Box::new(path)));
    }
    Ok(all)
}
