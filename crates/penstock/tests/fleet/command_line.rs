//! What a newcomer types, and what is said to it: lists of groups, ports where only names go, times with units, help and man pages.

use std::fs;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use testing::fleet::{Fleet, RunResult, sorted, told};
use testing::lab::Lab;
use testing::secs;
use testing::server::{binary, clear_environment, penstock, run_to_end};

/// Hosts of a lab that are the groups web (1 and 2), db (3) and small (1).
fn grouped(lab: &Lab) -> Fleet {
    let fleet = Fleet::of_lab(&lab.file("ssh_config"));
    let usual = fleet.penstock("host", &[]);
    let mut import = Command::new(binary());
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
        assert!(told.stderr.starts_with("3 hosts: 3 ok, 3 files"), "{told:?}");
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
    let told = |arguments: &[&str]| -> RunResult {
        let mut command = Command::new(binary());
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
fn host_without_its_option_is_said_to_be_taken_for_the_command() {
    let said = |arguments: &[&str]| {
        let output = penstock(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(
        said(&["run", "srv2", "df -h", "/"]),
        "error: no hosts; srv2 'df -h' / was taken for the command\n  \
         hint: if srv2 is a host: penstock run -w srv2 -- 'df -h' /\n"
    );
    assert_eq!(
        said(&["run", "uptime"]),
        "error: no hosts; uptime was taken for the command\n  hint: -w 'web[1-3]', -g GROUP, or --hosts FILE\n"
    );
}

#[test]
fn endless_lists_of_hosts_and_names_that_are_too_long_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let told = |script: &str| {
        let mut shell = Command::new("sh");
        clear_environment(&mut shell);
        shell.args(["-c", script, binary()]).env("HOME", home.path()).stdin(Stdio::null());
        let told = told(run_to_end(&mut shell, secs(60)));
        assert_eq!(told.code, Some(2), "{script}: {told:?}");
        told.stderr
    };
    let too_long = "it is longer than 16 MiB, the most";
    assert!(told("yes | \"$0\" run --hosts - true").contains(too_long));
    assert!(told("\"$0\" run --hosts /dev/zero true").contains(too_long));
    let name = told("\"$0\" run -w $(head -c 600 /dev/zero | tr '\\0' x) true");
    assert!(name.contains("it has 600 bytes, and 512 are the most"), "{name}");
    fs::create_dir_all(home.path().join(".config/penstock")).unwrap();
    let groups = fs::File::create(home.path().join(".config/penstock/groups")).unwrap();
    groups.set_len(17 << 20).unwrap();
    assert!(told("\"$0\" run -g web true").contains(too_long));
}

#[test]
fn numbers_and_words_that_are_no_values_are_told_as_such() {
    for (words, said) in [
        (&["run", "-w", "h", "-p", "x", "true"][..], "'x' for '--parallel <N>': it is not a whole number"),
        (&["get", "-w", "h", "--max-files", "", "a", "b"], "it is empty, not a whole number"),
        (&["get", "-w", "h", "--max-files", "99999999999999999999", "a", "b"], "it is too large"),
        (&["run", "-w", "h", "--mask", "dat", "true"], "did you mean \"date\"?"),
        (&["run", "-w", "h", "--waves", "1,al", "true"], "did you mean \"all\"?"),
        (&["run", "-w", "h", "--waves", "1", "--stop-if", "difers", "true"], "did you mean \"differs\"?"),
        (&["run", "-w", "h", "--waves", "1", "--stop-if", "faild>2", "true"], "did you mean \"failed>2\"?"),
        (&["run", "-w", "h", "--waves", "1", "--stop-if", "failed", "true"], "did you mean \"failed>0\"?"),
    ] {
        let output = penstock(words);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {stderr}");
        assert!(stderr.contains(said), "{words:?}: {stderr}");
    }
}

#[test]
fn help_and_verdicts_that_cannot_be_printed_do_not_lose_their_exit_code() {
    let home = tempfile::tempdir().unwrap();
    let told = |script: &str| {
        let mut shell = Command::new("bash");
        clear_environment(&mut shell);
        shell.args(["-c", script, binary()]).env("HOME", home.path()).stdin(Stdio::null());
        told(run_to_end(&mut shell, secs(60)))
    };
    for words in ["--help", "--version", "run --help", "run --mpssh --help"] {
        let full = told(&format!("\"$0\" {words} > /dev/full"));
        assert_eq!(full.code, Some(1), "{words}: {full:?}");
        assert!(full.stderr.contains("cannot write to standard output"), "{words}: {full:?}");
        assert_eq!(told(&format!("\"$0\" {words} | true; exit ${{PIPESTATUS[0]}}")).code, Some(0), "{words}");
    }
    // `sleep` has no standard output open by then: the reader is gone.
    let gone = told("\"$0\" host why web1.invalid > >(exec true); exit $?");
    assert_eq!(gone.code, Some(1), "{gone:?}");
    let closed = told("exec 3> >(exec true); wait $!; \"$0\" host why web1.invalid >&3");
    assert_eq!(closed.code, Some(1), "{closed:?}");
}

#[test]
fn unknown_group_is_told_with_our_own_file_of_groups() {
    let home = tempfile::tempdir().unwrap();
    let shell = home.path().join("shell");
    fs::create_dir_all(&shell).unwrap();
    fs::write(shell.join("groups.conf"), "[Main]\ndefault: lab\nautodir: $CFGDIR\n").unwrap();
    fs::write(shell.join("lab.yaml"), "lab:\n  web: w1\n").unwrap();
    let mut command = Command::new(binary());
    command.env_clear().env("HOME", home.path()).env("CLUSTERSHELL_CFGDIR", &shell);
    let told = told(run_to_end(command.args(["run", "-g", "nope", "true"]).stdin(Stdio::null()), secs(60)));
    let own =
        format!("; our own file {} does not exist", home.path().join(".config/penstock/groups").display());
    assert!(told.stderr.contains("no group \"nope\" in \"lab\"") && told.stderr.contains(&own), "{told:?}");
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
        ("--timeout", "0s", "the number of seconds must be greater than 0"),
        ("--connect-timeout", "200d", "a number of seconds is 10000000 at most"),
        ("--delay", "0.1ms", "is not a whole number of milliseconds"),
    ] {
        let told = fleet.run(&["-w", "lab001", option, time, "true"]);
        assert_eq!(told.code, Some(2), "{told:?}");
        assert!(told.stderr.contains(why), "{told:?}");
    }
    // The same in other commands: what is wrong here is that no server listens.
    let ctl = penstock(&["ctl", "--socket", "/nonexistent", "--timeout", "1m", "status"]);
    assert_eq!(ctl.status.code(), Some(1), "{ctl:?}");
}

#[test]
fn forward_that_all_users_reach_is_told_when_the_tunnel_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("penstock.toml");
    let section = |name: &str| {
        format!(
            "[tunnel.{name}]\nhost = \"nowhere.invalid\"\n[tunnel.{name}.forward.db]\nlisten = \":0\"\nconnect = \"127.0.0.1:1\"\n"
        )
    };
    fs::write(&file, section("mine") + &section("other")).unwrap();
    for what in [&["check"][..], &["up", "--once"]] {
        let mut command = Command::new(binary());
        command.arg("tunnel").args(what).arg("mine").arg("--config").arg(&file);
        for name in ["HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME"] {
            command.env(name, directory.path());
        }
        let told = told(run_to_end(command.stdin(Stdio::null()), secs(60)));
        let warning = format!(
            "warning: {}:4: tunnel.mine.forward.db.listen: every client that reaches this address can use the tunnel, without a password\n  \
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
        let mut command = Command::new(binary());
        command.arg("host").args(arguments).stdin(Stdio::null());
        command.envs(usual.get_envs().filter_map(|(name, value)| Some((name, value?))));
        told(run_to_end(&mut command, secs(60)))
    };
    let shown = host(&["show", "lab001"]).stdout;
    let fingerprint = shown.split("SHA256:").nth(1).unwrap().split_whitespace().next().unwrap();
    let (first, last) = (&fingerprint[..16], &fingerprint[fingerprint.len() - 16..]);
    let begun = host(&["revoke", "lab001", first]);
    assert_eq!(begun.code, Some(1), "{begun:?}");
    assert!(begun.stderr.contains(&format!("has {first} in it, but does not end in it")), "{begun:?}");
    assert!(begun.stderr.contains("at least its last 16 characters"), "{begun:?}");
    let other = host(&["revoke", "lab001", "AAAAAAAAAAAAAAAA"]);
    assert!(
        other.stderr.contains("lab001 has no key whose fingerprint ends in AAAAAAAAAAAAAAAA"),
        "{other:?}"
    );
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
        "unwatched",
        "result what --again goes by",
    ] {
        assert!(run.contains(part), "{part}: {run}");
    }
    for (arguments, part) in [
        (&["tunnel", "with", "--help"][..], "TUNNEL_NAME_PORT"),
        (&["tunnel", "status", "--help"], "error, error_age_seconds"),
        (&["serve", "--help"], "ssh:HOST/127.0.0.1:8000"),
        (&["bench", "--help"], "Limits are what this project demands of itself"),
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
    // By another program: what this one had open for writing a child of another test may hold for a moment, and then it
    // cannot be started.
    assert!(Command::new("cp").arg(binary()).arg(&program).status().unwrap().success());
    for words in [
        &["tunnel", "status"][..],
        &["lab", "1"],
        &["run", "-F", "none", "-w", "192.0.2.1", "true"],
        &["host", "why", "web1.invalid"],
        &["host", "add", "web1.invalid", "--trust-on-first-use"],
    ] {
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

#[test]
fn relative_path_in_a_variable_for_directories_is_said_to_be_ignored() {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(binary());
    command.env_clear().env("HOME", home.path()).env("XDG_CONFIG_HOME", "conf").args(["host", "list"]);
    let told = told(run_to_end(command.env("XDG_STATE_HOME", "").stdin(Stdio::null()), secs(60)));
    assert_eq!(told.stderr, "note: XDG_CONFIG_HOME is ignored: conf is not an absolute path\n", "{told:?}");
}

#[test]
fn command_without_any_directory_names_the_variable_to_set_and_writes_nothing() {
    let state = "no state directory: neither XDG_STATE_HOME nor HOME is an absolute path, and the password database has no home \
                 directory for uid 54321; set HOME or XDG_STATE_HOME";
    let configuration = "no configuration directory: neither XDG_CONFIG_HOME nor HOME is an absolute path, and the password database \
                         has no home directory for uid 54321; set HOME or XDG_CONFIG_HOME";
    let home = "no home directory: HOME is not an absolute path, and the password database has no home directory for uid 54321; set HOME";
    let user = "the home directory of user 54321 is unknown: set HOME and USER";
    let here = tempfile::tempdir().unwrap();
    for (arguments, code, said) in [
        (&["run", "--last"][..], 2, state),
        (&["run", "--again", "failed"], 2, state),
        (&["put", "--last"], 2, state),
        (&["get", "--again", "failed"], 2, state),
        (&["run", "-w", "web1", "true"], 2, user),
        (&["run", "-S", "/bin/true", "-w", "web1", "true"], 0, state),
        (&["run", "-g", "web", "true"], 2, configuration),
        (&["host", "list"], 1, configuration),
        (&["host", "import"], 1, configuration),
        (&["known-hosts", "web1"], 1, configuration),
        (&["ssh", "config", "web1"], 1, user),
        (&["ssh", "explain", "web1"], 1, user),
        (&["tunnel", "status"], 1, state),
        (&["tunnel", "up", "nas"], 1, state),
        (&["tunnel", "unwind"], 1, state),
    ] {
        // This user is in no password database. What it may read is that of the one who runs the test.
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-user=54321", binary()]).args(arguments);
        clear_environment(&mut command);
        command.env_remove("HOME").env_remove("USER").current_dir(here.path()).stdin(Stdio::null());
        for name in ["XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"] {
            command.env(name, "relative");
        }
        let told = told(run_to_end(&mut command, secs(60)));
        assert_eq!(told.code, Some(code), "{arguments:?}: {told:?}");
        assert!(told.stderr.contains(said), "{arguments:?}: {told:?}");
        assert_eq!(
            fs::read_dir(here.path()).unwrap().count(),
            0,
            "{arguments:?} took a relative path: {told:?}"
        );
    }
    // Where only the home directory is missing, that is what is said.
    let mut import = Command::new("unshare");
    import.args(["--user", "--map-user=54321", binary(), "host", "import"]).current_dir(here.path());
    clear_environment(&mut import);
    import.env_remove("HOME").stdin(Stdio::null());
    for name in ["XDG_CONFIG_HOME", "XDG_STATE_HOME"] {
        import.env(name, here.path());
    }
    let told = told(run_to_end(&mut import, secs(60)));
    assert!(told.stderr.contains(home) && told.stderr.contains("or name the known_hosts file"), "{told:?}");
}

#[test]
fn a_negative_number_is_told_with_its_option() {
    for (words, said) in [
        (
            &["run", "--timeout", "-5", "-w", "h1", "true"][..],
            "error: --timeout -5: a value here is never negative",
        ),
        (&["run", "-p", "-3", "-w", "h1", "true"], "error: -p -3: a value here is never negative"),
        (&["ctl", "weight", "b", "-3"], "error: -3: a value here is never negative"),
    ] {
        let output = Command::new(binary()).args(words).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && text.contains(said), "{words:?}: {text}");
    }
}
