//! A key at this machine that responds to challenges (HMAC-SHA1): a program computes what the key would, with a secret that no part
//! of ours knows. ykpamcfg and pam_yubico have the same key, by a library in place of that which asks the hardware.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use testing::server::{Setup, penstock, run_to_end};
use testing::tools::{Root, program, root};
use testing::{eventually, secs};

use crate::factors::{PASSWORD, password};
use crate::pam::{self, Daemon, asked_by, daemon, daemon_with, log_in, log_in_with};
use crate::token::Tokens;

/// A key in software, with the programs that ask it. Without its secret it is away.
struct Key {
    directory: tempfile::TempDir,
    secret: String,
}

const RESPOND: &str = r#"
import hashlib, hmac, os, sys
here = os.path.dirname(os.path.abspath(sys.argv[0]))
slot, form, challenge = sys.argv[1:]
assert (slot, form) == ("-2", "-x"), sys.argv
with open(here + "/secret") as file:
    secret = bytes.fromhex(file.read())
with open(here + "/asked", "a") as file:
    file.write(challenge + "\n")
print(hmac.new(secret, bytes.fromhex(challenge), hashlib.sha1).hexdigest())
"#;

const SERIAL: &str = r#"
import os, sys
assert sys.argv[1:] == ["-s", "-q"], sys.argv
with open(os.path.dirname(os.path.abspath(sys.argv[0])) + "/serial") as file:
    print(file.read())
"#;

