//! `penstock put` and `penstock get` against real OpenSSH servers: what arrives, what is left when it does not, what is said.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use testing::fleet::{Fleet, RunResult, told};
use testing::lab::Lab;
use testing::server::{penstock, run_to_end};
use testing::sshd::Sshd;
use testing::{eventually, secs, tools};

/// Hosts `h1`, `h2`, ... that begin in directories of their own, `there/1`, `there/2`, ...
struct Hosts {
    there: TempDir,
    here: TempDir,
    fleet: Fleet,
    sshds: Vec<Sshd>,
}

impl Hosts {
    fn start(count: usize) -> Self {
        Self::with(count, "")
    }

    fn with(count: usize, options: &str) -> Self {
        let there = tempfile::tempdir().unwrap();
        let sshds: Vec<Sshd> = (1..=count)
            .map(|number| {
                let own = there.path().join(number.to_string());
                fs::create_dir(&own).unwrap();
                Sshd::with(&format!("Subsystem sftp internal-sftp {options} -d {}", own.display()))
            })
            .collect();
        let fleet = Fleet::of_each(&sshds.iter().collect::<Vec<_>>());
        Self { there, here: tempfile::tempdir().unwrap(), fleet, sshds }
    }

    /// A place of a host, by its number.
    fn there(&self, number: usize, path: &str) -> PathBuf {
        self.there.path().join(number.to_string()).join(path)
    }

    fn here(&self, path: &str) -> PathBuf {
        self.here.path().join(path)
    }

    /// In the directory `here`.
    fn command(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = self.fleet.penstock(name, arguments);
        command.current_dir(self.here.path());
        command
    }

    #[track_caller]
    fn run(&self, name: &str, arguments: &[&str]) -> RunResult {
        told(run_to_end(&mut self.command(name, arguments), secs(120)))
    }

    fn connections(&self) -> usize {
        self.sshds.iter().map(|sshd| sshd.log().matches("Connection from").count()).sum()
    }
}

