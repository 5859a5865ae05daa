//! Finds by file names which files of a certificate directory belong together.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// NAME of the files with the default certificate, unless the configuration names another one.
pub(super) const DEFAULT_NAME: &str = "default";

/// Files that together should hold a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) name: String,
    /// File with the leaf and usually the chain. Identifies the candidate.
    pub(super) certificate: PathBuf,
    /// File with the key. Equal to `certificate` if one file holds both.
    pub(super) key: PathBuf,
    pub(super) chain: Option<PathBuf>,
    pub(super) staple: Option<PathBuf>,
    pub(super) passphrase: Option<PathBuf>,
}

impl Candidate {
    /// Returns all files of the candidate, certificate and key first.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        let optional = [&self.chain, &self.staple, &self.passphrase];
        let key = (self.key != self.certificate).then_some(&self.key);
        [&self.certificate].into_iter().chain(key).chain(optional.into_iter().flatten()).map(PathBuf::as_path)
    }
}

#[derive(Debug, Default)]
pub(super) struct Layout {
    pub(super) candidates: Vec<Candidate>,
    /// Directories that must be watched for changes.
    pub(super) directories: BTreeSet<PathBuf>,
}

/// Reads the file names in a directory. The error names the directory that cannot be read.
pub(super) fn find(directory: &Path) -> Result<Layout, (PathBuf, io::Error)> {
    let mut layout = Layout::default();
    layout.directories.insert(directory.to_owned());
    let live = directory.join("live");
    let certbot = live.is_dir() && ["archive", "renewal"].iter().any(|name| directory.join(name).is_dir());
    let base = if certbot { &live } else { directory };
    layout.directories.insert(base.to_owned());
    let entries = fs::read_dir(base).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.map_err(|error| (base.to_owned(), error))?;
    let mut stems: BTreeMap<OsString, Endings> = BTreeMap::new();
    let mut below = BTreeSet::new();
    for entry in entries {
        let (name, path) = (entry.file_name(), entry.path());
        if name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let Ok(kind) = entry.file_type() else { continue };
        let is_link = kind.is_symlink();
        if kind.is_dir() || is_link && path.is_dir() {
            below.insert(name);
            continue;
        }
        let as_path = Path::new(&name);
        let Some(ending) = as_path.extension().and_then(|ending| ending.to_str()) else { continue };
        if let (Some(stem), Some(at)) =
            (as_path.file_stem(), ENDINGS.iter().position(|known| *known == ending))
        {
            stems.entry(stem.to_owned()).or_default()[at] = true;
            if is_link {
                layout.directories.extend(target_directory(&path));
            }
        }
    }
    let has = |stem: &OsString, ending: &str| {
        let at = ENDINGS.iter().position(|known| *known == ending);
        stems.get(stem).zip(at).is_some_and(|(endings, at)| endings[at])
    };
    let beside = |stem: &OsString, ending: &str| has(stem, ending).then(|| file(base, stem, ending));
    let candidate = |stem: &OsString, certificate: PathBuf, key: PathBuf| Candidate {
        name: stem.to_string_lossy().into_owned(),
        certificate,
        key,
        chain: beside(stem, "ca"),
        staple: beside(stem, "ocsp"),
        passphrase: beside(stem, "pass"),
    };
    for name in below {
        let path = base.join(&name);
        let (chain, key) = (path.join(FULL_CHAIN), path.join(PRIVATE_KEY));
        let links = [&chain, &key].map(|file| file.symlink_metadata().map(|it| it.is_symlink()).ok());
        if links == [None, None] {
            continue;
        }
        for file in [&chain, &key].into_iter().zip(links).filter(|(_, link)| *link == Some(true)) {
            layout.directories.extend(target_directory(file.0));
        }
        layout.directories.insert(path);
        layout.candidates.push(candidate(&name, chain, key));
    }
    let of_certbot = |name: &str| has(&OsString::from(name), "pem");
    if of_certbot("fullchain") && of_certbot("privkey") {
        // The directory is one of certbot's own: cert.pem and chain.pem repeat what fullchain.pem holds.
        let name = base.file_name().map(OsString::from).unwrap_or_default();
        layout.candidates.push(candidate(&name, base.join(FULL_CHAIN), base.join(PRIVATE_KEY)));
        return Ok(layout);
    }
    for stem in stems.keys() {
        let (crt, pem, key) = (has(stem, "crt"), has(stem, "pem"), has(stem, "key"));
        // lego writes NAME.issuer.crt beside NAME.crt, which already holds the issuer.
        let is_issuer = stem.as_encoded_bytes().ends_with(b".issuer") && !key;
        if (crt || key && !pem) && !is_issuer {
            layout.candidates.push(candidate(stem, file(base, stem, "crt"), file(base, stem, "key")));
        }
        if pem {
            let combined = file(base, stem, "pem");
            let key = if key && !crt { file(base, stem, "key") } else { combined.clone() };
            layout.candidates.push(candidate(stem, combined, key));
        }
    }
    Ok(layout)
}

