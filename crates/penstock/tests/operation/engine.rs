//! `process.engine` where there is io_uring, and where there is none.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use testing::server::{Setup, binary, clear_environment, run_to_end};
use testing::{Client, Scripted, secs, tools};

/// A kernel that refuses a call. The numbers of io_uring_setup(2) and io_uring_enter(2) are 425 and 426 on all processors.
const WITHOUT: &str = r#"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
__attribute__((constructor)) static void begin(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CALL, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ERROR),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) abort();
}
"#;

fn without(setup: &Setup, call: u32, error: &str) -> PathBuf {
    let text = format!("#define CALL {call}\n#define ERROR {error}\n{WITHOUT}");
    tools::library(setup.dir(), "without", &text)
}

fn answering() -> Scripted {
    Scripted::start(|talk| {
        let got = talk.client.read_exactly(3);
        talk.send(got);
    })
}

fn setup(engine: &str, backend: &str) -> Setup {
    Setup::new(&format!(
        "[process]\nworkers = 2\nengine = \"{engine}\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
         [listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{backend}\"]\nhealth = \"off\"\n"
    ))
}

/// What `penstock doctor` says of io_uring.
fn doctor(file: &Path, preloaded: Option<&Path>) -> Value {
    let mut command = Command::new(binary());
    command.args(["doctor", "--json", "--config"]).arg(file);
    clear_environment(&mut command);
    command.envs(preloaded.map(|library| ("LD_PRELOAD", library)));
    let report: Value = serde_json::from_slice(&run_to_end(&mut command, secs(30)).stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    findings.iter().find(|finding| finding["check"] == "io-uring").unwrap().clone()
}

#[test]
fn auto_is_io_uring_with_and_without_a_sandbox() {
    let backend = answering();
    for sandbox in [&[][..], &["--no-sandbox"]] {
        let setup = setup("auto", &backend.address);
        let file = setup.dir().join("penstock.toml").to_str().unwrap().to_owned();
        let server = setup.arguments(&[&["serve", "--config", &file], sandbox].concat()).start();
        let engine = &server.ctl_json(&["status"])["engine"];
        assert_eq!(engine["in_use"], "io-uring", "this test needs io_uring(7): {engine}");
        assert_eq!((&engine["chosen"], &engine["reason"]), (&"auto".into(), &Value::Null), "{engine}");
        assert!(server.said(&["status"]).contains("engine: io-uring\n"));
        let mut client = Client::connect(&server.address("raw"));
        client.send("abc");
        assert_eq!(client.read_exactly(3), b"abc");
        let found = doctor(Path::new(&file), None);
        assert!(found["state"] == "ok" && found["text"].to_string().contains("can be used"), "{found}");
    }
}

#[test]
fn a_server_from_flags_begins_its_tcp_sessions_in_io_uring() {
    let backend = answering();
    let setup = Setup::new("");
    let control = setup.dir().join("control.sock").to_str().unwrap().to_owned();
    let listen = ["serve", "--listen", "127.0.0.1:0", "--protocol", "tcp", "--health", "off"];
    let words = [&listen[..], &["--backend", &backend.address, "--control", &control]].concat();
    let server = setup.arguments(&words).start();
    let engine = &server.ctl_json(&["status"])["engine"];
    assert_eq!((&engine["chosen"], &engine["in_use"]), (&"auto".into(), &"io-uring".into()), "{engine}");
}

#[test]
fn auto_is_epoll_without_a_warning_where_io_uring_is_refused_and_status_and_doctor_say_why() {
    let why = "it is forbidden here: set kernel.io_uring_disabled to 0";
    for (chosen, state) in [("auto", "ok"), ("io-uring", "fault")] {
        let backend = answering();
        let setup = setup(chosen, &backend.address);
        let file = setup.dir().join("penstock.toml");
        let without = without(&setup, 425, "EPERM");
        let server = setup.env("LD_PRELOAD", without.to_str().unwrap()).start();
        let engine = &server.ctl_json(&["status"])["engine"];
        assert_eq!((&engine["chosen"], &engine["in_use"]), (&chosen.into(), &"epoll".into()), "{engine}");
        assert!(engine["reason"].as_str().unwrap().contains(why), "{engine}");
        assert!(server.said(&["status"]).contains(&format!("engine: epoll, not io-uring: {why}")));
        let warned = server.stderr.count("io_uring");
        assert_eq!(warned, usize::from(chosen == "io-uring"), "{:#?}", server.stderr.tail(20));
        let mut client = Client::connect(&server.address("raw"));
        client.send("abc");
        assert_eq!(client.read_exactly(3), b"abc");
        let found = doctor(&file, Some(&without));
        assert!(found["state"] == state && found["text"].to_string().contains(why), "{found}");
    }
}

#[test]
fn where_io_uring_is_refused_one_warning_says_what_to_do_and_epoll_serves() {
    for (error, why) in [
        ("EPERM", "it is forbidden here: set kernel.io_uring_disabled to 0"),
        ("ENOSYS", "this kernel has no io_uring, or a container hides it: Linux 6.0 or newer is needed"),
    ] {
        let backend = answering();
        let setup = setup("io-uring", &backend.address);
        let without = without(&setup, 425, error);
        let server = setup.env("LD_PRELOAD", without.to_str().unwrap()).start();
        let told = server.stderr.wait_for("io_uring cannot be used", secs(10));
        assert!(told.contains(why) && told.contains("served by epoll"), "{told}");
        assert_eq!(server.stderr.count("io_uring"), 1, "{:#?}", server.stderr.tail(20));
        let engine = &server.ctl_json(&["status"])["engine"];
        assert_eq!(engine["in_use"], "epoll", "{engine}");
        assert!(engine["reason"].as_str().unwrap().contains(why), "{engine}");
        assert!(server.said(&["status"]).contains("engine: epoll, not io-uring: "));
        let mut client = Client::connect(&server.address("raw"));
        client.send("abc");
        assert_eq!(client.read_exactly(3), b"abc");
    }
}

#[test]
fn a_worker_that_may_not_use_its_ring_loses_no_session_and_status_says_so() {
    let backend = answering();
    let setup = setup("auto", &backend.address);
    let without = without(&setup, 426, "EPERM");
    let server = setup.env("LD_PRELOAD", without.to_str().unwrap()).start();
    for _ in 0..4 {
        let mut client = Client::connect(&server.address("raw"));
        client.send("abc");
        assert_eq!(client.read_exactly(3), b"abc");
    }
    let failures = server.ctl_json(&["status"])["engine"]["failures"].clone();
    assert_eq!(failures.as_array().unwrap().len(), 2, "{failures}");
    assert!(failures[0].as_str().unwrap().contains("cannot use its io_uring"), "{failures}");
    assert!(server.said(&["status"]).contains("worker 1 cannot use its io_uring"));
}