impl Key {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let which = ["-c", "import sys; print(sys.executable)"];
        let python = Command::new(program("python3")).args(which).output().unwrap();
        let python = String::from_utf8(python.stdout).unwrap();
        for (name, text) in [("ykchalresp", RESPOND), ("ykinfo", SERIAL)] {
            let file = directory.path().join(name);
            fs::write(&file, format!("#!{} -I\n{text}", python.trim())).unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut bytes = [0; 20];
        fs::File::open("/dev/urandom").unwrap().read_exact(&mut bytes).unwrap();
        let secret = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let key = Self { directory, secret };
        key.plug_in();
        key
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn plug_in(&self) {
        fs::write(self.at("secret"), &self.secret).unwrap();
    }

    fn pull_out(&self) {
        fs::remove_file(self.at("secret")).unwrap();
    }

    fn serial(&self, serial: &str) {
        fs::write(self.at("serial"), serial).unwrap();
    }

    /// Options of the module.
    fn options(&self, daemon: &Daemon) -> String {
        format!(
            "socket={} mode=challenge-response chalresp_program={} serial_program={}",
            daemon.socket().display(),
            self.at("ykchalresp").display(),
            self.at("ykinfo").display()
        )
    }

    #[track_caller]
    fn enrol(&self, tokens: &Tokens, user: &str, more: &[&str]) -> String {
        let program = self.at("ykchalresp");
        let own = ["enrol", "challenge-response", "--user", user, "--program", program.to_str().unwrap()];
        tokens.said(&[&own, more].concat(), "")
    }

    /// The challenges that it was sent.
    fn asked(&self) -> Vec<String> {
        fs::read_to_string(self.at("asked")).unwrap().lines().map(str::to_owned).collect()
    }

    fn respond(&self, challenge: &str) -> String {
        let output = Command::new(self.at("ykchalresp")).args(["-2", "-x", challenge]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

#[track_caller]
fn expect(options: &str, user: &str, good: bool) {
    let output = log_in(options, user, "");
    assert_eq!(output.status.success(), good, "{options} {user}: {output:?}");
}

/// Asks the daemon as root, or as the user that runs the tests.
fn ask(socket: &Path, question: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(format!("{question}\n").as_bytes()).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said.trim().to_owned()
}

fn responded(user: &str, challenge: &str, response: &str, next: &str) -> String {
    format!(
        "{{\"user\":\"{user}\",\"auth\":\"otp\",\"challenge\":\"{challenge}\",\"response\":\"{response}\",\"next\":\"{next}\"}}"
    )
}

const GOOD: &str = "{\"result\":\"good\"}";
const BAD: &str = "{\"result\":\"bad\"}";
const UNABLE: &str = "{\"result\":\"unable\"}";

#[test]
fn a_key_lets_its_user_in_with_a_new_challenge_each_time_and_no_other_key_does() {
    let (daemon, key) = (daemon(), Key::new());
    let options = key.options(&daemon);
    expect(&options, "carol", false);
    assert_eq!(key.enrol(&daemon.tokens, "carol", &[]), "enrolled carol-key\n");
    expect(&options, "carol", true);
    expect(&options, "carol", true);
    // One at the enrolment, and at each log-in that one and the next.
    let asked = key.asked();
    assert_eq!((asked.len(), &asked[0], &asked[2]), (5, &asked[1], &asked[3]), "{asked:?}");
    assert!(asked[1] != asked[2] && asked[2] != asked[4] && asked[0] != asked[4], "{asked:?}");
    assert!(asked.iter().all(|challenge| challenge.len() == 126), "{asked:?}");
    expect(&options, "alice", false);
    key.pull_out();
    expect(&options, "carol", false);
    fs::write(key.at("secret"), "00".repeat(20)).unwrap();
    expect(&options, "carol", false);
    key.plug_in();
    expect(&options, "carol", true);
    daemon.tokens.said(&["revoke", "carol-key"], "");
    expect(&options, "carol", false);
    expect(&format!("{options} nullok"), "carol", false);
    daemon.tokens.said(&["restore", "carol-key"], "");
    expect(&options, "carol", true);
    // What is typed is another factor: a key is no one-time password.
    let typed = format!("socket={}", daemon.socket().display());
    assert!(!log_in(&typed, "carol", "123456").status.success());
    let list = daemon.tokens.said(&["list", "--user", "carol"], "");
    assert!(list.contains("challenge-response") && !list.contains("never"), "{list}");
    let log = &daemon.server.stderr;
    log.wait_for("carol (penstock-test): good, by token carol-key", secs(10));
    log.wait_for(
        "carol (penstock-test): refused: token carol-key: the response is not that of the key",
        secs(10),
    );
    log.wait_for("carol (penstock-test): refused: the user has no key that responds to challenges", secs(10));
}

#[test]
fn a_response_is_good_once_also_for_a_store_that_is_opened_again() {
    let (daemon, key) = (daemon(), Key::new());
    key.enrol(&daemon.tokens, "carol", &[]);
    let socket = daemon.socket();
    let told = ask(&socket, "{\"user\":\"carol\",\"want\":\"challenge\"}");
    let read: serde_json::Value = serde_json::from_str(&told).unwrap();
    let [first, second] = ["challenge", "next"].map(|name| read[name].as_str().unwrap().to_owned());
    let [one, two] = [&first, &second].map(|challenge| key.respond(challenge));
    // A wrong or torn response uses nothing up.
    for (response, next, said) in
        [(&two, &two, BAD), (&one[..39].to_owned(), &two, UNABLE), (&one, &String::new(), UNABLE)]
    {
        assert_eq!(ask(&socket, &responded("carol", &first, response, next)), said);
    }
    assert_eq!(ask(&socket, &responded("alice", &first, &one, &two)), "{\"result\":\"no-token\"}");
    assert_eq!(ask(&socket, &responded("carol", &second, &two, &two)), BAD, "it is not asked yet");
    assert_eq!(ask(&socket, &responded("carol", &first, &one, &two)), GOOD);
    // As a crash right after the answer leaves it.
    let after = Setup::new(&pam::config(""));
    fs::create_dir(after.dir().join("otp")).unwrap();
    fs::set_permissions(after.dir().join("otp"), fs::Permissions::from_mode(0o700)).unwrap();
    for file in ["otp/journal", "otp.key"] {
        fs::copy(daemon.server.dir.path().join(file), after.dir().join(file)).unwrap();
    }
    let after = after.start();
    for socket in [&socket, &after.dir.path().join("auth.sock")] {
        assert_eq!(ask(socket, &responded("carol", &first, &one, &two)), BAD, "it was used before");
        let told: serde_json::Value =
            serde_json::from_str(&ask(socket, "{\"user\":\"carol\",\"want\":\"challenge\"}")).unwrap();
        assert_eq!(told["challenge"], *second);
        let third = key.respond(told["next"].as_str().unwrap());
        assert_eq!(ask(socket, &responded("carol", &second, &two, &third)), GOOD);
    }
    let log = &daemon.server.stderr;
    log.wait_for("refused: REPLAYED_OTP: token carol-key: a log-in before this one has used", secs(10));
}

#[test]
fn a_store_that_takes_no_change_lets_no_key_in_and_goes_on_when_it_is_whole() {
    let (daemon, key) = (daemon(), Key::new());
    key.enrol(&daemon.tokens, "carol", &[]);
    let options = key.options(&daemon);
    let journal = daemon.server.dir.path().join("otp/journal");
    let whole = fs::read(&journal).unwrap();
    fs::write(&journal, [&whole[..], b"0000000000000000 {}\n"].concat()).unwrap();
    expect(&options, "carol", false);
    expect(&format!("{options} nullok"), "carol", false);
    fs::write(&journal, &whole).unwrap();
    expect(&options, "carol", true);
}

#[test]
fn a_user_who_comes_from_another_host_proves_nothing_by_a_key_at_this_one() {
    let (daemon, key) = (daemon(), Key::new());
    key.enrol(&daemon.tokens, "carol", &[]);
    let options = key.options(&daemon);
    let output = log_in_with(&options, "carol", "", &["-I", "rhost=192.0.2.7"]);
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(key.asked().len(), 1, "the key was not asked");
    expect(&options, "carol", true);
}

#[test]
fn a_program_that_hangs_lets_no_user_in_and_is_ended() {
    let (daemon, key) = (daemon(), Key::new());
    key.enrol(&daemon.tokens, "carol", &[]);
    let number = key.at("number");
    let text = format!("#!/bin/sh\necho $$ > {}\nexec /bin/sleep 1000\n", number.display());
    fs::write(key.at("ykchalresp"), text).unwrap();
    expect(&key.options(&daemon), "carol", false);
    let number = fs::read_to_string(number).unwrap();
    let process = Path::new("/proc").join(number.trim());
    eventually("the program ends", secs(30), || (!process.exists()).then_some(()));
}

#[test]
fn a_password_and_a_key_are_two_factors() {
    let (daemon, key) = (daemon_with("users = \"@DIR@/users\"\nlog-in = \"both\"\n"), Key::new());
    password(daemon.server.dir.path(), "carol");
    key.enrol(&daemon.tokens, "carol", &[]);
    let options = key.options(&daemon);
    let both = format!("{options} auth=both");
    for (options, typed, good) in
        [(&both, PASSWORD, true), (&both, "wrong", false), (&both, "", false), (&options, "", false)]
    {
        let output = log_in(options, "carol", typed);
        assert_eq!(output.status.success(), good, "{options} {typed}: {output:?}");
    }
    key.pull_out();
    assert!(!log_in(&both, "carol", PASSWORD).status.success());
    key.plug_in();
    daemon.server.stderr.wait_for("carol (penstock-test): good, by password and token carol-key", secs(10));
    let users = daemon.server.dir.path().join("users");
    let revoked = penstock(&["user", "--file", users.to_str().unwrap(), "revoke", "carol"]);
    assert!(revoked.status.success(), "{revoked:?}");
    assert!(!log_in(&format!("{both} nullok"), "carol", PASSWORD).status.success());
    daemon.server.stderr.wait_for("refused: the user was revoked on ", secs(10));
}

#[test]
fn of_two_keys_of_a_user_the_one_that_is_there_is_asked() {
    let (daemon, key, other) = (daemon(), Key::new(), Key::new());
    let options = [&key, &other].map(|key| key.options(&daemon));
    assert_eq!(key.enrol(&daemon.tokens, "carol", &["--serial", "1111111"]), "enrolled carol-1111111\n");
    // One alone needs no serial number.
    expect(&options[0], "carol", true);
    other.enrol(&daemon.tokens, "carol", &["--serial", "2222222"]);
    expect(&options[0], "carol", false);
    key.serial("1111111");
    other.serial("2222222");
    expect(&options[0], "carol", true);
    expect(&options[1], "carol", true);
    other.serial("3333333");
    expect(&options[1], "carol", false);
    daemon.server.stderr.wait_for("the user has no key with the serial number 3333333", secs(10));
    let program = key.at("ykchalresp");
    let twice = ["enrol", "challenge-response", "--user", "carol", "--serial", "2222222", "--name", "x"];
    let said = daemon.tokens.refused(&[&twice[..], &["--program", program.to_str().unwrap()]].concat(), "");
    assert!(said.contains("key carol-2222222 of carol has the same serial number"), "{said}");
}

#[test]
fn an_ordinary_user_may_not_ask_a_key_nor_say_what_it_responds() {
    if root("asks as another user") == Root::LeftOut {
        return;
    }
    let (daemon, key) = (daemon(), Key::new());
    let user = testing::sshd::ordinary_user();
    fs::set_permissions(daemon.server.dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
    key.enrol(&daemon.tokens, &user, &[]);
    let want = format!("{{\"user\":\"{user}\",\"want\":\"challenge\"}}");
    assert_eq!(asked_by(&user, &daemon.socket(), &want), UNABLE);
    let told: serde_json::Value = serde_json::from_str(&asked_by("root", &daemon.socket(), &want)).unwrap();
    let challenge = told["challenge"].as_str().unwrap();
    let own = responded(&user, challenge, &key.respond(challenge), &"0".repeat(40));
    assert_eq!(asked_by(&user, &daemon.socket(), &own), UNABLE);
    daemon.server.stderr.wait_for("may not ask a key: only root may", secs(10));
    let options = key.options(&daemon);
    expect(&options, &user, true);
}

#[test]
fn sudo_asks_the_key() {
    if root("puts files in place of those in /etc, for sudo") == Root::LeftOut {
        return;
    }
    let (daemon, key) = (daemon(), Key::new());
    let user = testing::sshd::ordinary_user();
    key.enrol(&daemon.tokens, &user, &[]);
    let directory = pam::system_files(&daemon, "sudo", &key.options(&daemon));
    let system = directory.path().join("system");
    fs::write(system.join("sudoers"), format!("Defaults !lecture\n{user} ALL=(ALL) ALL\n")).unwrap();
    fs::set_permissions(system.join("sudoers"), fs::Permissions::from_mode(0o440)).unwrap();
    let sudo = || {
        let script = format!("setpriv --reuid {user} --regid {user} --clear-groups sudo -k -S -p '' id -u");
        let output = run_to_end(&mut pam::in_place_of_system_files(directory.path(), &script), secs(30));
        (String::from_utf8_lossy(&output.stdout).trim() == "0", format!("{output:?}"))
    };
    for is_there in [true, true, false, true] {
        if is_there {
            key.plug_in()
        } else {
            key.pull_out()
        }
        let (good, said) = sudo();
        assert_eq!(good, is_there, "{said}");
    }
}

/// In place of the functions that ask the hardware. The library itself computes what the key would.
const HARDWARE: &str = r#"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
typedef int (*hmac)(const char *, size_t, const char *, size_t, unsigned char *, size_t);
static int key;
int yk_init(void) { return 1; }
int yk_release(void) { return 1; }
void *yk_open_first_key(void) { return &key; }
int yk_close_key(void *k) { return 1; }
int yk_get_status(void *k, unsigned char *version) { version[0] = 4; version[1] = 3; return 1; }
int yk_get_serial(void *k, int slot, unsigned flags, unsigned *serial) { *serial = 1234567; return 1; }
int yk_challenge_response(void *k, int command, int may_block, unsigned length,
                          const unsigned char *challenge, unsigned room, unsigned char *response) {
    const char *digits = getenv("KEY_SECRET");
    char secret[20];
    for (int at = 0; at < 20; at++) {
        char pair[3] = {digits[2 * at], digits[2 * at + 1], 0};
        secret[at] = strtoul(pair, 0, 16);
    }
    memset(response, 0, room);
    hmac sha1 = (hmac)dlsym(dlopen("libykpers-1.so.1", RTLD_NOW), "yk_hmac_sha1");
    return sha1(secret, 20, (const char *)challenge, length, response, room);
}
"#;

/// A directory of state files of pam_yubico for a user, made by ykpamcfg; and the library that stands for the key.
fn with_pam_yubico(key: &Key) -> (PathBuf, PathBuf) {
    let (source, library, states) = (key.at("hardware.c"), key.at("hardware.so"), key.at("states"));
    fs::write(&source, HARDWARE).unwrap();
    let compiled =
        Command::new(program("cc")).args(["-shared", "-fPIC", "-o"]).args([&library, &source]).output();
    assert!(compiled.as_ref().unwrap().status.success(), "{compiled:?}");
    fs::create_dir(&states).unwrap();
    let mut configure = Command::new(program("ykpamcfg"));
    configure.args(["-2", "-p"]).arg(&states).env("LD_PRELOAD", &library).env("KEY_SECRET", &key.secret);
    let output = run_to_end(configure.stdin(Stdio::null()), secs(30));
    assert!(output.status.success(), "{output:?}");
    (states, library)
}

/// Logs in by pam_yubico.
fn by_pam_yubico(states: &Path, library: &Path, secret: &str, user: &str) -> Output {
    let services = tempfile::tempdir().unwrap();
    let rules = format!(
        "auth required pam_yubico.so mode=challenge-response chalresp_path={}\naccount required pam_permit.so\n",
        states.display()
    );
    fs::write(services.path().join("penstock-test"), rules).unwrap();
    let mut tester = Command::new(program("pamtester"));
    tester.args(["penstock-test", user, "authenticate"]).env("KEY_SECRET", secret);
    tester.env("LD_PRELOAD", format!("libpam_wrapper.so {}", library.display()));
    tester.env("PAM_WRAPPER", "1").env("PAM_WRAPPER_SERVICE_DIR", services.path());
    run_to_end(tester.stdin(Stdio::null()), secs(30))
}

#[test]
fn users_of_pam_yubico_enrol_nothing_anew() {
    let (daemon, key) = (daemon(), Key::new());
    let (states, library) = with_pam_yubico(&key);
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().unwrap().name;
    let state = states.join(format!("{user}-1234567"));
    let first = fs::read_to_string(&state).unwrap();
    let output = by_pam_yubico(&states, &library, &key.secret, &user);
    assert!(output.status.success(), "the library stands for the key: {output:?}");
    assert!(!by_pam_yubico(&states, &library, &"0".repeat(40), &user).status.success());
    let second = fs::read_to_string(&state).unwrap();
    assert_ne!(first, second);
    let file = state.to_str().unwrap();
    let own = ["enrol", "challenge-response", "--user", &user, "--state-file", file];
    let said = daemon.tokens.said(&own, "");
    assert!(
        said.starts_with(&format!("enrolled {user}-1234567\nremove {file} and the line of pam_yubico")),
        "{said}"
    );
    let options = key.options(&daemon);
    expect(&options, &user, true);
    expect(&options, &user, true);
    let challenge = second.split(':').nth(1).unwrap();
    assert_eq!(key.asked()[0], challenge, "it goes on where pam_yubico was");
    assert_eq!(
        ask(&daemon.socket(), &responded(&user, challenge, &key.respond(challenge), &"0".repeat(40))),
        BAD
    );
}

#[test]
fn a_state_file_that_another_user_could_have_written_or_that_is_torn_is_refused() {
    let (tokens, key) = (Tokens::new(), Key::new());
    let (states, _) = with_pam_yubico(&key);
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().unwrap().name;
    let state = states.join(format!("{user}-1234567"));
    let whole = fs::read_to_string(&state).unwrap();
    let file = state.to_str().unwrap();
    let refused = |why: &str| {
        let said =
            tokens.refused(&["enrol", "challenge-response", "--user", &user, "--state-file", file], "");
        assert!(said.contains(why), "{why}: {said}");
    };
    for mode in [0o620, 0o602] {
        fs::set_permissions(&state, fs::Permissions::from_mode(mode)).unwrap();
        refused("others may write to ");
    }
    fs::set_permissions(&state, fs::Permissions::from_mode(0o600)).unwrap();
    for (text, why) in [
        (&whole[..whole.len() - 1], "it was cut off"),
        (&whole[..100], "it was cut off"),
        ("", "it was cut off"),
        ("cccccccccccb\n", "it is no state file of pam_yubico"),
        (&format!("{}\n", &whole[..100]), "it is no state file of pam_yubico"),
        (&whole.replace(":10000:", ":0:"), "its number of iterations is wrong"),
        (&"x".repeat(2000), "no regular file of at most 1024 bytes"),
    ] {
        fs::write(&state, text).unwrap();
        refused(why);
    }
    fs::write(&state, &whole).unwrap();
    if root("gives a file to another user") == Root::Here {
        std::os::unix::fs::chown(&state, Some(12_345), None).unwrap();
        refused("belongs to user 12345");
        std::os::unix::fs::chown(&state, Some(0), None).unwrap();
    }
    tokens.said(&["enrol", "challenge-response", "--user", &user, "--state-file", file], "");
    assert!(tokens.said(&["list"], "").contains(&format!("{user}-1234567")));
    // A key that is not there.
    key.pull_out();
    let program = key.at("ykchalresp");
    let own = ["enrol", "challenge-response", "--user", "carol", "--program", program.to_str().unwrap()];
    let said = tokens.refused(&own, "");
    assert!(said.contains("gives no response") && said.contains("ykman otp chalresp --generate 2"), "{said}");
}
