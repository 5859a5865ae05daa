//! What a newcomer types, and what is said to it: lists of groups, ports where only names go, times with units, help and man pages.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use support::fleet::{Fleet, Told, sorted, told};
use support::lab::Lab;
use support::secs;
use support::server::{BINARY, clear_environment, penstock, run_to_end};

/// Hosts of a lab that are the groups web (1 and 2), db (3) and small (1).
fn grouped(lab: &Lab) -> Fleet {
    let fleet = Fleet::of_lab(&lab.file("ssh_config"));
    let usual = fleet.penstock("host", &[]);
    let mut import = Command::new(BINARY);
    import.args(["host", "import"]).arg(lab.file("known_hosts"));
    import.envs(usual.get_envs().filter_map(|(name, value)| Some((name, value?))));
    assert!(run_to_end(&mut import, secs(60)).status.success());
    let groups = "web: lab[001-002]\ndb: lab003\nsmall: lab001\n";
    fs::write(fleet.home.path().join("config/penstock/groups"), groups).unwrap();
    fleet
}

#[test]
fn every_name_of_a_list_of_groups_is_a_group_for_run_and_for_copies() {
    let lab = Lab::start(4, &[]);
    let fleet = grouped(&lab);
    let both = ["lab001", "lab002", "lab003"];
    for (groups, hosts) in [
        ("web,db", &both[..]),
        ("@web,db", &both[..]),
        ("web,@db", &both[..]),
        ("web db", &both[..]),
        ("web!small,db", &both[1..]),
        ("web&small", &both[..1]),
        ("penstock:*!web", &both[2..]),
    ] {
        let told = fleet.run(&["-g", groups, "hostname"]);
        let said: Vec<String> = hosts.iter().map(|host| format!("{host} -> {host}")).collect();
        assert_eq!(
            (told.code, sorted(&told.stdout)),
            (Some(0), said.iter().map(String::as_str).collect()),
            "{groups}: {told:?}"
        );
    }
    let wrong = fleet.run(&["-g", "web,lab003", "hostname"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("node set \"web,lab003\", column 5: no group \"lab003\""), "{wrong:?}");
    let here = tempfile::tempdir().unwrap();
    fs::write(here.path().join("note"), "x").unwrap();
    let copy = |name: &str, arguments: &[&str]| {
        let mut command = fleet.penstock(name, arguments);
        told(run_to_end(command.current_dir(here.path()), secs(60)))
    };
    for told in
        [copy("put", &["-g", "web,db", "note", "there"]), copy("get", &["-g", "web,db", "there", "back"])]
    {
        assert_eq!(told.code, Some(0), "{told:?}");
        assert!(told.stderr.starts_with("3 hosts: 3 well, 3 files"), "{told:?}");
    }
}

#[test]
fn fault_that_no_lab_could_count_is_refused_and_one_that_it_counts_heals() {
    for name in ["refuse", "blackhole"] {
        let output = penstock(&["lab", "2", "--fault", &format!("{name}@1=2"), "--", "true"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{name}: {said}");
        assert!(said.contains(&format!("{name} cannot end after some connections")), "{said}");
        assert!(said.contains("turn-away@N"), "{said}");
    }
    let help = String::from_utf8(penstock(&["lab", "--help"]).stdout).unwrap();
    assert!(!help.contains("refuse@"), "the help has an example that is refused: {help}");
    let lab = Lab::start(2, &["--fault", "deny@1=2"]);
    let fleet = grouped(&lab);
    let codes = [0; 2].map(|_| fleet.run(&["-w", "lab002", "true"]).code);
    assert_eq!(codes, [Some(3), Some(0)]);
}

#[test]
fn port_behind_a_name_is_told_where_it_goes_and_one_of_ipv6_is_understood() {
    let home = tempfile::tempdir().unwrap();
    let told = |arguments: &[&str]| -> Told {
        let mut command = Command::new(BINARY);
        command.env_clear().env("HOME", home.path()).env("USER", "me").env("PATH", "/usr/bin:/bin");
        told(run_to_end(command.args(arguments).stdin(Stdio::null()), secs(60)))
    };
    let advice = "a port does not go behind the name of a host: write \"web1.invalid\", and in ~/.ssh/config \"Host web1.invalid\" with \
                  \"Port 2222\"";
    let run = told(&["run", "-w", "web1.invalid:2222", "true"]);
    assert_eq!(run.code, Some(3), "{run:?}");
    assert!(run.stderr.contains(advice) && !run.stderr.contains("HostName for"), "{run:?}");
    let explained = told(&["ssh", "explain", "web1.invalid:2222"]);
    assert!(explained.stdout.contains(advice), "{explained:?}");
    assert!(
        explained.stdout.contains("for this once: penstock ssh explain web1.invalid -p 2222"),
        "{explained:?}"
    );
    // A name without a port has the advice of before, and the port of an address of IPv6 is one.
    let named = told(&["run", "-w", "web1.invalid", "true"]);
    assert!(named.stderr.contains("HostName for web1.invalid in ~/.ssh/config"), "{named:?}");
    for host in ["[::1]:1", "me@[::1]:1"] {
        let bracketed = told(&["run", "-w", host, "true"]);
        assert!(bracketed.stderr.contains("connect to ::1 at [::1]:1: "), "{bracketed:?}");
    }
}

#[test]
fn times_in_options_have_the_units_of_the_configuration() {
    let lab = Lab::start(1, &[]);
    let fleet = grouped(&lab);
    for time in ["1m", "90000ms", "90", "0.5h"] {
        let told = fleet.run(&[
            "-w",
            "lab001",
            "--timeout",
            time,
            "--connect-timeout",
            time,
            "--delay",
            "1ms",
            "hostname",
        ]);
        assert_eq!(told.code, Some(0), "{time}: {told:?}");
    }
    // A unit counts: this is no second.
    let told = fleet.run(&["-w", "lab001", "--timeout", "1ms", "sleep 30"]);
    assert_ne!(told.code, Some(0), "{told:?}");
    assert!(told.stderr.contains("command timed out (1): lab001"), "{told:?}");
    for (option, time, why) in [
        ("--timeout", "1M", "\"1M\" has an unknown unit: use ms, s, m, h or d; write \"1m\""),
        ("--timeout", "0s", "a number of seconds is above 0"),
        ("--connect-timeout", "200d", "a number of seconds is 10000000 at most"),
        ("--delay", "0.1ms", "is no whole number of milliseconds"),
    ] {
        let told = fleet.run(&["-w", "lab001", option, time, "true"]);
        assert_eq!(told.code, Some(2), "{told:?}");
        assert!(told.stderr.contains(why), "{told:?}");
    }
    // The same in other commands: what is wrong here is that nobody listens.
    let ctl = penstock(&["ctl", "--socket", "/nonexistent", "--timeout", "1m", "status"]);
    assert_eq!(ctl.status.code(), Some(1), "{ctl:?}");
}

#[test]
fn forward_that_everybody_reaches_is_told_when_the_tunnel_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("penstock.toml");
    let section = |name: &str| {
        format!(
            "[tunnel.{name}]\nhost = \"nowhere.invalid\"\n[tunnel.{name}.forward.db]\nlisten = \":0\"\nconnect = \"127.0.0.1:1\"\n"
        )
    };
    fs::write(&file, section("mine") + &section("other")).unwrap();
    for what in [&["check"][..], &["up", "--once"]] {
        let mut command = Command::new(BINARY);
        command.arg("tunnel").args(what).arg("mine").arg("--config").arg(&file);
        for name in ["HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME"] {
            command.env(name, directory.path());
        }
        let told = told(run_to_end(command.stdin(Stdio::null()), secs(60)));
        let warning = format!(
            "warning: {}:4: tunnel.mine.forward.db.listen: whoever reaches this address gets through the tunnel, without a password\n  \
             hint: listen on 127.0.0.1",
            file.display()
        );
        assert!(told.stderr.contains(&warning), "{what:?}: {told:?}");
        assert!(!told.stderr.contains("tunnel.other"), "{told:?}");
    }
}

#[test]
fn part_of_a_fingerprint_that_is_not_its_end_is_said_to_be_that() {
    let lab = Lab::start(1, &[]);
    let fleet = grouped(&lab);
    let host = |arguments: &[&str]| {
        let usual = fleet.penstock("host", &[]);
        let mut command = Command::new(BINARY);
        command.arg("host").args(arguments).stdin(Stdio::null());
        command.envs(usual.get_envs().filter_map(|(name, value)| Some((name, value?))));
        told(run_to_end(&mut command, secs(60)))
    };
    let shown = host(&["show", "lab001"]).stdout;
    let fingerprint = shown.split("SHA256:").nth(1).unwrap().split_whitespace().next().unwrap();
    let (first, last) = (&fingerprint[..8], &fingerprint[fingerprint.len() - 8..]);
    let begun = host(&["revoke", "lab001", first]);
    assert_eq!(begun.code, Some(1), "{begun:?}");
    assert!(begun.stderr.contains(&format!("has {first} in it, but does not end in it")), "{begun:?}");
    assert!(begun.stderr.contains("its last 8 characters or more"), "{begun:?}");
    let other = host(&["revoke", "lab001", "AAAAAAAAAAAA"]);
    assert!(other.stderr.contains("lab001 has no key whose fingerprint ends in AAAAAAAAAAAA"), "{other:?}");
    assert_eq!(host(&["revoke", "lab001", last]).code, Some(0));
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn every_command_has_its_page_by_its_words_and_by_its_name() {
    let spaced = text(&penstock(&["man", "host", "add"]));
    assert!(spaced.contains(".TH penstock-host-add"), "{spaced}");
    for words in [&["host-add"][..], &["penstock-host-add"], &["host", "enrol"]] {
        assert_eq!(text(&penstock(&[&["man"], words].concat())), spaced, "{words:?}");
    }
    for (words, title) in
        [(&["known-hosts"][..], "penstock-known-hosts"), (&["tunnel", "with"], "penstock-tunnel-with")]
    {
        assert!(text(&penstock(&[&["man"], words].concat())).contains(&format!(".TH {title}")), "{words:?}");
    }
    for words in [&["host", "ad"][..], &["host-"], &["hos"], &["host", "add", "more"]] {
        let output = penstock(&[&["man"], words].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}: {output:?}");
    }
    assert!(text(&penstock(&["--help"])).contains("\n  man "), "man is not listed");
}

/// Help as one line, however it is wrapped.
fn help(arguments: &[&str]) -> String {
    text(&penstock(arguments)).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn help_says_what_newcomers_asked() {
    for command in ["run", "put", "get"] {
        let help = help(&[command, "--help"]);
        assert!(help.contains("'@*' is every host of every group"), "{command}: {help}");
    }
    let run = help(&["run", "--help"]);
    for part in [
        "failed>2% (of all hosts that are done",
        "Not with --script: a script goes to the host as standard input itself",
        "removed if it says nothing now",
        "unleashed",
        "standing what --again goes by",
    ] {
        assert!(run.contains(part), "{part}: {run}");
    }
    for (arguments, part) in [
        (&["tunnel", "with", "--help"][..], "TUNNEL_NAME_PORT"),
        (&["tunnel", "status", "--help"], "error, error_age, error_mended"),
        (&["serve", "--help"], "ssh:HOST/127.0.0.1:8000"),
        (&["bench", "--help"], "A `bar` is a limit that this project sets itself"),
    ] {
        let help = help(arguments);
        assert!(help.contains(part), "{arguments:?}: {help}");
    }
}

#[test]
fn every_field_of_json_is_in_the_help() {
    let lab = Lab::start(3, &["--fault", "refuse=1", "--fault", "signal=2"]);
    let fleet = grouped(&lab);
    let help = help(&["run", "--help"]);
    let table = help.split("--json, one object a line").nth(1).unwrap();
    let words: std::collections::HashSet<&str> =
        table.split(|sign: char| !(sign.is_ascii_alphanumeric() || sign == '_')).collect();
    let told = fleet.run(&["-w", "lab[001-003]", "--json", "printf 'a\\377'"]);
    let mut objects: Vec<Value> =
        told.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    objects.push(serde_json::from_str(&fleet.run(&["--last", "--json"]).stdout).unwrap());
    let inner: Vec<Value> = objects
        .iter()
        .flat_map(|object| [&object["groups"], &object["hosts"]])
        .filter_map(Value::as_array)
        .flatten()
        .cloned()
        .collect();
    assert!(objects.len() > 5 && inner.len() >= 5, "{objects:?}");
    for object in objects.iter().chain(&inner) {
        for (field, _) in object.as_object().into_iter().flatten() {
            assert!(words.contains(field.as_str()), "{field} of {object} is not in the table");
        }
    }
}

/// The kernel exempts root from the limit of processes: as root the program runs as another user.
#[test]
fn where_the_kernel_gives_no_thread_a_command_says_so_and_does_not_panic() {
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    // The other user may not be allowed to go where the program is.
    let program = place.path().join("penstock");
    fs::copy(BINARY, &program).unwrap();
    for words in [&["tunnel", "status"][..], &["lab", "1"], &["run", "-F", "none", "-w", "192.0.2.1", "true"]]
    {
        let mut command = match nix::unistd::geteuid().is_root() {
            true => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "bash"]);
                command
            }
            false => Command::new("bash"),
        };
        clear_environment(&mut command);
        command.args(["-c", "ulimit -u 1; exec \"$@\"", "bash"]).arg(&program).args(words);
        command.env("HOME", place.path()).current_dir(place.path()).stdin(Stdio::null());
        let output = run_to_end(&mut command, secs(60));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("error: cannot start ") && stderr.contains("hint: "), "{words:?}: {stderr}");
        assert!(!stderr.contains("panicked") && output.status.code() == Some(1), "{words:?}: {output:?}");
    }
}
