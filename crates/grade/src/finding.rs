//! Messages about a listener, worded for an operator who is not a TLS expert.

use serde::Serialize;

use crate::letter::Letter;

/// Message about a fault that lowers the grade or the score, or about a possible improvement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Identifier for programs, such as `old-version`.
    pub code: &'static str,
    /// Effect on the grade. In JSON `effect`, with `cap` or `points` beside it.
    #[serde(flatten)]
    pub effect: Effect,
    pub what: String,
    pub why: String,
    /// Advice for Penstock's configuration.
    pub penstock: String,
    /// Advice for other servers.
    pub other_servers: String,
}

/// Effect of a finding on the grade.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "effect", rename_all = "kebab-case")]
pub enum Effect {
    /// Limits the grade.
    Cap {
        /// Best grade that remains possible.
        #[serde(rename = "cap")]
        at: Letter,
    },
    #[serde(rename = "no-a-plus")]
    NoPlus,
    /// Lowers the score; the grade falls only if the score falls below the grade's threshold.
    Points {
        /// Points of 100.
        points: f64,
    },
    Advice,
}
