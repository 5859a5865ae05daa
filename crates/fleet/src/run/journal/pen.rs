//! The thread that writes the journal of a run.
//!
//! A line is an append of some hundred bytes that is not synced: the record is for a crash of this program, and a run on 1,000
//! hosts would wait for the disk 2,000 times. So on a local disk it ends in memory at once. But a home may be on a network file
//! system, where an append asks the server first, and a disk may hang: on a thread of the runtime that would hold up all hosts,
//! all time limits and Ctrl-C.
//!
//! Lines are written in the order in which they came, and whoever waits for one is told when it is in the file: a crash of this
//! program loses no line of which anybody was told.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::oneshot;

/// Writes lines in order. Dropped, it writes what is left and closes the file, for which nobody waits.
#[derive(Debug)]
pub(super) struct Pen {
    desk: Arc<Desk>,
}

/// What the thread shares with us.
#[derive(Debug, Default)]
struct Desk {
    pile: Mutex<Pile>,
    changed: Condvar,
}

#[derive(Default)]
struct Pile {
    /// At most two for each host: it waits for its first line before it goes on.
    lines: VecDeque<Line>,
    state: State,
    /// Why something that happened is not there.
    lost: Option<io::Error>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    /// The thread ends when all is written.
    Closed,
    /// The disk was waited for long enough: nothing is written any more.
    GivenUp,
}

/// What is to be written, if anything, and who is told.
struct Line {
    text: Option<String>,
    then: Then,
}

/// Is told how it went, and where to note that something is lost.
type Then = Box<dyn FnOnce(io::Result<()>, &mut Option<io::Error>) + Send>;

impl Pen {
    /// Takes over a file.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn take(file: File) -> io::Result<Self> {
        let desk = Arc::new(Desk::default());
        let shared = Arc::clone(&desk);
        std::thread::Builder::new().name("journal".into()).spawn(move || shared.write_all(&file))?;
        Ok(Self { desk })
    }

    /// Writes this down, and waits until it is in the file.
    ///
    /// # Errors
    /// It is not, or not whole.
    pub(super) fn written(&self, value: &Value) -> impl Future<Output = io::Result<()>> + use<> {
        let (tell, told) = oneshot::channel();
        let then: Then = Box::new(|written, _| _ = tell.send(written));
        self.desk.put(Line { text: Some(value.to_string()), then });
        async move {
            let broke = |_| Err(io::Error::other("the thread that writes it broke"));
            told.await.unwrap_or_else(broke)
        }
    }

    /// Writes down what has happened already, which cannot wait for a disk that has room; and calls `then`.
    pub(super) fn note(&self, value: &Value, then: impl FnOnce() + Send + 'static) {
        let then: Then = Box::new(|written, lost| {
            if let Err(error) = written {
                lost.get_or_insert(error);
            }
            then();
        });
        self.desk.put(Line { text: Some(value.to_string()), then });
    }

    /// Waits until all that came before is written, and told.
    pub(super) async fn settled(&self) {
        let (tell, told) = oneshot::channel();
        self.desk.put(Line { text: None, then: Box::new(|_, _| _ = tell.send(())) });
        let _ = told.await;
    }

    /// Tells everybody who waits, now and later, that nothing is written any more.
    pub(super) fn give_up(&self) {
        let mut pile = self.desk.pile();
        pile.state = State::GivenUp;
        let lines = std::mem::take(&mut pile.lines);
        lines.into_iter().for_each(|line| (line.then)(Err(given_up()), &mut pile.lost));
        self.desk.changed.notify_one();
    }

    /// Why something that happened is not in the file.
    pub(super) fn lost(&self) -> Option<io::Error> {
        self.desk.pile().lost.take()
    }
}

impl Drop for Pen {
    fn drop(&mut self) {
        let mut pile = self.desk.pile();
        if pile.state == State::Open {
            pile.state = State::Closed;
        }
        self.desk.changed.notify_one();
    }
}

impl Desk {
    fn pile(&self) -> MutexGuard<'_, Pile> {
        self.pile.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, line: Line) {
        let mut pile = self.pile();
        match pile.state {
            State::Open | State::Closed => {
                pile.lines.push_back(line);
                self.changed.notify_one();
            }
            State::GivenUp => (line.then)(Err(given_up()), &mut pile.lost),
        }
    }

    /// Until it is closed. A line stays on the pile until it is written, so that whoever gives up finds it there.
    fn write_all(&self, mut file: &File) {
        let mut torn = Torn::No;
        let mut pile = self.pile();
        loop {
            let Some(line) = pile.lines.front() else {
                if pile.state != State::Open {
                    return;
                }
                pile = self.changed.wait(pile).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let mut written = Ok(());
            if let Some(text) = &line.text {
                // What a full disk cut short must not swallow the line after it.
                let text = match torn {
                    Torn::No => format!("{text}\n"),
                    Torn::Yes => format!("\n{text}\n"),
                };
                drop(pile);
                written = file.write_all(text.as_bytes());
                torn = if written.is_ok() { Torn::No } else { Torn::Yes };
                pile = self.pile();
            }
            if pile.state == State::GivenUp {
                return;
            }
            if let Some(line) = pile.lines.pop_front() {
                (line.then)(written, &mut pile.lost);
            }
        }
    }
}

/// Whether the last line may be cut.
#[derive(Clone, Copy)]
enum Torn {
    Yes,
    No,
}

impl std::fmt::Debug for Pile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pile")
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

    /// A pipe that nobody reads, filled up: who writes to it hangs.
    fn hanging() -> (Pen, std::io::PipeReader) {
        let (from, mut to) = std::io::pipe().unwrap();
        to.write_all(&[b'x'; 64 << 10]).unwrap();
        (Pen::take(File::from(OwnedFd::from(to))).unwrap(), from)
    }

    #[tokio::test]
    async fn disk_that_hangs_holds_up_only_who_waits_for_it_and_nobody_is_told_before() {
        let (pen, mut from) = hanging();
        let (tell, mut told) = oneshot::channel();
        let mut sent = Box::pin(pen.written(&json!({ "sent": 0 })));
        tokio::select! {
            biased;
            _ = &mut sent => panic!("nothing was written"),
            () = tokio::task::yield_now() => {}
        }
        pen.note(&json!({ "host": 0 }), || tell.send(()).unwrap());
        assert!(told.try_recv().is_err());
        let mut all = vec![0; 64 << 10];
        from.read_exact(&mut all).unwrap();
        sent.await.unwrap();
        told.await.unwrap();
        let mut rest = String::new();
        drop(pen);
        from.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "{\"sent\":0}\n{\"host\":0}\n");
    }

    #[tokio::test]
    async fn disk_that_is_given_up_is_waited_for_by_nobody() {
        let (pen, from) = hanging();
        let (tell, told) = oneshot::channel();
        pen.note(&json!({ "host": 0 }), || tell.send(()).unwrap());
        let sent = pen.written(&json!({ "sent": 1 }));
        pen.give_up();
        told.await.unwrap();
        assert_eq!(sent.await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(pen.written(&json!({ "sent": 2 })).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        pen.settled().await;
        assert!(pen.lost().is_some());
        drop(from);
    }

    #[tokio::test]
    async fn full_disk_is_told_to_who_waits_and_kept_where_nobody_does() {
        let pen = Pen::take(File::options().write(true).open("/dev/full").unwrap()).unwrap();
        assert!(pen.written(&json!({ "sent": 0 })).await.is_err());
        assert!(pen.lost().is_none());
        pen.note(&json!({ "host": 0 }), || ());
        pen.settled().await;
        assert!(pen.lost().is_some());
    }
}
