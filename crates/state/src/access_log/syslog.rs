//! Sends lines of the access log to a syslog receiver: `crates/logic/src/syslog.rs` frames them.
//!
//! It runs on the writer thread only. While the receiver is away, [`Sender::write`] fails at once, until the next attempt
//! is due: the writer keeps a bounded number of lines meanwhile.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use config::types::{Syslog, SyslogAddress};
use logic::syslog::{self, Framing, Header};

use super::lines::Lines;

/// Time for a connection to be opened.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Shortest and longest pause between attempts.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Time after which a receiver that came back counts as steady.
const STEADY: Duration = Duration::from_secs(60);

/// Bytes of frames that are sent at once.
const AT_ONCE: usize = 64 * 1024;

/// Time for a host to say that nothing receives datagrams there.
const REFUSAL: Duration = Duration::from_millis(50);

pub(super) struct Sender {
    settings: Syslog,
    lines: Lines,
    header: Header,
    socket: Option<Socket>,
    /// Bytes of the first line's frame that were sent: a stream may take a part of it.
    sent: usize,
    away: Option<Away>,
    /// Pause after the next failure.
    pause: Duration,
    connected: Instant,
}

/// Since when and why nothing can be sent.
struct Away {
    next: Instant,
    why: String,
}

enum Socket {
    Udp(UdpSocket),
    Tcp(TcpStream),
    Datagram(UnixDatagram),
    Stream(UnixStream),
}

impl Sender {
    pub(super) fn new(settings: &Syslog, lines: Lines) -> Self {
        // Without a name, the receiver takes the address of the sender.
        let host = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
        let host = Some(host.trim()).filter(|host| syslog::is_field(host, 255)).unwrap_or("-").to_owned();
        let header = Header {
            priority: settings.facility * 8 + settings.severity,
            host,
            app_name: settings.app_name.clone(),
            process_id: std::process::id(),
            message_id: lines.message_id(),
        };
        let (settings, connected) = (settings.clone(), Instant::now());
        Self { settings, lines, header, socket: None, sent: 0, away: None, pause: PAUSE.0, connected }
    }

    /// Sends complete lines. Returns the bytes of those that were handed over; an error if there is none.
    pub(super) fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        if let Some(away) = &self.away
            && Instant::now() < away.next
        {
            return Err(io::Error::other(away.why.clone()));
        }
        let result = self.attempt(lines);
        match &result {
            Ok(_) => {
                self.away = None;
                if self.connected.elapsed() >= STEADY {
                    self.pause = PAUSE.0;
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => {
                (self.socket, self.sent) = (None, 0);
                self.away = Some(Away { next: Instant::now() + self.pause, why: self.words(error) });
                self.pause = (self.pause * 2).min(PAUSE.1);
            }
        }
        result.map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted => error,
            _ => io::Error::other(self.words(&error)),
        })
    }

    fn words(&self, error: &io::Error) -> String {
        format!("the receiver {} is away: {error}", self.settings.to)
    }

    fn attempt(&mut self, lines: &[u8]) -> io::Result<usize> {
        let was_away = self.away.is_some();
        let socket = match &mut self.socket {
            Some(socket) => socket,
            None => {
                self.connected = Instant::now();
                self.sent = 0;
                self.socket.insert(Socket::open(&self.settings.to)?)
            }
        };
        socket.check()?;
        let framing = socket.framing();
        let longest = match framing {
            Framing::Datagram => self.settings.max_length.min(LARGEST_DATAGRAM),
            Framing::Counted | Framing::Lines => self.settings.max_length,
        };
        let mut frames = Vec::new();
        let mut taken = 0;
        // For each line, the end of its frame and its own end.
        let mut ends = Vec::new();
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let mut text = line.strip_suffix(b"\n").unwrap_or(line);
            if self.lines == Lines::Events {
                let (severity, rest) = syslog::severity_of(text);
                self.header.priority =
                    self.settings.facility * 8 + severity.unwrap_or(self.settings.severity);
                text = rest;
            }
            syslog::frame(&self.header, framing, syslog::time_of(text), text, longest, &mut frames);
            taken += line.len();
            ends.push((frames.len(), taken));
            if framing == Framing::Datagram || frames.len() >= AT_ONCE {
                break;
            }
        }
        let sent = socket.send(&frames[self.sent.min(frames.len())..])?;
        // A receiver of datagrams that came back is tried with one line: a refusal follows it.
        if was_away && matches!(socket, Socket::Udp(_)) {
            thread::sleep(REFUSAL);
            socket.check()?;
        }
        let reached = self.sent + sent;
        let whole = ends.iter().rev().find(|(frame, _)| *frame <= reached);
        match whole {
            Some((frame, line)) => {
                self.sent = reached - frame;
                Ok(*line)
            }
            None => {
                self.sent = reached;
                Err(ErrorKind::WouldBlock.into())
            }
        }
    }
}

