//! The SSH client: finds a way to a host, proves its identity and logs in.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use hosts::fleet::ending::{Failure, Phase, Reason};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use crate::authenticate::{AttemptObserver, authenticate};
use crate::batches::Batches;
use crate::connect;
use crate::facts::{Facts, Timings};
use crate::handler::{Fault, Handler, Shared};
use crate::judge::{BoxFuture, HostVerifier, Place};
use crate::jump::JumpHosts;
use crate::keys::Keys;
use crate::preferences;
use crate::proxy_command::{Account, ProxyCommand};
use crate::session::Session;
use crate::target::{Proxy, Purpose, Target};
use crate::trouble::{self, late, quoted};
use crate::wire::{Carrier, Wire};

/// Opens connections to hosts, with one judge of their identities and one set of keys. All connections of a process
/// share it.
#[derive(Clone)]
pub struct Client {
    judge: Arc<dyn HostVerifier>,
    keys: Arc<Keys>,
    lookups: Arc<Semaphore>,
    jump_hosts: Arc<JumpHosts>,
    listener: Option<Arc<AttemptObserver>>,
    watcher: Option<Arc<Watcher>>,
}

/// Callback with the name and the facts of each host whose identity was accepted, before the log-in begins. Jump hosts
/// come first.
pub type Watcher = dyn Fn(&str, &Facts) + Send + Sync;

/// An open connection to a host, before SSH begins.
struct OpenedConnection {
    carrier: Box<dyn Carrier>,
    place: Place,
    /// Output and exit status of the proxy command; `None` without one.
    command: Option<Arc<Account>>,
}

/// Callback at the start of each phase.
type OnPhase<'a> = &'a (dyn Fn(Phase) + Sync);

impl Client {
    /// Creates a client that connects only to hosts which `judge` accepts, and logs in with `keys`.
    #[must_use]
    pub fn new(judge: Arc<dyn HostVerifier>, keys: Arc<Keys>) -> Self {
        Self {
            judge,
            keys,
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
            jump_hosts: Arc::default(),
            listener: None,
            watcher: None,
        }
    }

    /// Adds a callback for each step of a log-in. The client then also asks each server first for its methods.
    #[must_use]
    pub fn narrating(self, listener: Arc<AttemptObserver>) -> Self {
        Self { listener: Some(listener), ..self }
    }

    /// Adds a callback for the facts of each host before the log-in.
    #[must_use]
    pub fn watching(self, watcher: Arc<Watcher>) -> Self {
        Self { watcher: Some(watcher), ..self }
    }

    /// Connects and logs in. The client calls `on_phase` at the start of each phase. Dropping the future ends the
    /// attempt.
    ///
    /// # Errors
    /// The failure has the phase and the reason. No command was started.
    pub async fn connect(&self, target: &Target, on_phase: OnPhase<'_>) -> Result<Session, Failure> {
        let mut timings = Timings::default();
        let way = self.reach(target, on_phase, &mut timings).await?;
        self.log_in(way, target, on_phase, timings).await
    }