/// What `sha256sum` says of all files below a directory, and the modes and links that `find` sees.
fn sums(directory: &Path) -> String {
    let words =
        "find . -type f -print0 | sort -z | xargs -0 sha256sum; find . -printf '%p %y %m %l\\n' | sort";
    let output = Command::new("sh").args(["-c", words]).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn data(length: usize) -> Vec<u8> {
    (0..length).map(|place| (place * 31 % 251) as u8).collect()
}

fn tree(at: &Path) {
    fs::create_dir_all(at.join("deep/deeper")).unwrap();
    fs::create_dir(at.join("empty")).unwrap();
    for (number, length) in [0, 1, 32_768, 1_000_003].into_iter().enumerate() {
        fs::write(at.join(format!("deep/{number} file")), data(length)).unwrap();
    }
    for name in ["line\nbreak", "\x1b[31mred", "quote'\"s", "*", "ümlaut", "-n"] {
        fs::write(at.join("deep/deeper").join(name), name).unwrap();
    }
    fs::write(at.join("script"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(at.join("script"), fs::Permissions::from_mode(0o750)).unwrap();
    symlink("deep/deeper", at.join("link")).unwrap();
    symlink("../script", at.join("deep/up")).unwrap();
    fs::set_permissions(at.join("deep/deeper"), fs::Permissions::from_mode(0o555)).unwrap();
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
}

#[test]
fn trees_go_to_three_hosts_and_come_back_as_they_were() {
    let hosts = Hosts::start(3);
    tree(&hosts.here("tree"));
    fs::write(hosts.here("file"), "one").unwrap();
    let put = hosts.run("put", &["-w", "h[1-3]", "tree", "file", "."]);
    assert_eq!(put.code, Some(0), "{put:?}");
    assert!(put.stdout.is_empty(), "{put:?}");
    assert!(put.stderr.starts_with("3 hosts: 3 ok, 36 files, 3.0 MiB  ("), "{put:?}");
    let expected = sums(&hosts.here("tree"));
    assert!(expected.matches("file").count() >= 8, "{expected}");
    for number in 1..=3 {
        assert_eq!(sums(&hosts.there(number, "tree")), expected);
        assert_eq!(fs::read_to_string(hosts.there(number, "file")).unwrap(), "one");
        fs::write(hosts.there(number, "own"), number.to_string()).unwrap();
    }
    let get = hosts.run("get", &["-w", "h[1-3]", "--json", "tree", "own", "~/file", "back"]);
    assert_eq!(get.code, Some(0), "{get:?}");
    for number in 1..=3 {
        let back = hosts.here(&format!("back/h{number}"));
        assert_eq!(names(&back), ["file", "own", "tree"]);
        assert_eq!(sums(&back.join("tree")), expected);
        assert_eq!(fs::read_to_string(back.join("own")).unwrap(), number.to_string());
    }
    let events: Vec<Value> = get.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let copied: Vec<_> = events.iter().filter(|event| event["event"] == "copied").collect();
    assert_eq!(copied.len(), 3, "{get:?}");
    assert!(copied.iter().all(|event| event["files"] == 13), "{copied:?}");
    let summary = events.last().unwrap();
    assert_eq!((&summary["files"], &summary["ok"]), (&39.into(), &3.into()), "{summary}");
    assert_eq!(&summary["may_have_run"], &0, "{summary}");
}

#[test]
fn destination_takes_in_what_comes_or_is_its_name() {
    let hosts = Hosts::start(1);
    for name in ["a", "b"] {
        fs::write(hosts.here(name), name).unwrap();
    }
    let well = |arguments: &[&str]| {
        let put = hosts.run("put", &[&["-w", "h1"], arguments].concat());
        assert_eq!(put.code, Some(0), "{arguments:?} {put:?}");
    };
    well(&["a", "name"]);
    well(&["b", "name"]);
    assert_eq!(fs::read_to_string(hosts.there(1, "name")).unwrap(), "b", "it is replaced");
    well(&["a", "new/"]);
    well(&["a", "b", "new"]);
    assert_eq!(names(&hosts.there(1, "new")), ["a", "b"]);
    let put = hosts.run("put", &["-w", "h1", "a", "b", "name"]);
    assert_eq!(put.code, Some(1), "{put:?}");
    assert!(
        put.stdout.contains("is not a directory there, and more than one source goes into it"),
        "{put:?}"
    );
    let put = hosts.run("put", &["-w", "h1", "a", "name/"]);
    assert_eq!((put.code, fs::read_to_string(hosts.there(1, "name")).unwrap()), (Some(1), "b".to_owned()));
    assert_eq!(names(&hosts.there(1, "")), ["name", "new"]);
}

/// The mode of a file or directory.
fn mode(path: PathBuf) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: PathBuf, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn directories_that_are_there_keep_their_modes_and_files_give_no_rights() {
    let hosts = Hosts::start(1);
    for (path, bits) in [("etc", 0o700), ("etc/old", 0o700), ("etc/new", 0o750), ("etc/all", 0o1777)] {
        fs::create_dir(hosts.here(path)).unwrap();
        set_mode(hosts.here(path), bits);
    }
    fs::write(hosts.here("etc/tool"), "#!/bin/sh\n").unwrap();
    set_mode(hosts.here("etc/tool"), 0o6755);
    fs::write(hosts.here("etc/old/file"), "x").unwrap();
    for path in ["etc", "etc/old"] {
        fs::create_dir(hosts.there(1, path)).unwrap();
        set_mode(hosts.there(1, path), 0o755);
    }
    let put = hosts.run("put", &["-w", "h1", "etc", "."]);
    assert_eq!(put.code, Some(0), "{put:?}");
    let there = |path: &str| mode(hosts.there(1, path));
    assert_eq!((there("etc"), there("etc/old")), (0o755, 0o755), "they were there");
    assert_eq!((there("etc/new"), there("etc/all")), (0o750, 0o1777));
    assert_eq!(there("etc/tool"), 0o755);
    assert_eq!(fs::read_to_string(hosts.there(1, "etc/old/file")).unwrap(), "x");

    for (path, bits) in [("back", 0o755), ("back/h1", 0o755), ("back/h1/etc", 0o711)] {
        fs::create_dir(hosts.here(path)).unwrap();
        set_mode(hosts.here(path), bits);
    }
    let get = hosts.run("get", &["-w", "h1", "etc", "back"]);
    assert_eq!(get.code, Some(0), "{get:?}");
    let back = |path: &str| mode(hosts.here(&format!("back/h1/{path}")));
    assert_eq!((back("etc"), back("etc/old"), back("etc/new")), (0o711, 0o755, 0o750));
    assert_eq!((back("etc/all"), back("etc/tool")), (0o1777, 0o755));
}

#[test]
fn a_directory_of_another_user_takes_files_in() {
    if tools::root("makes a directory that is not of the user who logs in") == tools::Root::LeftOut {
        return;
    }
    let sshd = Sshd::for_ordinary_user("");
    let fleet = Fleet::of(&sshd);
    let place = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o777)).tempdir().unwrap();
    fs::create_dir(place.path().join("site")).unwrap();
    set_mode(place.path().join("site"), 0o777);
    let source = fleet.home.path().join("site");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("page"), "new").unwrap();
    let words = ["-w", "h1", source.to_str().unwrap(), place.path().to_str().unwrap()];
    let put = told(run_to_end(&mut fleet.penstock("put", &words), secs(60)));
    assert_eq!(put.code, Some(0), "{put:?}");
    assert_eq!(fs::read_to_string(place.path().join("site/page")).unwrap(), "new");
    assert_eq!(mode(place.path().join("site")), 0o777);
}

