//! Writer thread of the access log.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use config::types::LogTarget;

use super::{Message, Output, Shared, count_lines};
use crate::events::Level;
use crate::lock::lock;

/// Maximum bytes kept for a retry while the target accepts no data.
const BACKLOG_BYTES: usize = 1024 * 1024;

/// Retry interval for a target that accepts no data; the next batch also causes a retry.
const RETRY: Duration = Duration::from_secs(1);

/// Minimum time between two events of a failing log: on a nearly full disk, each batch would cause one. Its state follows at once.
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
    health: Health,
    /// When an event said that the log fails, if none has said since that it works.
    announced: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Works,
    CannotWrite,
    /// The target of a reload or a rotation could not be opened; lines go to the one before.
    CannotOpen,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LastLineCut {
    Yes,
    No,
}

impl Writer {
    pub(super) fn new(output: Output, shared: Arc<Shared>) -> Self {
        Self {
            output,
            shared,
            backlog: Vec::new(),
            torn: LastLineCut::No,
            health: Health::Works,
            announced: None,
        }
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
            Err(error) => self.failed(Health::CannotWrite, &error.to_string()),
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
                self.health = Health::Works;
                self.shared.state.restore_unsaid(self.shared.lines.subject());
                if self.announced.take().is_some() {
                    self.say_that_it_works();
                }
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                let reason = format!("{error}: {cause}; the one opened before is kept");
                self.failed(Health::CannotOpen, &reason);
            }
        }
    }

    /// The state follows at once; an event comes only if the last one is a while ago.
    fn failed(&mut self, health: Health, reason: &str) {
        if self.health != Health::Works {
            return;
        }
        self.health = health;
        let (subject, reason) = (self.shared.lines.subject(), format!("cannot write: {reason}"));
        match self.announced {
            Some(_) => self.shared.state.degrade_unsaid(subject, &reason),
            None => {
                self.announced = Some(Instant::now());
                self.shared.state.degrade(subject, &reason);
            }
        }
    }

    fn recovered(&mut self) {
        let is_old = self.announced.is_some_and(|announced| announced.elapsed() >= ANNOUNCE_EVERY);
        match self.health {
            Health::CannotOpen if !is_old => return,
            _ if !self.backlog.is_empty() => return,
            Health::Works => {}
            Health::CannotOpen | Health::CannotWrite => {
                self.health = Health::Works;
                self.shared.state.restore_unsaid(self.shared.lines.subject());
            }
        }
        // A receiver of messages is tried seldom while it is away, so it cannot come and go often.
        if self.announced.is_some() && (is_old || matches!(self.output, Output::Syslog(_))) {
            self.announced = None;
            self.say_that_it_works();
        }
    }

    fn say_that_it_works(&self) {
        self.shared.state.events.record(Level::Info, self.shared.lines.subject(), "works again");
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
