//! Shares the terminal between the progress line, the keyboard and questions. While the user types a passphrase, the
//! progress line is not drawn, and keys go to the question only.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use ssh::keys::{Ask, AskError, Question};

#[derive(Debug, Default)]
pub struct Terminal {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    questions: usize,
    keys: Keys,
    line: Line,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Keys {
    #[default]
    Free,
    Read,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Line {
    #[default]
    Away,
    Shown,
}

impl Terminal {
    /// Wraps `person`, so that a question of its own holds the terminal until it is answered.
    #[must_use]
    pub fn person(self: &Arc<Self>, person: Arc<dyn Ask>) -> Arc<dyn Ask> {
        Arc::new(Alone { terminal: Arc::clone(self), person })
    }

    /// Calls `read` when no question waits for an answer. `read` must not take long, since a question waits for it.
    pub fn keys<T>(&self, read: impl FnOnce() -> T) -> T {
        let mut state = self.state();
        while state.questions > 0 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.keys = Keys::Read;
        drop(state);
        let read = read();
        self.state().keys = Keys::Free;
        self.changed.notify_all();
        read
    }

    /// Draws the progress line on standard error, unless a question waits for an answer.
    pub(super) fn draw(&self, line: &str) {
        let mut state = self.state();
        if state.questions == 0 {
            let _ = write!(io::stderr(), "\r\x1b[K{line}");
            state.line = Line::Shown;
        }
    }

    /// Erases the progress line.
    pub(super) fn clear(&self) {
        self.state().clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn clear(&mut self) {
        if std::mem::take(&mut self.line) == Line::Shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

struct Alone {
    terminal: Arc<Terminal>,
    person: Arc<dyn Ask>,
}

impl Ask for Alone {
    fn ask(&self, question: &Question) -> Result<zeroize::Zeroizing<String>, AskError> {
        let mut state = self.terminal.state();
        state.questions += 1;
        let _standing = TerminalGuard(&self.terminal);
        while state.keys == Keys::Read {
            state = self.terminal.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.clear();
        drop(state);
        self.person.ask(question)
    }
}

/// Releases the terminal when it is dropped.
struct TerminalGuard<'a>(&'a Terminal);

impl Drop for TerminalGuard<'_> {
    fn drop(&mut self) {
        self.0.state().questions -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    struct Slow(Mutex<mpsc::Sender<()>>, Mutex<mpsc::Receiver<()>>);

    impl Ask for Slow {
        fn ask(&self, _: &Question) -> Result<zeroize::Zeroizing<String>, AskError> {
            self.0.lock().unwrap().send(()).unwrap();
            self.1.lock().unwrap().recv().unwrap();
            Err(AskError::Cancelled)
        }
    }

    #[test]
    fn while_a_question_stands_there_is_no_line_and_no_key_is_read() {
        let terminal = Arc::new(Terminal::default());
        let ((asked, asks), (answer, answers)) = (mpsc::channel(), mpsc::channel());
        let person = terminal.person(Arc::new(Slow(Mutex::new(asked), Mutex::new(answers))));
        terminal.draw("");
        let question = Question { text: "?: ".to_owned(), answer: ssh::keys::Answered::Unseen };
        let asking = std::thread::spawn(move || person.ask(&question));
        asks.recv().unwrap();
        assert_eq!(terminal.state().line, Line::Away);
        terminal.draw("");
        assert_eq!(terminal.state().line, Line::Away);
        let (read, reads) = mpsc::channel();
        let keyboard = Arc::clone(&terminal);
        let reading =
            std::thread::spawn(move || keyboard.keys(|| read.send(keyboard.state().questions).unwrap()));
        answer.send(()).unwrap();
        assert_eq!(reads.recv().unwrap(), 0, "keys are read when the question is gone");
        reading.join().unwrap();
        assert_eq!(asking.join().unwrap(), Err(AskError::Cancelled));
        terminal.draw("");
        assert_eq!(terminal.state().line, Line::Shown);
    }
}
