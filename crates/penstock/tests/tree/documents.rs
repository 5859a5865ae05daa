//! The documents are true: links lead somewhere, what they show is what the program prints, and what it has is in them.

mod links;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use testing::server::{binary, clear_environment, penstock, run_to_end};
use testing::{Scripted, Server, secs};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Names of the pages in `docs/`.
fn pages() -> Vec<String> {
    let entries = fs::read_dir(root().join("docs")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}")).collect()
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let root = root();
    let others =
        ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md", "examples/nas/README.md"];
    let mut wrong = Vec::new();
    let mut seen = 0;
    for document in pages().into_iter().chain(others.map(str::to_owned)) {
        for link in links::links(&read(&document)) {
            if link.contains("://") {
                continue;
            }
            seen += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let path = match file {
                "" => root.join(&document),
                file => root.join(&document).parent().unwrap().join(file),
            };
            let in_book = !document.starts_with("docs/") || !file.contains('/');
            let has_heading = |path: &Path| {
                fs::read_to_string(path).is_ok_and(|text| links::anchors(&text).contains(anchor))
            };
            if !path.exists() || !in_book || !anchor.is_empty() && !has_heading(&path) {
                wrong.push(format!("{document}: {link}"));
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere, or out of the book: {wrong:#?}");
    assert!(seen > 50, "only {seen} links: is the way they are written still understood?");
}

#[test]
fn every_page_is_in_the_table_of_contents() {
    let listed: BTreeSet<_> =
        links::links(&read("docs/SUMMARY.md")).into_iter().map(|name| format!("docs/{name}")).collect();
    let pages: BTreeSet<_> = pages().into_iter().filter(|name| name != "docs/SUMMARY.md").collect();
    assert_eq!(listed, pages);
}

/// The commands that `--help` lists.
fn commands(of: &[&str]) -> Vec<String> {
    let text = stdout(&penstock(&[of, &["--help"]].concat()));
    let list = text.split_once("\nCommands:\n").unwrap_or_else(|| panic!("{of:?}: {text}")).1;
    let lines = list.split("\n\n").next().unwrap().lines().filter_map(|line| line.strip_prefix("  "));
    let names = lines.filter(|line| !line.starts_with(' ')).filter_map(|line| line.split(' ').next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn every_command_is_in_the_documents() {
    const PARENTS: [&str; 7] = ["ctl", "host", "tunnel", "ssh", "config", "bench", "dns"];
    let page = read("docs/commands.md");
    // The first cell of a row: `penstock PARENT COMMAND ...`, then perhaps more commands of the same parent.
    let mut listed = BTreeSet::new();
    for cell in page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()) {
        let mut parent = "";
        for code in cell.split('`').skip(1).step_by(2) {
            let mut words = code.split([' ', '[', ',']).filter(|word| !word.is_empty());
            let mut name = words.next().unwrap_or_default();
            if name == "penstock" {
                (parent, name) = ("", words.next().unwrap_or_default());
            }
            if PARENTS.contains(&name) {
                listed.insert(("", name));
                (parent, name) = (name, words.next().unwrap_or_default());
            }
            listed.insert((parent, name));
        }
    }
    let mut missing = Vec::new();
    for parent in [""].into_iter().chain(PARENTS) {
        let words: Vec<&str> = parent.split_whitespace().collect();
        let names = commands(&words);
        assert!(!names.is_empty());
        let lacks = names.into_iter().filter(|name| !listed.contains(&(parent, name.as_str())));
        missing.extend(lacks.map(|name| format!("{parent} {name}")));
    }
    assert!(missing.is_empty(), "not in docs/commands.md: {missing:?}");
}

#[test]
fn every_scenario_is_in_the_documents() {
    let list = stdout(&penstock(&["bench", "--list"]));
    let questions = list.lines().filter(|line| line.ends_with('?'));
    let names: Vec<_> = questions.filter_map(|line| line.split_once(' ')).map(|(name, _)| name).collect();
    let page = read("docs/bench.md");
    for name in &names {
        assert!(page.contains(&format!("| `{name}` |")), "docs/bench.md lacks {name}");
    }
    assert!(names.len() >= 8, "{list}");
}

/// Below these an operator, or a measurement, has chosen the keys.
const CHOSEN: [&str; 3] = ["order", "summaries", "figures"];

/// All keys of objects that have a fixed name.
fn keys(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, inner) in object {
                found.insert(key.clone());
                if !CHOSEN.contains(&key.as_str()) {
                    keys(inner, found);
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|inner| keys(inner, found)),
        _ => {}
    }
}

#[test]
fn every_field_that_is_printed_is_in_the_documents() {
    let backend = Scripted::answering("x");
    let server = Server::start(&format!(
        "[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n[pool.app]\nbackends = [\"{}\"]\nhealth = \"tcp\"\n\
         [control]\nsocket = \"@DIR@/control.sock\"\n",
        backend.address
    ));
    let mut printed: Vec<Value> = Vec::new();
    for command in ["status", "backends", "events", "certs", "reload"] {
        printed.push(server.ctl_json(&[command]));
    }
    printed.push(server.ctl_json(&["why", "--listener", "web", "http://a.example/"]));
    for change in [&["drain", &backend.address][..], &["weight", &backend.address, "2"]] {
        printed.push(server.ctl_json(change));
    }
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("t.toml");
    // Root has one directory for the sockets of all tunnels: another test has one of this name at the same time.
    fs::write(&file, tunnel(&backend).replace("[tunnel.db]", "[tunnel.fields]")).unwrap();
    let script = format!(
        "penstock run -w @lab --json uptime; penstock run --last --json; penstock put -w lab001 --json {0} t.toml
         penstock ssh explain lab001 --json; penstock ssh explain lab002 --json; penstock ssh config lab001 --json
         penstock tunnel with --config {0} fields -- penstock tunnel status --json; penstock check --format json {0}",
        file.display()
    );
    let mut lab = Command::new(binary());
    lab.args(["lab", "2", "--fault", "refuse=2", "--", "sh", "-c", &script]);
    let output = run(&mut lab);
    let values = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
    printed.extend(values.map(|value| value.unwrap_or_else(|error| panic!("{error}: {output:?}"))));
    assert!(printed.len() > 15, "{output:?}");
    let results = scratch.path().join("results.json");
    let measured = ["bench", "tcp/connections", "--rounds", "1", "--duration", "50ms", "--json"];
    run(Command::new(binary()).args(measured).arg(&results));
    printed.push(serde_json::from_slice(&fs::read(&results).unwrap()).unwrap());
    let page = read("docs/machine-readable.md");
    let told: BTreeSet<&str> = page.split('`').skip(1).step_by(2).collect();
    let mut found = BTreeSet::new();
    printed.iter().for_each(|value| keys(value, &mut found));
    found.retain(|key| !told.contains(key.as_str()));
    // Classes of statuses are told as a range.
    found.retain(|key| !key.ends_with("xx"));
    assert!(found.is_empty(), "not in docs/machine-readable.md: {found:?}");
}

#[test]
fn what_the_readme_shows_is_what_the_program_prints() {
    let readme = read("README.md");
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    let bad =
        "[listener.web]\nbind = \":8080\"\n\npol = \"app\"\n\n[pool.app]\nbackends = [\"10.0.0.11:8000\"]\n";
    fs::write(at("bad.toml"), bad).unwrap();
    let backend = Scripted::answering("Hello there!\n");
    fs::write(at("t.toml"), tunnel(&backend)).unwrap();
    let in_lab = "penstock lab 20 --fault refuse=7 --fault hang-run=12 --fault wrong-host=15 -- ";
    let shown = |begins: &str| {
        let (command, output) = readme
            .split("\n$ ")
            .skip(1)
            .filter_map(|part| part.split("\n```").next()?.split_once('\n'))
            .find(|(command, _)| command.starts_with(begins))
            .unwrap_or_else(|| panic!("README.md does not show `{begins}`"));
        (command.to_owned(), output.to_owned())
    };
    let home = at("home");
    fs::create_dir_all(home.join(".ssh")).unwrap();
    for (begins, before) in [
        ("penstock check bad.toml", ""),
        (in_lab, ""),
        ("penstock tunnel with", "penstock lab 2 -- "),
        ("penstock host import", ""),
        ("penstock host list", ""),
    ] {
        let (command, lines) = shown(begins);
        let mut shell = Command::new("sh");
        let call = format!("{before}{command}");
        shell.args(["-c", &call]).current_dir(scratch.path()).env("HOME", &home);
        shell.env_remove("XDG_CONFIG_HOME").env_remove("XDG_STATE_HOME");
        if begins == "penstock host import" {
            let lab = testing::lab::Lab::start(2, &[]);
            fs::copy(lab.file("known_hosts"), home.join(".ssh/known_hosts")).unwrap();
        }
        let output = run(&mut shell);
        let said = format!("{}{}", stdout(&output), String::from_utf8_lossy(&output.stderr));
        let printed: BTreeSet<_> = said.lines().map(without_figures).collect();
        for line in lines.lines().filter(|line| *line != "...") {
            assert!(
                printed.contains(&without_figures(line)),
                "`{command}` does not print\n{line}\nbut\n{said}"
            );
        }
    }
}

/// The tunnel of README.md, to this backend.
fn tunnel(backend: &Scripted) -> String {
    let readme = read("README.md");
    let block = readme.split("```toml\n").find(|block| block.contains("[tunnel.db]")).unwrap();
    block.split("```").next().unwrap().replace("127.0.0.1:8000", &backend.address)
}

/// Numbers, addresses and paths are others each time, and so is the width of columns.
fn without_figures(line: &str) -> String {
    let differs = |word: &&str| word.contains('/') || word.chars().any(|c| c.is_ascii_digit());
    let words = line.split_whitespace().map(|word| if differs(&word) { "#" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

/// With the binary under test as `penstock`.
#[track_caller]
fn run(command: &mut Command) -> Output {
    let programs = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(binary(), programs.path().join("penstock")).unwrap();
    let path = format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap());
    clear_environment(command);
    run_to_end(command.env("PATH", path).stdin(Stdio::null()), secs(600))
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
