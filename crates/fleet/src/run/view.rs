//! Formats of the output.

pub mod fold;
pub mod json;
pub mod kept;
pub mod mpssh;
pub mod stream;
mod transcript;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    On,
    Off,
}