    async fn reach(
        &self,
        target: &Target,
        on_phase: OnPhase<'_>,
        timings: &mut Timings,
    ) -> Result<OpenedConnection, Failure> {
        let limit = target.connect_timeout;
        match &target.proxy {
            Proxy::Jump(hops) if !hops.is_empty() => {
                on_phase(Phase::Connect);
                let begun = Instant::now();
                let way = Box::pin(self.jump(hops, target)).await?;
                timings.connect = begun.elapsed();
                Ok(way)
            }
            Proxy::None | Proxy::Jump(_) => {
                on_phase(Phase::Resolve);
                let begun = Instant::now();
                let addresses = timeout(limit, connect::resolve(target, &self.lookups))
                    .await
                    .map_err(|_| late(Phase::Resolve, &target.name, "no address was found", limit))??;
                timings.resolve = begun.elapsed();
                on_phase(Phase::Connect);
                let begun = Instant::now();
                let (stream, address) = connect::tcp(&target.name, &addresses, limit).await?;
                timings.connect = begun.elapsed();
                let carrier: Box<dyn Carrier> = match target.purpose {
                    Purpose::Commands => Box::new(stream),
                    Purpose::Bulk => Box::new(Batches::new(stream)),
                };
                Ok(OpenedConnection { carrier, place: Place::Address(address), command: None })
            }
            Proxy::Command(command) => {
                on_phase(Phase::Connect);
                let command = ProxyCommand::start(command).map_err(|fault| {
                    let detail = format!("start the proxy command of {}: {fault}", target.name);
                    let exhausted = trouble::is_exhaustion(&fault);
                    let reason = if exhausted { Reason::OutOfResources } else { Reason::LocalError };
                    trouble::failure(Phase::Connect, reason, detail)
                })?;
                let account = Some(Arc::clone(&command.account));
                let place = Place::Command { port: target.port };
                Ok(OpenedConnection { carrier: Box::new(command), place, command: account })
            }
        }
    }

    /// Connects from one jump host to the next, and from the last one to `target`.
    async fn jump(&self, hops: &[Target], target: &Target) -> Result<OpenedConnection, Failure> {
        // If no task reads a channel, it blocks the other channels of its session. Commands are always read, so they
        // share jump hosts; forwards wait for other programs, so each connection for bulk data has its own sessions.
        let own = JumpHosts::default();
        let jump_hosts = match target.purpose {
            Purpose::Commands => &*self.jump_hosts,
            Purpose::Bulk => &own,
        };
        let hops: Vec<_> = hops.iter().map(|hop| Target { purpose: target.purpose, ..hop.clone() }).collect();
        let way = self.through(jump_hosts, &hops, target).await;
        match way {
            // The shared session had already ended, and penstock noticed only now. Nothing was sent to the target yet,
            // so one retry is safe.
            Err(failure) if failure.reason == Reason::ConnectionLost => {
                self.through(jump_hosts, &hops, target).await
            }
            way => way,
        }
    }

    async fn through(
        &self,
        jump_hosts: &JumpHosts,
        hops: &[Target],
        target: &Target,
    ) -> Result<OpenedConnection, Failure> {
        let Some(last) = hops.last() else {
            let detail = format!("{}: no jump host", target.name);
            return Err(trouble::failure(Phase::Connect, Reason::BadConfiguration, detail));
        };
        let session = self.jump_host(jump_hosts, hops).await.map_err(|failure| Failure {
            phase: Phase::Connect,
            detail: format!("jump host: {}", failure.detail),
            ..failure
        })?;
        step(session, &last.name, target).await
    }

