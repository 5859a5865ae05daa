//! `pam_penstock.so` in programs of others: pamtester, sshd and sudo.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use testing::server::{Lines, Setup, binary, run_to_end};
use testing::tools::{Root, program, root};
use testing::{Server, secs};

use crate::token::{Tokens, YubiKey};

const CONFIG: &str = "[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n[pool.app]\nbackends = [\"127.0.0.1:9\"]\n\
    [otp]\nstore = \"@DIR@/otp\"\nkey-file = \"@DIR@/otp.key\"\nsocket = \"@DIR@/auth.sock\"\n";

fn otp_section() -> &'static str {
    &CONFIG[CONFIG.find("[otp]").unwrap()..]
}

/// The module, which Cargo builds beside these tests.
pub(crate) fn module() -> PathBuf {
    let directory = Path::new(binary()).parent().unwrap();
    let places = [directory.join("deps/libpam_penstock.so"), directory.join("libpam_penstock.so")];
    places.iter().find(|place| place.exists()).unwrap_or_else(|| panic!("none of {places:?}")).clone()
}

pub(crate) struct Daemon {
    pub(crate) server: Server,
    pub(crate) tokens: Tokens,
    pub(crate) key: YubiKey,
}

pub(crate) fn daemon() -> Daemon {
    daemon_with("")
}

/// A configuration with a socket for modules. `more` are further lines of `[otp]`.
pub(crate) fn config(more: &str) -> String {
    format!("{CONFIG}{more}")
}

/// `more` are further lines of `[otp]`.
pub(crate) fn daemon_with(more: &str) -> Daemon {
    let setup = Setup::new(&config(more));
    let tokens = Tokens::below(setup.dir());
    let key = tokens.yubikey("cccccccccccb", Some("alice"));
    Daemon { server: setup.start(), tokens, key }
}

impl Daemon {
    pub(crate) fn socket(&self) -> PathBuf {
        self.server.dir.path().join("auth.sock")
    }
}

/// Logs a user in through pamtester, with options of the module.
pub(crate) fn log_in(options: &str, user: &str, typed: &str) -> Output {
    log_in_with(options, user, typed, &[])
}

/// Logs in as [`log_in`] does, with further arguments of pamtester.
pub(crate) fn log_in_with(options: &str, user: &str, typed: &str, arguments: &[&str]) -> Output {
    let services = tempfile::tempdir().unwrap();
    let module = module();
    let rules = format!("auth required {} {options}\naccount required pam_permit.so\n", module.display());
    fs::write(services.path().join("penstock-test"), rules).unwrap();
    let mut child = Command::new(program("pamtester"))
        .args(arguments)
        .args(["penstock-test", user, "authenticate"])
        .env("LD_PRELOAD", "libpam_wrapper.so")
        .env("PAM_WRAPPER", "1")
        .env("PAM_WRAPPER_SERVICE_DIR", services.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may have ended without a question.
    let _ = child.stdin.take().unwrap().write_all(format!("{typed}\n").as_bytes());
    child.wait_with_output().unwrap()
}

#[track_caller]
pub(crate) fn expect(options: &str, user: &str, typed: &str, good: bool) {
    let output = log_in(options, user, typed);
    assert_eq!(output.status.success(), good, "{options} {user} {typed}: {output:?}");
}

#[test]
fn a_machine_with_pam_modules_alone_needs_no_listener() {
    let setup = Setup::new(&format!("{}[control]\nsocket = \"@DIR@/control.sock\"\n", otp_section()));
    let tokens = Tokens::below(setup.dir());
    let key = tokens.yubikey("cccccccccccb", Some("alice"));
    let daemon = Daemon { server: setup.start(), tokens, key };
    let options = format!("socket={}", daemon.socket().display());
    expect(&options, "alice", &daemon.key.otp(1, 1), true);
    expect(&options, "alice", &daemon.key.otp(1, 1), false);
    daemon.server.said(&["reload"]);
    daemon.server.said(&["status"]);
    expect(&options, "alice", &daemon.key.otp(1, 2), true);
}

#[test]
fn a_user_is_let_in_once_for_each_otp() {
    let daemon = daemon();
    let options = format!("socket={}", daemon.socket().display());
    let otp = daemon.key.otp(1, 1);
    expect(&options, "bob", &otp, false);
    expect(&options, "alice", &otp, true);
    expect(&options, "alice", &otp, false);
    expect(&options, "alice", "", false);
    expect(&options, "alice", "123456", false);
    expect(&options, "alice", &format!("a password{}", daemon.key.otp(1, 2)), true);
    daemon.tokens.said(&["revoke", "cccccccccccb"], "");
    expect(&options, "alice", &daemon.key.otp(1, 3), false);
    daemon.tokens.said(
        &["enrol", "hotp", "--user", "carol", "--secret-file", "-"],
        "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ",
    );
    expect(&options, "carol", "755224", true);
    expect(&options, "carol", "755224", false);
    expect(&options, "carol", "287082", true);
    daemon.server.stderr.wait_for("alice (penstock-test): good, by token cccccccccccb", secs(10));
    daemon.server.stderr.wait_for("bob (penstock-test): refused: the user has no token", secs(10));
}

#[test]
fn an_authfile_says_whose_a_key_is() {
    let daemon = daemon();
    let mapping = daemon.server.dir.path().join("mapping");
    fs::write(&mapping, "bob:vvvv:cccccccccccb\ndave:vvvv\n").unwrap();
    let options = format!("socket={} authfile={}", daemon.socket().display(), mapping.display());
    expect(&options, "bob", &daemon.key.otp(1, 1), true);
    expect(&options, "dave", &daemon.key.otp(1, 2), false);
    expect(&options, "alice", &daemon.key.otp(1, 3), false);
    expect(&format!("{options} nullok"), "dave", &daemon.key.otp(1, 4), false);
}

#[test]
fn without_a_daemon_or_with_a_slow_one_nobody_is_let_in_and_nothing_waits_long() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("auth.sock");
    let options = format!("socket={}", socket.display());
    let otp = YubiKey::named("cccccccccccb").otp(1, 1);
    expect(&options, "alice", &otp, false);
    expect(&format!("{options} nullok"), "alice", &otp, false);
    let _silent = UnixListener::bind(&socket).unwrap();
    let began = Instant::now();
    expect(&options, "alice", &otp, false);
    // Two seconds, and what a busy machine needs for the programs.
    assert!(began.elapsed() < secs(20), "{:?}", began.elapsed());
    expect("socket=/run/x.sock alwaysok", "alice", &otp, false);
}

