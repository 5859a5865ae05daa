//! The common part of HAProxy's configuration: sections `global`, `defaults`, `frontend`, `backend` and `listen`, with what
//! most files have in them. Everything else is named, with its line, as not translated.
//!
//! `words` splits lines, `read` fills the sections of `model`, `route` understands conditions on host and path, and `emit`
//! writes a listener for each frontend and a pool for each backend.

mod bind;
mod emit;
mod emitter;
mod model;
mod order;
mod pool;
mod read;
mod route;
mod server;
mod words;

use crate::keys::{self, NewKey, State};
use crate::{Faults, Translation};

/// Translates a file.
///
/// # Errors
/// Lines that HAProxy does not accept either, or that leave nothing to serve; all of them.
pub fn file(name: &str, text: &str) -> Result<Translation, Faults> {
    translate(name, text, keys::of_this_version)
}

fn translate(name: &str, text: &str, keys: fn(NewKey) -> State) -> Result<Translation, Faults> {
    emit::emit(name, read::read(name, text)?, keys)
}

#[cfg(test)]
mod generated;
#[cfg(test)]
mod tests;
