//! `penstock bench` as people call it: tiny runs of real scenarios, and what is left of them afterwards.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testing::{eventually, secs};

/// Runs the real binary with a private directory for temporary files.
fn bench(scratch: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(testing::binary());
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
    let _only = super::only_run();
    let scratch = tempfile::tempdir().unwrap();
    let run = ["sockets", "http", "--quick", "--rounds", "1", "--duration", "100ms"];
    let files = ["--json", "r.json", "--markdown", "r.md", "--html", "r.html"];
    let out = succeed(bench(scratch.path(), &[&run[..], &files[..]].concat()));
    assert!(out.contains("12 B messages") && out.contains("written: r.html"), "{out}");
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
                if group["id"] == "idle" {
                    assert!(sample["figures"]["memory-all"].as_f64().unwrap() > 0.0, "{place}");
                } else {
                    assert!(sample["cpu"]["total"].as_f64().unwrap() > 0.0, "{place}");
                }
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
    let _only = super::only_run();
    let files: [&[&str]; 2] = [&["--json", "r.json"], &[]];
    for (signal, files) in [Signal::SIGINT, Signal::SIGTERM].into_iter().zip(files) {
        let scratch = tempfile::tempdir().unwrap();
        let run = ["http", "--rounds", "100", "--duration", "60s"];
        let mut command = bench(scratch.path(), &[&run, files].concat());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // The run's own process, at least one backend and one proxy.
        eventually("the run, a backend and a proxy are there", secs(60), || {
            (leftovers(scratch.path()).len() >= 3).then_some(())
        });
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        eventually("the run ends", secs(60), || child.try_wait().unwrap().is_some().then_some(()));
        assert_eq!(child.wait().unwrap().code(), Some(128 + signal as i32));
        // Nothing was measured yet.
        assert!(!scratch.path().join("r.json").exists());
        assert_eq!(
            (leftovers(scratch.path()), directories(scratch.path())),
            (Vec::new(), Vec::new()),
            "{signal}"
        );
    }
}

#[test]
fn what_was_measured_before_an_interruption_is_written_and_marked() {
    let _only = super::only_run();
    let scratch = tempfile::tempdir().unwrap();
    let wanted = ["sockets/connection-12", "http/keep-alive-tcp", "tcp/connections"];
    let run = ["--rounds", "1", "--duration", "500ms", "--json", "r.json", "--markdown", "r.md"];
    let mut command = bench(scratch.path(), &[&wanted[..], &run].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    // The first group's table: the next group takes at least a second for each of its contestants.
    lines.find(|line| line.contains("12 B messages")).unwrap();
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let rest: Vec<_> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    assert_eq!((leftovers(scratch.path()), directories(scratch.path())), (Vec::new(), Vec::new()));
    let results = json(&scratch.path().join("r.json"));
    assert_eq!(results["interrupted"], "SIGINT");
    let scenarios = results["scenarios"].as_array().unwrap();
    assert_eq!(scenarios[0]["groups"][0]["id"], "connection-12");
    assert_eq!(scenarios[0]["groups"][0]["contestants"][0]["samples"].as_array().unwrap().len(), 1);
    assert!(scenarios.iter().all(|scenario| scenario["name"] != "tcp"), "{rest:?}");
    let report = fs::read_to_string(scratch.path().join("r.md")).unwrap();
    assert!(report.contains("**Interrupted** by SIGINT"), "{report}");
    assert!(report.contains("; kept: sockets/connection-12"), "{report}");
    // The signal may arrive before the next group has begun.
    let dropped = &results["dropped"];
    assert!(dropped.is_null() || dropped == "http/keep-alive-tcp", "{dropped}");
    let said = "dropped: http/keep-alive-tcp, no round of it was complete";
    assert_eq!(report.contains(said), !dropped.is_null(), "{report}");
    let compared = succeed(bench(scratch.path(), &["compare", "r.json", "r.json"]));
    assert!(compared.contains("warning: A was interrupted by SIGINT"), "{compared}");
}

#[test]
fn one_group_is_measured_by_its_name() {
    let _only = super::only_run();
    let scratch = tempfile::tempdir().unwrap();
    let run = ["sockets/kept-256", "--quick", "--rounds", "1", "--duration", "100ms", "--json", "r.json"];
    let output = bench(scratch.path(), &run).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("this takes about"), "{said}");
    let results = json(&scratch.path().join("r.json"));
    let groups: Vec<_> = results["scenarios"].as_array().unwrap().iter().map(|one| &one["groups"]).collect();
    assert_eq!(groups.len(), 1);
    assert_eq!(groups[0].as_array().unwrap().len(), 1);
    assert_eq!(groups[0][0]["id"], "kept-256");
}

#[test]
fn a_killed_run_takes_its_processes_along() {
    let _only = super::only_run();
    let scratch = tempfile::tempdir().unwrap();
    let mut command =
        bench(scratch.path(), &["http", "--rounds", "100", "--duration", "60s", "--json", "r.json"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("the run, a backend and a proxy are there", secs(60), || {
        (leftovers(scratch.path()).len() >= 3).then_some(())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("all processes are gone", secs(60), || leftovers(scratch.path()).is_empty().then_some(()));
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
    assert!(
        listed.contains("\n  * http/keep-alive-tcp ") && listed.contains("\n    http/latency-unix "),
        "{listed}"
    );
    let output = bench(scratch.path(), &["http/keep-alive-tpc"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("did you mean keep-alive-tcp") && text.contains("new-connection"), "{text}");
    fs::write(scratch.path().join("x.json"), "{}").unwrap();
    let output = bench(scratch.path(), &["compare", "x.json", "y.json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(directories(scratch.path()), Vec::<String>::new());
}