/// Largest payload of UDP over IPv4.
const LARGEST_DATAGRAM: usize = 65_507;

impl Socket {
    fn open(to: &SyslogAddress) -> io::Result<Self> {
        Ok(match to {
            SyslogAddress::Udp { host, port } => {
                let address = resolve(host, *port)?;
                let any: SocketAddr = match address {
                    SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
                    SocketAddr::V6(_) => ([0u16; 8], 0).into(),
                };
                let socket = UdpSocket::bind(any)?;
                socket.connect(address)?;
                socket.set_nonblocking(true)?;
                Self::Udp(socket)
            }
            SyslogAddress::Tcp { host, port } => {
                let stream = TcpStream::connect_timeout(&resolve(host, *port)?, CONNECT_LIMIT)?;
                stream.set_nonblocking(true)?;
                Self::Tcp(stream)
            }
            SyslogAddress::Unix(path) => {
                let socket = UnixDatagram::unbound()?;
                match socket.connect(path) {
                    Ok(()) => {
                        socket.set_nonblocking(true)?;
                        Self::Datagram(socket)
                    }
                    // It is a socket of streams.
                    Err(error) if error.raw_os_error() == Some(nix::libc::EPROTOTYPE) => {
                        // A connection that blocks would wait for a receiver that hangs, without a limit.
                        let stream = sys::socket::connect_unix(path).map_err(|error| match error.kind() {
                            ErrorKind::WouldBlock => {
                                io::Error::other("it accepts no connection: its queue is full")
                            }
                            _ => error,
                        })?;
                        Self::Stream(stream)
                    }
                    Err(error) => return Err(error),
                }
            }
        })
    }

    fn framing(&self) -> Framing {
        match self {
            Self::Udp(_) | Self::Datagram(_) => Framing::Datagram,
            Self::Tcp(_) => Framing::Counted,
            Self::Stream(_) => Framing::Lines,
        }
    }

