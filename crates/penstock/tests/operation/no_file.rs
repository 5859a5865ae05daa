//! A server that flags describe, beside others on the same machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::Signal;
use testing::server::Setup;
use testing::tools::{self, Root};
use testing::{Scripted, secs};

#[test]
fn a_server_that_flags_describe_takes_and_leaves_no_state_for_others() {
    if tools::root("mounts a directory") == Root::LeftOut {
        return;
    }
    let (lib, backend) = (tempfile::tempdir().unwrap(), Scripted::answering("x"));
    let usual = lib.path().join("penstock");
    fs::create_dir(&usual).unwrap();
    for path in [lib.path(), &usual] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let there = "mount --bind \"$0\" /var/lib && exec \"$@\"";
    let there =
        |setup: Setup| setup.through(["unshare", "-m", "sh", "-c", there, lib.path().to_str().unwrap()]);
    let quick = || {
        let setup = Setup::new("");
        let socket = setup.dir().join("control.sock");
        let words = ["serve", "--listen", "127.0.0.1:0", "--backend", &backend.address, "--control"];
        there(setup.arguments(&[&words[..], &[socket.to_str().unwrap(), "--access-log", "off"]].concat()))
            .start()
    };
    let mut first = quick();
    assert!(first.ctl(&["drain", &backend.address]).status.success());
    assert!(first.ctl_json(&["status"])["stored"].is_null());
    first.signal(Signal::SIGTERM);
    first.wait_end(secs(20));
    assert_eq!(fs::read_dir(&usual).unwrap().count(), 0, "it has left nothing");
    assert_eq!(quick().backend(&backend.address)["admission"], "ready");
    // One with a file has the directory, and says so.
    let config = format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n[pool.app]\nbackends = [\"{}\"]\n",
        backend.address
    );
    let filed = there(Setup::new(&config)).start();
    filed.stderr.wait_for("keeps state over a restart", secs(10));
    assert_eq!(filed.ctl_json(&["status"])["stored"]["directory"], "/var/lib/penstock");
}
