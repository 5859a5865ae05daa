//! Tiny runs of the scenarios `tcp`, `udp`, `tls`, `ciphers` and `fleet`: penstock does all of the work without a failure, and each
//! peer that is installed does the work or has its failure in the results.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Runs groups of a scenario and gives its part of the results. A trial in which no work is finished fails, so each is long
/// enough for programs that are not optimised, on a machine that does other things.
fn run(scenario: &str, groups: &[&str], trial: &str) -> Value {
    let _only = super::only_run();
    let scratch = tempfile::tempdir().unwrap();
    // The limit of descriptors says how many connections the groups `idle` hold: 600 tell as much here as 9,000.
    let mut command = Command::new("prlimit");
    command.args(["--nofile=2000:2000", "--", testing::binary(), "bench"]);
    command.args(groups.iter().map(|group| format!("{scenario}/{group}")));
    command.args(["--quick", "--rounds", "1", "--duration", trial, "--json", "r.json"]);
    command.env("TMPDIR", scratch.path()).current_dir(scratch.path()).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
    let text = fs::read(scratch.path().join("r.json")).unwrap();
    let mut results: Value = serde_json::from_slice(&text).unwrap();
    let left: Vec<_> = fs::read_dir(scratch.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    results["scenarios"][0].take()
}

/// Looks at every sample and gives the names of the groups.
fn groups(scenario: &Value) -> Vec<&str> {
    let mut names = Vec::new();
    for group in scenario["groups"].as_array().unwrap() {
        let contestants = group["contestants"].as_array().unwrap();
        assert!(contestants.iter().any(|contestant| contestant["name"] == "penstock"));
        for contestant in contestants {
            let place = format!("{}: {}", group["id"], contestant["name"]);
            let sample = &contestant["samples"][0];
            // What a peer does wrong, a connection that it resets for example, is a result, and the report has it.
            let ours = contestant["name"] == "penstock";
            if !ours && (!contestant["failed"].is_null() || sample["errors"] != 0) {
                println!("{place}: {} {}", contestant["failed"], sample["first_error"]);
                continue;
            }
            assert!(contestant["failed"].is_null(), "{place}: {}", contestant["failed"]);
            assert_eq!(sample["errors"], 0, "{place}: {}", sample["first_error"]);
            assert!(sample["units"].as_f64().unwrap() > 0.0, "{place}");
            if group["id"] == "idle" {
                let all = sample["figures"]["memory-all"].as_f64().unwrap();
                let growth = sample["figures"]["memory-growth"].as_f64().unwrap();
                assert!(growth >= 0.0 && all > growth, "{place}: {growth} of {all}");
            } else {
                assert!(sample["cpu"]["total"].as_f64().unwrap() > 0.0, "{place}");
            }
        }
        names.push(group["id"].as_str().unwrap());
    }
    names
}

#[test]
fn every_relay_passes_connections_and_streams_and_holds_idle_ones() {
    let expected = ["connections", "connections-alone", "download", "upload", "connections-unix", "idle"];
    assert_eq!(groups(&run("tcp", &expected, "300ms")), expected);
}

#[test]
fn every_relay_of_datagrams_passes_queries_and_long_flows() {
    let expected = ["queries", "flow", "flows", "download"];
    let scenario = run("udp", &expected, "300ms");
    assert_eq!(groups(&scenario), expected);
    let names = |group: usize| -> Vec<_> {
        let contestants = scenario["groups"][group]["contestants"].as_array().unwrap();
        contestants.iter().map(|contestant| contestant["name"].as_str().unwrap().to_owned()).collect()
    };
    for (group, id) in expected.iter().enumerate() {
        let same = names(group) == names(0);
        assert!(same, "{id}: {:?}, and not {:?}", names(group), names(0));
    }
}

#[test]
fn every_terminator_shakes_hands_and_passes_requests_and_streams() {
    let expected =
        ["full-p256-tls13", "full-rsa-tls13", "resumed-p256-tls13", "requests", "download", "idle"];
    assert_eq!(groups(&run("tls", &expected, "300ms")), expected);
}

#[test]
fn every_ssh_client_carries_streams_with_real_sshd_and_logs_in() {
    let expected = ["down-aes256-ctr", "down-aes128-gcm", "up-chacha20-poly1305", "connect"];
    let scenario = run("ciphers", &expected, "1500ms");
    assert_eq!(groups(&scenario), expected);
    let names = |group: usize| -> Vec<_> {
        let contestants = scenario["groups"][group]["contestants"].as_array().unwrap();
        contestants.iter().map(|contestant| contestant["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(1), ["penstock", "openssh", "raw-aead"]);
    assert_eq!(names(0), ["penstock", "openssh"], "CTR mode has no AEAD");
    let server = &scenario["groups"][1]["contestants"][0]["samples"][0]["figures"]["server-cpu"];
    assert!(server.as_f64().unwrap() > 0.0, "{server}");
}

#[test]
fn every_program_that_runs_commands_reaches_every_host_of_the_lab() {
    assert_eq!(groups(&run("fleet", &["hosts-100"], "300ms")), ["hosts-100"]);
}
