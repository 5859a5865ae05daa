//! `[pool.NAME]`: equal backends and the settings for their use.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use logic::balance::{Bound, ChoosesBy, HashKey, Policy};
use logic::hedge::{self, After};
use logic::proxy_header;
use logic::retry_budget;
use logic::route::PoolId;

use super::address;
use super::dns_name;
use super::duration::{self, DAY, YEAR};
use super::parser::{Parser, Zero, count, small};
use crate::de::At;
use crate::quote::quote;
use crate::raw::{BackendText, RawBackend, RawConfig, RawPool, RawPoolTimeouts, TextOr};
use crate::tree::{NodeId, Origin};
use crate::types::{
    AllDown, Backend, BackendAddress, BackendHttp, BackendHttp2, Listener, Pool, PoolTimeouts, Protocol,
    SourceAddress, Standing,
};

/// Returns a pool and those that it falls back to; each once, also if they form a circle.
pub(super) fn with_fallbacks(pools: &[Pool], first: PoolId) -> impl Iterator<Item = &Pool> {
    std::iter::successors(pools.get(first.0), |pool| pools.get(pool.fallback?.0)).take(pools.len())
}

/// Names a pool in a fault of the key of a listener that leads to it.
pub(super) fn which_pool(pool: &Pool, key: &At<String>) -> String {
    match *pool.name == *key.value {
        true => "this pool".to_owned(),
        false => format!("pool {}, to which this one falls back,", pool.name),
    }
}

/// A backend without settings of its own.
fn plain(address: BackendAddress, max_connections: Option<u32>) -> Backend {
    Backend {
        address,
        weight: 1,
        max_connections,
        soft_max_connections: None,
        priority: 0,
        acl: None,
        quic_id: None,
        server_name: None,
        standing: Standing::Here,
    }
}

