//! The user's own `ssh` as the engine: `ssh -N` with every forward between a private Unix socket of ours and the service.
//! Configuration, keys and agents are those of `ssh` itself; whoever starts it says by what it knows hosts.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use logic::fleet::ending::{Failure, Phase, Reason};
use logic::fleet::openssh::Refusal;
use logic::tunnel::plan::{Endpoint, Forward, Listen, Tunnel, Way};
use nix::sys::signal::Signal;
use sys::process::Process;
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::{mpsc, watch};

use super::awake::within;
use super::command::{Said, of_child};
use super::engine::{Boxed, Duplex, Engine, Incoming, Link, failure};
use super::processes::{RUN, RunProcesses, STEP, Step};
use super::relay::Listener;

/// The `ssh` in `PATH`.
#[derive(Debug, Clone)]
pub struct OpenSsh {
    program: OsString,
    /// Lines of `ssh_config` that win over those of the user: by what it knows hosts.
    options: Vec<String>,
    /// Connections so far: each has sockets of its own.
    count: Arc<AtomicU32>,
}

impl OpenSsh {
    /// Runs `program`, which takes the arguments of `ssh`, with these lines of `ssh_config` before those of the user.
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
        for option in [
            "BatchMode=yes".to_owned(),
            "ExitOnForwardFailure=yes".to_owned(),
            "ClearAllForwardings=no".to_owned(),
            // No tunnel to a host whose key is not known.
            "StrictHostKeyChecking=yes".to_owned(),
            "ControlPath=none".to_owned(),
            "ControlMaster=no".to_owned(),
            "PermitLocalCommand=no".to_owned(),
            "StreamLocalBindUnlink=yes".to_owned(),
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
        // Appears once ssh is logged in, also where it has nothing else to listen for.
        let turn = self.count.fetch_add(1, Relaxed);
        let ready = own.join(format!("u{turn}"));
        command.arg("-L").arg(format!("{}:127.0.0.1:9", ready.display()));
        for (at, forward) in tunnel.forwards.iter().enumerate() {
            match &forward.way {
                Way::Local { connect, .. } => {
                    let path = own.join(format!("l{turn}.{at}"));
                    command.arg("-L").arg(format!("{}:{}", path.display(), far_end(connect)?));
                    locals.insert(connect.clone(), path);
                }
                Way::Remote { listen, .. } => {
                    let path = own.join(format!("r{turn}.{at}"));
                    let listener = Listener::bind(&Listen::Unix(path.clone()))?;
                    command.arg("-R").arg(format!("{}:{}", far_listen(listen)?, path.display()));
                    remotes.insert(forward.name.to_string(), (listen.clone(), listener));
                }
                Way::Dynamic { .. } => {
                    let detail =
                        format!("forward {}: the engine openssh has no dynamic forwards", forward.name);
                    return Err(failure(Phase::Queued, Reason::Configuration, detail, None));
                }
            }
        }
        command.arg("--").arg(&tunnel.host).env(RUN, run).env(STEP, Step::Engine.word());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let local = |what: String| failure(Phase::Connect, Reason::Local, what, None);
        sys::child::leash(&mut command, &[])
            .map_err(|error| local(format!("cannot prepare ssh: {error}")))?;
        let mut child = Command::from(command)
            .spawn()
            .map_err(|error| local(format!("cannot run {}: {error}", self.program.display())))?;
        let process = of_child(&child);
        RunProcesses::new(own, run).note(Step::Engine, &process);
        let said = Said::collect(child.stderr.take());
        let ended = watch::Sender::new(None);
        let (sender, host, limit) = (ended.clone(), tunnel.host.clone(), tunnel.connect_timeout);
        tokio::spawn(async move {
            let status = child.wait().await.ok().and_then(|status| status.code());
            let words = said.shown().await;
            let refusal = Refusal::take(&mut said.bytes());
            sender.send_replace(Some(match refusal {
                // Where ssh only says that it knows no such key, our own words say why.
                Some(Refusal { reason, message, advice }) => {
                    failure(Phase::Identity, reason, message, Some(&advice))
                }
                None => why(&host, status, &words),
            }));
        });
        let link = OpenSshLink { process, locals, remotes: Mutex::new(remotes), ended };
        link.wait_for(&ready, limit, &tunnel.host).await?;
        Ok(link)
    }
}

struct OpenSshLink {
    process: Process,
    /// Where ssh listens for each service.
    locals: HashMap<Endpoint, PathBuf>,
    /// Where we listen for each remote forward, until that is asked for.
    remotes: Mutex<HashMap<String, (Listen, Listener)>>,
    ended: watch::Sender<Option<Failure>>,
}

