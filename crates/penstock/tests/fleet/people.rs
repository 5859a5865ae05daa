//! `penstock user audit`, `deploy` and `revoke` against real OpenSSH servers, whose accounts have files of keys of their own.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User};
use serde_json::Value;
use testing::fleet::{Fleet, RunResult, told};
use testing::secs;
use testing::server::{Lines, run_to_end};
use testing::sshd::{Sshd, keygen, ordinary_user, program, public_line};
use testing::tools::{self, Root};

/// A server with files of keys of its own for root and an ordinary user: `keys/ACCOUNT/authorized_keys`.
fn server(lines: &str) -> Sshd {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    keygen(&path.join("client"), &["-t", "ed25519"]);
    for account in ["root", &ordinary_user()] {
        let user = User::from_name(account).unwrap().unwrap();
        let home = path.join("keys").join(account);
        fs::create_dir_all(&home).unwrap();
        let file = home.join("authorized_keys");
        fs::copy(path.join("client.pub"), &file).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        for owned in [&home, &file] {
            chown(owned, Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
        }
    }
    let shown = path.display();
    Sshd::in_directory(directory, &format!("AuthorizedKeysFile {shown}/keys/%u/authorized_keys\n{lines}"))
}

fn file(sshd: &Sshd, account: &str) -> PathBuf {
    sshd.directory.path().join("keys").join(account).join("authorized_keys")
}

/// Hosts h1, h2 and so on, and the people ann and bob with their keys; the key of the log-in belongs to `ops`.
struct Site {
    fleet: Fleet,
    prints: HashMap<&'static str, String>,
}

impl Site {
    fn of(sshds: &[&Sshd]) -> Self {
        let site = Self { fleet: Fleet::of_each(sshds), prints: HashMap::new() };
        let mut prints = HashMap::new();
        for name in ["ann", "bob"] {
            keygen(&site.at(name), &["-t", "ed25519", "-C", &format!("{name}@desk")]);
            site.done(&["add", name, "--no-password"]);
            site.done(&["key", "add", name, site.at(&format!("{name}.pub")).to_str().unwrap()]);
            prints.insert(name, fingerprint(&site.at(&format!("{name}.pub"))));
        }
        site.done(&["add", "ops", "--no-password"]);
        for (at, sshd) in sshds.iter().enumerate() {
            let key = format!("{}.pub", sshd.client_key.display());
            let known = site.user(&["key", "list"]).stdout.contains(&fingerprint(Path::new(&key)));
            assert!(known || site.user(&["key", "add", "ops", &key]).code == Some(0), "{at}");
        }
        Self { prints, ..site }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.fleet.home.path().join(name)
    }

    fn key(&self, name: &str) -> String {
        public_line(&self.at(&format!("{name}.pub")))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(testing::server::binary());
        testing::server::clear_environment(&mut command);
        command.arg("user").arg("--file").arg(self.at("users")).arg(arguments[0]);
        if ["audit", "deploy", "revoke"].contains(&arguments[0]) {
            command.arg("-F").arg(self.at("ssh_config"));
        }
        command.args(&arguments[1..]).stdin(Stdio::null());
        for (name, place) in [("HOME", ""), ("XDG_STATE_HOME", "state"), ("XDG_CONFIG_HOME", "config")] {
            command.env(name, self.at(place));
        }
        command
    }

    fn user(&self, arguments: &[&str]) -> RunResult {
        told(run_to_end(&mut self.command(arguments), secs(120)))
    }

    #[track_caller]
    fn done(&self, arguments: &[&str]) -> RunResult {
        let result = self.user(arguments);
        assert_eq!(result.code, Some(0), "{arguments:?}: {result:?}");
        result
    }
}

fn fingerprint(file: &Path) -> String {
    let output = Command::new(program("ssh-keygen")).arg("-lf").arg(file).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().nth(1).unwrap().to_owned()
}

fn append(file: &Path, text: &str) {
    let old = fs::read_to_string(file).unwrap();
    fs::write(file, format!("{old}{text}")).unwrap();
}

fn skipped() -> bool {
    matches!(tools::root("has accounts of its own"), Root::LeftOut)
}

#[test]
fn an_audit_tells_whose_keys_are_where_and_what_a_server_accepts() {
    if skipped() {
        return;
    }
    let (one, two) = (server("PasswordAuthentication yes\n"), server(""));
    let site = Site::of(&[&one, &two]);
    let other = ordinary_user();
    keygen(&site.at("stranger"), &["-t", "ed25519", "-C", "who@where\u{1b}[2J"]);
    keygen(&site.at("weak"), &["-t", "rsa", "-b", "1024"]);
    append(&file(&one, "root"), &format!("# ann\nfrom=\"10.0.0.1\" {} x\n", site.key("stranger")));
    append(&file(&two, "root"), &format!("{}\n", site.key("ann")));
    append(&file(&two, &other), &format!("{}\nnonsense\n", site.key("weak")));
    site.done(&["add", "ann", "--no-password", "--account", "deploy", "--account", "root@web*"]);
    let found = site.user(&["audit", "h[1-2]"]);
    assert_eq!(found.code, Some(1), "{found:?}");
    let line = |begins: &str, has: &str| {
        let is = |line: &&str| line.starts_with(begins) && line.contains(has);
        assert!(found.stdout.lines().any(|line| is(&line)), "{begins} {has}: {}", found.stdout);
    };
    line(
        &format!("h1 root {}:3  unknown-owner: ", file(&one, "root").display()),
        &fingerprint(&site.at("stranger.pub")),
    );
    line(
        &format!("h2 root {}:2  wrong-account: ", file(&two, "root").display()),
        "is of ann, whose accounts are deploy, root@web*",
    );
    line(&format!("h2 {other} {}:2  weak-key: ", file(&two, &other).display()), "RSA of 1024 bits");
    line(&format!("h2 {other} {}:3  warning no-key: ", file(&two, &other).display()), "it has no key");
    line("h1 - sshd -T  passwords: ", "the server accepts passwords; PasswordAuthentication no");
    line("h1 - sshd -T  passwords: ", "root may log in with a password; PermitRootLogin prohibit-password");
    line("h2 - sshd -T  warning root-login: ", "PermitRootLogin prohibit-password");
    assert!(found.stdout.contains("2 of 2 hosts looked at, 8 keys: "), "{}", found.stdout);
    assert!(!found.stdout.contains('\u{1b}'), "{}", found.stdout);
    let json: Value = serde_json::from_str(&site.user(&["audit", "h[1-2]", "--json"]).stdout).unwrap();
    let kinds: Vec<_> =
        json["findings"].as_array().unwrap().iter().map(|one| one["finding"].as_str().unwrap()).collect();
    assert_eq!(json["exit_code"], 1);
    assert!(
        kinds.contains(&"unknown-owner") && kinds.contains(&"weak-key") && kinds.contains(&"passwords"),
        "{json}"
    );
    // All hosts are those that are enrolled.
    let all = site.user(&["audit"]);
    assert!(all.stderr.contains("2 hosts of penstock host list"), "{all:?}");
    let away = site.user(&["audit", "h1,away"]);
    assert!(away.code == Some(3) && away.stdout.contains("away - -  not-seen: "), "{away:?}");
}

#[test]
fn equal_findings_of_hosts_are_one_line_and_others_are_not() {
    if skipped() {
        return;
    }
    let (one, two) =
        (server("PermitRootLogin prohibit-password\n"), server("PermitRootLogin prohibit-password\n"));
    let site = Site::of(&[&one, &two, &one]);
    for (sshd, key) in [(&one, "x"), (&two, "y")] {
        keygen(&site.at(key), &["-t", "ed25519"]);
        append(&file(sshd, "root"), &format!("{}\n", site.key(key)));
    }
    let found = site.user(&["audit", "h[1-3]"]);
    let lines: Vec<&str> = found.stdout.lines().filter(|line| line.contains("unknown-owner")).collect();
    let [x, y] = ["x.pub", "y.pub"].map(|name| fingerprint(&site.at(name)));
    assert_eq!(lines.len(), 2, "{found:?}");
    assert!(lines[0].starts_with("h[1,3] root ") && lines[0].contains(&x), "{found:?}");
    assert!(lines[1].starts_with("h2 root ") && lines[1].contains(&y), "{found:?}");
}

#[test]
fn an_ordinary_user_sees_one_account_and_is_told_so() {
    if skipped() {
        return;
    }
    let sshd = server("");
    let site = Site::of(&[&sshd]);
    let user = ordinary_user();
    let found = site.user(&["audit", "h1", "-l", &user]);
    // The configuration of that sshd has User root for h1, which -l goes before.
    assert_eq!(found.code, Some(3), "{found:?}");
    assert!(
        found.stdout.contains(&format!("only the account {user} was looked at; log in as root, or --sudo")),
        "{found:?}"
    );
    let refused = site.user(&["audit", "h1", "-l", &user, "--sudo"]);
    assert!(refused.code == Some(3) && refused.stdout.contains("sudo"), "{refused:?}");
}

#[test]
fn keys_come_to_accounts_once_and_other_lines_mode_and_owner_stay() {
    if skipped() {
        return;
    }
    let (one, two) = (server(""), server(""));
    let site = Site::of(&[&one, &two]);
    let user = ordinary_user();
    let foreign = format!("# mine\n\ncommand=\"echo '{} x'\" {} old\n", site.key("ann"), site.key("bob"));
    append(&file(&one, &user), &foreign);
    let before = fs::read_to_string(file(&one, &user)).unwrap();
    let deploy = |more: &[&str]| {
        site.user(&[&["deploy", "ann", "bob", "--to", "h[1-2]", "--account", &user], more].concat())
    };
    let first = deploy(&[]);
    assert_eq!(first.code, Some(0), "{first:?}");
    assert!(first.stdout.contains("2 hosts: 2 as they should be, 0 not"), "{first:?}");
    let after = fs::read_to_string(file(&one, &user)).unwrap();
    // The key of bob stands there with an option: it is not given a second line without it.
    assert_eq!(
        after,
        format!("{before}{} penstock:ann ann_desk\n", site.key("ann")).replace("ann_desk", "ann@desk")
    );
    assert!(
        fs::read_to_string(file(&two, &user))
            .unwrap()
            .contains(&format!("{} penstock:bob bob@desk\n", site.key("bob")))
    );
    let [metadata, owner] =
        [fs::metadata(file(&one, &user)), fs::metadata(file(&one, &user).parent().unwrap())]
            .map(Result::unwrap);
    assert_eq!((metadata.mode() & 0o7777, metadata.uid()), (0o640, owner.uid()));
    assert_eq!(
        fs::read_dir(file(&one, &user).parent().unwrap()).unwrap().count(),
        1,
        "nothing is left beside it"
    );
    let inode = metadata.ino();
    let again = deploy(&[]);
    assert!(again.code == Some(0) && again.stdout.contains("as it should be"), "{again:?}");
    assert_eq!(fs::metadata(file(&one, &user)).unwrap().ino(), inode, "what is right is not written");
    // It works.
    let log_in = site
        .fleet
        .ssh(&["-i", site.at("ann").to_str().unwrap(), "-l", &user, "h1", "id -un"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&log_in.stdout).trim(), user, "{log_in:?}");
    // A key that the user does not have any more goes where it is marked.
    site.done(&["key", "remove", "ann", &site.prints["ann"]]);
    keygen(&site.at("new"), &["-t", "ed25519"]);
    site.done(&["key", "add", "ann", site.at("new.pub").to_str().unwrap()]);
    assert_eq!(deploy(&[]).code, Some(0));
    let text = fs::read_to_string(file(&one, &user)).unwrap();
    assert!(text.starts_with(&before) && !text.contains(&format!("{} penstock", site.key("ann"))), "{text}");
    assert!(text.contains(&format!("{} penstock:ann", site.key("new"))), "{text}");
    let lists: Vec<_> = ["h1", "h2"].map(|host| site.user(&["audit", host]).stdout).into_iter().collect();
    assert!(lists.iter().all(|list| !list.contains("revoked")), "{lists:?}");
}

#[test]
fn where_keys_cannot_be_written_it_is_said_and_a_second_run_names_those_hosts() {
    if skipped() {
        return;
    }
    let user = ordinary_user();
    let sshds = [server(""), server(""), server(""), server("")];
    let site = Site::of(&sshds.iter().collect::<Vec<_>>());
    // h2: a link; h3: the file of another user in the user's directory; h4: a directory of a third one.
    let link = file(&sshds[1], &user);
    fs::rename(&link, link.with_file_name("real")).unwrap();
    symlink("real", &link).unwrap();
    chown(file(&sshds[2], &user), Some(0), Some(0)).unwrap();
    chown(file(&sshds[3], &user).parent().unwrap(), Some(1), Some(1)).unwrap();
    let deployed = site.user(&["deploy", "ann", "--to", "h[1-4],away", "--account", &user]);
    assert_eq!(deployed.code, Some(3), "{deployed:?}");
    for (host, why) in [
        ("h2", "NOT CHANGED: it is a symbolic link"),
        ("h3", "NOT CHANGED: it belongs to the user id 0, and the new file would not"),
        ("h4", "NOT CHANGED: its directory belongs to the user id 1"),
        ("away", "FAILED: "),
    ] {
        let is = |line: &str| line.starts_with(&format!("{host} ")) && line.contains(why);
        assert!(deployed.stdout.lines().any(is), "{host}: {deployed:?}");
    }
    assert!(
        deployed.stdout.lines().any(|line| line.starts_with("h1 ") && line.contains("changed, 1 added")),
        "{deployed:?}"
    );
    assert!(
        deployed
            .stderr
            .contains(&format!("again: penstock user deploy ann --to 'away,h[2-4]' --account {user}")),
        "{deployed:?}"
    );
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    for (arguments, why) in
        [(&["deploy", "eve", "--to", "h1"][..], "has no user eve"), (&["deploy", "ann"], "no hosts")]
    {
        let refused = site.user(arguments);
        assert!(refused.code == Some(2) && refused.stderr.contains(why), "{refused:?}");
    }
    let strange = "x'; touch /tmp/penstock-was-here; '\"$(id)";
    let absent = site.user(&["deploy", "ann", "--to", "h1", "--account", strange]);
    assert!(absent.code == Some(1) && absent.stdout.contains("there is no such account"), "{absent:?}");
    assert!(!Path::new("/tmp/penstock-was-here").exists());
    site.done(&["add", "ann", "--no-password", "--account", "deploy"]);
    let other = site.user(&["deploy", "ann", "--to", "h1", "--account", "root"]);
    assert!(other.code == Some(1) && other.stdout.contains("root is no account of ann"), "{other:?}");
}

#[test]
fn a_revoked_user_has_no_key_on_any_host_and_what_is_left_is_found() {
    if skipped() {
        return;
    }
    let (one, two) = (server(""), server(""));
    let site = Site::of(&[&one, &two]);
    let user = ordinary_user();
    site.done(&["add", "ann", "--no-password", "--role", "admin"]);
    append(
        &file(&one, "root"),
        &format!("restrict,command=\"x \\\"y\\\"\" {} other\n{}\n", site.key("ann"), site.key("bob")),
    );
    append(&file(&two, &user), &format!("ssh-ed25519 AAAAnokey penstock:ann\n# {}\n", site.key("ann")));
    append(&file(&two, &user), &format!("{}\r\n{} penstock:ann x", site.key("ann"), site.key("bob")));
    let kept = fs::read_to_string(file(&two, &user)).unwrap();
    let revoked = site.user(&["revoke", "ann"]);
    assert_eq!(revoked.code, Some(0), "{revoked:?}");
    assert!(
        revoked.stdout.contains("ann is revoked; 2 hosts: 2 without a key of ann (0 had none), 0 not"),
        "{revoked:?}"
    );
    assert!(revoked.stdout.contains("Open sessions of ann stay open."), "{revoked:?}");
    let root = fs::read_to_string(file(&one, "root")).unwrap();
    assert!(root.ends_with(&format!("{}\n", site.key("bob"))) && !root.contains("command"), "{root}");
    let (mine, _) = kept.split_once('\n').unwrap();
    assert_eq!(fs::read_to_string(file(&two, &user)).unwrap(), format!("{mine}\n# {}\n", site.key("ann")));
    let list: Value = serde_json::from_str(&site.done(&["list", "--json"]).stdout).unwrap();
    assert!(
        list[0]["revoked"].is_string() && list[0]["role"].is_null() && list[0]["ssh_keys"] == 1,
        "{list}"
    );
    // It comes back by another way.
    append(&file(&one, "root"), &format!("{}\n", site.key("ann")));
    let found = site.user(&["audit"]);
    assert!(
        found.code == Some(1)
            && found.stdout.contains("h1 root ")
            && found.stdout.contains("is of ann, who was revoked on "),
        "{found:?}"
    );
    assert!(found.stdout.contains("; penstock user revoke ann\n"), "{found:?}");
    let refused = site.user(&["deploy", "ann", "--to", "h1"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("ann was revoked on"), "{refused:?}");
    let partly = site.user(&["revoke", "ann", "-w", "h1,away"]);
    assert!(
        partly.code == Some(3) && partly.stderr.contains("again: penstock user revoke ann -w away"),
        "{partly:?}"
    );
    assert!(partly.stdout.contains("nothing was changed"), "{partly:?}");
    assert_eq!(
        site.done(&["revoke", "ann"]).stdout.lines().next().unwrap(),
        "ann is revoked; 2 hosts: 2 without a key of ann (2 had none), 0 not"
    );
}

#[test]
fn the_key_of_the_log_in_is_not_removed_unless_that_is_said() {
    if skipped() {
        return;
    }
    let sshd = server("");
    let site = Site::of(&[&sshd]);
    for engine in ["native", "openssh"] {
        let before = (fs::read(file(&sshd, "root")).unwrap(), fs::read(site.at("users")).unwrap());
        let refused = site.user(&["revoke", "ops", "-w", "h1", "--engine", engine]);
        assert!(
            refused.code == Some(2)
                && refused.stderr.contains("this command logs in to h1 with one of these keys"),
            "{refused:?}"
        );
        assert_eq!(before, (fs::read(file(&sshd, "root")).unwrap(), fs::read(site.at("users")).unwrap()));
    }
    site.done(&["deploy", "ops", "--to", "h1"]);
    let mine = fs::read_to_string(file(&sshd, "root")).unwrap();
    fs::write(file(&sshd, "root"), mine.trim_end().to_owned() + " penstock:ops\n").unwrap();
    let line = public_line(&sshd.client_key.with_extension("pub"));
    fs::write(file(&sshd, "root"), format!("{line} penstock:ops\n")).unwrap();
    keygen(&site.at("other"), &["-t", "ed25519"]);
    site.done(&["key", "add", "ops", site.at("other.pub").to_str().unwrap()]);
    site.done(&["key", "remove", "ops", &fingerprint(&sshd.client_key)]);
    let refused = site.user(&["deploy", "ops", "--to", "h1"]);
    assert!(
        refused.code == Some(1) && refused.stdout.contains("it would remove the key of this log-in"),
        "{refused:?}"
    );
    assert_eq!(fs::read_to_string(file(&sshd, "root")).unwrap(), format!("{line} penstock:ops\n"));
    site.done(&["deploy", "ops", "--to", "h1", "--including-mine"]);
    assert_eq!(
        fs::read_to_string(file(&sshd, "root")).unwrap().trim_end(),
        format!("{} penstock:ops made_by_a_test", site.key("other"))
    );
    let away = site.user(&["audit", "h1"]);
    assert!(away.code == Some(3) && away.stdout.contains("not-seen"), "{away:?}");
}

#[test]
fn ctrl_c_says_which_hosts_were_changed() {
    if skipped() {
        return;
    }
    let (one, two) = (server(""), server(""));
    let site = Site::of(&[&one, &two]);
    let user = ordinary_user();
    let waves = ["--waves", "1,all", "--pause=60"];
    let mut command =
        site.command(&[&["deploy", "ann", "--to", "h[1-2]", "--account", &user][..], &waves].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stderr = Lines::follow(child.stderr.take().unwrap());
    stderr.wait_for("1 of 2 hosts", secs(60));
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let told = told(child.wait_with_output().unwrap());
    assert_eq!(told.code, Some(130), "{told:?}");
    let key = site.key("ann");
    let is_there = |sshd: &Sshd| fs::read_to_string(file(sshd, &user)).unwrap().contains(&key);
    assert!(is_there(&one) && !is_there(&two));
    let line = |begins: &str, has: &str| {
        told.stdout.lines().any(|line| line.starts_with(begins) && line.contains(has))
    };
    assert!(line("h1 ", "changed, 1 added") && line("h2 ", "nothing was changed"), "{told:?}");
    stderr.wait_for("again: penstock user deploy ann --to h2 ", secs(60));
}
