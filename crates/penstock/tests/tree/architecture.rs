//! The claims of the documents about the tree: what they name exists, and files stay small.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Files below a directory with one of these endings; build products and hidden directories left out.
fn files(dir: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                found.extend(files(&path, endings));
            }
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(path);
        }
    }
    found
}

fn is_of_tests(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs") || path.contains("crates/testing/")
}

/// Words in backticks that look like paths of this repository.
fn named_paths(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for (at, word) in line.split('`').enumerate() {
            let ours = ["crates/", "setup/", "bench/", "packaging/", "docs/", ".ci/"]
                .iter()
                .any(|start| word.starts_with(start));
            let file = [".rs", ".md", ".toml", ".sh", ".py", ".json", ".service"]
                .iter()
                .any(|end| word.ends_with(end));
            let plain =
                !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
            let system = word.starts_with('/') || word.starts_with('.') && !word.starts_with(".ci/");
            if at % 2 == 1 && plain && !system && (ours || file) {
                found.push(word.to_owned());
            }
        }
    }
    found
}

#[test]
fn every_path_that_the_documents_name_exists() {
    let root = root();
    let mut missing = Vec::new();
    let sources = files(&root.join("crates"), &[".rs", ".sh"]);
    let mut documents = Vec::new();
    let own = ["ARCHITECTURE.md", "README.md", "CONTRIBUTING.md"].map(|name| root.join(name));
    for document in own.into_iter().chain(files(&root.join("docs"), &[".md"])) {
        documents.push((document.display().to_string(), fs::read_to_string(&document).unwrap()));
    }
    // The heads of modules tell what the documents leave out.
    for source in sources.iter().filter(|source| source.extension().is_some_and(|end| end == "rs")) {
        let text = fs::read_to_string(source).unwrap();
        let head: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("//!")).collect();
        documents.push((source.display().to_string(), head.join("\n")));
    }
    let mut seen = 0;
    for (document, text) in &documents {
        for word in named_paths(text) {
            seen += 1;
            // A whole path; the end of one (`serve/src/health.rs`, `health.rs`) where the text gives the place; or a crate and a
            // file of its sources (`logic/health.rs`).
            let whole = root.join(&word).exists() || root.join("crates").join(&word).exists();
            let in_crate = word.split_once('/').map(|(name, file)| Path::new(name).join("src").join(file));
            let ends = [Some(PathBuf::from(&word)), in_crate];
            let is_end = |source: &PathBuf| ends.iter().flatten().any(|end| source.ends_with(end));
            if !whole && !sources.iter().any(is_end) {
                missing.push(format!("{document}: {word}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(seen > 30, "the documents name {seen} paths: is the way they write them still understood?");
}

#[test]
fn no_source_file_has_more_than_800_lines() {
    let mut long = Vec::new();
    for file in files(&root().join("crates"), &[".rs"]) {
        let path = file.to_string_lossy().into_owned();
        if is_of_tests(&path) {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let lines = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).count();
        if lines > 800 {
            long.push(format!("{path}: {lines}"));
        }
    }
    assert!(long.is_empty(), "{long:#?}");
}

/// Where a signal may be sent to another process, or the word for it stands in a text: file, what the line holds, and why. What is
/// proved before a signal of ours is in the first two; docs/security.md tells it.
const SIGNALS: [(&str, &str, &str); 44] = [
    ("crates/sys/src/sandbox/calls.rs", "SYS_t", "names system calls and makes none"),
    ("crates/sys/src/process.rs", "", "the one place: it proves what it signals"),
    ("crates/hosts/src/fleet/watcher/proof.sh", "", "the one place on hosts: it proves what it signals"),
    (
        "crates/ssh/src/keys/ask.rs",
        "raise(Signal::SIGINT)",
        "to this process, which the person at the terminal interrupts",
    ),
    ("crates/ssh/src/keys/ask.rs", "use nix::sys::signal::{Signal, raise};", "the same"),
    (
        "crates/lab/src/program.rs",
        "kill-self",
        "a host of the lab runs its commands in this process, and signals none",
    ),
    ("crates/fleet/src/tunnel/control.rs", "(is it suspended? kill -CONT {process})", "a person is told it"),
    (
        "crates/fleet/src/tunnel/control.rs",
        "`kill {process}` ends it",
        "a person is told it, of the holder of a lock",
    ),
    ("bench/control_latency.py", "self.process.send_signal(signal.SIGKILL)", OF_POPEN),
    (
        "bench/verify_load.py",
        "pidfd_send_signal(",
        "by a descriptor, which was opened when the process was found",
    ),
    ("crates/penstock/src/cmd/copy.rs", "(kill -9, power)", "a person is told it"),
    (
        "crates/penstock/src/cmd/demo.rs",
        "--kill-one",
        "an option: a backend of the demo is a task of this process",
    ),
    ("Makefile", "--kill-one", "the same"),
    ("packaging/penstock.service", "ExecReload=/bin/kill -HUP $MAINPID", "systemd knows the main process"),
    (
        "packaging/test.sh",
        "kill -KILL ${leader:+\"$leader\"} \"$container\"",
        "a child that it has not waited for, and that child's process 1",
    ),
    ("packaging/test.sh", "ok pkill --exact penstock", "in the container, which has its own numbers"),
    ("packaging/test.sh", "ok systemctl kill --kill-whom=main", "systemd knows the main process of its unit"),
    ("bench/pins.py", "maker.terminate()", OF_POPEN),
    ("bench/otp_rate.py", "server.send_signal(signal.SIGKILL)", OF_POPEN),
    ("bench/otp_rate.py", "server.terminate()", OF_POPEN),
    ("bench/front_door.py", "process.terminate()", OF_POPEN),
    ("bench/front_door.py", "process.kill()", OF_POPEN),
    ("bench/control_load.py", "process.kill()", OF_POPEN),
    ("bench/control_guesses.py", "process.kill()", OF_POPEN),
    ("bench/control_guesses.py", "process.terminate()", OF_POPEN),
    ("bench/flood_latency.py", "process.kill()", OF_POPEN),
    ("bench/timed_client.py", "process.send_signal(signal.SIGTERM)", OF_POPEN),
    ("bench/verify_load.py", "process.kill()", OF_POPEN),
    ("bench/verify_load.py", "self._process.terminate()", OF_POPEN),
    ("bench/fleet_edges.py", "process.terminate()", OF_POPEN),
    ("bench/renewal_handshakes.py", "server.send_signal(signal.SIGTERM)", OF_POPEN),
    ("bench/with_docker.py", "process.terminate()", OF_POPEN),
    ("bench/with_docker.py", "self.dockerd.terminate()", OF_POPEN),
    ("bench/with_docker.py", "self.dockerd.kill()", OF_POPEN),
    ("crates/serve/src/control/command.rs", "name: \"kill\"", OF_CTL),
    ("crates/penstock/src/cmd/ctl.rs", "(\"kill\", words(&owned))", OF_CTL),
    ("crates/penstock/src/cmd/ctl.rs", "penstock ctl kill 4711", OF_CTL),
    ("crates/penstock/src/cmd/ctl/sessions.rs", "penstock ctl kill", OF_CTL),
    ("crates/penstock/src/cmd/ctl/top/state.rs", "format!(\"kill {id}\")", OF_CTL),
    ("crates/import/src/pen/command.rs", "`penstock ctl kill ID`", OF_CTL),
    ("bench/sandbox.py", "process.terminate()", OF_POPEN),
    ("bench/copies.py", "self.client.terminate()", OF_POPEN),
    ("bench/copies.py", "place.sshd.terminate()", OF_POPEN),
    ("bench/tlsfuzzer.py", "server.send_signal(signal.SIGTERM)", OF_POPEN),
];
const OF_CTL: &str = "the command of `penstock ctl`, which ends sessions";
const OF_POPEN: &str = "subprocess.Popen signals no process that it has waited for";

#[test]
fn signals_are_sent_from_one_place_and_on_hosts_from_another() {
    let root = root();
    let words = [
        "kill",
        "killpg",
        "pkill",
        "killall",
        "tkill",
        "tgkill",
        "sigqueue",
        "raise",
        "terminate",
        "send_signal",
        "start_kill",
        "kill_on_drop",
        "pidfd_send_signal",
    ];
    let mut used = [false; SIGNALS.len()];
    let mut elsewhere = Vec::new();
    let mut sources = vec![root.join("Makefile"), root.join(".ci/run")];
    for directory in ["crates", "bench", "setup", "packaging", "examples"] {
        sources.extend(files(&root.join(directory), &[".rs", ".sh", ".py", ".service"]));
    }
    for source in sources {
        let path = source.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
        if is_of_tests(&path) {
            continue;
        }
        let text = fs::read_to_string(&source).unwrap();
        for line in outside_tests(&text) {
            let code = line.trim_start();
            let is_comment = code.starts_with("//") || code.starts_with('#') && !code.starts_with("#[");
            let has = |word: &str| is_word_in(code, word) && !is_about_limits_or_our_own_signals(code, word);
            if is_comment || !words.iter().any(|word| has(word)) {
                continue;
            }
            match SIGNALS.iter().position(|(file, part, _)| *file == path && code.contains(part)) {
                Some(at) => used[at] = true,
                None => elsewhere.push(format!("{path}: {code}")),
            }
        }
    }
    assert!(elsewhere.is_empty(), "use sys::process, which proves what it signals: {elsewhere:#?}");
    let unused: Vec<_> =
        SIGNALS.iter().zip(used).filter(|(_, used)| !used).map(|(entry, _)| entry.0).collect();
    assert!(unused.is_empty(), "these signal nothing any more: {unused:?}");
}

#[test]
fn readme_and_architecture_are_short() {
    let root = root();
    let size = fs::metadata(root.join("ARCHITECTURE.md")).unwrap().len();
    assert!(size <= 8192, "ARCHITECTURE.md has {size} bytes: the rest belongs to the heads of modules");
    let text = fs::read_to_string(root.join("README.md")).unwrap();
    assert!(text.lines().count() <= 200, "{} lines: the rest belongs into docs/", text.lines().count());
}

#[test]
fn every_place_that_removes_files_or_takes_connections_is_in_the_document() {
    let root = root();
    let document = fs::read_to_string(root.join("docs/security.md")).unwrap();
    let section = |title: &str| {
        let text = document.split_once(&format!("## {title}")).unwrap_or_else(|| panic!("{title}")).1;
        text.split("\n## ").next().unwrap_or_default()
    };
    let dangers: [(&str, &[&str]); 2] = [
        ("Files that are removed", &["remove_file(", "remove_dir(", "remove_dir_all("]),
        (
            "Descriptors and memory on behalf of peers",
            &[".accept()", "Stream::connect(", "pipe2(", "channel_open_"],
        ),
    ];
    for (title, words) in dangers {
        let told = section(title);
        let mut places = Vec::new();
        for source in files(&root.join("crates"), &[".rs"]) {
            let path = source.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
            let is_product = !is_of_tests(&path) && !path.contains("/examples/");
            let text = fs::read_to_string(&source).unwrap();
            let has = |line: &str| {
                !line.trim_start().starts_with("//") && words.iter().any(|word| line.contains(word))
            };
            if is_product && outside_tests(&text).any(has) {
                places.push(path);
            }
        }
        assert!(places.len() > 10, "{title}: {places:?}");
        places.retain(|path| !told.contains(&format!("`{path}`")));
        assert!(places.is_empty(), "docs/security.md, {title}, does not tell of {places:#?}");
    }
}

/// The lines of a source but those of a module of tests, which is its last item.
fn outside_tests(text: &str) -> impl Iterator<Item = &str> {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    text[..end].lines()
}

/// Whether a name in the line is the word, or ends with it: `SYS_kill` and `start_kill` send what `kill` sends.
fn is_word_in(line: &str, word: &str) -> bool {
    let goes_on = |c: char| c.is_ascii_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(|c| c.is_ascii_alphanumeric())
            && !line[at + word.len()..].chars().next().is_some_and(goes_on)
    })
}

/// "raise the limit", `raise` of Python, and the handlers of signals that others send to us (`SignalKind::terminate`).
fn is_about_limits_or_our_own_signals(line: &str, word: &str) -> bool {
    match word {
        "raise" => !line.contains("raise(") && !line.contains(", raise}"),
        "terminate" => !line.contains(".terminate()"),
        _ => false,
    }
}

#[test]
fn every_ignored_test_says_why() {
    let bare = ["#[ign", "ore]"].concat();
    let without: Vec<PathBuf> = files(&root().join("crates"), &[".rs"])
        .into_iter()
        .filter(|file| {
            fs::read_to_string(file).unwrap().lines().any(|line| line.trim_start().starts_with(&bare))
        })
        .collect();
    assert!(without.is_empty(), "{without:#?}");
}

#[test]
fn crates_keep_their_claims() {
    let root = root();
    let dependencies = |name: &str| {
        let text = fs::read_to_string(root.join("crates").join(name).join("Cargo.toml")).unwrap();
        let table = text.split("[dependencies]").nth(1).unwrap_or_default();
        let table = table.split("\n[").next().unwrap_or_default().to_owned();
        table
            .lines()
            .filter_map(|line| line.split(['.', '=', ' ']).next().map(str::to_owned))
            .filter(|name| !name.is_empty() && !name.starts_with('#'))
            .collect::<Vec<_>>()
    };
    for (name, forbidden) in [
        (
            "logic",
            &["tokio", "mio", "socket2", "nix", "hyper", "hosts", "config", "serve", "sys", "tracing"][..],
        ),
        ("hosts", &["tokio", "mio", "socket2", "nix", "hyper", "logic", "config", "serve", "sys", "tracing"]),
        ("text", &["tokio", "nix", "hosts", "logic", "config", "sys"]),
        ("config", &["tokio", "mio", "socket2", "nix", "hyper", "serve", "sys"]),
        ("sys", &["tokio", "config", "logic", "serve"]),
    ] {
        let has = dependencies(name);
        assert!(!has.is_empty(), "{name} has dependencies");
        let wrong: Vec<_> =
            has.iter().filter(|dependency| forbidden.contains(&dependency.as_str())).collect();
        assert!(wrong.is_empty(), "{name} must not depend on {wrong:?}");
    }
    for directory in fs::read_dir(root.join("crates")).unwrap() {
        let name = directory.unwrap().file_name().into_string().unwrap();
        assert!(!dependencies(&name).contains(&"testing".to_owned()), "{name} is no test");
    }
    for file in files(&root.join("crates"), &[".rs"]) {
        let path = file.to_string_lossy().into_owned();
        // The functions of libpam are in one file of the module: it has no dependency, `sys` neither.
        if path.contains("/crates/sys/") || path.ends_with("/crates/pam/src/ffi.rs") {
            continue;
        }
        let word = ["uns", "afe {"].concat();
        assert!(
            !fs::read_to_string(&file).unwrap().contains(&word),
            "{path} has a block that belongs into crates/sys"
        );
    }
}

#[test]
fn crates_use_each_other_as_the_table_of_the_architecture_says() {
    let root = root();
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let names: BTreeSet<_> = fs::read_dir(root.join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut told = BTreeSet::new();
    for row in page.lines().filter_map(|line| line.strip_prefix("| `crates/")) {
        let (name, rest) = row.split_once('`').unwrap();
        let Some(uses) = rest.trim_end_matches(" |").rsplit(" | ").next().filter(|_| names.contains(name))
        else {
            continue;
        };
        let uses: BTreeSet<_> = uses.split(", ").filter(|name| *name != "-").map(str::to_owned).collect();
        let manifest = fs::read_to_string(root.join("crates").join(name).join("Cargo.toml")).unwrap();
        let table = manifest.split("[dependencies]\n").nth(1).unwrap_or_default();
        let table = table.split("\n[").next().unwrap();
        let has: BTreeSet<_> = table
            .lines()
            .filter_map(|line| line.split(['.', ' ', '=']).next())
            .filter(|name| names.contains(*name))
            .map(str::to_owned)
            .collect();
        assert_eq!(has, uses, "dependencies of {name} that are crates of ours: manifest and table");
        told.insert(name.to_owned());
    }
    assert_eq!(told, names, "rows of the table");
}
