//! What this process may do since its start, for reports. `crates/serve/src/confinement.rs` makes it so.

use sys::sandbox::Files;

/// Rights that are left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confinement {
    pub uid: u32,
    /// Why root was not left, if it was not.
    pub stays_root: Option<String>,
    /// Names of capabilities(7).
    pub capabilities: Vec<&'static str>,
    /// Those that the process had at its start, and gave up because nothing needed them.
    pub given_up: Vec<&'static str>,
    pub calls: Restriction,
    pub files: Restriction,
    /// Paths that may be used; empty unless `files` are restricted.
    pub reachable: Files,
    /// Commands, each with its arguments, that a helper runs for this process.
    pub commands: Vec<Vec<String>>,
}

/// State of one restriction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Restriction {
    Restricted,
    /// A part of it, with the reason.
    Partly(String),
    /// With the reason.
    Not(String),
    /// The process has not come so far.
    #[default]
    Unknown,
}

impl Restriction {
    /// `restricted`, `partly` or `not`.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Restricted => "restricted",
            Self::Partly(_) => "partly",
            Self::Not(_) => "not",
            Self::Unknown => "unknown",
        }
    }

    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Partly(reason) | Self::Not(reason) => Some(reason),
            Self::Restricted | Self::Unknown => None,
        }
    }
}
