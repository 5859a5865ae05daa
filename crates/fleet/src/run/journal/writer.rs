//! The thread that writes the record of a run.
//!
//! A line is an append of a few hundred bytes without fsync(2): the record must survive a crash of this program, not of
//! the machine, and a run on 1,000 hosts would wait for the disk 2,000 times. On a local disk the append only changes
//! memory. But a network file system asks its server for each append, and a disk may hang: on a thread of the runtime
//! that would block all hosts, all timeouts and Ctrl-C.
//!
//! Lines are written in order. A task that waits for a line is notified when the line is in the file: a crash of this
//! program loses no line that was reported as written.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::oneshot;

/// Writes lines in order. After a drop its thread writes the lines that are left and closes the file; the drop does not
/// wait.
#[derive(Debug)]
pub(super) struct RecordWriter {
    shared: Arc<Shared>,
}

/// Data that the writer and its thread share.
#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    /// At most two lines for each host, since a host waits until its first line is written.
    lines: VecDeque<Line>,
    state: State,
    /// First error of a write that lost a line.
    lost: Option<io::Error>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    /// The thread ends when all lines are written.
    Closed,
    /// The time limit of the disk has passed: no further line is written.
    GivenUp,
}

/// A line to write, if any, and the callback to call after it.
struct Line {
    text: Option<String>,
    then: Then,
}

/// Callback with the result of the write. The second argument is the place for an error that lost a line.
type Then = Box<dyn FnOnce(io::Result<()>, &mut Option<io::Error>) + Send>;

impl RecordWriter {
    /// Starts the thread, which owns `file`.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn take(file: File) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        std::thread::Builder::new().name("journal".into()).spawn(move || own.write_all(&file))?;
        Ok(Self { shared })
    }

    /// Writes `value`, and waits until it is in the file.
    ///
    /// # Errors
    /// The line is not in the file, or not completely.
    pub(super) fn written(&self, value: &Value) -> impl Future<Output = io::Result<()>> + use<> {
        let (tell, told) = oneshot::channel();
        let then: Then = Box::new(|written, _| _ = tell.send(written));
        self.shared.put(Line { text: Some(value.to_string()), then });
        async move {
            let broke = |_| Err(io::Error::other("the thread that writes it failed"));
            told.await.unwrap_or_else(broke)
        }
    }

    /// Writes an event that has already happened, then calls `then`, also after an error.
    pub(super) fn note(&self, value: &Value, then: impl FnOnce() + Send + 'static) {
        let then: Then = Box::new(|written, lost| {
            if let Err(error) = written {
                lost.get_or_insert(error);
            }
            then();
        });
        self.shared.put(Line { text: Some(value.to_string()), then });
    }

    /// Waits until all lines so far are written, and their callbacks have returned.
    pub(super) async fn settled(&self) {
        let (tell, told) = oneshot::channel();
        self.shared.put(Line { text: None, then: Box::new(|_, _| _ = tell.send(())) });
        let _ = told.await;
    }

    /// Gives up the disk: calls all callbacks, now and later, with an error.
    pub(super) fn give_up(&self) {
        let mut queue = self.shared.queue();
        queue.state = State::GivenUp;
        let lines = std::mem::take(&mut queue.lines);
        lines.into_iter().for_each(|line| (line.then)(Err(given_up()), &mut queue.lost));
        self.shared.changed.notify_one();
    }

    /// First error of a write that lost a line.
    pub(super) fn lost(&self) -> Option<io::Error> {
        self.shared.queue().lost.take()
    }
}

impl Drop for RecordWriter {
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        if queue.state == State::Open {
            queue.state = State::Closed;
        }
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, line: Line) {
        let mut queue = self.queue();
        match queue.state {
            State::Open | State::Closed => {
                queue.lines.push_back(line);
                self.changed.notify_one();
            }
            State::GivenUp => (line.then)(Err(given_up()), &mut queue.lost),
        }
    }

    /// Writes lines until the writer is closed. A line stays in the queue until it is written, so that `give_up` finds
    /// it.
    fn write_all(&self, mut file: &File) {
        let mut torn = LastLineCut::No;
        let mut queue = self.queue();
        loop {
            let Some(line) = queue.lines.front() else {
                if queue.state != State::Open {
                    return;
                }
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let mut written = Ok(());
            if let Some(text) = &line.text {
                // After an incomplete line, for example on a full disk, the next line starts with a line feed.
                let text = match torn {
                    LastLineCut::No => format!("{text}\n"),
                    LastLineCut::Yes => format!("\n{text}\n"),
                };
                drop(queue);
                written = file.write_all(text.as_bytes());
                torn = if written.is_ok() { LastLineCut::No } else { LastLineCut::Yes };
                queue = self.queue();
            }
            if queue.state == State::GivenUp {
                return;
            }
            if let Some(line) = queue.lines.pop_front() {
                (line.then)(written, &mut queue.lost);
            }
        }
    }
}

/// Whether the last line may be incomplete.
#[derive(Clone, Copy)]
enum LastLineCut {
    Yes,
    No,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("lines", &self.lines.len())
            .field("state", &self.state)
            .field("lost", &self.lost)
            .finish()
    }
}

fn given_up() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "its disk did not answer")
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use serde_json::json;

    use super::*;

    /// A full pipe whose reader does not read, so that a write blocks.
    fn hanging() -> (RecordWriter, std::io::PipeReader) {
        let (from, mut to) = std::io::pipe().unwrap();
        to.write_all(&[b'x'; 64 << 10]).unwrap();
        (RecordWriter::take(File::from(OwnedFd::from(to))).unwrap(), from)
    }

    #[tokio::test]
    async fn disk_that_hangs_holds_up_only_who_waits_for_it_and_nobody_is_told_before() {
        let (writer, mut from) = hanging();
        let (tell, mut told) = oneshot::channel();
        let mut sent = Box::pin(writer.written(&json!({ "sent": 0 })));
        tokio::select! {
            biased;
            _ = &mut sent => panic!("nothing was written"),
            () = tokio::task::yield_now() => {}
        }
        writer.note(&json!({ "host": 0 }), || tell.send(()).unwrap());
        assert!(told.try_recv().is_err());
        let mut all = vec![0; 64 << 10];
        from.read_exact(&mut all).unwrap();
        sent.await.unwrap();
        told.await.unwrap();
        let mut rest = String::new();
        drop(writer);
        from.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "{\"sent\":0}\n{\"host\":0}\n");
    }

    #[tokio::test]
    async fn disk_that_is_given_up_is_waited_for_by_nobody() {
        let (writer, from) = hanging();
        let (tell, told) = oneshot::channel();
        writer.note(&json!({ "host": 0 }), || tell.send(()).unwrap());
        let sent = writer.written(&json!({ "sent": 1 }));
        writer.give_up();
        told.await.unwrap();
        assert_eq!(sent.await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(writer.written(&json!({ "sent": 2 })).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        writer.settled().await;
        assert!(writer.lost().is_some());
        drop(from);
    }

    #[tokio::test]
    async fn full_disk_is_told_to_who_waits_and_kept_where_nobody_does() {
        let writer = RecordWriter::take(File::options().write(true).open("/dev/full").unwrap()).unwrap();
        assert!(writer.written(&json!({ "sent": 0 })).await.is_err());
        assert!(writer.lost().is_none());
        writer.note(&json!({ "host": 0 }), || ());
        writer.settled().await;
        assert!(writer.lost().is_some());
    }
}
