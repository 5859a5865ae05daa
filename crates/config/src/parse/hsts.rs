//! `hsts` of a listener: Strict-Transport-Security (RFC 6797), and the requirements of browsers' preload lists.

use super::duration::{self, YEAR};
use super::parser::Parser;
use crate::raw::{RawConfig, RawListener};
use crate::tree::NodeId;
use crate::types::{Hsts, Listener, Protocol, RedirectToHttps};

impl Parser<'_> {
    pub(super) fn hsts(&mut self, listener: NodeId, raw: &RawListener) -> Option<Hsts> {
        let Some(hsts) = &raw.hsts else {
            let default = if raw.tls.is_some() { Hsts::IfIssuerTrusted } else { Hsts::Off };
            return (!self.nodes.is_broken(listener, "hsts")).then_some(default);
        };
        let text = hsts.value.as_str();
        if text == "off" {
            return Some(Hsts::Off);
        }
        if raw.tls.is_none() && !self.nodes.is_broken(listener, "tls") {
            let message = "hsts is for listeners with tls: over plain HTTP clients ignore it";
            drop(self.report.at_key(self.nodes, hsts.id, message));
            return None;
        }
        if text == "preload" {
            return Some(Hsts::Always(PRELOAD.into()));
        }
        if text.to_ascii_lowercase().contains("max-age") {
            let Some(policy) = Policy::of(text) else {
                drop(
                    self.refuse(hsts, "is not a valid value of Strict-Transport-Security")
                        .hint("such as \"max-age=31536000; includeSubDomains\""),
                );
                return None;
            };
            if let Some(missing) = policy.missing_for_preload() {
                let message = format!("the preload list of browsers does not accept this: {missing}");
                let hint = "hsts = \"preload\" meets its rules";
                drop(self.report.at(self.nodes, hsts.id, message).warning().hint(hint));
            }
            return Some(Hsts::Always(text.into()));
        }
        let age = match self.read(hsts, duration::parse) {
            Some(age) if age <= YEAR * 10 => age,
            Some(_) => {
                drop(self.refuse(hsts, "is too long"));
                return None;
            }
            None => return None,
        };
        Some(Hsts::Always(format!("max-age={}", age.as_secs()).into()))
    }

    /// Warns if a listener asks for preload while a plain HTTP listener does not redirect its clients to https.
    pub(super) fn preload_without_redirect(&mut self, raw: &RawConfig, listeners: &[Listener]) {
        let is_plain = |listener: &&Listener| listener.tls.is_none() && listener.protocol.is_http();
        let raw_listeners = || raw.listener.iter().flat_map(|all| &all.value.0);
        let by_route = raw_listeners().filter(|(_, raw)| raw.value.tls.is_none()).any(|(_, raw)| {
            let routes = raw.value.route.iter().flat_map(|routes| &routes.value);
            let mut targets = routes.filter_map(|route| route.value.redirect.as_ref());
            targets.any(|target| target.value.starts_with("https://"))
        });
        let redirects = |listener: &Listener| match &listener.protocol {
            Protocol::Http(http) => http.redirect_to_https != RedirectToHttps::Off,
            Protocol::Tcp(_) | Protocol::TlsPassthrough(_) | Protocol::Udp(_) | Protocol::Dsr(_) => false,
        };
        let mut plain = listeners.iter().filter(is_plain).peekable();
        if plain.peek().is_none() || by_route || plain.any(redirects) {
            return;
        }
        for (_, raw) in raw_listeners() {
            let Some(hsts) = &raw.value.hsts else { continue };
            let wants = hsts.value == "preload"
                || Policy::of(&hsts.value).is_some_and(|policy| policy.preload == Directive::Yes);
            if wants {
                let message =
                    "the preload list of browsers does not accept this: no listener redirects http to https";
                let hint = "set redirect-to-https = true on the listener without tls";
                drop(self.report.at(self.nodes, hsts.id, message).warning().hint(hint));
            }
        }
    }
}

/// Directives of a complete header value.
struct Policy {
    max_age: u64,
    include_sub_domains: Directive,
    preload: Directive,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Directive {
    Yes,
    No,
}

impl Policy {
    /// Parses directives between semicolons, one of which is `max-age` with a number (RFC 6797 section 6.1).
    fn of(text: &str) -> Option<Self> {
        let directives = || text.split(';').map(str::trim);
        let well_formed =
            |directive: &str| !directive.is_empty() && directive.bytes().all(|byte| byte.is_ascii_graphic());
        if !directives().all(well_formed) {
            return None;
        }
        let mut ages = directives().filter_map(|directive| {
            let (name, age) = directive.split_once('=')?;
            name.eq_ignore_ascii_case("max-age").then_some(age)
        });
        let (Some(age), None) = (ages.next(), ages.next()) else { return None };
        let is_number = !age.is_empty() && age.len() <= 12 && age.bytes().all(|byte| byte.is_ascii_digit());
        let says = |word: &str| match directives().any(|directive| directive.eq_ignore_ascii_case(word)) {
            true => Directive::Yes,
            false => Directive::No,
        };
        Some(Self {
            max_age: age.parse().ok().filter(|_| is_number)?,
            include_sub_domains: says("includeSubDomains"),
            preload: says("preload"),
        })
    }

    /// Returns a missing requirement of <https://hstspreload.org>. `None` if the value does not ask for preload.
    fn missing_for_preload(&self) -> Option<&'static str> {
        match self {
            Self { preload: Directive::No, .. } => None,
            Self { include_sub_domains: Directive::No, .. } => Some("includeSubDomains is missing"),
            Self { max_age: ..PRELOAD_AGE, .. } => Some("max-age must be 31536000 at least, a year"),
            _ => None,
        }
    }
}

/// Two years, as the preload lists recommend.
const PRELOAD: &str = "max-age=63072000; includeSubDomains; preload";

/// One year in seconds.
const PRELOAD_AGE: u64 = 31_536_000;
