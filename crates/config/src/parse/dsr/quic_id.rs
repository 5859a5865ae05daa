//! Numbers of servers in connection ids of QUIC: their place, and that of each backend.

use logic::dsr::Transports;
use logic::dsr::quic::{MOST_BYTES, QuicId, ServerId};

use crate::de::At;
use crate::parse::parser::Parser;
use crate::raw::{RawBackend, RawListener};
use crate::tree::NodeId;
use crate::types::Pool;

impl Parser<'_> {
    /// Where connection ids have the number of a server; `None` if it is wrong.
    pub(in crate::parse) fn quic_id(
        &mut self,
        at: &At<RawListener>,
        transports: Option<Transports>,
    ) -> Option<Option<QuicId>> {
        let Some(key) = &at.value.quic_id else {
            return (!self.nodes.is_broken(at.id, "quic-id")).then_some(None);
        };
        if transports.is_some_and(|transports| transports != Transports::Udp) {
            let message = "only with transport = \"udp\": QUIC travels in UDP";
            drop(self.report.at_key(self.nodes, key.id, message));
            return None;
        }
        let (offset, length) = (key.value.offset.as_ref()?.value, key.value.length.as_ref()?.value);
        let byte = |number: i64| u8::try_from(number).ok();
        let place = byte(offset).zip(byte(length)).and_then(|(offset, length)| QuicId::new(offset, length));
        if place.is_none() {
            let message =
                format!("the number ends at byte {}, and a connection id has 20 at most", offset + length);
            drop(self.report.at_key(self.nodes, key.id, message));
        }
        place.map(Some)
    }

    /// The number of a backend; `None` if it is wrong.
    pub(in crate::parse) fn server_id(
        &mut self,
        raw: &RawBackend,
        entry: NodeId,
    ) -> Option<Option<(ServerId, u8)>> {
        let Some(key) = &raw.quic_id else {
            return (!self.nodes.is_broken(entry, "quic-id")).then_some(None);
        };
        let Some(bytes) = bytes(&key.value) else {
            drop(self.refuse(key, "is no row of whole bytes").hint("quic-id = \"0a01\" is two bytes"));
            return None;
        };
        let id = ServerId::new(&bytes);
        if id.is_none() {
            let reason = format!("has {} bytes: 1 to {MOST_BYTES} are possible", bytes.len());
            drop(self.refuse(key, &reason));
        }
        id.map(|id| Some((id, bytes.len() as u8)))
    }
}

/// Why a pool has not the numbers that a listener needs, and what to do.
pub(super) fn wrong_numbers(pool: &Pool, place: QuicId) -> Option<(String, String)> {
    let length = place.length();
    for (at, backend) in pool.backends.iter().enumerate() {
        let address = &backend.address;
        let example = format!(
            "{{ address = \"{address}\", quic-id = \"{:0width$x}\" }}",
            at + 1,
            width = 2 * usize::from(length)
        );
        match backend.quic_id {
            None => {
                let message = format!(
                    "{address} of this pool has no quic-id: clients of it whose address changes would lose their connections"
                );
                return Some((message, format!("write the number that it has: {example}")));
            }
            Some((_, has)) if has != length => {
                let message = format!(
                    "the quic-id of {address} of this pool has {has} bytes, and that of the listener {length}"
                );
                return Some((message, format!("both need the same length: {example}")));
            }
            Some((id, _)) => {
                let mut earlier = pool.backends[..at].iter();
                let same = earlier.find(|other| other.quic_id.is_some_and(|(other, _)| other == id));
                if let Some(same) = same {
                    let message =
                        format!("{} and {address} of this pool have the same quic-id", same.address);
                    return Some((message, "give each server a number of its own".to_owned()));
                }
            }
        }
    }
    None
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}
