//! Writes finished sessions to the access log: workers hand over batches of lines, one thread writes them.
//!
//! Traffic never waits for the log: a full channel drops the batch and counts its lines, a full disk counts and is
//! said once. How a line looks is decided in `logic/src/access_log.rs`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use config::types::LogTarget;

use crate::lock::lock;
use crate::state::State;

mod writer;

use writer::Writer;

/// Batches that may wait for the writer; with [`BATCH_BYTES`] this bounds the memory of the log.
const CHANNEL_BATCHES: usize = 256;

/// A batch of this size is handed over at once.
pub const BATCH_BYTES: usize = 32 * 1024;

/// How long [`AccessLog::close`] waits for what is still to be written.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// Why there is no access log.
#[derive(Debug, thiserror::Error)]
pub enum AccessLogError {
    /// The file cannot be opened for appending.
    #[error("open access log {}", .path.display())]
    Open {
        /// As configured.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The writer thread cannot be started.
    #[error("start the access log thread")]
    Thread {
        /// The kernel's reason.
        source: io::Error,
    },
}

/// Handle on the writer thread. Clones are equal; the thread ends with the last of them, or with [`Self::close`].
#[derive(Clone)]
pub struct AccessLog {
    sender: SyncSender<Message>,
    shared: Arc<Shared>,
}

impl AccessLog {
    /// Opens `target` (appending; a new file gets mode 0640) and starts the writer.
    ///
    /// With [`LogTarget::Off`] the thread exists too, since a reload may name a file later.
    pub fn open(target: &LogTarget, state: Arc<State>) -> Result<Self, AccessLogError> {
        let output = Output::open(target)?;
        let (sender, receiver) = sync_channel(CHANNEL_BATCHES);
        let shared = Arc::new(Shared {
            state,
            target: Mutex::new(target.clone()),
            enabled: AtomicBool::new(*target != LogTarget::Off),
            reopen: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            ended: (Mutex::new(false), Condvar::new()),
        });
        let writer = Writer::new(output, shared.clone());
        thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || writer.run(&receiver))
            .map_err(|source| AccessLogError::Thread { source })?;
        Ok(Self { sender, shared })
    }

    /// Whether anybody reads what would be written: if not, a line need not be made.
    pub fn is_on(&self) -> bool {
        self.shared.enabled.load(Relaxed)
    }

    /// Hands over whole lines, each with its `\n`. Never waits: what does not fit is dropped and counted.
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

    /// Closes and opens the file again, after it was moved away. If that fails, the old one is kept and it is said.
    pub fn reopen(&self) {
        self.shared.reopen.store(true, Relaxed);
        self.wake();
    }

    /// Writes to `target` from now on, or opens the same file again.
    pub fn set_target(&self, target: &LogTarget) {
        *lock(&self.shared.target) = target.clone();
        self.reopen();
    }

    /// Writes what was handed over so far and ends; gives up after 2 s. Lines that come later are dropped and counted.
    pub fn close(&self) {
        self.shared.closing.store(true, Relaxed);
        self.wake();
        let (ended, changed) = &self.shared.ended;
        // Both results mean the same here: the process ends now, with or without the last lines.
        let _ = changed.wait_timeout_while(lock(ended), CLOSE_LIMIT, |ended| !*ended);
    }

    /// A full channel needs no wake-up: the writer looks at the flags after every message.
    fn wake(&self) {
        let _ = self.sender.try_send(Message::Wake);
    }
}

/// Lines of one worker that are not yet handed over. Dropping it hands them over.
pub struct Batch {
    log: AccessLog,
    lines: Vec<u8>,
}

impl Batch {
    /// An empty batch.
    pub fn new(log: AccessLog) -> Self {
        Self { log, lines: Vec::new() }
    }

    /// Adds what `write` appends: whole lines, each with its `\n`. `write` is not called while the log is off.
    pub fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if !self.log.is_on() {
            return;
        }
        write(&mut self.lines);
        if self.lines.len() >= BATCH_BYTES {
            self.flush();
        }
    }

    /// Hands over all lines.
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

/// What the handles and the writer share.
struct Shared {
    state: Arc<State>,
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

/// Where bytes go.
enum Output {
    Off,
    Stdout,
    Stderr,
    File(File),
}

impl Output {
    fn open(target: &LogTarget) -> Result<Self, AccessLogError> {
        Ok(match target {
            LogTarget::Off => Self::Off,
            LogTarget::Stdout => Self::Stdout,
            LogTarget::Stderr => Self::Stderr,
            LogTarget::File(path) => Self::File(
                OpenOptions::new()
                    .append(true)
                    .create(true)
                    .mode(0o640)
                    // A named pipe without a reader would block the open for ever; with this it fails. Writing to a
                    // pipe that is full then gives EAGAIN, which the writer waits out.
                    .custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY)
                    .open(path)
                    .map_err(|source| AccessLogError::Open { path: path.clone(), source })?,
            ),
        })
    }
}

fn count_lines(lines: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', lines).count() as u64
}

#[cfg(test)]
mod tests;