#[test]
fn what_cannot_be_copied_is_refused_before_any_connection() {
    let hosts = Hosts::start(1);
    fs::create_dir_all(hosts.here("x/y")).unwrap();
    fs::write(hosts.here("y"), "").unwrap();
    nix::unistd::mkfifo(&hosts.here("x/pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (name, arguments, said) in [
        ("put", &["missing", "to"][..], "look at \"missing\": No such file"),
        ("put", &["y", "x/y", "to/"], "would go to the same destination"),
        ("put", &["x", "to"], "and cannot be copied"),
        ("put", &["/", "to"], "is not a name that the copy could have"),
        ("put", &["y"], "name what to copy, then the destination"),
        ("put", &["--engine", "openssh", "y", "to"], "put uses the built-in client"),
        ("put", &["--waves", "1,all", "--stop-if", "differs", "y", "to"], "a copy has none"),
        ("get", &["/etc/hosts", "etc/hosts", "here"], "would go to the same destination"),
        ("get", &["..", "here"], "is not a name that the copy could have"),
        ("get", &["a", "y"], "cannot make the directory y"),
        ("get", &["-S", "/bin/echo", "a", "here"], "get uses the built-in client"),
    ] {
        let refused = hosts.run(name, &[&["-w", "h1"], arguments].concat());
        assert_eq!(refused.code, Some(2), "{arguments:?} {refused:?}");
        assert!(refused.stderr.contains(said), "{said}: {refused:?}");
    }
    assert_eq!(hosts.connections(), 0);
}

#[test]
fn each_host_has_its_own_truth_and_those_that_were_not_reached_can_be_done_again() {
    let hosts = Hosts::start(2);
    fs::write(hosts.here("file"), "new").unwrap();
    fs::create_dir(hosts.there(2, "file")).unwrap();
    let put = hosts.run("put", &["-w", "h[1-2],away", "file", "."]);
    assert_eq!(put.code, Some(3), "{put:?}");
    assert!(put.stderr.starts_with("3 hosts: 1 ok, 1 failed, 1 not started, 1 file, 3 B"), "{put:?}");
    assert!(put.stderr.contains("not started: safe to run again\n  connection-refused (1): away"), "{put:?}");
    assert!(put.stderr.contains("failed\n  copy-failed (1): h2\n"), "{put:?}");
    assert!(
        put.stdout.contains(
            "h2   =: copy-failed: replace \"./file\" there: it is a directory there; nothing was changed there"
        ),
        "{put:?}"
    );
    let offered = put.stderr.lines().last().unwrap();
    assert!(offered.starts_with("again: penstock put --again not-started --id "), "{put:?}");
    assert_eq!(names(&hosts.there(2, "")), ["file"]);
    let last = hosts.fleet.run(&["--last"]);
    assert!(last.stdout.contains("  put ") && last.stdout.contains("h2    copy-failed: "), "{last:?}");
    let run = hosts.fleet.run(&["--again", "failed"]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.contains("hint: penstock put --again failed"), "{run:?}");
    fs::create_dir(hosts.here("tree")).unwrap();
    assert_eq!(hosts.run("put", &["-w", "h1,away", "tree", "to"]).code, Some(3));
    let again = hosts.run("put", &["--again", "failed"]);
    assert_eq!(again.code, Some(2), "{again:?}");
    assert!(again.stderr.contains("depends on whether to is a directory there"), "{again:?}");
    assert_eq!(names(&hosts.there(1, "to")), Vec::<String>::new());
    let again = hosts.run("put", &["--again", "not-started"]);
    assert_eq!(again.code, Some(3), "it is the same for hosts on which nothing was done: {again:?}");
    assert_eq!(hosts.run("put", &["-w", "h2", "file", "."]).code, Some(1));
    fs::remove_dir(hosts.there(2, "file")).unwrap();
    let mut again = hosts.command("put", &["--again", "h2"]);
    again.current_dir("/");
    let again = told(run_to_end(&mut again, secs(60)));
    assert_eq!(again.code, Some(0), "{again:?}");
    assert_eq!(fs::read_to_string(hosts.there(2, "file")).unwrap(), "new");
}

#[test]
fn hints_about_an_earlier_copy_name_the_command_that_was_typed_and_work() {
    let hosts = Hosts::start(1);
    fs::write(hosts.here("file"), "x").unwrap();
    for (command, files) in [("put", ["file", "."]), ("get", ["file", "got"])] {
        assert_eq!(hosts.run(command, &[&["-w", "h1"][..], &files].concat()).code, Some(0));
        let shown = hosts.run(command, &["--last"]);
        let (id, order) = shown.stdout.lines().next().unwrap().split_once("  ").unwrap();
        assert!(
            order.starts_with(&format!("{command} ")) && shown.stdout.contains("\nh1  ok\n"),
            "{shown:?}"
        );
        for (which, said) in [
            ("failed", "no host is failed in the run: nothing to repeat"),
            ("h9", "h9 is no host of the run, nor not-started, failed or not-ok"),
        ] {
            let last = hosts.run(command, &["--again", which]);
            let said_of_last = said.replace("the run", "the last run");
            assert_eq!(last.stderr, format!("error: {said_of_last}\n  hint: penstock {command} --last\n"));
            let named = hosts.run(command, &["--again", which, "--id", id]);
            let said = said.replace("the run", &format!("the run {id:?}"));
            let hint = format!("penstock {command} --last --id {id}");
            assert_eq!(named.stderr, format!("error: {said}\n  hint: {hint}\n"));
            assert_eq!((last.code, named.code), (Some(2), Some(2)));
        }
        assert_eq!(hosts.run(command, &["--last", "--id", id]).stdout, shown.stdout);
        let json = hosts.run(command, &["--last", "--json"]);
        let record: Value = serde_json::from_str(&json.stdout).unwrap();
        assert_eq!((&record["id"], &record["state"]), (&id.into(), &"ended".into()), "{json:?}");
    }
}

#[test]
fn what_the_host_forbids_changes_nothing_and_leaves_nothing() {
    let sshd = Sshd::for_ordinary_user("");
    let fleet = Fleet::of(&sshd);
    let place = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    let file = place.path().join("file");
    fs::write(&file, "old").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let source = fleet.home.path().join("file");
    fs::write(&source, "new").unwrap();
    let mode = if nix::unistd::geteuid().is_root() { 0o755 } else { 0o555 };
    fs::set_permissions(place.path(), fs::Permissions::from_mode(mode)).unwrap();
    let to = format!("{}/", place.path().display());
    let run = |name, arguments: &[&str]| told(run_to_end(&mut fleet.penstock(name, arguments), secs(60)));
    let put = run("put", &["-w", "h1", source.to_str().unwrap(), &to]);
    assert_eq!(put.code, Some(1), "{put:?}");
    assert!(put.stdout.contains("permission denied; nothing was changed there"), "{put:?}");
    assert_eq!(
        (names(place.path()), fs::read_to_string(&file).unwrap()),
        (vec!["file".into()], "old".into())
    );
    if nix::unistd::geteuid().is_root() {
        let here = fleet.home.path().join("got");
        let get = run("get", &["-w", "h1", file.to_str().unwrap(), here.to_str().unwrap()]);
        assert_eq!(get.code, Some(1), "{get:?}");
        assert!(get.stdout.contains("there: permission denied"), "{get:?}");
        assert!(!here.exists(), "the directory that it made is gone with it");
    }
}

/// Endings of a copy that would take for ever.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Broken {
    Us,
    Time,
    Them,
}

