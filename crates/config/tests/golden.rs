//! Every class of fault has a file and the message that it gets, compared exactly. Lines `# env NAME=value` at the top
//! of a file are its environment. `UPDATE_GOLDEN=1` writes the messages anew: read them in the diff.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "this test reads and writes its files")]

use std::path::{Path, PathBuf};

use config::{Environment, Source, load};

#[test]
fn every_class_of_fault_has_its_message() {
    let mut cases = 0;
    let mut wrong = Vec::new();
    for path in cases_in(Path::new("tests/golden")) {
        cases += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        let actual = message(&text);
        let expected_path = path.with_extension("expected");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&expected_path, &actual).unwrap();
        }
        let expected = std::fs::read_to_string(&expected_path).unwrap_or_default();
        if actual != expected {
            wrong.push(format!("{}\n--- expected\n{expected}--- actual\n{actual}", path.display()));
        }
    }
    assert!(cases >= 60, "only {cases} cases");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn message(text: &str) -> String {
    let variables = text
        .lines()
        .filter_map(|line| line.strip_prefix("# env "))
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let env = Environment { variables, ..Environment::default() };
    let source = Source { name: "penstock.toml".into(), text: text.to_owned() };
    match load(&source, &env) {
        Ok(loaded) => loaded.warnings.render(),
        Err(faults) => faults.render(),
    }
}

fn cases_in(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut cases: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
    cases.sort();
    cases
}
