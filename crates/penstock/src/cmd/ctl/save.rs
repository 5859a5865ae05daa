//! `penstock ctl save`: writes the configuration that a server serves into its file.
//!
//! The server may not write there: it gave up that right at its start. It sends the text, and the operator's own rights
//! decide.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::{Gid, Uid, fchown};
use serde_json::{Value, json};

use crate::ctl::client::Client;
use crate::output::{Failure, plain, print, print_json};

/// How to print the result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
}

/// What to do with a file that is not as the server read it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Existing {
    Refuse,
    /// `--force`
    Replace,
}

/// What the server wants to be written.
struct Wanted {
    /// File of the server's configuration.
    file: Option<PathBuf>,
    text: String,
    /// The text of the file as the server read it.
    loaded: String,
    reload: Reload,
}

/// The last reload of a file that another hand has changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reload {
    Served,
    /// An undo went back to before it: what it brought is in the file, and not served.
    Undone,
}

pub(super) fn run(
    client: &mut Client,
    file: Option<&Path>,
    existing: Existing,
    format: Format,
) -> Result<(), Failure> {
    let wanted = wanted(&client.ask("save json")?.lines.concat())?;
    let own = match (file, &wanted.file) {
        (None, Some(own)) => Some(own.clone()),
        (Some(given), Some(own)) => same(given, own).then(|| own.clone()),
        (_, None) => None,
    };
    let (path, done) = match (own, file) {
        (Some(own), _) => {
            if existing == Existing::Refuse {
                keep_what_others_brought(&own, &wanted)?;
            }
            write_all(&own, &wanted, existing)?;
            // The server compares the file with what it serves.
            let answer = client.ask("save done json")?.lines.concat();
            let answer: Value = serde_json::from_str(&answer).map_err(Failure::runtime)?;
            (own, answer["saved_changes"].as_u64().unwrap_or(0))
        }
        (None, Some(_)) if config::files::split(&wanted.text).len() > 1 => {
            return Err(Failure::usage(
                "this server's configuration has several files: it cannot be saved into another one\n  hint: penstock \
                 ctl save writes each of its own files; penstock ctl show prints all",
            ));
        }
        (None, Some(file)) => {
            write_other(file, &wanted.text, existing)?;
            (file.to_owned(), 0)
        }
        (None, None) => {
            return Err(Failure::usage(
                "this server has no configuration file: flags of the command line made its configuration\n  \
                 hint: penstock ctl save FILE writes one; start the server with it",
            ));
        }
    };
    let shown = path.display().to_string();
    if format == Format::Json {
        return print_json(&format!("{}\n", json!({ "file": shown, "saved_changes": done })));
    }
    let changes =
        if done > 0 { format!(": {}", text::units::count(done as usize, "change")) } else { String::new() };
    print(&format!("{} has the configuration that is served{changes}\n", plain(&shown)))
}

fn wanted(answer: &str) -> Result<Wanted, Failure> {
    let answer: Value = serde_json::from_str(answer).map_err(Failure::runtime)?;
    let text = |key: &str| answer[key].as_str().map(str::to_owned);
    let both = text("text").zip(text("loaded"));
    let (served, loaded) =
        both.ok_or_else(|| Failure::runtime("the server did not send its configuration"))?;
    let reload = if answer["undone_reload"] == true { Reload::Undone } else { Reload::Served };
    Ok(Wanted { file: text("file").map(PathBuf::from), text: served, loaded, reload })
}

/// Refuses to take lines out of the file that came into it by another hand, and that an undo took back unseen.
fn keep_what_others_brought(own: &Path, wanted: &Wanted) -> Result<(), Failure> {
    let diff = config::files::unified(&wanted.loaded, &wanted.text, "");
    let taken: Vec<_> =
        diff.lines().filter(|line| line.starts_with('-') && !line.starts_with("---")).collect();
    if wanted.reload == Reload::Served || taken.is_empty() {
        return Ok(());
    }
    let mut shown: Vec<_> =
        taken.iter().take(MOST_SHOWN).map(|line| format!("  {}\n", plain(line))).collect();
    if let Some(more) = taken.len().checked_sub(MOST_SHOWN).filter(|more| *more > 0) {
        shown.push(format!("  and {}\n", text::units::count(more, "more line")));
    }
    let lines = text::units::count(taken.len(), "line");
    Err(Failure::runtime(format_args!(
        "{} has {lines} that a reload brought, and that an undo took back: nothing is written\n{}  hint: penstock ctl \
         history names the undo, and penstock ctl undo N of it serves them again; --force takes them out of the file",
        plain(&own.display().to_string()),
        shown.concat()
    )))
}

