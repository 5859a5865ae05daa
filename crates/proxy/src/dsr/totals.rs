//! What a service has done since it began.

use std::collections::BTreeMap;

use state::ending::Ending;

#[derive(Default)]
pub(super) struct Totals {
    /// Packets to backends, and the bytes of their frames.
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) passed: u64,
    /// Questions who has the address.
    pub(super) answered: u64,
    /// By reason.
    pub(super) dropped: BTreeMap<&'static str, u64>,
}

impl Totals {
    pub(super) fn drop(&mut self, count: u64, why: &Ending) {
        *self.dropped.entry(why.word()).or_insert(0) += count;
    }
}
