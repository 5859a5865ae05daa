//! The task of one host when files are copied: connect, copy over SFTP, and remove unfinished files after a failure.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hosts::fleet::ending::{Ending, Failure, Phase, Reason, Remote};
use ssh::{Allowance, Change, Directory, Moved, Put, Session, Sftp, TransferError, Tree};
use tokio::sync::watch;
use tokio::time::timeout;

use super::board::Stage;
use super::keep::file_name;
use super::shared::Shared;
use super::stop::{Stop, cut, stopped, until, why};

pub(super) mod order;

pub use order::{Order, What, in_flight};

pub(super) async fn take(shared: &Shared, host: usize, order: &Order) -> Result<Ending, Failure> {
    let began = Instant::now();
    let mut stop = shared.brake.watch();
    let way = shared.connect(host, &mut stop).await?;
    let Some(session) = shared.engine.session(&way) else {
        let detail = "only the built-in client copies files".to_owned();
        return Err(Failure::not_started(Phase::Start, Reason::BadConfiguration, detail));
    };
    let patience = order.connect_timeout;
    let opened = tokio::select! {
        biased;
        stop = stopped(&mut stop) => {
            return Err(Failure::not_started(Phase::Start, Reason::Stopped, why(stop).to_owned()));
        }
        opened = timeout(patience, session.sftp()) => opened,
    };
    let Ok(opened) = opened else {
        let detail = format!("it did not open SFTP within {} s", patience.as_secs_f32());
        return Err(Failure::not_started(Phase::Start, Reason::TimedOut, detail));
    };
    let sftp = opened.map_err(|lost| match (&order.what, lost.remote) {
        // No request of `get` changes the host, so the host counts as not started.
        (What::Get { .. }, Remote::MayHaveRun) => Failure { remote: Remote::NotStarted, ..lost },
        _ => lost,
    })?;
    let sftp = sftp.at_most(order.in_flight);
    shared.board.set(host, Stage::At(Phase::Copy));
    let _ = shared.up.send((host, began.elapsed()));
    let mut turn = Turn { shared, host, order, session, sftp: &sftp, stop };
    let (moved, result) = match &order.what {
        What::Put { tree, destination } => turn.put(tree, destination).await,
        What::Get { sources, directory, allowance } => turn.get(sources, directory, *allowance).await,
    };
    order.total.files.fetch_add(moved.files, Ordering::Relaxed);
    order.total.bytes.fetch_add(moved.bytes, Ordering::Relaxed);
    result?;
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

enum Cause {
    Stopped(Stop),
    TimedOut(Duration),
    Lost(Failure),
    Failed(TransferError),
}

impl Turn<'_> {
    /// Copies to the host. Returns the files that are complete there, also if it fails.
    async fn put(&mut self, tree: &Tree, destination: &str) -> (Moved, Result<(), Failure>) {
        let board = &self.shared.board;
        let on_bytes = |bytes| board.copied(bytes);
        let mut put = Put::new(self.sftp, tree, destination);
        let cause = match self.until_stopped(put.run(&on_bytes)).await {
            Ok(moved) => return (moved, Ok(())),
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
        let remote = if unclear { Remote::MayHaveRun } else { Remote::Ended };
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
            detail.push_str(&format!("; {left} may remain there"));
        }
        (put.moved(), Err(Failure { advice, ..failure(Phase::Copy, reason, remote, detail) }))
    }

    /// Copies from the host. Returns the files that are complete here, also if it fails.
    async fn get(
        &mut self,
        sources: &[(String, String)],
        directory: &Path,
        allowance: Allowance,
    ) -> (Moved, Result<(), Failure>) {
        let board = &self.shared.board;
        let on_bytes = |bytes| board.copied(bytes);
        let own = directory.join(file_name(self.shared.board.name(self.host)));
        let sftp = self.sftp;
        let all: Vec<(String, PathBuf)> =
            sources.iter().map(|(remote, name)| (remote.clone(), own.join(name))).collect();
        let (mut is_new, mut moved) = (Directory::Old, Moved::default());
        let copying = async {
            is_new = ssh::make_directory(&own, 0o777).await?;
            sftp.get_all(&all, allowance, &mut moved, &on_bytes).await
        };
        let got = self.until_stopped(copying).await;
        let got = got.map_err(|cause| {
            let (reason, detail, advice) = self.told(cause);
            // `remove_dir` fails for a directory that is not empty, so files that were copied stay.
            if is_new == Directory::New {
                let _ = std::fs::remove_dir(&own);
            }
            // Also if the connection was lost: `get` changes nothing on the host.
            Failure { advice, ..failure(Phase::Copy, reason, Remote::Ended, detail) }
        });
        (moved, got)
    }

    async fn until_stopped<T>(
        &mut self,
        copying: impl Future<Output = Result<T, TransferError>>,
    ) -> Result<T, Cause> {
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
            // A request failed because the connection was lost, which is the true reason. `closed` gives it a moment
            // later.
            Err(TransferError::There { .. }) if !self.session.is_open() => {
                match timeout(LAST_WORD, self.session.closed()).await {
                    Ok(lost) => Err(Cause::Lost(lost)),
                    Err(_) => copied.map_err(Cause::Failed),
                }
            }
            Err(fault) => Err(Cause::Failed(fault)),
        }
    }

    /// The reason, its details, and advice for the user.
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
                Reason::LocalError,
                Some("this file is too large here: check ulimit -f, and the limits of the file system"),
            ),
            TransferError::Here { .. } | TransferError::Broken(_) => (Reason::LocalError, None),
            TransferError::Short { .. } => (
                Reason::CopyFailed,
                Some("copy it again; for a file without a true size, as in /sys, use penstock run cat"),
            ),
            TransferError::Large { .. } => (Reason::CopyFailed, Some("raise the limit with --max-size")),
            TransferError::Many { .. } => (Reason::CopyFailed, Some("raise the limit with --max-files")),
            TransferError::Outside { .. } => (Reason::CopyFailed, Some("--all-links makes such links, too")),
            _ => (Reason::CopyFailed, None),
        };
        (reason, fault.to_string(), advice.map(str::to_owned))
    }
}

fn failure(phase: Phase, reason: Reason, remote: Remote, detail: String) -> Failure {
    Failure { phase, reason, detail, advice: None, remote }
}
/// Time limit for the removal of unfinished files. The server answers all requests in flight first: 4 MiB on a slow
/// line or a busy disk. A second Ctrl-C ends the wait.
const TAKE_BACK: Duration = Duration::from_secs(15);
const LAST_WORD: Duration = Duration::from_millis(500);