/// Largest number of lines that a refusal shows.
const MOST_SHOWN: usize = 10;

fn same(given: &Path, own: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).ok();
    given == own || real(given).is_some_and(|given| real(own) == Some(given))
}

/// Writes each file of the server that has changes. Before the first one is replaced, all new ones are on the disk.
fn write_all(own: &Path, wanted: &Wanted, existing: Existing) -> Result<(), Failure> {
    let (loaded, served) = (config::files::split(&wanted.loaded), config::files::split(&wanted.text));
    let directory = own.parent().unwrap_or(Path::new(""));
    let path_of = |path: Option<&str>| path.map_or_else(|| own.to_owned(), |path| directory.join(path));
    if let Some(gone) = loaded.iter().find(|file| served.iter().all(|other| other.path != file.path)) {
        let shown = plain(&path_of(gone.path).display().to_string());
        return Err(Failure::runtime(format_args!(
            "{shown} is not part of what is served any more: nothing is written\n  hint: remove it, or what includes \
             it, then save again"
        )));
    }
    let mut replacements = Vec::new();
    for file in served {
        let loaded = loaded.iter().find(|other| other.path == file.path).map_or("", |file| file.text);
        if loaded == file.text && file.path.is_some() {
            continue;
        }
        let wanted = Wanted {
            file: None,
            text: file.text.to_owned(),
            loaded: loaded.to_owned(),
            reload: wanted.reload,
        };
        let path = path_of(file.path);
        if let Some(replacement) = replacement(&path, &wanted, existing)? {
            replacements.push((path, replacement));
        }
    }
    let mut written: Vec<(PathBuf, Option<Vec<u8>>)> = Vec::new();
    for (path, replacement) in replacements {
        let before = sys::file::read(&path, config::MAX_TEXT as u64 + 3).ok();
        if let Err(error) = replacement.take_place() {
            let left: Vec<_> = written
                .iter()
                .rev()
                .filter(|(path, before)| put_back(path, before.as_deref()).is_err())
                .collect();
            return Err(match &left[..] {
                [] => unwritable(&path, &error),
                left => Failure::runtime(format_args!(
                    "{} cannot be written: {error}\n  hint: {} has its new text already: mend the cause, and save again",
                    plain(&path.display().to_string()),
                    left.iter()
                        .map(|(path, _)| plain(&path.display().to_string()))
                        .collect::<Vec<_>>()
                        .join(" and ")
                )),
            });
        }
        written.push((path, before));
    }
    Ok(())
}

/// Gives a file that was replaced its old text again, since another one could not be replaced: together they are one
/// configuration, or none.
fn put_back(path: &Path, before: Option<&[u8]>) -> io::Result<()> {
    let before = before.ok_or(ErrorKind::NotFound)?;
    Replacement::make(path, before, None)?.take_place()
}

/// Reads a file of the server. `None` if it is to be made.
fn look_at(path: &Path, wanted: &Wanted, existing: Existing) -> Result<Option<Vec<u8>>, Failure> {
    let bytes = match sys::file::read(path, config::MAX_TEXT as u64 + 3) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound && existing == Existing::Replace => {
            return Ok(None);
        }
        Err(error) => {
            let shown = plain(&path.display().to_string());
            return Err(Failure::runtime(format_args!(
                "{shown} cannot be read: {error}\n  hint: it must be as the server read it; --force writes it anew"
            )));
        }
    };
    let text = bytes.strip_prefix(MARK).unwrap_or(&bytes);
    if text != wanted.text.as_bytes() && text != wanted.loaded.as_bytes() && existing == Existing::Refuse {
        let shown = plain(&path.display().to_string());
        return Err(Failure::runtime(format_args!(
            "{shown} was changed since the server read it: it is not written\n  hint: penstock ctl show prints what is \
             served; --force replaces the file"
        )));
    }
    Ok(Some(bytes))
}

