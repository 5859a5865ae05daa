//! One thread owns standard output and the progress line, so that neither corrupts the other and a slow reader slows
//! the hosts down.

use std::io::{self, Write};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hosts::fleet::ending::Ending;
use ssh::Moved;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::happening::Stream;
use super::keep::{Keep, Written};
use super::progress::Progress;
use super::stop::{Brake, Why, impatient};

enum Message {
    Output {
        host: usize,
        stream: Stream,
        bytes: Bytes,
        _room: Option<OwnedSemaphorePermit>,
    },
    Ended {
        host: usize,
        ending: Ending,
        took: Duration,
    },
    /// Total of the files copied to or from a host.
    Copied(usize, Moved),
    /// A line about the run, for standard error.
    Note(String),
    Tick,
    Key,
    /// A request for the number of different outputs among these hosts.
    Differing(Vec<usize>, oneshot::Sender<usize>),
    /// The pause between two waves begins, in which the user reads the output.
    Look,
    Finish(oneshot::Sender<Written>),
}

#[derive(Debug)]
pub(super) enum Finish {
    /// All output was written, or is listed as lost.
    Written(Written),
    /// The reader did not read within the time limit after the run was stopped. The thread may still be blocked on
    /// standard output.
    GivenUp,
    /// The thread panicked: a bug.
    Broken,
}

/// A format of the output. For each host, calls come in the order of its events.
pub trait View: Send {
    /// Formats more output of a host.
    ///
    /// # Errors
    /// `out` cannot be written to.
    fn output(&mut self, host: usize, stream: Stream, bytes: &[u8], out: &mut dyn Write) -> io::Result<()>;

    /// Formats the total of the files copied to or from a host. `ended` is called next for this host.
    ///
    /// # Errors
    /// `out` cannot be written to.
    fn copied(&mut self, _host: usize, _moved: Moved, _out: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }

    /// Formats the ending of a host.
    ///
    /// # Errors
    /// `out` cannot be written to.
    fn ended(&mut self, host: usize, ending: &Ending, took: Duration, out: &mut dyn Write) -> io::Result<()>;

    /// Formats what is known so far, for the pause between two waves.
    ///
    /// # Errors
    /// `out` cannot be written to.
    fn look(&mut self, _out: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }

    /// Number of different outputs among `hosts`, all of which have ended. `None` if the view does not compare outputs.
    fn differing(&self, _hosts: &[usize]) -> Option<usize> {
        None
    }

    /// Formats the rest, after all hosts have ended.
    ///
    /// # Errors
    /// `out` cannot be written to.
    fn finish(&mut self, out: &mut dyn Write) -> io::Result<()>;
}

/// Sends messages to the output thread. Cheap to clone.
#[derive(Clone)]
pub struct Outbox {
    to: mpsc::UnboundedSender<Message>,
    /// Limit of the output in the queue. Other messages need no limit: their number depends on the number of hosts
    /// only.
    room: Arc<Semaphore>,
    waiting: Arc<Waiting>,
}

/// Messages that are in the queue at most once each: while a reader blocks, they would fill the queue for hours.
#[derive(Default)]
struct Waiting {
    tick: AtomicBool,
    key: AtomicBool,
}

pub struct Sinks {
    /// Format of the output on standard output.
    pub view: Box<dyn View>,
    pub keep: Keep,
    /// Progress line on standard error, if that is a terminal.
    pub progress: Option<Progress>,
}

impl Outbox {
    /// Starts the output thread.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn open(sinks: Sinks, brake: Brake) -> io::Result<Self> {
        let (to, from) = mpsc::unbounded_channel();
        let waiting = Arc::new(Waiting::default());
        let taken = Arc::clone(&waiting);
        let halt = brake.clone();
        let thread = Printer { sinks, brake, buffer: Vec::new(), readable: true, waiting: taken };
        std::thread::Builder::new().name("output".into()).spawn(move || {
            if std::panic::catch_unwind(AssertUnwindSafe(|| thread.run(from))).is_err() {
                halt.pull(Why::OutputLost);
            }
        })?;
        Ok(Self { to, room: Arc::new(Semaphore::new(ROOM)), waiting })
    }

    /// Sends output, after it has waited for room in the queue.
    pub(super) async fn output(&self, host: usize, stream: Stream, bytes: Bytes) {
        let room = Arc::clone(&self.room).acquire_owned().await.ok();
        let _ = self.to.send(Message::Output { host, stream, bytes, _room: room });
    }

    pub(super) fn copied(&self, host: usize, moved: Moved) {
        let _ = self.to.send(Message::Copied(host, moved));
    }

    pub(super) fn ended(&self, host: usize, ending: Ending, took: Duration) {
        let _ = self.to.send(Message::Ended { host, ending, took });
    }

    /// Sends a line about the run, for standard error.
    pub fn note(&self, line: String) {
        let _ = self.to.send(Message::Note(line));
    }

    /// Requests an update of the progress line.
    pub fn tick(&self) {
        if !self.waiting.tick.swap(true, Ordering::AcqRel) {
            let _ = self.to.send(Message::Tick);
        }
    }

    /// Requests a list of the hosts that have not ended.
    pub fn key(&self) {
        if !self.waiting.key.swap(true, Ordering::AcqRel) {
            let _ = self.to.send(Message::Key);
        }
    }

    pub(super) fn look(&self) {
        let _ = self.to.send(Message::Look);
    }

    /// Number of different outputs among `hosts`. `None` if the thread has panicked or the view failed.
    pub(super) async fn differing(&self, hosts: Vec<usize>) -> Option<usize> {
        let (tell, told) = oneshot::channel();
        let _ = self.to.send(Message::Differing(hosts, tell));
        told.await.ok()
    }

    /// Waits until all output is written. Once the run is stopped, it waits for `patience` at most.
    pub(super) async fn finish(&self, brake: &Brake, patience: Duration) -> Finish {
        let (tell, told) = oneshot::channel();
        let _ = self.to.send(Message::Finish(tell));
        tokio::select! {
            biased;
            written = told => written.map_or(Finish::Broken, Finish::Written),
            () = impatient(brake, patience) => Finish::GivenUp,
        }
    }
}