#[test]
fn copy_that_is_broken_off_leaves_the_old_file_and_no_other() {
    for name in ["put", "get"] {
        for how in [Broken::Us, Broken::Time, Broken::Them] {
            let hosts = Hosts::start(1);
            let (big, old) = match name {
                "put" => (hosts.here("big"), hosts.there(1, "big")),
                _ => (hosts.there(1, "big"), hosts.here("to/h1/big")),
            };
            fs::File::create(&big).unwrap().set_len(100 << 30).unwrap();
            fs::create_dir_all(old.parent().unwrap()).unwrap();
            fs::write(&old, "old").unwrap();
            let limit = if how == Broken::Time { "1" } else { "100" };
            let more: &[&str] =
                if name == "put" { &["big", "."] } else { &["--max-size", "1T", "big", "to"] };
            let mut command = hosts.command(name, &[&["-w", "h1", "--timeout", limit], more].concat());
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let directory = old.parent().unwrap().to_owned();
            let part = || names(&directory).into_iter().find(|name| name.starts_with('.'));
            // On a busy machine the second may be over before the test saw a byte.
            if how != Broken::Time {
                eventually("bytes arrive", secs(60), || {
                    let part = directory.join(part()?);
                    (fs::metadata(part).ok()?.len() > 0).then_some(())
                });
            }
            match how {
                Broken::Us => signal(&child, Signal::SIGINT),
                Broken::Time => {}
                Broken::Them => {
                    for session in testing::sshd::children_of(hosts.sshds[0].pid()) {
                        kill(Pid::from_raw(session.cast_signed()), Signal::SIGKILL).unwrap();
                    }
                }
            }
            let told = told(child.wait_with_output().unwrap());
            assert_eq!(fs::read_to_string(&old).unwrap(), "old", "{name} {how:?} {told:?}");
            let (code, title, left) = match (how, name) {
                (Broken::Us, _) => (130, "stopped: interrupted", false),
                (Broken::Time, _) => (1, "timed out at copy: not done after 1 s", false),
                (Broken::Them, "put") => (5, "lost: the connection to h1", true),
                (Broken::Them, _) => (1, "lost: the connection to h1", false),
            };
            assert_eq!(told.code, Some(code), "{name} {how:?} {told:?}");
            assert!(told.stdout.contains(title), "{name} {how:?} {told:?}");
            assert_eq!(part().is_some(), left, "{name} {how:?} {told:?}");
            if name == "put" {
                assert!(told.stdout.contains("; nothing was changed there"), "{told:?}");
                assert_eq!(told.stdout.contains("may remain there"), left, "{told:?}");
            }
        }
    }
}

