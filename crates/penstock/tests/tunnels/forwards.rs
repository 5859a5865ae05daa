//! `penstock tunnel` against real OpenSSH servers: forwards of every kind, and jobs whose tunnel is killed at each step.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use nix::sys::signal::Signal;
use testing::tunnel::Place;
use testing::{eventually, port, secs};

/// Answers each connection with what it heard, backwards, once the other side has ended: so half-close is needed.
fn backwards(place: &Place, name: &str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let unix = UnixListener::bind(place.path(name)).unwrap();
    let port = listener.local_addr().unwrap().port();
    fn answer(stream: &mut (impl Read + Write)) {
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        heard.reverse();
        let _ = stream.write_all(&heard);
    }
    thread::spawn(move || listener.incoming().flatten().for_each(|mut it| answer(&mut it)));
    thread::spawn(move || unix.incoming().flatten().for_each(|mut it| answer(&mut it)));
    port
}

fn ask_tcp(address: &str, text: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(secs(20))).unwrap();
    stream.write_all(text).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

fn ask_unix(path: &std::path::Path, text: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(secs(20))).unwrap();
    stream.write_all(text).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

#[test]
fn every_kind_of_forward_carries_bytes_and_passes_on_the_end_of_one_direction() {
    let place = Place::new();
    let port = backwards(&place, "service.sock");
    let (near, far) = (port::free(), port::free());
    place.configure(&format!(
        "[tunnel.all]\nhost = \"far\"\n\
         [tunnel.all.forward.tt]\nlisten = \"127.0.0.1:{near}\"\nconnect = \"127.0.0.1:{port}\"\n\
         [tunnel.all.forward.uu]\nlisten = \"unix:$D/near.sock\"\nconnect = \"unix:$D/service.sock\"\n\
         [tunnel.all.forward.back]\nkind = \"remote\"\nlisten = \"127.0.0.1:{far}\"\nconnect = \"127.0.0.1:{port}\"\n\
         [tunnel.all.forward.backu]\nkind = \"remote\"\nlisten = \"unix:$D/far.sock\"\nconnect = \"unix:$D/service.sock\"\n"
    ));
    for engine in ["openssh", "native"] {
        place.run(&["up", "all", "--detach", "--engine", engine]).code(0).says("tcp ok");
        carries_both_ways(&place, near, far);
        place.run(&["down", "all"]).code(0);
        assert!(TcpStream::connect(("127.0.0.1", near)).is_err());
        // Until its process for the connection has ended, the host listens at that port.
        eventually("the host is left", secs(20), || (place.sshd.connections() == 0).then_some(()));
        // The host's sshd leaves the socket on which it listened.
        fs::remove_file(place.path("far.sock")).unwrap();
        place.is_clean();
    }
}