struct Printer {
    sinks: Sinks,
    brake: Brake,
    buffer: Vec<u8>,
    readable: bool,
    waiting: Arc<Waiting>,
}

impl Printer {
    fn run(mut self, mut from: mpsc::UnboundedReceiver<Message>) {
        loop {
            let message = match from.try_recv() {
                Ok(message) => message,
                Err(_) => {
                    self.flush();
                    match from.blocking_recv() {
                        Some(message) => message,
                        None => return,
                    }
                }
            };
            self.take(message);
            if self.buffer.len() >= BUFFER {
                self.flush();
            }
        }
    }

    fn take(&mut self, message: Message) {
        let (view, keep, out) = (&mut self.sinks.view, &mut self.sinks.keep, &mut self.buffer);
        let written = match message {
            Message::Output { host, stream, bytes, .. } => {
                keep.output(host, stream, &bytes);
                view.output(host, stream, &bytes, out)
            }
            Message::Ended { host, ending, took } => {
                keep.ended(host);
                view.ended(host, &ending, took, out)
            }
            Message::Copied(host, moved) => view.copied(host, moved, out),
            Message::Note(line) => {
                self.flush();
                self.clear();
                let _ = writeln!(io::stderr(), "{line}");
                Ok(())
            }
            Message::Tick => {
                self.waiting.tick.store(false, Ordering::Release);
                // Buffered standard output is written before the line on standard error.
                self.flush();
                if let Some(progress) = &mut self.sinks.progress {
                    progress.draw();
                }
                Ok(())
            }
            Message::Key => {
                self.waiting.key.store(false, Ordering::Release);
                self.flush();
                if let Some(progress) = &mut self.sinks.progress {
                    progress.tell_running();
                }
                Ok(())
            }
            Message::Differing(hosts, tell) => {
                let count = view.differing(&hosts).unwrap_or_else(|| keep.differing(&hosts));
                let _ = tell.send(count);
                Ok(())
            }
            Message::Look => {
                self.flush();
                self.clear();
                self.show(|view, out| view.look(out))
            }
            Message::Finish(tell) => {
                self.flush();
                self.clear();
                self.sinks.progress = None;
                let finished = self.show(|view, out| view.finish(out));
                // Before [`Keep::finish`], which returns the list of lost output.
                if let Err(error) = finished {
                    self.broken(&error);
                }
                let _ = tell.send(self.sinks.keep.finish());
                Ok(())
            }
        };
        if let Err(error) = written {
            self.broken(&error);
        }
    }

    /// Calls the view with a buffered standard output: the view may write more than memory holds.
    fn show(&mut self, what: impl FnOnce(&mut dyn View, &mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        if !self.readable {
            return Ok(());
        }
        let mut out = io::BufWriter::with_capacity(BUFFER, io::stdout().lock());
        let shown = what(self.sinks.view.as_mut(), &mut out).and_then(|()| out.flush());
        // Without `into_parts` a drop of the buffer would write the failed bytes again.
        let _ = out.into_parts();
        shown
    }

    fn clear(&mut self) {
        if let Some(progress) = &mut self.sinks.progress {
            progress.clear();
        }
    }

    fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        self.clear();
        let result = if self.readable {
            let mut out = io::stdout().lock();
            out.write_all(&self.buffer).and_then(|()| out.flush())
        } else {
            Ok(())
        };
        self.buffer.clear();
        if let Err(error) = result {
            self.broken(&error);
        }
    }

    fn broken(&mut self, error: &io::Error) {
        if !self.readable {
            return;
        }
        self.readable = false;
        if error.kind() == io::ErrorKind::BrokenPipe {
            self.brake.pull(Why::ReaderGone);
            return;
        }
        self.clear();
        let _ = writeln!(io::stderr(), "error: cannot write to standard output: {error}");
        self.brake.pull(Why::OutputLost);
    }
}

/// Limit of the pieces of output in the queue, each at most as large as an SSH packet.
const ROOM: usize = 128;
const BUFFER: usize = 64 * 1024;
