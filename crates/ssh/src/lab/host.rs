//! One host of a lab: who it is, and its accept loop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use logic::ssh::key::PublicKey;
use russh::keys::PrivateKey;
use russh::server::Config;
use russh::{MethodKind, MethodSet, SshId};
use tokio::net::{TcpListener, TcpStream};

use super::LabError;
use super::journal::Journal;
use super::session::Session;
use super::wire::{Wire, Wires};

/// A host: its identity, its behaviour, and what it has seen.
pub(super) struct Host {
    /// Counted from 0.
    pub number: usize,
    pub name: String,
    pub address: SocketAddr,
    pub public: PublicKey,
    /// Who may log in.
    pub authorized: Arc<Vec<russh::keys::PublicKey>>,
    journal: Arc<Journal>,
    config: Arc<Config>,
    connections: AtomicU64,
}

impl Host {
    pub(super) fn new(
        number: usize,
        name: String,
        address: SocketAddr,
        key: PrivateKey,
        journal: Arc<Journal>,
        authorized: Arc<Vec<russh::keys::PublicKey>>,
    ) -> Result<Self, LabError> {
        let public = key.public_key().to_bytes().map_err(|error| error.to_string());
        let public = public.and_then(|blob| PublicKey::from_blob(&blob).map_err(|error| error.to_string()));
        let public = public.map_err(|why| LabError::Keys { path: name.clone(), why })?;
        let config = Arc::new(config(key));
        let connections = AtomicU64::new(0);
        Ok(Self { number, name, address, public, authorized, journal, config, connections })
    }

    /// A line of the journal.
    pub(super) fn note(&self, connection: u64, event: std::fmt::Arguments<'_>) {
        self.journal.note(&self.name, connection, event);
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {}", self.name, self.address)
    }
}

/// Serves a host until the task is aborted.
pub(super) async fn accept(host: Arc<Host>, listener: TcpListener, wires: Arc<Wires>) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let connection = host.connections.fetch_add(1, Ordering::Relaxed) + 1;
                tokio::spawn(serve(Arc::clone(&host), connection, stream, from, Arc::clone(&wires)));
            }
            // Out of descriptors: it passes when others close.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn serve(host: Arc<Host>, connection: u64, stream: TcpStream, from: SocketAddr, wires: Arc<Wires>) {
    host.note(connection, format_args!("connect from={from}"));
    let _ = stream.set_nodelay(true);
    let (wire, control) = Wire::new(stream, &wires);
    let session = Session::new(Arc::clone(&host), connection);
    // How a connection ends is in the journal, and is no business of the lab.
    if let Ok(running) = russh::server::run_stream(Arc::clone(&host.config), wire, session).await {
        let _ = running.await;
    }
    let (received, sent) = (control.received(), control.sent());
    host.note(connection, format_args!("close received={received} sent={sent}"));
}

fn config(key: PrivateKey) -> Config {
    Config {
        server_id: SshId::Standard(concat!("SSH-2.0-PenstockLab_", env!("CARGO_PKG_VERSION")).into()),
        methods: MethodSet::from(&[MethodKind::PublicKey][..]),
        // Waiting is for servers that have something to protect.
        auth_rejection_time: Duration::ZERO,
        auth_rejection_time_initial: Some(Duration::ZERO),
        keys: vec![key],
        max_auth_attempts: 6,
        inactivity_timeout: None,
        nodelay: true,
        ..Config::default()
    }
}
