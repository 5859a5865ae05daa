//! The configuration: converts text and an environment map into a [`Config`] with only valid values, or into a list of
//! all faults. It has no sockets, no runtime and no side effects: `penstock check` only reads.
//!
//! # The path of a configuration
//!
//! 1. `crates/sys/src/file.rs` reads the file, `crates/config/src/syntax.rs` parses the text with its places;
//!    `crates/config/src/include.rs` adds the files that it includes, `crates/config/src/files.rs` makes one text of all;
//!    `crates/config/src/env.rs` applies the environment,
//!    `crates/config/src/url.rs` takes URLs of backends for addresses.
//! 2. `crates/config/src/raw.rs` mirrors the file: its doc comments are the reference page `docs/config.md` and the
//!    JSON schema `docs/config.schema.json` (`crates/config/src/schema.rs`). `crates/config/src/shape.rs` compares the
//!    file with that schema.
//! 3. `crates/config/src/parse.rs` converts the raw values into `crates/config/src/types.rs`, where only valid values
//!    exist, or returns all faults (`crates/config/src/error.rs`).
//! 4. `crates/proxy/src/snapshot/compile.rs` compiles the result into an immutable `Snapshot`. State that must survive
//!    a reload (health, counters, stickiness, operators' decisions) is in `crates/state/src/lib.rs`, by name; state
//!    that must survive a restart is in files under `crates/state/src/state_directory.rs`.
//!    A live change (`crates/serve/src/transaction.rs`) edits the text (`crates/config/src/edit.rs`) and takes this path again.
//! 5. `crates/serve/src/reload.rs` opens new sockets, sends the snapshot to every worker, and closes removed sockets
//!    after their queues were served. An error before that point changes nothing.

use std::path::PathBuf;
use std::time::Duration;

mod de;
pub mod difference;
pub mod edit;
mod env;
mod environment;
pub mod error;
pub mod files;
mod geoip;
mod include;
mod machine;
mod parse;
mod part;
mod print;
mod quick;
mod quote;
mod raw;
pub mod schema;
mod shape;
mod syntax;
mod tree;
pub mod types;
mod url;

pub use environment::{Environment, MAX_VARIABLE_FILE, VariableFile};
pub use error::{Fault, Faults, Position, Severity};
pub use files::MAX_TEXT;
pub use machine::MachineFault;
pub use part::Part;
pub use quick::{Quick, VARIABLES as QUICK_VARIABLES};
pub use types::Config;

use error::Report;
use files::Places;
use raw::RawConfig;
use tree::{Nodes, Table};

/// A configuration file's text.
#[derive(Clone, Debug)]
pub struct Source {
    /// Path, as shown in faults.
    pub name: String,
    pub text: String,
}

impl Source {
    /// Decodes the bytes of a file: at most [`MAX_TEXT`] bytes of UTF-8, with or without a byte order mark.
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

/// A valid configuration with the source of each value.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub config: Config,
    /// Allowed settings that are probably not intended.
    pub warnings: Faults,
    /// Variables that begin with `PENSTOCK_` and name no key; `warnings` has them too.
    pub unknown_variables: Vec<String>,
    root: Table,
    nodes: Nodes,
    text: String,
    places: Places,
}

impl Loaded {
    /// Formats the effective configuration as TOML. Each line ends with a comment that names the source of its value:
    /// `# default`, `# line 12`, `# environment PENSTOCK_X`, `# line 12, ${APP_PORT}` or `# --backend`. Loading the
    /// text again gives an equal configuration.
    pub fn print(&self) -> String {
        print::print(&self.root, &self.nodes, &self.places)
    }

