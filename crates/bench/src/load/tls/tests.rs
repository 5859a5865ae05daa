use std::fs;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, ServerSessionMemoryCache};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::task::LocalSet;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::load::connector::{Curve, NAME};
use crate::load::gauge::{Tally, Window};
use crate::load::until_counted;
use crate::target::front::TlsVersion;

struct Site {
    directory: tempfile::TempDir,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Site {
    fn new() -> Self {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("crt"), made.cert.pem()).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        Site { directory, certificate: made.cert.der().clone(), key }
    }

    fn client(&self, version: TlsVersion, resumption: Resumption) -> Client {
        Client { certificate: self.directory.path().join("crt"), version, resumption, group: Curve::X25519 }
    }

    /// Starts a TLS server, with or without resumption as `sessions` says, until the test ends.
    async fn start(&self, sessions: Sessions) -> Address {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key())
            .unwrap();
        match sessions {
            Sessions::Kept => config.session_storage = ServerSessionMemoryCache::new(1000),
            Sessions::None => {
                config.session_storage = Arc::new(NoServerSessionStorage {});
                config.send_tls13_tickets = 0;
            }
        }
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        task::spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                task::spawn_local(async move {
                    let mut stream = acceptor.accept(stream).await?;
                    let _end = stream.read(&mut [0; 1]).await?;
                    stream.shutdown().await
                });
            }
        });
        Address::Tcp(address)
    }
}

#[derive(Clone, Copy)]
enum Sessions {
    Kept,
    None,
}

fn run(server: &Site, client: &Client, sessions: Sessions, duration: Duration) -> io::Result<Tally> {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let address = server.start(sessions).await;
        let window = Window { warm_up: Duration::ZERO, duration };
        let gauge = Gauge::new(window, Vec::new());
        Load { server: address, client: client.clone(), connections: 2 }.start(&gauge).await?;
        gauge.run().await;
        Ok(gauge.tally())
    })
}

#[test]
fn handshakes_are_full_or_resumed_as_asked_in_both_versions() {
    let site = Site::new();
    for version in [TlsVersion::V12, TlsVersion::V13] {
        for resumption in [Resumption::Never, Resumption::Always] {
            let client = site.client(version, resumption);
            let tally = until_counted(|window| run(&site, &client, Sessions::Kept, window).unwrap());
            assert_eq!(tally.first_error, None, "{version:?} {resumption:?}");
            assert!(tally.units > 0, "{version:?} {resumption:?}");
        }
    }
}

#[test]
fn a_server_that_does_not_resume_is_not_counted_as_if_it_did() {
    let site = Site::new();
    for version in [TlsVersion::V12, TlsVersion::V13] {
        let client = site.client(version, Resumption::Always);
        let tally = until_counted(|window| run(&site, &client, Sessions::None, window).unwrap());
        assert_eq!(tally.units, 0, "{version:?}");
        assert!(tally.first_error.unwrap().contains("not Resumed"), "{version:?}");
    }
}

#[test]
fn a_server_with_another_certificate_is_an_error() {
    let (site, other) = (Site::new(), Site::new());
    let client = other.client(TlsVersion::V13, Resumption::Never);
    let error = run(&site, &client, Sessions::Kept, Duration::from_millis(100)).unwrap_err();
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
}
