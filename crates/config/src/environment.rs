//! The environment that a configuration is loaded with: variables, and files that variables name.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Largest file that a variable names, in bytes.
pub const MAX_VARIABLE_FILE: usize = 64 * 1024;

/// Variables, and the way to read a file: nothing here reads either from the process.
#[derive(Clone, Debug)]
pub struct Environment {
    pub variables: BTreeMap<String, String>,
    /// Reads a file; of a longer one than the limit at least one byte more than that.
    pub read: fn(&Path, usize) -> io::Result<Vec<u8>>,
    /// Returns the names in a directory, in any order; names that are not UTF-8 may be missing.
    pub list: fn(&Path) -> io::Result<Vec<String>>,
}

impl Default for Environment {
    fn default() -> Self {
        Self {
            variables: BTreeMap::new(),
            read: |_, _| Err(io::ErrorKind::Unsupported.into()),
            list: |_| Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// A file from which a value came. A reload reads it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariableFile {
    pub variable: String,
    pub path: PathBuf,
}

impl Environment {
    /// Returns the value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// Returns the text of a file without the line break at its end. The error is a sentence for the operator.
    pub(crate) fn content(&self, path: &str) -> Result<String, String> {
        let shown = path.escape_debug();
        if !path.starts_with('/') {
            return Err(format!("names the file {shown}: its path must be absolute"));
        }
        let bytes = (self.read)(Path::new(path), MAX_VARIABLE_FILE)
            .map_err(|error| format!("names {shown}, which cannot be read: {error}"))?;
        if bytes.len() > MAX_VARIABLE_FILE {
            return Err(format!("names {shown}, which is longer than {} KiB", MAX_VARIABLE_FILE / 1024));
        }
        let text = String::from_utf8(bytes).map_err(|_| format!("names {shown}, which is not UTF-8"))?;
        let text = text.strip_suffix('\n').unwrap_or(&text);
        Ok(text.strip_suffix('\r').unwrap_or(text).to_owned())
    }
}
