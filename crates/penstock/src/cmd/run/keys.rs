//! The keyboard during a run: Enter shows the hosts still running, or starts the next wave.
//!
//! Lines that were pasted together with the command are for the shell, which reads them when the run has ended. So only an
//! Enter by itself is taken from the terminal, and nothing that waits behind other text.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use fleet::run::output::Outbox;
use fleet::run::terminal::Terminal;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{getpgrp, read, tcgetpgrp};
use tokio::sync::Notify;

/// Time until a terminal is looked at again that has nothing for the run.
const LOOK: Duration = Duration::from_millis(500);

/// Said once: no Enter behind the text can be read.
const WAITS: &str = "typed text waits for the shell: Enter shows nothing until the run has ended";

/// What may be read from the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// An Enter by itself.
    Enter,
    /// Every line, because the run waits for an answer (`--pause`). Only an Enter by itself is one.
    Lines,
}

/// Starts a thread that reads keys until the program ends.
pub(super) fn listen(taken: Taken, out: Outbox, enter: Arc<Notify>, terminal: Arc<Terminal>) {
    let listener = move || {
        let mut is_told = false;
        loop {
            // A read in the background would stop the whole process (SIGTTIN).
            let foreground = tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp());
            if !foreground {
                std::thread::sleep(LOOK);
                continue;
            }
            match terminal.keys(|| look(taken)) {
                Seen::Nothing => {}
                Seen::Others => {
                    if !std::mem::replace(&mut is_told, true) {
                        out.note(WAITS.to_owned());
                    }
                    std::thread::sleep(LOOK);
                }
                Seen::End => return,
                Seen::Line => out.note("only Enter by itself goes on: the line is left out".to_owned()),
                Seen::Enter => {
                    out.key();
                    enter.notify_waiters();
                }
            }
        }
    };
    // Without the thread only the Enter key does not work.
    let _ = std::thread::Builder::new().name("keys".into()).spawn(listener);
}

enum Seen {
    Nothing,
    Enter,
    /// A line with text, which was read.
    Line,
    /// Text for others, which was not read.
    Others,
    /// Nothing can be read any more.
    End,
}

fn look(taken: Taken) -> Seen {
    let input = io::stdin();
    let mut wait = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
    // Use a short timeout, because the prompt for a passphrase waits for this read.
    if !matches!(poll(&mut wait, PollTimeout::from(100_u16)), Ok(1..)) {
        return Seen::Nothing;
    }
    let mut keys = [0; 256];
    let most = match (taken, sys::terminal::typed(&input)) {
        (_, Err(_)) => return Seen::End,
        (Taken::Enter, Ok(2..)) => return Seen::Others,
        // More may have come since: the line behind the Enter stays.
        (Taken::Enter, Ok(_)) => 1,
        (Taken::Lines, Ok(_)) => keys.len(),
    };
    // Not through the buffer of the standard library, which would take more.
    match read(&input, &mut keys[..most]) {
        Ok(0) | Err(_) => Seen::End,
        Ok(1) if keys[0] == b'\n' => Seen::Enter,
        Ok(_) => Seen::Line,
    }
}