#[test]
fn source_that_changes_is_told_and_changes_nothing() {
    let hosts = Hosts::start(1);
    fs::File::create(hosts.here("big")).unwrap().set_len(100 << 30).unwrap();
    let mut command = hosts.command("put", &["-w", "h1", "big", "."]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("it has begun", secs(30), || names(&hosts.there(1, "")).pop());
    fs::write(hosts.here("big"), "short now").unwrap();
    let told = told(child.wait_with_output().unwrap());
    assert_eq!(told.code, Some(1), "{told:?}");
    assert!(
        told.stdout.contains("\"big\" was changed while it was copied; nothing was changed there"),
        "{told:?}"
    );
    assert_eq!(names(&hosts.there(1, "")), Vec::<String>::new());
}

#[test]
fn limits_hold_for_each_host_and_what_is_whole_stays() {
    let hosts = Hosts::start(2);
    for number in 1..=2 {
        fs::create_dir(hosts.there(number, "d")).unwrap();
        fs::write(hosts.there(number, "d/a"), data(100_000 * number)).unwrap();
    }
    fs::write(hosts.there(2, "d/b"), "").unwrap();
    symlink("/etc", hosts.there(2, "out")).unwrap();
    symlink("/etc/hosts", hosts.there(2, "d/link")).unwrap();
    let get = |arguments: &[&str], to: &str| {
        let told = hosts.run("get", &[&["-w", "h[1-2]"], arguments, &["d", to]].concat());
        (told.code, told.stdout + &told.stderr, names(&hosts.here(to)))
    };
    let (code, said, here) = get(&["--max-size", "150K"], "small");
    assert_eq!((code, here), (Some(1), vec!["h1".to_owned(), "h2".to_owned()]), "{said}");
    assert!(said.contains("h2 =: copy-failed: ") && !said.contains("h1"), "{said}");
    let (code, said, _) = get(&["--max-files", "2"], "few");
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("h2 =: copy-failed: there are more than 2 files and directories, with those in \"d\""),
        "{said}"
    );
    assert!(!said.contains("h1") && said.contains("\n    raise the limit with --max-files\n"), "{said}");
    let (code, said, _) = get(&[], "links");
    assert!(said.contains("the link \"d/link\" leads out of what is copied, to \"/etc/hosts\""), "{said}");
    assert_eq!(code, Some(1), "{said}");
    let (code, said, _) = get(&["--all-links"], "all");
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(fs::read_link(hosts.here("all/h2/d/link")).unwrap(), Path::new("/etc/hosts"));
}

