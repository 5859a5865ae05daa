//! Configurations of several files.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "these tests make the files that they load"
)]

use std::fs;
use std::path::Path;

use config::edit::{self, Edit};
use config::{Environment, Loaded, Source};
use tempfile::TempDir;

const LISTENER: &str = "[listener.web]\nbind = \":80\"\nprotocol = \"http\"\npool = \"app\"\n";
const POOL: &str = "[pool.app]\nbackends = [\"10.0.0.1:80\"]\n";

/// Files in a directory: the first one is loaded.
struct Files(TempDir);

impl Files {
    fn new(files: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(directory)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn source(&self) -> Source {
        let name = self.path("penstock.toml");
        Source { text: fs::read_to_string(&name).unwrap(), name }
    }

    fn load(&self) -> Loaded {
        config::load(&self.source(), &environment(&[])).unwrap_or_else(|faults| panic!("{faults}"))
    }

    /// The faults, with paths from the directory of the files.
    fn faults(&self) -> String {
        let faults = config::load(&self.source(), &environment(&[])).unwrap_err();
        faults.render().replace(&self.path(""), "")
    }
}

fn environment(variables: &[(&str, &str)]) -> Environment {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Environment {
        variables,
        read: |path, _| fs::read(path),
        list: |path| {
            let entries = fs::read_dir(path)?;
            Ok(entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect())
        },
    }
}

#[test]
fn sections_of_all_files_add_up_in_the_order_of_their_names() {
    let files = Files::new(&[
        (
            "penstock.toml",
            &format!("include = [\"conf.d/*.toml\", \"more.toml\"]\n[process]\nworkers = 2\n{LISTENER}"),
        ),
        ("conf.d/20-shop.toml", "[pool.shop]\nbackends = [\"10.0.0.2:80\"]\n"),
        (
            "conf.d/10-app.toml",
            "\u{feff}[pool.app]\nbackends = [\"10.0.0.1:80\"]\n[process]\ndrain-timeout = \"5s\"",
        ),
        ("conf.d/.hidden.toml", "not TOML"),
        ("conf.d/old.toml~", "not TOML"),
        (
            "more.toml",
            "include = \"deep/a.toml\"\n[listener.more]\nbind = \":81\"\nprotocol = \"http\"\npool = \"shop\"\n",
        ),
        ("deep/a.toml", "include = \"b.toml\""),
        ("deep/b.toml", "[listener.deep]\nbind = \":82\"\nprotocol = \"http\"\npool = \"shop\"\n"),
    ]);
    let loaded = files.load();
    let pools: Vec<_> = loaded.config.pools.iter().map(|pool| pool.name.to_string()).collect();
    assert_eq!(pools, ["app", "shop"]);
    assert_eq!(loaded.config.listeners.len(), 3);
    assert_eq!(loaded.config.process.drain_timeout.as_secs(), 5);
    let wanted = ["conf.d", "more.toml", "deep/a.toml", "deep/b.toml"].map(|path| files.0.path().join(path));
    assert_eq!(loaded.config.included, wanted);
    let print = loaded.print();
    assert!(print.contains("workers = 2  # line 3\n"), "{print}");
    let from = format!("drain-timeout = \"5s\"  # {} line 4\n", files.path("conf.d/10-app.toml"));
    assert!(print.contains(&from), "{print}");
    // The joined text is the same configuration, without a file.
    let source = Source { name: files.path("penstock.toml"), text: loaded.text().to_owned() };
    let again = config::load_joined(&source, &Environment::default()).unwrap();
    assert_eq!((again.print(), again.text()), (print, loaded.text()));
    assert_eq!(config::join(&files.source(), &environment(&[])).unwrap(), loaded.text());
}

#[test]
fn every_fault_has_the_place_in_its_own_file() {
    let files = Files::new(&[
        ("penstock.toml", &format!("include = \"conf.d/*\"\n{LISTENER}balanec = 1\n")),
        ("conf.d/a.toml", "\n[pool.app]\nbackends = [\"10.0.0.1:80\"]\n  retries = \"x\"\n"),
        ("conf.d/b.toml", "# b\n[pool.shop]\nbackends = [\"\u{e4}\", \"10.0.0.1\"]\n"),
    ]);
    let faults = files.faults();
    for place in [
        "penstock.toml:6:1: listener.web.balanec: ",
        "conf.d/a.toml:4:13: pool.app.retries: ",
        "conf.d/b.toml:3:18: ",
    ] {
        assert!(faults.contains(&format!("error: {place}")), "{place}\n{faults}");
    }
    assert!(faults.contains("  4 |   retries = \"x\"\n    |             ^^^\n"), "{faults}");
    let json = config::load(&files.source(), &environment(&[])).unwrap_err().to_json();
    let fault = json["faults"].as_array().unwrap().iter().find(|fault| fault["path"] == "pool.app.retries");
    let fault = fault.unwrap();
    assert_eq!(fault["file"], files.path("conf.d/a.toml"));
    assert_eq!((&fault["line"], &fault["start"]), (&4.into(), &51.into()), "{fault}");
    // Syntax faults of several files are said at once.
    let files = Files::new(&[
        ("penstock.toml", &format!("include = \"conf.d/*\"\n{LISTENER}{POOL}")),
        ("conf.d/a.toml", "[pool.x]\nbackends = [\n"),
        ("conf.d/b.toml", "[pool.y]\n[pool.z]\n\n[pool.y]\n"),
    ]);
    let faults = files.faults();
    assert!(faults.contains("error: conf.d/a.toml:"), "{faults}");
    assert!(faults.contains("error: conf.d/b.toml:4:"), "{faults}");
    assert!(faults.contains("the first one is in line 1: keep one of them"), "{faults}");
}

#[test]
fn a_name_in_two_files_is_an_error_that_names_both() {
    let files = Files::new(&[
        ("penstock.toml", &format!("include = \"conf.d/*\"\n{LISTENER}\n{POOL}[process]\nworkers = 1\n")),
        ("conf.d/a.toml", "#\n[pool.app]\nbackends = [\"10.0.0.1:80\"]\n"),
        ("conf.d/b.toml", "process = { workers = 2 }\n"),
    ]);
    assert_eq!(
        files.faults(),
        "error: conf.d/a.toml:2:7: pool.app: pool.app is in two files\n  2 | [pool.app]\n    |       ^^^\n  \
         hint: the other one is (penstock.toml line 7): keep one of them\n\
         error: conf.d/b.toml:1:13: process.workers: process.workers is in two files\n  \
         1 | process = { workers = 2 }\n    |             ^^^^^^^\n  \
         hint: the other one is (penstock.toml line 10): keep one of them\n2 errors\n"
    );
}

#[test]
fn circles_and_files_that_are_missing_or_named_twice_are_errors() {
    let base = format!("{LISTENER}{POOL}");
    for (include, more, said) in [
        ("\"none.toml\"", "", "penstock.toml:1:11: include: \"none.toml\" cannot be read: "),
        ("\"conf.d/*.none\"", "", ""),
        ("\"none.d/*.toml\"", "", ""),
        ("[\"conf.d/a.toml\", \"conf.d/*.toml\"]", "", "the first time is (penstock.toml line 1): keep one"),
        ("\"./penstock.toml\"", "", "\"penstock.toml\" would include itself again"),
        (
            "\"conf.d/a.toml\"",
            "include = \"../conf.d/./a.toml\"",
            "conf.d/a.toml:1:11: include: \"conf.d/../conf.d/a.toml\" would include itself",
        ),
        ("\"conf.d/a.toml\"", "include = \"a.toml\"", "\"conf.d/a.toml\" would include itself again"),
        ("\"conf.d/\"", "", "is a directory, not a file"),
        ("\"*/a.toml\"", "", "has a wildcard in a directory"),
        ("3", "", "a path or a list of paths is expected here"),
        ("[\"a\", true]", "", "penstock.toml:1:17: include[2]: a path or a list"),
        ("\"${NONE}\"", "", "the environment variable NONE is not set"),
        (
            "\"conf.d/a.toml\"",
            "\n#>>> file x\n",
            "conf.d/a.toml:2:1: a line may not begin with \"#>>> file\"",
        ),
    ] {
        let text = format!("include = {include}\n{base}");
        let files = Files::new(&[("penstock.toml", &text), ("conf.d/a.toml", more)]);
        match said {
            "" => drop(files.load()),
            said => {
                let faults = files.faults();
                assert!(faults.contains(said), "{include} {more}\n{faults}");
            }
        }
    }
    let files = Files::new(&[
        ("penstock.toml", &format!("include = \"${{SITE}}.toml\"\n{LISTENER}")),
        ("a.toml", POOL),
    ]);
    config::load(&files.source(), &environment(&[("SITE", "a")])).unwrap();
    let faults = config::load(&files.source(), &environment(&[("SITE", "a"), ("PENSTOCK_INCLUDE", "b")]));
    assert!(faults.unwrap_err().render().contains("environment PENSTOCK_INCLUDE: "));
}

#[test]
fn files_in_a_row_and_their_size_have_limits() {
    let names: Vec<_> = (0..8).map(|n| format!("f{n}.toml")).collect();
    let texts: Vec<_> = (0..8).map(|n| format!("include = \"f{}.toml\"\n", n + 1)).collect();
    let main = format!("include = \"f0.toml\"\n{LISTENER}{POOL}");
    let chain = names.iter().zip(&texts).map(|(name, text)| (name.as_str(), text.as_str()));
    let files: Vec<_> = std::iter::once(("penstock.toml", main.as_str())).chain(chain).collect();
    let faults = Files::new(&files).faults();
    assert!(
        faults.contains("f3.toml:1:11: include: \"f4.toml\" is included by the 4th file in a row"),
        "{faults}"
    );
    let long = format!("#{}", "x".repeat(config::MAX_TEXT - 20));
    let faults = Files::new(&[("penstock.toml", &main), ("f0.toml", &long)]).faults();
    assert!(faults.contains("makes the configuration longer than 4 MiB"), "{faults}");
}

#[test]
fn a_change_goes_into_the_file_that_has_the_key() {
    let files = Files::new(&[
        ("penstock.toml", &format!("include = \"conf.d/*\"\n{LISTENER}")),
        ("conf.d/a.toml", "# a\r\n[pool.app] # here\r\nbackends = [\"10.0.0.1:80\"]\r\n"),
        ("conf.d/b.toml", "[process]\nworkers = 2"),
    ]);
    let text = files.load().text().to_owned();
    let path = |path: &str| edit::Path::parse(path).unwrap();
    let set = |at: &str, value: &str| {
        let edit = Edit::Set { path: path(at), value: value.to_owned() };
        let changed = edit::apply(&text, &edit).unwrap();
        let parts = config::files::split(&changed);
        let before = config::files::split(&text);
        let paths: Vec<_> = parts.iter().zip(before).filter(|(a, b)| *a != b).map(|(a, _)| a.path).collect();
        assert_eq!(paths.len(), 1, "{changed}");
        (paths[0].map(str::to_owned), changed)
    };
    let (file, changed) = set("pool.app.retries", "1");
    assert_eq!(file.as_deref(), Some("conf.d/a.toml"));
    assert!(changed.contains("# here\r\nbackends = [\"10.0.0.1:80\"]\r\nretries = 1\r\n"), "{changed}");
    assert_eq!(set("process.drain-timeout", "5s").0.as_deref(), Some("conf.d/b.toml"));
    assert_eq!(set("pool.new.backends", "[\"10.0.0.3:80\"]").0, None);
    assert_eq!(set("listener.web.pool", "new").0, None);
    let refused =
        |at: &str| edit::apply(&text, &Edit::Set { path: path(at), value: "1".into() }).unwrap_err();
    assert!(refused("include").to_string().contains("is not changed live"));
    let (_, two) = set("pool.new.backends", "[\"10.0.0.3:80\"]");
    let error = edit::apply(&two, &Edit::Remove { path: path("pool") }).unwrap_err();
    assert!(error.to_string().contains("is in several files: the first file, conf.d/a.toml"), "{error}");
}

#[test]
fn the_control_socket_may_be_in_an_included_file() {
    let files = Files::new(&[
        ("penstock.toml", &format!("include = \"conf.d/*\"\n{LISTENER}{POOL}")),
        ("conf.d/a.toml", "[control]\nsocket = \"/run/x.sock\"\n"),
    ]);
    let socket = config::control_socket(&files.source(), &environment(&[])).unwrap();
    assert_eq!(socket.as_deref(), Some(Path::new("/run/x.sock")));
}