/// Makes the new form of a file of the server, if the file is as the server read it. `None` if it has that form already.
fn replacement(path: &Path, wanted: &Wanted, existing: Existing) -> Result<Option<Replacement>, Failure> {
    let bytes = look_at(path, wanted, existing)?;
    let (mark, before) = match &bytes {
        None => (&b""[..], None),
        Some(bytes) => match bytes.strip_prefix(MARK) {
            Some(text) => (MARK, Some(text)),
            None => (&b""[..], Some(&bytes[..])),
        },
    };
    if before == Some(wanted.text.as_bytes()) {
        return Ok(None);
    }
    let new = [mark, wanted.text.as_bytes()].concat();
    Replacement::make(path, &new, before).map(Some).map_err(|error| unwritable(path, &error))
}

/// The byte order mark, which the server does not see.
const MARK: &[u8] = b"\xef\xbb\xbf";

fn write_other(path: &Path, text: &str, existing: Existing) -> Result<(), Failure> {
    if path.is_dir() {
        let shown = plain(&path.display().to_string());
        let hint = "name a file in it";
        return Err(Failure::usage(format_args!("{shown} is a directory\n  hint: {hint}")));
    }
    if existing == Existing::Refuse && fs::symlink_metadata(path).is_ok() {
        let shown = plain(&path.display().to_string());
        return Err(Failure::usage(format_args!("{shown} exists already\n  hint: --force replaces it")));
    }
    let written = Replacement::make(path, text.as_bytes(), None).and_then(Replacement::take_place);
    written.map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    let shown = plain(&path.display().to_string());
    let advice = if error.kind() == io::ErrorKind::PermissionDenied {
        "; the file is written with your rights, not the server's: root or its owner can save"
    } else {
        ""
    };
    Failure::runtime(format_args!("{shown} cannot be written: {error}\n  hint: nothing has changed{advice}"))
}

/// A new file beside the one that it is to replace. It is removed if an error comes first.
pub(in crate::cmd) struct Replacement {
    path: PathBuf,
    directory: PathBuf,
    beside: PathBuf,
    /// The text that is to be replaced and no other.
    before: Option<Vec<u8>>,
}

impl Replacement {
    /// Writes the new file. Owner and permissions are those of the old one; without one the mode is 0600.
    pub(in crate::cmd) fn make(path: &Path, bytes: &[u8], before: Option<&[u8]>) -> io::Result<Self> {
        // A link stays a link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let name = path.file_name().ok_or(ErrorKind::InvalidInput)?.to_string_lossy().into_owned();
        let beside = directory.join(format!(".{name}.{}.new", std::process::id()));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        let made = Self { path, directory, beside, before: before.map(<[u8]>::to_vec) };
        if let Ok(old) = fs::metadata(&made.path) {
            let new = file.metadata()?;
            if (old.uid(), old.gid()) != (new.uid(), new.gid()) {
                fchown(file.as_fd(), Some(Uid::from_raw(old.uid())), Some(Gid::from_raw(old.gid())))?;
            }
            file.set_permissions(fs::Permissions::from_mode(old.mode() & 0o7777))?;
        }
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(made)
    }

    /// The new file, before it takes its place.
    pub(in crate::cmd) fn beside(&self) -> &Path {
        &self.beside
    }

    /// Replaces the old file at once: at every moment it is whole.
    pub(in crate::cmd) fn take_place(self) -> io::Result<()> {
        if let Some(before) = &self.before {
            let now = sys::file::read(&self.path, (before.len() + MARK.len()) as u64)?;
            if now.strip_prefix(MARK).unwrap_or(&now) != before {
                return Err(io::Error::other(
                    "another process changed it just now: look at it, and save again",
                ));
            }
        }
        fs::rename(&self.beside, &self.path)?;
        File::open(&self.directory)?.sync_all()
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // Gone already, if it took its place. Otherwise the operator is told why the file was not saved; that matters more than
        // what is left of the new one.
        let _ = fs::remove_file(&self.beside);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, bytes: &[u8], before: Option<&[u8]>) -> io::Result<()> {
        Replacement::make(path, bytes, before)?.take_place()
    }

    #[test]
    fn a_file_is_replaced_with_its_mode_and_through_its_link() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("a.toml"), directory.path().join("link.toml"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("a.toml", &link).unwrap();
        write(&link, b"new", Some(b"old")).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(write(&file, b"newer", Some(b"old")).is_err(), "it is not what was to be replaced");
        assert_eq!(fs::read(&file).unwrap(), b"new");
        // One of several files that are saved together, while another one cannot be made.
        drop(Replacement::make(&file, b"newer", Some(b"new")).unwrap());
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "no file is left behind");
    }
}
