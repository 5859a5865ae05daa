//! Access log: workers pass batches of lines to one writer thread.
//!
//! Traffic never waits for the log: a full channel drops the batch and counts its lines; a full disk is counted, and
//! reported once. `crates/state/src/access_log/syslog.rs` sends lines elsewhere. `logic/src/access_log.rs` defines the line format.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use config::types::LogTarget;

use crate::State;
use crate::lock::lock;

mod allowance;
mod lines;
mod syslog;
mod writer;

pub use allowance::{Allowance, LINES_PER_SECOND};
pub(crate) use lines::Lines;
use writer::Writer;

/// Batches that may wait for the writer; with [`BATCH_BYTES`], the limit of the log's memory.
const CHANNEL_BATCHES: usize = 256;

/// Size at which a batch is sent to the writer.
pub const BATCH_BYTES: usize = 32 * 1024;

/// Time limit of [`AccessLog::close`] for the remaining lines.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum AccessLogError {
    /// The file cannot be opened for appending.
    #[error("open access log {}", .path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("start the access log thread")]
    Thread { source: io::Error },
}

/// Handle of the writer thread. The thread ends when the last clone is dropped, or with [`Self::close`].
#[derive(Clone)]
pub struct AccessLog {
    sender: SyncSender<Message>,
    shared: Arc<Shared>,
}

impl AccessLog {
    /// Opens `target` (appending; a new file gets mode 0640) and starts the writer thread.
    ///
    /// The thread also runs with [`LogTarget::Off`], because a reload may set a file.
    pub fn open(target: &LogTarget, state: Arc<State>) -> Result<Self, AccessLogError> {
        Self::start(Lines::Sessions, target, state)
    }

    /// The same for any lines.
    pub(crate) fn start(lines: Lines, target: &LogTarget, state: Arc<State>) -> Result<Self, AccessLogError> {
        let output = Output::open(target, lines)?;
        let (sender, receiver) = sync_channel(CHANNEL_BATCHES);
        let shared = Arc::new(Shared {
            state,
            lines,
            target: Mutex::new(target.clone()),
            enabled: AtomicBool::new(*target != LogTarget::Off),
            reopen: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            ended: (Mutex::new(false), Condvar::new()),
        });
        let writer = Writer::new(output, shared.clone());
        thread::Builder::new()
            .name(lines.subject().to_owned())
            .spawn(move || writer.run(&receiver))
            .map_err(|source| AccessLogError::Thread { source })?;
        Ok(Self { sender, shared })
    }

    /// Tells whether the log is on. If it is off, lines need not be formatted.
    pub fn is_on(&self) -> bool {
        self.shared.enabled.load(Relaxed)
    }

    /// Sends complete lines, each with its `\n`. Never waits: lines that do not fit are dropped and counted.
    pub fn try_send(&self, lines: Vec<u8>) {
        if lines.is_empty() || !self.is_on() {
            return;
        }
        if let Err(
            TrySendError::Full(Message::Lines(lost)) | TrySendError::Disconnected(Message::Lines(lost)),
        ) = self.sender.try_send(Message::Lines(lines))
        {
            self.shared.state.log_lines_dropped.fetch_add(count_lines(&lost), Relaxed);
        }
    }

    /// Reopens the file after log rotation. If that fails, the old file stays open and an event is recorded.
    pub fn reopen(&self) {
        self.shared.reopen.store(true, Relaxed);
        self.wake();
    }

    /// Changes the target; the same file is reopened.
    pub fn set_target(&self, target: &LogTarget) {
        *lock(&self.shared.target) = target.clone();
        self.reopen();
    }

    /// Writes all lines sent so far and ends the writer; time limit 2 s. Later lines are dropped and counted.
    pub fn close(&self) {
        self.shared.closing.store(true, Relaxed);
        self.wake();
        let (ended, changed) = &self.shared.ended;
        // The result does not matter: the process ends now, with or without the last lines.
        let _ = changed.wait_timeout_while(lock(ended), CLOSE_LIMIT, |ended| !*ended);
    }

    /// Wakes the writer. If the channel is full, no message is needed: the writer checks the flags after every message.
    fn wake(&self) {
        let _ = self.sender.try_send(Message::Wake);
    }
}

/// Lines of one worker that are not sent yet; sent when dropped.
pub struct Batch {
    log: AccessLog,
    lines: Vec<u8>,
}

impl Batch {
    pub fn new(log: AccessLog) -> Self {
        Self { log, lines: Vec::new() }
    }

    /// Adds the lines that `write` appends, each with its `\n`. `write` is not called while the log is off.
    pub fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if !self.log.is_on() {
            return;
        }
        write(&mut self.lines);
        if self.lines.len() >= BATCH_BYTES {
            self.flush();
        }
    }

    /// Sends all lines.
    pub fn flush(&mut self) {
        if !self.lines.is_empty() {
            self.log.try_send(std::mem::take(&mut self.lines));
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Data that the handles and the writer share.
struct Shared {
    state: Arc<State>,
    lines: Lines,
    target: Mutex<LogTarget>,
    enabled: AtomicBool,
    reopen: AtomicBool,
    closing: AtomicBool,
    ended: (Mutex<bool>, Condvar),
}

enum Message {
    Lines(Vec<u8>),
    Wake,
}

enum Output {
    Off,
    Stdout,
    Stderr,
    File(File),
    Syslog(Box<syslog::Sender>),
}

impl Output {
    fn open(target: &LogTarget, lines: Lines) -> Result<Self, AccessLogError> {
        Ok(match target {
            LogTarget::Off => Self::Off,
            LogTarget::Stdout => Self::Stdout,
            LogTarget::Stderr => Self::Stderr,
            LogTarget::Syslog(settings) => Self::Syslog(Box::new(syslog::Sender::new(settings, lines))),
            LogTarget::File(path) => Self::File(
                OpenOptions::new()
                    .append(true)
                    .create(true)
                    .mode(0o640)
                    // O_NONBLOCK: opening a named pipe without a reader would block for ever, but now fails. Writing to
                    // a full pipe then returns EAGAIN, and the writer tries again.
                    .custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY)
                    .open(path)
                    .map_err(|source| AccessLogError::Open {
                        path: path.clone(),
                        source: explain(source, path),
                    })?,
            ),
        })
    }
}

fn explain(error: io::Error, path: &Path) -> io::Error {
    match path.parent().filter(|parent| !parent.is_dir()) {
        Some(parent) if error.kind() == io::ErrorKind::NotFound => io::Error::new(
            error.kind(),
            format!("{error}: make its directory (mkdir -p {})", parent.display()),
        ),
        _ => error,
    }
}

fn count_lines(lines: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', lines).count() as u64
}

#[cfg(test)]
mod tests;
