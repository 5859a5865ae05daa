//! Tunnels whose process is stopped for longer than its limits (SIGSTOP), as on a laptop that slept.
//!
//! Time is what this is about, so it passes. What has a limit in the tunnel has it in the test, too: a round in which this
//! machine took longer than that for its own steps proves nothing, and is repeated.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use support::tunnel::{Place, Ran, Running};
use support::{eventually, secs};

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
    // That of each question, which nobody can change.
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
