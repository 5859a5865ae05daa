//! `penstock user key` and `penstock user who`, with keys that `ssh-keygen` makes.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use testing::server::{binary, clear_environment};
use testing::sshd::{keygen, program, public_line};

/// A directory with the file of users `users`, who are ann and bob, and with the keys `ann` and `bob`.
fn people() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in ["ann", "bob"] {
        keygen(&directory.path().join(name), &["-t", "ed25519"]);
        assert_eq!(user(&directory, &["add", name, "--no-password"]).code, Some(0));
    }
    directory
}

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

fn user(directory: &TempDir, arguments: &[&str]) -> Ran {
    let (code, out, err) = fed(directory, arguments, b"");
    Ran { code, out, err }
}

fn at(directory: &TempDir, name: &str) -> String {
    directory.path().join(name).to_str().unwrap().to_owned()
}

/// The fingerprint, as `ssh-keygen` computes it.
fn fingerprint(file: &str) -> String {
    let output = Command::new(program("ssh-keygen")).args(["-lf", file]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().nth(1).unwrap().to_owned()
}

/// With this standard input.
fn fed(directory: &TempDir, arguments: &[&str], input: &[u8]) -> (Option<i32>, String, String) {
    let mut command = Command::new(binary());
    clear_environment(&mut command);
    command.arg("user").arg("--file").arg(directory.path().join("users")).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (output.status.code(), out, err)
}

#[test]
fn a_key_is_added_listed_found_and_removed() {
    let people = people();
    let (ann, print_of) = (at(&people, "ann.pub"), fingerprint(&at(&people, "ann.pub")));
    let added = user(&people, &["key", "add", "ann", &ann]);
    assert_eq!(
        (added.code, added.out),
        (Some(0), format!("added ssh-ed25519 {print_of} to ann\n")),
        "{}",
        added.err
    );
    assert_eq!(user(&people, &["key", "add", "ann", &ann]).out, format!("ann has {print_of} already\n"));
    let line = public_line(Path::new(&ann));
    let words: Vec<&str> = line.split(' ').collect();
    for what in [vec![print_of.as_str()], vec![line.as_str()], words, vec![ann.as_str()]] {
        let who = user(&people, &[&["who"], &what[..]].concat());
        assert_eq!(who.code, Some(0), "{what:?}: {}", who.err);
        assert!(
            who.out.lines().nth(1).unwrap().contains("ann ") && who.out.contains(&print_of),
            "{what:?}: {}",
            who.out
        );
    }
    let (code, out, _) = fed(&people, &["who", "-"], format!("# x\nrestrict {line} a b\n").as_bytes());
    assert_eq!(
        (code, out.lines().nth(1).map(|line| line.starts_with("2     ann"))),
        (Some(0), Some(true)),
        "{out}"
    );
    let listed: Value = serde_json::from_str(&user(&people, &["key", "list", "--json"]).out).unwrap();
    assert_eq!((&listed[0]["owner"], &listed[0]["fingerprint"]), (&"ann".into(), &print_of.as_str().into()));
    assert_eq!(listed[0]["comment"], "made_by_a_test");
    assert!(user(&people, &["key", "list"]).out.contains(&print_of));
    // Others own it only if that is said.
    let refused = user(&people, &["key", "add", "bob", &ann]);
    assert!(refused.code == Some(2) && refused.err.contains("is a key of ann"), "{}", refused.err);
    assert_eq!(user(&people, &["key", "add", "bob", &ann, "--shared"]).code, Some(0));
    let who = user(&people, &["who", &print_of]);
    assert!(who.code == Some(1) && who.out.contains("ann and bob (shared)"), "{}", who.out);
    assert_eq!(user(&people, &["key", "remove", "bob", &ann]).code, Some(0));
    assert_eq!(user(&people, &["key", "remove", "ann", &print_of]).code, Some(0));
    let who = user(&people, &["who", &print_of]);
    assert!(who.code == Some(1) && who.out.contains("no known owner"), "{}", who.out);
    let absent = user(&people, &["key", "remove", "ann", &print_of]);
    assert!(absent.code == Some(2) && absent.err.contains("is no key of ann"), "{}", absent.err);
}

#[test]
fn what_is_no_key_of_a_person_is_refused_with_the_reason() {
    let people = people();
    let key = public_line(Path::new(&at(&people, "ann.pub")));
    for bits in ["1024", "2048"] {
        keygen(&people.path().join(format!("rsa{bits}")), &["-t", "rsa", "-b", bits]);
    }
    let sign = ["-s", &at(&people, "bob"), "-I", "x", "-n", "ann", &at(&people, "ann.pub")];
    assert!(Command::new(program("ssh-keygen")).arg("-q").args(sign).status().unwrap().success());
    // It has the form of DSA; no program makes one any more.
    let dsa = "ssh-dss AAAAB3NzaC1kc3MAAAABAQAAAAEBAAAAAQEAAAABAQ==";
    let write = |name: &str, text: &[u8]| fs::write(people.path().join(name), text).unwrap();
    write("two", format!("{key}\n{}\n", public_line(Path::new(&at(&people, "bob.pub")))).as_bytes());
    write("options", format!("from=\"10.0.0.1\" {key}\n").as_bytes());
    write("dsa", dsa.as_bytes());
    write("empty", b"# nothing\n");
    write("cut", &key.as_bytes()[..60]);
    write("long", format!("{key} {}\n", "x".repeat(4096)).as_bytes());
    write("binary", &[0, 255, 254, 10, 1]);
    for (file, why) in [
        ("ann", ":1: it begins a private key"),
        ("two", "has 2 keys"),
        ("options", "has options (from=\"10.0.0.1\")"),
        ("dsa", "DSA, which is broken"),
        ("rsa1024.pub", "RSA of 1024 bits, 2048 are the least"),
        ("ann-cert.pub", "it is a certificate"),
        ("empty", "has no key"),
        ("cut", "it has no key: "),
        ("long", "and a line of a key at most 4096"),
        ("binary", "it has no key: "),
        ("nowhere", "No such file"),
        ("", "is a directory"),
    ] {
        let refused = user(&people, &["key", "add", "ann", &at(&people, file)]);
        assert!(refused.code == Some(2) && refused.err.contains(why), "{file}: {}", refused.err);
    }
    let private = fs::read_to_string(people.path().join("ann")).unwrap();
    let indented = format!(" {private}");
    for arguments in [
        &["who", &private][..],
        &["who", "--json", "x", &private],
        &["who", &indented],
        &["key", "add", "ann", &private],
        &["key", "add", "ann", &indented],
    ] {
        let refused = user(&people, arguments);
        let said = format!("{}{}", refused.err, refused.out);
        assert!(refused.code != Some(0) && said.contains("private key"), "{said}");
        let body = private.lines().nth(1).unwrap();
        assert!(!refused.err.contains(body) && !refused.out.contains(body), "it is printed");
    }
    let small = user(&people, &["key", "add", "ann", &at(&people, "rsa2048.pub")]);
    assert!(
        small.code == Some(0) && small.err.contains("RSA of 2048 bits, 3072 are advised"),
        "{}",
        small.err
    );
    let unknown = user(&people, &["key", "add", "an", &at(&people, "ann.pub")]);
    assert!(
        unknown.code == Some(2) && unknown.err.contains("has no user an\n  hint: penstock user add an "),
        "{}",
        unknown.err
    );
}

#[test]
fn long_lines_and_files_without_an_end_are_told_and_not_cut() {
    let people = people();
    let key = public_line(Path::new(&at(&people, "ann.pub")));
    assert_eq!(user(&people, &["key", "add", "ann", &at(&people, "ann.pub")]).code, Some(0));
    let long = format!("{}\n{key}\n", "y".repeat(5000));
    let (code, out, _) = fed(&people, &["who"], long.as_bytes());
    assert_eq!(code, Some(1));
    assert!(out.contains("it has 5000 bytes, and a line of a key at most 4096"), "{out}");
    assert!(out.lines().nth(2).unwrap().contains("ann "), "the second line is read too: {out}");
    let (code, _, err) = fed(&people, &["key", "add", "bob", "-"], long.as_bytes());
    assert!(code == Some(2) && err.contains("standard input:1: it has 5000 bytes"), "{err}");
    let endless = user(&people, &["who", "/dev/zero"]);
    assert!(endless.code == Some(2) && endless.err.contains("not a regular file"), "{}", endless.err);
    let (code, _, err) = fed(&people, &["who", "-"], &vec![b'x'; (16 << 20) + 1]);
    assert!(code == Some(2) && err.contains("larger than 16 MiB"), "{err}");
    let password = format!("{}\n", "p".repeat(4097));
    let (code, _, err) = fed(&people, &["add", "eve", "--password-file", "-"], password.as_bytes());
    assert!(code == Some(2) && err.contains("is longer than 4096 bytes"), "{err}");
    for (what, why) in [
        ("SHA256:short", "a fingerprint is"),
        ("MD5:16:27:ac:a5:76:28:2d:36:63:1b:56:4d:eb:df:a6:48", "an MD5 fingerprint"),
        ("nowhere", "No such file"),
    ] {
        let refused = user(&people, &["who", what]);
        assert!(refused.code == Some(2) && refused.err.contains(why), "{what}: {}", refused.err);
    }
}

#[test]
fn the_list_of_users_fits_on_a_terminal_and_a_revoked_user_has_no_rights() {
    let people = people();
    let groups: Vec<String> = (0..30).flat_map(|at| ["--group".to_owned(), format!("group-{at}")]).collect();
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let add = [
        &["add", "ann", "--no-password", "--role", "view", "--account", "deploy", "--account", "root@db*"],
        &groups[..],
    ];
    assert_eq!(user(&people, &add.concat()).code, Some(0));
    assert_eq!(user(&people, &["key", "add", "ann", &at(&people, "ann.pub")]).code, Some(0));
    let list = user(&people, &["list"]).out;
    assert!(list.lines().all(|line| line.chars().count() <= 100), "{list}");
    assert!(list.contains("group-29\n") && list.contains("  accounts deploy, root@db*\n"), "{list}");
    let file = people.path().join("users");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("bob", "bob revoked=2026-03-01")).unwrap();
    let refused = user(&people, &["add", "bob", "--role", "admin", "--no-password"]);
    assert!(
        refused.code == Some(2) && refused.err.contains("bob is revoked, and has a role"),
        "{}",
        refused.err
    );
    let refused = user(&people, &["key", "add", "bob", &at(&people, "bob.pub")]);
    assert!(
        refused.code == Some(2) && refused.err.contains("bob was revoked on 2026-03-01"),
        "{}",
        refused.err
    );
}

