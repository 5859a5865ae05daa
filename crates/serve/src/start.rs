//! Start, main loop and end of the front door: binds sockets, drops privileges, starts workers, waits for signals.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use config::{Config, Environment, Loaded, Quick, Source};
use fleet::tunnel::{Asking, Native};
use logic::account::{Division, TooFew};
use logic::transaction::{Ask, Changes, Operator};
use proxy::front::{Denied, Front, Request, Said};
use proxy::question::{self, Question};
use proxy::snapshot::Snapshot;
use proxy::worker::{self, Command};
use sd_notify::NotifyState;
use state::State;
use state::access_log::AccessLog;
use state::data_path::StalePrograms;
use state::event_log::EventLog;
use state::events::Level;
use state::listen::{BindError, OpenAddress, Passed};
use state::log_level;
use sys::pid_file::{PidFile, PidFileError};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::acceptor::Bound;
use crate::acme::helper::Helper;
use crate::acme::{Hooks, Orderer};
use crate::causes::causes;
use crate::confinement::Sandbox;
use crate::control::{ControlSocket, ControlThread};
use crate::discovery::Discoverer;
use crate::health::Checker;
use crate::kept::{Files, Found, Keeper};
use crate::log_in_files;
use crate::logins::Logins;
use crate::needs::Needs;
use crate::otp;
use crate::reload::{self, Opened, Supervisor};
use crate::resolve::Resolver;
use crate::signals::Signals;
use crate::through::Tunnels;
use crate::transaction::{Live, Step};
use crate::upgrade::Launch;
use crate::upgrade::guardian::Guardian;
use crate::upgrade::take_over::{TakeOver, TakeOverError};
use crate::{admin, confinement, control, stopping};

mod changes;
mod discovered;
mod dry_run;
mod follow;
mod means;
mod prepare;
mod requests;
mod taking_over;
mod upgrade;

use requests::Requests;

/// Time for aborted sessions to write their log records.
const CUT_LIMIT: Duration = Duration::from_secs(2);

/// Source of the configuration, at the start and at each reload.
#[derive(Clone, Debug)]
pub enum ConfigSource {
    /// A file, read again at each reload.
    File(PathBuf),
    /// The command line: a reload does not change it.
    Quick(Box<Quick>),
    /// A text that was made from another program's command line: a reload does not change it.
    Text(Source),
}

impl ConfigSource {
    fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Quick(_) | Self::Text(_) => None,
        }
    }
}

/// Explains why a valid configuration without listeners cannot be served. `None` if it can be served: PAM modules are answered
/// without listeners.
pub fn nothing_to_serve(config: &Config) -> Option<String> {
    let answers_modules = config.otp.as_ref().is_some_and(|otp| otp.auth_socket.is_some());
    (config.listeners.is_empty() && !answers_modules).then(|| {
        "there is no listener: this file is for `penstock tunnel` alone
  hint: add [listener.web] with bind = \":80\" and pool = \"NAME\""
            .to_owned()
    })
}

/// Reaction of the start to a degraded part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// Serves the working parts and reports the others.
    Degrade,
    Strict,
}

pub struct Options {
    pub source: ConfigSource,
    pub environment: Environment,
    pub config: Loaded,
    pub strict: Strictness,
    pub sandbox: Sandbox,
    /// `--commit-confirm`: time after which the services of `dsr` listeners are given up unless an operator has confirmed
    /// the start.
    pub commit_confirm: Option<Duration>,
    /// Changes the level of the process log.
    pub log_level: Option<log_level::Apply>,
    /// How the next process of an upgrade is started, or why there is none.
    pub launch: Result<Launch, String>,
    /// The process before, if this one takes over from it.
    pub take_over: Option<Arc<TakeOver>>,
}

/// What to do about a path that the variable names for every server of this environment.
fn unset(variable: Option<&str>) -> String {
    variable.map_or(String::new(), |name| {
        format!("; without {name} the path is that of this server's own configuration")
    })
}