impl Parser<'_> {
    pub(super) fn all_pools(&mut self, raw: &RawConfig) -> Option<Vec<Pool>> {
        let entries = &raw.pool.as_ref()?.value.0;
        let pools: Vec<_> = entries.iter().map(|(name, pool)| self.pool(name, pool)).collect();
        pools.into_iter().collect()
    }

    fn pool(&mut self, name: &str, at: &At<RawPool>) -> Option<Pool> {
        let raw = &at.value;
        let valid = self.name(name, at.id);
        let balance = raw.balance.as_ref().and_then(|balance| balance.value.parse::<Policy>().ok());
        let hash_key = raw.hash_key.as_ref().and_then(|key| match key.value.parse::<HashKey>() {
            Ok(parsed) => Some(parsed),
            Err(error) => {
                drop(self.refuse_with(key, &error));
                None
            }
        });
        let balance_bound = self.balance_bound(at);
        let sticky = raw.sticky.as_ref().and_then(|sticky| self.sticky(&sticky.value));
        let sticky_cookie = raw.sticky.as_ref().and_then(|sticky| self.sticky_cookie(sticky));
        let default_limit = raw.max_connections.as_ref().map(|most| small(most.value));
        let tls = raw.tls.as_ref().and_then(|tls| self.backend_tls(tls));
        let mut backends = self.backends(raw, default_limit);
        if let (Some(Some(tls)), Some(found), Some(list)) = (&tls, &mut backends, &raw.backends)
            && self.server_names(tls, found, list.id).is_none()
        {
            backends = None;
        }
        let health = raw.health.as_ref().and_then(|health| self.health(health, backends.as_deref()));
        let passive = raw.passive.as_ref().and_then(|passive| self.passive(passive));
        let all_down = raw.when_all_down.as_ref().map(|word| match word.value.as_str() {
            "fail-open" => AllDown::FailOpen,
            _ => AllDown::ErrorPage,
        });
        let fallback = match &raw.fallback {
            None => (!self.nodes.is_broken(at.id, "fallback")).then_some(None),
            Some(pool) => self.pool_id(pool).map(Some),
        };
        if let (Some(AllDown::FailOpen), Some(key)) = (all_down, &raw.fallback) {
            let message = "never used: with when-all-down = \"fail-open\" the backends count as available";
            drop(self.report.at_key(self.nodes, key.id, message).hint("keep one of the two"));
        }
        let slow_start = self.time(&raw.slow_start, Zero::Allowed, DAY);
        let send_proxy = match &raw.send_proxy {
            None if self.nodes.is_broken(at.id, "send-proxy") => None,
            version => Some(version.as_ref().map(|version| match version.value.as_str() {
                "v1" => proxy_header::Version::V1,
                _ => proxy_header::Version::V2,
            })),
        };
        let source_address = self.source_address(at, backends.as_deref());
        let tcp_keepalive = self.tcp_keepalive(raw);
        let hedge = self.hedge(raw);
        let retry_budget = self.retry_budget(at);
        let http = self.backend_http(raw);
        let timeouts = raw.timeouts.as_ref().and_then(|timeouts| self.pool_timeouts(&timeouts.value));
        let resolve_interval = self.time(&raw.resolve_interval, Zero::Refused, DAY);
        valid?;
        let (http, http2) = http?;
        Some(Pool {
            name: name.into(),
            balance: balance?,
            hash_key: hash_key?,
            balance_bound: balance_bound?,
            sticky: sticky?,
            sticky_cookie: sticky_cookie?,
            backends: backends?,
            health: health?,
            passive: passive?,
            retry_budget: retry_budget?,
            all_down: all_down?,
            fallback: fallback?,
            queue_length: count(raw.queue.as_ref()?.value),
            slow_start: slow_start?,
            tls: tls?.map(|tls| tls.settings),
            http,
            http2,
            source_address: source_address?,
            tcp_keepalive: tcp_keepalive?,
            send_proxy: send_proxy?,
            retries: small(raw.retries.as_ref()?.value),
            hedge: hedge?,
            keep_alive: count(raw.keep_alive.as_ref()?.value),
            timeouts: timeouts?,
            resolve_interval: resolve_interval?,
            resolve_misses: small(raw.resolve_misses.as_ref()?.value),
        })
    }

    fn backends(&mut self, raw: &RawPool, default_limit: Option<u32>) -> Option<Vec<Backend>> {
        let list = raw.backends.as_ref()?;
        if self.nodes.is_incomplete(list.id) && list.value.is_empty() {
            return None;
        }
        if list.value.is_empty() {
            let message = "this pool has no backends";
            drop(self.report.at(self.nodes, list.id, message).hint("backends = [\"10.0.0.11:8000\"]"));
            return None;
        }
        let mut seen: HashMap<BackendAddress, NodeId> = HashMap::new();
        let mut faults = 0;
        let mut backends = Vec::new();
        let mut idle = Vec::new();
        for entry in &list.value {
            let backend = match &entry.value {
                TextOr::Text(text) => {
                    let text = At { id: entry.id, value: text.clone() };
                    let address = self.backend_text(&text);
                    address.map(|address| (plain(address, default_limit), entry.id))
                }
                TextOr::Table(table) => {
                    self.soft_limit_without_sticky(raw, table);
                    self.backend(table, entry.id, default_limit)
                }
            };
            let Some((backend, id)) = backend else {
                faults += 1;
                continue;
            };
            if let Some(first) = seen.insert(backend.address.clone(), id) {
                faults += 1;
                let place = self.report.whereabouts(self.nodes, first);
                let message = format!("this backend is already in the pool{place}");
                drop(self.report.at(self.nodes, id, message).hint("for a larger share give it a weight"));
                continue;
            }
            if backend.weight == 0 {
                idle.push(id);
            }
            backends.push(backend);
        }
        if faults > 0 || self.nodes.is_incomplete(list.id) {
            return None;
        }
        if backends.iter().all(|backend| backend.weight == 0) {
            let message = "every backend has weight 0: none would get a session";
            drop(self.report.at_key(self.nodes, list.id, message));
            return None;
        }
        for id in idle {
            let draft = self.report.at(self.nodes, id, "its weight is 0: it gets no new session");
            drop(draft.warning().hint("remove it; or `penstock ctl drain` takes a backend out for a time"));
        }
        Some(backends)
    }

    /// Parses a backend given as text. Reports options after the address, which other programs allow there.
    fn backend_text(&mut self, text: &At<BackendText>) -> Option<BackendAddress> {
        let value: &str = text.value.as_ref();
        let (scheme, rest) =
            value.split_at(if value.starts_with(dns_name::DNS) { dns_name::DNS.len() } else { 0 });
        let Some((address, weight)) = address::with_options(rest) else {
            return self.read(text, dns_name::backend);
        };
        let address = &format!("{scheme}{address}");
        let (verb, weight) = weight.map_or(("options are written as in", 2), |weight| ("write", weight));
        let hint = match self.nodes.origin(text.id) {
            Origin::Flag(flag) => format!("{verb} {flag} {address},weight={weight}"),
            _ => format!("{verb} {{ address = {}, weight = {weight} }}", quote(address)),
        };
        drop(self.refuse(text, "has more than an address").hint_from_value(hint));
        None
    }

    fn backend(
        &mut self,
        raw: &RawBackend,
        entry: NodeId,
        default_limit: Option<u32>,
    ) -> Option<(Backend, NodeId)> {
        let acl = self.acl(&raw.acl, entry);
        let at = raw.address.as_ref()?;
        let address = self.read(at, dns_name::backend)?;
        let own_limit = raw.max_connections.as_ref().map(|most| small(most.value));
        let soft = raw.soft_max_connections.as_ref();
        let backend = plain(address, own_limit.or(default_limit));
        if let (Some(soft), Some(most)) = (soft, backend.max_connections)
            && small(soft.value) > most
        {
            let message = format!("more than max-connections, which is {most}");
            drop(self.report.at(self.nodes, soft.id, message));
            return None;
        }
        let quic_id = self.server_id(raw, entry);
        let weight = small(raw.weight.as_ref()?.value);
        let priority = small(raw.priority.as_ref()?.value);
        let soft_max_connections = soft.map(|soft| small(soft.value));
        Some((
            Backend { weight, soft_max_connections, priority, acl: acl?, quic_id: quic_id?, ..backend },
            at.id,
        ))
    }

    fn soft_limit_without_sticky(&mut self, pool: &RawPool, backend: &RawBackend) {
        let balance = pool.balance.as_ref().map_or("", |balance| balance.value.as_str());
        if let (Some(soft), false) = (&backend.soft_max_connections, balance == Policy::Sticky.as_str()) {
            let message = "the limit for every client: only balance = \"sticky\" knows clients";
            drop(self.report.at_key(self.nodes, soft.id, message).warning());
        }
    }

    fn backend_http(&mut self, raw: &RawPool) -> Option<(BackendHttp, BackendHttp2)> {
        let key = raw.http2.as_ref()?;
        let limits = self.backend_http2(&key.value)?;
        if matches!(&key.value, TextOr::Text(word) if word == "off") {
            return Some((BackendHttp::Http1, limits));
        }
        if raw.send_proxy.is_some() {
            let message = "a PROXY header names one client, and HTTP/2 connections carry requests of many";
            let hint = "remove send-proxy: backends learn the client from X-Forwarded-For";
            drop(self.report.at_key(self.nodes, key.id, message).hint(hint));
            return None;
        }
        if raw.source_address.as_ref().is_some_and(|source| source.value == "client") {
            let message = "source-address = \"client\" is for one client, and HTTP/2 connections carry requests of many";
            let hint = "remove source-address: backends learn the client from X-Forwarded-For";
            drop(self.report.at_key(self.nodes, key.id, message).hint(hint));
            return None;
        }
        Some((BackendHttp::Http2, limits))
    }

    fn balance_bound(&mut self, at: &At<RawPool>) -> Option<Option<Bound>> {
        let Some(key) = &at.value.balance_bound else {
            return (!self.nodes.is_broken(at.id, "balance-bound")).then_some(None);
        };
        let percent = (key.value * 100.0).round();
        if (101.0..=10_000.0).contains(&percent) {
            return Some(Some(Bound { percent: percent as u32 }));
        }
        let shown =
            if self.nodes.may_be_shown(key.id) { key.value.to_string() } else { "this number".to_owned() };
        let message = format!("{shown} is out of range: from 1.01 to 100");
        drop(
            self.report
                .at(self.nodes, key.id, message)
                .hint("1.25 lets a backend have a quarter more than its share"),
        );
        None
    }

    fn source_address(&mut self, at: &At<RawPool>, backends: Option<&[Backend]>) -> Option<SourceAddress> {
        let Some(key) = &at.value.source_address else {
            return (!self.nodes.is_broken(at.id, "source-address")).then_some(SourceAddress::Any);
        };
        if key.value == "client" {
            return self.source_of_client(key, backends);
        }
        let Ok(source) = key.value.parse::<IpAddr>() else {
            let hint = "an address of this machine, without a port, or \"client\" for that of each client";
            drop(self.refuse(key, "is not an IP address").hint(hint));
            return None;
        };
        let source = source.to_canonical();
        let other = backends.into_iter().flatten().find_map(|backend| match backend.address {
            BackendAddress::Ip(address) if address.is_ipv4() != source.is_ipv4() => Some(address),
            _ => None,
        });
        if let Some(other) = other {
            let message =
                format!("is of another family than the backend {other}, which cannot be reached from it");
            drop(self.refuse(key, &message));
            return None;
        }
        if source.is_unspecified() || source.is_multicast() {
            drop(
                self.refuse(key, "is not an address of one machine")
                    .hint("leave the key out: the kernel chooses"),
            );
            return None;
        }
        Some(SourceAddress::Ours(source))
    }

    fn source_of_client(&mut self, key: &At<String>, backends: Option<&[Backend]>) -> Option<SourceAddress> {
        let other = backends.into_iter().flatten().find(|backend| match backend.address {
            BackendAddress::Ip(_)
            | BackendAddress::Name { .. }
            | BackendAddress::Dns(_)
            | BackendAddress::Discovered { .. } => false,
            BackendAddress::Unix(_) | BackendAddress::Ssh { .. } => true,
        });
        let Some(other) = other else { return Some(SourceAddress::Client) };
        let message = format!("needs backends with addresses: {} sees no client", other.address);
        drop(self.refuse(key, &message).hint("send-proxy = \"v2\" tells such a backend who the client is"));
        None
    }

    fn tcp_keepalive(&mut self, raw: &RawPool) -> Option<Option<Duration>> {
        let key = raw.tcp_keepalive.as_ref()?;
        if key.value.as_ref() == "off" {
            return Some(None);
        }
        let time = self.read(key, duration::parse)?;
        // The kernel counts whole seconds, up to 32767.
        if (Duration::from_secs(1)..=Duration::from_secs(32_767)).contains(&time) {
            return Some(Some(time));
        }
        drop(self.refuse(key, "is out of range: from \"1s\" to \"9h\""));
        None
    }

    fn retry_budget(&mut self, at: &At<RawPool>) -> Option<Option<retry_budget::Rule>> {
        let Some(key) = &at.value.retry_budget else {
            return (!self.nodes.is_broken(at.id, "retry-budget")).then_some(None);
        };
        let least = small(at.value.retry_least_rate.as_ref()?.value);
        Some(Some(retry_budget::Rule { percent: u8::try_from(key.value).ok()?, least }))
    }

    /// `hedge` and `hedge-budget`
    fn hedge(&mut self, raw: &RawPool) -> Option<Option<hedge::Rule>> {
        let key = raw.hedge.as_ref()?;
        let after =
            match &*key.value {
                "off" => return Some(None),
                text => match text.strip_prefix('p') {
                    Some(percent) => match percent.parse() {
                        Ok(percent) if After::PERCENTILES.contains(&percent) => After::Percentile(percent),
                        _ => {
                            let (least, most) = (After::PERCENTILES.start(), After::PERCENTILES.end());
                            drop(self.refuse(
                                key,
                                &format!("is not a percentile from \"p{least}\" to \"p{most}\""),
                            ));
                            return None;
                        }
                    },
                    None => After::Fixed(self.hedge_time(key)?),
                },
            };
        if raw.balance.as_ref()?.value == Policy::Sticky.as_str() {
            let message =
                "a hedged request goes to a second backend, and `balance = \"sticky\"` keeps a client at one";
            drop(self.report.at_key(self.nodes, key.id, message).hint("another `balance`, or no `hedge`"));
            return None;
        }
        Some(Some(hedge::Rule { after, budget: u8::try_from(raw.hedge_budget.as_ref()?.value).ok()? }))
    }

    fn hedge_time(&mut self, key: &At<String>) -> Option<Duration> {
        let is_number = key.value.starts_with(|first: char| first.is_ascii_digit());
        if !is_number || key.value.ends_with('%') {
            let hint =
                "\"p95\" waits for the time in which 95 % of the responses began; or write a time: \"200ms\"";
            drop(self.refuse(key, "is neither \"off\" nor a percentile nor a duration").hint(hint));
            return None;
        }
        let after = self.read(key, duration::parse)?;
        if (Duration::from_millis(1)..=DAY).contains(&after) {
            return Some(after);
        }
        drop(self.refuse(key, "is out of range: from \"1ms\" to \"1d\""));
        None
    }

    fn pool_timeouts(&mut self, raw: &RawPoolTimeouts) -> Option<PoolTimeouts> {
        let connect = self.time(&raw.connect, Zero::Refused, DAY);
        let response = self.time(&raw.response, Zero::Refused, DAY);
        let down = self.time(&raw.down, Zero::Allowed, DAY);
        let body = self.time(&raw.body, Zero::Refused, DAY);
        let transfer = match &raw.transfer {
            None => Some(None),
            given => self.time(given, Zero::Refused, YEAR).map(Some),
        };
        let grpc = self.time(&raw.grpc, Zero::Refused, YEAR);
        let queue = self.time(&raw.queue, Zero::Refused, DAY);
        let keep_alive = self.time(&raw.keep_alive, Zero::Refused, DAY);
        let tunnel = self.time(&raw.tunnel, Zero::Refused, YEAR);
        Some(PoolTimeouts {
            connect: connect?,
            response: response?,
            down: down?,
            body: body?,
            transfer: transfer?,
            grpc: grpc?,
            queue: queue?,
            keep_alive: keep_alive?,
            tunnel: tunnel?,
        })
    }

    /// Reports pools that a tcp listener cannot use, and warns of one that hashes requests: such a listener reads none, so
    /// all sessions would get one backend.
    pub(super) fn keys_of_tcp(&mut self, raw: &RawConfig, listeners: &[Listener], pools: &[Pool]) {
        let entries = raw.listener.as_ref().map(|listeners| listeners.value.0.as_slice()).unwrap_or_default();
        for (listener, (_, entry)) in listeners.iter().zip(entries) {
            let tcp = match &listener.protocol {
                Protocol::Tcp(tcp) => tcp,
                Protocol::Http(_) | Protocol::TlsPassthrough(_) | Protocol::Udp(_) | Protocol::Dsr(_) => {
                    continue;
                }
            };
            let raw = &entry.value;
            for (pool, key) in [(Some(tcp.pool), &raw.pool), (listener.denied_pool, &raw.denied_pool)] {
                let (Some(pool), Some(key)) = (pool, key) else { continue };
                for pool in with_fallbacks(pools, pool) {
                    self.pool_of_tcp(pool, key);
                }
            }
        }
    }

    /// Reports fallbacks that lead back to their pool.
    pub(super) fn fallback_circles(&mut self, raw: &RawConfig, pools: &[Pool]) {
        let entries = raw.pool.as_ref().map(|pools| pools.value.0.as_slice()).unwrap_or_default();
        for (at, (pool, (_, entry))) in pools.iter().zip(entries).enumerate() {
            let (Some(first), Some(key)) = (pool.fallback, &entry.value.fallback) else { continue };
            if let Some(length) = with_fallbacks(pools, first).position(|next| next.name == pools[at].name) {
                let message = match length {
                    0 => "a pool cannot be its own fallback".to_owned(),
                    _ => format!(
                        "{} falls back to this pool: sessions would go in a circle",
                        pools[first.0].name
                    ),
                };
                drop(self.report.at(self.nodes, key.id, message));
            }
        }
    }

    fn pool_of_tcp(&mut self, pool: &Pool, key: &At<String>) {
        let which = which_pool(pool, key);
        if pool.http == BackendHttp::Http2 {
            let message = format!("{which} speaks HTTP/2, and a tcp listener forwards bytes of any protocol");
            let hint = "protocol = \"http\", or another pool without http2";
            drop(self.report.at(self.nodes, key.id, message).hint(hint));
        }
        if pool.sticky_cookie.is_some() {
            let message = format!("{which} has sticky.cookie, and a tcp listener has no cookies");
            let hint = "protocol = \"http\", or another pool: sticky without cookie knows clients by address";
            drop(self.report.at(self.nodes, key.id, message).hint(hint));
        }
        if pool.balance.chooses_by() == ChoosesBy::Key && pool.hash_key != HashKey::Client {
            let message = format!(
                "{which} balances by {}, but tcp has no requests: all sessions go to one backend",
                pool.hash_key
            );
            drop(self.report.at(self.nodes, key.id, message).warning().hint("use hash-key = \"client\""));
        }
    }
}
