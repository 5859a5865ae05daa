//! The files of identities on disk: several writers, writers that are killed, and a disk that is full.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;

use hosts::ssh::key::PublicKey;
use testing::secs;
use testing::server::run_to_end;
use testing::sshd::{keygen, public_line};
use testing::user::User;

#[test]
fn processes_that_write_at_once_lose_nothing() {
    // In memory: each waits five seconds for its turn, and every writer before it waits for the disk.
    let (user, key) = (User { home: testing::memory::directory() }, tempfile::tempdir().unwrap());
    keygen(&key.path().join("k"), &["-t", "ed25519"]);
    user.pin("web1", &public_line(&key.path().join("k.pub")), None);
    let names: Vec<String> = (0..6).map(|at| format!("alias{at}")).collect();
    let start = |name: &String| {
        let mut command = user.command(testing::binary());
        command.args(["host", "alias", "web1", name]).stdout(Stdio::null()).spawn().unwrap()
    };
    let running: Vec<_> = names.iter().map(start).collect();
    for mut process in running {
        assert!(process.wait().unwrap().success());
    }
    let index = user.store().load().unwrap();
    for name in &names {
        assert!(matches!(index.find(name, 22), hosts::identity::Found::Host(_)), "{name}");
    }
}

#[test]
fn of_many_who_give_one_key_or_one_name_to_different_hosts_at_once_one_succeeds() {
    let (user, keys) = (User::new(), tempfile::tempdir().unwrap());
    let start = |words: [&str; 5]| {
        let mut command = user.command(testing::binary());
        let words = words.iter().filter(|word| !word.is_empty());
        command.arg("host").args(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let succeed = |running: Vec<std::process::Child>| {
        running
            .into_iter()
            .map(|mut process| process.wait().unwrap())
            .filter(|status| status.success())
            .count()
    };
    let names: Vec<String> = (0..10).map(|at| format!("host{at}")).collect();
    let key = keys.path().join("shared");
    keygen(&key, &["-t", "ed25519"]);
    let key = format!("{}.pub", key.display());
    let clones = names.iter().map(|name| start(["add", name, "--key", &key, ""])).collect();
    assert_eq!(succeed(clones), 1, "one key is one host's");
    let others: Vec<String> = names.iter().map(|name| format!("other-{name}")).collect();
    for other in &others {
        let own = keys.path().join(other);
        keygen(&own, &["-t", "ed25519"]);
        assert_eq!(succeed(vec![start(["add", other, "--key", &format!("{}.pub", own.display()), ""])]), 1);
    }
    let aliases = others.iter().map(|other| start(["alias", other, "www", "", ""])).collect();
    assert_eq!(succeed(aliases), 1, "one name is one host's");
    let renamed = others[1..5].iter().map(|other| start(["rename", other, "www2", "", ""]));
    let aliases = others[5..].iter().map(|other| start(["alias", other, "www2", "", ""]));
    assert_eq!(succeed(renamed.chain(aliases).collect()), 1, "however it is given");
}

#[test]
fn writer_that_is_killed_leaves_every_file_whole() {
    let user = User::new();
    let file = user.home.path().join("known_hosts");
    let mut text = String::new();
    for at in 0..1000_u32 {
        let mut blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20".to_vec();
        blob.extend(at.to_be_bytes().into_iter().cycle().take(32));
        text.push_str(&format!("host{at} {}\n", PublicKey::from_blob(&blob).unwrap()));
    }
    fs::write(&file, text).unwrap();
    let hosts = user.store().places().hosts();
    let count = || fs::read_dir(&hosts).map_or(0, Iterator::count);
    for killed_at in [1, 40, 300, 999] {
        let mut import = user.command(testing::binary());
        let mut import = import
            .args(["host", "import", &file.display().to_string()])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        testing::eventually("it writes", secs(20), || (count() > killed_at).then_some(()));
        let _ = import.kill();
        let _ = import.wait();
        let index = user.store().load().unwrap();
        assert!(index.damaged().is_empty(), "{:?}", index.damaged());
        assert!(index.hosts().iter().all(|host| host.pins().count() == 1));
    }
    // It ends with a sync of the file system, on which other tests write.
    let mut import = user.command(testing::binary());
    let output = run_to_end(import.args(["host", "import"]).arg(&file), secs(300));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("0 lines not taken"), "{output:?}");
    assert_eq!(user.store().load().unwrap().hosts().len(), 1000);
    assert_eq!(count(), 1001, "nothing is left beside the files and the lock");
}

#[test]
fn disk_that_is_full_leaves_the_old_file_and_says_so() {
    let (user, key) = (User::new(), tempfile::tempdir().unwrap());
    keygen(&key.path().join("k"), &["-t", "ed25519"]);
    user.pin("web1", &public_line(&key.path().join("k.pub")), None);
    let before = fs::read(user.file("web1")).unwrap();
    // No byte can be written to any file: as on a full disk, write fails. The signal for that must not end us.
    let script = format!("ulimit -f 0; exec {} host alias web1 www", testing::binary());
    let output = run_to_end(user.command("sh").args(["-c", &script]), secs(20));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("error: cannot write ") && said.contains("web1.host"), "{said}");
    assert_eq!(fs::read(user.file("web1")).unwrap(), before);
    assert_eq!(fs::read_dir(user.store().places().hosts()).unwrap().count(), 2, "no half file is left");
}

