//! Files that use each other in a circle are read together or not at all. A circle of two may stand between a module and its own
//! child; larger ones may not, and those that are left are counted here until they have come apart.
#![allow(clippy::unwrap_used)]

#[path = "imports/graph.rs"]
mod graph;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use graph::{Crate, Uses, circles};

/// Files in circles that should not be, by crate. A number may only become smaller.
const TANGLED: &[(&str, usize)] = &[
    ("bench", 30),
    ("config", 17),
    ("fleet", 22),
    ("grade", 4),
    ("logic", 20),
    ("penstock", 15),
    ("ssh", 24),
];

fn crates() -> Vec<PathBuf> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().read_dir().unwrap();
    let mut all: Vec<_> = all.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect();
    all.sort();
    all
}

/// Whether two files are those of a module and of a module in it.
fn are_module_and_child(circle: &[PathBuf]) -> bool {
    let [one, other] = circle else { return false };
    let directory = |file: &Path| match file.file_name().unwrap().to_str().unwrap() {
        "lib.rs" | "main.rs" | "mod.rs" => file.parent().unwrap().to_owned(),
        _ => file.with_extension(""),
    };
    other.parent() == Some(&directory(one)) || one.parent() == Some(&directory(other))
}

fn words(uses: &Uses, circle: &[PathBuf]) -> String {
    let inside = |(from, to): &(PathBuf, PathBuf)| circle.contains(from) && circle.contains(to);
    let lines = uses.iter().filter(|(arrow, _)| inside(arrow));
    lines
        .map(|((from, to), what)| format!("\n    {} -> {}: {what:?}", from.display(), to.display()))
        .collect()
}

#[test]
fn no_more_files_use_each_other_in_circles() {
    let tangled: BTreeMap<_, _> = TANGLED.iter().copied().collect();
    let mut wrong = String::new();
    for directory in crates() {
        let name = directory.file_name().unwrap().to_str().unwrap().to_owned();
        let uses = Crate::read(&directory.join("src")).uses();
        let found: Vec<_> =
            circles(&uses).into_iter().filter(|circle| !are_module_and_child(circle)).collect();
        let (count, known): (usize, _) =
            (found.iter().map(Vec::len).sum(), tangled.get(&*name).copied().unwrap_or(0));
        if count > known {
            let told: Vec<_> = found.iter().map(|circle| words(&uses, circle)).collect();
            wrong += &format!("\n{name}: {count} files in circles, {known} are known:{}", told.join("\n"));
        } else if count < known {
            wrong += &format!(
                "\n{name}: only {count} files are in circles now: write that into TANGLED, not {known}"
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn a_circle_is_found_through_re_exports_and_modules_and_not_through_tests() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("lib.rs", "mod a;\nmod b;\nmod c;\n");
    write("a.rs", "use crate::b;\npub struct A;\nfn f() { b::inner::g(); }\n");
    write("b.rs", "pub mod inner;\npub use inner::B;\n#[cfg(test)]\nmod tests { use crate::c::C; }\n");
    write("b/inner.rs", "pub struct B(crate::c::C);\npub fn g() {}\n");
    write("c.rs", "pub struct C;\nfn h() { println!(\"{:?}\", size(crate::a::A)); }\nfn size<T>(_: T) {}\n");
    let uses = Crate::read(directory.path()).uses();
    let circle: Vec<_> = ["a.rs", "b/inner.rs", "c.rs"].iter().map(PathBuf::from).collect();
    assert_eq!(circles(&uses), [circle], "{uses:?}");
}
