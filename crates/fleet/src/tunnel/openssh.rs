//! The engine that is the user's own `ssh`: `ssh -N` with a forward between a private Unix socket and each service.
//! `ssh` uses its own configuration, keys and agents; the caller gives the options that verify host keys.

use std::collections::HashMap;
use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hosts::fleet::ending::{Failure, Phase, Reason};
use hosts::fleet::openssh::Refusal;
use hosts::tunnel::plan::{Endpoint, Forward, Listen, Tunnel, Way};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use ssh::guardian::{self, Guard};
use sys::process::Process;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};

use super::awake::within;
use super::command::{StderrTail, of_child};
use super::engine::{Boxed, Duplex, Engine, Incoming, Link, failure};
use super::processes::{RUN, RunProcesses, STEP, Step};
use super::relay::Listener;
use words::why;

mod words;

#[derive(Debug, Clone)]
pub struct OpenSsh {
    program: OsString,
    /// Lines of `ssh_config` that override those of the user: the options that verify host keys.
    options: Vec<String>,
    /// Number of connections so far, for the names of their sockets.
    count: Arc<AtomicU32>,
}

impl OpenSsh {
    /// Creates an engine that runs `program` with the arguments of `ssh`. `options` override the user's `ssh_config`.
    #[must_use]
    pub fn new(program: impl Into<OsString>, options: Vec<String>) -> Self {
        Self { program: program.into(), options, count: Arc::default() }
    }
}

impl Engine for OpenSsh {
    fn connect<'a>(
        &'a self,
        tunnel: &'a Tunnel,
        own: &'a Path,
        run: &'a str,
    ) -> Boxed<'a, Result<Arc<dyn Link>, Failure>> {
        Box::pin(
            async move { self.start(tunnel, own, run).await.map(|link| Arc::new(link) as Arc<dyn Link>) },
        )
    }
}

impl OpenSsh {
    async fn start(&self, tunnel: &Tunnel, own: &Path, run: &str) -> Result<OpenSshLink, Failure> {
        let mut command = std::process::Command::new(&self.program);
        command.args(["-N", "-T"]);
        let seconds = tunnel.keep_alive.as_secs().max(1);
        let turn = self.count.fetch_add(1, Relaxed);
        let control = own.join(format!("c{turn}"));
        for option in [
            "BatchMode=yes".to_owned(),
            // Forwards of the user's ssh_config are for other sessions and may be in use. The tunnel's own forwards are
            // requested through the control socket after the log-in.
            "ClearAllForwardings=yes".to_owned(),
            "ControlMaster=yes".to_owned(),
            format!("ControlPath={}", control_path(&control)?),
            // With either of these two options `ssh` could move to the background, where it is no child of this
            // process.
            "ControlPersist=no".to_owned(),
            "ForkAfterAuthentication=no".to_owned(),
            // A tunnel goes only to a host whose key is known.
            "StrictHostKeyChecking=yes".to_owned(),
            "PermitLocalCommand=no".to_owned(),
            // The sockets have unused paths, so `ssh` must not remove an existing file.
            "StreamLocalBindUnlink=no".to_owned(),
            "StreamLocalBindMask=0177".to_owned(),
            format!("ServerAliveInterval={seconds}"),
            format!("ServerAliveCountMax={}", tunnel.keep_alive_count),
            format!("ConnectTimeout={}", tunnel.connect_timeout.as_secs().max(1)),
        ] {
            command.arg("-o").arg(option);
        }
        for option in &self.options {
            command.arg("-o").arg(option);
        }
        let mut locals = HashMap::new();
        let mut remotes = HashMap::new();
        let mut forwards = Vec::new();
        for (at, forward) in tunnel.forwards.iter().enumerate() {
            match &forward.way {
                Way::Local { connect, .. } => {
                    let path = own.join(format!("l{turn}.{at}"));
                    forwards
                        .extend(["-L".to_owned(), format!("{}:{}", socket_path(&path)?, far_end(connect)?)]);
                    locals.insert(connect.clone(), path);
                }
                Way::Remote { listen, .. } => {
                    let path = own.join(format!("r{turn}.{at}"));
                    let listener = Listener::bind(&Listen::Unix(path.clone()))?;
                    forwards.extend([
                        "-R".to_owned(),
                        format!("{}:{}", far_listen(listen)?, socket_path(&path)?),
                    ]);
                    remotes.insert(forward.name.to_string(), (listen.clone(), listener));
                }
                Way::Dynamic { .. } => {
                    let detail = format!(
                        "forward {}: the engine openssh does not support dynamic forwards",
                        forward.name
                    );
                    return Err(failure(Phase::Queued, Reason::BadConfiguration, detail, None));
                }
            }
        }
        let mark = mark();
        command.env(Refusal::MARK, &mark);
        let log = LogPipe::make(&own.join(format!("e{turn}")))?;
        command.arg("-E").arg(&log.path).arg("--").arg(&tunnel.host);
        let (mut child, guard) = self.spawn(command, own, run)?;
        let process = of_child(&child);
        let said = StderrTail::collect(child.stderr.take());
        let logged = StderrTail::collect(Some(log.from));
        let ended = watch::Sender::new(None);
        let (sender, host, limit) = (ended.clone(), tunnel.host.clone(), tunnel.connect_timeout);
        tokio::spawn(async move {
            let status = child.wait().await.ok().and_then(|status| status.code());
            drop(guard);
            // The log ends when the last write end is closed.
            drop(log.kept);
            let (words, beside) = (logged.shown().await, said.shown().await);
            let refusal = Refusal::take_with(&mark, &mut said.bytes());
            sender.send_replace(Some(match refusal {
                // `ssh` only says that it does not know the host key; the message of `known-hosts` gives the reason.
                Some(Refusal { reason, message, advice }) => {
                    failure(Phase::Identity, reason, message, Some(&advice))
                }
                None => why(&host, status, &words, &beside),
            }));
        });
        let link = OpenSshLink { process, locals, remotes: Mutex::new(remotes), ended };
        link.wait_for(&control, limit, &tunnel.host).await?;
        if !forwards.is_empty() {
            self.forward(&control, &forwards, tunnel, own, run).await?;
        }
        Ok(link)
    }

