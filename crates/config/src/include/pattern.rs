//! Patterns of files: a path whose last part may have `*` and `?`, as in `conf.d/*.toml`.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use text::wildcard;

use crate::environment::Environment;
use crate::quote::quote;

#[derive(Debug)]
pub(super) enum Pattern {
    One(PathBuf),
    Many { directory: PathBuf, name: String },
}

impl Pattern {
    /// Reads a pattern of a file in `directory`. The error ends the sentence that the text begins.
    pub(super) fn parse(text: &str, directory: &Path) -> Result<Self, String> {
        if text.is_empty() {
            return Err("names no file".to_owned());
        }
        if text.contains(char::is_control) {
            return Err("has a control character".to_owned());
        }
        if text.len() > LONGEST {
            return Err("is too long for a path".to_owned());
        }
        let (above, name) = match text.rsplit_once('/') {
            Some(("", name)) => ("/", name),
            Some((above, name)) => (above, name),
            None => ("", text),
        };
        if matches!(name, "" | "." | "..") {
            return Err("is a directory, not a file: write its files as DIRECTORY/*.toml".to_owned());
        }
        if above.contains(WILD) {
            return Err("has a wildcard in a directory: only the name of the file may have one".to_owned());
        }
        let directory: PathBuf =
            directory.join(above).components().filter(|component| *component != Component::CurDir).collect();
        Ok(match name.contains(WILD) {
            true => Self::Many { directory, name: name.to_owned() },
            false => Self::One(directory.join(name)),
        })
    }

    /// The file, or the directory whose files match.
    pub(super) fn need(&self) -> &Path {
        match self {
            Self::One(path) => path,
            Self::Many { directory, .. } => directory,
        }
    }

    /// Returns the files, sorted by name. A directory that is missing has none.
    pub(super) fn files(&self, base: &Path, env: &Environment) -> Result<Vec<PathBuf>, String> {
        let (directory, pattern) = match self {
            Self::One(path) => return Ok(vec![path.clone()]),
            Self::Many { directory, name } => (directory, name),
        };
        let mut place = base.join(directory);
        if place.as_os_str().is_empty() {
            place.push(".");
        }
        let names = match (env.list)(&place) {
            Ok(names) => names,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => {
                let shown = quote(&directory.display().to_string());
                return Err(format!("the directory {shown} cannot be read: {error}"));
            }
        };
        let mut found: Vec<_> = names.into_iter().filter(|name| matches(pattern, name)).collect();
        found.sort();
        if let Some(bad) = found.iter().find(|name| name.contains(char::is_control)) {
            return Err(format!("the name of the file {} has a control character", quote(bad)));
        }
        Ok(found.into_iter().map(|name| directory.join(name)).collect())
    }
}

/// Reports whether a name fits. As in a shell, a wildcard does not stand for the dot of a hidden file.
fn matches(pattern: &str, name: &str) -> bool {
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    wildcard::matches(pattern, name, |one, other| one == other)
}

const WILD: [char; 2] = ['*', '?'];

const LONGEST: usize = 4095;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_as_in_a_shell() {
        for (pattern, name, fits) in [
            ("*.toml", "a.toml", true),
            ("*.toml", ".a.toml", false),
            (".*", ".a", true),
            ("*.toml", "a.toml~", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*a*b*", "xxaybz", true),
            ("*a*b*", "xxby", false),
            ("*", "", true),
            ("?", "\u{e4}", true),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn what_names_no_file_is_refused() {
        for bad in ["", "conf.d/", "..", "/", "a\nb", "conf.*/a.toml", &"a".repeat(5000)] {
            assert!(Pattern::parse(bad, Path::new("")).is_err(), "{bad}");
        }
        let pattern = Pattern::parse("./conf.d/*.toml", Path::new("x")).unwrap();
        assert_eq!(pattern.need(), Path::new("x/conf.d"));
        assert_eq!(Pattern::parse("/etc/*.toml", Path::new("x")).unwrap().need(), Path::new("/etc"));
    }
}
