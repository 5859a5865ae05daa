//! Changes of single values in a configuration's text. Comments, order and layout of everything else stay: a line that
//! a change does not concern is the same byte for byte.
//!
//! `crates/config/src/edit/path.rs` reads the path of a value, `crates/config/src/edit/value.rs` the value,
//! `crates/config/src/edit/find.rs` finds it, `crates/config/src/edit/change.rs` changes the document, and
//! `crates/config/src/edit/layout.rs` keeps the lines. Where the configuration has several files,
//! `crates/config/src/edit/several.rs` says which one changes. A change can make the configuration invalid: the caller loads
//! the text again, with the same faults as for a file.

use toml_edit::DocumentMut;

use crate::files;

mod change;
mod error;
mod find;
mod layout;
mod list;
pub(crate) mod path;
mod removal;
mod several;
mod value;

pub use error::EditError;
pub use path::Path;

/// One change, in the words of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Gives a key a value, which replaces an earlier one.
    Set { path: Path, value: String },
    /// Appends an entry to a list, or makes a table.
    Add { path: Path, value: String },
    /// Removes a key, a table or the entry of a list.
    Remove { path: Path },
    /// Removes the entry of a list with this value.
    RemoveEntry { path: Path, value: String },
}

impl Edit {
    pub fn path(&self) -> &Path {
        match self {
            Self::Set { path, .. }
            | Self::Add { path, .. }
            | Self::Remove { path }
            | Self::RemoveEntry { path, .. } => path,
        }
    }

    /// Names the change without its value, which may be a secret.
    pub fn summary(&self) -> String {
        let verb = match self {
            Self::Set { .. } => "set",
            Self::Add { .. } => "add",
            Self::Remove { .. } | Self::RemoveEntry { .. } => "remove",
        };
        format!("{verb} {}", self.path())
    }
}

/// Returns the text with the change.
///
/// # Errors
/// The reason, if the path or the value cannot be used. Whether the configuration is valid is not checked.
pub fn apply(joined: &str, edit: &Edit) -> Result<String, EditError> {
    let files = files::split(joined);
    let at = several::file_of(&files, edit.path())?;
    let text = apply_to(files[at].text, edit)?;
    let start = files[at].text.as_ptr() as usize - joined.as_ptr() as usize;
    Ok([&joined[..start], &text, &joined[start + files[at].text.len()..]].concat())
}

/// Returns what the operator probably meant, if the path of the change leads through a table that the text does not have.
#[must_use]
pub fn meant(joined: &str, edit: &Edit) -> Option<String> {
    let files = files::split(joined);
    let text = files[several::file_of(&files, edit.path()).ok()?].text;
    let document: DocumentMut = text.trim_start_matches('\u{feff}').parse().ok()?;
    find::meant(document.as_table(), edit.path())
}

/// Returns what the operator probably meant, if the change makes a named section on the way to its value, beside one with a
/// name like it.
#[must_use]
pub fn beside(joined: &str, edit: &Edit) -> Option<String> {
    let (Edit::Set { path, .. } | Edit::Add { path, .. }) = edit else { return None };
    let files = files::split(joined);
    let documents = files.iter().map(|file| file.text.trim_start_matches('\u{feff}').parse::<DocumentMut>());
    let documents: Vec<_> = documents.collect::<Result<_, _>>().ok()?;
    find::beside(documents.iter().map(|document| document.as_table()), path)
}

fn apply_to(text: &str, edit: &Edit) -> Result<String, EditError> {
    let (mark, text) = match text.strip_prefix('\u{feff}') {
        Some(text) => ("\u{feff}", text),
        None => ("", text),
    };
    // The parser writes lines without a carriage return: `layout` keeps those of the file.
    let mut document: DocumentMut =
        text.replace("\r\n", "\n").parse().map_err(|error: toml_edit::TomlError| {
            EditError::new(format!("the configuration is not TOML: {}", error.message()))
        })?;
    let before = document.to_string();
    match edit {
        Edit::Set { path, value } => change::set(&mut document, path, value)?,
        Edit::Add { path, value } => change::add(&mut document, path, value)?,
        Edit::Remove { path } => removal::remove(&mut document, path)?,
        Edit::RemoveEntry { path, value } => removal::remove_entry(&mut document, path, value)?,
    }
    let text = layout::keep(text, &before, &document.to_string())?;
    Ok(format!("{mark}{text}"))
}

#[cfg(test)]
mod tests;
