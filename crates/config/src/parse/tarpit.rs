//! `tarpit` of a listener.

use super::duration::DAY;
use super::parser::{Parser, Zero, count};
use crate::de::At;
use crate::raw::RawListener;
use crate::types::Tarpit;

impl Parser<'_> {
    pub(super) fn tarpit(&mut self, at: &At<RawListener>) -> Option<Option<Tarpit>> {
        let raw = &at.value;
        let Some(key) = &raw.tarpit else {
            return (!self.nodes.is_broken(at.id, "tarpit")).then_some(None);
        };
        let time = self.time(&key.value.time, Zero::Refused, DAY);
        if raw.acl.is_none() && !self.nodes.is_broken(at.id, "acl") {
            let message = "does nothing without acl: no client is denied";
            drop(self.report.at_key(self.nodes, key.id, message).warning());
        }
        if raw.denied_pool.is_some() {
            let message = "excludes denied-pool: a denied client is held or served";
            drop(self.report.at_key(self.nodes, key.id, message).hint("remove one of them"));
            return None;
        }
        let clients = count(key.value.clients.as_ref()?.value);
        Some(Some(Tarpit { time: time?, clients }))
    }
}
