//! Translates the command line and files of other load balancers into our configuration: text in, TOML and notes out.
//! It opens no file and no socket; what a translation needs of the machine is passed in as [`Outside`].
//!
//! - `crates/import/src/pen.rs`: the command line of Pen, and its files of penctl commands. The tables of all options and
//!   commands are `crates/import/src/pen/option.rs` and `crates/import/src/pen/command.rs`; both fill
//!   `crates/import/src/pen/model.rs`, from which `crates/import/src/pen/emit.rs` writes the configuration.
//! - `crates/import/src/note.rs`: what is said of a line that changed or has no translation.
//! - `crates/import/src/fits.rs`: what other programs accept and our configuration refuses.
//! - `crates/import/src/keys.rs`: which keys of ours a translation may use.
//!
//! Nothing is left out silently: each option, command and line is translated, or has a [`Note`] that says why not, or is
//! one of the [`Faults`].

#[cfg(test)]
mod dice;
mod document;
mod fault;
mod fits;
pub mod haproxy;
mod keys;
mod note;
mod outside;
pub mod pen;

pub use fault::{Fault, Faults};
pub use note::{Effect, Note, Translation};
pub use outside::Outside;
