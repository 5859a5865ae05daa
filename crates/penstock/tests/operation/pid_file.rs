//! `process.pid-file`, and the level of the process log, which `ctl log-level` changes for a time.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::Signal;
use testing::server::Setup;
use testing::{Server, eventually, secs};

fn config(pid_file: &str) -> String {
    format!(
        "[process]\n{pid_file}\ndrain-timeout = \"0s\"\n[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"127.0.0.1:1\"]\nhealth = \"off\"\n"
    )
}

#[test]
fn the_file_has_the_number_of_the_process_while_it_lives() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("penstock.pid");
    // Left by a process that was killed; the number is that of a process that lives.
    fs::write(&path, "1\n").unwrap();
    let text = config(&format!("pid-file = \"{}\"", path.display()));
    let mut server = Server::start(&text);
    let number = format!("{}\n", server.pid());
    assert_eq!(fs::read_to_string(&path).unwrap(), number);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);

    // Another one does not start beside it, and the file stays.
    let output = Setup::new(&text).output();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let held = format!(
        "process.pid-file: {} belongs to another process that lives (pid {})",
        path.display(),
        server.pid()
    );
    assert!(!output.status.success() && error.contains(&held), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), number);

    // A reload keeps it.
    let moved =
        text.replace("penstock.pid", "other.pid").replace("@DIR@", server.dir.path().to_str().unwrap());
    server.write_config(&moved);
    let said = String::from_utf8(server.ctl(&["reload"]).stdout).unwrap();
    assert!(said.contains("process.pid-file changed: takes effect at the next start"), "{said}");
    assert_eq!(fs::read_to_string(&path).unwrap(), number);

    server.signal(Signal::SIGTERM);
    assert!(server.wait_end(secs(20)).success());
    assert!(!path.exists(), "it is removed at the end, also by a process that is confined");

    // A process that is killed leaves it; the next one takes it.
    let mut server = Server::start(&text);
    server.signal(Signal::SIGKILL);
    server.wait_end(secs(20));
    assert!(path.exists());
    let server = Server::start(&text);
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", server.pid()));
}

#[test]
fn a_file_that_cannot_be_made_or_is_a_link_ends_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("link");
    std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
    for (path, said) in [
        (path.display().to_string(), "is not a plain file with one name"),
        (format!("{}/none/pid", directory.path().display()), "No such file"),
    ] {
        let output = Setup::new(&config(&format!("pid-file = \"{path}\""))).output();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && error.contains("process.pid-file: ") && error.contains(said),
            "{error}"
        );
    }
}

#[test]
fn the_level_of_the_log_comes_back_by_itself() {
    let server = Server::start(&config(""));
    let ctl = |arguments: &[&str]| {
        let output = server.ctl(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(ctl(&["log-level"]).contains("the level of the start"));
    let said = ctl(&["log-level", "error", "--for", "1h"]);
    assert!(said.contains("level error for 1 h"), "{said}");
    let json = server.ctl_json(&["log-level"]);
    assert!(json["level"] == "error" && json["seconds_left"].as_f64().unwrap() > 3500.0, "{json}");
    // At level error a drain is not logged; it is still an event.
    ctl(&["drain", "127.0.0.1:1"]);
    assert!(ctl(&["events"]).contains("drained"));
    assert_eq!(server.stderr.count("drained"), 0, "{:?}", server.stderr.tail(5));

    ctl(&["log-level", "debug", "--for", "300ms"]);
    eventually("the level of the start is back", secs(20), || {
        server.ctl_json(&["log-level"])["level"].is_null().then_some(())
    });
    assert!(ctl(&["events"]).contains("log: level debug has ended: it is that of the start again"));
    ctl(&["ready", "127.0.0.1:1"]);
    server.stderr.wait_for(": ready", secs(5));
    ctl(&["log-level", "trace"]);
    assert!(ctl(&["log-level", "default"]).contains("the level of the start"));
    for (wrong, said) in [
        (&["log-level", "loud"][..], "\"loud\" is no level"),
        (&["log-level", "debgu"], "did you mean \"debug\"?"),
        (&["log-level", "debug", "--for", "25h"], "24h at most"),
        (&["log-level", "debug", "--for", "soon"], "for soon: "),
    ] {
        let output = server.ctl(wrong);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(said), "{wrong:?}: {error}");
    }
}