    /// Returns the error of earlier data, or of a stream that the receiver closed: what is written to such a stream is lost
    /// without an error.
    fn check(&mut self) -> io::Result<()> {
        let mut unused = [0; 256];
        let read = match self {
            Self::Udp(socket) => return socket.take_error()?.map_or(Ok(()), Err),
            Self::Datagram(_) => return Ok(()),
            Self::Tcp(stream) => stream.read(&mut unused),
            Self::Stream(stream) => stream.read(&mut unused),
        };
        match read {
            Ok(0) => Err(io::Error::new(ErrorKind::ConnectionAborted, "it closed the connection")),
            Ok(_) => Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn send(&mut self, frames: &[u8]) -> io::Result<usize> {
        let result = match self {
            Self::Udp(socket) => socket.send(frames),
            Self::Datagram(socket) => socket.send(frames),
            Self::Tcp(stream) => stream.write(frames),
            Self::Stream(stream) => stream.write(frames),
        };
        // The queue of the receiver, or of a network device, is full.
        let full = Some(nix::libc::ENOBUFS);
        result
            .map_err(|error| if error.raw_os_error() == full { ErrorKind::WouldBlock.into() } else { error })
    }
}

/// The first address of a name. The look-up may take long: it delays only the log.
fn resolve(host: &str, port: u16) -> io::Result<SocketAddr> {
    let found = (host, port).to_socket_addrs()?.next();
    found.ok_or_else(|| io::Error::new(ErrorKind::NotFound, "its name has no address"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn sender(to: SyslogAddress) -> Sender {
        let settings =
            Syslog { to, facility: 16, severity: 6, app_name: "test".to_owned(), max_length: 1024 };
        Sender::new(&settings, Lines::Sessions)
    }

    #[test]
    fn a_receiver_that_reads_late_gets_whole_frames_in_order() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut sender = sender(SyslogAddress::Tcp { host: "127.0.0.1".to_owned(), port });
        let lines: String = (0..200_000).map(|number| format!("line {number}\n")).collect();
        let mut rest = lines.as_bytes();
        let mut full = 0;
        let (is_full, begins) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // It begins when the receiver is full.
            begins.recv_timeout(Duration::from_secs(60)).expect("the receiver is full");
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            all
        });
        while !rest.is_empty() {
            match sender.write(rest) {
                Ok(taken) => rest = &rest[taken..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    full += 1;
                    let _ = is_full.send(());
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("{error}"),
            }
        }
        drop(sender);
        assert!(full > 0, "the receiver was never full");
        let all = reader.join().unwrap();
        let mut at = 0;
        for number in 0..200_000 {
            let blank = all[at..].iter().position(|byte| *byte == b' ').unwrap();
            let length: usize = std::str::from_utf8(&all[at..at + blank]).unwrap().parse().unwrap();
            let message = &all[at + blank + 1..][..length];
            assert!(
                message.ends_with(format!(" test {} access - line {number}", std::process::id()).as_bytes())
            );
            at += blank + 1 + length;
        }
        assert_eq!(at, all.len());
    }

    /// Ends the pause before the next attempt.
    fn make_due(sender: &mut Sender) {
        sender.away.as_mut().unwrap().next = Instant::now();
    }

    #[test]
    fn a_receiver_that_accepts_no_connection_is_away_and_holds_up_no_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let listener = UnixListener::bind(&path).unwrap();
        nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
        let mut waiting = Vec::new();
        while let Ok(stream) = sys::socket::connect_unix(&path) {
            waiting.push(stream);
        }
        let mut sender = sender(SyslogAddress::Unix(path));
        let (said, heard) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let error = sender.write(b"x\n").unwrap_err();
            said.send((sender, error.to_string())).unwrap();
        });
        let (mut sender, error) = heard.recv_timeout(Duration::from_secs(10)).expect("it waits");
        assert!(error.contains("is away: it accepts no connection: its queue is full"), "{error}");
        // The receiver goes on.
        for _ in &waiting {
            drop(listener.accept().unwrap());
        }
        make_due(&mut sender);
        assert_eq!(sender.write(b"x\n").unwrap(), 2);
    }

    #[test]
    fn while_the_receiver_is_away_no_attempt_is_made_before_it_is_due() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let mut sender = sender(SyslogAddress::Tcp { host: "127.0.0.1".to_owned(), port });
        let error = sender.write(b"x\n").unwrap_err().to_string();
        assert!(error.contains(&format!("syslog+tcp://127.0.0.1:{port} is away: ")), "{error}");
        let _back = TcpListener::bind(("127.0.0.1", port)).unwrap();
        // However late this test is.
        sender.away.as_mut().unwrap().next += Duration::from_secs(3600);
        assert!(sender.write(b"x\n").is_err(), "it is not due");
        make_due(&mut sender);
        assert_eq!(sender.write(b"x\n").unwrap(), 2);
        assert_eq!(sender.pause, PAUSE.0 * 2, "a receiver that goes away again is tried less often");
    }
}
