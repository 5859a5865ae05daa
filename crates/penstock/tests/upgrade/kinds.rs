//! Sockets of every kind, the rights of the process, and what systemd is told.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use nix::sys::signal::Signal;
use testing::client::get;
use testing::pki::{Time, self_signed};
use testing::server::{Setup, binary};
use testing::{Scripted, eventually, secs, tools};

use crate::front::{Front, config, is_running};

/// Whether a session of a TLS client is resumed that an earlier connection has left in `file`.
fn is_resumed(address: &str, file: &str, with: &str) -> bool {
    let script = format!(
        "printf 'GET / HTTP/1.1\\r\\nHost: a.example\\r\\nConnection: close\\r\\n\\r\\n' |
         openssl s_client -connect {address} -servername a.example -tls1_2 -ign_eof {with} {file} 2>&1"
    );
    let output = tools::run("sh", &["-c", &script], secs(30));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("HTTP/1.1 200 "), "{said}");
    said.contains("Reused, TLSv1.2")
}

#[test]
fn tickets_from_before_an_upgrade_resume_sessions_after_it() {
    let backend = Scripted::answering("x");
    let certificates = tempfile::tempdir().unwrap();
    self_signed(certificates.path(), "a", &["a.example"], Time::Now);
    let tls = format!("tls = {{ certificates = \"{}\" }}\n", certificates.path().display());
    let mut front = Front::start(&config(&tls, &backend.address));
    let address = front.server.address("web");
    let session = front.dir().join("session");
    let session = session.to_str().unwrap();
    assert!(!is_resumed(&address, session, "-sess_out"));
    assert!(is_resumed(&address, session, "-sess_in"));
    for _ in 0..2 {
        front.upgrade(&[]);
        assert!(is_resumed(&address, session, "-sess_in"));
    }
}

#[test]
fn datagrams_go_to_the_new_process_and_replies_of_the_old_one_still_come() {
    let backend = UdpSocket::bind("127.0.0.1:0").unwrap();
    backend.set_read_timeout(Some(secs(20))).unwrap();
    let web = Scripted::answering("x");
    let udp = format!(
        "[listener.dns]\nbind = \"127.0.0.1:0\"\nprotocol = \"udp\"\npool = \"dns\"\nidle-timeout = \"15s\"\n\
         [pool.dns]\nhealth = \"off\"\nbackends = [\"{}\"]\n",
        backend.local_addr().unwrap()
    );
    let mut front = Front::start(&config(&udp, &web.address));
    let old = front.pid();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(secs(20))).unwrap();
    client.connect(front.server.address("dns")).unwrap();
    let mut room = [0; 100];
    let mut ask = |text: &[u8]| {
        client.send(text).unwrap();
        let (length, from) = backend.recv_from(&mut room).unwrap();
        assert_eq!(&room[..length], text);
        from
    };
    let before = ask(b"first");
    front.upgrade(&[]);
    let after = ask(b"second");
    assert_ne!(before, after, "a flow of the new process");
    let mut answer = [0; 100];
    for (text, to) in [(b"to the old", before), (b"to the new", after)] {
        backend.send_to(text, to).unwrap();
        let length = client.recv(&mut answer).unwrap();
        assert_eq!(&answer[..length], text);
    }
    front.wait_gone(old);
    ask(b"third");
}

/// Passes one TCP socket as systemd does.
const PASS: &str = r#"
import os, socket, sys
tcp = socket.socket(); tcp.bind(("127.0.0.1", 0)); tcp.listen(16)
print("port", tcp.getsockname()[1], file=sys.stderr, flush=True)
os.dup2(tcp.fileno(), 23); os.dup2(23, 3); os.closerange(4, 30)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="front")
os.execv(sys.argv[1], sys.argv[1:])
"#;

