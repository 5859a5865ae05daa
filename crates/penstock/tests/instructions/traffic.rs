//! What is counted, one unit of work at a time: the client and the backend are played by one thread, which lets the
//! server come to rest before each byte it sends.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tempfile::TempDir;

use super::callgrind::Counted;
use testing::pki::{Time, self_signed};
use testing::{secs, tools};

/// Both sides of the server.
pub(crate) struct Traffic {
    certificates: TempDir,
    listener: TcpListener,
    web: String,
    secure: String,
    relay: String,
    /// A client's connection that is kept, and the backend's end of what the server keeps.
    client: Option<TcpStream>,
    backend: Option<TcpStream>,
    tls: Option<TlsClient>,
}

impl Traffic {
    /// A backend, and a certificate for the listener that speaks TLS.
    pub(crate) fn prepare() -> Self {
        let certificates = tempfile::tempdir().unwrap();
        self_signed(certificates.path(), "front", &[NAME], Time::Now);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // `accept` ends at this limit too.
        socket2::SockRef::from(&listener).set_read_timeout(Some(secs(20))).unwrap();
        Self {
            certificates,
            listener,
            web: String::new(),
            secure: String::new(),
            relay: String::new(),
            client: None,
            backend: None,
            tls: None,
        }
    }

    /// For a server with nothing else to do: one worker, no health checks, no log. With epoll, whose steps do not depend on how many
    /// results of an io_uring come together.
    pub(crate) fn configuration(&self) -> String {
        format!(
            "[process]\nworkers = 1\nengine = \"epoll\"\ndrain-timeout = \"100ms\"\n[access-log]\ntarget = \"off\"\n\
             [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
             [listener.secure]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
             tls = {{ certificates = \"{}\" }}\n\
             [listener.relay]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n\
             [pool.app]\nbackends = [\"{}\"]\n",
            self.certificates.path().display(),
            self.listener.local_addr().unwrap()
        )
    }

    /// Learns where the server listens.
    pub(crate) fn find(&mut self, server: &Counted) {
        let [web, secure, relay] = ["web", "secure", "relay"].map(|listener| server.address(listener));
        (self.web, self.secure, self.relay) = (web, secure, relay);
    }

    /// A request on a connection that is kept on both sides.
    pub(crate) fn http_kept(&mut self, server: &Counted) {
        let mut client = self.client.take().unwrap_or_else(|| connect(&self.web));
        client.write_all(REQUEST).unwrap();
        self.answer(server);
        receive(&mut client, RESPONSE_END);
        server.settle();
        self.client = Some(client);
    }

    /// A request on a connection of its own; the one to the backend is kept.
    pub(crate) fn http_new(&mut self, server: &Counted) {
        let mut client = connect(&self.web);
        client.write_all(CLOSING_REQUEST).unwrap();
        self.answer(server);
        receive(&mut client, RESPONSE_END);
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "the server closes");
        drop(client);
        server.settle();
    }

    /// A request on a TLS connection that is kept.
    pub(crate) fn https_kept(&mut self, server: &Counted) {
        let mut tls = self.tls.take().unwrap_or_else(|| TlsClient::connect(&self.secure));
        tls.input.write_all(REQUEST).unwrap();
        self.answer(server);
        receive(&mut tls.output, RESPONSE_END);
        server.settle();
        self.tls = Some(tls);
    }

    /// A TCP session: 100 bytes each way, then the client closes.
    pub(crate) fn tcp_session(&mut self, server: &Counted) {
        let mut client = connect(&self.relay);
        let mut backend = accept(&self.listener);
        server.settle();
        client.write_all(&[b'q'; 100]).unwrap();
        backend.read_exact(&mut [0; 100]).unwrap();
        server.settle();
        backend.write_all(&[b'a'; 100]).unwrap();
        client.read_exact(&mut [0; 100]).unwrap();
        server.settle();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(backend.read(&mut [0]).unwrap(), 0, "the end goes on to the backend");
        server.settle();
        drop(backend);
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "the end goes back to the client");
        drop(client);
        server.settle();
    }

    /// The backend's part: reads a request and answers it.
    fn answer(&mut self, server: &Counted) {
        let mut backend = self.backend.take().unwrap_or_else(|| accept(&self.listener));
        receive(&mut backend, b"\r\n\r\n");
        server.settle();
        backend.write_all(RESPONSE).unwrap();
        self.backend = Some(backend);
    }
}

/// `openssl s_client`, which sends what it is given and writes what it gets.
struct TlsClient {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
}

impl TlsClient {
    fn connect(address: &str) -> Self {
        let mut command = Command::new(tools::program("openssl"));
        command.args([
            "s_client",
            "-quiet",
            "-verify_quiet",
            "-tls1_3",
            "-servername",
            NAME,
            "-connect",
            address,
        ]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output }
    }
}

impl Drop for TlsClient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect(address: &str) -> TcpStream {
    limited(TcpStream::connect(address).unwrap())
}

fn accept(listener: &TcpListener) -> TcpStream {
    limited(listener.accept().expect("the server connects to the backend").0)
}

fn limited(stream: TcpStream) -> TcpStream {
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(secs(20))).unwrap();
    stream
}

/// Reads until what came ends with `end`.
#[track_caller]
fn receive(from: &mut impl Read, end: &[u8]) {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    while !bytes.ends_with(end) {
        let read = from.read(&mut part).unwrap();
        assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&part[..read]);
    }
}

const NAME: &str = "bench.test";
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: bench.test\r\nUser-Agent: penstock-bench\r\n\r\n";
const CLOSING_REQUEST: &[u8] =
    b"GET / HTTP/1.1\r\nHost: bench.test\r\nUser-Agent: penstock-bench\r\nConnection: close\r\n\r\n";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\n\
    0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456-OK";
const RESPONSE_END: &[u8] = b"6-OK";
