//! Grades.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// A grade, the best first. T and M stand apart: an untrusted certificate is unsafe, however strong the encryption is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Letter {
    /// A, with a long Strict-Transport-Security and without a warning.
    APlus,
    /// 80 points or more.
    A,
    /// A with a serious warning of the guide.
    AMinus,
    /// 65 points or more.
    B,
    /// 50 points or more.
    C,
    /// 35 points or more.
    D,
    /// 20 points or more.
    E,
    /// Fewer than 20 points, or a broken protocol or cipher.
    F,
    /// The certificate is not valid for the name asked for.
    M,
    T,
}

impl Letter {
    const ALL: [Self; 10] =
        [Self::APlus, Self::A, Self::AMinus, Self::B, Self::C, Self::D, Self::E, Self::F, Self::M, Self::T];

    /// Returns the grade for a score (table 1 of the guide).
    pub(crate) fn of_points(points: f64) -> Self {
        match points {
            80.0.. => Self::A,
            65.0.. => Self::B,
            50.0.. => Self::C,
            35.0.. => Self::D,
            20.0.. => Self::E,
            _ => Self::F,
        }
    }

    pub const fn word(self) -> &'static str {
        match self {
            Self::APlus => "A+",
            Self::A => "A",
            Self::AMinus => "A-",
            Self::B => "B",
            Self::C => "C",
            Self::D => "D",
            Self::E => "E",
            Self::F => "F",
            Self::M => "M",
            Self::T => "T",
        }
    }

    /// Returns true if `self` is worse than `wanted`.
    pub fn is_below(self, wanted: Self) -> bool {
        self > wanted
    }
}

impl fmt::Display for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl Serialize for Letter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

impl FromStr for Letter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = text.to_ascii_uppercase();
        let graded = Self::ALL.into_iter().filter(|letter| *letter <= Self::F);
        graded
            .into_iter()
            .find(|letter| letter.word() == wanted)
            .ok_or_else(|| "is not a grade: they are A+, A, A-, B, C, D, E and F".to_owned())
    }
}