#[test]
fn a_file_of_users_that_others_could_read_or_have_written_is_refused() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let people = people();
    let (file, key) = (people.path().join("users"), at(&people, "ann.pub"));
    let before = fs::read(&file).unwrap();
    let deploy = ["deploy", "ann", "--to", "127.0.0.1"];
    let all =
        [&["key", "add", "ann", &key][..], &["who", &key], &["audit", "-w", "127.0.0.1"], &deploy, &["list"]];
    let refused = |why: &str| {
        for arguments in all {
            let ran = user(&people, arguments);
            assert!(
                ran.code == Some(2) && ran.err.contains(why),
                "{arguments:?}: {:?} {}",
                ran.code,
                ran.err
            );
            assert!(ran.err.contains(file.to_str().unwrap()), "{}", ran.err);
        }
    };
    for mode in [0o666, 0o644, 0o620] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        refused(&format!("has mode {mode:04o}: others than its owner can use it"));
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    if fs::metadata(&file).unwrap().uid() == 0 {
        chown(&file, Some(12_345), None).unwrap();
        refused("belongs to user 12345 (mode 0600), who could have written any key");
        // A server runs as a user of the system.
        chown(&file, Some(1), None).unwrap();
        assert_eq!(user(&people, &["list"]).code, Some(0));
    }
    assert_eq!(fs::read(&file).unwrap(), before);
}
