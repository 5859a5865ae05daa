//! The control socket under friends, fools and enemies: nothing that they do changes anything for traffic.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

use testing::client::{End, Stream};
use testing::load::{Connections, Load};
use testing::server::{Setup, penstock};
use testing::tools::{self, Root};
use testing::{Client, Scripted, Server, eventually, millis, secs, show};

fn config(backend: &str) -> String {
    format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n[pool.app]\nbackends = [\"{backend}\"]\n"
    )
}

fn control(server: &Server) -> Client {
    Client::connect(server.control_socket().to_str().unwrap())
}

/// One command in the protocol's own words; the answer's first line.
#[track_caller]
fn ask(client: &mut Client, line: &str) -> String {
    client.send(format!("{line}\n"));
    let answer = String::from_utf8_lossy(&client.read_until(b"\n.\n")).into_owned();
    answer.lines().next().unwrap().to_owned()
}

/// Priority (nice) of a thread of a process, as proc_pid_stat(5) has it.
fn priority(server: &Server, thread: &str) -> i32 {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("stat")).ok());
    let named = |stat: &String| stat.contains(&format!("({thread})"));
    let stat = stats.into_iter().find(named).unwrap_or_else(|| panic!("no thread {thread}"));
    stat.rsplit_once(") ").unwrap().1.split(' ').nth(16).unwrap().parse().unwrap()
}

#[test]
fn its_thread_has_a_lower_priority_than_the_workers() {
    let backend = Scripted::answering("x");
    let server = Server::start(&config(&backend.address));
    let worker = priority(&server, "worker-0");
    // Its thread has its priority before it answers.
    assert!(server.ctl(&["status"]).status.success());
    assert_eq!(priority(&server, "control"), (worker + 10).min(19));
    let nice = Setup::new(&config(&backend.address)).through(["nice", "-n", "15"]).start();
    assert!(nice.ctl(&["status"]).status.success());
    assert_eq!((priority(&nice, "worker-0"), priority(&nice, "control")), ((worker + 15).min(19), 19));
}

#[test]
fn the_socket_is_0600_from_the_moment_it_exists_with_any_umask() {
    let backend = Scripted::answering("x");
    for round in 0..5 {
        let setup =
            Setup::new(&config(&backend.address)).through(["sh", "-c", "umask 000; exec \"$0\" \"$@\""]);
        let path = setup.dir().join("control.sock");
        let stop = Arc::new(AtomicBool::new(false));
        let (watched, ended) = (setup.dir().to_owned(), stop.clone());
        let watcher = std::thread::spawn(move || {
            let mut modes = Vec::new();
            while !ended.load(SeqCst) {
                modes.extend(socket_modes(&watched));
                modes.dedup();
            }
            modes
        });
        let server = setup.start();
        eventually("the socket exists", secs(5), || path.exists().then_some(()));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        stop.store(true, SeqCst);
        let modes = watcher.join().unwrap();
        // A name that is not the final one may exist before, but no client may ever connect to it either.
        assert!(modes.iter().all(|mode| mode & 0o177 == 0), "round {round}, decimal modes: {modes:?}");
        drop(server);
    }
}

fn socket_modes(dir: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries
        .filter_map(|entry| fs::symlink_metadata(entry.ok()?.path()).ok())
        .filter(|meta| meta.file_type().is_socket())
        .map(|meta| meta.mode() & 0o777)
        .collect()
}

#[test]
fn other_users_are_turned_away_by_the_kernels_word() {
    if tools::root("becomes another user") == Root::LeftOut {
        return;
    }
    let backend = Scripted::answering("x");
    let server = Server::start(&config(&backend.address));
    // Even with the file's mode opened by mistake, the peer's credentials decide.
    fs::set_permissions(server.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(server.control_socket(), fs::Permissions::from_mode(0o666)).unwrap();
    let connect = format!("UNIX-CONNECT:{}", server.control_socket().display());
    let socat = tools::program("socat");
    // It only listens: a client that may not talk is told so before it has sent anything.
    let unprivileged = [
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        socat.to_str().unwrap(),
        "-u",
        &connect,
        "-",
    ];
    let output = tools::run("setpriv", &unprivileged, secs(20));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with("error "), "{output:?}");
    assert!(server.ctl(&["status"]).status.success());
}

