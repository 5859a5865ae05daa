//! Files that use each other in a circle are read together or not at all. A circle of two may stand between a module and its own
//! child; larger ones may not.

mod graph;

use std::path::{Path, PathBuf};

use graph::{Crate, Uses, circles};

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
fn no_files_use_each_other_in_a_circle_but_a_module_and_its_child() {
    let mut wrong = String::new();
    for directory in crates() {
        let uses = Crate::read(&directory.join("src")).uses();
        for circle in circles(&uses).iter().filter(|circle| !are_module_and_child(circle)) {
            wrong += &format!("\n{}:{}", directory.display(), words(&uses, circle));
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
