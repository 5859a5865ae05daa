//! Root without `process.user` becomes user `penstock` where there is one that may use all files. The test makes the user:
//! a mount namespace has its own /etc/passwd.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use testing::client::get;
use testing::server::Setup;
use testing::sshd::descendants;
use testing::tools::{self, Root};
use testing::{Scripted, Server};

/// Ids of no user of this machine.
const USER: u32 = 64_987;
const SECOND_GROUP: u32 = 64_988;

/// A server whose machine has a user `penstock`. Its directory belongs to root and to that user's group.
fn setup() -> Setup {
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
        "mount --bind {directory}/passwd /etc/passwd && mount --bind {directory}/group /etc/group && exec \"$@\""
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