#[test]
fn systemd_hears_which_process_is_the_main_one_and_its_sockets_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(secs(20))).unwrap();
    let backend = Scripted::answering("x");
    let text = config("", &backend.address)
        .replace("bind = \"127.0.0.1:0\"\npool", "bind = \"systemd:front\"\npool");
    let setup = Setup::new(&text).env("NOTIFY_SOCKET", path.to_str().unwrap());
    let python = tools::program("python3");
    let mut front = Front::of(setup.through([python.to_str().unwrap(), "-c", PASS]).start());
    let port = front.server.stderr.wait_for("port ", secs(5)).trim_start_matches("port ").to_owned();
    let hear = || {
        let mut buffer = [0; 4096];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let wait_for = |word: &str| {
        let mut heard = Vec::new();
        while !heard.last().is_some_and(|said: &String| said.lines().any(|line| line == word)) {
            heard.push(hear());
        }
        heard
    };
    wait_for("READY=1");
    for _ in 0..2 {
        let old = front.pid();
        front.upgrade(&[]);
        let heard = wait_for(&format!("MAINPID={}", front.pid()));
        let later = wait_for("READY=1");
        // An old process that said so would have systemd stop the unit.
        assert!(!heard.iter().chain(&later).any(|said| said.contains("STOPPING=1")), "{heard:?} {later:?}");
        assert_eq!(get(&format!("127.0.0.1:{port}"), "/").text(), "x");
        front.wait_gone(old);
    }
}

#[test]
fn a_process_that_has_given_its_rights_up_is_followed_by_one_without_them() {
    let backend = Scripted::answering("x");
    let text = config("", &backend.address).replace("[process]\n", "[process]\nuser = \"nobody\"\n");
    let setup = Setup::new(&text);
    // Another user may not look into the directory where the program was built.
    let [state, programs] = ["state", "programs"].map(|name| setup.dir().join(name));
    for path in [&state, &programs] {
        fs::create_dir(path).unwrap();
    }
    for path in [setup.dir(), &state, &programs] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let built = Path::new(binary()).parent().unwrap().display();
    let script = format!("mount --bind {built} {} && exec \"$@\"", programs.display());
    let file = setup.dir().join("penstock.toml").display().to_string();
    let directory = programs.display().to_string();
    let setup = setup.arguments(&["serve", "--config", &file, "--allow-upgrade", &directory]);
    let setup = setup.through(["unshare", "--mount", "sh", "-ec", &script, "sh"]);
    let program = programs.join("penstock").display().to_string();
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    nix::unistd::chown(&state, Some(nobody.uid), Some(nobody.gid)).unwrap();
    let mut front = Front::of(setup.start());
    let address = front.server.address("web");
    let rights = |pid: i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let wanted = ["Uid:", "CapPrm:", "CapBnd:", "NoNewPrivs:", "Seccomp:", "Groups:"];
        let lines = status.lines().filter(|line| wanted.iter().any(|word| line.starts_with(word)));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        let old = front.pid();
        let before = rights(old);
        let stored = front.server.ctl_json(&["status"])["stored"]["directory"].clone();
        front.upgrade(&[&program]);
        assert_eq!(rights(front.pid()), before);
        assert!(before[0].contains(&nobody.uid.to_string()), "{before:?}");
        assert_eq!(get(&address, "/").text(), "x");
        front.wait_gone(old);
        eventually("the new one stores its state", secs(10), || {
            (front.server.ctl_json(&["status"])["stored"]["directory"] == stored).then_some(())
        });
    }
    let said = front.server.said(&["status"]);
    assert!(!said.contains("DEGRADED"), "{said}");
}

#[test]
fn a_full_disk_does_not_keep_the_state_from_the_next_process() {
    let backend = Scripted::answering("x");
    let setup = Setup::new(&config("", &backend.address));
    let state = setup.dir().join("state");
    fs::create_dir(&state).unwrap();
    let script = format!("mount -t tmpfs -o size=64k none {} && exec \"$@\"", state.display());
    let mut front = Front::of(setup.through(["unshare", "--mount", "sh", "-ec", &script, "sh"]).start());
    front.server.said(&["weight", &backend.address, "7"]);
    let full = format!("/proc/{}/root{}/full", front.pid(), state.display());
    // It writes until nothing fits.
    let _ = fs::write(full, vec![0; 1 << 20]);
    front.upgrade(&[]);
    assert_eq!(front.server.backend(&backend.address)["weight_override"], 7);
    assert_eq!(get(&front.server.address("web"), "/").text(), "x");
    eventually("the full disk is told", secs(10), || {
        front.server.said(&["status"]).contains("stored-state").then_some(())
    });
}

