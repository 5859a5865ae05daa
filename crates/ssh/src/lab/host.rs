//! One host of a lab: who it is, and its accept loop.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use logic::ssh::key::PublicKey;
use russh::keys::PrivateKey;
use russh::server::Config;
use russh::{Disconnect, Limits, MethodKind, MethodSet, SshId, kex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::fault::{Fault, Kind, Parameter};
use super::journal::Journal;
use super::session::Session;
use super::wire::{Control, Spoil, Wire, Wires};
use super::{LabError, channel, raw};

/// A host: its identity, its behaviour, and what it has seen.
pub(super) struct Host {
    /// Counted from 0.
    pub number: usize,
    pub name: String,
    pub address: SocketAddr,
    pub public: PublicKey,
    /// Who may log in.
    pub authorized: Arc<Vec<russh::keys::PublicKey>>,
    pub fault: Option<Fault>,
    /// Where its files are, if it has any.
    pub files: PathBuf,
    journal: Arc<Journal>,
    config: Arc<Config>,
    /// What connections get that have the fault: another key, fewer algorithms, new keys all the time.
    faulty: Arc<Config>,
    connections: AtomicU64,
}

/// The keys of a host.
pub(super) struct Keys {
    pub own: PrivateKey,
    /// The one with which it lies.
    pub other: PrivateKey,
}

impl Host {
    pub(super) fn new(
        number: usize,
        name: String,
        address: SocketAddr,
        keys: Keys,
        fault: Option<Fault>,
        shared: &Shared,
    ) -> Result<Self, LabError> {
        let public = keys.own.public_key().to_bytes().map_err(|error| error.to_string());
        let public = public.and_then(|blob| PublicKey::from_blob(&blob).map_err(|error| error.to_string()));
        let public = public.map_err(|why| LabError::Keys { path: name.clone(), why })?;
        let faulty = fault.as_ref().map(|fault| Arc::new(faulty_config(fault, &keys)));
        let config = Arc::new(config(keys.own));
        Ok(Self {
            number,
            files: shared.files.join(&name),
            name,
            address,
            public,
            authorized: Arc::clone(&shared.authorized),
            fault,
            journal: Arc::clone(&shared.journal),
            faulty: faulty.unwrap_or_else(|| Arc::clone(&config)),
            config,
            connections: AtomicU64::new(0),
        })
    }

    /// The seed of its floods: its number, counted from 1.
    pub(super) fn seed(&self) -> u64 {
        self.number as u64 + 1
    }

    /// A line of the journal.
    pub(super) fn note(&self, connection: u64, event: std::fmt::Arguments<'_>) {
        self.journal.note(&self.name, connection, event);
    }
}

/// What all hosts have in common.
pub(super) struct Shared {
    pub authorized: Arc<Vec<russh::keys::PublicKey>>,
    pub journal: Arc<Journal>,
    pub wires: Arc<Wires>,
    /// The directory above those of the hosts.
    pub files: PathBuf,
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
    let fault = host.fault.clone().filter(|fault| fault.applies(connection));
    let spoil = match &fault {
        Some(Fault { kind: Kind::ForgedKey, .. }) => Spoil::Signature,
        _ => Spoil::Nothing,
    };
    let (wire, control) = Wire::new(stream, spoil, &wires);
    let wire = match &fault {
        Some(fault) => raw::play(fault, wire).await,
        None => Some(wire),
    };
    if let Some(wire) = wire {
        speak(&host, connection, wire, Arc::clone(&control), fault).await;
    }
    let (received, sent) = (control.received(), control.sent());
    host.note(connection, format_args!("close received={received} sent={sent}"));
}

async fn speak(host: &Arc<Host>, connection: u64, wire: Wire, control: Arc<Control>, fault: Option<Fault>) {
    let config = match &fault {
        Some(Fault { kind: Kind::ChangeKey, parameter: Parameter::Every(every), .. })
            if !connection.is_multiple_of(*every) =>
        {
            &host.config
        }
        Some(_) => &host.faulty,
        None => &host.config,
    };
    let farewell = Arc::new(Farewell::default());
    let session = Session::new(Arc::clone(host), connection, control, fault, Arc::clone(&farewell));
    // How a connection ends is in the journal, and is no business of the lab.
    let Ok(mut running) = russh::server::run_stream(Arc::clone(config), wire, session).await else { return };
    tokio::select! {
        _ = &mut running => return,
        () = farewell.wanted.notified() => {}
    }
    let text = channel::HOSTILE_FAREWELL.to_owned();
    let _ = running.handle().disconnect(Disconnect::ByApplication, text, "en".to_owned()).await;
    farewell.queued.notify_one();
    let _ = running.await;
}

/// How a session has its connection ended with a message: it has no handle of itself before the log-in.
#[derive(Default)]
pub(super) struct Farewell {
    pub wanted: Notify,
    pub queued: Notify,
}

/// The configuration of connections that have the fault.
fn faulty_config(fault: &Fault, keys: &Keys) -> Config {
    let mut config = config(match fault.kind {
        Kind::ChangeKey | Kind::Impostor => keys.other.clone(),
        _ => keys.own.clone(),
    });
    match fault.kind {
        Kind::NoAlgorithm => config.preferred.kex = vec![kex::DH_G1_SHA1].into(),
        Kind::Rekey => {
            // More than this the library does not allow, and an hour is its own limit.
            let bytes = usize::try_from(fault.number()).unwrap_or(1 << 30).clamp(1024, 1 << 30);
            config.limits = Limits::new(bytes, bytes, Duration::from_secs(3600));
        }
        _ => {}
    }
    config
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
