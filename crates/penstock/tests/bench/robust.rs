//! `penstock bench` where something is wrong: files that are damaged, odd directories, low limits, a sudden death.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use testing::{eventually, secs};

fn bench(scratch: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(testing::binary());
    command.arg("bench").args(arguments).env("TMPDIR", scratch).current_dir(scratch).stdin(Stdio::null());
    command
}

/// Its exit code, and what it said on both outputs.
fn said(mut command: Command) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

/// The smallest run that there is.
fn measure(scratch: &Path, group: &str, file: &str) {
    let arguments = [group, "--rounds", "1", "--duration", "100ms", "--json", file];
    let (code, text) = said(bench(scratch, &arguments));
    assert_eq!(code, Some(0), "{text}");
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn comparing_runs_without_anything_in_common_fails_and_says_what_each_has() {
    let _only = super::only_run();
    let scratch = tempfile::tempdir().unwrap();
    measure(scratch.path(), "sockets/kept-16", "a.json");
    measure(scratch.path(), "sockets/kept-256", "b.json");
    let (code, text) = said(bench(scratch.path(), &["compare", "a.json", "b.json"]));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("only in A: sockets/kept-16\nonly in B: sockets/kept-256\n"), "{text}");
    assert!(text.contains("error: nothing was compared"), "{text}");
    let (code, text) = said(bench(scratch.path(), &["compare", "a.json", "a.json"]));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("sockets/kept-16: ") && !text.contains("only in"), "{text}");
    // The same run on another machine, with a name that would clear the screen.
    let mut other = json(&scratch.path().join("a.json"));
    other["machine"]["kernel"] = "2.4.0".into();
    other["machine"]["programs"] = serde_json::json!([["\u{1b}[2J", "1"]]);
    other["interrupted"] = "\u{1b}]0;gone\u{7}".into();
    fs::write(scratch.path().join("c.json"), other.to_string()).unwrap();
    let (code, text) = said(bench(scratch.path(), &["compare", "a.json", "c.json"]));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with("warning: not the same machine: kernel: "), "{text}");
    assert!(text.contains(", on another machine\n") && !text.contains('\u{1b}'), "{text:?}");
    let whole = fs::read_to_string(scratch.path().join("a.json")).unwrap();
    fs::write(scratch.path().join("d.json"), &whole[..whole.len() / 3]).unwrap();
    let (code, text) = said(bench(scratch.path(), &["compare", "a.json", "d.json"]));
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("d.json: not a results file") && text.contains("cut off"), "{text}");
}

#[test]
fn a_run_works_wherever_temporary_files_are_to_be() {
    let _only = super::only_run();
    let scratch = tempfile::tempdir().unwrap();
    let long = "x".repeat(120);
    for name in ["a b'c\"d;e{f}#g$h\u{e4}", &long] {
        let odd = scratch.path().join(name);
        fs::create_dir(&odd).unwrap();
        let arguments = [
            "http/new-connection-unix",
            "sockets/kept-16",
            "--rounds",
            "1",
            "--duration",
            "200ms",
            "--json",
            "r.json",
        ];
        let mut command = bench(scratch.path(), &arguments);
        command.env("TMPDIR", &odd);
        let (code, text) = said(command);
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains("note: TMPDIR ") && text.contains(": this run uses "), "{text}");
        let results = json(&scratch.path().join("r.json"));
        for scenario in results["scenarios"].as_array().unwrap() {
            for contestant in scenario["groups"][0]["contestants"].as_array().unwrap() {
                assert!(contestant["failed"].is_null(), "{name}: {contestant}");
            }
        }
        assert_eq!(fs::read_dir(&odd).unwrap().count(), 0);
    }
}

#[test]
fn a_low_limit_of_descriptors_is_said_before_anything_is_started() {
    let _only = super::only_run();
    let scratch = tempfile::tempdir().unwrap();
    let words = "ulimit -n 256; exec \"$0\" bench \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", words, testing::binary(), "http/keep-alive-tcp", "sockets/kept-16"]);
    command.args(["--rounds", "1", "--duration", "100ms", "--json", "r.json"]);
    command.env("TMPDIR", scratch.path()).current_dir(scratch.path()).stdin(Stdio::null());
    let (code, text) = said(command);
    assert_eq!(code, Some(0), "{text}");
    let expected = "keep-alive-tcp needs 660 open descriptors for a process, and the hard limit is 256";
    assert!(text.contains(expected), "{text}");
    let results = json(&scratch.path().join("r.json"));
    let scenarios = results["scenarios"].as_array().unwrap();
    let failed = |scenario: usize| {
        let contestants = scenarios[scenario]["groups"][0]["contestants"].as_array().unwrap();
        contestants.iter().filter(|one| !one["failed"].is_null()).count()
    };
    let all = scenarios[1]["groups"][0]["contestants"].as_array().unwrap().len();
    assert_eq!((failed(0), failed(1)), (0, all));
}

#[test]
fn a_soft_limit_of_descriptors_is_raised() {
    let _only = super::only_run();
    let scratch = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    let words = "ulimit -S -n 256; exec \"$0\" bench \"$@\"";
    command.args(["-c", words, testing::binary(), "http/new-connection-unix"]);
    command.args(["--rounds", "1", "--duration", "100ms", "--json", "r.json"]);
    command.env("TMPDIR", scratch.path()).current_dir(scratch.path()).stdin(Stdio::null());
    let (code, text) = said(command);
    assert_eq!(code, Some(0), "{text}");
    assert!(!text.contains("FAILED"), "{text}");
}