    /// Requests forwards from the `ssh` that is logged in, by a second `ssh` that reads no configuration.
    async fn forward(
        &self,
        control: &Path,
        forwards: &[String],
        tunnel: &Tunnel,
        own: &Path,
        run: &str,
    ) -> Result<(), Failure> {
        let mut command = std::process::Command::new(&self.program);
        command.args(["-F", "none", "-O", "forward", "-o"]);
        command.arg(format!("ControlPath={}", control_path(control)?));
        command.args(forwards).arg("--").arg(&tunnel.host);
        let (mut child, _guard) = self.spawn(command, own, run)?;
        let process = of_child(&child);
        let said = StderrTail::collect(child.stderr.take());
        match within(tunnel.connect_timeout, child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(status) => {
                let status = status.ok().and_then(|status| status.code());
                Err(why(&tunnel.host, status, &said.shown().await, ""))
            }
            Err(_) => {
                process.signal(Signal::SIGTERM);
                let detail = format!(
                    "{} did not confirm the forward within {} s",
                    tunnel.host,
                    tunnel.connect_timeout.as_secs_f32()
                );
                Err(failure(Phase::Connect, Reason::TimedOut, detail, None))
            }
        }
    }

    /// Starts `ssh`. If this program is killed, the kernel ends `ssh`; where `ssh` gains capabilities by execve(2), the
    /// kernel forgets to (PR_SET_PDEATHSIG), and the guardian ends it.
    fn spawn(
        &self,
        mut command: std::process::Command,
        own: &Path,
        run: &str,
    ) -> Result<(Child, Option<Guard>), Failure> {
        command.env(RUN, run).env(STEP, Step::Engine.word());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let local = |what: String| failure(Phase::Connect, Reason::LocalError, what, None);
        sys::child::end_with_parent(&mut command, &[])
            .map_err(|error| local(format!("cannot prepare ssh: {error}")))?;
        let announced = guardian::announce(&mut command);
        let child = Command::from(command)
            .spawn()
            .map_err(|error| local(format!("cannot run {}: {error}", self.program.display())))?;
        let guard = child.id().map(|number| announced.watch(number));
        RunProcesses::new(own, run).note(Step::Engine, &of_child(&child));
        Ok((child, guard))
    }
}

struct OpenSshLink {
    process: Process,
    /// Sockets at which ssh listens, for each service.
    locals: HashMap<Endpoint, PathBuf>,
    /// Sockets at which this process listens, for each remote forward that has not been requested yet.
    remotes: Mutex<HashMap<String, (Listen, Listener)>>,
    ended: watch::Sender<Option<Failure>>,
}

impl OpenSshLink {
    /// Waits for the control socket of `ssh`, which exists only after the log-in.
    async fn wait_for(&self, control: &Path, limit: Duration, host: &str) -> Result<(), Failure> {
        let there = async {
            loop {
                if let Some(failure) = self.ended.borrow().clone() {
                    return Err(failure);
                }
                if control.exists() {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(15)).await;
            }
        };
        within(limit, there).await.unwrap_or_else(|_| {
            self.process.signal(Signal::SIGTERM);
            let detail = format!("ssh did not log in to {host} within {} s", limit.as_secs_f32());
            Err(failure(Phase::Authenticate, Reason::TimedOut, detail, None))
        })
    }
}

