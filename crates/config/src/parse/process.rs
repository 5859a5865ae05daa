//! `[process]`.

use std::num::NonZeroUsize;

use logic::account::{Percent, Shares};
use logic::balance::Prefixes;

use super::duration;
use super::parser::{Parser, Zero, count};
use crate::de::Key;
use crate::raw::{RawProcess, RawShares, Scalar};
use crate::types::{MaxConnections, Process, Workers};

impl Parser<'_> {
    pub(super) fn process(&mut self, raw: &RawProcess) -> Option<Process> {
        let workers = raw.workers.as_ref().map(|workers| match &workers.value {
            Scalar::Integer(count) => {
                usize::try_from(*count).ok().and_then(NonZeroUsize::new).map_or(Workers::Auto, Workers::Count)
            }
            Scalar::Text(_) | Scalar::Switch(_) => Workers::Auto,
        });
        // `shape.rs` has already reported an unknown word.
        let engine = raw.engine.as_ref().and_then(|word| word.value.parse().ok());
        let max_connections = raw.max_connections.as_ref().map(|most| match &most.value {
            Scalar::Integer(most) => MaxConnections::Count(count(*most)),
            Scalar::Text(_) | Scalar::Switch(_) => MaxConnections::Auto,
        });
        let shares = raw.shares.as_ref().and_then(|shares| shares_of(&shares.value));
        let user = self.account(&raw.user);
        let group = self.account(&raw.group);
        let drain_timeout = self.time(&raw.drain_timeout, Zero::Allowed, duration::DAY);
        let state_directory = match &raw.state_directory {
            Some(path) => self.file(path).map(Some),
            None => Some(None),
        };
        let pid_file = match &raw.pid_file {
            Some(path) => self.file(path).map(Some),
            None => Some(None),
        };
        let state_interval = self.time(&raw.state_interval, Zero::Refused, duration::DAY);
        Some(Process {
            workers: workers?,
            engine: engine?,
            user: user?,
            group: group?,
            drain_timeout: drain_timeout?,
            max_connections: max_connections?,
            shares: shares?.0,
            source_prefixes: shares?.1,
            pid_file: pid_file?,
            state_directory: state_directory?,
            state_interval: state_interval?,
        })
    }

    /// Reads the name of a user or group.
    fn account(&mut self, key: &Key<String>) -> Option<Option<String>> {
        let Some(name) = key else {
            return Some(None);
        };
        let text = &name.value;
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.$".contains(&byte);
        if text.is_empty() || text.len() > 32 || text.starts_with('-') || !text.bytes().all(fits) {
            drop(self.refuse(name, "is not a valid account name"));
            return None;
        }
        Some(Some(text.clone()))
    }
}

/// The schema limits the numbers, so the conversions cannot fail.
fn shares_of(raw: &RawShares) -> Option<(Shares, Prefixes)> {
    let number = |key: &Key<i64>| key.as_ref().and_then(|key| u8::try_from(key.value).ok());
    let percent = |key: &Key<i64>| number(key).and_then(Percent::new);
    let shares = Shares { connection: percent(&raw.connection)?, source: percent(&raw.source)? };
    Some((shares, Prefixes { ipv4: number(&raw.ipv4_prefix)?, ipv6: number(&raw.ipv6_prefix)? }))
}
