//! One host's turn when files are copied: connect, copy over SFTP, and take back what was begun if it cannot be ended.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use logic::fleet::ending::{Ending, Failure, Phase, Reason, Remote};
use ssh::{Allowance, Change, Directory, Moved, Put, Session, Sftp, TransferError, Tree};
use tokio::sync::watch;
use tokio::time::timeout;

use super::Done;
use super::board::Stage;
use super::keep::file_name;
use super::stop::{Stop, cut, stopped};
use super::turn::{Shared, until, why};

/// Files for every host, or from every host.
#[derive(Debug, Clone)]
pub struct Order {
    what: What,
    /// For each phase up to the begin of the copying.
    connect_timeout: Duration,
    /// For the copying.
    timeout: Option<Duration>,
    /// Requests of a host that may wait for an answer at once.
    in_flight: usize,
    total: Arc<Total>,
}

/// What is copied.
#[derive(Debug, Clone)]
pub enum What {
    /// These to every host.
    Put {
        /// Looked at before.
        tree: Arc<Tree>,
        /// Where to, there.
        destination: String,
    },
    /// These from every host.
    Get {
        /// There, and the name that each has here.
        sources: Vec<(String, String)>,
        /// In a directory of each host in this one.
        directory: PathBuf,
        /// How much of each host.
        allowance: Allowance,
    },
}

#[derive(Debug, Default)]
struct Total {
    files: AtomicU64,
    bytes: AtomicU64,
}

impl Order {
    /// Copies `what` to or from at most so many hosts at once. Each phase up to the begin may take `connect_timeout`, the
    /// copying `timeout`.
    #[must_use]
    pub fn new(what: What, hosts: usize, connect_timeout: Duration, timeout: Option<Duration>) -> Self {
        let in_flight = in_flight(hosts);
        Self { what, connect_timeout, timeout, in_flight, total: Arc::default() }
    }

    pub(super) fn done(&self) -> Done {
        let all = Moved {
            files: self.total.files.load(Ordering::Relaxed),
            bytes: self.total.bytes.load(Ordering::Relaxed),
        };
        match self.what {
            What::Put { .. } => Done::Put(all),
            What::Get { .. } => Done::Got(all),
        }
    }
}

/// Requests in flight for each host. All of them together hold 128 MiB of files at most for up to 1,024 hosts at once, and
/// 128 KiB for each host beyond: with fewer requests a host would mostly wait.
#[must_use]
pub fn in_flight(hosts: usize) -> usize {
    (MOST_IN_FLIGHT / hosts.max(1)).clamp(LEAST_EACH, MOST_EACH)
}

/// Takes the turn of a host.
pub(super) async fn take(shared: &Shared, host: usize, order: &Order) -> Result<Ending, Failure> {
    let began = Instant::now();
    let mut stop = shared.brake.watch();
    let way = shared.connect(host, &mut stop).await?;
    let Some(session) = shared.engine.session(&way) else {
        let detail = "files are copied by our own client only".to_owned();
        return Err(Failure::never_started(Phase::Start, Reason::Configuration, detail));
    };
    let patience = order.connect_timeout;
    let opened = tokio::select! {
        biased;
        stop = stopped(&mut stop) => {
            return Err(Failure::never_started(Phase::Start, Reason::Stopped, why(stop).to_owned()));
        }
        opened = timeout(patience, session.sftp()) => opened,
    };
    let Ok(opened) = opened else {
        let detail = format!("it did not open SFTP within {} s", patience.as_secs_f32());
        return Err(Failure::never_started(Phase::Start, Reason::TimedOut, detail));
    };
    let sftp = opened.map_err(|lost| match (&order.what, lost.remote) {
        // Nothing was asked that changes anything.
        (What::Get { .. }, Remote::Unknown) => Failure { remote: Remote::NeverStarted, ..lost },
        _ => lost,
    })?;
    let sftp = sftp.at_most(order.in_flight);
    shared.board.set(host, Stage::At(Phase::Copy));
    let _ = shared.up.send((host, began.elapsed()));
    let mut turn = Turn { shared, host, order, session, sftp: &sftp, stop };
    let moved = match &order.what {
        What::Put { tree, destination } => turn.put(tree, destination).await?,
        What::Get { sources, directory, allowance } => turn.get(sources, directory, *allowance).await?,
    };
    order.total.files.fetch_add(moved.files, Ordering::Relaxed);
    order.total.bytes.fetch_add(moved.bytes, Ordering::Relaxed);
    shared.out.copied(host, moved);
    Ok(Ending::Exited(0))
}

struct Turn<'a> {
    shared: &'a Shared,
    host: usize,
    order: &'a Order,
    session: &'a Session,
    sftp: &'a Sftp,
    stop: watch::Receiver<Stop>,
}

/// Why a copy did not come to its end.
enum Cause {
    Stopped(Stop),
    TimedOut(Duration),
    Lost(Failure),
    Failed(TransferError),
}

