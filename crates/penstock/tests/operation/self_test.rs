//! `penstock doctor`: each fault of a machine is made for real, found, and told with what mends it.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use testing::pki::{Time, self_signed};
use testing::server::{binary, clear_environment, run_to_end};
use testing::{Server, secs};

/// A configuration in a directory of its own.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn new(listener: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        // Nothing starts with this file: any user that exists will do.
        let text = format!(
            "[process]\nuser = \"nobody\"\n[listener.web]\n{listener}\npool = \"app\"\n[pool.app]\nbackends = [\"127.0.0.1:1\"]\n"
        );
        fs::write(dir.path().join("penstock.toml"), text.replace("@DIR@", dir.path().to_str().unwrap()))
            .unwrap();
        Self { dir }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("penstock.toml")
    }

    /// The findings of one check, with their states.
    fn found(&self, before: &[&str], check: &str) -> Vec<(String, String, Value)> {
        let output = doctor(before, &self.file(), "--json");
        let report: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let findings = report["findings"].as_array().unwrap();
        let is_well = findings.iter().all(|finding| finding["state"] != "fault");
        assert_eq!(
            (&report["ok"], output.status.code()),
            (&is_well.into(), Some(i32::from(!is_well))),
            "{report}"
        );
        let of_check = findings.iter().filter(|finding| finding["check"] == check);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        of_check.map(|it| (text(&it["state"]), text(&it["text"]), it["mend"].clone())).collect()
    }

    #[track_caller]
    fn only(&self, before: &[&str], check: &str) -> (String, String, Value) {
        let mut found = self.found(before, check);
        assert_eq!(found.len(), 1, "{check}: {found:?}");
        found.remove(0)
    }
}

fn doctor(before: &[&str], file: &Path, form: &str) -> Output {
    let words: Vec<&str> = before.iter().copied().chain([binary(), "doctor", form, "--config"]).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(file);
    clear_environment(&mut command);
    run_to_end(&mut command, secs(30))
}

#[test]
fn few_descriptors_are_a_fault_and_many_are_not() {
    let machine = Machine::new("bind = \"127.0.0.1:0\"");
    let (state, text, mend) = machine.only(&["prlimit", "--nofile=700:700"], "descriptors");
    assert_eq!(state, "fault");
    assert!(text.contains("this shell may open 700 descriptors only"), "{text}");
    assert!(mend[0].as_str().unwrap().starts_with("ulimit -Hn 1048576"), "{mend}");
    let (state, text, _) = machine.only(&["prlimit", "--nofile=20000:20000"], "descriptors");
    assert!(state == "ok" && text.contains("20000"), "{text}");
}

#[test]
fn a_port_that_another_process_has_is_told_with_its_name() {
    // Not one of those that the kernel gives other tests at other addresses and for datagrams.
    let taken = TcpListener::bind(("127.0.0.1", testing::port::free())).unwrap();
    let port = taken.local_addr().unwrap().port();
    let name = fs::read_to_string("/proc/self/comm").unwrap();
    for bind in [format!("127.0.0.1:{port}"), format!(":{port}"), format!("0.0.0.0:{port}")] {
        let machine = Machine::new(&format!("bind = \"{bind}\""));
        let (state, text, mend) = machine.only(&[], "port");
        let who = format!("is taken by {} (process {})", name.trim(), std::process::id());
        assert!(state == "fault" && text.contains(&who) && text.contains("listener.web.bind"), "{text}");
        assert!(mend[0].as_str().unwrap().contains(&bind), "{mend}");
    }
    // Another address, and another transport, are free.
    for listener in
        [format!("bind = \"127.0.0.2:{port}\""), format!("bind = \"127.0.0.1:{port}\"\nprotocol = \"udp\"")]
    {
        let (state, text, _) = Machine::new(&listener).only(&[], "port");
        assert!(state == "ok" && text.ends_with("is free"), "{text}");
    }
}

#[test]
fn an_address_of_another_machine_is_not_free() {
    for bind in ["192.0.2.55:8079", "[2001:db8::55]:8079"] {
        let (state, text, mend) = Machine::new(&format!("bind = \"{bind}\"")).only(&[], "port");
        assert!(state == "fault" && text.contains(bind) && text.contains("cannot be had"), "{text}");
        assert!(mend[0].as_str().unwrap().starts_with("ip -brief address"), "{mend}");
    }
}

#[test]
fn a_server_that_runs_is_known_with_its_ports_and_its_limits() {
    let server = Server::start(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"127.0.0.1:1\"]\n",
    );
    let machine = Machine::new(&format!("bind = \"{}\"", server.address("web")));
    let text = fs::read_to_string(machine.file()).unwrap();
    let control = format!("[control]\nsocket = \"{}\"\n", server.control_socket().display());
    fs::write(machine.file(), control + &text).unwrap();
    let served = format!("is served by process {}", server.pid());
    let (state, text, _) = machine.only(&[], "port");
    assert!(state == "ok" && text.ends_with(&served), "{text}");
    let (state, text, _) = machine.only(&[], "binary");
    assert!(state == "ok" && text.ends_with(&format!("process {} serves", server.pid())), "{text}");
    // Its own limit counts, not that of this shell.
    let (_, text, _) = machine.only(&["prlimit", "--nofile=700:700"], "descriptors");
    assert!(text.starts_with("the server may open"), "{text}");
}