    /// Returns a session with the last of `hops`. `hops` must not be empty.
    fn jump_host<'a>(
        &'a self,
        jump_hosts: &'a JumpHosts,
        hops: &'a [Target],
    ) -> BoxFuture<'a, Result<Arc<Session>, Failure>> {
        Box::pin(async move {
            let jump_host = jump_hosts.at(hops);
            let log_in = async {
                match hops {
                    [before @ .., nearer, hop] => {
                        let session = self.jump_host(jump_hosts, &hops[..=before.len()]).await?;
                        let way = step(session, &nearer.name, hop).await?;
                        self.log_in(way, hop, &|_| {}, Timings::default()).await
                    }
                    _ => self.connect(&hops[0], &|_| {}).await,
                }
            };
            jump_host.session(log_in).await
        })
    }

    /// Does the key exchange, gets the judge's verdict and authenticates.
    async fn log_in(
        &self,
        way: OpenedConnection,
        target: &Target,
        on_phase: OnPhase<'_>,
        mut timings: Timings,
    ) -> Result<Session, Failure> {
        let limit = target.connect_timeout;
        let name: Arc<str> = target.name.as_str().into();
        on_phase(Phase::Identity);
        let begun = Instant::now();
        let config = preferences::config(target, &self.judge.wanted(&target.name))?;
        let (wire, heard, lifeline) = Wire::new(way.carrier, target.keep_alive);
        let shared = Arc::new(Shared::new(Arc::clone(&name), target.purpose));
        shared.note(|facts| facts.address = Some(way.place.clone()));
        let (announcing, announced) = mpsc::channel(1);
        let handler = Handler {
            name: Arc::clone(&name),
            judge: Arc::clone(&self.judge),
            place: way.place.clone(),
            rsa_bits: target.algorithms.rsa_bits,
            accepted: None,
            heard: Arc::clone(&heard),
            shared: Arc::clone(&shared),
            announced: announcing,
        };
        let place = way.place.to_string();
        let connected = timeout(limit, russh::client::connect_stream(config, wire, handler))
            .await
            .map_err(|_| stalled(&name, &place, heard.version(), limit))?;
        let mut handle = match connected {
            Ok(handle) => handle,
            Err(Fault::Refused(failure)) => return Err(target.advised(failure)),
            Err(Fault::Library(fault)) => {
                let failure = trouble::handshake(
                    &fault,
                    &heard,
                    shared.parting.get().map(String::as_str),
                    &name,
                    &place,
                );
                return Err(match &way.command {
                    Some(command) => command.explain(failure, &heard, target).await,
                    None => failure,
                });
            }
        };
        timings.identity = begun.elapsed();
        if let Some(watcher) = &self.watcher {
            shared.note(|facts| facts.timings = timings);
            let facts = shared.facts.lock().unwrap_or_else(PoisonError::into_inner).clone();
            watcher(&name, &facts);
        }
        on_phase(Phase::Authenticate);
        let begun = Instant::now();
        // `authenticate` has its own timeouts: they apply to the server, not to the person who types a passphrase.
        let listener = self.listener.as_deref();
        let login = authenticate(&mut handle, target, &self.keys, &shared, listener).await?;
        timings.authenticate = begun.elapsed();
        shared.note(|facts| {
            facts.key = login.key;
            facts.timings = timings;
            facts.attempts = login.attempts;
        });
        Ok(Session::new(handle, shared, Arc::clone(&self.judge), announced, lifeline))
    }
}

/// Opens a stream from a jump host to `next`. The jump host resolves the name.
async fn step(from: Arc<Session>, name: &str, next: &Target) -> Result<OpenedConnection, Failure> {
    let limit = next.connect_timeout;
    let (host, port) = (next.host.clone(), next.port);
    // The opening runs in its own task: if this future is dropped, the channel may still be opened and is then closed,
    // and other users of the session are not disturbed.
    let opening =
        tokio::spawn(async move { from.open_tcp(&host, port).await.map(|stream| stream.keeping(from)) });
    let opened = timeout(limit, opening)
        .await
        .map_err(|_| late(Phase::Connect, &next.name, &format!("{name} did not connect to it"), limit))?
        .unwrap_or_else(|fault| match fault.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(trouble::failure(Phase::Connect, Reason::Stopped, "we are ending".to_owned())),
        });
    let stream = opened.map_err(|failure| Failure {
        phase: Phase::Connect,
        detail: format!("from jump host {name} to {}:{}: {}", next.host, next.port, failure.detail),
        ..failure
    })?;
    let place = Place::Jumped { through: name.to_owned(), host: next.host.clone(), port: next.port };
    Ok(OpenedConnection { carrier: Box::new(stream), place, command: None })
}

fn stalled(name: &str, place: &str, version: Option<String>, limit: Duration) -> Failure {
    let what = match version {
        None => format!("at {place} it did not say who it is"),
        Some(version) => format!("at {place} ({}) the key exchange did not finish", quoted(&version)),
    };
    late(Phase::Identity, name, &what, limit)
}

/// Maximum number of name lookups at the same time: more would only wait in the queue of the resolver.
const LOOKUPS: usize = 64;