#[test]
fn garbage_and_half_lines_are_refused_or_closed_and_the_socket_goes_on() {
    let backend = Scripted::answering("x");
    let mut server = Server::start(&config(&backend.address));
    for bytes in [
        &b"\n"[..],
        b"\0\0\0\n",
        b"\xff\xfe\xfd\n",
        b"nonsense\n",
        b"drain\n",
        b"drain app\n",
        b"drain nothing nowhere\n",
        b"drain app nowhere\n",
        b"weight app x -1\n",
        b"weight app x 99999999999999999999\n",
        b"status json extra words\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"status\x1b[2J\n",
        b"stat",
        b"{\"command\": \"status\"}\n",
    ] {
        let mut client = control(&server);
        let _ = client.try_send(bytes);
        client.finish_sending();
        let (answer, end) = client.read_to_end();
        assert_ne!(end, End::Open, "{}", show(bytes));
        assert!(answer.is_empty() || answer.starts_with(b"error "), "{}: {}", show(bytes), show(&answer));
        assert!(!answer.contains(&0x1b), "{}", show(&answer));
    }
    let mut client = control(&server);
    assert!(ask(&mut client, "status").starts_with("ok"));
    assert!(ask(&mut client, "nonsense").starts_with("error"));
    assert!(
        ask(&mut client, "backends json").starts_with("ok"),
        "a refused command does not end the session"
    );
    server.assert_running();
}

#[test]
fn a_line_of_ten_megabytes_is_cut_and_costs_no_memory() {
    let backend = Scripted::answering("x");
    let server = Server::start(&config(&backend.address));
    let before = resident(&server);
    for _ in 0..10 {
        let mut client = control(&server);
        let _ = client.try_send(vec![b'a'; 10 << 20]);
        let (answer, end) = client.read_to_end();
        assert_ne!(end, End::Open);
        assert!(answer.is_empty() || answer.starts_with(b"error "), "{}", show(&answer));
    }
    let grown = resident(&server).saturating_sub(before);
    assert!(grown < 10 << 20, "{grown} bytes");
    assert!(server.ctl(&["status"]).status.success());
}

#[test]
fn idle_and_flooding_clients_change_nothing_for_traffic() {
    let backend = Scripted::answering("x");
    let server = Server::start(&config(&backend.address));
    let load = Load::start(&server.address("web"), "/", Connections::Kept, 4, Some(200));

    // A thousand that say nothing; what is beyond the socket's limit waits or is turned away.
    let socket = server.control_socket();
    let idle: Vec<Stream> = (0..1_000).map_while(|_| connect_without_waiting(&socket)).collect();
    let before = load.good();
    eventually("traffic flows beside idle control clients", secs(20), || {
        (load.good() > before + 300).then_some(())
    });

    // Some that flood commands and read nothing, some that read.
    let stop = Arc::new(AtomicBool::new(false));
    drop(idle);
    let flooders: Vec<_> = (0..4)
        .map(|number| {
            let (stop, socket) = (stop.clone(), socket.clone());
            std::thread::spawn(move || {
                while !stop.load(SeqCst) {
                    let Ok(mut client) = Client::try_connect(socket.to_str().unwrap()) else { continue };
                    client.stream.set_write_timeout(Some(millis(200)));
                    while !stop.load(SeqCst)
                        && client.try_send("status\nbackends json\nevents 1024\n".repeat(100)).is_ok()
                    {
                        if number % 2 == 0 {
                            let _ = client.read_to_end_within(millis(50));
                        }
                    }
                }
            })
        })
        .collect();
    let before = load.good();
    eventually("traffic flows beside flooding control clients", secs(30), || {
        (load.good() > before + 600).then_some(())
    });
    stop.store(true, SeqCst);
    for flooder in flooders {
        flooder.join().unwrap();
    }
    let totals = load.stop();
    totals.assert_clean();
    eventually("the control socket answers again", secs(20), || {
        server.ctl(&["status"]).status.success().then_some(())
    });
}

#[test]
fn follow_shows_an_event_when_it_happens() {
    let backend = Scripted::answering("x");
    let server = Server::start(&config(&backend.address));
    let mut follower = control(&server);
    follower.send("events follow\n");
    follower.read_until(b"ok");
    assert!(server.ctl(&["drain", "app", &backend.address]).status.success());
    let text = String::from_utf8_lossy(&follower.read_until(b"drain")).into_owned();
    assert!(text.contains(&backend.address) || !text.is_empty(), "{text}");
}

#[test]
fn the_socket_file_goes_away_with_the_server_and_a_second_server_is_told() {
    let backend = Scripted::answering("x");
    let mut server = Server::start(&config(&backend.address));
    let socket = server.control_socket();
    let text = config(&backend.address).replace("@DIR@", server.dir.path().to_str().unwrap());
    let output = Setup::new(&text).output();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("control.sock"), "{said}");
    assert!(server.ctl(&["status"]).status.success(), "the first one keeps its socket");
    server.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(server.wait_end(secs(20)).success());
    assert!(!socket.exists());
}

