//! What is left to a process that was broken into: a library that the test loads into the server tries it from each
//! thread.

use std::fs;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::signal::Signal;
use testing::client::get;
use testing::server::{Setup, penstock};
use testing::tools::{self, Root};
use testing::{Scripted, Server, eventually, secs};

/// Tries what an attacker would, one line for each: name and errno, 0 for success. SIGUSR2 makes a
/// thread try.
const INTRUDER: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
static int report = -1;
static void tell(const char *what, long result) {
    char text[64];
    int length = snprintf(text, sizeof text, "%s %d\n", what, result < 0 ? errno : 0);
    if (write(report, text, length) < 0) abort();
}
static long end_of_child(long child) {
    if (child == 0) _exit(0);
    return child;
}
static void attempt(int signal) {
    (void)signal;
    tell("shadow", open("/etc/shadow", O_RDONLY));
    tell("passwd", open("/etc/passwd", O_WRONLY));
    tell("ptrace", ptrace(PTRACE_TRACEME, 0, 0, 0));
    tell("raw", socket(AF_INET, SOCK_RAW, 1));
    tell("packet", socket(AF_PACKET, SOCK_RAW, 0));
    tell("mount", mount("none", "/mnt", "tmpfs", 0, 0));
    tell("unshare", syscall(SYS_unshare, 0x10000000));
    // CLONE_NEWUSER | CLONE_NEWNET | SIGCHLD: in a namespace of its own the child would have all capabilities.
    tell("clone", end_of_child(syscall(SYS_clone, 0x50000011L, 0, 0, 0, 0)));
    long clone3[8] = {0x50000000, 0, 0, 0, SIGCHLD};
    tell("clone3", end_of_child(syscall(SYS_clone3, clone3, sizeof clone3)));
    tell("netfilter", socket(AF_NETLINK, SOCK_RAW, 12));
    unsigned long limits[2];
    // Only reads: the test's own process is the parent.
    tell("limit", syscall(SYS_prlimit64, getppid(), 0, 0, limits));
    tell("set-user-id", chmod(getenv("INTRUDER_REPORT"), 04700));
    // Not setuid(3), which waits for all threads: some may be starting or ending.
    tell("setuid", syscall(SYS_setuid, 0));
    // Where programs may be started, this would end the server, and an io_uring may be made.
    char *words[] = {"/bin/true", 0};
    char params[120] = {0};
    if (!getenv("INTRUDER_STAYS")) {
        tell("exec", execve(words[0], words, words + 1));
        tell("ring", syscall(425, 8, params));
    }
    char end[32];
    snprintf(end, sizeof end, "end-%ld", syscall(SYS_gettid));
    tell(end, 0);
}
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("INTRUDER_REPORT");
    if (!path) return;
    report = open(path, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = attempt;
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR2, &action, 0);
}
"#;

/// Sends SIGUSR2 to each thread and prints their numbers.
const IN_EVERY_THREAD: &str = "
import ctypes, os, signal, sys
process, call = int(sys.argv[1]), ctypes.CDLL(None).syscall
tgkill = {'x86_64': 234, 'aarch64': 131}[os.uname().machine]
threads = os.listdir(f'/proc/{process}/task')
print(*(thread for thread in threads if call(tgkill, process, int(thread), signal.SIGUSR2) == 0))
";

/// A kernel without seccomp and Landlock, or a container that refuses them.
const REFUSES: &str = r#"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#define REFUSE(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ERROR)
__attribute__((constructor)) static void begin(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        REFUSE(SYS_seccomp), REFUSE(444), REFUSE(445), REFUSE(446),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) abort();
}
"#;

/// A server with the intruder in it, and the report of the intruder.
fn broken_into(arguments: &[&str], config: &str) -> (Server, PathBuf) {
    let setup = Setup::new(config);
    let file = setup.dir().join("penstock.toml");
    let words: Vec<&str> = [&["serve", "--config", file.to_str().unwrap()], arguments].concat();
    let (setup, report) = with_intruder(setup);
    (setup.arguments(&words).start(), report)
}

/// Puts the intruder into a server that is not started yet. Also returns the path of its report.
pub(crate) fn with_intruder(setup: Setup) -> (Setup, PathBuf) {
    let report = setup.dir().join("report");
    let library = tools::library(setup.dir(), "intruder", INTRUDER);
    let setup = setup.env("LD_PRELOAD", library.to_str().unwrap());
    (setup.env("INTRUDER_REPORT", report.to_str().unwrap()), report)
}

/// Makes the intruder try from each thread of the server. Returns what it tried, with the errors.
#[track_caller]
pub(crate) fn tried_by_each_thread(server: &Server, report: &Path) -> Vec<(String, i32)> {
    let signalled = tools::run("python3", &["-c", IN_EVERY_THREAD, &server.pid().to_string()], secs(20));
    let threads = String::from_utf8(signalled.stdout).unwrap();
    let threads: Vec<&str> = threads.split_whitespace().collect();
    assert!(threads.len() > 2, "{threads:?}");
    eventually("every thread has tried, or has ended before it could", secs(20), || {
        let report = fs::read_to_string(report).unwrap();
        let is_done = |thread: &&str| {
            report.contains(&format!("end-{thread} 0\n"))
                || !Path::new(&format!("/proc/{}/task/{thread}", server.pid())).exists()
        };
        threads.iter().all(is_done).then_some(())
    });
    let all = attempts(report);
    assert!(all.iter().filter(|(what, _)| what.starts_with("end-")).count() > 2);
    all
}

fn config(backend: &str) -> String {
    format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\n\
         pool = \"app\"\n[pool.app]\nbackends = [\"{backend}\"]\n"
    )
}

