//! A TLS client that encrypts records which no TLS library sends.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::cipher::{
    AeadKey, Iv, KeyBlockShape, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundOpaqueMessage,
    OutboundPlainMessage, Tls12AeadAlgorithm, Tls13AeadAlgorithm, UnsupportedOperationError,
};
use rustls::crypto::{CipherSuiteCommon, CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, ConnectionTrafficSecrets, Error, RootCertStore, SupportedCipherSuite,
    SupportedProtocolVersion, Tls12CipherSuite, Tls13CipherSuite,
};

use crate::secs;

thread_local! {
    /// Content type and content of the record that is encrypted next.
    static FORGED: RefCell<Option<(u8, Vec<u8>)>> = const { RefCell::new(None) };
}

pub struct Forger {
    tcp: TcpStream,
    connection: ClientConnection,
}

impl Forger {
    /// Performs a handshake; trusts `authority`.
    #[track_caller]
    pub fn connect(
        address: &str,
        name: &str,
        authority: &Path,
        version: &'static SupportedProtocolVersion,
    ) -> Self {
        let usual = aws_lc_rs::default_provider();
        let cipher_suites = usual.cipher_suites.iter().map(|suite| forging(*suite)).collect();
        let provider = Arc::new(CryptoProvider { cipher_suites, ..usual });
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
        let builder =
            ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
        let config = builder.with_root_certificates(roots).with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut tcp = TcpStream::connect(address).unwrap();
        tcp.set_read_timeout(Some(secs(20))).unwrap();
        tcp.set_nodelay(true).unwrap();
        connection.complete_io(&mut tcp).unwrap();
        Self { tcp, connection }
    }

    /// Queues a record of this content type.
    pub fn queue(&mut self, kind: u8, content: &[u8]) {
        FORGED.set(Some((kind, content.to_vec())));
        self.connection.writer().write_all(b"replaced").unwrap();
    }

    /// Sends what is queued, in one piece if the kernel takes it.
    #[track_caller]
    pub fn send(&mut self) {
        let mut bytes = Vec::new();
        while self.connection.wants_write() {
            self.connection.write_tls(&mut bytes).unwrap();
        }
        self.tcp.write_all(&bytes).unwrap();
    }

    /// Waits until the server has sent something, and leaves it unread.
    #[track_caller]
    pub fn await_answer(&self) {
        assert_eq!(self.tcp.peek(&mut [0]).unwrap(), 1);
    }

    /// Reads the next record as it is on the wire.
    #[track_caller]
    pub fn record(&mut self) -> Vec<u8> {
        let mut record = vec![0; 5];
        self.tcp.read_exact(&mut record).unwrap();
        let length = u16::from_be_bytes([record[3], record[4]]);
        record.resize(5 + usize::from(length), 0);
        self.tcp.read_exact(&mut record[5..]).unwrap();
        record
    }

    /// Reads until the server ends the connection, and returns the alert or other error that it ended with. `None` if
    /// it ended with close_notify or none.
    #[track_caller]
    pub fn error(&mut self) -> Option<Error> {
        loop {
            if self.connection.read_tls(&mut self.tcp).unwrap() == 0 {
                return None;
            }
            if let Err(error) = self.connection.process_new_packets() {
                return Some(error);
            }
        }
    }
}

fn forging(suite: SupportedCipherSuite) -> SupportedCipherSuite {
    let of = |common: &CipherSuiteCommon| CipherSuiteCommon {
        suite: common.suite,
        hash_provider: common.hash_provider,
        confidentiality_limit: common.confidentiality_limit,
    };
    match suite {
        SupportedCipherSuite::Tls12(suite) => {
            SupportedCipherSuite::Tls12(Box::leak(Box::new(Tls12CipherSuite {
                common: of(&suite.common),
                prf_provider: suite.prf_provider,
                kx: suite.kx,
                sign: suite.sign,
                aead_alg: Box::leak(Box::new(Forging(suite.aead_alg))),
            })))
        }
        SupportedCipherSuite::Tls13(suite) => {
            SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
                common: of(&suite.common),
                hkdf_provider: suite.hkdf_provider,
                aead_alg: Box::leak(Box::new(Forging(suite.aead_alg))),
                quic: None,
            })))
        }
    }
}

struct Forging<T>(T);

impl MessageEncrypter for Forging<Box<dyn MessageEncrypter>> {
    fn encrypt(
        &mut self,
        message: OutboundPlainMessage<'_>,
        sequence: u64,
    ) -> Result<OutboundOpaqueMessage, Error> {
        let Some((kind, content)) = FORGED.take() else { return self.0.encrypt(message, sequence) };
        let payload = OutboundChunks::Single(&content);
        let forged = OutboundPlainMessage { typ: kind.into(), version: message.version, payload };
        self.0.encrypt(forged, sequence)
    }

    fn encrypted_payload_len(&self, length: usize) -> usize {
        self.0.encrypted_payload_len(length)
    }
}

impl Tls12AeadAlgorithm for Forging<&'static dyn Tls12AeadAlgorithm> {
    fn encrypter(&self, key: AeadKey, iv: &[u8], extra: &[u8]) -> Box<dyn MessageEncrypter> {
        Box::new(Forging(self.0.encrypter(key, iv, extra)))
    }

    fn decrypter(&self, key: AeadKey, iv: &[u8]) -> Box<dyn MessageDecrypter> {
        self.0.decrypter(key, iv)
    }

    fn key_block_shape(&self) -> KeyBlockShape {
        self.0.key_block_shape()
    }

    fn extract_keys(
        &self,
        _: AeadKey,
        _: &[u8],
        _: &[u8],
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        Err(UnsupportedOperationError)
    }
}

impl Tls13AeadAlgorithm for Forging<&'static dyn Tls13AeadAlgorithm> {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        Box::new(Forging(self.0.encrypter(key, iv)))
    }

    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        self.0.decrypter(key, iv)
    }

    fn key_len(&self) -> usize {
        self.0.key_len()
    }

    fn extract_keys(&self, _: AeadKey, _: Iv) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        Err(UnsupportedOperationError)
    }
}