#[test]
fn host_for_which_there_is_no_room_here_is_told_and_the_others_go_on() {
    let hosts = Hosts::start(2);
    fs::write(hosts.there(1, "file"), data(300_000)).unwrap();
    fs::write(hosts.there(2, "file"), data(3_000)).unwrap();
    let get = hosts.command("get", &["-w", "h[1-2]", "file", "here"]);
    let mut limited = Command::new("bash");
    limited.args(["-c", "ulimit -c 0; ulimit -f 64; exec \"$@\"", "bash"]);
    limited.arg(get.get_program()).args(get.get_args()).current_dir(hosts.here.path()).stdin(Stdio::null());
    limited.env_clear().envs(get.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let told = told(run_to_end(&mut limited, secs(60)));
    assert_eq!(told.code, Some(1), "{told:?}");
    assert!(told.stdout.contains("h1 =: local-error: write \"here/h1/file\": File too large"), "{told:?}");
    assert!(told.stderr.contains("check ulimit -f"), "{told:?}");
    assert_eq!(names(&hosts.here("here")), ["h2"]);
    assert_eq!(fs::read(hosts.here("here/h2/file")).unwrap(), data(3_000));
}

#[test]
fn files_that_came_are_counted_although_their_host_failed() {
    let hosts = Hosts::start(1);
    fs::write(hosts.there(1, "a"), "here").unwrap();
    fs::write(hosts.here("b"), "x").unwrap();
    let get = hosts.run("get", &["-w", "h1", "a", "missing", "got"]);
    assert!(get.stderr.starts_with("1 host: 0 ok, 1 failed, 1 file, 4 B"), "{get:?}");
    assert_eq!(fs::read_to_string(hosts.here("got/h1/a")).unwrap(), "here");
    fs::create_dir_all(hosts.there(1, "to/c/in-the-way")).unwrap();
    fs::write(hosts.here("c"), "x").unwrap();
    let put = hosts.run("put", &["-w", "h1", "b", "c", "to/"]);
    assert!(put.stderr.starts_with("1 host: 0 ok, 1 failed, 1 file, 1 B"), "{put:?}");
}

#[test]
fn get_that_fails_leaves_no_empty_directory_that_it_has_made() {
    let hosts = Hosts::start(2);
    for number in [1, 2] {
        fs::create_dir_all(hosts.there(number, "logs/deep/empty")).unwrap();
        fs::write(hosts.there(number, "logs/deep/large"), data(5000)).unwrap();
    }
    let get = |remote: &str, directory: &str| {
        let told = hosts.run("get", &["-w", "h1,h2", "--max-size", "1000", remote, directory]);
        assert_eq!(told.code, Some(1), "{told:?}");
    };
    get("logs", "back");
    get("none", "back");
    assert!(!hosts.here("back").exists(), "{:?}", names(&hosts.here("back")));
    // What was there before stays, and what holds a file.
    fs::create_dir_all(hosts.here("old/h1/logs")).unwrap();
    fs::create_dir_all(hosts.here("old/h2")).unwrap();
    fs::write(hosts.there(2, "logs/a"), "small").unwrap();
    get("logs", "old");
    assert_eq!(names(&hosts.here("old")), ["h1", "h2"]);
    assert_eq!(names(&hosts.here("old/h1")), ["logs"]);
    assert!(!hosts.here("old/h1/logs/deep").exists());
    get("none", "old");
    assert_eq!(names(&hosts.here("old")), ["h1", "h2"]);
}

#[test]
fn no_server_leads_out_of_its_place_or_on_for_ever() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fleet/odd_sftp.py");
    for (mode, said) in [
        ("up", "the server lists a file with the invalid name \"../x\""),
        ("absolute", "the server lists a file with the invalid name \"/tmp/penstock-absolute\""),
        ("long", "the server lists a file with the invalid name \"nnnnnnnnnn"),
        ("loop", "directories deep"),
        ("wide", "there are more than 1000 files and directories"),
        ("bushy", "there are more than 1000 files and directories"),
        ("dots", "there are more than 1000 files and directories"),
        ("fat", "the server lists a file with the invalid name \"0nnnnnnnnnn"),
        (
            "fatter",
            "list \"/top\" there: the channel is closed: the server ended it, or sent what is not SFTP",
        ),
        ("talkative", "the list of \"/top\" from the server is too long: "),
        ("gush", "list \"/top\" there: the server keeps sending data that was not requested"),
        ("short", "\"/top\" ended on the host after 3 of 5 bytes: it was truncated during the copy"),
        ("empty", "\"/top\" ended on the host after 0 of 5 bytes: "),
        ("outside", "the link \"/top/l\" leads out of what is copied, to \"/etc\""),
        ("through", "make the directory \"here/h1/top/l\": File exists"),
        ("terminal", "\"/top/pipe\\u{1b}[2J\" is not a file"),
        ("endless", "the total exceeds 1048576 bytes with \"/top\""),
        ("huge", "the total exceeds 1048576 bytes with \"/top\""),
        ("sparse", "the total exceeds 1048576 bytes with \"/top\""),
        ("nothing", "read \"/top\" there: the server sent an SFTP reply of the wrong type"),
        ("much", "read \"/top\" there: the server sent an SFTP reply of the wrong type"),
        ("top-link", "is not a file, directory or symbolic link"),
        ("ends", "read \"/top\" there: the channel is closed"),
        ("packet", "read \"/top\" there: the channel is closed"),
        ("silent", "not done after 2 s"),
        ("limits", ""),
        ("least", ""),
        ("zero", ""),
    ] {
        let sshd = Sshd::with(&format!(
            "Subsystem sftp {} {} {mode}",
            tools::program("python3").display(),
            script.display()
        ));
        let fleet = Fleet::of(&sshd);
        let here = tempfile::tempdir().unwrap();
        let links = if mode == "through" { "--all-links" } else { "--json" };
        // The others end by themselves, however busy this machine is: where a limit is missing, not by this one.
        let limit = if mode == "silent" { "2" } else { "50" };
        let mut get = fleet.penstock(
            "get",
            &[
                "-w",
                "h1",
                "--timeout",
                limit,
                "--max-size",
                "1M",
                "--max-files",
                "1000",
                links,
                "/top",
                "here",
            ],
        );
        get.current_dir(here.path());
        let told = told(run_to_end(&mut get, secs(60)));
        let out = told.stdout.replace("\\\"", "\"").replace("\\\\", "\\");
        assert!(out.contains(said), "{mode}: {told:?}");
        assert_eq!(told.code, Some(if said.is_empty() { 0 } else { 1 }), "{mode}: {told:?}");
        assert!(!told.stderr.contains('\x1b') && !told.stdout.contains('\x1b'), "{mode}: {told:?}");
        // A directory in which nothing arrived is gone again.
        let expected: &[&str] = if here.path().join("here/h1").exists() { &["here"] } else { &[] };
        assert_eq!(names(here.path()), expected, "{mode}");
        match fs::read(here.path().join("here/h1/top")) {
            Ok(content) => assert_eq!(content, b"abc", "{mode}"),
            Err(_) => assert!(!said.is_empty(), "{mode}: {told:?}"),
        }
        assert!(!Path::new("/tmp/penstock-absolute").exists());
    }
}

