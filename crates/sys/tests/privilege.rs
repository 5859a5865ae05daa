//! Dropping privileges for real: in a child process, because there is no way back. Needs root.
//!
//! Has its own `main`: the harness runs every test beside its main thread, and `drop_to` demands a single one.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::HashMap;
use std::env;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{self, User};
use sys::privilege::{Capability, Reach, Who, all_unreachable, drop_to, stay, unreachable};

const ROLE: &str = "PENSTOCK_TEST_KEEP";
/// Bit 10 (CAP_NET_BIND_SERVICE) of the masks in /proc/self/status.
const NET_BIND_SERVICE: &str = "0000000000000400";
const NOTHING: &str = "0000000000000000";

fn main() {
    if let Ok(keep) = env::var(ROLE) {
        return drop_and_tell(&keep);
    }
    if !unistd::geteuid().is_root() {
        let left_out = env::var_os("PENSTOCK_TEST_WITHOUT_ROOT").is_some();
        assert!(
            left_out,
            "only root can drop privileges: run `sudo -E cargo test -p sys --test privilege`, or set PENSTOCK_TEST_WITHOUT_ROOT=1 to leave it out"
        );
        return eprintln!("not run: only root can drop privileges");
    }
    without_keep_no_capability_and_no_way_back_is_left();
    with_keep_only_the_right_to_low_ports_is_left();
    root_that_stays_has_no_capability();
    another_user_is_asked_about_without_becoming_it();
    println!("dropping privileges: 4 tests passed");
}

fn without_keep_no_capability_and_no_way_back_is_left() {
    let status = status_after_drop("nothing");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status[set], NOTHING, "{set}");
    }
    assert_is_nobody(&status);
}

fn with_keep_only_the_right_to_low_ports_is_left() {
    let status = status_after_drop("net-bind-service");
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        assert_eq!(status[set], NET_BIND_SERVICE, "{set}");
    }
    for set in ["CapInh", "CapAmb"] {
        assert_eq!(status[set], NOTHING, "{set}");
    }
    assert_is_nobody(&status);
}

fn root_that_stays_has_no_capability() {
    let status = status_after_drop("stay");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status[set], NOTHING, "{set}");
    }
    assert_eq!((&*status["Uid"], &*status["NoNewPrivs"], &*status["dumpable"]), ("0 0 0 0", "1", "false"));
    assert_eq!(status["core"], "(0, 0)");
}

fn another_user_is_asked_about_without_becoming_it() {
    let directory = tempfile::tempdir().unwrap();
    let (open, closed) = (std::path::Path::new("/"), directory.path());
    let ask = |paths: &[(&'static std::path::Path, Reach)]| unreachable("nobody", paths.to_vec()).unwrap();
    assert_eq!(ask(&[(open, Reach::Read)]), None);
    assert_eq!(ask(&[(open, Reach::Change)]), Some(open));
    let file = closed.join("file");
    std::fs::write(&file, "secret").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let paths = [(open, Reach::Read), (&*file, Reach::Read)];
    assert_eq!(unreachable("nobody", paths).unwrap(), Some(&*file));
    // Root without its capabilities is refused what belongs to others.
    std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
    let bare = |reach| all_unreachable(Who::BareRoot, [(open, reach), (&*file, reach)]).unwrap();
    assert_eq!((bare(Reach::Read), bare(Reach::Write)), (vec![&*file], vec![&*file]));
    assert!(std::fs::read(&file).is_ok(), "the rights are back");
    assert!(unistd::geteuid().is_root() && unistd::getegid().as_raw() == 0);
}

fn assert_is_nobody(status: &HashMap<String, String>) {
    let nobody = User::from_name("nobody").unwrap().unwrap();
    assert_eq!(status["Uid"], [nobody.uid.to_string().as_str(); 4].join(" "));
    assert_eq!(status["Gid"], [nobody.gid.to_string().as_str(); 4].join(" "));
    let mut groups: Vec<u32> =
        unistd::getgrouplist(c"nobody", nobody.gid).unwrap().into_iter().map(|gid| gid.as_raw()).collect();
    groups.sort_unstable();
    let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
    assert_eq!(status["Groups"], groups.join(" "));
    assert_eq!(status["NoNewPrivs"], "1");
    assert_eq!(status["dumpable"], "false");
}

/// Runs `drop_and_tell` in a process of its own and returns what it says of itself.
fn status_after_drop(keep: &str) -> HashMap<String, String> {
    let child = Command::new(env::current_exe().unwrap()).env(ROLE, keep).output().unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{output}\n{}", String::from_utf8_lossy(&child.stderr));
    let line = |line: &str| {
        let (key, value) = line.split_once(':')?;
        Some((key.to_owned(), value.split_whitespace().collect::<Vec<_>>().join(" ")))
    };
    output.lines().filter_map(line).collect()
}

fn drop_and_tell(keep: &str) {
    if keep == "stay" {
        assert_eq!(stay(&[]).unwrap().uid, 0);
        return tell();
    }
    let keep: &[Capability] = if keep == "nothing" { &[] } else { &[Capability::NetBindService] };
    // Groups of the starter that must not survive.
    unistd::setgroups(&[unistd::Gid::from_raw(0), unistd::Gid::from_raw(4)]).unwrap();
    let dropped = drop_to("nobody", None, keep).unwrap();
    assert_eq!(dropped.kept, keep);
    assert_eq!(dropped.uid, unistd::getuid().as_raw());
    // A process that cannot be dumped must still see its own descriptors, for its metrics.
    assert!(sys::descriptors::open_count().unwrap() >= 3);
    // A second call finds itself to be that user already, and root is out of reach.
    assert_eq!(drop_to("nobody", None, keep).unwrap(), dropped);
    let other = drop_to("daemon", None, keep).unwrap_err().to_string();
    assert!(other.contains("start as root"), "{other}");
    tell();
}

fn tell() {
    println!("core: {:?}", getrlimit(Resource::RLIMIT_CORE).unwrap());
    println!("{}", std::fs::read_to_string("/proc/self/status").unwrap());
    println!("dumpable: {}", nix::sys::prctl::get_dumpable().unwrap());
}
