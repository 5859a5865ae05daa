//! An address of a `dsr` listener that stays open while a reload gives it another interface or transport: its worker binds the
//! same socket anew, so that what a start would refuse is to be refused before.

use config::types::{BindAddress, Listener};
use logic::dsr::path::DataPath;
use logic::dsr::{Transport, Transports};
use sys::packet::PacketSocket;
use sys::socket::ListenAddress;

use super::{BindError, OpenAddress};
use crate::claim::Claim;

/// Claims an open address where the listener has it from now on; `None`: the address stays where it is, or does not belong to a `dsr` listener. The error is
/// what a start would say.
pub fn moved(
    listener: &Listener,
    bind: &BindAddress,
    open: &OpenAddress,
) -> Result<Option<Claim>, BindError> {
    let (Some(settings), Some(vip)) = (listener.dsr(), bind.vip()) else { return Ok(None) };
    let fail = |reason: String| BindError { listener: listener.name.clone(), bind: bind.clone(), reason };
    let Some(claim) = &open.claim else {
        // Its sockets are those of connections and datagrams.
        return match settings.data_path {
            DataPath::Auto | DataPath::Proxy if open.carries(settings.transports) => Ok(None),
            DataPath::Auto | DataPath::Proxy => {
                Err(fail("it is served without packets (data-path proxy), and gets another transport with the next start".to_owned()))
            }
            path => Err(fail(format!(
                "it is served without packets (data-path proxy) since the start, and data-path = \"{path}\" needs packets: it changes with the next start"
            ))),
        };
    };
    if settings.data_path == DataPath::Proxy {
        let reason = "its packets are forwarded since the start, and data-path = \"proxy\" forwards none: it changes with the next start";
        return Err(fail(reason.to_owned()));
    }
    if claim.is_for(&settings.interface, settings.transports) {
        return Ok(None);
    }
    let interface = &*settings.interface;
    PacketSocket::new()
        .and_then(|socket| socket.bind(interface, &NOTHING))
        .map_err(|error| fail(error.to_string()))?;
    Claim::new(interface, vip, settings.transports).map(Some).map_err(fail)
}

/// A filter that accepts no frame (linux/filter.h: BPF_RET | BPF_K, and the length 0).
const NOTHING: [sys::packet::Instruction; 1] = [(0x06, 0, 0, 0)];

impl OpenAddress {
    /// Whether the sockets of a service without packets are those of these transports.
    fn carries(&self, transports: Transports) -> bool {
        let has = |transport| {
            self.addresses.iter().any(|address| {
                matches!(
                    (address, transport),
                    (ListenAddress::Tcp(_), Transport::Tcp) | (ListenAddress::Udp(_), Transport::Udp)
                )
            })
        };
        [Transport::Tcp, Transport::Udp].into_iter().all(|it| has(it) == transports.has(it))
    }

    /// Keeps the claim of [`moved`], and gives the earlier one back.
    pub fn set_claim(&mut self, claim: Claim) {
        self.claim = Some(claim);
    }
}
