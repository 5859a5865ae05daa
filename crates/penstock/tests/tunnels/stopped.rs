//! Tunnels whose process is stopped for longer than its limits (SIGSTOP), as on a laptop that slept, and tunnels whose host is.
//!
//! Time is what this is about, so it passes. What has a limit in the tunnel has it in the test, too: a round in which this
//! machine took longer than that for its own steps proves nothing, and is repeated.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testing::sshd::descendants;
use testing::tunnel::{Place, Ran, Running};
use testing::{eventually, secs};

/// Hands its first connection on only when that is allowed, and all others at once. Tells of the first.
struct Slow {
    port: u16,
    came: mpsc::Receiver<()>,
    allow: mpsc::Sender<()>,
}

impl Slow {
    fn listen(serve: impl Fn(TcpStream) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let ((tell, came), (allow, allowed)) = (mpsc::channel(), mpsc::channel());
        thread::spawn(move || {
            for (turn, stream) in listener.incoming().flatten().enumerate() {
                if turn == 0 {
                    let _ = tell.send(());
                    let _ = allowed.recv();
                }
                serve(stream);
            }
        });
        Self { port, came, allow }
    }

    /// Stops the process once it waits for us, lets both go on after `time`, and waits for its end.
    fn round(&self, running: Running, limit: Duration, time: Duration, meanwhile: impl Fn()) -> Round {
        self.came.recv_timeout(secs(60)).unwrap();
        running.signal(Signal::SIGSTOP);
        eventually("it is stopped, or over", secs(60), || is_stopped(running.child.id()).then_some(()));
        let before = running.begun.elapsed();
        thread::sleep(time);
        meanwhile();
        self.allow.send(()).unwrap();
        running.signal(Signal::SIGCONT);
        let after = Instant::now();
        let ran = running.finish();
        Round { ran, in_time: before < limit && after.elapsed() < limit }
    }
}

/// How a tunnel ended that was stopped, and whether this machine was quick enough for that to say anything.
struct Round {
    ran: Ran,
    in_time: bool,
}

impl Round {
    /// Whether it went well. It counts if it was in time, or none is left to follow.
    #[track_caller]
    fn went_well(&self, left: usize) -> bool {
        if self.in_time || left == 0 {
            self.ran.code(0);
        }
        self.ran.status.success()
    }
}

fn is_stopped(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let state = status.rsplit(") ").next().unwrap().as_bytes()[0];
    matches!(state, b'T' | b'Z')
}

#[test]
fn a_tunnel_that_was_stopped_while_it_connected_tries_once_more() {
    let place = Place::new();
    let address = (place.sshd.address, place.sshd.port);
    let text = fs::read_to_string(place.path("ssh_config")).unwrap();
    let mut limits = [2, 4, 8, 16, 32].map(secs).into_iter();
    while let Some(limit) = limits.next() {
        let slow = Slow::listen(move |near| {
            let far = TcpStream::connect(address).unwrap();
            let pipe = |mut from: TcpStream, mut to: TcpStream| {
                thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            };
            pipe(near.try_clone().unwrap(), far.try_clone().unwrap());
            pipe(far, near);
        });
        let through = format!("Host far\n HostName 127.0.0.1\n Port {}\n{text}", slow.port);
        place.write("ssh_config", &through);
        place.configure(&format!(
            "[tunnel.t]\nhost = \"far\"\nconnect-timeout = \"{}s\"\n\
             [tunnel.t.forward.db]\nconnect = \"127.0.0.1:1\"\ncheck = \"none\"\n",
            limit.as_secs()
        ));
        let running = place.start(&["with", "t", "--", "true"]);
        let round = slow.round(running, limit, limit + secs(2), || ());
        place.is_clean();
        if round.went_well(limits.len()) {
            return;
        }
    }
}

#[test]
fn a_tunnel_that_was_stopped_while_it_asked_its_services_asks_again_also_when_its_host_hung_up() {
    let place = Place::new();
    // That of each question, which no user can change.
    let limit = secs(10);
    for hangs_up in [false, true] {
        let mut left = 4;
        loop {
            let slow = Slow::listen(|mut stream| {
                let _ = stream.write_all(b"220 here\r\n");
            });
            place.configure(&format!(
                "[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nconnect = \"127.0.0.1:{}\"\ncheck = \"banner\"\n",
                slow.port
            ));
            let running = place.start(&["with", "t", "--", "true"]);
            let round = slow.round(running, limit, limit + secs(2), || {
                if hangs_up {
                    place.break_connections();
                }
            });
            place.is_clean();
            if round.went_well(left) {
                round.ran.says("220 here");
                break;
            }
            left -= 1;
        }
    }
}

/// Takes what comes, and counts it.
fn sink() -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let total = Arc::new(AtomicU64::new(0));
    let taken = Arc::clone(&total);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let taken = Arc::clone(&taken);
            thread::spawn(move || {
                let mut buffer = [0; 64 * 1024];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    taken.fetch_add(count as u64, Ordering::Relaxed);
                }
            });
        }
    });
    (port, total)
}

#[test]
fn a_host_that_takes_nothing_any_more_in_the_middle_of_an_upload_is_given_up_and_connected_to_anew() {
    let place = Place::new();
    let (port, taken) = sink();
    place.configure(&format!(
        "[tunnel.t]\nhost = \"far\"\nkeep-alive = \"2s\"\nkeep-alive-count = 2\n\
         [tunnel.t.forward.db]\nlisten = \"unix:$D/db.sock\"\nconnect = \"127.0.0.1:{port}\"\ncheck = \"none\"\n"
    ));
    let up = place.start(&["up", "t"]);
    up.wait_for(": up");
    // Each may send 2 MiB that are not read: together more than the sockets between us hold.
    let uploads: Vec<_> = (0..32)
        .map(|_| {
            let mut stream = UnixStream::connect(place.path("db.sock")).unwrap();
            thread::spawn(move || while stream.write_all(&[7; 64 * 1024]).is_ok() {})
        })
        .collect();
    let flows = || (taken.load(Ordering::Relaxed) > 64 << 20).then_some(());
    eventually("all upload", secs(60), flows);
    // Its sessions, not the server: a new connection is served.
    for process in descendants(place.sshd.pid()) {
        kill(Pid::from_raw(process.cast_signed()), Signal::SIGSTOP).unwrap();
    }
    let line = up.wait_for("timed out: for ");
    assert!(line.contains("the connection to far broke: ") && line.contains("next attempt in"), "{line}");
    let word = line.split("timed out: for ").nth(1).unwrap().split(' ').next().unwrap();
    // Two to three times the interval.
    assert!((4..=60).contains(&word.parse::<u64>().unwrap()), "{line}");
    up.wait_for("connected to far again");
    for upload in uploads {
        upload.join().unwrap();
    }
    place.run(&["status", "t"]).code(0).says("timed out: for ");
    up.signal(Signal::SIGTERM);
    up.finish().code(0);
    place.is_clean();
}
