//! `[listener.NAME]`: addresses and protocols for clients.

use std::time::Duration;

use logic::http1::forward::ForwardedHeaders;
use logic::http1::request::{Limits, MAX_HEAD, TrailerLimits};
use logic::rate::Rate;
use logic::route::PoolId;

use super::address;
use super::bound::Owner;
use super::duration::{DAY, YEAR};
use super::parser::{Parser, Zero, count, small};
use super::route::Scheme;
use crate::de::{At, Key};
use crate::quote::quote;
use crate::raw::{
    BindText, ModeText, OneOrMany, RawConfig, RawHttpTimeouts, RawLimits, RawListener, RawRate, RawRoute,
    Scalar,
};
use crate::tree::NodeId;
use crate::types::{
    BindAddress, FastClose, HttpSettings, HttpTimeouts, Listener, PassthroughSettings, Protocol,
    ProtocolName, RedirectToHttps, TcpSettings, Transport,
};

/// Idle timeout of a connection whose protocol is not known.
const SESSION_IDLE: Duration = Duration::from_secs(3600);

/// `shape.rs` has already reported an unknown word.
fn fast_close(raw: &RawListener) -> Option<FastClose> {
    raw.fast_close.as_ref().and_then(|word| word.value.parse().ok())
}

impl Parser<'_> {
    pub(super) fn listeners(&mut self, raw: &RawConfig) -> Option<Vec<Listener>> {
        let entries = &raw.listener.as_ref()?.value.0;
        if entries.is_empty() && raw.tunnel.as_ref().is_some_and(|tunnels| !tunnels.value.0.is_empty()) {
            // The file is for `penstock tunnel` only; `penstock serve` refuses it.
            return Some(Vec::new());
        }
        let answers_modules = raw.otp.as_ref().is_some_and(|otp| otp.value.socket.is_some());
        if entries.is_empty() && answers_modules {
            // For PAM modules of this machine alone.
            return Some(Vec::new());
        }
        if entries.is_empty() {
            let hint = "add [listener.web] with bind = \":80\" and pool = \"NAME\"";
            drop(self.report.whole("there is no listener: nothing would be served").hint(hint));
            return None;
        }
        let listeners: Vec<_> =
            entries.iter().map(|(name, listener)| self.listener(name, listener)).collect();
        listeners.into_iter().collect()
    }

    fn listener(&mut self, name: &str, at: &At<RawListener>) -> Option<Listener> {
        let raw = &at.value;
        let valid = self.name(name, at.id);
        // `shape.rs` has already reported an unknown protocol.
        let named = raw.protocol.as_ref().and_then(|protocol| protocol.value.parse().ok());
        let transport = match named {
            Some(ProtocolName::Udp) => Transport::Datagram,
            Some(ProtocolName::Dsr) => Transport::Packet,
            Some(ProtocolName::Http | ProtocolName::Tcp | ProtocolName::TlsPassthrough) | None => {
                Transport::Stream
            }
        };
        let binds = self.bind_list(&raw.bind, name, transport);
        let unix_mode = self.unix_mode(&raw.unix_mode);
        let tls = match &raw.tls {
            Some(tls) => self.tls(tls).map(Some),
            None if self.nodes.is_broken(at.id, "tls") => None,
            None => Some(None),
        };
        let proxy_protocol_from = self.peers(&raw.proxy_protocol_from);
        let acl = self.acl(&raw.acl, at.id);
        let denied_pool = match &raw.denied_pool {
            None => (!self.nodes.is_broken(at.id, "denied-pool")).then_some(None),
            Some(pool) => self.pool_id(pool).map(Some),
        };
        if let (None, Some(key), false) = (&raw.acl, &raw.denied_pool, self.nodes.is_broken(at.id, "acl")) {
            let message = "does nothing without acl: no client is denied";
            drop(self.report.at_key(self.nodes, key.id, message).warning());
        }
        let tarpit = self.tarpit(at);
        let bandwidth = self.bandwidth(at);
        let connection_rate = self.rate(&raw.connection_rate, at.id, "connection-rate");
        let protocol = match named {
            Some(ProtocolName::Tcp) => self.tcp(at).map(Protocol::Tcp),
            Some(ProtocolName::TlsPassthrough) => self.passthrough(at).map(Protocol::TlsPassthrough),
            Some(ProtocolName::Udp) => self.udp(at, binds.as_deref()).map(Protocol::Udp),
            Some(ProtocolName::Dsr) => self.dsr(at, binds.as_deref()).map(Protocol::Dsr),
            Some(ProtocolName::Http) => {
                self.http(name, at, binds.as_deref()).map(|http| Protocol::Http(Box::new(http)))
            }
            None => {
                // The protocol is unknown, but the pool's name can still be checked.
                raw.pool.as_ref().and_then(|pool| self.pool_id(pool));
                None
            }
        };
        valid?;
        Some(Listener {
            name: name.into(),
            binds: binds?,
            unix_mode: unix_mode?,
            tls: tls?,
            proxy_protocol_from: proxy_protocol_from?,
            acl: acl?,
            denied_pool: denied_pool?,
            tarpit: tarpit?,
            bandwidth: bandwidth?,
            connection_rate: connection_rate?,
            connections_per_source: raw.connections_per_source.as_ref().map(|most| small(most.value)),
            // `udp` and `dsr` have no such key.
            backlog: raw.backlog.as_ref().map_or(0, |backlog| small(backlog.value)),
            max_connections: raw.max_connections.as_ref().map(|most| count(most.value)),
            protocol: protocol?,
        })
    }

    fn bind_list(
        &mut self,
        key: &Key<OneOrMany<BindText>>,
        name: &str,
        transport: Transport,
    ) -> Option<Vec<BindAddress>> {
        let key = key.as_ref()?;
        let owner = || Owner::Listener(name.to_owned());
        match &key.value {
            OneOrMany::One(text) => {
                let text = At { id: key.id, value: text.clone() };
                self.bind_one(&text, owner(), transport).map(|bind| vec![bind])
            }
            OneOrMany::Many(list) if list.is_empty() => {
                if !self.nodes.is_incomplete(key.id) {
                    drop(self.report.at(self.nodes, key.id, "this list is empty: no client could connect"));
                }
                None
            }
            OneOrMany::Many(list) => {
                let binds: Vec<_> = list.iter().map(|text| self.bind_one(text, owner(), transport)).collect();
                binds.into_iter().collect()
            }
        }
    }

    pub(super) fn bind_one(
        &mut self,
        text: &At<BindText>,
        owner: Owner,
        transport: Transport,
    ) -> Option<BindAddress> {
        let bind = self.read(text, address::bind)?;
        if matches!(bind, BindAddress::EveryPort(_)) && transport != Transport::Packet {
            let reason = "is every port of an address, which only packets are forwarded from";
            drop(self.refuse(text, reason).hint("name one port, or use protocol = \"dsr\""));
            return None;
        }
        self.note_bind(&bind, text.id, owner, transport);
        Some(bind)
    }

    fn unix_mode(&mut self, key: &Key<ModeText>) -> Option<u32> {
        let mode = key.as_ref()?;
        let digits = mode.value.as_ref();
        let octal =
            (3..=4).contains(&digits.len()) && digits.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
        match u32::from_str_radix(digits, 8) {
            Ok(bits) if octal && bits <= 0o777 => {
                if bits & 0o200 == 0 {
                    drop(self.refuse(mode, "no client can connect: connecting needs write permission"));
                    return None;
                }
                Some(bits)
            }
            _ => {
                drop(self.refuse(mode, "is not a file mode").hint("three octal digits, such as \"0660\""));
                None
            }
        }
    }

    fn tcp(&mut self, at: &At<RawListener>) -> Option<TcpSettings> {
        let pool = self.only_pool(at);
        let idle_timeout = self.session_timeout(at);
        let fast_close = fast_close(&at.value);
        Some(TcpSettings { pool: pool?, idle_timeout: idle_timeout?, fast_close: fast_close? })
    }

    /// `idle-timeout` of connections.
    fn session_timeout(&mut self, at: &At<RawListener>) -> Option<Duration> {
        match &at.value.idle_timeout {
            None => (!self.nodes.is_broken(at.id, "idle-timeout")).then_some(SESSION_IDLE),
            given => self.time(given, Zero::Refused, YEAR),
        }
    }

    /// The pool of a listener that has no routes.
    pub(super) fn only_pool(&mut self, at: &At<RawListener>) -> Option<PoolId> {
        match &at.value.pool {
            Some(pool) => self.pool_id(pool),
            None => {
                if !self.nodes.is_broken(at.id, "pool") {
                    let hint = self.pool_hint();
                    drop(self.report.at_key(self.nodes, at.id, "pool is missing").hint(hint));
                }
                None
            }
        }
    }

    fn passthrough(&mut self, at: &At<RawListener>) -> Option<PassthroughSettings> {
        let raw = &at.value;
        let nothing_broken = !["pool", "route"].into_iter().any(|key| self.nodes.is_broken(at.id, key));
        let pool = match &raw.pool {
            Some(pool) => self.pool_id(pool).map(Some),
            None => nothing_broken.then_some(None),
        };
        let entries = raw.route.as_ref().map(|routes| routes.value.as_slice()).unwrap_or_default();
        let mut fit = true;
        for route in entries {
            fit &= self.looks_at_the_host_only(route);
        }
        let routes = if fit { self.routes(&raw.route, Scheme::Https) } else { None };
        if raw.pool.is_none() && entries.is_empty() && nothing_broken {
            let message = "this listener has no pool and no route: every client would be refused";
            let hint = self.pool_hint();
            drop(self.report.at_key(self.nodes, at.id, message).hint(hint));
            return None;
        }
        let handshake_timeout = self.time(&raw.handshake_timeout, Zero::Refused, DAY);
        let idle_timeout = self.session_timeout(at);
        let fast_close = fast_close(raw);
        Some(PassthroughSettings {
            routes: routes?,
            pool: pool?,
            handshake_timeout: handshake_timeout?,
            idle_timeout: idle_timeout?,
            fast_close: fast_close?,
        })
    }

    /// Reports conditions and edits that need more than the server name, which is all that passthrough knows.
    fn looks_at_the_host_only(&mut self, route: &At<RawRoute>) -> bool {
        let raw = &route.value;
        let is_root = |path: &OneOrMany<String>| matches!(path, OneOrMany::One(path) if path == "/");
        let others = [
            raw.path.as_ref().filter(|path| !is_root(&path.value)).map(|path| path.id),
            raw.method.as_ref().map(|method| method.id),
            raw.header.as_ref().filter(|header| !header.value.0.is_empty()).map(|header| header.id),
            raw.redirect.as_ref().map(|redirect| redirect.id),
            raw.respond.as_ref().map(|respond| respond.id),
            raw.request_headers.as_ref().map(|edits| edits.id),
            raw.response_headers.as_ref().map(|edits| edits.id),
        ];
        let mut fits = true;
        if let Some(bandwidth) = &raw.bandwidth {
            let message = "not available with tls-passthrough for a route";
            let hint = "bandwidth of the listener limits its sessions";
            drop(self.report.at_key(self.nodes, bandwidth.id, message).hint(hint));
            fits = false;
        }
        for id in others.into_iter().flatten() {
            let message = "not available with tls-passthrough: only the host name (SNI) is known";
            drop(self.report.at_key(self.nodes, id, message).hint("a route has a host and a pool here"));
            fits = false;
        }
        fits
    }

    fn http(
        &mut self,
        name: &str,
        at: &At<RawListener>,
        binds: Option<&[BindAddress]>,
    ) -> Option<HttpSettings> {
        let raw = &at.value;
        let broken = |key| self.nodes.is_broken(at.id, key);
        let scheme = if raw.tls.is_some() || broken("tls") { Scheme::Https } else { Scheme::Http };
        let nothing_broken = !["pool", "route", "redirect-to-https"].into_iter().any(broken);
        let pool = match &raw.pool {
            Some(pool) => self.pool_id(pool).map(Some),
            None => nothing_broken.then_some(None),
        };
        let routes = self.routes(&raw.route, scheme);
        let redirect = self.redirect_to_https(&raw.redirect_to_https, raw, binds);
        let has_routes = raw.route.as_ref().is_some_and(|routes| !routes.value.is_empty());
        let answers = has_routes || raw.pool.is_some() || self.validating.contains(name);
        if redirect == Some(RedirectToHttps::Off) && !answers && nothing_broken {
            let message =
                "this listener has no pool, no route and no redirect-to-https: every request would get 404";
            let hint = self.pool_hint();
            drop(self.report.at_key(self.nodes, at.id, message).hint(hint));
            return None;
        }
        if let (Some(RedirectToHttps::Port(_)), Some(key)) = (redirect, &raw.redirect_to_https)
            && (raw.pool.is_some() || has_routes)
        {
            let message =
                "every request is redirected: the pool and the routes of this listener are never used";
            drop(self.report.at_key(self.nodes, key.id, message).warning());
        }
        let hsts = self.hsts(at.id, raw);
        let trusted_proxies = self.peers(&raw.trusted_proxies);
        let forwarded_headers = raw.forwarded_headers.as_ref().map(|word| match word.value.as_str() {
            "off" => ForwardedHeaders::Removed,
            _ => ForwardedHeaders::Sent,
        });
        let request_id_header = self.request_id_header(&raw.request_id_header);
        let edits = self.edits(&raw.request_headers, &raw.response_headers);
        let limits = raw.limits.as_ref().and_then(|limits| self.limits(&limits.value));
        let hops = raw.limits.as_ref().and_then(|limits| Some(small(limits.value.hops.as_ref()?.value)));
        let http2 = self.http2(raw);
        let request_rate = self.rate(&raw.request_rate, at.id, "request-rate");
        let timeouts = raw.timeouts.as_ref().and_then(|timeouts| self.http_timeouts(&timeouts.value));
        Some(HttpSettings {
            routes: routes?,
            pool: pool?,
            redirect_to_https: redirect?,
            hsts: hsts?,
            trusted_proxies: trusted_proxies?,
            forwarded_headers: forwarded_headers?,
            request_id_header: request_id_header?,
            http2: http2?,
            edits: edits?,
            limits: limits?,
            hops: hops?,
            request_rate: request_rate?,
            max_requests: raw.max_requests.as_ref().and_then(|most| u64::try_from(most.value).ok()),
            timeouts: timeouts?,
        })
    }

    fn redirect_to_https(
        &mut self,
        key: &Key<Scalar>,
        raw: &RawListener,
        binds: Option<&[BindAddress]>,
    ) -> Option<RedirectToHttps> {
        let key = key.as_ref()?;
        let port = match key.value {
            Scalar::Switch(false) | Scalar::Text(_) => return Some(RedirectToHttps::Off),
            Scalar::Switch(true) => 443,
            Scalar::Integer(port) => u16::try_from(port).ok()?,
        };
        if let Some(tls) = &raw.tls {
            let place = self.report.whereabouts(self.nodes, tls.id);
            let message =
                format!("this listener has tls itself{place}: clients would be redirected for ever");
            let hint = "put redirect-to-https on a listener without tls";
            drop(self.report.at_key(self.nodes, key.id, message).hint(hint));
            return None;
        }
        let is_own = |bind: &BindAddress| match bind {
            BindAddress::AnyIp(own) => *own == port,
            BindAddress::Ip(address) => address.port() == port,
            BindAddress::EveryPort(_) | BindAddress::Unix(_) | BindAddress::Systemd(_) => false,
        };
        if binds.unwrap_or_default().iter().any(is_own) {
            let message = format!(
                "port {port} is this listener itself, which has no tls: clients would be redirected for ever"
            );
            drop(self.report.at_key(self.nodes, key.id, message));
            return None;
        }
        Some(RedirectToHttps::Port(port))
    }

    fn limits(&mut self, raw: &RawLimits) -> Option<Limits> {
        let head = self.size(&raw.head, 256, MAX_HEAD as u64);
        let target = self.size(&raw.target, 16, MAX_HEAD as u64);
        if let (Some(head), Some(target), Some(key)) = (head, target, &raw.target)
            && target >= head
        {
            let message = "the target is a part of the head: its limit must be smaller";
            drop(self.report.at(self.nodes, key.id, message));
            return None;
        }
        let trailers = self.size(&raw.trailers, 16, MAX_HEAD as u64);
        let body = match &raw.body {
            Some(body) if body.value.as_ref() == "none" => Some(None),
            body => self.size(body, 0, u64::MAX).map(Some),
        };
        Some(Limits {
            head: usize::try_from(head?).ok()?,
            headers: count(raw.headers.as_ref()?.value),
            target: usize::try_from(target?).ok()?,
            body: body?,
            trailers: TrailerLimits {
                bytes: usize::try_from(trailers?).ok()?,
                fields: count(raw.trailer_fields.as_ref()?.value),
            },
            interim: small(raw.interim.as_ref()?.value),
        })
    }

    /// `Some(None)` if the key is absent.
    fn rate(&mut self, key: &Key<RawRate>, parent: NodeId, name: &str) -> Option<Option<Rate>> {
        let Some(rate) = key else {
            return (!self.nodes.is_broken(parent, name)).then_some(None);
        };
        let number = |key: &Key<i64>| key.as_ref().map(|key| small(key.value));
        Some(Some(Rate { burst: number(&rate.value.burst)?, per_second: number(&rate.value.per_second)? }))
    }

    fn http_timeouts(&mut self, raw: &RawHttpTimeouts) -> Option<HttpTimeouts> {
        let head = self.time(&raw.head, Zero::Refused, DAY);
        let idle = self.time(&raw.idle, Zero::Refused, DAY);
        let body = self.time(&raw.body, Zero::Refused, DAY);
        let write = self.time(&raw.write, Zero::Refused, DAY);
        Some(HttpTimeouts { head: head?, idle: idle?, body: body?, write: write? })
    }

    fn pool_hint(&self) -> String {
        match self.pools.order.first() {
            Some((name, _)) => format!("add pool = {}", quote(name)),
            None => "add pool = \"app\", and a section [pool.app]".to_owned(),
        }
    }
}
