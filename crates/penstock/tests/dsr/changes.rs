//! Backends and interfaces that go and come.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use serde_json::Value;
use testing::tools::{self, Root};
use testing::{eventually, secs};

use super::network::{BALANCER, CHECKED, CLIENT, Network, Running, SERVERS, VIP, config};
use super::traffic::{ask, unbound};

#[test]
fn a_running_download_ends_whole_on_a_drained_backend_and_new_connections_go_elsewhere() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    PATHS.into_iter().for_each(|path| drained_download(&network, path));
}

const PATHS: [&str; 3] = ["tc", "af_packet", "xdp-generic"];

fn on(path: &str) -> String {
    config(&format!("\"{VIP}:80\""), &format!("data-path = \"{path}\""), CHECKED)
}

fn drained_download(network: &Network, path: &str) {
    let server = network.balancer(&on(path));
    eventually("the service has its backends", secs(20), || {
        network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success().then_some(())
    });
    let at = |name: &str| network.directory.path().join(name);
    let (head, url) = (at("head").display().to_string(), format!("http://{VIP}/large"));
    let _ = std::fs::remove_file(at("head"));
    // It goes no further than the buffers are large until it is read, below.
    let words = ["curl", "-sf", "-m", "120", "--noproxy", "*", "-D", &head, &url];
    let mut download = Running(network.command(CLIENT, &words).stdout(Stdio::piped()).spawn().unwrap());
    let which = eventually("the download has begun", secs(20), || {
        let head = std::fs::read_to_string(&head).ok()?;
        Some(head.split_once("X-Server: ")?.1.get(..1)?.to_owned())
    });
    let (address, other) = if which == "2" { ("10.77.0.14:80", "3") } else { ("10.77.0.15:80", "2") };
    let drained = server.said(&["drain", address]);
    assert!(drained.contains("draining: no new flows; ") && drained.contains("remembered"), "{drained}");
    let again = server.said(&["drain", address]);
    assert!(again.contains(": no new flows; ") && again.contains("remembered"), "{again}");
    assert!((0..50).all(|_| network.visit(VIP) == other), "new connections go elsewhere");
    assert_eq!(download.0.try_wait().unwrap(), None, "the download goes on");
    eventually("its flow is counted", secs(10), || {
        (server.backend(address)["in_flight"].as_u64() >= Some(1)).then_some(())
    });
    let mut body = Vec::new();
    download.0.stdout.take().unwrap().read_to_end(&mut body).unwrap();
    assert!(download.0.wait().unwrap().success());
    assert!(body == std::fs::read(at("large")).unwrap(), "{} bytes", body.len());
    let ready = server.ctl(&["ready", address]);
    assert!(ready.status.success(), "{ready:?}");
    eventually("it takes connections again", secs(10), || (network.visit(VIP) == which).then_some(()));
}

/// Stops one thread of a process until its input ends.
const STOP: &str = r#"
import ctypes, os, sys
SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000
thread, libc = int(sys.argv[1]), ctypes.CDLL(None)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
assert libc.ptrace(SEIZE, thread, None, None) == 0 and libc.ptrace(INTERRUPT, thread, None, None) == 0
os.waitpid(thread, WALL)
print("stopped", end="", flush=True)
sys.stdin.read()
libc.ptrace(DETACH, thread, None, None)
"#;

#[test]
fn the_answer_of_drain_waits_for_the_worker_and_says_if_it_does_not_follow() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    for path in ["tc", "af_packet"] {
        let server = network.balancer(&on(path).replace("workers = 2", "workers = 1"));
        for which in ["2", "3"] {
            eventually("both serve", secs(20), || {
                let output = network.curl(&["-m", "1", &format!("http://{VIP}/")]);
                (output.stdout == which.as_bytes()).then_some(())
            });
        }
        let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
        let worker = threads.map(|thread| thread.unwrap().path()).find(|thread| {
            std::fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.trim() == "worker-0")
        });
        let worker = worker.unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        let mut stop = std::process::Command::new("python3")
            .args(["-c", STOP, &worker])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut output, mut said) = (stop.stdout.take().unwrap(), [0; 7]);
        output.read_exact(&mut said).unwrap();
        let answer = server.said(&["drain", "10.77.0.14:80"]);
        drop(stop.stdin.take());
        assert!(stop.wait().unwrap().success());
        let warning = "the worker of 10.77.0.100:80 has not followed within 1 s";
        assert!(answer.contains(warning), "{path}: {answer}");
        // It goes on, and follows within that second, which a busy machine may need for other programs.
        for command in ["ready", "drain"] {
            eventually(&format!("{path}: the worker follows {command}"), secs(20), || {
                (!server.said(&[command, "10.77.0.14:80"]).contains("followed")).then_some(())
            });
        }
        assert!((0..50).all(|_| network.visit(VIP) == "3"), "{path}");
    }
}

#[test]
fn of_a_thousand_requests_none_fails_once_a_backend_that_lost_its_link_is_down() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    PATHS.into_iter().for_each(|path| thousand(&network, path));
}

fn thousand(network: &Network, path: &str) {
    let server = network.balancer(&on(path));
    eventually("both are up", secs(20), || {
        ["10.77.0.14:80", "10.77.0.15:80"].iter().all(|one| server.health(one) == "up").then_some(())
    });
    network.set_link(SERVERS[0], "down");
    eventually("it is down", secs(20), || (server.health("10.77.0.14:80") == "down").then_some(()));
    let url = format!("http://{VIP}/?[1-1000]");
    let output = network.curl(&["-m", "50", "-H", "Connection: close", "-w", "\n%{http_code}\n", &url]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.lines().filter(|line| *line == "200").count(), 1000, "{path}: {:?}", output.stderr);
    assert_eq!(said.lines().filter(|line| *line == "3").count(), 1000);
    network.set_link(SERVERS[0], "up");
    eventually("it takes connections again", secs(30), || (network.visit(VIP) == "2").then_some(()));
}

