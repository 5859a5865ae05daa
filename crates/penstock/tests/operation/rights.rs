//! What the user that the process becomes may not do: `check` foretells it, and the error says as whom, why and what to do.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

use testing::Scripted;
use testing::network::Machine;
use testing::server::{Setup, penstock};
use testing::tools::{self, Root};

#[test]
fn an_access_log_that_the_user_may_not_write_is_foretold_and_explained() {
    if tools::root("starts the server as root, which stays root") == Root::LeftOut {
        return;
    }
    let backend = Scripted::answering("x");
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let logs = directory.path().join("log");
    fs::create_dir(&logs).unwrap();
    // Of another user than the one that the process becomes: root stays root, because there is no user "penstock" or it
    // may not read the configuration.
    chown(&logs, Some(65534), None).unwrap();
    fs::set_permissions(&logs, fs::Permissions::from_mode(0o755)).unwrap();
    let text = |user: &str| {
        format!(
            "{user}[access-log]\ntarget = \"{}/access.log\"\n[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
             [pool.app]\nbackends = [\"{}\"]\n",
            logs.display(),
            backend.address
        )
    };
    let file = directory.path().join("penstock.toml");
    for (user, as_whom, hint) in [
        ("", "the process serves as root without CAP_DAC_OVERRIDE", "chown root"),
        (
            "[process]\nuser = \"daemon\"\n",
            "the process serves as user daemon, who may not use",
            "chown daemon",
        ),
    ] {
        fs::write(&file, text(user)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        for more in [&["check"][..], &["check", "--privileges"]] {
            let told = penstock(&[more, &[file.to_str().unwrap()]].concat());
            let said = String::from_utf8_lossy(&told.stderr).into_owned();
            for part in ["access-log.target", "the start would be refused", as_whom, hint] {
                assert!(said.contains(part), "{more:?}: no {part:?} in {said}");
            }
        }
        let started = Setup::new(&text(user)).output();
        let said = String::from_utf8_lossy(&started.stderr).into_owned();
        for part in ["access-log.target: open access log", "Permission denied", as_whom, hint] {
            assert!(said.contains(part), "no {part:?} in {said}");
        }
    }
    // As the user that owns it, all is well.
    fs::write(&file, text("[process]\nuser = \"nobody\"\n")).unwrap();
    let told = penstock(&["check", file.to_str().unwrap()]);
    assert!(!String::from_utf8_lossy(&told.stderr).contains("access-log.target"), "{told:?}");
}

#[test]
fn a_first_low_port_says_that_its_capability_was_given_up() {
    if tools::root("has a capability to give up") == Root::LeftOut {
        return;
    }
    // Elsewhere every user may have let any process bind it (containers do).
    let machine = Machine::new("low");
    machine.run(&["sysctl", "-qw", "net.ipv4.ip_unprivileged_port_start=1024"]);
    let server = machine
        .setup(
            "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
             [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
             [pool.app]\nbackends = [\"127.0.0.1:1\"]\nhealth = \"off\"\n",
        )
        .start();
    let output = server.ctl(&["add", "listener.low", "{ bind = \"127.0.0.1:997\", pool = \"app\" }"]);
    assert!(!output.status.success(), "{output:?}");
    let error = String::from_utf8(output.stderr).unwrap();
    for part in ["cannot listen on 127.0.0.1:997", "gave up CAP_NET_BIND_SERVICE", "restart penstock"] {
        assert!(error.contains(part), "no {part:?} in {error}");
    }
}