impl Turn<'_> {
    async fn put(&mut self, tree: &Tree, destination: &str) -> Result<Moved, Failure> {
        let board = &self.shared.board;
        let on_bytes = |bytes| board.copied(bytes);
        let mut put = Put::new(self.sftp, tree, destination);
        let cause = match self.until_stopped(put.run(&on_bytes)).await {
            Ok(moved) => return Ok(moved),
            Err(cause) => cause,
        };
        if !matches!(cause, Cause::Lost(_)) {
            let mut stop = self.stop.clone();
            tokio::select! {
                biased;
                () = cut(&mut stop) => {}
                _ = timeout(TAKE_BACK, put.take_back()) => {}
            }
        }
        let (reason, mut detail, advice) = self.told(cause);
        let unclear = put.change() == Change::Unclear || put.left().is_some();
        let remote = if unclear { Remote::Unknown } else { Remote::Ended };
        let done = put.moved().files;
        match put.change() {
            Change::None => detail.push_str("; nothing was changed there"),
            _ if done > 0 => detail.push_str(&format!("; {done} of {} files are in place", tree.files())),
            Change::Some => detail.push_str("; no file was changed there"),
            Change::Unclear => {}
        }
        if put.change() == Change::Unclear {
            detail.push_str("; whether the last one is in place is not known");
        }
        if let Some(left) = put.left() {
            detail.push_str(&format!("; {left} may be left there"));
        }
        Err(Failure { advice, ..failure(Phase::Copy, reason, remote, detail) })
    }

    async fn get(
        &mut self,
        sources: &[(String, String)],
        directory: &Path,
        allowance: Allowance,
    ) -> Result<Moved, Failure> {
        let board = &self.shared.board;
        let on_bytes = |bytes| board.copied(bytes);
        let own = directory.join(file_name(self.shared.board.name(self.host)));
        let sftp = self.sftp;
        let all: Vec<(String, PathBuf)> =
            sources.iter().map(|(remote, name)| (remote.clone(), own.join(name))).collect();
        let mut is_new = Directory::Old;
        let copying = async {
            is_new = ssh::make_directory(&own, 0o777).await?;
            sftp.get_all(&all, allowance, &on_bytes).await
        };
        let got = self.until_stopped(copying).await;
        got.map_err(|cause| {
            let (reason, detail, advice) = self.told(cause);
            // Unless something came: it fails for a directory that is not empty.
            if is_new == Directory::New {
                let _ = std::fs::remove_dir(&own);
            }
            // Whatever happened to the connection: reading changes nothing there.
            Failure { advice, ..failure(Phase::Copy, reason, Remote::Ended, detail) }
        })
    }

    async fn until_stopped(
        &mut self,
        copying: impl Future<Output = Result<Moved, TransferError>>,
    ) -> Result<Moved, Cause> {
        let limit = self.order.timeout;
        let late = limit.map(|limit| tokio::time::Instant::now() + limit);
        let copied = tokio::select! {
            biased;
            stop = stopped(&mut self.stop) => return Err(Cause::Stopped(stop)),
            copied = copying => copied,
            lost = self.session.closed() => return Err(Cause::Lost(lost)),
            () = until(late) => return Err(Cause::TimedOut(limit.unwrap_or_default())),
        };
        match copied {
            Ok(moved) => Ok(moved),
            // The end of the connection is why, not what it did to a request; word of it comes a moment later.
            Err(TransferError::There { .. }) if !self.session.is_open() => {
                match timeout(LAST_WORD, self.session.closed()).await {
                    Ok(lost) => Err(Cause::Lost(lost)),
                    Err(_) => copied.map_err(Cause::Failed),
                }
            }
            Err(fault) => Err(Cause::Failed(fault)),
        }
    }

    /// Why, the details, and what to do.
    fn told(&self, cause: Cause) -> (Reason, String, Option<String>) {
        let fault = match cause {
            Cause::Stopped(stop) => return (Reason::Stopped, why(stop).to_owned(), None),
            Cause::TimedOut(limit) => {
                return (Reason::TimedOut, format!("not done after {} s", limit.as_secs_f32()), None);
            }
            Cause::Lost(lost) => return (lost.reason, lost.detail, lost.advice),
            Cause::Failed(fault) => fault,
        };
        let (reason, advice) = match fault {
            TransferError::Here { ref source, .. } if source.kind() == ErrorKind::FileTooLarge => (
                Reason::Local,
                Some("a file may be no larger here: look at ulimit -f, and at what the disk takes"),
            ),
            TransferError::Here { .. } | TransferError::Broken(_) => (Reason::Local, None),
            TransferError::Short { .. } => (
                Reason::NotCopied,
                Some("copy it again; a file without a true size, as in /sys, comes with penstock run cat"),
            ),
            TransferError::Large { .. } => (Reason::NotCopied, Some("--max-size takes more")),
            TransferError::Many { .. } => (Reason::NotCopied, Some("--max-files takes more")),
            TransferError::Outside { .. } => (Reason::NotCopied, Some("--all-links makes such links, too")),
            _ => (Reason::NotCopied, None),
        };
        (reason, fault.to_string(), advice.map(str::to_owned))
    }
}

fn failure(phase: Phase, reason: Reason, remote: Remote, detail: String) -> Failure {
    Failure { phase, reason, detail, advice: None, remote }
}

/// Of 32 KiB each.
const MOST_IN_FLIGHT: usize = 4096;
const LEAST_EACH: usize = 4;
const MOST_EACH: usize = 128;
/// To remove what is not whole. The answer comes behind those to all requests in flight, 4 MiB on a slow line or a busy disk;
/// Ctrl-C again does not wait.
const TAKE_BACK: Duration = Duration::from_secs(15);
const LAST_WORD: Duration = Duration::from_millis(500);