fn attempts(report: &Path) -> Vec<(String, i32)> {
    let line = |line: &str| {
        let (what, errno) = line.split_once(' ').unwrap();
        (what.to_owned(), errno.parse().unwrap())
    };
    fs::read_to_string(report).unwrap().lines().map(line).collect()
}

#[test]
fn an_intruder_gets_nowhere_from_any_thread() {
    if tools::root("starts the server as root") == Root::LeftOut {
        return;
    }
    let backend = Scripted::answering("x");
    get_nowhere(&config(&backend.address));
    // The rings of the workers can be used, and no other can be made.
    get_nowhere(&format!("[process]\nengine = \"io-uring\"\n{}", config(&backend.address)));
}

fn get_nowhere(config: &str) {
    let (server, report) = broken_into(&[], config);
    for (what, errno) in tried_by_each_thread(&server, &report) {
        // The C library takes ENOSYS for an older kernel, and makes clone(2).
        let refusals: &[Errno] =
            if what == "clone3" { &[Errno::ENOSYS] } else { &[Errno::EPERM, Errno::EACCES] };
        let refused = refusals.iter().any(|refusal| *refusal as i32 == errno);
        assert!(refused || what.starts_with("end-"), "{what}: {errno}");
    }
    for task in fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap() {
        // A thread may have ended meanwhile.
        let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else { continue };
        for line in
            ["CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"]
        {
            assert!(status.contains(line), "no {line:?} in {status}");
        }
    }
    assert_eq!(get(&server.address("web"), "/").status, 200);
    let status = server.ctl_json(&["status"]);
    assert_eq!(status["confinement"]["files"]["state"], "restricted", "{status:#}");
    assert_eq!(status["confinement"]["system_calls"]["state"], "restricted", "{status:#}");
}

#[test]
fn without_the_sandbox_the_intruder_reads_what_root_may_and_status_says_so() {
    if tools::root("starts the server as root") == Root::LeftOut {
        return;
    }
    let backend = Scripted::answering("x");
    let (server, report) = broken_into(&["--no-sandbox"], &config(&backend.address));
    server.stderr.wait_for("files are NOT restricted: --no-sandbox", secs(10));
    server.stderr.wait_for("system calls are NOT restricted: --no-sandbox", secs(10));
    let status = String::from_utf8(server.ctl(&["status"]).stdout).unwrap();
    assert!(status.contains("files NOT restricted: --no-sandbox"), "{status}");
    server.signal(Signal::SIGUSR2);
    eventually("one thread has tried", secs(20), || {
        fs::read_to_string(&report).unwrap().contains("shadow 0\n").then_some(())
    });
}

#[test]
fn a_reload_that_needs_files_from_elsewhere_is_refused_and_says_why() {
    let (backend, elsewhere) = (Scripted::answering("x"), tempfile::tempdir().unwrap());
    let text = config(&backend.address);
    let server = Server::start(&text);
    let log = elsewhere.path().join("access.log");
    let more = format!("{text}[access-log]\ntarget = {:?}\n", log.to_str().unwrap());
    server.write_config(&more);
    let reload = server.ctl(&["reload"]);
    let said = String::from_utf8_lossy(&reload.stderr).into_owned();
    assert!(!reload.status.success(), "{said}");
    for part in ["access-log.target", elsewhere.path().to_str().unwrap(), "restart penstock"] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(get(&server.address("web"), "/").status, 200);
}

#[test]
fn a_kernel_without_seccomp_and_landlock_or_one_that_refuses_them_is_told_once_and_serves() {
    for (error, landlock) in [
        ("ENOSYS", "files are NOT restricted: this kernel has no Landlock"),
        ("EPERM", "files are NOT restricted: "),
    ] {
        let backend = Scripted::answering("x");
        let setup = Setup::new(&config(&backend.address));
        let refuses =
            tools::library(setup.dir(), "refuses", &REFUSES.replace("ERROR)", &format!("{error})")));
        let server = setup.env("LD_PRELOAD", refuses.to_str().unwrap()).start();
        server.stderr.wait_for("system calls are NOT restricted: ", secs(10));
        server.stderr.wait_for(landlock, secs(10));
        assert_eq!(get(&server.address("web"), "/").status, 200);
        assert_eq!(server.stderr.count("NOT restricted"), 2, "{:#?}", server.stderr.tail(20));
        let status = server.ctl_json(&["status"]);
        assert_eq!(status["confinement"]["files"]["state"], "not", "{error}: {status:#}");
        assert_eq!(status["confinement"]["system_calls"]["state"], "not", "{error}: {status:#}");
    }
}

#[test]
fn check_says_what_is_needed_why_and_until_when() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("penstock.toml");
    fs::write(
        &file,
        "[process]\nuser = \"nobody\"\n[access-log]\ntarget = \"/var/log/penstock/access.log\"\n[listener.web]\n\
         bind = \":80\"\npool = \"app\"\n[pool.app]\nbackends = [\"unix:/run/app.sock\"]\n",
    )
    .unwrap();
    let told = penstock(&["check", "--privileges", file.to_str().unwrap()]);
    let table = String::from_utf8(told.stdout).unwrap();
    let row = |parts: [&str; 3]| {
        let found = table.lines().any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(found, "{parts:?} in {table}");
    };
    row(["user nobody", "process.user", "the end"]);
    row(["CAP_NET_BIND_SERVICE", "ports below 1024", "the end"]);
    row(["/var/log/penstock", "access-log.target", "the end"]);
    row(["connect to /run/app.sock", "pool.app.backends", "the end"]);
    row(["capabilities", "binds sockets", "sockets are bound"]);
    let json = penstock(&["check", "--privileges", "--json", file.to_str().unwrap()]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["privileges"].as_array().unwrap().len() + 1, table.lines().count(), "{json:#}");
}