/// Reason why the front door did not start, or ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Bind(Vec<BindError>),
    /// Programs of earlier starts.
    #[error("{0}")]
    StaleProgram(String),
    /// Invalid or unusable sockets from systemd.
    #[error("sockets passed by systemd cannot be used: {0}")]
    Passed(#[from] sys::socket::InheritedError),
    #[error("take-over: {0}")]
    TakeOver(#[from] TakeOverError),
    /// `variable` is that of the environment, if the path came from there.
    #[error("{}control.{}: {}{}", .variable.iter().map(|name| format!("environment {name}: ")).collect::<String>(), .error.key(), causes(.error), unset(.variable.as_deref()))]
    Control { error: control::ControlError, variable: Option<String> },
    #[error("admin.bind: {}", causes(.0))]
    Admin(#[from] admin::AdminError),
    /// With its causes, and what to do.
    #[error("access-log.target: {0}")]
    AccessLog(String),
    #[error("events.target: {0}")]
    EventLog(state::access_log::AccessLogError),
    #[error("process.pid-file: {0}")]
    PidFile(#[from] PidFileError),
    #[error("process.user: {0}")]
    Privilege(#[from] sys::privilege::PrivilegeError),
    /// With `--strict`: the degraded parts.
    #[error("--strict: {}", .0.iter().map(|(subject, reason)| format!("{subject}: {reason}")).collect::<Vec<_>>().join("; "))]
    Degraded(Vec<(String, String)>),
    #[error(transparent)]
    Descriptors(#[from] TooFew),
    #[error(
        "cannot start {threads} threads: {source}; this user has too many processes (ulimit -u), the service has too many tasks (TasksMax), or this process has too little address space (ulimit -v)"
    )]
    Threads { threads: usize, source: io::Error },
    /// The system refused a thread, a runtime or a signal handler.
    #[error("cannot {doing}: {source}")]
    System { doing: &'static str, source: io::Error },
    /// The thread of this worker ended unexpectedly.
    #[error("worker {0} ended unexpectedly; ending the process so that its supervisor starts it anew")]
    WorkerEnded(usize),
}

impl StartError {
    /// Reports whether a restart with the same configuration would fail again.
    pub fn side(&self) -> Side {
        use sys::privilege::PrivilegeError;
        match self {
            Self::Privilege(PrivilegeError::NoSuchUser { .. } | PrivilegeError::NoSuchGroup { .. }) => {
                Side::Configuration
            }
            _ => Side::Machine,
        }
    }
}

/// Cause that must change before a start can succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Configuration,
    /// The machine, which may change without a change of the configuration.
    Machine,
}

fn system(doing: &'static str) -> impl FnOnce(io::Error) -> StartError {
    move |source| StartError::System { doing, source }
}

/// What a start has before it serves. The fields are in the order in which it gets them.
struct Prepared {
    config: Arc<Config>,
    workers: usize,
    passed: Passed,
    pid_file: Option<PidFile>,
    descriptors: Needs,
    division: Division,
    stale: StalePrograms,
    opened: Opened,
    admin: Option<Bound>,
    control: Option<ControlSocket>,
    state: State,
    helper: Helper,
    guardian: Result<Guardian, String>,
    files: Files,
    found: Found,
}

/// Runs the front door until SIGTERM, SIGINT or `penstock ctl stop`. Call this while the process has only one thread.
pub fn run(options: Options) -> Result<(), StartError> {
    let prepared = Prepared::new(&options)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("slow")
        .enable_all()
        .build()
        .map_err(system("start the runtime"))?;
    let ended = runtime.block_on(serve(options, prepared));
    // Do not wait: a name look-up cannot be interrupted, and may take as long as the resolver's timeout.
    runtime.shutdown_background();
    ended
}

/// Makes the first snapshot, starts the workers with it, and handles signals, reloads and changes until the process stops.
async fn serve(options: Options, prepared: Prepared) -> Result<(), StartError> {
    // Catch signals first: a signal without a handler ends the process without a message.
    let mut signals = Signals::catch().map_err(system("catch signals"))?;
    let Prepared { config, descriptors, passed, mut opened, mut pid_file, admin, .. } = prepared;
    let take_over = options.take_over.clone();
    let state = Arc::new(prepared.state);
    reload::set_limits(&state, &config, &descriptors, prepared.division);
    reload::tell_division(&state, &descriptors, prepared.division);
    let tls = Arc::new(tls::Shared::new(staple_directory(&state)));
    let hooks = Hooks::new(prepared.helper).map_err(system("ask the helper that runs acme commands"))?;
    let logins =
        Arc::new(Logins::new(state.clone()).map_err(system("make a key for names that are not known"))?);
    let mut slow = Slow::new(&state, hooks, &logins);
    tokio::select! {
        () = slow.discoverer.begin(&config) => {}
        () = signals.stop() => return Ok(()),
    }
    let served = discovered::discovered(&mut slow.discoverer, &config, &state, &descriptors);
    let snapshot = Arc::new(reload::build(served, &state, &tls, None));
    let mut changes = prepared.found.restore(&state);
    let (log, event_log) = open_logs(&config, &state)?;
    let (front, asked, questions) = front(state, &snapshot, prepared.workers);
    tokio::select! {
        () = slow.look_up(&snapshot) => {}
        () = signals.stop() => return Ok(()),
    }
    if let Some(take_over) = &take_over {
        let told = taking_over::state(take_over, &opened, (&front.state, &tls), &mut signals);
        let Some(found) = told.await? else { return Ok(()) };
        changes = found.restore(&front.state);
    }
    slow.checker.reconcile(&snapshot);
    tokio::select! {
        () = slow.open_store(&config, take_over.as_deref()) => {}
        () = signals.stop() => return Ok(()),
    }
    log_in_files::look(&config, &slow.logins, &front.state).await;
    tell_unused(&passed, &front.state);
    if options.strict == Strictness::Strict && !front.state.degraded().is_empty() {
        return Err(StartError::Degraded(front.state.degraded()));
    }
    // Before the workers keep programs that a failed start would take away.
    if let Some(file) = &mut pid_file {
        file.write()?;
    }
    let (senders, threads) = start_workers(questions, &front, &snapshot, &log)?;
    reload::publish_datagram_addresses(&front.state, opened.addresses());
    if let Some(take_over) = &take_over
        && !taking_over::is_told_to_serve(take_over, &mut signals).await?
    {
        return Ok(());
    }
    let_workers_accept(&senders, &snapshot, &mut opened).await;
    front.state.generation.store(snapshot.generation, Relaxed);
    let open: HashMap<_, _> = opened.into_open().collect();
    reload::publish_addresses(&snapshot, &open);
    if let Some(take_over) = &take_over {
        let path = config.process.pid_file.as_deref();
        pid_file = taking_over::serve(take_over, &front, path, pid_file).await;
        slow.otp.follow(&config);
    }
    tls.reconcile(&config, &front.state);
    tokio::spawn(tls.clone().refresh_staples(front.state.clone()));
    slow.orderer.reconcile(&config);
    let supervisor = Supervisor {
        front: front.clone(),
        workers: senders,
        open,
        leaving: Vec::new(),
        tls,
        passed,
        descriptors,
        started_with: config.clone(),
    };
    say_where(&config, &supervisor, admin.as_ref().zip(config.admin.as_ref()).map(admin_address));
    let control = prepared.control.map(|bound| run_control(bound, &front, &logins)).transpose()?;
    // Nothing of the start can fail any more.
    let events = &front.state.events;
    prepared.stale.remove().into_iter().for_each(|said| events.record(Level::Warning, "process", said));
    let file = options.source.file().map(Path::to_owned);
    let mut live = Live::new(options.config.clone(), options.environment.clone(), file);
    live.try_start(&front.state, options.commit_confirm);
    let keeper = Keeper::start(prepared.files, front.clone(), changes, &mut live);
    let bind = config.admin.as_ref().map(|admin| &admin.bind);
    let means = means::Means::new(prepared.guardian, bind.zip(admin.as_ref()), pid_file);
    let admin_off = means.admin_off.clone();
    let mut door = FrontDoor {
        supervisor,
        slow,
        asked: Requests::new(asked),
        threads,
        log,
        event_log,
        options,
        live,
        keeper,
        stopping: Stopping::No,
        control,
        means,
        handed_over: None,
    };
    let ended = tokio::select! {
        ended = door.run(&mut signals) => ended,
        never = serve_admin(admin, front.clone(), logins, &admin_off) => never,
    };
    door.asked.end().await;
    // Before clients of the control socket get their last answers: no session outlives its limit for them.
    door.cut().await;
    drop(door.control.take());
    door.close().await;
    ended
}

fn open_logs(config: &Config, state: &Arc<State>) -> Result<(AccessLog, EventLog), StartError> {
    let log = AccessLog::open(&config.access_log.target, state.clone())
        .map_err(|error| StartError::AccessLog(confinement::explain_log_error(&error, &state.confinement)))?;
    Ok((log, EventLog::open(&config.events, state).map_err(StartError::EventLog)?))
}

/// Makes the state that the workers and the supervisor share, and the receiving ends of their channels: requests to the
/// supervisor, and questions to each worker.
fn front(
    state: Arc<State>,
    snapshot: &Arc<Snapshot>,
    workers: usize,
) -> (Arc<Front>, mpsc::Receiver<Request>, Vec<mpsc::Receiver<Question>>) {
    let (requests, asked) = mpsc::channel(16);
    let (questions, asked_of_workers) = (0..workers).map(|_| mpsc::channel(question::WAITING)).unzip();
    let front = Front { state, snapshot: ArcSwap::new(snapshot.clone()), requests, questions };
    (Arc::new(front), asked, asked_of_workers)
}

fn tell_unused(passed: &Passed, state: &State) {
    for name in passed.unused() {
        let message = "systemd passed this socket, but no listener names it";
        state.events.record(Level::Warning, format!("systemd:{name}"), message);
    }
}

/// By the number of the worker.
type Senders = Vec<mpsc::UnboundedSender<Command>>;
type Threads = Vec<Option<JoinHandle<()>>>;

/// Starts the workers, which accept no client yet.
fn start_workers(
    questions: Vec<mpsc::Receiver<Question>>,
    front: &Arc<Front>,
    snapshot: &Arc<Snapshot>,
    log: &AccessLog,
) -> Result<(Senders, Threads), StartError> {
    let (mut senders, mut threads) = (Senders::new(), Threads::new());
    for (index, questions) in questions.into_iter().enumerate() {
        let (commands, thread) = start_worker(index, front, snapshot, log, questions)?;
        senders.push(commands);
        threads.push(Some(thread));
    }
    Ok((senders, threads))
}

/// Gives the workers their sockets, and waits until they accept.
async fn let_workers_accept(senders: &Senders, snapshot: &Arc<Snapshot>, opened: &mut Opened) {
    let mut started = Vec::new();
    for (index, commands) in senders.iter().enumerate() {
        let (done, told) = oneshot::channel();
        let open = opened.take_for_worker(index);
        let command = Command::Apply { snapshot: snapshot.clone(), open, close: Vec::new(), done };
        // The supervisor detects a worker that has ended.
        let _ = commands.send(command);
        started.push(told);
    }
    for told in started {
        let _ = told.await;
    }
}

fn run_control(
    bound: ControlSocket,
    front: &Arc<Front>,
    logins: &Arc<Logins>,
) -> Result<ControlThread, StartError> {
    if let Some(address) = bound.remote_address() {
        tracing::info!(%address, "listening control over the network");
    }
    bound.run(front.clone(), logins.clone()).map_err(|error| StartError::Control { error, variable: None })
}

/// Directory for OCSP responses.
fn staple_directory(state: &State) -> Option<PathBuf> {
    let directory = state.directory.as_ref()?.part("ocsp");
    directory.map_err(|error| state.degrade("process.state-directory", &format!("ocsp: {error}"))).ok()
}

fn start_worker(
    index: usize,
    front: &Arc<Front>,
    snapshot: &Arc<Snapshot>,
    log: &AccessLog,
    questions: mpsc::Receiver<Question>,
) -> Result<(mpsc::UnboundedSender<Command>, JoinHandle<()>), StartError> {
    let (commands, receiver) = mpsc::unbounded_channel();
    let (front, snapshot, log) = (front.clone(), snapshot.clone(), log.clone());
    let thread = std::thread::Builder::new()
        .name(format!("worker-{index}"))
        .spawn(move || {
            if let Err(error) = worker::run(index, front, snapshot, log, receiver, questions) {
                tracing::error!(worker = index, "cannot start the runtime of a worker: {error}");
            }
        })
        .map_err(system("start a worker thread"))?;
    Ok((commands, thread))
}

/// Serves the admin listener and never returns: if the listener fails, the front door continues as degraded.
async fn serve_admin(
    listener: Option<Bound>,
    front: Arc<Front>,
    logins: Arc<Logins>,
    off: &Notify,
) -> Result<(), StartError> {
    if let Some(listener) = listener {
        tokio::select! {
            ended = admin::run(listener, front.clone(), logins) => if let Err(error) = ended {
                front.state.degrade("admin", &error.to_string());
            },
            // The next process has it.
            () = off.notified() => {}
        }
    }
    std::future::pending().await
}

fn admin_address((listener, settings): (&Bound, &config::types::Admin)) -> String {
    listener.address().map_or_else(|| settings.bind.to_string(), |address| address.to_string())
}

fn say_where(config: &Config, supervisor: &Supervisor, admin: Option<String>) {
    for listener in &config.listeners {
        for key in state::listen::BoundKey::all(listener) {
            for address in supervisor.open.get(&key).into_iter().flat_map(OpenAddress::texts) {
                tracing::info!(listener = %listener.name, address = %address, "listening");
            }
        }
    }
    if let Some(address) = admin {
        tracing::info!(%address, "listening admin");
    }
    if let Some(control) = &config.control {
        tracing::info!(socket = %control.socket.display(), "listening control");
    }
    if let Some(stored) = supervisor.front.state.kept.stored() {
        tracing::info!(directory = %stored.directory.display(), "keeps state over a restart");
    }
}

/// Tasks of the main runtime that follow the snapshot.
struct Slow {
    checker: Checker,
    resolver: Resolver,
    discoverer: Discoverer,
    tunnels: Tunnels,
    orderer: Orderer,
    otp: otp::Doors,
    logins: Arc<Logins>,
}

impl Slow {
    fn new(state: &Arc<State>, hooks: Hooks, logins: &Arc<Logins>) -> Self {
        Self {
            checker: Checker::new(state.clone()),
            resolver: Resolver::new(state.clone()),
            discoverer: Discoverer::new(state.clone()),
            tunnels: Tunnels::new(state.clone(), Arc::new(Native::new(Asking::Never))),
            orderer: Orderer::new(state.clone(), hooks),
            otp: otp::Doors::new(state.clone(), logins.clone()),
            logins: logins.clone(),
        }
    }

    /// Looks up what backends need before they can be served.
    async fn look_up(&mut self, snapshot: &Snapshot) {
        self.discoverer.tell_failures(snapshot);
        self.resolver.reconcile(snapshot);
        self.tunnels.reconcile(snapshot);
        tokio::join!(self.resolver.first(), self.tunnels.first());
    }

    /// Opens the store of one-time passwords, unless the process before still has it.
    async fn open_store(&self, config: &Config, take_over: Option<&TakeOver>) {
        if take_over.is_some() {
            return self.otp.refuse(config);
        }
        self.otp.follow(config);
        self.otp.opened(otp::START_LIMIT).await;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stopping {
    No,
    Asked,
}

struct FrontDoor {
    supervisor: Supervisor,
    slow: Slow,
    asked: Requests,
    threads: Threads,
    log: AccessLog,
    event_log: EventLog,
    options: Options,
    live: Live,
    keeper: Keeper,
    stopping: Stopping,
    control: Option<ControlThread>,
    means: means::Means,
    /// Set when another process serves.
    handed_over: Option<means::HandedOver>,
}

impl FrontDoor {
    async fn run(&mut self, signals: &mut Signals) -> Result<(), StartError> {
        tracing::info!(pid = std::process::id(), workers = self.threads.len(), "ready");
        notify(&[NotifyState::Ready, NotifyState::Status("serving")]);
        let mut watch = tokio::time::interval(Duration::from_secs(1));
        while self.stopping == Stopping::No {
            self.keeper.follow(&self.live);
            let deadline = self.live.deadline();
            tokio::select! {
                _ = signals.reload.recv() => {
                    self.log.reopen();
                    // The log and the events already contain the faults.
                    let _ = self.reload_unless_stopped(None, signals).await;
                }
                _ = signals.reopen.recv() => self.log.reopen(),
                _ = signals.terminate.recv() => self.stopping = Stopping::Asked,
                _ = signals.interrupt.recv() => self.stopping = Stopping::Asked,
                request = self.asked.next() => match request {
                    Some(Request::Reload { by, answer }) => {
                        let result = self.reload_unless_stopped(Some(by), signals).await;
                        self.keeper.follow(&self.live);
                        // The client may have disconnected.
                        let _ = answer.send(result);
                    }
                    Some(Request::Change { by, ask, answer }) => {
                        let result = self.change_unless_stopped(by, ask, signals).await;
                        // Before the answer, which waits until it is stored.
                        self.keeper.follow(&self.live);
                        let _ = answer.send(result);
                    }
                    Some(Request::Compile { answer }) => {
                        let _ = answer.send(self.compile_unless_stopped(signals).await);
                    }
                    Some(Request::Upgrade { upgrade, answer, told }) => {
                        let result = self.upgrade(upgrade, signals).await;
                        let _ = answer.send(result);
                        self.wait_until_told(told);
                    }
                    Some(Request::Stop) | None => self.stopping = Stopping::Asked,
                },
                () = until(deadline) => self.undo_unconfirmed().await,
                change = self.slow.discoverer.next() => self.follow_unless_stopped(change, signals).await,
                _ = watch.tick() => {
                    self.check_workers()?;
                    self.forget_idle(signals).await;
                }
            }
        }
        self.means.close_admin();
        match self.handed_over.take() {
            Some(handed_over) => {
                self.leave(handed_over, signals).await;
                self.asked.end_upgraded().await;
            }
            None => self.drain(signals).await,
        }
        Ok(())
    }

    /// Reloads, but aborts the reload at a signal to end: a slow disk must not delay the end of the process.
    async fn reload_unless_stopped(
        &mut self,
        by: Option<Operator>,
        signals: &mut Signals,
    ) -> Result<String, String> {
        tokio::select! {
            result = self.reload(by) => result,
            () = signals.stop() => {
                self.stopping = Stopping::Asked;
                Err("error: reload aborted: the process is ending".to_owned())
            }
        }
    }

    async fn change_unless_stopped(
        &mut self,
        by: Operator,
        ask: Ask,
        signals: &mut Signals,
    ) -> (Result<Said, Denied>, Changes) {
        let answer = tokio::select! {
            answer = self.change(by, ask) => answer,
            () = signals.stop() => {
                self.stopping = Stopping::Asked;
                let message = "the process is ending".to_owned();
                (Err(Denied { message, details: String::new() }), Changes::No)
            }
        };
        self.publish_changes();
        answer
    }

    fn check_workers(&mut self) -> Result<(), StartError> {
        match self.threads.iter().position(|thread| thread.as_ref().is_none_or(JoinHandle::is_finished)) {
            Some(index) => Err(StartError::WorkerEnded(index)),
            None => Ok(()),
        }
    }

    /// Waits for sessions to end, up to the limit. A second signal ends the wait.
    async fn drain(&mut self, signals: &mut Signals) {
        let front = self.supervisor.front.clone();
        let limit = front.snapshot.load().config.process.drain_timeout;
        let deadline = Instant::now() + limit;
        // Once in the life of a process.
        let _ = front.state.stopping.set(state::Stopping {
            since: SystemTime::now(),
            began: Instant::now(),
            deadline,
        });
        front.state.draining.store(true, Relaxed);
        notify(&[NotifyState::Stopping, NotifyState::Status("draining")]);
        let open = front.state.connections.load(Relaxed);
        let message = if limit.is_zero() {
            format!("stopping: no new connections; {open} open ones are closed at once")
        } else {
            format!("stopping: no new connections; {open} open ones may go on for {} s", limit.as_secs_f32())
        };
        front.state.events.record(Level::Info, "process", message);
        let services = stopping::of_services(&front);
        for service in &services {
            front.state.events.record(Level::Info, "process", format!("stopping: {service}"));
        }
        for worker in &self.supervisor.workers {
            // A worker that has ended has no sessions to drain.
            let _ = worker.send(Command::Drain);
        }
        let mut look = tokio::time::interval(Duration::from_millis(20));
        while self.has_workers() {
            if Instant::now() >= deadline {
                return self.say_what_is_left("the drain limit is reached");
            }
            tokio::select! {
                _ = look.tick() => {}
                request = self.asked.always() => self.answer_while_stopping(request),
                () = signals.stop() => return self.say_what_is_left("a second signal came"),
            }
        }
        let which = if services.is_empty() { "" } else { " through this process" };
        let message = format!("stopped: every connection{which} has ended");
        front.state.events.record(Level::Info, "process", message);
    }

    /// Answers what only asks; the rest is refused.
    fn answer_while_stopping(&mut self, request: Request) {
        match request {
            Request::Change { by, ask: ask @ (Ask::Show { .. } | Ask::History { .. }), answer } => {
                if let Step::Answer(result) = self.live.handle(by, ask) {
                    // The client may have disconnected.
                    let _ = answer.send((result, Changes::No));
                }
            }
            request => requests::refuse_when_stopping(request),
        }
    }

    fn say_what_is_left(&self, why: &str) {
        let front = &self.supervisor.front;
        let left: Vec<_> = front
            .snapshot
            .load()
            .listeners
            .values()
            .map(|plan| (plan.settings.name.clone(), plan.state.connections.load(Relaxed)))
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{count} on listener.{name}"))
            .collect();
        let left = if left.is_empty() { "none".to_owned() } else { left.join(", ") };
        front.state.events.record(Level::Warning, "process", format!("{why}: connections cut off: {left}"));
    }

    fn has_workers(&self) -> bool {
        self.threads.iter().flatten().any(|thread| !thread.is_finished())
    }

    /// Aborts the remaining sessions.
    async fn cut(&self) {
        for worker in &self.supervisor.workers {
            // A worker that has ended has no sessions to abort.
            let _ = worker.send(Command::Cut);
        }
        let deadline = Instant::now() + CUT_LIMIT;
        while self.has_workers() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Aborts the remaining sessions, removes Unix sockets from the file system and flushes the access log.
    async fn close(mut self) {
        self.cut().await;
        self.slow.orderer.end().await;
        for thread in self.threads.into_iter().flatten().filter(JoinHandle::is_finished) {
            // A worker that panicked has already printed its message.
            let _ = thread.join();
        }
        self.keeper.finish(&self.live).await;
        // Dropping the last handles removes the files of our Unix sockets.
        self.supervisor.open.clear();
        self.log.close();
        self.event_log.close();
    }
}

/// Waits until a time, or for ever.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

/// Notifies systemd, if it started this process.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("systemd was not told: {error}");
    }
}
