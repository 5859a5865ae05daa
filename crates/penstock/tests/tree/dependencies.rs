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

/// Names of a section of a manifest, with what stands behind each.
fn entries<'a>(manifest: &'a str, section: &str) -> Vec<(&'a str, &'a str)> {
    let Some((_, table)) = manifest.split_once(&format!("{section}\n")) else { return Vec::new() };
    let lines = table.split("\n[").next().unwrap().lines();
    lines
        .filter_map(|line| line.split_at_checked(line.find(['.', ' ', '=', '#'])?))
        .filter(|(name, _)| !name.is_empty())
        .collect()
}

fn crates() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// `fuzz/` is no part of the workspace: nothing else builds with its lock file.
#[test]
fn the_lock_file_of_the_fuzz_targets_has_what_our_crates_depend_on() {
    let lock = fs::read_to_string(crates().join("../fuzz/Cargo.lock")).unwrap();
    let packages: Vec<&str> = lock.split("[[package]]").skip(1).collect();
    let ours: Vec<&&str> = packages.iter().filter(|package| !package.contains("\nsource = ")).collect();
    let mut missing = Vec::new();
    for package in ours {
        let name = package.split('"').nth(1).unwrap();
        let Ok(manifest) = fs::read_to_string(crates().join(name).join("Cargo.toml")) else { continue };
        for (dependency, rest) in entries(&manifest, "[dependencies]") {
            let is_there = package.contains(&format!("\n \"{dependency}\""))
                || package.contains(&format!("\n \"{dependency} "));
            if !is_there && !rest.contains("optional = true") {
                missing.push(format!("{name}: {dependency}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?} (cargo +nightly metadata in fuzz/ writes it anew)");
    assert!(packages.len() > 50);
}

#[test]
fn every_dependency_is_used() {
    let crates = crates();
    let mut unused = Vec::new();
    for entry in fs::read_dir(crates).unwrap() {
        let home = entry.unwrap().path();
        let manifest = fs::read_to_string(home.join("Cargo.toml")).unwrap();
        for (section, places) in [
            ("[dependencies]", &["src"][..]),
            ("[dev-dependencies]", &["src", "tests", "examples"]),
            ("[build-dependencies]", &["build.rs"]),
        ] {
            let files: Vec<_> = places.iter().flat_map(|place| rust_files(&home.join(place))).collect();
            let texts: Vec<_> = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
            for (name, _) in entries(&manifest, section) {
                let is_used = texts.iter().any(|text| names(text, &name.replace('-', "_")));
                if !is_used && !UNNAMED.iter().any(|(known, _)| *known == name) {
                    unused.push(format!("{}: {section} {name}", home.file_name().unwrap().display()));
                }
            }
        }
    }
    assert!(unused.is_empty(), "no source names these dependencies: {unused:#?}");
}
