//! From the hosts to the terminal or the pipe: one thread owns standard output and the progress line, so that neither
//! breaks the other, and a slow reader slows the hosts down.

use std::io::{self, Write};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use logic::fleet::ending::Ending;
use ssh::Moved;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::engine::Stream;
use super::progress::Progress;
use super::stop::{Brake, Why, impatient};

/// What goes to the thread.
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
    /// What was copied to or from a host.
    Copied(usize, Moved),
    /// A line about the run, for standard error.
    Note(String),
    Tick,
    /// Somebody pressed Enter.
    Key,
    /// How many different outputs there are among these hosts.
    Differing(Vec<usize>, oneshot::Sender<usize>),
    /// Somebody has a look between two waves.
    Look,
    Finish(oneshot::Sender<Written>),
}

/// What became of the output.
#[derive(Debug, Default)]
pub struct Written {
    /// What could not be kept, and of whom.
    pub lost: Vec<(usize, String)>,
    /// Hashes of what each host said, by host.
    pub hashes: Vec<Option<String>>,
}

/// How writing the output ended.
#[derive(Debug)]
pub(super) enum Finish {
    /// Everything is written, or told to be lost.
    Written(Written),
    /// Nobody took it for a while after the run was stopped. The thread may still hold standard output.
    GivenUp,
    /// The thread broke, a fault of ours.
    Broken,
}

/// Shows output in one way or another. Calls come in order for each host.
pub trait View: Send {
    /// More output of a host.
    ///
    /// # Errors
    /// It cannot be written to `out`.
    fn output(&mut self, host: usize, stream: Stream, bytes: &[u8], out: &mut dyn Write) -> io::Result<()>;

    /// This was copied to or from a host, which is done next.
    ///
    /// # Errors
    /// It cannot be written to `out`.
    fn copied(&mut self, _host: usize, _moved: Moved, _out: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }

    /// A host is done.
    ///
    /// # Errors
    /// It cannot be written to `out`.
    fn ended(&mut self, host: usize, ending: &Ending, took: Duration, out: &mut dyn Write) -> io::Result<()>;

    /// Somebody has a look between two waves.
    ///
    /// # Errors
    /// It cannot be written to `out`.
    fn look(&mut self, _out: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }

    /// How many different outputs there are among these hosts, which are done; `None` if the view does not compare.
    fn differing(&self, _hosts: &[usize]) -> Option<usize> {
        None
    }

    /// All hosts are done.
    ///
    /// # Errors
    /// It cannot be written to `out`.
    fn finish(&mut self, out: &mut dyn Write) -> io::Result<()>;
}

/// Hands output to the thread. Cheap to clone.
#[derive(Clone)]
pub struct Outbox {
    to: mpsc::UnboundedSender<Message>,
    /// Only output waits for room: everything else is bounded by the number of hosts.
    room: Arc<Semaphore>,
    waiting: Arc<Waiting>,
}

/// What is in the queue once at most: while nobody reads, these would pile up for hours.
#[derive(Default)]
struct Waiting {
    tick: AtomicBool,
    key: AtomicBool,
}

/// The thread's sinks.
pub struct Sinks {
    /// What is shown on standard output.
    pub view: Box<dyn View>,
    /// What is kept beside it.
    pub keep: super::keep::Keep,
    /// The line on standard error, if that is a terminal.
    pub progress: Option<Progress>,
}

impl Outbox {
    /// Starts the thread.
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

    /// Waits for room, then hands over output.
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

    /// A line about the run, for standard error.
    pub fn note(&self, line: String) {
        let _ = self.to.send(Message::Note(line));
    }

    /// Draws the progress line anew.
    pub fn tick(&self) {
        if !self.waiting.tick.swap(true, Ordering::AcqRel) {
            let _ = self.to.send(Message::Tick);
        }
    }

    /// Shows who is still running.
    pub fn key(&self) {
        if !self.waiting.key.swap(true, Ordering::AcqRel) {
            let _ = self.to.send(Message::Key);
        }
    }

    pub(super) fn look(&self) {
        let _ = self.to.send(Message::Look);
    }

    /// How many different outputs there are; `None` if nobody can tell, since the thread broke.
    pub(super) async fn differing(&self, hosts: Vec<usize>) -> Option<usize> {
        let (tell, told) = oneshot::channel();
        let _ = self.to.send(Message::Differing(hosts, tell));
        told.await.ok()
    }

    /// Waits until everything is written; once the run is stopped, for `patience` more.
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
                // Standard output that waits in the buffer comes first.
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
                // Before anybody asks how it went.
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

    /// Lets the view write past the buffer: it may have much to say.
    fn show(&mut self, what: impl FnOnce(&mut dyn View, &mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        if !self.readable {
            return Ok(());
        }
        let mut out = io::BufWriter::with_capacity(BUFFER, io::stdout().lock());
        let shown = what(self.sinks.view.as_mut(), &mut out).and_then(|()| out.flush());
        // What could not be written is not tried once more on drop.
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

/// Pieces of output on their way to the thread, each at most as large as a packet.
const ROOM: usize = 128;
const BUFFER: usize = 64 * 1024;
