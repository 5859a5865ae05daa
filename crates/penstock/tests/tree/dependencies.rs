//! Each dependency of a manifest is named by the sources that may use it.

use std::fs;
use std::path::{Path, PathBuf};

/// Dependencies that no source names, with the reason.
const UNNAMED: [(&str, &str); 1] = [("pam", "tests load the module into programs of others")];

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => rust_files(&path),
            false if path.extension().is_some_and(|ending| ending == "rs") => vec![path],
            false => Vec::new(),
        })
        .collect()
}

/// Whether a line of code names the crate: `name::`, `use name;` or `name!`.
fn names(text: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.lines().filter(|line| !line.trim_start().starts_with("//")).any(|line| {
        line.match_indices(name).any(|(at, _)| {
            let rest = &line[at + name.len()..];
            !line[..at].ends_with(is_word)
                && (rest.starts_with("::") || rest.starts_with(';') || rest.starts_with(" as "))
        })
    })
}

#[test]
fn every_dependency_is_used() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut unused = Vec::new();
    for entry in fs::read_dir(crates).unwrap() {
        let home = entry.unwrap().path();
        let manifest = fs::read_to_string(home.join("Cargo.toml")).unwrap();
        for (section, places) in [
            ("[dependencies]", &["src"][..]),
            ("[dev-dependencies]", &["src", "tests", "examples"]),
            ("[build-dependencies]", &["build.rs"]),
        ] {
            let Some((_, table)) = manifest.split_once(&format!("{section}\n")) else { continue };
            let table = table.split("\n[").next().unwrap();
            let files: Vec<_> = places.iter().flat_map(|place| rust_files(&home.join(place))).collect();
            let texts: Vec<_> = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
            for name in table.lines().filter_map(|line| line.split(['.', ' ', '=', '#']).next()) {
                let is_used = texts.iter().any(|text| names(text, &name.replace('-', "_")));
                if !name.is_empty() && !is_used && !UNNAMED.iter().any(|(known, _)| *known == name) {
                    unused.push(format!("{}: {section} {name}", home.file_name().unwrap().display()));
                }
            }
        }
    }
    assert!(unused.is_empty(), "no source names these dependencies: {unused:#?}");
}
