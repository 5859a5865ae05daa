//! `penstock bench forwarded` and `truststore` as people call them: tiny runs, and what is left of them afterwards.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testing::tools::{self, Root};
use testing::{eventually, secs};

pub(super) fn bench(scratch: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(testing::binary());
    command.arg("bench").args(arguments).env("TMPDIR", scratch).current_dir(scratch);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Runs it and gives the contestants of each group, of which none may have failed.
fn measure(scratch: &Path, scenario: &str) -> Vec<(String, BTreeSet<String>)> {
    let arguments = [scenario, "--quick", "--rounds", "1", "--duration", "100ms", "--json", "r.json"];
    assert!(bench(scratch, &arguments).status().unwrap().success());
    measured(scratch)
}

/// The contestants of each group of the run that wrote `r.json`, of which none may have failed.
pub(super) fn measured(scratch: &Path) -> Vec<(String, BTreeSet<String>)> {
    let text = fs::read(scratch.join("r.json")).unwrap();
    let results: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let scenario = &results["scenarios"][0];
    assert!(scenario["failed"].is_null(), "{}", scenario["failed"]);
    let group = |group: &serde_json::Value| {
        let contestants = group["contestants"].as_array().unwrap();
        let names = contestants.iter().map(|contestant| {
            assert!(contestant["failed"].is_null(), "{}: {}", contestant["name"], contestant["failed"]);
            let sample = &contestant["samples"][0];
            assert_eq!(sample["errors"], 0, "{}: {}", contestant["name"], sample["first_error"]);
            assert!(sample["units"].as_f64().unwrap() > 0.0, "{}", contestant["name"]);
            contestant["name"].as_str().unwrap().to_owned()
        });
        (group["id"].as_str().unwrap().to_owned(), names.collect())
    };
    scenario["groups"].as_array().unwrap().iter().map(group).collect()
}

/// Processes that a run started: its directory for temporary files is in their environment.
pub(super) fn processes(scratch: &Path) -> Vec<PathBuf> {
    let needle = scratch.to_str().unwrap().as_bytes();
    let entries = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let ours = |path: &PathBuf| {
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        environment.windows(needle.len()).any(|window| window == needle)
    };
    entries.filter(ours).collect()
}

/// Network namespaces of processes that are not in this one's.
pub(super) fn foreign_networks(processes: &[PathBuf]) -> BTreeSet<PathBuf> {
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    let links = processes.iter().filter_map(|path| fs::read_link(path.join("ns/net")).ok());
    links.filter(|link| *link != own).collect()
}

/// Namespaces and interfaces that have a name, here.
pub(super) fn named() -> BTreeSet<PathBuf> {
    let entries =
        ["/run/netns", "/sys/class/net"].map(|path| fs::read_dir(path).into_iter().flatten().flatten());
    entries.into_iter().flatten().map(|entry| entry.path()).collect()
}

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

#[test]
fn every_way_to_a_container_is_measured_and_nothing_is_left_behind() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let _only = super::only_run();
    let scratch = tempfile::tempdir().unwrap();
    let before = named();
    let groups = measure(scratch.path(), "forwarded");
    for id in ["new-connection", "keep-alive"] {
        let (_, names) = groups.iter().find(|(group, _)| group == id).unwrap();
        for name in ["loopback", "unix", "bridge", "dnat"] {
            assert!(names.contains(name), "{id}: {names:?}");
        }
    }
    assert_eq!(processes(scratch.path()), Vec::<PathBuf>::new());
    assert_eq!(named(), before);
}

#[test]
fn a_run_that_is_stopped_in_any_way_takes_its_namespaces_along() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let _only = super::only_run();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let scratch = tempfile::tempdir().unwrap();
        let before = named();
        let arguments = ["forwarded", "--rounds", "100", "--duration", "60s", "--json", "r.json"];
        let mut child = bench(scratch.path(), &arguments).spawn().unwrap();
        // A host and a container.
        eventually("two networks are there", secs(60), || {
            (foreign_networks(&processes(scratch.path())).len() >= 2).then_some(())
        });
        let networks = foreign_networks(&processes(scratch.path()));
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        child.wait().unwrap();
        eventually("all processes are gone", secs(60), || processes(scratch.path()).is_empty().then_some(()));
        // A process that ends gives up its environment before its namespaces.
        eventually(&format!("{signal}: no process is in {networks:?}"), secs(60), || {
            let all: Vec<_> = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).collect();
            foreign_networks(&all).is_disjoint(&networks).then_some(())
        });
        assert_eq!(named(), before, "{signal}");
    }
}

#[test]
fn without_the_right_to_make_networks_a_run_says_what_to_do() {
    let scratch = tempfile::tempdir().unwrap();
    let program = testing::binary();
    // As root, without what makes root special.
    let mut command = Command::new("setpriv");
    if nix::unistd::geteuid().is_root() {
        command.args(["--bounding-set", "-net_admin,-sys_admin", "--inh-caps", "-net_admin,-sys_admin"]);
    }
    command.arg(program).args(["bench", "forwarded", "--quick", "--json", "r.json"]);
    let output = command.env("TMPDIR", scratch.path()).current_dir(scratch.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("run it with sudo"), "{said}");
}

#[test]
fn a_trust_store_is_loaded_by_every_program_that_is_here() {
    let _only = super::only_run();
    let scratch = tempfile::tempdir().unwrap();
    let groups = measure(scratch.path(), "truststore");
    let (id, names) = &groups[0];
    assert_eq!(id, "bundle");
    assert!(names.contains("penstock"), "{names:?}");
    for (program, name) in [("certtool", "gnutls"), ("openssl", "openssl")] {
        assert_eq!(names.contains(name), has(program), "{name}");
    }
    assert_eq!(processes(scratch.path()), Vec::<PathBuf>::new());
}
