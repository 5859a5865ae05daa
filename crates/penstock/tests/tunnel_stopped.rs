//! Tunnels whose process is stopped for longer than its limits (SIGSTOP), as on a laptop that slept.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use nix::sys::signal::Signal;
use support::secs;
use support::tunnel::{Place, Running};

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

    /// Stops the process once it waits for us, for so long, and lets both go on.
    fn stop(&self, running: &Running, seconds: u64, meanwhile: impl Fn()) {
        self.came.recv_timeout(secs(20)).unwrap();
        running.signal(Signal::SIGSTOP);
        // The time itself is what this is about.
        thread::sleep(secs(seconds));
        meanwhile();
        self.allow.send(()).unwrap();
        running.signal(Signal::SIGCONT);
    }
}

#[test]
fn a_tunnel_that_was_stopped_while_it_connected_tries_once_more() {
    let place = Place::new();
    let address = (place.sshd.address, place.sshd.port);
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
    let text = fs::read_to_string(place.path("ssh_config")).unwrap();
    place.write("ssh_config", &format!("Host far\n HostName 127.0.0.1\n Port {}\n{text}", slow.port));
    place.configure(
        "[tunnel.t]\nhost = \"far\"\nconnect-timeout = \"2s\"\n\
         [tunnel.t.forward.db]\nconnect = \"127.0.0.1:1\"\ncheck = \"none\"\n",
    );
    let running = place.start(&["with", "t", "--", "true"]);
    slow.stop(&running, 4, || ());
    running.finish().code(0);
    place.is_clean();
}

#[test]
fn a_tunnel_that_was_stopped_while_it_asked_its_services_asks_again_also_when_its_host_hung_up() {
    let place = Place::new();
    for hangs_up in [false, true] {
        let slow = Slow::listen(|mut stream| stream.write_all(b"220 here\r\n").unwrap());
        place.configure(&format!(
            "[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nconnect = \"127.0.0.1:{}\"\ncheck = \"banner\"\n",
            slow.port
        ));
        let running = place.start(&["with", "t", "--", "true"]);
        slow.stop(&running, 12, || {
            if hangs_up {
                place.break_connections();
            }
        });
        running.finish().code(0).says("220 here");
        place.is_clean();
    }
}