/// A Unix connect blocks when the backlog is full; these are then enough clients.
fn connect_without_waiting(path: &Path) -> Option<Stream> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
    use std::os::fd::AsRawFd;
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_NONBLOCK, None).ok()?;
    connect(fd.as_raw_fd(), &UnixAddr::new(path).ok()?).ok()?;
    Some(Stream::Unix(std::os::unix::net::UnixStream::from(fd)))
}

fn resident(server: &Server) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", server.pid())).unwrap();
    let line = text.lines().find(|line| line.starts_with("Rss:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn an_operator_is_served_beside_silent_clients_and_followers() {
    let backend = Scripted::answering("x");
    let server = Server::start(&config(&backend.address));
    let mut followers: Vec<Client> = (0..50).map(|_| control(&server)).collect();
    for follower in &mut followers {
        follower.send("events 0 follow\n");
        follower.read_until(b"ok\n");
    }
    let silent: Vec<Client> = (0..200).map(|_| control(&server)).collect();
    // 250 events: each is delivered to each follower.
    let mut operator = control(&server);
    for round in 0..125 {
        let word = if round % 2 == 0 { "drain" } else { "ready" };
        assert!(ask(&mut operator, &format!("{word} {}", backend.address)).starts_with("ok"));
    }
    // Generous: it was 10 s with 50 followers, and is some milliseconds.
    for _ in 0..5 {
        let started = Instant::now();
        let output = server.ctl(&["status"]);
        assert!(output.status.success(), "{output:?}");
        assert!(started.elapsed() < secs(8), "{:?}", started.elapsed());
    }
    for follower in &mut followers {
        follower.read_until(b"ready");
    }
    drop(silent);
}

#[test]
fn a_client_that_does_not_read_or_sends_half_a_command_keeps_no_other_from_its_place() {
    let backend = Scripted::answering("x");
    let server = Server::start(&config(&backend.address));
    let mut clients: Vec<Client> = (0..64).map(|_| control(&server)).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        match at % 2 {
            0 => client.send("stat"),
            // More answers than the socket holds.
            _ => drop(client.try_send("help\n".repeat(1000))),
        }
    }
    for _ in 0..40 {
        let output = server.ctl(&["status"]);
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn path_that_is_no_socket_is_told_and_a_configuration_there_is_named_as_one() {
    let backend = Scripted::answering("x");
    let server = Server::start(&config(&backend.address));
    let file = server.dir.path().join("penstock.toml").display().to_string();
    let other = server.dir.path().join("other").display().to_string();
    fs::write(&other, "some text\n").unwrap();
    let pipe = server.dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let pipe = pipe.display().to_string();
    for (path, hint) in [
        (&file, format!("it is a configuration: penstock ctl --config {file}")),
        (&other, "--config FILE takes it from there".to_owned()),
        (&pipe, "--config FILE takes it from there".to_owned()),
    ] {
        let output = penstock(&["ctl", "--socket", path, "status"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.starts_with(&format!("error: {path} is no socket\n")) && said.contains(&hint), "{said}");
    }
    assert!(penstock(&["ctl", "--config", &file, "status"]).status.success(), "the hint works");
}
