//! What is left to a process that was broken into, with configurations that need more than others: a user of its own,
//! backends behind SSH, packets of `dsr`. The intruder is that of `confinement.rs`.

use std::fs;

use nix::errno::Errno;
use testing::network::Machine;
use testing::server::Setup;
use testing::tools::{self, Root};
use testing::tunnel::Place;
use testing::{Scripted, Server};

use crate::confinement::{tried_by_each_thread, with_intruder};

/// All that the intruder tries.
const ALL: [&str; 15] = [
    "shadow",
    "passwd",
    "ptrace",
    "raw",
    "packet",
    "mount",
    "unshare",
    "clone",
    "clone3",
    "netfilter",
    "limit",
    "set-user-id",
    "setuid",
    "exec",
    "ring",
];

fn config(process: &str, rest: &str, backend: &str) -> String {
    format!(
        "[process]\nworkers = 2\n{process}\n[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{backend}\"]\n{rest}\n"
    )
}

/// Breaks into a server and tries all from each thread: `refused` must be refused, each of them in each thread, and
/// `allowed` must not, so that a list which grows is noticed. What is in neither depends on the user.
#[track_caller]
fn break_into(setup: Setup, refused: &[&str], allowed: &[&str], capabilities: u64) -> Server {
    let (setup, report) = with_intruder(setup);
    let server = setup.start();
    let tried = tried_by_each_thread(&server, &report);
    let ends = tried.iter().filter(|(what, _)| what.starts_with("end-")).count();
    for wanted in refused {
        let errors = || tried.iter().filter(|(what, _)| what == wanted).map(|(_, errno)| *errno);
        assert!(errors().count() >= ends, "{wanted}: {} tries in {ends} threads", errors().count());
        for errno in errors() {
            // The C library takes ENOSYS for an older kernel, and makes clone(2).
            let refusals: &[Errno] =
                if *wanted == "clone3" { &[Errno::ENOSYS] } else { &[Errno::EPERM, Errno::EACCES] };
            assert!(refusals.iter().any(|refusal| *refusal as i32 == errno), "{wanted}: {errno}");
        }
    }
    for (what, errno) in &tried {
        assert!(!allowed.contains(&&**what) || *errno == 0, "{what}: {errno}");
    }
    for task in fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap() {
        // A thread may have ended meanwhile.
        let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else { continue };
        for line in [
            &format!("CapEff:\t{capabilities:016x}"),
            &format!("CapBnd:\t{capabilities:016x}"),
            "NoNewPrivs:\t1",
            "Seccomp:\t2",
        ] {
            assert!(status.contains(line), "no {line:?} in {status}");
        }
    }
    server
}

fn states(server: &Server) -> [String; 2] {
    let status = server.ctl_json(&["status"]);
    ["files", "system_calls"].map(|what| status["confinement"][what]["state"].as_str().unwrap().to_owned())
}

#[test]
fn a_server_with_a_user_of_its_own_refuses_all() {
    if tools::root("drops privileges") == Root::LeftOut {
        return;
    }
    let backend = Scripted::answering("x");
    let setup = Setup::new(&config("user = \"nobody\"", "", &backend.address));
    let server = break_into(setup, &ALL, &[], 0);
    assert_eq!(states(&server), ["restricted", "restricted"]);
    assert_eq!(testing::client::get(&server.address("web"), "/").status, 200);
}

/// Its client may start programs of ssh_config(5), which need files and ordinary system calls.
#[test]
fn a_server_with_backends_behind_ssh_refuses_what_no_program_needs() {
    if tools::root("starts the server as root") == Root::LeftOut {
        return;
    }
    let place = Place::new();
    let app = Scripted::answering("x");
    let text = config("", "health = \"off\"", &format!("ssh:far/{}", app.address));
    let setup = Setup::new(&text).env("INTRUDER_STAYS", "1").env("HOME", &place.shown("home"));
    let setup = setup.env("RUNTIME_DIRECTORY", &place.shown("run"));
    let setup = setup.env("XDG_STATE_HOME", &place.shown("state"));
    let refused = ["ptrace", "raw", "packet", "mount", "unshare", "clone", "clone3"];
    let server = break_into(setup, &refused, &[], 0);
    assert_eq!(states(&server), ["not", "partly"]);
    assert_eq!(testing::client::get(&server.address("web"), "/").status, 200, "it serves after the attempts");
}

/// The packet sockets that it has may be opened by who breaks in, and nothing else.
#[test]
fn a_server_of_dsr_refuses_all_but_packet_sockets() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let (balancer, peer) = (Machine::new("l"), Machine::new("p"));
    balancer.ip(&["link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", peer.name()]);
    for (machine, address) in [(&balancer, "10.77.0.13/24"), (&peer, "10.77.0.14/24")] {
        machine.ip(&["addr", "add", address, "dev", "eth0"]);
        machine.ip(&["link", "set", "eth0", "up"]);
    }
    for process in ["user = \"nobody\"", ""] {
        let text = format!(
            "[process]\nworkers = 2\n{process}\n[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
             [listener.web]\nbind = \"10.77.0.100:80\"\nprotocol = \"dsr\"\ninterface = \"eth0\"\npool = \"app\"\n\
             data-path = \"af_packet\"\n\
             [pool.app]\nbackends = [\"10.77.0.14:80\"]\nbalance = \"maglev\"\nhealth = \"off\"\n"
        );
        let refused: Vec<&str> = ALL.into_iter().filter(|what| *what != "packet").collect();
        // CAP_NET_RAW.
        let server = break_into(balancer.setup(&text), &refused, &["packet"], 1 << 13);
        assert_eq!(states(&server), ["restricted", "restricted"], "{process}");
    }
}
