//! A TCP backend whose backlog is full: connects hang, as with a host that drops packets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{Backlog, listen};

pub struct FullBacklog {
    address: SocketAddr,
    listener: TcpListener,
    /// They fill the backlog.
    waiting: Vec<TcpStream>,
}

impl FullBacklog {
    /// # Panics
    /// The backlog does not fill.
    #[must_use]
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Again, with the smallest queue there is.
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let mut waiting = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
            waiting.push(stream);
            assert!(waiting.len() < 64, "the backlog does not fill");
        }
        Self { address, listener, waiting }
    }

    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Accepts from now on. The first connection that sends `length` bytes gets them back; returns the address that it came from.
    ///
    /// # Panics
    /// A connection fails.
    #[must_use]
    pub fn echo(self, length: usize) -> SocketAddr {
        let Self { listener, waiting, .. } = self;
        drop(waiting);
        let (tell, told) = std::sync::mpsc::channel();
        // It ends with the test.
        thread::spawn(move || {
            for talk in listener.incoming() {
                let (mut talk, mut heard) = (talk.unwrap(), vec![0; length]);
                // Those that have filled the backlog send nothing.
                if talk.read_exact(&mut heard).is_ok() {
                    talk.write_all(&heard).unwrap();
                    let _ = tell.send(talk.peer_addr().unwrap());
                }
            }
        });
        told.recv_timeout(Duration::from_secs(60)).expect("a connection that sends")
    }
}
