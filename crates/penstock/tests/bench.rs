//! `penstock bench` as people call it: tiny runs of real scenarios, and what is left of them afterwards.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Runs the real binary with a private directory for temporary files.
fn bench(scratch: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_penstock"));
    command.arg("bench").args(arguments).env("TMPDIR", scratch).current_dir(scratch).stdin(Stdio::null());
    command
}

#[track_caller]
fn succeed(mut command: Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{status}\n{out}\n{err}");
    out.into_owned()
}

/// Processes whose command line or environment names this directory: everything that a run started has it in one.
fn leftovers(scratch: &Path) -> Vec<String> {
    let needle = scratch.to_str().unwrap().as_bytes();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let own = std::process::id().to_string();
    let processes = entries.filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok());
    processes
        .filter(|entry| entry.file_name() != own.as_str())
        .filter_map(|entry| {
            let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
            let all = [read("cmdline"), read("environ")].concat();
            all.windows(needle.len())
                .any(|window| window == needle)
                .then(|| String::from_utf8_lossy(&all).into_owned())
        })
        .collect()
}

/// What a run left in its directory for temporary files.
fn directories(scratch: &Path) -> Vec<String> {
    let entries = fs::read_dir(scratch).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("penstock-bench-")).collect()
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_tiny_run_measures_every_contestant_and_leaves_nothing_behind() {
    let scratch = tempfile::tempdir().unwrap();
    let run = ["sockets", "http", "--quick", "--rounds", "1", "--duration", "20ms"];
    let files = ["--json", "r.json", "--markdown", "r.md", "--html", "r.html"];
    let out = succeed(bench(scratch.path(), &[&run[..], &files[..]].concat()));
    assert!(out.contains("messages of 12 B") && out.contains("written: r.html"), "{out}");
    let results = json(&scratch.path().join("r.json"));
    let mut contestants = 0;
    for scenario in results["scenarios"].as_array().unwrap() {
        for group in scenario["groups"].as_array().unwrap() {
            for contestant in group["contestants"].as_array().unwrap() {
                let place = format!("{} {}: {}", scenario["name"], group["id"], contestant["name"]);
                assert!(contestant["failed"].is_null(), "{place}: {}", contestant["failed"]);
                let sample = &contestant["samples"][0];
                assert_eq!(sample["errors"], 0, "{place}: {}", sample["first_error"]);
                assert!(sample["units"].as_f64().unwrap() > 0.0, "{place}");
                assert!(sample["cpu"]["total"].as_f64().unwrap() > 0.0, "{place}");
                contestants += 1;
            }
        }
    }
    assert!(contestants >= 40, "only {contestants} contestants");
    assert!(fs::read_to_string(scratch.path().join("r.md")).unwrap().contains("## http"));
    assert!(fs::read_to_string(scratch.path().join("r.html")).unwrap().contains("<svg"));
    assert_eq!((leftovers(scratch.path()), directories(scratch.path())), (Vec::new(), Vec::new()));
    let compared = succeed(bench(scratch.path(), &["compare", "r.json", "r.json"]));
    assert!(compared.contains("sockets/connection-12") && compared.contains("1.00 x"), "{compared}");
}

#[test]
fn an_interrupted_run_ends_soon_and_leaves_nothing_behind() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let scratch = tempfile::tempdir().unwrap();
        let mut command =
            bench(scratch.path(), &["http", "--rounds", "100", "--duration", "60s", "--json", "r.json"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // The run's own process, at least one backend and one proxy.
        wait_until(|| leftovers(scratch.path()).len() >= 3);
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        wait_until(|| child.try_wait().unwrap().is_some());
        assert_eq!(child.wait().unwrap().code(), Some(1));
        assert_eq!(
            (leftovers(scratch.path()), directories(scratch.path())),
            (Vec::new(), Vec::new()),
            "{signal}"
        );
    }
}

#[test]
fn a_killed_run_takes_its_processes_along() {
    let scratch = tempfile::tempdir().unwrap();
    let mut command =
        bench(scratch.path(), &["http", "--rounds", "100", "--duration", "60s", "--json", "r.json"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until(|| leftovers(scratch.path()).len() >= 3);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until(|| leftovers(scratch.path()).is_empty());
}

#[test]
fn wrong_usage_says_what_there_is() {
    let scratch = tempfile::tempdir().unwrap();
    let output = bench(scratch.path(), &["sokets"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("sokets") && text.contains("sockets, http"), "{text}");
    let listed = succeed(bench(scratch.path(), &["--list"]));
    assert!(listed.starts_with("sockets ") && listed.contains("\nhttp "), "{listed}");
    fs::write(scratch.path().join("x.json"), "{}").unwrap();
    let output = bench(scratch.path(), &["compare", "x.json", "y.json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(directories(scratch.path()), Vec::<String>::new());
}

#[track_caller]
fn wait_until(mut true_at_last: impl FnMut() -> bool) {
    let start = Instant::now();
    while !true_at_last() {
        assert!(start.elapsed() < Duration::from_secs(60), "it never happened");
        std::thread::yield_now();
    }
}
