//! What there is to say about a listener, in words that somebody can act on who is no expert.

use serde::{Serialize, Serializer};

use crate::letter::Letter;

/// Something that costs the grade, or points, or could be better.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// A word for programs, such as `old-version`.
    pub code: &'static str,
    /// What it does to the grade.
    pub effect: Effect,
    /// What was seen.
    pub what: String,
    /// Why it matters.
    pub why: String,
    /// What to do in Penstock's configuration.
    pub penstock: String,
    /// What to do with another server.
    pub elsewhere: String,
}

/// What a finding does to the grade.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effect {
    /// The grade cannot be better than this.
    Caps(Letter),
    /// There is no A+ with it.
    NoPlus,
    /// So many points of the score; the grade only if the score falls under its threshold.
    Points(f64),
    /// Nothing.
    Advice,
}

impl Serialize for Effect {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Caps(letter) => serializer.serialize_str(&format!("caps at {letter}")),
            Self::NoPlus => serializer.serialize_str("no A+"),
            Self::Points(points) => serializer.serialize_str(&format!("costs {points} points")),
            Self::Advice => serializer.serialize_str("advice"),
        }
    }
}
