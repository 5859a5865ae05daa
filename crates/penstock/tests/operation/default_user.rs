//! Root without `process.user`: it becomes user `penstock` where there is one that may use all files, and says which file
//! keeps it from that. The test makes the user: a mount namespace has its own /etc/passwd.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use testing::client::get;
use testing::pki::{Pair, Time, self_signed};
use testing::server::Setup;
use testing::sshd::descendants;
use testing::tools::{self, Root};
use testing::witness::served;
use testing::{Scripted, Server, eventually, secs};

/// Ids of no user of this machine.
const USER: u32 = 64_987;
const SECOND_GROUP: u32 = 64_988;

/// A server whose machine has a user `penstock`. Its directory belongs to root and to that user's group.
fn setup() -> Setup {
    setup_with("")
}

/// The same, started by `before`.
fn setup_with(before: &str) -> Setup {
    let setup = Setup::new("");
    let directory = setup.dir().to_owned();
    for (name, more) in [
        ("passwd", format!("penstock:x:{USER}:{USER}::/nonexistent:/usr/sbin/nologin\n")),
        ("group", format!("penstock:x:{USER}:\ncertificates:x:{SECOND_GROUP}:penstock\n")),
    ] {
        let text = fs::read_to_string(Path::new("/etc").join(name)).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with("penstock:"));
        let others: String = lines.map(|line| format!("{line}\n")).collect();
        fs::write(directory.join(name), others + &more).unwrap();
    }
    fs::create_dir(directory.join("state")).unwrap();
    for path in [directory.clone(), directory.join("state")] {
        chown(&path, Some(0), Some(USER)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o770)).unwrap();
    }
    let directory = directory.to_str().unwrap();
    let script = format!(
        "mount --bind {directory}/passwd /etc/passwd && mount --bind {directory}/group /etc/group && exec {before} \"$@\""
    );
    setup.through(["unshare", "--mount", "sh", "-ec", &script, "sh"])
}

fn config(backend: &str, more: &str) -> String {
    format!(
        "[process]\nworkers = 2\nstate-directory = \"@DIR@/state\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n{more}\n\
         [pool.app]\nbackends = [\"{backend}\"]\n"
    )
}

/// Asserts the rights of each thread of each process of a server.
#[track_caller]
fn each_thread_is(server: &Server, user: u32, groups: &HashSet<&str>) {
    let server = server.pid().as_raw().cast_unsigned();
    let mut threads = 0;
    for process in descendants(server).into_iter().chain([server]) {
        for task in fs::read_dir(format!("/proc/{process}/task")).unwrap() {
            // A thread may have ended meanwhile.
            let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else { continue };
            threads += 1;
            let words = |key: &str| {
                let line = status.lines().find(|line| line.starts_with(key));
                let line = line.unwrap_or_else(|| panic!("no {key} in {status}"));
                line.split_once(':').unwrap().1.split_whitespace().collect::<Vec<_>>()
            };
            let id = user.to_string();
            assert_eq!(words("Uid:"), [&*id; 4], "{status}");
            assert_eq!(words("Gid:"), [&*id; 4], "{status}");
            if user > 0 {
                assert_eq!(words("Groups:").into_iter().collect::<HashSet<_>>(), *groups, "{status}");
            }
            for set in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:", "CapBnd:"] {
                assert_eq!(words(set), ["0000000000000000"], "{set} {status}");
            }
            assert_eq!(words("NoNewPrivs:"), ["1"], "{status}");
            assert_eq!(words("Seccomp:"), ["2"], "{status}");
        }
    }
    // Two workers, and those that serve beside them.
    assert!(threads > 3, "{threads} threads");
}

#[test]
fn root_without_a_user_becomes_penstock_where_it_exists_in_each_thread_of_each_process() {
    if tools::root("drops privileges and makes a mount namespace") == Root::LeftOut {
        return;
    }
    let backend = Scripted::answering("x");
    let server = setup().configured(&config(&backend.address, "")).start();
    assert_eq!(get(&server.address("web"), "/").status, 200);
    let (user, second) = (USER.to_string(), SECOND_GROUP.to_string());
    each_thread_is(&server, USER, &HashSet::from([&*user, &*second]));
    let socket = fs::metadata(server.control_socket()).unwrap();
    assert_eq!((socket.uid(), socket.mode() & 0o777), (USER, 0o600));
    let status = server.ctl_json(&["status"]);
    assert_eq!(status["confinement"]["uid"].as_u64(), Some(u64::from(USER)), "{status:#}");
    assert!(status["confinement"]["stays_root"].is_null(), "{status:#}");
    assert_eq!(server.stderr.count("stays root"), 0, "{:#?}", server.stderr.all());
}