#[test]
fn an_address_that_cannot_be_bound_keeps_the_old_process() {
    let backend = Scripted::answering("x");
    let front = Front::start(&config("", &backend.address));
    let more = "[listener.more]\nbind = \"unix:/proc/none/a.sock\"\npool = \"app\"\n";
    front.server.write_config(&config(more, &backend.address));
    let said = front.refused(&[]);
    assert!(said.contains("listener.more: cannot listen on unix:/proc/none/a.sock"), "{said}");
    assert_eq!(front.serving(), front.server.pid().as_raw());
}

#[test]
fn what_the_next_configuration_does_not_have_is_closed_and_what_it_adds_is_opened() {
    let backend = Scripted::answering("x");
    let more = |name: &str, bind: &str| format!("[listener.{name}]\nbind = \"{bind}\"\npool = \"app\"\n");
    let mut front = Front::start(&config(&more("gone", "127.0.0.1:0"), &backend.address));
    let [web, gone] = ["web", "gone"].map(|name| front.server.address(name));
    let file = front.dir().join("new.sock");
    front.server.write_config(&config(&more("added", &format!("unix:{}", file.display())), &backend.address));
    let old = front.pid();
    front.upgrade(&[]);
    assert_eq!(get(&web, "/").text(), "x");
    assert_eq!(get(&format!("unix:{}", file.display()), "/").text(), "x");
    eventually("it is closed", secs(10), || std::net::TcpStream::connect(&gone).is_err().then_some(()));
    front.wait_gone(old);
    assert_eq!(get(&format!("unix:{}", file.display()), "/").text(), "x");
}

#[test]
fn a_pid_file_has_the_number_of_the_process_that_serves() {
    let backend = Scripted::answering("x");
    let text = config("", &backend.address).replace("[process]\n", "[process]\npid-file = \"@DIR@/pid\"\n");
    let mut front = Front::start(&text);
    let number = |front: &Front| fs::read_to_string(front.dir().join("pid")).unwrap().trim().to_owned();
    let first = front.pid();
    assert!(front.refused(&["/bin/true"]).contains("is not among the programs"));
    assert_eq!(number(&front), first.to_string());
    for _ in 0..2 {
        let old = front.pid();
        front.upgrade(&[]);
        eventually("it has the new number", secs(10), || {
            let number = number(&front);
            assert!([old, front.pid()].map(|pid| pid.to_string()).contains(&number), "{number:?}");
            (number == front.pid().to_string()).then_some(())
        });
        front.wait_gone(old);
        assert_eq!(number(&front), front.pid().to_string());
    }
    let last = front.pid();
    front.server.said(&["stop"]);
    front.wait_gone(last);
    assert!(!front.dir().join("pid").exists());
}

#[test]
fn a_signal_to_stop_ends_a_hand_over_and_both_processes() {
    let backend = Scripted::answering("x");
    let mut front = Front::start(&config("", &backend.address));
    let program = front.program("sleeps", b"#!/bin/sh\necho $$ > \"$0.pid\"\nexec sleep 600\n");
    let began = std::time::Instant::now();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| front.server.ctl(&["upgrade", program.to_str().unwrap()]));
        let number = eventually("it runs", secs(10), || {
            fs::read_to_string(format!("{}.pid", program.display())).ok()?.trim().parse::<i32>().ok()
        });
        front.server.signal(Signal::SIGTERM);
        drop(asked.join());
        eventually("it is ended", secs(10), || {
            fs::metadata(format!("/proc/{number}")).is_err().then_some(())
        });
    });
    let status = front.server.wait_end(secs(20));
    assert!(status.success() && began.elapsed() < secs(25), "{status:?} {:?}", began.elapsed());
    assert!(!is_running(front.pid()));
}