/// What the daemon says to a question of another user.
pub(crate) fn asked_by(user: &str, socket: &Path, question: &str) -> String {
    let script = "printf '%s\\n' \"$2\" | socat -t 5 - \"UNIX-CONNECT:$1\"";
    let mut command = Command::new("setpriv");
    command.args(["--reuid", user, "--regid", user, "--clear-groups", "sh", "-c", script, "sh"]);
    let output = run_to_end(command.arg(socket).arg(question).stdin(Stdio::null()), secs(20));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn an_ordinary_user_may_ask_about_himself_only() {
    if root("asks as another user") == Root::LeftOut {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = directory.path().join("auth.sock");
    let setup = Setup::new(&CONFIG.replace("@DIR@/auth.sock", socket.to_str().unwrap()));
    let tokens = Tokens::below(setup.dir());
    let user = testing::sshd::ordinary_user();
    let key = tokens.yubikey("cccccccccccb", Some(&user));
    let _server = setup.start();
    let ask = |by: &str, about: &str, more: &str, press: u8| {
        let question = format!("{{\"user\":\"{about}\",\"otp\":\"{}\"{more}}}", key.otp(1, press));
        asked_by(by, &socket, &question)
    };
    assert_eq!(ask(&user, &user, "", 1), "{\"result\":\"good\"}");
    assert_eq!(ask(&user, &user, "", 1), "{\"result\":\"bad\"}");
    assert_eq!(ask(&user, "root", "", 2), "{\"result\":\"unable\"}");
    assert_eq!(ask(&user, &user, ",\"keys\":[\"cccccccccccb\"]", 3), "{\"result\":\"unable\"}");
    assert_eq!(ask("root", &user, "", 4), "{\"result\":\"good\"}");
    for wrong in ["", "{", "[]", "{\"user\":\"root\"}", &"x".repeat(10_000)] {
        let said = asked_by("root", &socket, wrong);
        assert!(said == "{\"result\":\"unable\"}" || said.is_empty(), "{said}");
    }
}

/// A script that root runs with files of its own in place of those of the system.
pub(crate) fn in_place_of_system_files(directory: &Path, script: &str) -> Command {
    let binds = "for f in \"$0\"/system/*; do mount --bind \"$f\" /etc/${f##*/}; done";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &format!("{binds}; {script}")]).arg(directory);
    command.stdin(Stdio::null());
    command
}

/// A directory whose `system` has the rules of PAM for a service: the module, and permission for the rest.
pub(crate) fn system_files(daemon: &Daemon, service: &str, options: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let rules = directory.path().join("system/pam.d");
    fs::create_dir_all(&rules).unwrap();
    let text = format!(
        "auth required {} socket={} {options}\naccount required pam_permit.so\nsession required pam_permit.so\n",
        module().display(),
        daemon.socket().display()
    );
    fs::write(rules.join(service), text).unwrap();
    directory
}