#[test]
fn a_machine_without_etc_passwd_has_no_user_penstock_and_root_serves_on() {
    if tools::root("hides /etc in a mount namespace") == Root::LeftOut {
        return;
    }
    let backend = Scripted::answering("x");
    // As in an image that holds one program. A user that the configuration names is missing all the same.
    let hide = "mount -t tmpfs none /etc && exec \"$@\"";
    let through = ["unshare", "--mount", "sh", "-ec", hide, "sh"];
    let setup = || {
        let setup = Setup::new("");
        fs::create_dir(setup.dir().join("state")).unwrap();
        setup.through(through)
    };
    let server = setup().configured(&config(&backend.address, "")).start();
    assert_eq!(get(&server.address("web"), "/").status, 200);
    server.stderr.wait_for("there is no user \"penstock\"", secs(20));
    let named = config(&backend.address, "").replace("workers = 2", "workers = 2\nuser = \"nobody\"");
    let output = setup().configured(&named).output();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("no user named \"nobody\""), "{said}");
}

/// A container without capabilities, and the next process after an upgrade, are root and may not become another user.
#[test]
fn root_that_may_not_become_another_user_serves_and_says_so() {
    if tools::root("drops capabilities and makes a mount namespace") == Root::LeftOut {
        return;
    }
    let backend = Scripted::answering("x");
    let setup = setup_with("setpriv --bounding-set=-all --inh-caps=-all");
    let server = setup.configured(&config(&backend.address, "")).start();
    let said = server.stderr.wait_for("the user stays root, without its capabilities", secs(10));
    assert!(said.contains("may not become user \"penstock\": it has no CAP_SETUID"), "{said}");
    assert_eq!(get(&server.address("web"), "/").status, 200);
    each_thread_is(&server, 0, &HashSet::new());
}

/// A certificate that only root may read.
struct Certificates(PathBuf);

impl Certificates {
    fn new(directory: &Path) -> Self {
        let all = Self(directory.join("certs"));
        fs::create_dir(&all.0).unwrap();
        fs::create_dir(directory.join("new")).unwrap();
        all
    }

    /// Made aside, then renamed.
    fn renew(&self) -> Pair {
        let aside = self.0.parent().unwrap().join("new");
        let pair = self_signed(&aside, "site", &["site.example"], Time::Now);
        let key = fs::metadata(&pair.key).unwrap();
        assert_eq!((key.uid(), key.mode() & 0o777), (0, 0o600));
        for file in ["site.key", "site.crt"] {
            fs::rename(aside.join(file), self.0.join(file)).unwrap();
        }
        pair
    }
}

#[test]
fn a_key_that_only_root_may_read_keeps_it_root_without_capabilities_and_is_served_named_and_renewed() {
    if tools::root("drops privileges and makes a mount namespace") == Root::LeftOut {
        return;
    }
    let backend = Scripted::answering("x");
    let setup = setup();
    let certificates = Certificates::new(setup.dir());
    let first = certificates.renew();
    let secure =
        "[listener.secure]\nbind = \"127.0.0.1:0\"\npool = \"app\"\ntls = { certificates = \"@DIR@/certs\" }";
    let server = setup.configured(&config(&backend.address, secure)).start();
    let said = server.stderr.wait_for("the user stays root, without its capabilities", secs(10));
    let key = certificates.0.join("site.key");
    for part in [key.to_str().unwrap(), "listener.secure.tls.certificates", "chown penstock"] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    each_thread_is(&server, 0, &HashSet::new());
    assert_eq!(served(&server, "site.example"), Some(first.der));
    assert_eq!(get(&server.address("web"), "/").status, 200);
    let status = server.ctl_json(&["status"]);
    assert!(status["confinement"]["stays_root"].to_string().contains("site.key"), "{status:#}");
    let renewed = certificates.renew();
    eventually("the renewed one is served", secs(20), || {
        (served(&server, "site.example").as_ref() == Some(&renewed.der)).then_some(())
    });
    // What that user may read is served as that user.
    drop(server);
    let setup = self::setup();
    let certificates = Certificates::new(setup.dir());
    let pair = certificates.renew();
    let key = certificates.0.join("site.key");
    chown(&key, None, Some(USER)).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    let server = setup.configured(&config(&backend.address, secure)).start();
    let groups = [USER.to_string(), SECOND_GROUP.to_string()];
    each_thread_is(&server, USER, &groups.iter().map(String::as_str).collect());
    assert_eq!(served(&server, "site.example"), Some(pair.der));
}

#[test]
fn doctor_says_the_same_of_the_user_as_the_start() {
    if tools::root("drops privileges and makes a mount namespace") == Root::LeftOut {
        return;
    }
    let secure =
        "[listener.secure]\nbind = \"127.0.0.1:0\"\npool = \"app\"\ntls = { certificates = \"@DIR@/certs\" }";
    let said = |more: &str| {
        let setup = setup();
        drop(Certificates::new(setup.dir()).renew());
        let file = setup.dir().join("penstock.toml").display().to_string();
        let setup = setup.configured(&config("127.0.0.1:1", more)).arguments(&["doctor", "--config", &file]);
        String::from_utf8_lossy(&setup.output().stdout).into_owned()
    };
    let text = said("");
    assert!(text.contains("ok       a server that root starts runs as penstock\n"), "{text}");
    let text = said(secure);
    let why = "fault    a server that root starts stays root: user \"penstock\" may not use ";
    assert!(text.contains(why) && text.contains("/certs/site.key"), "{text}");
}
