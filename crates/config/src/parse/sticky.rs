//! `sticky` of a pool: how clients keep their backends.

use logic::cookie;

use super::duration::YEAR;
use super::parser::{Parser, Zero, count};
use crate::de::At;
use crate::raw::RawSticky;
use crate::types::{Sticky, StickyCookie};

impl Parser<'_> {
    pub(super) fn sticky(&mut self, raw: &RawSticky) -> Option<Sticky> {
        let ttl = self.time(&raw.ttl, Zero::Refused, YEAR);
        Some(Sticky {
            entries: count(raw.entries.as_ref()?.value),
            ttl: ttl?,
            ipv6_prefix: u8::try_from(raw.ipv6_prefix.as_ref()?.value).ok()?,
        })
    }

    pub(super) fn sticky_cookie(&mut self, at: &At<RawSticky>) -> Option<Option<StickyCookie>> {
        let raw = &at.value;
        let key_file = match &raw.key_file {
            None if self.nodes.is_broken(at.id, "key-file") => return None,
            None => None,
            Some(path) => Some((self.file(path)?, path.id)),
        };
        let Some(name) = &raw.cookie else {
            if self.nodes.is_broken(at.id, "cookie") {
                return None;
            }
            if let Some((_, id)) = key_file {
                drop(self.report.at_key(self.nodes, id, "only for cookie").hint("cookie = \"lb\""));
                return None;
            }
            return Some(None);
        };
        if !cookie::is_name(&name.value) {
            let reason = "is not a name of a cookie: up to 64 letters, digits, - and _";
            drop(self.refuse(name, reason).hint("cookie = \"lb\""));
            return None;
        }
        let Some((key_file, _)) = key_file else {
            let message = "needs key-file: clients could name any backend without a key";
            let hint = "head -c 32 /dev/urandom | base64 > FILE, readable for penstock alone";
            drop(self.report.at_key(self.nodes, name.id, message).hint(hint));
            return None;
        };
        Some(Some(StickyCookie { name: name.value.as_str().into(), key_file }))
    }
}