fn carries_both_ways(place: &Place, near: u16, far: u16) {
    let mode = fs::metadata(place.path("near.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let text: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
    let wanted: Vec<u8> = text.iter().rev().copied().collect();
    assert!(ask_tcp(&format!("127.0.0.1:{near}"), &text) == wanted);
    assert!(ask_unix(&place.path("near.sock"), &text) == wanted);
    assert!(ask_tcp(&format!("127.0.0.1:{far}"), &text) == wanted);
    assert!(ask_unix(&place.path("far.sock"), &text) == wanted);
    let ran = place.run(&["status", "all", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    for forward in status[0]["forwards"].as_array().unwrap() {
        assert_eq!(forward["bytes_out"], 300_000, "{forward}");
    }
}

#[test]
fn wait_for_the_next_attempt_does_not_grow_while_each_connection_serves() {
    let place = Place::new();
    let port = backwards(&place, "service.sock");
    place.configure(&format!(
        "[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nlisten = \"unix:$D/near.sock\"\nconnect = \"127.0.0.1:{port}\"\n\
         check = \"none\"\n"
    ));
    let up = place.start(&["up", "t"]);
    up.wait_for(": up");
    for connects in 1..=6 {
        eventually(&format!("connection {connects}"), secs(60), || {
            let ran = place.run(&["status", "t", "--json"]);
            let status: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
            let is_new = status[0]["connects"].as_u64() >= Some(connects);
            (is_new && status[0]["connection"] == "connected").then_some(())
        });
        assert_eq!(ask_unix(&place.path("near.sock"), b"abc"), b"cba");
        place.break_connections();
    }
    up.wait_for("next attempt in ");
    up.signal(Signal::SIGTERM);
    let err = up.finish().err;
    let waits: Vec<&str> =
        err.lines().filter_map(|line| Some(line.split_once("next attempt in ")?.1)).collect();
    assert!(waits.len() >= 5, "{err}");
    let seconds = |wait: &&str| wait.trim_end_matches(" s").parse::<f64>().unwrap();
    assert!(waits.iter().map(seconds).all(|wait| wait <= 0.5), "{waits:?}");
}

#[test]
fn a_dynamic_forward_is_a_socks_proxy_whose_names_the_host_resolves() {
    let place = Place::new();
    let port = backwards(&place, "service.sock");
    place.configure("[tunnel.any]\nhost = \"far\"\n[tunnel.any.forward.proxy]\nkind = \"dynamic\"\nlisten = \"127.0.0.1:0\"\n");
    let up = place.start(&["up", "any"]);
    let line = up.wait_for("SOCKS5");
    let address = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:")).unwrap().to_owned();
    let socks = |host: &[u8], port: u16| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(secs(20))).unwrap();
        stream.write_all(&[5, 1, 0]).unwrap();
        let mut welcome = [0; 2];
        stream.read_exact(&mut welcome).unwrap();
        let mut request = vec![5, 1, 0, 3, u8::try_from(host.len()).unwrap()];
        request.extend_from_slice(host);
        request.extend_from_slice(&port.to_be_bytes());
        stream.write_all(&request).unwrap();
        let mut reply = [0; 10];
        stream.read_exact(&mut reply).unwrap();
        (reply[1], stream)
    };
    let (code, mut stream) = socks(b"localhost", port);
    assert_eq!(code, 0);
    stream.write_all(b"abc").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"cba");
    assert_eq!(socks(b"127.0.0.1", port::free()).0, 5);
    assert_eq!(socks(b"no.invalid", port).0, 4);
    assert_eq!(socks(b"bad name", port).0, 1);
    let url = format!("http://127.0.0.1:{}/", place.sshd.port);
    let curl = std::process::Command::new("curl")
        .args(["-s", "-m", "10", "--http0.9", "--socks5-hostname", &address])
        .arg(url.replace("127.0.0.1", &place.sshd.address.to_string()))
        .output()
        .unwrap();
    assert!(curl.stdout.starts_with(b"SSH-2.0-"), "{curl:?}");
    let curl = std::process::Command::new("curl")
        .args(["-sS", "-m", "10", "--socks5-hostname", &address, "http://no.invalid/"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&curl.stderr);
    assert!(said.contains("Can't complete SOCKS5 connection to no.invalid. (4)"), "{said}");
    eventually("the error", secs(10), || {
        place.run(&["status"]).out.contains("far could not connect to no.invalid:80: ").then_some(())
    });
    up.signal(Signal::SIGTERM);
    up.finish().code(0);
    place.is_clean();
}

#[test]
fn a_job_gets_its_address_and_its_exit_code_is_ours() {
    let place = Place::new();
    let port = backwards(&place, "service.sock");
    place.configure(&format!(
        "[tunnel.t]\nhost = \"far\"\njob = [\"sh\", \"-c\", \"echo $TUNNEL_DB; exit 7\"]\n\
         [tunnel.t.forward.db]\nconnect = \"127.0.0.1:{port}\"\n"
    ));
    place.run(&["with", "t"]).code(7).says("127.0.0.1:");
    place.run(&["with", "t", "--", "true"]).code(0);
    place.run(&["with", "t", "--", "sh", "-c", "kill -TERM $$"]).code(143);
    place.run(&["with", "t", "--", "/nowhere/at-all"]).code(127).says("cannot run /nowhere/at-all");
    place.run(&["with", "t", "--", "/etc/passwd"]).code(126);
    place.run(&["with", "none", "--", "true"]).code(2).says("no tunnel is named \"none\"");
    place.run(&["check", "t"]).code(0).says("answers: accepts connections");
    place.run(&["down", "t"]).code(1).says("does not run");
    place.is_clean();
}

#[test]
fn a_service_that_does_not_answer_keeps_the_job_from_running() {
    let place = Place::new();
    let port = backwards(&place, "service.sock");
    let shut = port::free();
    for (check, port, why) in [
        ("tcp", shut, "could not connect"),
        ("nfs-null", place.sshd.port, "does not speak RPC"),
        ("http", place.sshd.port, "does not speak HTTP"),
    ] {
        let address = if port == shut { "127.0.0.1".to_owned() } else { place.sshd.address.to_string() };
        place.configure(&format!(
            "[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nconnect = \"{address}:{port}\"\ncheck = \"{check}\"\n"
        ));
        let ran = place.run(&["with", "t", "--", "touch", &place.shown("ran")]);
        ran.code(125).says(why).says("the command did not run");
        place.run(&["check", "t"]).code(1).says(why);
    }
    let _ = port;
    assert!(!place.path("ran").exists());
    place.is_clean();
}

#[test]
fn a_host_with_another_key_or_without_a_listener_ends_it_before_the_job() {
    let place = Place::new();
    place.configure(
        "[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nconnect = \"127.0.0.1:1\"\ncheck = \"none\"\n",
    );
    let other = fs::read_to_string(place.sshd.directory.path().join("client.pub")).unwrap();
    // ssh's own file would let it pass: a user who has enrolled a host knows it by its identity, with either engine.
    place.pin(&other);
    let ran = place.run(&["with", "t", "--engine", "openssh", "--", "touch", &place.shown("ran")]);
    ran.code(125).says("error: tunnel t: connecting: far showed ssh-ed25519 ").says(" is pinned");
    let known = format!("[{}]:{} {other}", place.sshd.address, place.sshd.port);
    fs::write(place.path("known_hosts"), known).unwrap();
    place.pin(&other);
    for engine in ["openssh", "native"] {
        let ran = place.run(&["with", "t", "--engine", engine, "--", "touch", &place.shown("ran")]);
        ran.code(125).says(" is pinned").says("nothing was sent");
    }
    let text = fs::read_to_string(place.path("ssh_config")).unwrap();
    for word in ["no", "accept-new"] {
        let lax =
            format!("Host *\n StrictHostKeyChecking {word}\n UserKnownHostsFile {}\n", place.shown("nobody"));
        fs::write(place.path("ssh_config"), format!("{lax}{text}")).unwrap();
        let ran = place.run(&["with", "t", "--engine", "openssh", "--", "touch", &place.shown("ran")]);
        ran.code(125).says("nothing was sent");
        assert!(!place.path("nobody").exists());
    }
    fs::write(place.path("ssh_config"), "Host far\n HostName 127.0.0.1\n Port 1\n").unwrap();
    for (engine, why) in [("openssh", "refuses the connection"), ("native", "connection refused")] {
        let ran = place.run(&["with", "t", "--engine", engine, "--", "touch", &place.shown("ran")]);
        ran.code(125).says(why);
    }
    assert!(!place.path("ran").exists());
    place.is_clean();
}

#[test]
fn a_connection_that_breaks_is_made_anew_and_its_listeners_stay() {
    let place = Place::new();
    let port = backwards(&place, "service.sock");
    let near = port::free();
    place.configure(&format!(
        "[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nlisten = \"127.0.0.1:{near}\"\nconnect = \"127.0.0.1:{port}\"\n"
    ));
    for engine in ["openssh", "native"] {
        breaks_and_comes_back(&place, near, engine);
    }
}

fn breaks_and_comes_back(place: &Place, near: u16, engine: &str) {
    let up = place.start(&["up", "t", "--engine", engine]);
    up.wait_for(": up");
    assert_eq!(ask_tcp(&format!("127.0.0.1:{near}"), b"abc"), b"cba");
    place.break_connections();
    up.wait_for("next attempt in");
    // A program that comes now waits for the new connection.
    assert_eq!(ask_tcp(&format!("127.0.0.1:{near}"), b"abc"), b"cba");
    up.wait_for("connected to far again");
    let again = place.run(&["up", "t"]);
    again.code(1).says(&format!("tunnel t is up already: process {}", up.child.id()));
    up.signal(Signal::SIGTERM);
    up.finish().code(0);
    place.is_clean();
}

#[test]
fn a_service_to_which_the_host_gets_no_connection_fails_the_check_in_time() {
    let place = Place::new();
    let full = TcpListener::bind("127.0.0.1:0").unwrap();
    nix::sys::socket::listen(&full, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
    let address = full.local_addr().unwrap();
    // The queue is full now: a further client hears nothing.
    let _queued = TcpStream::connect(address).unwrap();
    place.configure(&format!("[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nconnect = \"{address}\"\n"));
    place.run(&["check", "t"]).code(1).says("no answer within 10 s");
    place.is_clean();
}

#[test]
fn a_host_whose_key_changes_later_ends_the_tunnel_and_asks_its_job_to_end() {
    let place = Place::new();
    place.configure(
        "[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nconnect = \"127.0.0.1:1\"\ncheck = \"none\"\n",
    );
    let other = fs::read_to_string(place.sshd.directory.path().join("client.pub")).unwrap();
    for (arguments, ready, code) in [
        (&["up", "t"][..], ": up", 1),
        (&["with", "t", "--", "sh", "-c", "echo works >&2; exec sleep 300"], "works", 143),
    ] {
        place.pin(&place.sshd.host_key());
        let running = place.start(arguments);
        running.wait_for(ready);
        place.pin(&other);
        place.break_connections();
        running.finish().code(code).says("nothing was sent");
        place.is_clean();
    }
}

#[test]
fn a_tunnel_in_the_background_asks_for_no_passphrase() {
    let place = Place::new();
    testing::sshd::keygen(&place.sshd.client_key, &["-p", "-P", "", "-N", "a secret"]);
    place.configure(
        "[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nconnect = \"127.0.0.1:1\"\ncheck = \"none\"\n",
    );
    // With a terminal, on which a person could be asked.
    let up = format!("{} tunnel up t --detach", testing::binary());
    let mut command = place.command(&[]);
    let environment: Vec<_> =
        command.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect();
    command = std::process::Command::new("timeout");
    command.args(["-k", "1", "30", "script", "-qec", &up, "/dev/null"]).env_clear().envs(environment);
    let output = testing::tunnel::output(&mut command);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("ssh-add") && said.contains(&*place.sshd.client_key.to_string_lossy()), "{said}");
    place.is_clean();
}

/// Mounts a tmpfs; each step hangs while there is a file that says so. Unmounting is `umount`.
fn with_mount(place: &Place) {
    let port = backwards(place, "service.sock");
    fs::create_dir(place.path("point")).unwrap();
    place.script(
        "mount.sh",
        "while [ -e $D/hang-before-mount ]; do sleep 0.02; done\nmount -t tmpfs -o size=64k $2 $1 || exit 1\n\
         touch $D/mounted\nwhile [ -e $D/hang-after-mount ]; do sleep 0.02; done",
    );
    place.script("umount.sh", "while [ -e $D/hang-unmount ]; do sleep 0.02; done\numount $1");
    place.configure(&format!(
        "[tunnel.nas]\nhost = \"far\"\nmount-point = \"$D/point\"\nmount = [\"$D/mount.sh\", \"{{mount-point}}\", \"nas:/storage\"]\n\
         unmount = [\"$D/umount.sh\", \"{{mount-point}}\"]\n\
         [tunnel.nas.forward.db]\nlisten = \"unix:$D/db.sock\"\nconnect = \"127.0.0.1:{port}\"\n"
    ));
}

#[test]
fn a_job_runs_on_what_is_mounted_and_nothing_is_left() {
    let place = Place::new();
    with_mount(&place);
    let job =
        "test \"$TUNNEL_MOUNT_POINT\" = \"$1\" && echo data > $1/file && grep \" $1 \" /proc/self/mountinfo";
    let ran = place.run(&["with", "nas", "--", "sh", "-c", job, "job", &place.shown("point")]);
    ran.code(0).says("mounted: tmpfs of nas:/storage").says("chattr +i");
    assert!(!place.path("point/file").exists());
    place.is_clean();
}

#[test]
fn a_mount_point_that_is_not_an_empty_free_directory_is_refused_before_anything_is_connected() {
    let place = Place::new();
    with_mount(&place);
    place.write("point/stray", "written while nothing was mounted");
    place.run(&["with", "nas", "--", "true"]).code(125).says("is not empty (there is stray)");
    assert!(!place.sshd.log().contains("Accepted publickey"), "{}", place.sshd.log());
    fs::remove_file(place.path("point/stray")).unwrap();
    fs::remove_dir(place.path("point")).unwrap();
    place.run(&["with", "nas", "--", "true"]).code(125).says("there is no directory");
    place.write("point", "a file");
    place.run(&["with", "nas", "--", "true"]).code(125).says("is not a directory");
    place.is_clean();
}

#[test]
fn a_mount_command_that_mounts_nothing_or_fails_keeps_the_job_from_running() {
    let place = Place::new();
    with_mount(&place);
    place.script("mount.sh", "exit 0");
    place.run(&["with", "nas", "--", "touch", &place.shown("ran")]).code(125).says("but nothing is mounted");
    place.script("mount.sh", "echo 'mount.nfs4: access denied' >&2; exit 32");
    let ran = place.run(&["with", "nas", "--", "touch", &place.shown("ran")]);
    ran.code(125).says("failed with status 32: mount.nfs4: access denied");
    place.script("mount.sh", "mount -t tmpfs $2 $1; exit 1");
    place.run(&["with", "nas", "--", "touch", &place.shown("ran")]).code(125).says("failed with status 1");
    assert!(!place.path("ran").exists());
    place.is_clean();
}

#[test]
fn a_mount_in_use_is_tried_again_and_then_taken_away_lazily() {
    let place = Place::new();
    with_mount(&place);
    // Stays behind in the mount when the job has ended, with an environment that hides it.
    let job = "mkfifo $1.in\n(cd $TUNNEL_MOUNT_POINT && echo > $1.in && exec env -i sleep 300) > /dev/null 2>&1 &\n\
               echo $! > $1; read it < $1.in";
    let ran = place.run(&["with", "nas", "--", "sh", "-c", job, "job", &place.shown("pid")]);
    let sleeper = fs::read_to_string(place.path("pid")).unwrap().trim().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(sleeper), Signal::SIGKILL).unwrap();
    ran.code(0).says("unmount-lazy: umount -l");
    assert!(ran.err.matches("unmount: ").count() >= 5, "{}", ran.err);
    place.is_clean();
}

#[test]
fn ctrl_c_goes_to_the_job_and_everything_is_taken_down_after_it() {
    let place = Place::new();
    with_mount(&place);
    let job =
        "trap 'echo last words > $TUNNEL_MOUNT_POINT/x; exit 9' INT; touch $1; while :; do sleep 0.02; done";
    let running = place.start(&["with", "nas", "--", "sh", "-c", job, "job", &place.shown("works")]);
    eventually("the job", secs(20), || place.path("works").exists().then_some(()));
    running.signal(Signal::SIGINT);
    running.finish().code(9).says("waiting for the job to end");
    place.is_clean();
}

#[test]
fn a_run_that_is_killed_at_any_step_is_undone_by_the_next() {
    let place = Place::new();
    with_mount(&place);
    let job = place.script("job.sh", "touch $D/works\nsleep 300");
    // A program that is not noted yet cannot be proved to be one of the run, and is left alone.
    let noted = |step: &str, count: usize| {
        place.noted().lines().filter(|line| line.starts_with(step)).count() >= count
    };
    // What makes it hang, how it is known to be there, and whether something is mounted then.
    let steps: [(&str, &dyn Fn() -> bool, bool); 5] = [
        ("hang-ssh", &|| place.list("nas").contains("+ forwards") && noted("engine ", 1), false),
        ("hang-before-mount", &|| place.list("nas").contains("+ mount") && noted("mount ", 1), false),
        ("hang-after-mount", &|| place.path("mounted").exists() && noted("mount ", 1), true),
        ("none", &|| place.path("works").exists() && noted("job ", 1), true),
        ("hang-unmount", &|| place.list("nas").contains("- job") && noted("mount ", 2), true),
    ];
    for (hang, reached, mounted) in steps {
        for automatic in [false, true] {
            place.write(hang, "");
            let command = if hang == "hang-unmount" { "true" } else { &job };
            let engine = if hang == "hang-ssh" { "openssh" } else { "native" };
            let running = place.start(&["with", "nas", "--engine", engine, "--", command]);
            eventually(&format!("{hang} reached"), secs(20), || reached().then_some(()));
            running.kill();
            assert_eq!(place.is_mounted(&place.path("point")), mounted, "{hang}");
            for marker in [hang, "works", "mounted"] {
                let _ = fs::remove_file(place.path(marker));
            }
            place.run(&["status"]).code(0).says("has leftovers");
            if automatic {
                let next = place.run(&["with", "nas", "--", "true"]);
                next.code(0).says("the leftovers of an earlier run are undone");
                let _ = fs::remove_file(place.path("mounted"));
            } else {
                place.run(&["unwind"]).code(0).says("the leftovers of an earlier run are undone");
                place.run(&["unwind"]).code(0).says("nothing to undo");
            }
            place.is_clean();
            assert!(!place.path("db.sock").exists(), "{hang}");
        }
    }
}

#[test]
fn a_damaged_list_is_kept_aside_and_the_configuration_says_what_to_undo() {
    let place = Place::new();
    with_mount(&place);
    let running = place.start(&["with", "nas", "--", "sleep", "300"]);
    eventually("the job", secs(20), || place.list("nas").contains("+ job").then_some(()));
    eventually("its note", secs(20), || place.noted().contains("job ").then_some(()));
    running.kill();
    let list = place.path("state/penstock/undo/nas");
    let mut bytes = fs::read(&list).unwrap();
    for at in (0..bytes.len()).step_by(7).filter(|at| *at != 0) {
        bytes[at] = b'#';
    }
    fs::write(&list, bytes).unwrap();
    place.run(&["unwind", "nas"]).code(0).says("is damaged").says("nas.damaged");
    assert!(!place.is_mounted(&place.path("point")));
    assert!(place.path("state/penstock/undo/nas.damaged").exists());
}

#[test]
fn a_mount_of_another_program_is_left_alone() {
    let place = Place::new();
    with_mount(&place);
    let running = place.start(&[
        "with",
        "nas",
        "--",
        "sh",
        "-c",
        "until test -e \"$0\"; do sleep 0.1; done; : > \"$0.seen\"; exec sleep 300",
        &place.shown("go"),
    ]);
    eventually("the job", secs(20), || place.list("nas").contains("+ job").then_some(()));
    // The run notes the process of its job right after its start: it is killed later than that.
    place.write("go", "");
    eventually("the job goes on", secs(20), || place.path("go.seen").exists().then_some(()));
    running.kill();
    let run = |arguments: &[&str]| {
        let output = std::process::Command::new(arguments[0]).args(&arguments[1..]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    run(&["umount", &place.shown("point")]);
    run(&["mount", "-t", "tmpfs", "theirs", &place.shown("point")]);
    place.run(&["unwind"]).code(0).says("not mounted by this tunnel, so it stays");
    assert!(place.is_mounted(&place.path("point")));
    place.run(&["with", "nas", "--", "true"]).code(125).says("has something mounted already");
    run(&["umount", &place.shown("point")]);
    place.is_clean();
}

#[test]
fn a_disk_that_is_full_keeps_the_job_from_running_and_leaves_nothing_to_undo() {
    let place = Place::new();
    with_mount(&place);
    let text = fs::read_to_string(place.path("penstock.toml")).unwrap();
    // Longer than a page, so that the list ends in the middle of a line where there is one page left.
    let long = text.replace("unmount = [", &format!("unmount = [\"{}\", ", "x".repeat(6000)));
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).unwrap().unwrap();
    // One page is for the lock, which names its process, and one for the list.
    let room = 2 * page;
    let taken = "x".repeat(usize::try_from(room).unwrap());
    for (other, config, why) in [
        (taken.as_str(), &text, "cannot begin tunnel nas"),
        ("", &long, "cannot write the undo list: No space left"),
    ] {
        fs::write(place.path("penstock.toml"), config).unwrap();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={room}"), "full", &place.shown("state")])
            .status()
            .unwrap();
        assert!(mounted.success());
        fs::write(place.path("state/other"), other).unwrap();
        let ran = place.run(&["with", "nas", "--", "touch", &place.shown("ran")]);
        ran.code(125).says(why).says("No space left");
        place.run(&["status"]).code(0).says("no tunnel runs");
        assert!(!place.path("state/penstock/undo/nas").exists());
        let unmounted = std::process::Command::new("umount").arg(place.path("state")).status().unwrap();
        assert!(unmounted.success() && !place.path("ran").exists());
    }
    fs::create_dir_all(place.path("state/penstock/undo")).unwrap();
    place.is_clean();
}

#[test]
fn a_socket_that_is_left_on_the_host_is_named_with_what_removes_it() {
    let place = Place::new();
    place.configure(
        "[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.r]\nkind = \"remote\"\nlisten = \"unix:$D/far.sock\"\nconnect = \"127.0.0.1:1\"\ncheck = \"none\"\n",
    );
    fs::write(place.path("far.sock"), "").unwrap();
    let ran = place.run(&["check", "t"]);
    let why = format!("refused to listen on {}", place.shown("far.sock"));
    ran.code(1).says(&why).says("StreamLocalBindUnlink yes").says("AllowStreamLocalForwarding");
    // Once, with its step.
    assert_eq!(ran.err.matches(&why).count(), 1, "{}", ran.err);
    assert!(ran.err.contains("error: tunnel t: connecting: forward r: "), "{}", ran.err);
    fs::remove_file(place.path("far.sock")).unwrap();
    place.run(&["check", "t"]).code(0);
    let _ = fs::remove_file(place.path("far.sock"));
    place.is_clean();
}

#[test]
fn a_file_with_tunnels_alone_is_valid_and_cannot_be_served() {
    let place = Place::new();
    with_mount(&place);
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(testing::binary());
        let output = command.args(arguments).arg(place.path("penstock.toml")).env_clear().output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (code, said) = run(&["check"]);
    assert!(code == Some(0) && said.contains("ok: 1 tunnel"), "{said}");
    let (code, said) = run(&["serve"]);
    assert!(code == Some(2) && said.contains("this file is for `penstock tunnel` alone"), "{said}");
}