#[test]
fn with_the_same_key_a_flow_has_the_same_backend_after_a_restart_and_a_missing_key_is_told() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| unbound(&network, server));
    let key = network.directory.path().join("key");
    let listener = format!("transport = \"udp\"\nhash-key-file = \"{}\"", key.display());
    let config = config(&format!("\"{VIP}:53\""), &listener, "health = \"off\"");
    // Root alone may read the key.
    let config = config.replace("user = \"nobody\"\n", "");
    let server = network.balancer(&config);
    let degraded = server.ctl_json(&["status"])["degraded"].to_string();
    assert!(
        degraded.contains("listener.web.hash-key-file") && degraded.contains("other backends"),
        "{degraded}"
    );
    drop(server);
    std::fs::write(&key, "0123456789abcdef0123456789abcdef").unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    let who = || -> Vec<_> {
        let server = network.balancer(&config);
        super::wire::ready(&server);
        eventually("it serves", secs(20), || ask(&network, CLIENT, VIP, None));
        assert_eq!(server.ctl_json(&["status"])["degraded"].as_array().map(Vec::len), Some(0));
        (40_000..40_024).map(|port| ask(&network, CLIENT, VIP, Some(port)).expect("an answer")).collect()
    };
    let before = who();
    assert!(before.contains(&"2".to_owned()) && before.contains(&"3".to_owned()), "{before:?}");
    assert_eq!(who(), before);
}

#[test]
fn an_interface_that_is_removed_and_made_anew_is_used_again() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let server = network.balancer(&config(&format!("\"{VIP}:80\""), "", "health = \"off\""));
    let serves = || network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success().then_some(());
    eventually("it serves", secs(20), serves);
    network.unplug(BALANCER);
    eventually("its absence is told", secs(20), || {
        let status = server.ctl_json(&["status"]).to_string();
        status.contains("there is no network interface \\\"eth0\\\"").then_some(())
    });
    network.plug(BALANCER);
    eventually("it serves again", secs(30), serves);
    eventually("nothing is degraded", secs(20), || {
        (server.ctl_json(&["status"])["degraded"].as_array()?.is_empty()).then_some(())
    });
    // The program went with the interface, and none can be attached any more.
    let path = server.ctl_json(&["status"])["listeners"][0]["paths"][0].clone();
    let last = path["refused"].as_array().and_then(|refused| refused.last()).cloned().unwrap_or_default();
    assert_eq!((path["path"].as_str(), last["path"].as_str()), (Some("af_packet"), Some("tc")), "{path:#}");
    assert!(last["reason"].as_str().unwrap().contains("a restart of penstock attaches it again"), "{path:#}");
}

#[test]
fn an_interface_that_is_renamed_is_missed_and_used_again_under_its_name() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let server = network.balancer(&config(&format!("\"{VIP}:80\""), "", CHECKED));
    let serves = || network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success().then_some(());
    eventually("it serves", secs(20), serves);
    let rename = |from: &str, to: &str| {
        network.ip(BALANCER, &["link", "set", from, "down"]);
        network.ip(BALANCER, &["link", "set", from, "name", to]);
        network.ip(BALANCER, &["link", "set", to, "up"]);
    };
    rename("eth0", "eth9");
    eventually("its absence is told", secs(20), || {
        let status = server.ctl_json(&["status"]).to_string();
        status.contains("there is no network interface \\\"eth0\\\"").then_some(())
    });
    rename("eth9", "eth0");
    eventually("it serves again", secs(30), serves);
    eventually("nothing is degraded", secs(30), || {
        (server.ctl_json(&["status"])["degraded"].as_array()?.is_empty()).then_some(())
    });
    (0..20).for_each(|_| assert!(["2", "3"].contains(&&*network.visit(VIP))));
}

/// What the process says of its services, asked without a program in between.
fn services(socket: &Path) -> Option<Vec<Value>> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.write_all(b"dsr status json\n").ok()?;
    stream.shutdown(Shutdown::Write).ok()?;
    let mut said = String::new();
    stream.read_to_string(&mut said).ok()?;
    let all: Value = serde_json::from_str(said.get(said.find('{')?..=said.rfind('}')?)?).ok()?;
    all["services"].as_array().cloned()
}

#[test]
fn a_new_service_is_told_of_once_it_knows_its_interface_and_its_backends() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let of = |binds: &str| config(binds, "data-path = \"af_packet\"\nmax-flows = 4096", "health = \"off\"");
    let server = network.balancer(&of(&format!("\"{VIP}:80\"")));
    let vips: Vec<_> = (100..124).map(|number| format!("\"10.77.0.{number}:80\"")).collect();
    let socket = server.control_socket();
    server.write_config(&of(&format!("[{}]", vips.join(", "))));
    std::thread::scope(|scope| {
        let watched = scope.spawn(|| {
            let end = Instant::now() + secs(30);
            while Instant::now() < end {
                let Some(all) = services(&socket) else { continue };
                let knows = |one: &Value| {
                    one["ethernet"].is_string() && one["backends"].as_array().map(Vec::len) == Some(2)
                };
                assert!(all.iter().all(knows), "{all:#?}");
                if all.len() == vips.len() {
                    return;
                }
            }
            panic!("they are not all there");
        });
        let reloaded = server.ctl(&["reload"]);
        assert!(reloaded.status.success(), "{reloaded:?}");
        watched.join().unwrap();
    });
}
