//! `health` of a pool: what a check asks, and how often.

use logic::health::{Check, CheckMethod, Rule, StatusRange, dns};

use super::duration::DAY;
use super::parser::{Parser, Zero, small};
use crate::de::At;
use crate::raw::{RawHealth, TextOr};
use crate::tree::{NodeId, Origin};
use crate::types::{ActiveCheck, Backend, BackendAddress};

/// Most bytes of `udp-send` and `udp-expect`: they fit into one packet of any network.
const DATAGRAM: usize = 1200;

impl Parser<'_> {
    pub(super) fn health(
        &mut self,
        at: &At<TextOr<String, RawHealth>>,
        backends: Option<&[Backend]>,
    ) -> Option<Option<ActiveCheck>> {
        let raw = match &at.value {
            TextOr::Text(word) if word == "tcp" => {
                return Some(Some(ActiveCheck { check: Check::Tcp, rule: Rule::DEFAULT }));
            }
            TextOr::Text(_) => return Some(None),
            TextOr::Table(table) => table,
        };
        let check = self.check(at.id, raw).and_then(|check| self.fits(check, at.id, backends));
        let interval = self.time(&raw.interval, Zero::Refused, DAY);
        let mut timeout = self.time(&raw.timeout, Zero::Refused, DAY);
        if let (Some(interval), Some(longest)) = (interval, timeout)
            && longest > interval
        {
            // Only one check runs at a time: the next one aborts it.
            timeout = Some(interval);
            let given = raw.timeout.as_ref().filter(|key| *self.nodes.origin(key.id) != Origin::Default);
            if let Some(given) = given {
                let message = format!(
                    "a check may take {}, but the next one starts after {}: it is aborted then",
                    super::duration::write(longest),
                    super::duration::write(interval)
                );
                let draft = self.report.at(self.nodes, given.id, message).warning();
                drop(draft.hint("timeout is best shorter than interval"));
            }
        }
        let rule = Rule {
            interval: interval?,
            timeout: timeout?,
            rise: small(raw.rise.as_ref()?.value),
            fall: small(raw.fall.as_ref()?.value),
        };
        Some(Some(ActiveCheck { check: check?, rule }))
    }

    fn check(&mut self, at: NodeId, raw: &RawHealth) -> Option<Check> {
        let ways = [
            raw.http.as_ref().map(|http| http.id),
            raw.tcp.as_ref().filter(|tcp| tcp.value).map(|tcp| tcp.id),
            raw.dns.as_ref().map(|name| name.id),
            raw.udp_send.as_ref().map(|send| send.id),
        ];
        let mut given = ways.into_iter().flatten();
        match (given.next(), given.next()) {
            (Some(_), None) => {}
            (Some(_), Some(second)) => {
                let message = "a check asks in one way: with http, tcp, dns or udp-send";
                drop(self.report.at_key(self.nodes, second, message));
                return None;
            }
            (None, _) => {
                if !["http", "tcp", "dns", "udp-send"].into_iter().any(|key| self.nodes.is_broken(at, key)) {
                    let message = "this check does nothing";
                    let hint = "add http = \"/healthz\", tcp = true, or for UDP dns = \"example.org\"";
                    drop(self.report.at_key(self.nodes, at, message).hint(hint));
                }
                return None;
            }
        }
        if raw.http.is_none() {
            for key in [&raw.host, &raw.expect].into_iter().flatten() {
                drop(self.report.at_key(self.nodes, key.id, "only for checks with http"));
            }
        }
        if let (None, Some(key)) = (&raw.udp_send, &raw.udp_expect) {
            drop(self.report.at_key(self.nodes, key.id, "only for checks with udp-send"));
        }
        match (&raw.http, &raw.dns, &raw.udp_send) {
            (Some(path), _, _) => self.http_check(path, raw),
            (None, Some(name), _) => match dns::Name::new(&name.value) {
                Some(name) => Some(Check::Dns { name }),
                None => {
                    let reason = "is not a name to ask for: labels of 1 to 63 characters with dots between";
                    drop(self.refuse(name, reason).hint("dns = \"example.org\""));
                    None
                }
            },
            (None, None, Some(send)) => {
                let send = self.datagram(send);
                let expect = raw.udp_expect.as_ref().map(|expect| self.datagram(expect));
                Some(Check::Datagram { send: send?, expect: expect.unwrap_or_else(|| Some(Box::default()))? })
            }
            (None, None, None) => Some(Check::Tcp),
        }
    }

    fn http_check(&mut self, path: &At<String>, raw: &RawHealth) -> Option<Check> {
        let host = raw.host.as_ref().map(|host| self.check_host(host));
        let expect = raw.expect.as_ref().map(|expect| match expect.value.parse::<StatusRange>() {
            Ok(range) => Some(range),
            Err(error) => {
                drop(self.refuse_with(expect, &error));
                None
            }
        });
        let is_target = path.value.starts_with('/')
            && path.value.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
        if !is_target {
            let reason = "is not a path to ask for: it begins with / and has no blanks";
            drop(self.refuse(path, reason).hint("http = \"/healthz\""));
            return None;
        }
        Some(Check::Http {
            path: path.value.as_str().into(),
            host: match host {
                Some(host) => Some(host?),
                None => None,
            },
            method: CheckMethod::Get,
            expect: match expect {
                Some(expect) => expect?,
                None => StatusRange::default(),
            },
        })
    }

    /// Text, or bytes after `hex:`.
    fn datagram(&mut self, text: &At<String>) -> Option<Box<[u8]>> {
        let bytes = match text.value.strip_prefix("hex:") {
            None => Some(text.value.as_bytes().to_vec()),
            Some(digits) if digits.len().is_multiple_of(2) && digits.is_ascii() => {
                let pairs = digits.as_bytes().chunks(2);
                let byte = |pair: &[u8]| {
                    let digit = |at: usize| char::from(pair[at]).to_digit(16);
                    Some((digit(0)? << 4 | digit(1)?) as u8)
                };
                pairs.map(byte).collect()
            }
            Some(_) => None,
        };
        let Some(bytes) = bytes else {
            let hint = "hex:0a0b0c is three bytes";
            drop(self.refuse(text, "has no whole bytes after hex:").hint(hint));
            return None;
        };
        if bytes.len() > DATAGRAM {
            drop(self.refuse(text, &format!("is longer than {DATAGRAM} bytes")));
            return None;
        }
        Some(bytes.into())
    }

    /// Reports a check over UDP of a backend that has no UDP port.
    fn fits(&mut self, check: Check, at: NodeId, backends: Option<&[Backend]>) -> Option<Check> {
        let over_udp = match check {
            Check::Dns { .. } | Check::Datagram { .. } => true,
            Check::Tcp | Check::Http { .. } => false,
        };
        let other = backends.into_iter().flatten().find(|backend| match backend.address {
            BackendAddress::Ip(_) | BackendAddress::Name { .. } => false,
            BackendAddress::Dns(_) | BackendAddress::Discovered { .. } => false,
            BackendAddress::Unix(_) | BackendAddress::Ssh { .. } => true,
        });
        if let (true, Some(backend)) = (over_udp, other) {
            let message = format!("{} has no UDP port that a check could ask", backend.address);
            drop(self.report.at_key(self.nodes, at, message));
            return None;
        }
        Some(check)
    }

    fn check_host(&mut self, host: &At<String>) -> Option<Box<str>> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
        let text = &host.value;
        if text.is_empty() || text.len() > 259 || !text.bytes().all(fits) {
            drop(self.refuse(host, "is not a host"));
            return None;
        }
        Some(text.as_str().into())
    }
}