#[test]
fn who_waits_for_another_writer_says_for_whom_and_gives_up() {
    let (user, key) = (User::new(), tempfile::tempdir().unwrap());
    keygen(&key.path().join("k"), &["-t", "ed25519"]);
    user.pin("web1", &public_line(&key.path().join("k.pub")), None);
    let lock = user.store().places().hosts().join(".lock");
    let mut holder = std::process::Command::new("flock");
    // `cat` ends with its input, which is closed when `holder` is dropped.
    let holder = holder.arg(&lock).args(["sh", "-c", "echo locked; exec cat"]);
    let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = [0; 7];
    holder.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    let pid = holder.id();
    let mut child = user.command(testing::binary());
    let mut child = child.args(["host", "alias", "web1", "www"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    let note = said.next().unwrap().unwrap();
    assert!(child.try_wait().unwrap().is_none(), "it is said while it waits: {note}");
    let words =
        format!("note: waiting for process {pid} (flock), which has locked {}; giving up", lock.display());
    assert!(note.starts_with(&words), "{note}");
    let error = said.next().unwrap().unwrap();
    assert!(
        error.contains(&format!("{} has been locked by process {pid} (flock)", lock.display())),
        "{error}"
    );
    assert_eq!(child.wait().unwrap().code(), Some(1));
    holder.kill().unwrap();
    holder.wait().unwrap();
}

#[test]
fn damaged_file_of_one_host_is_named_and_stops_no_other() {
    let (user, key) = (User::new(), tempfile::tempdir().unwrap());
    keygen(&key.path().join("k"), &["-t", "ed25519"]);
    user.pin("web1", &public_line(&key.path().join("k.pub")), None);
    let place = |name: &str| user.store().places().hosts().join(format!("{name}.host"));
    std::os::unix::fs::symlink("/nonexistent/lost", place("lost")).unwrap();
    std::os::unix::fs::symlink(place("round"), place("round")).unwrap();
    let huge = fs::File::create(place("huge")).unwrap();
    huge.set_len(1 << 30).unwrap();
    nix::unistd::mkfifo(&place("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let list = user.said(&["host", "list"]);
    let damaged = |name: &str| list.lines().any(|line| line.starts_with(name) && line.contains("DAMAGED"));
    assert!(["lost", "round", "huge", "pipe"].into_iter().all(damaged) && !damaged("web1"), "{list}");
    // Where a damaged host is cannot be known: that is what is said of it, not that the DNS does not know it.
    let run = user.penstock(&["run", "-w", "lost,huge", "true"]);
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert_eq!(run.status.code(), Some(3), "{run:?}");
    for (name, why) in [("lost", "leads nowhere"), ("huge", "longer than")] {
        let line = said.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        assert!(line.contains("configuration: ") && line.contains(why), "{said}");
    }
}

/// penstock used to skip such a file and to say nothing: it took the host for one without an identity, and with `--engine openssh` for
/// one of `known_hosts`.
#[test]
fn file_of_a_host_with_a_wrong_name_is_told_and_its_host_refused() {
    let (user, key) = (User::new(), tempfile::tempdir().unwrap());
    keygen(&key.path().join("k"), &["-t", "ed25519"]);
    let line = public_line(&key.path().join("k.pub"));
    user.pin("web1", &line, None);
    let hosts = user.store().places().hosts();
    let places = hosts.parent().unwrap();
    let text = fs::read_to_string(hosts.join("web1.host")).unwrap();
    fs::create_dir(places.join("authorities")).unwrap();
    let misnamed = ["Web1.host", "H2.host", "web9.HOST", "h3 .host", "a b.host", "notes.ca"]
        .map(|name| hosts.join(name));
    let authority = places.join("authorities/Fleet.ca");
    for file in misnamed.iter().chain([&authority]) {
        fs::write(file, &text).unwrap();
    }
    fs::write(hosts.join("web1.host~"), &text).unwrap();
    let index = user.store().load().unwrap();
    for name in ["h2", "web9", "h3"] {
        assert!(matches!(index.find(name, 22), hosts::identity::Found::Damaged(_)), "{name}");
    }
    assert!(matches!(index.find("web1", 22), hosts::identity::Found::Host(_)), "its own file is in order");
    let mut audit = user.command(testing::binary());
    let output = run_to_end(audit.args(["host", "audit"]).stdin(Stdio::null()), secs(60));
    let said = String::from_utf8_lossy(&output.stdout);
    for file in misnamed.iter().chain([&authority]) {
        assert!(
            said.contains(&format!("{}: it is not read because of its name", file.display())),
            "{file:?}: {said}"
        );
    }
    assert!(!said.contains("web1.host~") && !output.status.success(), "{said}");
}
