//! The thread that writes the access log.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use config::types::LogTarget;

use super::{Message, Output, Shared, count_lines};
use crate::lock::lock;

/// Bytes kept for another try while the target takes none.
const BACKLOG_BYTES: usize = 1024 * 1024;

/// A target that took nothing is tried again after so long, or with the next batch.
const RETRY: Duration = Duration::from_secs(1);

/// A failing log is said at most so often: it would otherwise come and go with every batch on a nearly full disk.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(60);

/// A pipe or terminal that takes no byte for so long counts as failed.
const STALL_LIMIT: Duration = Duration::from_secs(1);

const SUBJECT: &str = "access-log";

pub(super) struct Writer {
    output: Output,
    shared: Arc<Shared>,
    /// Not yet written. Its first line may have been written in part: then only the rest of it is here.
    backlog: Vec<u8>,
    /// Whether the last byte written was in the middle of a line.
    torn: Torn,
    degraded: Option<Degraded>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Torn {
    Yes,
    No,
}

struct Degraded {
    announced: Instant,
}

impl Writer {
    pub(super) fn new(output: Output, shared: Arc<Shared>) -> Self {
        Self { output, shared, backlog: Vec::new(), torn: Torn::No, degraded: None }
    }

    pub(super) fn run(mut self, receiver: &Receiver<Message>) {
        loop {
            let message = receiver.recv_timeout(RETRY);
            if self.shared.reopen.swap(false, Relaxed) {
                self.reopen();
            }
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
        // What was handed over before the end came is still in the channel.
        while let Ok(message) = receiver.try_recv() {
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
            self.torn = if self.backlog[written - 1] == b'\n' { Torn::No } else { Torn::Yes };
            self.backlog.drain(..written);
        }
        match result {
            Ok(()) => self.recovered(),
            Err(error) => self.failed(&error.to_string()),
        }
    }

    fn reopen(&mut self) {
        let target = lock(&self.shared.target).clone();
        match Output::open(&target) {
            Ok(output) => {
                self.write_backlog();
                if self.torn == Torn::Yes {
                    // The start of this line is in the old file; its end alone would be a wrong line in the new one.
                    let end = memchr::memchr(b'\n', &self.backlog).map_or(self.backlog.len(), |at| at + 1);
                    self.backlog.drain(..end);
                    self.shared.state.log_lines_failed.fetch_add(1, Relaxed);
                    self.torn = Torn::No;
                }
                self.output = output;
                self.shared.enabled.store(target != LogTarget::Off, Relaxed);
                // A new target owes nothing to the faults of the old one.
                if self.degraded.take().is_some() {
                    self.shared.state.restore(SUBJECT);
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
            self.shared.state.degrade(SUBJECT, &format!("cannot write: {reason}"));
        }
    }

    fn recovered(&mut self) {
        if self.degraded.as_ref().is_some_and(|degraded| degraded.announced.elapsed() >= ANNOUNCE_EVERY) {
            self.degraded = None;
            self.shared.state.restore(SUBJECT);
        }
    }
}

impl Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let start = Instant::now();
        loop {
            let result = match self {
                Self::Off => Ok(bytes.len()),
                // `Stdout` of std buffers lines and keeps what it could not write: each line then costs a system
                // call, and a failure cannot be told from success. The descriptor itself has neither habit.
                Self::Stdout => nix::unistd::write(io::stdout(), bytes).map_err(io::Error::from),
                Self::Stderr => nix::unistd::write(io::stderr(), bytes).map_err(io::Error::from),
                Self::File(file) => file.write(bytes),
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
