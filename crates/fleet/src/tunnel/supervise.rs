//! Supervises a tunnel: listeners that stay open, a connection that is retried after a loss, and repeated checks of
//! services.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hosts::fleet::ending::{Failure, Phase, Reason};
use hosts::tunnel::backoff::{Backoff, Use};
use hosts::tunnel::plan::{Check, Listen, Tunnel, Way};
use text::units;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::awake::{noticing, within};
use super::engine::{Engine, Link, failure, said};
use super::relay::{self, Listener, To};
pub use super::relay::{FAILED, READY};
use super::say::Say;
pub use super::status::ConnectionState;
use super::status::{Board, Connection, Status, StatusChange};
use super::{prove, relay::receive};

/// A supervised tunnel. Dropping it closes the connection and all listeners.
pub struct Supervised {
    keeper: Arc<Keeper>,
    tasks: JoinSet<()>,
}

struct Keeper {
    tunnel: Tunnel,
    engine: Arc<dyn Engine>,
    own: PathBuf,
    run: String,
    board: Arc<Board>,
    links: watch::Sender<Option<Arc<dyn Link>>>,
    /// Tasks that serve the remote forwards of the current link.
    remotes: Mutex<JoinSet<()>>,
    say: Say,
    owner: Owner,
    /// Why there are no further attempts to connect.
    given_up: watch::Sender<Option<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The tunnel of `penstock tunnel`: any program connects to its listeners, and an error that a retry cannot fix
    /// ends it.
    Run,
    /// A tunnel inside another program, which alone connects to its listeners. Retried without a limit, since the
    /// program keeps running and the operator may fix the error.
    Program,
}

pub(crate) struct Unbound {
    pub(crate) at: Listen,
    pub(crate) why: Failure,
}

impl Supervised {
    /// Opens the listeners of all local and dynamic forwards. Clients that connect before the link is up wait.
    pub(crate) fn listen(
        owner: Owner,
        engine: Arc<dyn Engine>,
        own: PathBuf,
        run: String,
        board: Arc<Board>,
        say: Say,
    ) -> Result<Self, Unbound> {
        let tunnel = board.tunnel.clone();
        let links = watch::Sender::new(None);
        let mut bound = Vec::new();
        for (at, forward) in tunnel.forwards.iter().enumerate() {
            let to = match &forward.way {
                Way::Local { connect, .. } if owner == Owner::Program => To::Announced(connect.clone()),
                Way::Local { connect, .. } => To::Fixed(connect.clone()),
                Way::Dynamic { .. } => To::Socks,
                Way::Remote { .. } => continue,
            };
            let listener = Listener::bind(forward.way.listen()).map_err(|why| {
                let detail = format!("forward {}: {}", forward.name, why.detail);
                Unbound { at: forward.way.listen().clone(), why: Failure { detail, ..why } }
            })?;
            board.meters[at].listens(listener.at());
            bound.push((at, listener, to));
        }
        let mut tasks = JoinSet::new();
        for (at, listener, to) in bound {
            tasks.spawn(relay::serve(listener, to, links.subscribe(), Arc::clone(&board), at));
        }
        let remotes = Mutex::new(JoinSet::new());
        let given_up = watch::Sender::new(None);
        let keeper =
            Arc::new(Keeper { tunnel, engine, own, run, board, links, remotes, say, owner, given_up });
        Ok(Self { keeper, tasks })
    }

    /// Opens a tunnel inside another program, without an undo list, a lock and a control socket. It connects by itself,
    /// with retries. `own` is the directory for the engine's sockets. A client of a local forward first reads whether
    /// the host has connected to the service: [`READY`], or [`FAILED`] and the reason.
    pub fn open(engine: Arc<dyn Engine>, own: PathBuf, tunnel: Tunnel, say: Say) -> Result<Self, Failure> {
        let board = Arc::new(Board::new(tunnel));
        let supervised = Self::listen(Owner::Program, engine, own, super::place::new_run(), board, say);
        let mut supervised = supervised.map_err(|unbound| unbound.why)?;
        supervised.keep();
        Ok(supervised)
    }

    #[must_use]
    pub fn standing(&self) -> watch::Receiver<ConnectionState> {
        self.keeper.board.standing()
    }

