//! The ways to show output.

pub mod json;
pub mod stream;

/// Whether colours are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    /// Yes: a terminal.
    On,
    /// No.
    Off,
}