impl Link for OpenSshLink {
    fn open<'a>(&'a self, to: &'a Endpoint) -> Boxed<'a, Result<Box<dyn Duplex>, Failure>> {
        Box::pin(async move {
            let refused = |detail: String| failure(Phase::Run, Reason::ChannelRefused, detail, None);
            let path = self.locals.get(to).ok_or_else(|| refused(format!("{to} is not forwarded")))?;
            match UnixStream::connect(path).await {
                Ok(stream) => Ok(Box::new(stream) as Box<dyn Duplex>),
                Err(error) => Err(refused(format!("cannot reach ssh: {error}"))),
            }
        })
    }

    fn listen<'a>(&'a self, forward: &'a Forward) -> Boxed<'a, Result<Incoming, Failure>> {
        Box::pin(async move {
            let mut remotes = self.remotes.lock().unwrap_or_else(PoisonError::into_inner);
            let Some((at, listener)) = remotes.remove(forward.name.as_ref()) else {
                let detail = format!("forward {} is not known", forward.name);
                return Err(failure(Phase::Run, Reason::ChannelRefused, detail, None));
            };
            let (sender, streams) = mpsc::channel::<Box<dyn Duplex>>(16);
            tokio::spawn(async move {
                loop {
                    tokio::select! {
                        accepted = listener.accept() => match accepted {
                            Ok(stream) => if sender.send(stream).await.is_err() { return },
                            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                        },
                        () = sender.closed() => return,
                    }
                }
            });
            Ok(Incoming { at, streams })
        })
    }

    fn closed(&self) -> Boxed<'_, Failure> {
        let mut ended = self.ended.subscribe();
        Box::pin(async move {
            match ended.wait_for(Option::is_some).await.map(|why| why.clone()) {
                Ok(Some(failure)) => failure,
                _ => failure(Phase::Run, Reason::ConnectionLost, "ssh ended", None),
            }
        })
    }

    fn close(&self) -> Boxed<'_, ()> {
        Box::pin(async move {
            if self.ended.borrow().is_some() {
                return;
            }
            self.process.signal(Signal::SIGTERM);
            if tokio::time::timeout(Duration::from_secs(5), self.closed()).await.is_err() {
                self.process.signal(Signal::SIGKILL);
            }
        })
    }
}

impl Drop for OpenSshLink {
    fn drop(&mut self) {
        if self.ended.borrow().is_none() {
            self.process.signal(Signal::SIGTERM);
        }
    }
}

/// A named pipe for the log of `ssh`: its standard error also has text of the host, such as the banner.
struct LogPipe {
    path: PathBuf,
    from: pipe::Receiver,
    /// A write end that keeps the log open until `ssh` has ended.
    kept: pipe::Sender,
}

impl LogPipe {
    fn make(path: &Path) -> Result<Self, Failure> {
        let open = || {
            nix::unistd::mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR)?;
            let from = pipe::OpenOptions::new().open_receiver(path)?;
            std::io::Result::Ok((from, pipe::OpenOptions::new().open_sender(path)?))
        };
        let (from, kept) = open().map_err(|error| {
            let detail = format!("cannot make a pipe for the log of ssh at {}: {error}", path.display());
            failure(Phase::Connect, Reason::LocalError, detail, None)
        })?;
        Ok(Self { path: path.to_owned(), from, kept })
    }
}

/// 128 random bits that a host cannot guess, from the random keys of hash tables.
fn mark() -> String {
    let half = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", half(), half())
}

/// The destination in the argument of `-L`.
fn far_end(to: &Endpoint) -> Result<String, Failure> {
    match to {
        Endpoint::Tcp { .. } => Ok(to.to_string()),
        Endpoint::Unix(path) => socket_path(path),
    }
}

/// The listening address in the argument of `-R`.
fn far_listen(at: &Listen) -> Result<String, Failure> {
    match at {
        Listen::Tcp(address) if address.port() == 0 => {
            let detail = format!("{at}: with the engine openssh a remote forward needs a port");
            Err(failure(Phase::Queued, Reason::BadConfiguration, detail, None))
        }
        Listen::Tcp(address) => Ok(address.to_string()),
        Listen::Unix(path) => socket_path(path),
    }
}

/// Escapes a path for an option: `%` begins a token, and a blank ends a word.
fn control_path(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().filter(|text| !text.contains(['"', '\\']));
    text.map(|text| format!("\"{}\"", text.replace('%', "%%"))).ok_or_else(|| {
        let detail = format!("{}: the engine openssh cannot use a directory with a quote, a backslash or a byte that is not UTF-8", path.display());
        failure(Phase::Queued, Reason::BadConfiguration, detail, None)
    })
}

/// Refuses a path with a colon, which ends a path for ssh.
fn socket_path(path: &Path) -> Result<String, Failure> {
    match path.to_str() {
        Some(text) if !text.contains([':', '%']) => Ok(text.to_owned()),
        _ => {
            let detail =
                format!("{}: the engine openssh cannot forward a path with a colon or %", path.display());
            Err(failure(Phase::Queued, Reason::BadConfiguration, detail, None))
        }
    }
}
