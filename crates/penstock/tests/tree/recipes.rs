//! The recipes of `CONTRIBUTING.md`: steps that the compiler cannot see.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// All Rust sources below a directory, tests left out.
fn sources(directory: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.push((path, text));
        }
    }
    found
}

/// The fields of every public struct and of every variant of an enum.
fn fields(file: &syn::File) -> BTreeSet<String> {
    let names = |fields: &syn::Fields| {
        fields.iter().filter_map(|field| Some(field.ident.as_ref()?.to_string())).collect::<Vec<_>>()
    };
    let of_item = |item: &syn::Item| match item {
        syn::Item::Struct(item) => names(&item.fields),
        syn::Item::Enum(item) => item.variants.iter().flat_map(|variant| names(&variant.fields)).collect(),
        _ => Vec::new(),
    };
    file.items.iter().flat_map(of_item).collect()
}

fn has_word(text: &str, word: &str) -> bool {
    let is_part = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    text.match_indices(word).any(|(at, _)| {
        let bytes = text.as_bytes();
        !is_part(at.checked_sub(1).and_then(|before| bytes.get(before)))
            && !is_part(bytes.get(at + word.len()))
    })
}

#[test]
fn every_value_of_the_configuration_is_read_outside_of_the_crate_that_parses_it() {
    let own = fs::read_to_string(crates().join("config/src/types.rs")).unwrap();
    let children = sources(&crates().join("config/src/types")).into_iter().map(|(_, text)| text);
    let fields: BTreeSet<_> =
        [own].into_iter().chain(children).flat_map(|text| fields(&syn::parse_file(&text).unwrap())).collect();
    assert!(fields.len() > 60, "{fields:?}");
    let readers = ["fleet", "penstock", "proxy", "serve", "state", "tls", "logic", "hosts"];
    let texts: Vec<_> = readers.iter().flat_map(|name| sources(&crates().join(name).join("src"))).collect();
    let unread: Vec<_> =
        fields.iter().filter(|field| !texts.iter().any(|(_, text)| has_word(text, field))).collect();
    assert!(unread.is_empty(), "keys that nothing acts on: {unread:?}");
}

#[test]
fn every_scenario_that_is_written_is_offered_has_a_quick_group_and_is_run_by_a_test() {
    let written: usize = sources(&crates().join("bench/src"))
        .iter()
        .map(|(_, text)| text.matches("\nimpl Scenario for").count())
        .sum();
    let list = std::process::Command::new(testing::binary()).args(["bench", "--list"]).output();
    let list = String::from_utf8(list.unwrap().stdout).unwrap();
    let names: Vec<_> =
        list.lines().filter(|line| line.ends_with('?')).map(|line| line.split_once(' ').unwrap().0).collect();
    let unique: BTreeSet<_> = names.iter().collect();
    assert_eq!((unique.len(), names.len()), (written, written), "`all` of bench/src/scenario.rs: {names:?}");
    let tests = sources(&crates().join("penstock/tests"));
    for name in names {
        assert!(list.contains(&format!("\n  * {name}/")), "no group of {name} belongs to --quick");
        let runs = |text: &str| text.contains(&format!("\"{name}/")) || text.contains(&format!("\"{name}\""));
        assert!(tests.iter().any(|(_, text)| runs(text)), "no test runs a group of {name}");
    }
}
