//! The configuration: text and an environment map in, a [`Config`] that cannot be wrong out, or every fault at once.
//! No sockets, no runtime, no side effects: `penstock check` only reads.
//!
//! # The path of a configuration
//!
//! 1. `crates/serve/src/file.rs` reads the file, `crates/config/src/syntax.rs` reads the text with its places; `crates/config/src/env.rs` lays the environment over it.
//! 2. `crates/config/src/raw.rs` mirrors the file: its doc comments are the reference page `docs/config.md` and the JSON schema
//!    `docs/config.schema.json` (`crates/config/src/schema.rs`). `crates/config/src/shape.rs` compares the file with that schema.
//! 3. `crates/config/src/parse.rs` turns it into `crates/config/src/types.rs`, where only valid values exist, or gives every fault
//!    at once (`crates/config/src/error.rs`).
//! 4. `crates/serve/src/snapshot.rs` compiles that into an immutable `Snapshot`. What must survive a reload (health, counters,
//!    stickiness, operators' decisions) is in `crates/serve/src/state.rs`, by name; what must survive a restart is in files under
//!    `crates/serve/src/state_directory.rs`.
//! 5. `crates/serve/src/reload.rs` opens the sockets that are new, hands the snapshot to every worker, closes the sockets that
//!    are gone after their queues were served. An error before that point leaves everything as it was.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

mod de;
mod env;
pub mod error;
mod nearest;
mod parse;
mod print;
mod quick;
mod raw;
pub mod schema;
mod shape;
mod syntax;
mod tree;
pub mod types;

pub use env::NOT_CONFIGURATION;
pub use error::{Fault, Faults, Place, Severity};
pub use quick::Quick;
pub use types::Config;

use error::Report;
use tree::{Nodes, Table};

/// Largest text of a configuration, in bytes.
pub const MAX_TEXT: usize = 4 * 1024 * 1024;

/// A configuration file as it was read.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its path, as faults show it.
    pub name: String,
    /// Its text.
    pub text: String,
}

impl Source {
    /// The text of a file from its bytes: at most [`MAX_TEXT`] of UTF-8, with or without a byte order mark.
    pub fn from_bytes(name: impl Into<String>, bytes: Vec<u8>) -> Result<Self, Faults> {
        let name = name.into();
        if bytes.len() > MAX_TEXT {
            return Err(syntax::too_long(&name, bytes.len()));
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Source { name, text }),
            Err(error) => Err(syntax::not_utf8(&name, &error)),
        }
    }
}

/// A valid configuration, and where each of its values came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// What is allowed, but hardly meant.
    pub warnings: Faults,
    root: Table,
    nodes: Nodes,
    text: String,
}

impl Loaded {
    /// The effective configuration as TOML. Each line ends in a comment that tells where its value came from:
    /// `# default`, `# line 12`, `# environment PENSTOCK_X`, `# line 12, ${APP_PORT}` or `# --backend`.
    /// Loading the text again gives an equal configuration.
    pub fn print(&self) -> String {
        print::print(&self.root, &self.nodes, &self.text)
    }
}

/// A duration as a configuration has it, for options of commands: `500ms`, `2s`, `1.5m`, `1h`, `7d`.
///
/// # Errors
/// What is wrong with the text, which is repeated, and what to write.
pub fn duration(text: &str) -> Result<Duration, String> {
    parse::duration_of(text)
}

/// Loads a configuration file. `env` is the environment of the process: it is never read here.
pub fn load(source: &Source, env: &BTreeMap<String, String>) -> Result<Loaded, Faults> {
    let text = source.text.strip_prefix('\u{feff}').unwrap_or(&source.text);
    if text.len() > MAX_TEXT {
        return Err(syntax::too_long(&source.name, text.len()));
    }
    let mut report = Report::new(&source.name, text);
    let mut nodes = Nodes::default();
    match syntax::read(text, &mut nodes, &mut report) {
        Some(root) => finish(root, nodes, report, env),
        None => Err(report.into_faults()),
    }
}

/// The control socket that a file names, for programs that look for the server of that file. Only `[control]` is read, and what the
/// environment says of it: faults elsewhere are no reason not to find the server. `None`: no control socket is named.
///
/// # Errors
/// The faults of `[control]`, or those of the text if they may concern it.
pub fn control_socket(source: &Source, env: &BTreeMap<String, String>) -> Result<Option<PathBuf>, Faults> {
    const SECTION: &str = "control";
    let text = source.text.strip_prefix('\u{feff}').unwrap_or(&source.text);
    if text.len() > MAX_TEXT {
        return Err(syntax::too_long(&source.name, text.len()));
    }
    let mut report = Report::new(&source.name, text);
    let mut nodes = Nodes::default();
    let Some(mut root) = syntax::read_section(text, SECTION, &mut nodes, &mut report) else {
        return Err(report.into_faults());
    };
    root.entries.retain(|(name, _)| name == SECTION);
    // Variables for other sections name keys that are not here.
    let of_other_sections =
        |name: &str| name.starts_with("PENSTOCK_") && !name.starts_with("PENSTOCK_CONTROL_");
    let own = env.iter().filter(|(name, _)| !of_other_sections(name));
    let own = own.map(|(name, value)| (name.clone(), value.clone())).collect();
    let schema = schema::root();
    env::lay_over(&mut root, &mut nodes, schema, &own, &mut report);
    env::substitute(&mut root, &mut nodes, env, &mut report);
    shape::check(&mut root, &mut nodes, schema, &mut report);
    let raw = de::read(&root, &mut report);
    let control = raw.and_then(|raw| parse::control(&raw, &nodes, &mut report));
    let faults = report.into_faults();
    if faults.has_errors() { Err(faults) } else { Ok(control.map(|control| control.socket)) }
}

/// Makes the configuration of the form without a file: one listener `main`, one pool `main`.
/// Faults name the flag instead of a line.
pub fn quick(quick: &Quick, env: &BTreeMap<String, String>) -> Result<Loaded, Faults> {
    let mut report = Report::new("command line", "");
    let mut nodes = Nodes::default();
    let root = quick.document(&mut nodes, &mut report);
    finish(root, nodes, report, env)
}

/// Everything after the text: environment, shape, defaults, meaning.
fn finish(
    mut root: Table,
    mut nodes: Nodes,
    mut report: Report,
    env: &BTreeMap<String, String>,
) -> Result<Loaded, Faults> {
    let schema = schema::root();
    env::lay_over(&mut root, &mut nodes, schema, env, &mut report);
    env::take_state_directory(&mut root, &mut nodes, env);
    env::substitute(&mut root, &mut nodes, env, &mut report);
    shape::check(&mut root, &mut nodes, schema, &mut report);
    shape::fill_defaults(&mut root, &mut nodes, schema);
    report.mask(shape::secrets(&root, &nodes));
    let raw = de::read(&root, &mut report);
    let config = raw.and_then(|raw| parse::parse(&raw, &nodes, &mut report));
    let text = report.text().to_owned();
    let faults = report.into_faults();
    match config {
        Some(config) if !faults.has_errors() => Ok(Loaded { config, warnings: faults, root, nodes, text }),
        _ => Err(faults),
    }
}
