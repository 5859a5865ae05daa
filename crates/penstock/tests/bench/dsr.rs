//! `penstock bench dsr` with tiny runs, and what is left of them afterwards.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use testing::tools::{self, Root};
use testing::{eventually, secs};

use super::forwarded::{bench, foreign_networks, measured, named, processes};

fn results(scratch: &Path) -> Value {
    serde_json::from_slice(&fs::read(scratch.join("r.json")).unwrap()).unwrap()
}

/// The sample of a contestant in the only round.
fn sample<'a>(results: &'a Value, group: usize, name: &str) -> &'a Value {
    let contestants = results["scenarios"][0]["groups"][group]["contestants"].as_array().unwrap();
    &contestants.iter().find(|contestant| contestant["name"] == name).unwrap()["samples"][0]
}

#[test]
fn packets_and_requests_pass_every_balancer_and_nothing_is_left_behind() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    for program in ["pen", "nginx", "ethtool"] {
        tools::program(program);
    }
    let _only = super::only_run();
    let scratch = tempfile::tempdir().unwrap();
    let before = named();
    let ids = ["packets-25k", "requests-new", "requests-kept"];
    let mut arguments: Vec<_> = ids.iter().map(|id| format!("dsr/{id}")).collect();
    arguments.extend(["--rounds", "1", "--duration", "300ms", "--json", "r.json"].map(str::to_owned));
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    assert!(bench(scratch.path(), &arguments).status().unwrap().success());
    let ways = ["direct", "penstock-tc", "penstock-xdp-generic", "penstock-af_packet", "pen"];
    let expected = ids.map(|id| (id.to_owned(), BTreeSet::from(ways.map(str::to_owned))));
    assert_eq!(measured(scratch.path()), expected);
    let results = results(scratch.path());
    for name in ways {
        let figures = &sample(&results, 0, name)["figures"];
        let (sent, share) = (figures["offered"].as_f64().unwrap(), figures["share"].as_f64().unwrap());
        assert!((1_000.0..30_000.0).contains(&sent), "{name}: {figures}");
        // Some that were sent before the window arrive in it.
        assert!((0.01..1.5).contains(&share), "{name}: {figures}");
        let requests = sample(&results, 2, name);
        for sample in [sample(&results, 0, name), requests] {
            assert!(sample["cpu"]["total"].as_f64().unwrap() > 0.0, "{name}: {sample}");
            let above = sample["figures"].get("above-direct").is_some();
            assert_eq!(above, name != "direct", "{name}: {sample}");
            let balancer = sample["figures"].get("balancer").is_some_and(|cpu| cpu.as_f64() > Some(0.0));
            // In the kernel packets take none of the time of penstock's process.
            assert!(name == "penstock-tc" || balancer == (name != "direct"), "{name}: {sample}");
        }
    }
    let file = fs::read_to_string(scratch.path().join("r.json")).unwrap();
    assert!(
        file.contains("tx off") && file.contains("protocol = \\\"dsr\\\""),
        "the report shows the network"
    );
    assert_eq!(processes(scratch.path()), Vec::<PathBuf>::new());
    assert_eq!(named(), before);
}

#[test]
fn where_checksums_are_left_to_the_network_card_penstock_passes_requests_and_the_failure_of_pen_is_told() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    for program in ["pen", "nginx"] {
        tools::program(program);
    }
    let _only = super::only_run();
    let scratch = tempfile::tempdir().unwrap();
    let arguments = ["dsr/requests-offload", "--rounds", "1", "--duration", "300ms", "--json", "r.json"];
    assert!(bench(scratch.path(), &arguments).status().unwrap().success());
    let results = results(scratch.path());
    for name in ["direct", "penstock-tc", "penstock-af_packet"] {
        let sample = sample(&results, 0, name);
        assert_eq!(sample["errors"], 0, "{name}: {sample}");
        assert!(sample["units"].as_f64().unwrap() > 0.0, "{name}: {sample}");
    }
    let contestants = results["scenarios"][0]["groups"][0]["contestants"].as_array().unwrap();
    let pen = contestants.iter().find(|contestant| contestant["name"] == "pen").unwrap();
    assert!(pen["failed"].as_str().unwrap().contains("no response"), "{pen}");
}

#[test]
fn a_run_that_is_killed_takes_its_machines_along() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let _only = super::only_run();
    let scratch = tempfile::tempdir().unwrap();
    let before = named();
    let arguments = ["dsr/packets-25k", "--rounds", "100", "--duration", "60s", "--json", "r.json"];
    let mut child = bench(scratch.path(), &arguments).spawn().unwrap();
    eventually("two machines and a bridge are there", secs(60), || {
        (foreign_networks(&processes(scratch.path())).len() >= 3).then_some(())
    });
    let networks = foreign_networks(&processes(scratch.path()));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    eventually("all processes are gone", secs(60), || processes(scratch.path()).is_empty().then_some(()));
    eventually(&format!("no process is in {networks:?}"), secs(60), || {
        let all: Vec<_> = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).collect();
        foreign_networks(&all).is_disjoint(&networks).then_some(())
    });
    assert_eq!(named(), before);
}
