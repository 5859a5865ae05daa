//! `bandwidth` of a listener and of a route, and rates: a size and `/s`.

use std::num::NonZeroU64;

use logic::bandwidth::{Bandwidth, Limit, Per};

use super::parser::Parser;
use super::refused::Refused;
use super::size;
use crate::de::{At, Key};
use crate::quote::quote;
use crate::raw::{RateText, RawBandwidth, RawListener, RawRouteBandwidth, SizeText};
use crate::tree::NodeId;

/// A slower session would only hold its connection, and a faster one does not exist.
const LEAST: u64 = 1 << 10;
const MOST: u64 = 1 << 40;

/// With a burst below this part of a second's bytes, the granularity of timers would decide, not the limit.
const LEAST_BURST: u64 = 100;

const NO_LIMIT: &str = "leave the key out for no limit; an access list (acl) keeps clients out";

const UNITS: &str = "a rate is a whole number and one of B/s, KiB/s, MiB/s, GiB/s: \"1MiB/s\"";

/// The keys that a listener and a route have.
struct Rates<'a> {
    id: NodeId,
    down: &'a Key<RateText>,
    up: &'a Key<RateText>,
    burst: &'a Key<SizeText>,
}

impl Parser<'_> {
    /// `Some(None)` if the key is absent.
    pub(super) fn bandwidth(&mut self, at: &At<RawListener>) -> Option<Option<Bandwidth>> {
        let Some(key) = &at.value.bandwidth else {
            return (!self.nodes.is_broken(at.id, "bandwidth")).then_some(None);
        };
        let RawBandwidth { down, up, burst, per } = &key.value;
        // The schema has checked the word.
        let per = per.as_ref().map(|per| per.value.parse().unwrap_or(Per::Session));
        let (down, up) = self.limits_of(&Rates { id: key.id, down, up, burst })?;
        Some(Some(Bandwidth { down, up, per: per? }))
    }

    /// `Some(None)` if the key is absent.
    pub(super) fn route_bandwidth(
        &mut self,
        key: &Key<RawRouteBandwidth>,
        route: NodeId,
    ) -> Option<Option<Bandwidth>> {
        let Some(key) = key else {
            return (!self.nodes.is_broken(route, "bandwidth")).then_some(None);
        };
        let RawRouteBandwidth { down, up, burst } = &key.value;
        let (down, up) = self.limits_of(&Rates { id: key.id, down, up, burst })?;
        Some(Some(Bandwidth { down, up, per: Per::Session }))
    }

    fn limits_of(&mut self, raw: &Rates<'_>) -> Option<(Option<Limit>, Option<Limit>)> {
        if raw.down.is_none() && raw.up.is_none() {
            if !["down", "up"].into_iter().any(|way| self.nodes.is_broken(raw.id, way)) {
                let message = "limits nothing: down and up are missing";
                let hint = "bandwidth = { down = \"1MiB/s\" } limits what a session sends to its client";
                drop(self.report.at(self.nodes, raw.id, message).hint(hint));
            }
            return None;
        }
        let broken = ["down", "up", "burst"].into_iter().any(|key| self.nodes.is_broken(raw.id, key));
        let (down, up) = (self.rate_of(raw.down), self.rate_of(raw.up));
        let burst = match raw.burst {
            None => Some(None),
            given => self.size(given, LEAST, MOST).map(Some),
        };
        let (down, up, burst) = (down?, up?, burst?);
        self.burst_fits(raw.burst, down.max(up), burst)?;
        let limit = |rate: Option<u64>| {
            let rate = rate.and_then(NonZeroU64::new)?;
            Some(Limit { rate, burst: burst.and_then(NonZeroU64::new).unwrap_or(rate) })
        };
        (!broken).then(|| (limit(down), limit(up)))
    }

    /// `Some(None)` if the key is absent.
    fn rate_of(&mut self, key: &Key<RateText>) -> Option<Option<u64>> {
        let Some(text) = key else { return Some(None) };
        // Zero needs no unit.
        let rate = if text.value.as_ref() == "0" { 0 } else { self.read(text, parse)? };
        if (LEAST..=MOST).contains(&rate) {
            return Some(Some(rate));
        }
        let (least, most) = (size::write(LEAST), size::write(MOST));
        let draft = self.refuse(text, &format!("is out of range: from {least}/s to {most}/s"));
        drop(match rate {
            0 => draft.hint(NO_LIMIT),
            _ => draft,
        });
        None
    }

    fn burst_fits(&mut self, key: &Key<SizeText>, rate: Option<u64>, burst: Option<u64>) -> Option<()> {
        let (Some(rate), Some(burst), Some(key)) = (rate, burst, key) else { return Some(()) };
        let least = rate.div_ceil(LEAST_BURST);
        if burst >= least {
            return Some(());
        }
        let reason = format!("is too small: a session could not reach {}/s", size::write(rate));
        let hint = format!("write {} or more", quote(&size::write(least.next_multiple_of(LEAST))));
        drop(self.refuse(key, &reason).hint(hint));
        None
    }
}