#[test]
fn sudo_asks_for_an_otp() {
    if root("puts files in place of those in /etc, for sudo") == Root::LeftOut {
        return;
    }
    let daemon = daemon();
    let user = testing::sshd::ordinary_user();
    daemon.tokens.said(&["give", "cccccccccccb", &user], "");
    let directory = system_files(&daemon, "sudo", "");
    let system = directory.path().join("system");
    fs::write(system.join("sudoers"), format!("Defaults !lecture\n{user} ALL=(ALL) ALL\n")).unwrap();
    fs::set_permissions(system.join("sudoers"), fs::Permissions::from_mode(0o440)).unwrap();
    let sudo = |otp: &str| {
        let script = format!(
            "echo {otp} | setpriv --reuid {user} --regid {user} --clear-groups sudo -k -S -p '' id -u"
        );
        let output = run_to_end(&mut in_place_of_system_files(directory.path(), &script), secs(30));
        (String::from_utf8_lossy(&output.stdout).trim() == "0", format!("{output:?}"))
    };
    let first = daemon.key.otp(1, 1);
    for (otp, expected) in
        [(&first, true), (&first, false), (&daemon.key.otp(1, 2), true), (&"1".repeat(6), false)]
    {
        let (good, said) = sudo(otp);
        assert_eq!(good, expected, "{otp}: {said}");
    }
}

#[test]
fn sshd_asks_for_an_otp_by_keyboard_interactive() {
    if root("puts files in place of those in /etc, for sshd") == Root::LeftOut {
        return;
    }
    let daemon = daemon();
    let user = testing::sshd::ordinary_user();
    daemon.tokens.said(&["give", "cccccccccccb", &user], "");
    let sshd = Sshd::start(&daemon, "");
    let first = daemon.key.otp(1, 1);
    for (otp, expected) in [(&first, true), (&first, false), (&daemon.key.otp(1, 2), true)] {
        let (good, said) = sshd.log_in(&user, otp, "");
        assert_eq!(good, expected, "{otp}: {said}");
    }
}

/// An sshd that asks the module, by keyboard-interactive.
pub(crate) struct Sshd {
    directory: tempfile::TempDir,
    port: u16,
    log: Lines,
    _process: Killed,
}

impl Sshd {
    pub(crate) fn start(daemon: &Daemon, options: &str) -> Self {
        let directory = system_files(daemon, "sshd", options);
        let at = |name: &str| directory.path().join(name);
        let port = testing::port::free();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {0}/host\nPidFile none\nUsePAM yes\nStrictModes no\n\
             KbdInteractiveAuthentication yes\nPasswordAuthentication no\nPubkeyAuthentication no\n",
            directory.path().display()
        );
        fs::write(at("sshd_config"), config).unwrap();
        let key =
            Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(at("host")).status();
        assert!(key.unwrap().success());
        // ssh asks this program for each answer, with the question as its argument.
        let answer =
            "#!/bin/sh\ncase \"$1\" in *Password:*) echo \"$PASSWORD\" ;; *) echo \"$OTP\" ;; esac\n";
        fs::write(at("answer"), answer).unwrap();
        fs::set_permissions(at("answer"), fs::Permissions::from_mode(0o755)).unwrap();
        let script =
            format!("mkdir -p /run/sshd; exec {} -D -e -f \"$0/sshd_config\"", program("sshd").display());
        let mut process = in_place_of_system_files(directory.path(), &script);
        let mut process = Killed(process.stderr(Stdio::piped()).spawn().unwrap());
        let log = Lines::follow(process.0.stderr.take().unwrap());
        log.wait_for("Server listening", secs(20));
        Self { directory, port, log, _process: process }
    }

    /// Logs a user in, who answers questions for a password and for an OTP.
    pub(crate) fn log_in(&self, user: &str, otp: &str, password: &str) -> (bool, String) {
        let answer = self.directory.path().join("answer");
        let mut ssh = Command::new("ssh");
        ssh.args(["-F", "none", "-p", &self.port.to_string(), "-l", user, "-o", "StrictHostKeyChecking=no"]);
        ssh.args(["-o", "UserKnownHostsFile=/dev/null", "-o", "NumberOfPasswordPrompts=1"]);
        ssh.args(["-o", "PreferredAuthentications=keyboard-interactive", "127.0.0.1", "echo", "welcome"]);
        ssh.env("OTP", otp).env("PASSWORD", password);
        ssh.env("SSH_ASKPASS", answer).env("SSH_ASKPASS_REQUIRE", "force");
        let output = run_to_end(ssh.stdin(Stdio::null()), secs(30));
        let good = String::from_utf8_lossy(&output.stdout).contains("welcome");
        (good, format!("{output:?} {:?}", self.log.tail(30)))
    }
}

/// A process that ends with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
