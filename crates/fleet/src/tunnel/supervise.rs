//! Keeps a tunnel: listeners that stay, a connection that is made anew when it breaks, services that are asked again and again.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use logic::fleet::ending::{Failure, Phase, Reason};
use logic::tunnel::backoff::Backoff;
use logic::tunnel::plan::{Check, Listen, Tunnel, Way};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::awake::{noticing, within};
use super::engine::{Engine, Link, failure, said};
use super::relay::{self, Listener, To};
pub use super::relay::{FAILED, READY};
use super::run::Say;
pub use super::status::Standing;
use super::status::{Board, Connection, News, Status};
use super::{prove, relay::receive};

/// A tunnel that is kept up. Dropping it takes everything down at once.
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
    /// What serves the remote forwards of the link that stands.
    remotes: Mutex<JoinSet<()>>,
    say: Say,
    owner: Owner,
    /// Why no more attempts are made.
    given_up: watch::Sender<Option<String>>,
}

/// Whose tunnel it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A run's: any program connects to its listeners, and what trying again cannot change ends it.
    Run,
    /// Of a program that it is a part of, which alone connects to its listeners. It is tried again for ever, since the program
    /// goes on, and somebody may put right what is wrong.
    Program,
}

/// A forward that cannot listen.
pub(crate) struct Unbound {
    /// Where.
    pub(crate) at: Listen,
    pub(crate) why: Failure,
}

impl Supervised {
    /// Listens for every local and dynamic forward. Nothing is connected yet: programs that come now wait.
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

    /// A tunnel as a part of another program: without a list, a lock and a control socket. It connects by itself, again and
    /// again. `own` is a directory for the sockets of the engine. Whoever connects to a local forward reads first whether the
    /// host has connected to the service: [`READY`], or [`FAILED`] and why.
    pub fn open(engine: Arc<dyn Engine>, own: PathBuf, tunnel: Tunnel, say: Say) -> Result<Self, Failure> {
        let board = Arc::new(Board::new(tunnel));
        let supervised = Self::listen(Owner::Program, engine, own, super::place::new_run(), board, say);
        let mut supervised = supervised.map_err(|unbound| unbound.why)?;
        supervised.keep();
        Ok(supervised)
    }

    /// How the connection stands, as it changes.
    #[must_use]
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.keeper.board.standing()
    }

    /// Waits until no more attempts are made, and says why.
    pub(crate) async fn given_up(&self) -> String {
        let mut given_up = self.keeper.given_up.subscribe();
        match given_up.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            // It cannot be: the keeper is ours.
            Err(_) => std::future::pending().await,
        }
    }

    /// One attempt to connect; another one if we were stopped during it, as then the host may have waited in vain.
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

    /// Attempts until one succeeds.
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

    /// From now on connections that break are made anew, and services are asked again and again.
    pub(crate) fn keep(&mut self) {
        self.tasks.spawn(Arc::clone(&self.keeper).keep());
    }

    /// Asks every service once; again if we were stopped meanwhile. Then the connection may have ended, too, and is made anew.
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
            // What it came to last is said.
            let _ = within(RECOVERY, again).await;
        }
        outcome
    }

    async fn ask_all(&self) -> Result<(), String> {
        let link = self.keeper.links.borrow().clone();
        let Some(link) = link else { return Err("there is no connection".to_owned()) };
        let outcomes = self.keeper.check(&*link).await;
        let failed = outcomes.into_iter().filter_map(|(name, outcome)| Some((name, outcome.err()?)));
        let failed: Vec<_> = failed.map(|(name, why)| format!("{name}: {why}")).collect();
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }

    /// Where each forward listens on this side.
    pub(crate) fn listens(&self) -> impl Iterator<Item = (&str, Listen)> {
        let forwards = self.keeper.tunnel.forwards.iter().zip(&self.keeper.board.meters);
        let here = forwards.filter(|(forward, _)| !matches!(forward.way, Way::Remote { .. }));
        here.map(|(forward, meter)| (forward.name.as_ref(), meter.listen()))
    }

    /// What is known of it.
    #[must_use]
    pub fn status(&self) -> Status {
        self.keeper.board.status()
    }

    /// Closes the connection and every listener.
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
        (self.say)(&format!("{why}; but we were stopped for {} s meanwhile: once more", time.as_secs()));
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
            .map_err(|error| failure(Phase::Connect, Reason::Local, relay::causes(&error), None))?;
        let link = self.engine.connect(&self.tunnel, &self.own, &self.run).await?;
        let mut remotes = JoinSet::new();
        for (at, forward) in self.tunnel.forwards.iter().enumerate() {
            let Way::Remote { connect, .. } = &forward.way else { continue };
            let incoming = within(LISTENING, link.listen(forward)).await;
            let mut incoming = incoming.unwrap_or_else(|_| {
                let what = format!(
                    "forward {}: {} did not say within {} s whether it listens",
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
                // The link is gone; what is open ends by itself.
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
                let since = Instant::now();
                let checks = async {
                    if again {
                        // What they said before the loss is old.
                        self.check(&*link).await;
                    }
                    self.check_again_and_again(&*link).await
                };
                let why = tokio::select! {
                    why = link.closed() => why,
                    why = checks => why,
                };
                self.links.send_replace(None);
                backoff.handle_lifetime(since.elapsed());
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
        (self.say)(&format!("{}; next attempt in {:.1} s", said(why), wait.as_secs_f64()));
        tokio::time::sleep(wait).await;
    }

    /// At times, and soon after a connection through a forward has failed, so that nobody is told of a service that answered
    /// before that. Never ends: a service that fails is said, and the connection is not to blame.
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
            if self.board.meters[at].checked(outcome.clone()) == News::Changed {
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
/// After a stop, for the connection to be made anew and the services to answer.
const RECOVERY: Duration = Duration::from_secs(30);
/// Between two checks, however many connections fail.
const LEAST_INTERVAL: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(250);
/// A host that was asked to listen says in this time whether it does.
const LISTENING: Duration = Duration::from_secs(10);

/// Whether a connection that stood once will not come back by trying again. Narrower than the opposite of [`is_transient`]: a port
/// on which the old connection still listens there, or an agent that is started again, comes back by itself.
fn is_final(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::Configuration
            | Reason::UnknownHost
            | Reason::KeyChanged
            | Reason::Impostor
            | Reason::KeyRefused
            | Reason::NoAlgorithm
            | Reason::Denied
    )
}

/// Whether trying again without changing anything can help.
fn is_transient(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::NoAddress
            | Reason::Refused
            | Reason::Unreachable
            | Reason::TimedOut
            | Reason::TurnedAway
            | Reason::Lost
    )
}
