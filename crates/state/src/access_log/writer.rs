//! Writer thread of the access log.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use config::types::LogTarget;

use super::{Message, Output, Shared, count_lines};
use crate::lock::lock;

/// Maximum bytes kept for a retry while the target accepts no data.
const BACKLOG_BYTES: usize = 1024 * 1024;

/// Retry interval for a target that accepts no data; the next batch also causes a retry.
const RETRY: Duration = Duration::from_secs(1);

/// Minimum time between two reports of a failing log: on a nearly full disk, each batch would cause a report.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(60);

/// Time after which a pipe or terminal that accepts no byte counts as failed.
const STALL_LIMIT: Duration = Duration::from_secs(1);

pub(super) struct Writer {
    output: Output,
    shared: Arc<Shared>,
    /// Bytes not written yet; if the first line was written in part, only the rest of that line.
    backlog: Vec<u8>,
    /// Whether the last write ended in the middle of a line.
    torn: LastLineCut,
    degraded: Option<Degraded>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LastLineCut {
    Yes,
    No,
}

struct Degraded {
    announced: Instant,
}

impl Writer {
    pub(super) fn new(output: Output, shared: Arc<Shared>) -> Self {
        Self { output, shared, backlog: Vec::new(), torn: LastLineCut::No, degraded: None }
    }

    pub(super) fn run(mut self, receiver: &Receiver<Message>) {
        loop {
            let message = receiver.recv_timeout(RETRY);
            self.reopen_if_asked();
            match message {
                Ok(Message::Lines(lines)) => self.take(lines),
                Ok(Message::Wake) => {}
                Err(RecvTimeoutError::Timeout) => self.write_backlog(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if self.shared.closing.load(Relaxed) {
                break;
            }
        }
        // The channel still has the lines sent before the end.
        while let Ok(message) = receiver.try_recv() {
            self.reopen_if_asked();
            if let Message::Lines(lines) = message {
                self.take(lines);
            }
        }
        self.shared.state.log_lines_failed.fetch_add(count_lines(&self.backlog), Relaxed);
        let (ended, changed) = &self.shared.ended;
        *lock(ended) = true;
        changed.notify_all();
    }

    fn take(&mut self, lines: Vec<u8>) {
        if self.backlog.is_empty() {
            self.backlog = lines;
        } else if self.backlog.len() + lines.len() <= BACKLOG_BYTES {
            self.backlog.extend_from_slice(&lines);
        } else {
            self.shared.state.log_lines_failed.fetch_add(count_lines(&lines), Relaxed);
        }
        self.write_backlog();
    }

    fn write_backlog(&mut self) {
        let mut written = 0;
        let result = loop {
            if written == self.backlog.len() {
                break Ok(());
            }
            match self.output.write(&self.backlog[written..]) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(some) => written += some,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        if written > 0 {
            self.torn = if self.backlog[written - 1] == b'\n' { LastLineCut::No } else { LastLineCut::Yes };
            self.backlog.drain(..written);
        }
        match result {
            Ok(()) => self.recovered(),
            Err(error) => self.failed(&error.to_string()),
        }
    }

    fn reopen_if_asked(&mut self) {
        if self.shared.reopen.swap(false, Relaxed) {
            self.reopen();
        }
    }

    fn reopen(&mut self) {
        let target = lock(&self.shared.target).clone();
        match Output::open(&target, self.shared.lines) {
            Ok(output) => {
                self.write_backlog();
                if self.torn == LastLineCut::Yes {
                    // The old file has the start of this line; the rest alone would be a wrong line in the new file.
                    let end = memchr::memchr(b'\n', &self.backlog).map_or(self.backlog.len(), |at| at + 1);
                    self.backlog.drain(..end);
                    self.shared.state.log_lines_failed.fetch_add(1, Relaxed);
                    self.torn = LastLineCut::No;
                }
                self.output = output;
                self.shared.enabled.store(target != LogTarget::Off, Relaxed);
                // A new target starts without the errors of the old one.
                if self.degraded.take().is_some() {
                    self.shared.state.restore(self.shared.lines.subject());
                }
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                self.failed(&format!("{error}: {cause}; the one opened before is kept"));
            }
        }
    }

    fn failed(&mut self, reason: &str) {
        if self.degraded.is_none() {
            self.degraded = Some(Degraded { announced: Instant::now() });
            self.shared.state.degrade(self.shared.lines.subject(), &format!("cannot write: {reason}"));
        }
    }

    fn recovered(&mut self) {
        // A receiver of messages is tried seldom while it is away, so it cannot come and go often.
        let soon = matches!(self.output, Output::Syslog(_)) && self.backlog.is_empty();
        if self
            .degraded
            .as_ref()
            .is_some_and(|degraded| soon || degraded.announced.elapsed() >= ANNOUNCE_EVERY)
        {
            self.degraded = None;
            self.shared.state.restore(self.shared.lines.subject());
        }
    }
}

impl Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let start = Instant::now();
        loop {
            let result = match self {
                Self::Off => Ok(bytes.len()),
                // Writes to the descriptor, not to `Stdout` of std, whose line buffer costs a system call per line and
                // keeps data that could not be written, so that a failure looks like success.
                Self::Stdout => nix::unistd::write(io::stdout(), bytes).map_err(io::Error::from),
                Self::Stderr => nix::unistd::write(io::stderr(), bytes).map_err(io::Error::from),
                Self::File(file) => file.write(bytes),
                Self::Syslog(sender) => sender.write(bytes),
            };
            match result {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && start.elapsed() < STALL_LIMIT => {
                    thread::sleep(Duration::from_millis(5));
                }
                other => return other,
            }
        }
    }
}