    /// Waits until there are no further attempts to connect. Returns the reason.
    pub(crate) async fn given_up(&self) -> String {
        let mut given_up = self.keeper.given_up.subscribe();
        match given_up.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            // `wait_for` cannot fail, since `self` holds the sender.
            Err(_) => std::future::pending().await,
        }
    }

    /// Makes one attempt to connect, and a second one if this process was stopped during the first: the host may have
    /// timed out.
    pub(crate) async fn connect(&self) -> Result<(), Failure> {
        loop {
            match noticing(self.keeper.connect()).await {
                (Err(failure), Some(stopped)) if is_transient(failure.reason) => {
                    self.keeper.stopped(stopped, &said(&failure));
                }
                (outcome, _) => return outcome,
            }
        }
    }

    /// Makes attempts until one succeeds.
    pub(crate) async fn connect_patiently(&self) -> Result<(), Failure> {
        let mut backoff = Backoff::default();
        loop {
            match self.connect().await {
                Err(failure) if is_transient(failure.reason) => {
                    self.keeper.wait(&mut backoff, &failure).await
                }
                outcome => return outcome,
            }
        }
    }

    /// Starts the task that reconnects after a loss and repeats the checks.
    pub(crate) fn keep(&mut self) {
        self.tasks.spawn(Arc::clone(&self.keeper).keep());
    }

    /// Checks every service once, and again if this process was stopped meanwhile: the connection may have been lost
    /// then.
    pub(crate) async fn prove(&self) -> Result<(), String> {
        let (mut outcome, stopped) = noticing(self.ask_all()).await;
        if let (Err(why), Some(stopped)) = (&outcome, stopped) {
            self.keeper.stopped(stopped, why);
            let again = async {
                while outcome.is_err() {
                    tokio::time::sleep(PAUSE).await;
                    outcome = self.ask_all().await;
                }
            };
            // The result of the last check is reported below.
            let _ = within(RECOVERY, again).await;
        }
        outcome
    }

    async fn ask_all(&self) -> Result<(), String> {
        let link = self.keeper.links.borrow().clone();
        let Some(link) = link else { return Err("not connected".to_owned()) };
        let outcomes = self.keeper.check(&*link).await;
        let failed = outcomes.into_iter().filter_map(|(name, outcome)| Some((name, outcome.err()?)));
        let failed: Vec<_> = failed.map(|(name, why)| format!("{name}: {why}")).collect();
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }

    /// Address of each local listener.
    pub(crate) fn listens(&self) -> impl Iterator<Item = (&str, Listen)> {
        let forwards = self.keeper.tunnel.forwards.iter().zip(&self.keeper.board.meters);
        let here = forwards.filter(|(forward, _)| !matches!(forward.way, Way::Remote { .. }));
        here.map(|(forward, meter)| (forward.name.as_ref(), meter.listen()))
    }

    #[must_use]
    pub fn status(&self) -> Status {
        self.keeper.board.status()
    }

    pub async fn down(mut self) {
        self.tasks.shutdown().await;
        let link = self.keeper.links.send_replace(None);
        self.keeper.remotes.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
        if let Some(link) = link {
            link.close().await;
        }
    }
}

impl Keeper {
    fn stopped(&self, time: Duration, why: &str) {
        (self.say)(&format!(
            "{why}; penstock was suspended for {} meanwhile: retrying",
            units::duration(time)
        ));
    }

    async fn connect(&self) -> Result<(), Failure> {
        self.board.connection(Connection::Connecting, None);
        let link = self.attempt().await;
        match link {
            Ok(link) => {
                self.board.connection(Connection::Up, None);
                self.links.send_replace(Some(link));
                Ok(())
            }
            Err(failure) => {
                self.board.connection(Connection::Waiting, Some(said(&failure)));
                Err(failure)
            }
        }
    }

    async fn attempt(&self) -> Result<Arc<dyn Link>, Failure> {
        super::place::private_directory(&self.own)
            .map_err(|error| failure(Phase::Connect, Reason::LocalError, relay::causes(&error), None))?;
        let link = self.engine.connect(&self.tunnel, &self.own, &self.run).await?;
        let mut remotes = JoinSet::new();
        for (at, forward) in self.tunnel.forwards.iter().enumerate() {
            let Way::Remote { connect, .. } = &forward.way else { continue };
            let incoming = within(LISTENING, link.listen(forward)).await;
            let mut incoming = incoming.unwrap_or_else(|_| {
                let what = format!(
                    "forward {}: {} did not answer within {} s whether it listens",
                    forward.name,
                    self.tunnel.host,
                    LISTENING.as_secs()
                );
                Err(failure(Phase::Start, Reason::TimedOut, what, None))
            })?;
            self.board.meters[at].listens(incoming.at.clone());
            let (board, connect) = (Arc::clone(&self.board), connect.clone());
            remotes.spawn(async move {
                let mut open = JoinSet::new();
                while let Some(stream) = incoming.streams.recv().await {
                    while open.try_join_next().is_some() {}
                    if open.len() >= MOST_REMOTE {
                        board.meters[at].failed(format!("more than {MOST_REMOTE} connections: closed"));
                        continue;
                    }
                    let (board, connect) = (Arc::clone(&board), connect.clone());
                    open.spawn(async move { receive(stream, &connect, &board.meters[at]).await });
                }
                // The link is lost, so its streams end by themselves.
                while open.join_next().await.is_some() {}
            });
        }
        *self.remotes.lock().unwrap_or_else(PoisonError::into_inner) = remotes;
        Ok(link)
    }

