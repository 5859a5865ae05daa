//! `protocol = "udp"`: its settings, and what its pools may not have.

use std::time::Duration;

use logic::balance::{ChoosesBy, HashKey};
use logic::proxy_header;
use logic::udp::Replies;

use super::duration::YEAR;
use super::parser::{Parser, Zero, count, small};
use super::pool::{which_pool, with_fallbacks};
use crate::de::At;
use crate::raw::{RawConfig, RawListener};
use crate::types::{BackendAddress, BackendHttp, BindAddress, Listener, Pool, Protocol, UdpSettings};

/// Idle timeout of a flow. Longer than a query is tried again, and short, because a flow has no end of its own.
const IDLE: Duration = Duration::from_secs(30);

/// Largest number of flows.
const FLOWS: usize = 16_384;

impl Parser<'_> {
    pub(super) fn udp(&mut self, at: &At<RawListener>, binds: Option<&[BindAddress]>) -> Option<UdpSettings> {
        let raw = &at.value;
        let pool = self.only_pool(at);
        let idle_timeout = match &raw.idle_timeout {
            None => (!self.nodes.is_broken(at.id, "idle-timeout")).then_some(IDLE),
            given => self.time(given, Zero::Refused, YEAR),
        };
        let max_flows = match &raw.max_flows {
            None => (!self.nodes.is_broken(at.id, "max-flows")).then_some(FLOWS),
            Some(most) => Some(count(most.value)),
        };
        let is_unix = |bind: &BindAddress| matches!(bind, BindAddress::Unix(_));
        if let Some(bind) = &raw.bind
            && binds.into_iter().flatten().any(is_unix)
        {
            let message = "a Unix socket carries no UDP here";
            drop(self.report.at_key(self.nodes, bind.id, message).hint("bind = \":53\""));
            return None;
        }
        let replies = raw.replies.as_ref().map_or(Replies::Any, |each| Replies::Exactly(small(each.value)));
        Some(UdpSettings {
            pool: pool?,
            idle_timeout: idle_timeout?,
            replies,
            max_flows: max_flows?,
            flows_per_source: count(raw.flows_per_source.as_ref()?.value),
        })
    }

    /// Reports pools of udp listeners whose backends datagrams cannot reach, or with settings of connections.
    pub(super) fn pools_of_udp(&mut self, raw: &RawConfig, listeners: &[Listener], pools: &[Pool]) {
        let entries = raw.listener.as_ref().map(|listeners| listeners.value.0.as_slice()).unwrap_or_default();
        for (listener, (_, entry)) in listeners.iter().zip(entries) {
            let (Protocol::Udp(udp), Some(key)) = (&listener.protocol, &entry.value.pool) else { continue };
            for pool in with_fallbacks(pools, udp.pool) {
                self.pool_of_udp(pool, key);
            }
        }
    }

    fn pool_of_udp(&mut self, pool: &Pool, key: &At<String>) {
        let which = which_pool(pool, key);
        let no_datagrams = pool.backends.iter().find(|backend| match backend.address {
            BackendAddress::Ip(_) | BackendAddress::Name { .. } => false,
            BackendAddress::Dns(_) | BackendAddress::Discovered { .. } => false,
            BackendAddress::Unix(_) | BackendAddress::Ssh { .. } => true,
        });
        let addresses = "a udp listener needs addresses with ports: \"10.0.0.53:53\"";
        let wrong = if let Some(backend) = no_datagrams {
            let of = which.trim_end_matches(',');
            Some((format!("a udp listener cannot reach {} of {of}", backend.address), addresses))
        } else if pool.tls.is_some() {
            Some((format!("{which} has tls, which datagrams do not carry"), "use a pool without tls"))
        } else if pool.http == BackendHttp::Http2 {
            let message = format!("{which} speaks HTTP/2, and a udp listener forwards datagrams");
            Some((message, "use a pool without http2"))
        } else if pool.sticky_cookie.is_some() {
            let message = format!("{which} has sticky.cookie, and datagrams have no cookies");
            Some((message, "use a pool without sticky.cookie: it knows clients by address"))
        } else if pool.send_proxy == Some(proxy_header::Version::V1) {
            let message = format!("{which} has send-proxy = \"v1\", which is for connections");
            Some((message, "use send-proxy = \"v2\": each datagram begins with the header"))
        } else {
            None
        };
        if let Some((message, hint)) = wrong {
            drop(self.report.at(self.nodes, key.id, message).hint(hint));
        }
        if pool.balance.chooses_by() == ChoosesBy::Key && pool.hash_key != HashKey::Client {
            let message = format!(
                "{which} balances by {}, but udp has no requests: all flows go to one backend",
                pool.hash_key
            );
            drop(self.report.at(self.nodes, key.id, message).warning().hint("use hash-key = \"client\""));
        }
    }
}
