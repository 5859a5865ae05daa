//! The engine that is our own SSH client: settings come from `ssh_config`, and hosts are proved by their pins.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use hosts::fleet::ending::{Failure, Phase, Reason};
use hosts::ssh::config::Asked;
use hosts::tunnel::plan::{Endpoint, Forward, Listen, Tunnel, Way};
use ssh::identity::{Identities, Places as IdentityPlaces, Store};
use ssh::keys::NoPrompt;
use ssh::{
    AgentLimits, Client, ConfigFiles, HostVerifier, Keys, Listener, Purpose, Session, SshConfig, Target,
};
use tokio::sync::mpsc;

use super::awake::within;
use super::engine::{Boxed, Duplex, Engine, Incoming, Link, failure, said};
use super::relay::causes;

/// Our own client. It reads the configuration and the identities for each connection, so that corrections take effect
/// at the next one. Decrypted keys are kept in memory.
pub struct Native {
    asking: Asking,
    keys: OnceLock<Arc<Keys>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asking {
    /// A passphrase is asked for on the terminal or by `SSH_ASKPASS`.
    Person,
    Never,
}

impl Native {
    /// Creates the engine. Nothing is read or opened yet.
    #[must_use]
    pub fn new(asking: Asking) -> Self {
        Self { asking, keys: OnceLock::new() }
    }

    async fn link(&self, tunnel: &Tunnel) -> Result<NativeLink, Failure> {
        let prepared = tokio::task::spawn_blocking({
            let tunnel = tunnel.clone();
            move || prepare(&tunnel)
        });
        // A command of `Match exec` may not end.
        let prepared = within(tunnel.connect_timeout, prepared).await;
        let (target, identities) = prepared
            .map_err(|_| {
                let limit = tunnel.connect_timeout.as_secs_f32();
                configuration(format!("reading the configuration of ssh took longer than {limit} s"))
            })?
            .map_err(|_| configuration("reading the configuration of ssh was cancelled".to_owned()))??;
        let keys = self.keys.get_or_init(|| match self.asking {
            Asking::Person => Arc::new(Keys::new()),
            Asking::Never => Arc::new(Keys::asking(Arc::new(NoPrompt), AgentLimits::default())),
        });
        let client = Client::new(Arc::clone(&identities) as Arc<dyn HostVerifier>, Arc::clone(keys));
        let session = client.connect(&target, &|_| {}).await;
        // What was learned of the host is stored, also after a failure. A separate task writes it.
        keep(Arc::clone(&identities));
        Ok(NativeLink { session: Arc::new(session?), identities })
    }
}

impl Engine for Native {
    fn connect<'a>(
        &'a self,
        tunnel: &'a Tunnel,
        _own: &'a Path,
        _run: &'a str,
    ) -> Boxed<'a, Result<Arc<dyn Link>, Failure>> {
        Box::pin(async move {
            // The client has a timeout for each phase; the time in which the user types a passphrase does not count.
            self.link(tunnel).await.map(|link| Arc::new(link) as Arc<dyn Link>)
        })
    }
}

/// Reads the configuration files; may run commands of `Match exec`.
fn prepare(tunnel: &Tunnel) -> Result<(Target, Arc<Identities>), Failure> {
    let Some(asked) = Asked::parse(&tunnel.host) else {
        return Err(configuration(format!("{:?} is not a host", tunnel.host)));
    };
    let config = SshConfig::read(&ConfigFiles::Usual).map_err(|error| configuration(causes(&error)))?;
    let mut target = Target::from_config(&config, &asked)?.target;
    target.connect_timeout = tunnel.connect_timeout;
    target.keep_alive.interval = Some(tunnel.keep_alive);
    target.keep_alive.count = usize::try_from(tunnel.keep_alive_count).unwrap_or(3);
    target.purpose = Purpose::Bulk;
    let identities = IdentityPlaces::of_user().and_then(|places| Identities::load(Store::new(places)));
    let identities = identities.map_err(|error| configuration(causes(&error)))?;
    Ok((target.hinted(&config, identities.index())?, Arc::new(identities)))
}

fn configuration(detail: String) -> Failure {
    failure(Phase::Queued, Reason::BadConfiguration, detail, None)
}

/// Stores what was learned of hosts, in a task that delays no connection.
fn keep(identities: Arc<Identities>) {
    // Without a runtime the process is ending, and the drop of `identities` writes what it can.
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn_blocking(move || identities.flush());
    }
}

struct NativeLink {
    session: Arc<Session>,
    identities: Arc<Identities>,
}

/// Stores the keys that the host has announced during the connection.
impl Drop for NativeLink {
    fn drop(&mut self) {
        keep(Arc::clone(&self.identities));
    }
}

impl Link for NativeLink {
    fn open<'a>(&'a self, to: &'a Endpoint) -> Boxed<'a, Result<Box<dyn Duplex>, Failure>> {
        Box::pin(async move {
            Ok(Box::new(match to {
                Endpoint::Tcp { host, port } => self.session.open_tcp(host, *port).await?,
                Endpoint::Unix(path) => self.session.open_unix(text(path)?).await?,
            }) as Box<dyn Duplex>)
        })
    }

    fn listen<'a>(&'a self, forward: &'a Forward) -> Boxed<'a, Result<Incoming, Failure>> {
        Box::pin(async move {
            let Way::Remote { listen, .. } = &forward.way else {
                return Err(configuration(format!("forward {} is not remote", forward.name)));
            };
            let incoming = match listen {
                Listen::Tcp(at) => self.session.listen_tcp(&at.ip().to_string(), at.port()).await,
                Listen::Unix(path) => self.session.listen_unix(text(path)?).await,
            };
            let mut incoming = incoming.map_err(|why| {
                let detail = format!("forward {}: {}", forward.name, said(&why));
                Failure { detail, advice: None, ..why }
            })?;
            let at = match (incoming.at(), listen) {
                (Listener::Tcp(_, port), Listen::Tcp(asked)) => {
                    Listen::Tcp(SocketAddr::new(asked.ip(), *port))
                }
                (_, asked) => asked.clone(),
            };
            let (sender, streams) = mpsc::channel(16);
            tokio::spawn(async move {
                loop {
                    tokio::select! {
                        accepted = incoming.accept() => match accepted {
                            Some((stream, _)) => {
                                if sender.send(Box::new(stream) as Box<dyn Duplex>).await.is_err() {
                                    return;
                                }
                            }
                            None => return,
                        },
                        () = sender.closed() => return,
                    }
                }
            });
            Ok(Incoming { at, streams })
        })
    }

    fn closed(&self) -> Boxed<'_, Failure> {
        Box::pin(self.session.closed())
    }

    /// The connection closes with its last stream. The tunnel has dropped all streams before this call.
    fn close(&self) -> Boxed<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

fn text(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| configuration(format!("{} is not UTF-8", path.display())))
}