/// `512B/s`, `32KiB/s`, `1MiB/s`, `2GiB/s`
fn parse(text: &str) -> Result<u64, Refused> {
    let Some(size) = text.strip_suffix("/s") else {
        return Err(not_a_rate(text));
    };
    size::parse(size).map_err(|Refused { reason, instead, .. }| {
        let is_negative = reason == "is negative";
        let refused = match counts_bits(size) {
            true => Refused::new("counts bits"),
            false => Refused::new(reason),
        };
        match instead.as_deref().and_then(|instead| instead.strip_prefix("write \"")?.strip_suffix('"')) {
            // Two suggestions have quotes between them.
            Some(meant) if !meant.contains('"') => refused.instead(format!("write \"{meant}/s\"")),
            _ if is_negative => refused.in_general(NO_LIMIT),
            _ => refused.in_general(UNITS),
        }
    })
}

fn not_a_rate(text: &str) -> Refused {
    if text.starts_with('-') {
        return Refused::new("is negative").in_general(NO_LIMIT);
    }
    if size::parse(text).is_ok() {
        return Refused::new("is a size, not a rate").instead(format!("write \"{text}/s\""));
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let instead = format!("write \"{text}B/s\" or \"{text}KiB/s\"");
        return Refused::new("has no unit").instead(instead);
    }
    match counts_bits(text) {
        true => Refused::new("counts bits").in_general(UNITS),
        false => Refused::new("is not a rate").in_general(UNITS),
    }
}

fn counts_bits(text: &str) -> bool {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').trim();
    unit.contains("bit") || unit.ends_with("bps") || matches!(unit, "b" | "kb" | "Kb" | "Mb" | "Gb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_size_and_a_second() {
        for (text, rate) in [("512B/s", 512), ("32KiB/s", 32 << 10), ("1MiB/s", 1 << 20), ("2GiB/s", 2 << 30)]
        {
            assert_eq!(parse(text), Ok(rate), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused_with_what_to_write() {
        let of = |text: &str| {
            let Refused { reason, instead, in_general } = parse(text).unwrap_err();
            (reason, instead.or(in_general.map(str::to_owned)).unwrap_or_default())
        };
        for (text, reason, hint) in [
            ("1MiB", "is a size, not a rate", "write \"1MiB/s\""),
            ("1000", "has no unit", "write \"1000B/s\" or \"1000KiB/s\""),
            ("5/s", "has no unit", UNITS),
            ("10MB/s", "has an unknown unit: use B, KiB, MiB or GiB", "write \"10MiB/s\""),
            ("10Mbit/s", "counts bits", UNITS),
            ("10mbps", "counts bits", UNITS),
            ("-1MiB/s", "is negative", NO_LIMIT),
            ("-5", "is negative", NO_LIMIT),
            ("fast", "is not a rate", UNITS),
            ("", "is not a rate", UNITS),
        ] {
            assert_eq!(of(text), (reason.to_owned(), hint.to_owned()), "{text}");
        }
    }
}
