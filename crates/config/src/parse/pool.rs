//! `[pool.NAME]`: equal backends and the settings for their use.

use std::collections::HashMap;
use std::time::Duration;

use logic::balance::{ChoosesBy, HashKey, Policy};
use logic::health::PassiveRule;
use logic::hedge::{self, After};
use logic::proxy_header;

use super::address;
use super::duration::{self, DAY, YEAR};
use super::parser::{Parser, Zero, count, small};
use crate::de::At;
use crate::quote::quote;
use crate::raw::{
    BackendText, RawBackend, RawConfig, RawPassive, RawPool, RawPoolTimeouts, RawSticky, TextOr,
};
use crate::tree::{NodeId, Origin};
use crate::types::{
    AllDown, Backend, BackendAddress, BackendHttp, BackendHttp2, Listener, Pool, PoolTimeouts, Protocol,
    Sticky,
};

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
        let sticky = raw.sticky.as_ref().and_then(|sticky| self.sticky(&sticky.value));
        let default_limit = raw.max_connections.as_ref().map(|most| small(most.value));
        let tls = raw.tls.as_ref().and_then(|tls| self.backend_tls(tls));
        let mut backends = self.backends(raw, default_limit);
        if let (Some(Some(tls)), Some(found), Some(list)) = (&tls, &mut backends, &raw.backends)
            && self.server_names(tls, found, list.id).is_none()
        {
            backends = None;
        }
        let health = raw.health.as_ref().and_then(|health| self.health(health, backends.as_deref()));
        let passive = raw.passive.as_ref().and_then(|passive| self.passive(&passive.value));
        let all_down = raw.when_all_down.as_ref().map(|word| match word.value.as_str() {
            "fail-open" => AllDown::FailOpen,
            _ => AllDown::ErrorPage,
        });
        let slow_start = self.time(&raw.slow_start, Zero::Allowed, DAY);
        let send_proxy = match &raw.send_proxy {
            None if self.nodes.is_broken(at.id, "send-proxy") => None,
            version => Some(version.as_ref().map(|version| match version.value.as_str() {
                "v1" => proxy_header::Version::V1,
                _ => proxy_header::Version::V2,
            })),
        };
        let hedge = self.hedge(raw);
        let http = self.backend_http(raw);
        let timeouts = raw.timeouts.as_ref().and_then(|timeouts| self.pool_timeouts(&timeouts.value));
        let resolve_interval = self.time(&raw.resolve_interval, Zero::Refused, DAY);
        valid?;
        let (http, http2) = http?;
        Some(Pool {
            name: name.into(),
            balance: balance?,
            hash_key: hash_key?,
            sticky: sticky?,
            backends: backends?,
            health: health?,
            passive: passive?,
            all_down: all_down?,
            queue_length: count(raw.queue.as_ref()?.value),
            slow_start: slow_start?,
            tls: tls?.map(|tls| tls.settings),
            http,
            http2,
            send_proxy: send_proxy?,
            retries: small(raw.retries.as_ref()?.value),
            hedge: hedge?,
            keep_alive: count(raw.keep_alive.as_ref()?.value),
            timeouts: timeouts?,
            resolve_interval: resolve_interval?,
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
        for entry in &list.value {
            let backend = match &entry.value {
                TextOr::Text(text) => {
                    let text = At { id: entry.id, value: text.clone() };
                    let address = self.backend_text(&text);
                    address.map(|address| {
                        (
                            Backend { address, weight: 1, max_connections: default_limit, server_name: None },
                            entry.id,
                        )
                    })
                }
                TextOr::Table(table) => self.backend(table, default_limit),
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
        Some(backends)
    }

    /// Parses a backend given as text. Reports options after the address, which other programs allow there.
    fn backend_text(&mut self, text: &At<BackendText>) -> Option<BackendAddress> {
        let Some((address, weight)) = address::with_options(text.value.as_ref()) else {
            return self.read(text, address::backend);
        };
        let (verb, weight) = weight.map_or(("options are written as in", 2), |weight| ("write", weight));
        let hint = match self.nodes.origin(text.id) {
            Origin::Flag(flag) => format!("{verb} {flag} {address},weight={weight}"),
            _ => format!("{verb} {{ address = {}, weight = {weight} }}", quote(address)),
        };
        drop(self.refuse(text, "has more than an address").hint_from_value(hint));
        None
    }

    fn backend(&mut self, raw: &RawBackend, default_limit: Option<u32>) -> Option<(Backend, NodeId)> {
        let at = raw.address.as_ref()?;
        let address = self.read(at, address::backend)?;
        let weight = small(raw.weight.as_ref()?.value);
        let own_limit = raw.max_connections.as_ref().map(|most| small(most.value));
        let max_connections = own_limit.or(default_limit);
        Some((Backend { address, weight, max_connections, server_name: None }, at.id))
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
        Some((BackendHttp::Http2, limits))
    }

    fn sticky(&mut self, raw: &RawSticky) -> Option<Sticky> {
        let ttl = self.time(&raw.ttl, Zero::Refused, YEAR);
        Some(Sticky {
            entries: count(raw.entries.as_ref()?.value),
            ttl: ttl?,
            ipv6_prefix: u8::try_from(raw.ipv6_prefix.as_ref()?.value).ok()?,
        })
    }

    fn passive(&mut self, raw: &TextOr<String, RawPassive>) -> Option<PassiveRule> {
        match raw {
            TextOr::Text(_) => Some(PassiveRule { failures: 0, ..PassiveRule::DEFAULT }),
            TextOr::Table(raw) => {
                let ejection = self.time(&raw.ejection, Zero::Refused, DAY);
                Some(PassiveRule { failures: small(raw.failures.as_ref()?.value), ejection: ejection? })
            }
        }
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

    /// Warns of a pool that hashes requests for a tcp listener, which reads none: all sessions would get one backend.
    pub(super) fn keys_of_tcp(&mut self, raw: &RawConfig, listeners: &[Listener], pools: &[Pool]) {
        let entries = raw.listener.as_ref().map(|listeners| listeners.value.0.as_slice()).unwrap_or_default();
        for (listener, (_, entry)) in listeners.iter().zip(entries) {
            let tcp = match &listener.protocol {
                Protocol::Tcp(tcp) => tcp,
                Protocol::Http(_) | Protocol::TlsPassthrough(_) | Protocol::Udp(_) => continue,
            };
            let pool = &pools[tcp.pool.0];
            if let (BackendHttp::Http2, Some(key)) = (pool.http, &entry.value.pool) {
                let message = "this pool speaks HTTP/2, and a tcp listener forwards bytes of any protocol";
                let hint = "protocol = \"http\", or another pool without http2";
                drop(self.report.at(self.nodes, key.id, message).hint(hint));
            }
            let hashes = pool.balance.chooses_by() == ChoosesBy::Key;
            if let (true, false, Some(key)) = (hashes, pool.hash_key == HashKey::Client, &entry.value.pool) {
                let message = format!(
                    "this pool balances by {}, but tcp has no requests: all sessions go to one backend",
                    pool.hash_key
                );
                drop(self.report.at(self.nodes, key.id, message).warning().hint("use hash-key = \"client\""));
            }
        }
    }
}
