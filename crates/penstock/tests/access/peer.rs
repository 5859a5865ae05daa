//! A client that can do wrong: lines over TLS, and SASL step by step.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use access::sasl::gs2::{BindingFlag, TLS_EXPORTER};
use access::sasl::scram::Client;
use base64ct::{Base64, Encoding};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use testing::pki::Pair;
use testing::secs;

use super::site::Site;

pub(crate) struct Peer(BufReader<Connection>);

enum Connection {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Read for Connection {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.read(into),
            Self::Tls(tls) => tls.read(into),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.write(from),
            Self::Tls(tls) => tls.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(tcp) => tcp.flush(),
            Self::Tls(tls) => tls.flush(),
        }
    }
}

fn tcp(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(secs(20))).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn tcp_from(port: u16, from: [u8; 4]) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    socket.connect(&SocketAddr::from(([127, 0, 0, 1], port)).into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(secs(20))).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn client_config(
    authority: &Path,
    identity: Option<&Pair>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    let builder = builder.with_root_certificates(roots);
    match identity {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let chain = vec![CertificateDer::from_pem_file(&pair.certificate).unwrap()];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(&pair.key).unwrap()).unwrap()
        }
    }
}

impl Peer {
    pub(crate) fn plain(site: &Site) -> Self {
        Self(BufReader::new(Connection::Plain(tcp(site.port))))
    }

    /// Connects with TLS, and reads the greeting.
    pub(crate) fn connect(site: &Site, identity: Option<&Pair>) -> Self {
        let mut peer = Self::over(site, tcp(site.port), identity, rustls::ALL_VERSIONS);
        assert!(peer.line().starts_with("220 penstock"), "the greeting");
        peer
    }

    /// The same from an address of this machine.
    pub(crate) fn connect_from(site: &Site, from: [u8; 4], identity: Option<&Pair>) -> Self {
        let mut peer = Self::over(site, tcp_from(site.port, from), identity, rustls::ALL_VERSIONS);
        assert!(peer.line().starts_with("220 penstock"), "the greeting for {from:?}");
        peer
    }

    /// `None`: the server has closed the connection, before or after it was made.
    pub(crate) fn try_connect_from(site: &Site, from: [u8; 4]) -> Option<Self> {
        let mut peer = Self::over(site, tcp_from(site.port, from), None, rustls::ALL_VERSIONS);
        peer.line().starts_with("220 penstock").then_some(peer)
    }

    /// `None`: the server has closed the connection.
    pub(crate) fn try_connect(site: &Site) -> Option<Self> {
        let mut peer = Self::over(site, tcp(site.port), None, rustls::ALL_VERSIONS);
        peer.line().starts_with("220 penstock").then_some(peer)
    }

    /// Connects with TLS 1.2.
    pub(crate) fn old(site: &Site) -> Self {
        let mut peer = Self::over(site, tcp(site.port), None, &[&rustls::version::TLS12]);
        assert!(peer.line().starts_with("220 penstock"), "the greeting");
        peer
    }

    fn over(
        site: &Site,
        tcp: TcpStream,
        identity: Option<&Pair>,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> Self {
        let config = client_config(&site.file("ca.pem"), identity, versions);
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        Self(BufReader::new(Connection::Tls(Box::new(StreamOwned::new(connection, tcp)))))
    }

    /// Begins TLS on the same connection.
    pub(crate) fn start_tls(self, site: &Site) -> Self {
        let Connection::Plain(tcp) = self.0.into_inner() else { panic!() };
        Self::over(site, tcp, None, rustls::ALL_VERSIONS)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.get_mut().write_all(bytes)?;
        self.0.get_mut().flush()
    }

    /// The next line; empty at the end of the connection.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        // A connection reset counts as an end.
        let _ = self.0.read_line(&mut line);
        line.trim_end().to_owned()
    }

    /// Sends a line and reads the answer, of several lines the last one.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        // The server may have closed the connection: then the answer is empty.
        let _ = self.send(format!("{line}\r\n").as_bytes());
        loop {
            let answer = self.line();
            if answer.as_bytes().get(3) != Some(&b'-') {
                return answer;
            }
        }
    }

    /// Mechanisms that the server offers.
    pub(crate) fn mechanisms(&mut self) -> String {
        self.send(b"EHLO test\r\n").unwrap();
        let mut found = String::new();
        loop {
            let line = self.line();
            if let Some(list) = line[4..].strip_prefix("AUTH ") {
                list.clone_into(&mut found);
            }
            if line.starts_with("250 ") {
                return found;
            }
        }
    }

    pub(crate) fn exporter(&self) -> Vec<u8> {
        let Connection::Tls(tls) = self.0.get_ref() else { panic!() };
        let label = b"EXPORTER-Channel-Binding";
        tls.conn.export_keying_material(vec![0; 32], label, Some(b"")).unwrap()
    }

    /// Logs in by SCRAM; returns the last answer.
    pub(crate) fn scram(&mut self, mechanism: &str, name: &str, password: &str) -> String {
        let (flag, data) = match mechanism.ends_with("-PLUS") {
            true => (BindingFlag::Uses(TLS_EXPORTER.to_owned()), self.exporter()),
            false => (BindingFlag::Cannot, Vec::new()),
        };
        self.scram_with(mechanism, name, password, None, (flag, &data))
    }

    pub(crate) fn scram_with(
        &mut self,
        mechanism: &str,
        name: &str,
        password: &str,
        authzid: Option<&str>,
        (flag, data): (BindingFlag, &[u8]),
    ) -> String {
        let client = Client::new(name, authzid, flag, data, "fyko+d2lbbFgONRv9qkxdawL").unwrap();
        let first = Base64::encode_string(client.first.as_bytes());
        let challenge = match self.challenge(&format!("AUTH {mechanism} {first}")) {
            Ok(challenge) => challenge,
            Err(answer) => return answer,
        };
        let awaiting = client.respond(&challenge, password).unwrap();
        match self.challenge(&Base64::encode_string(awaiting.last.as_bytes())) {
            Ok(last) => awaiting.verify(&last).unwrap(),
            Err(answer) => return answer,
        }
        self.ask("")
    }

    /// Sends a line whose answer is a challenge, or something else.
    pub(crate) fn challenge(&mut self, line: &str) -> Result<Vec<u8>, String> {
        let answer = self.ask(line);
        match answer.strip_prefix("334") {
            Some(text) => Ok(Base64::decode_vec(text.trim_start()).unwrap()),
            None => Err(answer),
        }
    }

    /// Gives a command after the log-in; returns its first line and its text.
    pub(crate) fn command(&mut self, command: &str) -> (String, String) {
        self.send(format!("{command}\n").as_bytes()).unwrap();
        let first = self.line();
        let mut text = String::new();
        loop {
            let mut line = String::new();
            let read = self.0.read_line(&mut line).unwrap();
            assert!(read > 0, "closed inside an answer: {first}\n{text}");
            if line == ".\n" {
                return (first, text);
            }
            text += &line;
        }
    }
}
