//! One host of a lab: its identity, configuration and journal.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use hosts::ssh::key::PublicKey;
use russh::keys::PrivateKey;
use russh::server::Config;
use russh::{Limits, MethodKind, MethodSet, SshId, kex};

use crate::error::LabError;
use crate::fault::{Fault, Kind};
use crate::journal::Journal;
use crate::wire::OpenConnections;

pub(crate) struct Host {
    pub number: usize,
    pub name: String,
    pub address: SocketAddr,
    pub public: PublicKey,
    pub authorized: Arc<Vec<russh::keys::PublicKey>>,
    pub fault: Option<Fault>,
    pub files: PathBuf,
    journal: Arc<Journal>,
    pub config: Arc<Config>,
    /// Configuration of the connections that have the fault: another key, fewer algorithms, or frequent new key
    /// exchanges.
    pub faulty: Arc<Config>,
    pub connections: AtomicU64,
}

pub(crate) struct Keys {
    pub own: PrivateKey,
    /// Key of the faults with a false identity.
    pub other: PrivateKey,
}

impl Host {
    pub(crate) fn new(
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

    /// Seed of the host's `flood`: its number, counted from 1.
    pub(crate) fn seed(&self) -> u64 {
        self.number as u64 + 1
    }

    /// Writes a line to the journal.
    pub(crate) fn note(&self, connection: u64, event: std::fmt::Arguments<'_>) {
        self.journal.note(&self.name, connection, event);
    }
}

/// Data that all hosts share.
pub(crate) struct Shared {
    pub authorized: Arc<Vec<russh::keys::PublicKey>>,
    pub journal: Arc<Journal>,
    pub wires: Arc<OpenConnections>,
    /// Parent of the hosts' own directories.
    pub files: PathBuf,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {}", self.name, self.address)
    }
}

fn faulty_config(fault: &Fault, keys: &Keys) -> Config {
    let mut config = config(match fault.kind {
        Kind::ChangeKey | Kind::WrongHost => keys.other.clone(),
        _ => keys.own.clone(),
    });
    match fault.kind {
        Kind::NoAlgorithm => config.preferred.kex = vec![kex::DH_G1_SHA1].into(),
        Kind::Rekey => {
            // 1 GiB is the library's limit; its limit of time is one hour.
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
        // A lab has no secrets, so it does not delay its answer to a failed log-in.
        auth_rejection_time: Duration::ZERO,
        auth_rejection_time_initial: Some(Duration::ZERO),
        keys: vec![key],
        max_auth_attempts: 6,
        inactivity_timeout: None,
        nodelay: true,
        ..Config::default()
    }
}
