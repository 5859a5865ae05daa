//! `passive` of a pool: which backends failed traffic ejects.

use std::time::Duration;

use logic::health::PassiveRule;
use logic::health::outlier::OutlierRule;

use super::duration::DAY;
use super::parser::{Parser, Zero, small};
use crate::de::At;
use crate::raw::{RawPassive, TextOr};
use crate::tree::NodeId;

/// Shortest and longest `window`.
const WINDOW: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

impl Parser<'_> {
    pub(super) fn passive(&mut self, at: &At<TextOr<String, RawPassive>>) -> Option<PassiveRule> {
        let raw = match &at.value {
            TextOr::Text(_) => return Some(PassiveRule { failures: 0, ..PassiveRule::DEFAULT }),
            TextOr::Table(raw) => raw,
        };
        let ejection = self.time(&raw.ejection, Zero::Refused, DAY);
        let slowness = self.latency_factor(at.id, raw);
        let window = self.outlier_window(raw);
        let percent = |value: i64| u8::try_from(value).ok();
        let errors = match &raw.error_rate {
            None => (!self.nodes.is_broken(at.id, "error-rate")).then_some(None),
            Some(rate) => Some(percent(rate.value)),
        };
        let outlier = OutlierRule {
            errors: errors?,
            slowness: slowness?,
            window: window?,
            least: small(raw.least_sessions.as_ref()?.value),
        };
        let trials = small(raw.trial_sessions.as_ref()?.value);
        if !outlier.is_on() {
            let usual = PassiveRule::DEFAULT;
            let keys = [
                (outlier.window != usual.outlier.window).then_some(raw.window.as_ref()?.id),
                (outlier.least != usual.outlier.least).then_some(raw.least_sessions.as_ref()?.id),
                (trials != usual.trials).then_some(raw.trial_sessions.as_ref()?.id),
            ];
            for id in keys.into_iter().flatten() {
                let message = "without effect: only for error-rate and latency-factor";
                drop(self.report.at_key(self.nodes, id, message).warning());
            }
        }
        Some(PassiveRule {
            failures: small(raw.failures.as_ref()?.value),
            ejection: ejection?,
            outlier,
            trials,
            most_ejected: percent(raw.most_ejected.as_ref()?.value)?,
        })
    }

    fn latency_factor(&mut self, at: NodeId, raw: &RawPassive) -> Option<Option<u32>> {
        let Some(key) = &raw.latency_factor else {
            return (!self.nodes.is_broken(at, "latency-factor")).then_some(None);
        };
        let percent = (key.value * 100.0).round();
        if (150.0..=100_000.0).contains(&percent) {
            return Some(Some(percent as u32));
        }
        let shown =
            if self.nodes.may_be_shown(key.id) { key.value.to_string() } else { "this number".to_owned() };
        let message = format!("{shown} is out of range: from 1.5 to 1000");
        drop(
            self.report
                .at(self.nodes, key.id, message)
                .hint("5.0 ejects a backend that is five times as slow as the others"),
        );
        None
    }

    fn outlier_window(&mut self, raw: &RawPassive) -> Option<Duration> {
        let window = self.time(&raw.window, Zero::Refused, DAY)?;
        if WINDOW.contains(&window) {
            return Some(window);
        }
        drop(self.refuse(raw.window.as_ref()?, "is out of range: from \"1s\" to \"1h\""));
        None
    }
}
