//! An address of a `dsr` listener that stays open while a reload gives it another interface or transport: its worker binds the
//! same socket anew, so that what a start would refuse is to be refused before.

use config::types::{BindAddress, Listener};
use sys::packet::PacketSocket;

use super::{BindError, OpenAddress};
use crate::claim::Claim;

/// Claims an open address where the listener has it from now on; `None`: the address stays where it is, or does not belong to a `dsr` listener. The error is
/// what a start would say.
pub fn moved(
    listener: &Listener,
    bind: &BindAddress,
    open: &OpenAddress,
) -> Result<Option<Claim>, BindError> {
    let (Some(settings), Some(vip), Some(claim)) = (listener.dsr(), bind.vip(), &open.claim) else {
        return Ok(None);
    };
    if claim.is_for(&settings.interface, settings.transports) {
        return Ok(None);
    }
    let fail = |reason: String| BindError { listener: listener.name.clone(), bind: bind.clone(), reason };
    let interface = &*settings.interface;
    PacketSocket::new()
        .and_then(|socket| socket.bind(interface, &NOTHING))
        .map_err(|error| fail(error.to_string()))?;
    Claim::new(interface, vip, settings.transports).map(Some).map_err(fail)
}

/// A filter that accepts no frame (linux/filter.h: BPF_RET | BPF_K, and the length 0).
const NOTHING: [sys::packet::Instruction; 1] = [(0x06, 0, 0, 0)];

impl OpenAddress {
    /// Keeps the claim of [`moved`], and gives the earlier one back.
    pub fn set_claim(&mut self, claim: Claim) {
        self.claim = Some(claim);
    }
}