#[test]
fn a_list_has_only_what_is_named_and_names_that_do_not_exist_are_wrong_usage() {
    let scratch = tempfile::tempdir().unwrap();
    let (code, text) = said(bench(scratch.path(), &["--list", "tcp"]));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with("tcp ") && text.contains("tcp/messages ") && !text.contains("http/"), "{text}");
    let (code, text) = said(bench(scratch.path(), &["--list", "tcp/download", "sockets/kept-16"]));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("tcp/download ") && !text.contains("tcp/upload"), "{text}");
    for (name, near) in [("tpc", "did you mean tcp"), ("tcp/donwload", "did you mean download")] {
        let (code, text) = said(bench(scratch.path(), &["--list", name]));
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(near), "{text}");
    }
}

#[test]
fn exit_codes_are_in_the_help() {
    let scratch = tempfile::tempdir().unwrap();
    let (_, text) = said(bench(scratch.path(), &["--help"]));
    assert!(
        ["  0    ", "  1    ", "  2    ", "  130  ", "  143  "].iter().all(|code| text.contains(code)),
        "{text}"
    );
    let (_, text) = said(bench(scratch.path(), &["compare", "--help"]));
    assert!(text.contains("  1    the two runs have nothing in common"), "{text}");
    let page = Command::new(testing::binary()).args(["man", "bench"]).output().unwrap();
    assert!(String::from_utf8_lossy(&page.stdout).contains("Exit codes"), "{page:?}");
}

/// A process: its number, and when it was started. Its environment says nothing, because nginx writes its title there.
type Identity = (i32, String);

/// Everything that runs below a process, by name.
fn tree(root: i32) -> BTreeMap<Identity, String> {
    let all = processes();
    let mut members = BTreeSet::from([root]);
    loop {
        let more: Vec<_> = all.iter().filter(|(_, (parent, _))| members.contains(parent)).collect();
        let before = members.len();
        members.extend(more.iter().map(|((pid, _), _)| *pid));
        if members.len() == before {
            return more.into_iter().map(|(identity, (_, name))| (identity.clone(), name.clone())).collect();
        }
    }
}

/// Processes that have not ended: parent and name.
fn processes() -> BTreeMap<Identity, (i32, String)> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let one = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let words: Vec<_> = rest.split_whitespace().collect();
        // proc_pid_stat(5): state, parent, and later the time at which it was started.
        let (state, parent, started) = (*words.first()?, words.get(1)?.parse().ok()?, *words.get(19)?);
        (state != "Z").then(|| ((pid, started.to_owned()), (parent, name.to_owned())))
    };
    entries.filter_map(one).collect()
}

#[track_caller]
fn kill(mut run: Child) {
    let below = tree(run.id() as i32);
    run.kill().unwrap();
    run.wait().unwrap();
    eventually("nothing that the run started lives", secs(60), || {
        let living = processes();
        below.keys().all(|identity| !living.contains_key(identity)).then_some(())
    });
}

fn directories(scratch: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(scratch).unwrap().flatten().map(|entry| entry.path());
    entries
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("penstock-bench-"))
        .collect()
}

fn begin(scratch: &Path, group: &str) -> Child {
    let arguments = [group, "--rounds", "100", "--duration", "60s", "--json", "r.json"];
    bench(scratch, &arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn no_program_of_any_kind_survives_a_run_that_is_killed() {
    let _only = super::only_run();
    let contestants: [(&str, &[&str]); 2] = [
        ("tls/requests", &["haproxy", "hitch", "nginx", "pen", "penstock"]),
        ("http/application", &["gunicorn", "haproxy", "nginx", "penstock"]),
    ];
    for (group, expected) in contestants {
        let scratch = tempfile::tempdir().unwrap();
        let mut child = begin(scratch.path(), group);
        eventually("all contestants are there", secs(60), || {
            assert!(child.try_wait().unwrap().is_none(), "it ended");
            let there: BTreeSet<_> = tree(child.id() as i32).into_values().collect();
            expected.iter().all(|name| there.contains(*name)).then_some(())
        });
        kill(child);
    }
}

#[test]
fn what_a_killed_run_left_is_removed_by_the_next_and_a_living_run_keeps_its_own() {
    let _only = super::only_run();
    let scratch = tempfile::tempdir().unwrap();
    let killed = begin(scratch.path(), "sockets/kept-16");
    eventually("the run has its directory", secs(60), || {
        directories(scratch.path()).iter().any(|directory| directory.join("lock").exists()).then_some(())
    });
    kill(killed);
    let left = directories(scratch.path());
    assert_eq!(left.len(), 1);
    let living = begin(scratch.path(), "sockets/kept-16");
    eventually("the next run has its own, and only that is left", secs(60), || {
        let now = directories(scratch.path());
        (!left[0].exists() && now.len() == 1 && now[0].join("lock").exists()).then_some(())
    });
    let its_own = directories(scratch.path());
    // A user's directory that only looks like one of ours.
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("keep"), "x").unwrap();
    symlink(elsewhere.path(), scratch.path().join("penstock-bench-999999999-0")).unwrap();
    let (code, text) = said(bench(scratch.path(), &["--list"]));
    assert_eq!(code, Some(0), "{text}");
    assert!(its_own[0].exists() && elsewhere.path().join("keep").exists());
    kill(living);
}