    async fn keep(self: Arc<Self>) {
        let mut backoff = Backoff::default();
        let mut stood = false;
        loop {
            let link = self.links.borrow().clone();
            if let Some(link) = link {
                let again = std::mem::replace(&mut stood, true);
                let (since, served) = (Instant::now(), self.board.served());
                let checks = async {
                    if again {
                        // Checks from before the loss are outdated.
                        self.check(&*link).await;
                    }
                    self.check_again_and_again(&*link).await
                };
                let why = tokio::select! {
                    why = link.closed() => why,
                    why = checks => why,
                };
                self.links.send_replace(None);
                let use_of = if self.board.served() > served { Use::Served } else { Use::None };
                backoff.handle_lifetime(since.elapsed(), use_of);
                self.board.connection(Connection::Waiting, Some(said(&why)));
                self.wait(&mut backoff, &why).await;
            }
            match self.connect().await {
                Ok(()) => {
                    let again = if stood { " again" } else { "" };
                    (self.say)(&format!("connected to {}{again}", self.tunnel.host));
                }
                Err(failure) if self.owner == Owner::Run && is_final(failure.reason) => {
                    self.given_up.send_replace(Some(said(&failure)));
                    return;
                }
                Err(failure) => self.wait(&mut backoff, &failure).await,
            }
        }
    }

    async fn wait(&self, backoff: &mut Backoff, why: &Failure) {
        let wait = backoff.next(fastrand::f64());
        self.board.waits(wait);
        (self.say)(&format!("{}; next attempt in {}", said(why), units::elapsed(wait)));
        tokio::time::sleep(wait).await;
    }

    /// Repeats the checks at intervals, and soon after a connection through a forward has failed, so that clients do
    /// not see an outdated result. Never returns: a failed check is reported, but does not end the connection.
    async fn check_again_and_again(&self, link: &dyn Link) -> Failure {
        let pause = self.tunnel.check_interval.min(LEAST_INTERVAL);
        loop {
            tokio::time::sleep(pause).await;
            tokio::select! {
                () = tokio::time::sleep(self.tunnel.check_interval - pause) => {}
                () = self.board.trouble() => {}
            }
            self.check(link).await;
        }
    }

    async fn check(&self, link: &dyn Link) -> Vec<(String, Result<String, String>)> {
        let mut outcomes = Vec::new();
        let asked = self.tunnel.forwards.iter().enumerate().filter(|(_, it)| it.check != Check::None);
        for (at, forward) in asked {
            let outcome = prove::ask(link, forward).await;
            if self.board.meters[at].checked(outcome.clone()) == StatusChange::Changed {
                let connect = forward.way.connect().map(ToString::to_string).unwrap_or_default();
                (self.say)(&match &outcome {
                    Ok(what) => format!("{}: {connect} answers: {what}", forward.name),
                    Err(why) => format!("{}: {connect} does not answer: {why}", forward.name),
                });
            }
            outcomes.push((forward.name.to_string(), outcome));
        }
        outcomes
    }
}

const MOST_REMOTE: usize = 512;
/// After a stop: time limit for a new connection and the answers of the services.
const RECOVERY: Duration = Duration::from_secs(30);
/// Minimum interval between two checks, even if many connections fail.
const LEAST_INTERVAL: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(250);
/// Time limit for the host's answer to a request to listen.
const LISTENING: Duration = Duration::from_secs(10);

/// Whether a retry cannot bring back a connection that was up before. Fewer reasons than `!is_transient`: a port on
/// which the old connection still listens, or an agent that is being restarted, becomes available by itself.
fn is_final(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::BadConfiguration
            | Reason::UnknownHost
            | Reason::KeyChanged
            | Reason::WrongHost
            | Reason::KeyRefused
            | Reason::NoCommonAlgorithm
            | Reason::PermissionDenied
    )
}

/// Whether a retry can succeed although nothing was changed.
fn is_transient(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::NoAddress
            | Reason::ConnectionRefused
            | Reason::Unreachable
            | Reason::TimedOut
            | Reason::ClosedByServer
            | Reason::ConnectionLost
    )
}
