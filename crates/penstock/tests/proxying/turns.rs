//! What the process opens beside traffic (health checks, look-ups of names) where descriptors are few and peers do not answer: each
//! takes its turn, and traffic, admin and control get theirs.

use std::fs;
use std::net::UdpSocket;
use std::process::Command;
use std::time::Instant;

use testing::account::{count, descriptors, start};
use testing::attack::{self, Attack, Kind};
use testing::peers::Process;
use testing::server::Setup;
use testing::tools::{self, Root};
use testing::{Client, Scripted, Server, eventually, secs};

/// Requests to `/held/` are never answered. `pools` are more of them.
fn config(good: &str, held: &str, pools: &str) -> String {
    format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"\n\
         [process]\nworkers = 2\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [[listener.web.route]]\npath = \"/held/\"\npool = \"held\"\n\
         [listener.many]\nbind = \"127.0.0.1:0\"\npool = \"many\"\n\
         [pool.app]\nbackends = [\"{good}\"]\n\
         [pool.app.health]\ntcp = true\ninterval = \"2s\"\ntimeout = \"2s\"\nfall = 2\n\
         [pool.held]\nbackends = [\"{held}\"]\n[pool.many]\n{pools}\n"
    )
}

const SILENT: &str = "
import socket, sys, time, resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
listeners = [socket.create_server(('127.0.0.1', 0)) for _ in range(int(sys.argv[1]))]
print('ports', *[one.getsockname()[1] for one in listeners], flush=True)
time.sleep(100000)
";

/// So many addresses at which the kernel opens connections and no program answers; as the backends of a pool that is checked.
fn silent(addresses: usize) -> (Process, String) {
    let mut command = Command::new(tools::program("python3"));
    let process = Process::start(command.args(["-u", "-c", SILENT, &addresses.to_string()]));
    let line = process.stdout.wait_for("ports ", secs(20));
    let list: Vec<_> = line.split_whitespace().skip(1).map(|port| format!("\"127.0.0.1:{port}\"")).collect();
    let health = "health = { http = \"/\", interval = \"1s\", timeout = \"1s\" }";
    (process, format!("backends = [{}]\n{health}", list.join(", ")))
}

/// For some seconds, so that checks or look-ups come round: new clients are served, and the process never lacks a descriptor.
#[track_caller]
fn descriptors_suffice(server: &Server, seconds: u64) {
    let began = Instant::now();
    while began.elapsed() < secs(seconds) {
        assert_eq!(attack::ask(&server.address("web"), "127.0.0.1", 20).failures, [] as [String; 0]);
        assert_eq!(Client::connect(&server.admin()).get("/healthz", &[]).status, 200);
        let account = descriptors(server);
        let (reserve, taken) = (count(&account["reserve"]), count(&account["used"]));
        assert!(count(&account["open"]) <= reserve + taken, "{account:#}");
    }
    assert_eq!(server.stderr.count("Too many open files"), 0, "{:#?}", server.stderr.tail(20));
}

#[test]
fn checks_that_hang_hold_no_more_than_their_part_also_after_a_reload_and_starve_no_other_check() {
    let (good, bad) = (Scripted::answering("ok"), attack::backend());
    let (_silent, many) = silent(500);
    let (_others, more) = silent(300);
    let server = start(512, &config(&good.address, &bad.address, &many));
    descriptors_suffice(&server, 4);
    let gone = good.address.clone();
    eventually("its check passes", secs(20), || (server.health(&gone) == "up").then_some(()));
    for pools in [&more, &many] {
        server.write_config(&config(&good.address, &bad.address, pools));
        let reloaded = server.ctl(&["reload"]);
        assert!(reloaded.status.success(), "{reloaded:?}");
        descriptors_suffice(&server, 3);
    }
    // Each turn of the others lasts a second, and there are four of them at most before the next of this one.
    drop(good);
    eventually("the check fails", secs(30), || (server.health(&gone) == "down").then_some(()));
}

#[test]
fn checks_that_a_reload_adds_take_no_descriptor_that_traffic_holds() {
    let (good, bad) = (Scripted::answering("ok"), attack::backend());
    let (_silent, many) = silent(500);
    let few = format!("backends = [\"{}\"]", good.address);
    let server = start(512, &config(&good.address, &bad.address, &few));
    // Each from an address of its own, until traffic has every place.
    let attack = Attack::from_many(&server.address("web"), Kind::SlowBackend, 400);
    eventually("traffic has every place", secs(60), || {
        let account = descriptors(&server);
        (count(&account["used"]) + 3 >= count(&account["traffic_limit"])).then_some(())
    });
    let before = count(&descriptors(&server)["traffic_limit"]);
    server.write_config(&config(&good.address, &bad.address, &many));
    let reloaded = server.ctl(&["reload"]);
    assert!(reloaded.status.success(), "{reloaded:?}");
    assert!(count(&descriptors(&server)["traffic_limit"]) < before);
    let began = Instant::now();
    while began.elapsed() < secs(4) {
        assert_eq!(Client::connect(&server.admin()).get("/healthz", &[]).status, 200);
        assert!(server.ctl(&["status"]).status.success());
    }
    assert_eq!(server.stderr.count("Too many open files"), 0, "{:#?}", server.stderr.tail(20));
    // As traffic leaves, more checks are made at once: within a minute each backend has been found down.
    drop(attack);
    eventually("every backend is checked", secs(60), || {
        (server.stderr.count("(first check)") >= 500).then_some(())
    });
    descriptors_suffice(&server, 2);
}

#[test]
fn look_ups_that_hang_hold_no_more_than_their_part() {
    if tools::root("mounts a resolv.conf of its own") == Root::LeftOut {
        return;
    }
    let (good, bad) = (Scripted::answering("ok"), attack::backend());
    // A name server that does not answer. glibc asks at this port only, so the address is one that no other program uses.
    let own = std::process::id();
    let address = format!("127.{}.{}.53", 64 + (own >> 8) % 128, own % 256);
    let _name_server = UdpSocket::bind((address.as_str(), 53)).unwrap();
    let names: Vec<_> = (0..200).map(|number| format!("\"app{number}.example:80\"")).collect();
    let pool = format!("backends = [{}]\nhealth = \"off\"", names.join(", "));
    let setup = Setup::new(&config(&good.address, &bad.address, &pool));
    let file = setup.dir().join("resolv.conf");
    fs::write(&file, format!("nameserver {address}\noptions timeout:2 attempts:2\n")).unwrap();
    // A mount namespace of its own: only this process asks that server.
    let script = "mount --bind \"$0\" /etc/resolv.conf && exec prlimit --nofile=256:256 -- \"$@\"";
    let wrapper = ["unshare", "--mount", "sh", "-c", script, file.to_str().unwrap()];
    let server = setup.through(wrapper).start();
    descriptors_suffice(&server, 6);
    let _clients = Attack::from_many(&server.address("web"), Kind::SlowBackend, 60);
    eventually("traffic has places", secs(20), || {
        (count(&descriptors(&server)["by_use"]["clients"]) > 60).then_some(())
    });
    assert_eq!(Client::connect(&server.admin()).get("/healthz", &[]).status, 200);
    assert_eq!(server.stderr.count("Too many open files"), 0, "{:#?}", server.stderr.tail(20));
}