#[test]
fn server_that_cannot_rename_over_a_file_has_the_new_one_and_no_other() {
    let lab = Lab::start(1, &[]);
    let fleet = lab_fleet(&lab);
    let here = tempfile::tempdir().unwrap();
    for content in ["old", "new"] {
        let file = here.path().join("file");
        fs::write(&file, content).unwrap();
        let mut put = fleet.penstock("put", &["-w", "lab001", file.to_str().unwrap(), "name"]);
        let told = told(run_to_end(&mut put, secs(60)));
        assert_eq!(told.code, Some(0), "{told:?}");
        let own = lab.file("files/lab001");
        assert_eq!(names(&own), ["name"], "{told:?}");
        assert_eq!(fs::read_to_string(own.join("name")).unwrap(), content);
    }
}

/// A home that knows the hosts of the lab.
fn lab_fleet(lab: &Lab) -> Fleet {
    let fleet = Fleet::of_lab(&lab.file("ssh_config"));
    let usual = fleet.penstock("host", &[]);
    let mut import = Command::new(usual.get_program());
    import.args(["host", "import"]).arg(lab.file("known_hosts"));
    import.envs(usual.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = run_to_end(&mut import, secs(60));
    assert!(output.status.success(), "{output:?}");
    fleet
}

#[test]
fn five_hundred_hosts_are_copied_to_and_from_with_256_descriptors() {
    let lab = Lab::start(500, &[]);
    let fleet = lab_fleet(&lab);
    let here = tempfile::tempdir().unwrap();
    fs::create_dir(here.path().join("tree")).unwrap();
    for number in 0..3 {
        fs::write(here.path().join(format!("tree/{number}")), data(40_000)).unwrap();
    }
    let list = lab.path("hosts");
    let limited = |name: &str, arguments: &[&str]| {
        let copy = fleet.penstock(name, &[&["--hosts", &list], arguments].concat());
        let mut limited = Command::new("bash");
        limited.args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""]);
        limited.arg(copy.get_program()).args(copy.get_args()).current_dir(here.path()).stdin(Stdio::null());
        limited.envs(copy.get_envs().filter_map(|(name, value)| Some((name, value?))));
        told(run_to_end(&mut limited, secs(300)))
    };
    let put = limited("put", &["tree", "copy"]);
    assert_eq!(put.code, Some(0), "{put:?}");
    assert!(put.stderr.starts_with("500 hosts: 500 ok, 1500 files, 57.2 MiB"), "{put:?}");
    let get = limited("get", &["copy", "back"]);
    assert_eq!(get.code, Some(0), "{get:?}");
    let expected = sums(&here.path().join("tree"));
    let all = names(&here.path().join("back"));
    assert_eq!(all.len(), 500);
    for host in &all {
        assert_eq!(sums(&here.path().join("back").join(host).join("copy")), expected, "{host}");
    }
}

#[test]
fn help_of_copies_offers_nothing_that_they_refuse() {
    for name in ["put", "get"] {
        let help = String::from_utf8(penstock(&[name, "--help"]).stdout).unwrap();
        for refused in ["--engine <", "--ssh <", "differs"] {
            assert!(!help.contains(refused), "{name}: {refused} in {help}");
        }
        assert!(help.contains("--stop-if <") && help.contains("failed>2%"), "{help}");
    }
}