    /// The text of all files ([`files::split`] separates them) without byte order marks; for flags, what a file would have
    /// in their place.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Parses a duration in the format of configurations, for command-line options: `500ms`, `2s`, `1.5m`, `1h`, `7d`.
///
/// # Errors
/// The fault with the quoted text and the correct format.
pub fn duration(text: &str) -> Result<Duration, String> {
    parse::duration_of(text)
}

/// Loads a configuration file, and the files that it includes. `env` is the environment of the process, which this
/// function reads only through its `read` and `list`. The directory of the file is that of the source's name.
pub fn load(source: &Source, env: &Environment) -> Result<Loaded, Faults> {
    let text = source.text.strip_prefix('\u{feff}').unwrap_or(&source.text);
    load_from(&source.name, text, include::From::Disk, env)
}

/// Loads the text of a [`Loaded`] again, after changes. Its files are in the text: none is read.
pub fn load_joined(source: &Source, env: &Environment) -> Result<Loaded, Faults> {
    let files = files::split(&source.text);
    load_from(&source.name, files[0].text, include::From::Joined(&files[1..]), env)
}

/// Returns the text of a configuration as [`Loaded::text`] has it: with the files that it includes.
pub fn join(source: &Source, env: &Environment) -> Result<String, Faults> {
    let text = source.text.strip_prefix('\u{feff}').unwrap_or(&source.text);
    let mut report = Report::new(&source.name, text);
    let mut nodes = Nodes::default();
    let included = include::read(&source.name, text, include::From::Disk, &mut nodes, &mut report, env);
    match included {
        Some(_) => Ok(report.text().to_owned()),
        None => Err(report.into_faults()),
    }
}

/// Returns the variable of the environment that makes a change without effect. The text, which has the change and its files as
/// [`load_joined`] takes them, may be invalid.
pub fn overridden(source: &Source, edit: &edit::Edit, env: &Environment) -> Option<String> {
    let files = files::split(&source.text);
    let mut report = Report::new(&source.name, files[0].text);
    let mut nodes = Nodes::default();
    let from = include::From::Joined(&files[1..]);
    let included = include::read(&source.name, files[0].text, from, &mut nodes, &mut report, env)?;
    let mut root = included.root;
    env::lay_over(&mut root, &mut nodes, schema::root(), env, &mut report);
    env::take_state_directory(&mut root, &mut nodes, env);
    part::overridden(&root, &nodes, edit).map(str::to_owned)
}

fn load_from(name: &str, text: &str, from: include::From<'_>, env: &Environment) -> Result<Loaded, Faults> {
    if text.len() > MAX_TEXT {
        return Err(syntax::too_long(name, text.len()));
    }
    let mut report = Report::new(name, text);
    let mut nodes = Nodes::default();
    let Some(included) = include::read(name, text, from, &mut nodes, &mut report, env) else {
        return Err(report.into_faults());
    };
    let include::Included { root, paths, variables } = included;
    let mut loaded = finish(root, nodes, report, env)?;
    loaded.config.variable_files.extend(variables);
    loaded.config.included = paths;
    Ok(loaded)
}

/// Returns the control socket named by a file, for programs that connect to the server of that file. Reads only
/// `[control]` and its environment variables: faults in other sections must not prevent a connection. `None` if no
/// control socket is named. The files that it includes are read only if it has no `[control]` itself.
///
/// # Errors
/// The faults of `[control]`, or those of the text if they may affect that section.
pub fn control_socket(source: &Source, env: &Environment) -> Result<Option<PathBuf>, Faults> {
    let text = source.text.strip_prefix('\u{feff}').unwrap_or(&source.text);
    if text.len() > MAX_TEXT {
        return Err(syntax::too_long(&source.name, text.len()));
    }
    let own = control_socket_in(&source.name, text, env)?;
    if own.is_some() || !text.contains(include::KEY) {
        return Ok(own);
    }
    let joined = join(source, env)?;
    let directory = std::path::Path::new(&source.name).parent().unwrap_or(std::path::Path::new(""));
    for file in &files::split(&joined)[1..] {
        let name = directory.join(file.path.unwrap_or_default()).display().to_string();
        if let Some(socket) = control_socket_in(&name, file.text, env)? {
            return Ok(Some(socket));
        }
    }
    Ok(None)
}

fn control_socket_in(name: &str, text: &str, env: &Environment) -> Result<Option<PathBuf>, Faults> {
    const SECTION: &str = "control";
    let mut report = Report::new(name, text);
    let mut nodes = Nodes::default();
    let Some(mut root) = syntax::read_section(text, SECTION, &mut nodes, &mut report) else {
        return Err(report.into_faults());
    };
    root.entries.retain(|(name, _)| name == SECTION);
    // Variables of other sections would be reported as unknown keys: remove them.
    let of_other_sections =
        |name: &str| name.starts_with("PENSTOCK_") && !name.starts_with("PENSTOCK_CONTROL_");
    let own = env.variables.iter().filter(|(name, _)| !of_other_sections(name));
    let own = own.map(|(name, value)| (name.clone(), value.clone())).collect();
    let own = Environment { variables: own, ..*env };
    let schema = schema::root();
    env::lay_over(&mut root, &mut nodes, schema, &own, &mut report);
    env::substitute(&mut root, &mut nodes, env, &mut report);
    shape::check(&mut root, &mut nodes, schema, &mut report);
    let raw = de::read::<RawConfig>(&root, &mut report);
    let control = raw.and_then(|raw| parse::control(&raw, &nodes, &mut report));
    let faults = report.into_faults();
    if faults.has_errors() { Err(faults) } else { Ok(control.map(|control| control.socket)) }
}

/// Makes the configuration from flags: one listener `main`, one pool `main`. Faults name the flag instead of a line.
pub fn quick(quick: &Quick, env: &Environment) -> Result<Loaded, Faults> {
    let mut report = Report::new("command line", "");
    let mut nodes = Nodes::default();
    let root = quick.document(&mut nodes, &mut report);
    let text = print::document(&root);
    finish(root, nodes, report, env).map(|loaded| Loaded { text, ..loaded })
}

/// Processes a parsed text: environment, shape, defaults, meaning.
fn finish(
    mut root: Table,
    mut nodes: Nodes,
    mut report: Report,
    env: &Environment,
) -> Result<Loaded, Faults> {
    let schema = schema::root();
    let env::Overlay { unknown: unknown_variables, mut files } =
        env::lay_over(&mut root, &mut nodes, schema, env, &mut report);
    env::take_state_directory(&mut root, &mut nodes, env);
    files.extend(env::substitute(&mut root, &mut nodes, env, &mut report));
    shape::check(&mut root, &mut nodes, schema, &mut report);
    url::resolve(&mut root, &mut nodes, &mut report);
    shape::fill_defaults(&mut root, &mut nodes, schema);
    report.mask(shape::secrets(&root, &nodes));
    let raw = de::read::<RawConfig>(&root, &mut report);
    let config = raw.and_then(|raw| parse::parse(&raw, &nodes, &mut report, env));
    let config = config.map(|config| Config { variable_files: files, ..config });
    let (text, places) = (report.text().to_owned(), report.places().clone());
    let faults = report.into_faults();
    match config {
        Some(config) if !faults.has_errors() => {
            Ok(Loaded { config, warnings: faults, unknown_variables, root, nodes, text, places })
        }
        _ => Err(faults),
    }
}