const FULL_CHAIN: &str = "fullchain.pem";
const PRIVATE_KEY: &str = "privkey.pem";

/// For each known file extension: true if a file NAME with the extension exists.
type Endings = [bool; ENDINGS.len()];

const ENDINGS: [&str; 6] = ["crt", "key", "pem", "ca", "ocsp", "pass"];

fn file(base: &Path, stem: &OsString, ending: &str) -> PathBuf {
    let mut name = stem.clone();
    name.push(".");
    name.push(ending);
    base.join(name)
}

/// Returns the directory of the file that a symbolic link points to.
fn target_directory(link: &Path) -> Option<PathBuf> {
    fs::canonicalize(link).ok()?.parent().map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(files: &[&str]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for name in files {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        directory
    }

    /// Returns the paths of certificate and key of each candidate, relative to the directory.
    fn found(base: &Path) -> Vec<(String, String)> {
        let short = |path: &Path| path.strip_prefix(base).unwrap().to_str().unwrap().to_owned();
        let layout = find(base).unwrap();
        layout.candidates.iter().map(|it| (short(&it.certificate), short(&it.key))).collect()
    }

    #[test]
    fn files_belong_together_by_their_names() {
        let directory = make(&[
            "a.example.crt",
            "a.example.key",
            "a.example.ca",
            "a.example.ocsp",
            "b.pem",
            "c.pem",
            "c.key",
            "lone.key",
            "only.crt",
            "x.issuer.crt",
            "notes.txt",
            ".hidden.pem",
            "d.pass",
        ]);
        let pairs = [
            ("a.example.crt", "a.example.key"),
            ("b.pem", "b.pem"),
            ("c.pem", "c.key"),
            ("lone.crt", "lone.key"),
            ("only.crt", "only.key"),
        ];
        let pairs = pairs.map(|(certificate, key)| (certificate.to_owned(), key.to_owned()));
        assert_eq!(found(directory.path()), pairs);
        let layout = find(directory.path()).unwrap();
        assert_eq!(layout.candidates[0].files().count(), 4);
        assert_eq!(layout.candidates[0].name, "a.example");
    }

    #[test]
    fn certbots_directories_are_known_from_above_and_from_inside() {
        let directory = make(&[
            "live/README",
            "live/a.example/fullchain.pem",
            "live/a.example/privkey.pem",
            "live/a.example/cert.pem",
            "live/a.example/chain.pem",
            "archive/a.example/cert1.pem",
            "renewal/a.example.conf",
        ]);
        let base = directory.path();
        let pair = |at: &str| vec![(format!("{at}fullchain.pem"), format!("{at}privkey.pem"))];
        assert_eq!(found(base), pair("live/a.example/"));
        assert_eq!(found(&base.join("live")), pair("a.example/"));
        assert_eq!(found(&base.join("live/a.example")), pair(""));
    }
}
