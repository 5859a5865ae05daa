//! `penstock run` against the lab: every fault it can play, and more hosts than descriptors.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use testing::fleet::{Fleet, told};
use testing::lab::Lab;
use testing::secs;
use testing::server::{binary, clear_environment, run_to_end};

/// A fault of the lab: its name on the command line, the phase in which it shows, and how a host with it ends (a description follows).
struct Fault {
    name: String,
    phase: String,
    end: String,
}

fn faults() -> Vec<Fault> {
    let output = Command::new(binary()).args(["lab", "--list"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let fault = |line: &str| {
        let (name, rest) = line.split_once(char::is_whitespace).unwrap();
        let (phase, rest) = rest.trim_start().split_once(char::is_whitespace).unwrap();
        let name = name.split('[').next().unwrap();
        Fault { name: name.to_owned(), phase: phase.to_owned(), end: rest.trim_start().to_owned() }
    };
    text.lines().map(fault).collect()
}

/// A home that knows the hosts of the lab.
fn fleet(lab: &Lab) -> Fleet {
    let fleet = Fleet::of_lab(&lab.file("ssh_config"));
    let mut import = Command::new(binary());
    clear_environment(&mut import);
    import.args(["host", "import"]).arg(lab.file("known_hosts")).env("HOME", fleet.home.path());
    for (name, place) in [("XDG_STATE_HOME", "state"), ("XDG_CONFIG_HOME", "config")] {
        import.env(name, fleet.home.path().join(place));
    }
    let output = run_to_end(&mut import, secs(60));
    assert!(output.status.success(), "{output:?}");
    fleet
}

#[test]
fn every_fault_of_the_lab_ends_in_its_phase_with_its_verdict_and_its_exit_status() {
    let faults = faults();
    assert!(faults.len() > 35, "the list of faults cannot be read");
    let assigned: Vec<String> = faults
        .iter()
        .enumerate()
        .flat_map(|(at, fault)| {
            let shorter = match fault.name.as_str() {
                "slow-auth" => ":300",
                "long-line" => ":200000",
                _ => "",
            };
            ["--fault".to_owned(), format!("{}{shorter}={}", fault.name, at + 1)]
        })
        .collect();
    let assigned: Vec<&str> = assigned.iter().map(String::as_str).collect();
    let lab = Lab::start(faults.len() + 2, &assigned);
    let fleet = fleet(&lab);
    let hosts = lab.path("hosts");
    let told = fleet.run(&[
        "--json",
        "--hosts",
        &hosts,
        // Some fifty handshakes at once, on a busy machine: each fault that hangs has a limit of its own, so all of them take
        // this time once.
        "--connect-timeout",
        "20",
        "--timeout",
        "20",
        "echo hi; flood 20000",
    ]);
    let events: Vec<Value> = told.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ends: HashMap<&str, &Value> = events
        .iter()
        .filter(|event| event["event"] == "end")
        .map(|event| (event["host"].as_str().unwrap(), event))
        .collect();
    assert_eq!(ends.len(), faults.len() + 2, "each host ends once");
    let width = (faults.len() + 2).to_string().len().max(3);
    let mut wrong = Vec::new();
    for (at, fault) in faults.iter().enumerate() {
        let end = ends[format!("lab{:0width$}", at + 1).as_str()];
        let (seen, status) = match (end["exit_status"].as_u64(), end["signal"].as_str()) {
            (Some(code), _) => (format!("exit {code}"), u64::from(code != 0)),
            (_, Some(signal)) => (format!("signal {signal}"), 1),
            _ => {
                let (remote, status) = match end["remote"].as_str().unwrap() {
                    "not-started" => ("not started", 3),
                    "ended" => ("ended there", 1),
                    _ => ("may have run", 5),
                };
                let reason = end["reason"].as_str().unwrap();
                let identity = ["key-changed", "wrong-host", "key-refused"].contains(&reason);
                (format!("{reason}, {remote}"), if identity { 4 } else { status })
            }
        };
        let phase = end["phase"].as_str().unwrap_or(&fault.phase);
        if !fault.end.starts_with(&seen) || phase != fault.phase || end["exit_code"].as_u64() != Some(status)
        {
            wrong.push(format!(
                "{}: {} at {} expected, {seen} at {phase} seen: {end}",
                fault.name, fault.end, fault.phase
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let summary = events.last().unwrap();
    assert_eq!(
        (summary["event"].as_str(), summary["exit_code"].as_u64(), told.code),
        (Some("summary"), Some(5), Some(5))
    );
    assert!(!told.stdout.contains('\u{1b}'), "nothing on the way may obey a terminal");
}

#[test]
fn a_script_runs_on_the_hosts_of_the_lab() {
    let lab = Lab::start(2, &[]);
    let fleet = fleet(&lab);
    let script = fleet.home.path().join("job.sh");
    fs::write(&script, "#!/bin/sh -e\necho from $HOSTNAME; exec printf '%s\\n' last\necho never\n").unwrap();
    let told = fleet.run(&["--hosts", &lab.path("hosts"), "--script", script.to_str().unwrap()]);
    for line in ["lab001 -> from lab001", "lab002 -> from lab002", "lab001 -> last", "lab002 -> last"] {
        assert!(told.stdout.contains(line), "{line}: {}", told.stdout);
    }
    assert!(!told.stdout.contains("never") && told.code == Some(0), "{}", told.stdout);
}

#[test]
fn more_hosts_than_descriptors_are_all_reached() {
    const HOSTS: usize = 1_000;
    let lab = Lab::start(HOSTS, &[]);
    let fleet = fleet(&lab);
    let run = fleet.command(&["--hosts", &lab.path("hosts"), "hostname"]);
    let mut limited = Command::new("sh");
    limited.arg("-c").arg("ulimit -n 256; exec \"$0\" \"$@\"").arg(run.get_program()).args(run.get_args());
    for (name, value) in run.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    let output = run_to_end(&mut limited, secs(300));
    let text = String::from_utf8_lossy(&output.stdout);
    let said = text.lines().filter(|line| {
        let mut words = line.split_whitespace();
        let name = words.next();
        words.nth(1) == name
    });
    assert_eq!(said.count(), HOSTS, "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn output_of_many_hosts_arrives_whole_through_a_slow_reader() {
    const HOSTS: usize = 40;
    const BYTES: usize = 2_000_000;
    let lab = Lab::start(HOSTS, &[]);
    let fleet = fleet(&lab);
    let directory = fleet.home.path().join("out");
    let told = fleet.run(&[
        "--hosts",
        &lab.path("hosts"),
        "-o",
        directory.to_str().unwrap(),
        &format!("flood {BYTES}"),
    ]);
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    let names = fs::read_to_string(lab.file("hosts")).unwrap();
    let whole = |name: &str| fs::read(Path::new(&directory).join(format!("{name}.out"))).unwrap();
    for name in names.split_whitespace() {
        let bytes = whole(name);
        assert_eq!(bytes.len(), BYTES, "{name}");
        let shown =
            told.stdout.lines().filter_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix("-> "));
        let shown: Vec<&str> = shown.collect();
        assert_eq!(shown.join("\n").as_bytes(), bytes.strip_suffix(b"\n").unwrap_or(&bytes), "{name}");
    }
}

#[test]
fn limit_of_a_step_holds_for_jump_hosts_too() {
    let lab = Lab::start(2, &["--fault=silent=1"]);
    let config = lab.file("ssh_config");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("Host lab002\n  ProxyJump lab001\n{text}")).unwrap();
    let told = fleet(&lab).run(&["-w", "lab002", "--connect-timeout", "0.7", "true"]);
    assert!(told.stdout.contains("jump host: lab001"), "{told:?}");
    assert!(told.stdout.contains("within 0.7 s"), "{told:?}");
    assert_eq!(told.code, Some(3));
}

#[test]
fn time_limit_ends_the_commands_of_the_lab_as_on_other_hosts() {
    let lab = Lab::start(2, &[]);
    let told = fleet(&lab).run(&["--hosts", &lab.path("hosts"), "--timeout", "0.5", "sleep", "600"]);
    assert!(
        told.stderr.contains("still running after 0.5 s; the command was ended on the host\n"),
        "{told:?}"
    );
    assert_eq!(told.code, Some(1), "{told:?}");
}

#[test]
fn ctrl_c_before_a_channel_is_open_ends_the_run_at_once_and_nothing_has_run() {
    let lab = Lab::start(2, &["--fault", "hang-channel=1"]);
    let fleet = fleet(&lab);
    // Longer than this test waits.
    let mut command = fleet.command(&["-w", "lab001", "--connect-timeout", "300", "true"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    lab.wait_for("lab001", "channel session");
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let begun = Instant::now();
    let told = told(child.wait_with_output().unwrap());
    assert!(begun.elapsed() < secs(60), "{told:?}");
    assert_eq!(told.code, Some(130), "{told:?}");
    assert!(told.stderr.contains("interrupted: it had not opened a channel"), "{told:?}");
    assert!(told.stderr.contains("1 host: 0 ok, 1 not started"), "{told:?}");
}