impl OpenSshLink {
    /// The sockets are there once ssh is logged in; all of them were made when the last one is.
    async fn wait_for(&self, ready: &Path, limit: Duration, host: &str) -> Result<(), Failure> {
        let there = async {
            loop {
                if let Some(failure) = self.ended.borrow().clone() {
                    return Err(failure);
                }
                if self.locals.values().map(PathBuf::as_path).chain([ready]).all(Path::exists) {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(15)).await;
            }
        };
        within(limit, there).await.unwrap_or_else(|_| {
            self.process.signal(Signal::SIGTERM);
            let detail = format!("ssh to {host} was not logged in within {} s", limit.as_secs());
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
                _ => failure(Phase::Run, Reason::Lost, "ssh ended", None),
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

/// The second half of `-L`.
fn far_end(to: &Endpoint) -> Result<String, Failure> {
    match to {
        Endpoint::Tcp { .. } => Ok(to.to_string()),
        Endpoint::Unix(path) => socket_path(path),
    }
}

/// The first half of `-R`.
fn far_listen(at: &Listen) -> Result<String, Failure> {
    match at {
        Listen::Tcp(address) if address.port() == 0 => {
            let detail = format!("{at}: with the engine openssh a remote forward needs a port");
            Err(failure(Phase::Queued, Reason::Configuration, detail, None))
        }
        Listen::Tcp(address) => Ok(address.to_string()),
        Listen::Unix(path) => socket_path(path),
    }
}

/// ssh takes a colon for the end of a path.
fn socket_path(path: &Path) -> Result<String, Failure> {
    match path.to_str() {
        Some(text) if !text.contains([':', '%']) => Ok(text.to_owned()),
        _ => {
            let detail =
                format!("{}: the engine openssh cannot forward a path with a colon or %", path.display());
            Err(failure(Phase::Queued, Reason::Configuration, detail, None))
        }
    }
}

/// ssh tells its failures apart in words only.
fn why(host: &str, status: Option<i32>, words: &str) -> Failure {
    let last = words.rsplit("; ").next().unwrap_or_default().trim_start_matches(": ");
    let known = KNOWN.iter().find(|(text, ..)| words.contains(text));
    let (reason, detail, advice) = match known {
        Some((_, reason, what, advice)) => (*reason, format!("{host} {what} (ssh: {last})"), *advice),
        None => {
            let how = match status {
                Some(code) => format!("ended with status {code}"),
                None => "was ended by a signal".to_owned(),
            };
            (Reason::Lost, format!("ssh to {host} {how}{words}"), None)
        }
    };
    failure(Phase::Connect, reason, detail, advice)
}

type Known = (&'static str, Reason, &'static str, Option<&'static str>);

const KNOWN: [Known; 10] = [
    (
        "has changed and you have requested",
        Reason::KeyChanged,
        "showed another key than the known one; nothing was sent",
        None,
    ),
    (
        "Host key verification failed",
        Reason::UnknownHost,
        "showed a key by which ssh does not know it; nothing was sent",
        None,
    ),
    (
        "Permission denied",
        Reason::Denied,
        "accepts no key of ours",
        Some("`ssh -v` to it shows what was offered"),
    ),
    ("Could not resolve", Reason::NoAddress, "has no address", None),
    ("Connection refused", Reason::Refused, "refuses the connection", None),
    ("No route to host", Reason::Unreachable, "cannot be reached", None),
    ("Network is unreachable", Reason::Unreachable, "cannot be reached", None),
    ("timed out", Reason::TimedOut, "does not answer", None),
    ("forwarding failed", Reason::ChannelRefused, "does not listen for us", None),
    ("Bad configuration", Reason::Configuration, "cannot be tried: the configuration of ssh is wrong", None),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ssh_says_becomes_a_reason_with_the_point_first() {
        let words = ": remove with:; Host key for [127.0.0.1]:2 has changed and you have requested strict \
                     checking.; Host key verification failed.";
        let changed = why("nas", Some(255), words);
        assert_eq!(changed.reason, Reason::KeyChanged);
        assert!(
            changed.detail.starts_with("nas showed another key than the known one"),
            "{}",
            changed.detail
        );
        let denied = why("nas", Some(255), ": root@nas: Permission denied (publickey).");
        assert_eq!((denied.reason, denied.advice.is_some()), (Reason::Denied, true));
        assert_eq!(why("nas", None, "").detail, "ssh to nas was ended by a signal");
    }
}