#[test]
fn certificates_are_told_before_and_after_their_time() {
    for (time, state, says) in [
        (Time::Over, "fault", "has expired 1 d"),
        (Time::ToCome, "fault", "is valid in 23 h"),
        (Time::Now, "ok", "is valid for 29 d"),
    ] {
        let machine =
            Machine::new("bind = \"127.0.0.1:0\"\ntls = { certificates = \"@DIR@/certs\", ocsp = \"off\" }");
        let certs = machine.dir.path().join("certs");
        fs::create_dir(&certs).unwrap();
        self_signed(&certs, "site", &["site.example"], time);
        let (found, text, _) = machine.only(&[], "certificate");
        assert!(found == state && text.contains(says) && text.contains("site.example"), "{found}: {text}");
        // A week before its end.
        if time == Time::Now {
            let before = ["faketime", "-f", "+23d"];
            let (found, text, _) = machine.only(&before, "certificate");
            assert!(found == "fault" && text.contains("expires in 6 d"), "{found}: {text}");
        }
    }
}

#[test]
fn control_over_the_network_and_the_admin_listener_are_looked_at_like_listeners() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let machine = Machine::new("bind = \"127.0.0.1:0\"");
    let certs = machine.dir.path().join("certs");
    fs::create_dir(&certs).unwrap();
    self_signed(&certs, "site", &["site.example"], Time::Over);
    let (address, dir) = (taken.local_addr().unwrap(), machine.dir.path().display());
    let tls = format!("tls = {{ certificates = \"{dir}/certs\", ocsp = \"off\" }}");
    let sections = format!(
        "[control]\nsocket = \"{dir}/control.sock\"\nlisten = \"{address}\"\nusers = \"{dir}/users\"\n{tls}\n\
         [admin]\nbind = \"127.0.0.1:0\"\n{tls}\n"
    );
    let text = fs::read_to_string(machine.file()).unwrap();
    fs::write(machine.file(), sections + &text).unwrap();
    let (state, text, _) = machine.only(&[], "port");
    assert!(
        state == "fault" && text.starts_with(&format!("control.listen: tcp {address} is taken")),
        "{text}"
    );
    let found = machine.found(&[], "certificate");
    let sections: Vec<&str> = found.iter().map(|(_, text, _)| text.split(':').next().unwrap()).collect();
    assert_eq!(sections, ["control", "admin"], "{found:?}");
}

#[test]
fn a_clock_before_the_day_on_which_the_program_was_written_is_wrong() {
    let machine = Machine::new("bind = \"127.0.0.1:0\"");
    // faketime otherwise changes the times of files as well.
    let before = ["env", "NO_FAKE_STAT=1", "faketime", "-f", "-400d"];
    let (state, text, mend) = machine.only(&before, "clock");
    assert!(state == "fault" && text.contains("the clock is wrong"), "{state}: {text}");
    assert!(mend[0].as_str().unwrap().starts_with("timedatectl"), "{mend}");
    let (state, text, _) = machine.only(&[], "clock");
    assert!(state != "fault", "{text}");
}

#[test]
fn a_configuration_with_faults_is_told_line_by_line_and_quiet_prints_only_what_is_wrong() {
    let machine = Machine::new("bind = \"127.0.0.1:0\"\npol = \"app\"");
    let (state, text, mend) = machine.only(&[], "configuration");
    assert!(state == "fault" && text.contains("penstock.toml:5:1"), "{text}");
    assert!(mend[0].as_str().unwrap().starts_with("penstock check "), "{mend}");
    let output = doctor(&[], &machine.file(), "--quiet");
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    let findings = said.lines().filter(|line| !line.starts_with(' '));
    assert!(
        findings.clone().count() > 0 && findings.clone().all(|line| line.starts_with("fault ")),
        "{said}"
    );
}

#[test]
fn names_that_do_not_resolve_and_users_that_do_not_exist_are_told() {
    let machine = Machine::new("bind = \"127.0.0.1:0\"");
    let text = fs::read_to_string(machine.file()).unwrap();
    let text = text.replace("127.0.0.1:1", "none.invalid:80").replace("\"nobody\"", "\"no-such-user\"");
    fs::write(machine.file(), text).unwrap();
    let (state, text, _) = machine.only(&[], "resolver");
    assert!(state == "fault" && text.contains("none.invalid"), "{text}");
    let (state, text, mend) = machine.only(&[], "user");
    assert!(state == "fault" && text.contains("process.user is no-such-user"), "{text}");
    assert!(mend[0].as_str().unwrap().starts_with("useradd --system"), "{mend}");
}

#[test]
fn the_configuration_is_named_as_for_check_and_serve() {
    let machine = Machine::new("bind = \"127.0.0.1:0\"");
    let run =
        |words: &[&str]| std::process::Command::new(binary()).arg("doctor").args(words).output().unwrap();
    let file = machine.file();
    let file = file.to_str().unwrap();
    let output = run(&[file]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains(&format!("{file} is good")), "{output:?}");
    assert_eq!(run(&[file, "--config", file]).status.code(), Some(2));
    let dsr = run(&["dsr", "--help"]);
    assert!(String::from_utf8_lossy(&dsr.stdout).contains("penstock doctor dsr"), "{dsr:?}");
}
