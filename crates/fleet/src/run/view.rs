//! The ways to show output.

pub mod fold;
pub mod json;
pub mod mpssh;
pub mod stream;
mod transcript;

/// Whether colours are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    /// Yes: a terminal.
    On,
    /// No.
    Off,
}
