//! The keyboard during a run: Enter shows who is still running, or starts the next wave.

use std::io::{self, Read};
use std::sync::Arc;

use fleet::run::output::Outbox;
use fleet::run::terminal::Terminal;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{getpgrp, tcgetpgrp};
use std::os::fd::AsFd;
use tokio::sync::Notify;

/// Listens on a thread of its own for as long as the program runs.
pub fn listen(out: Outbox, enter: Arc<Notify>, terminal: Arc<Terminal>) {
    let listener = move || {
        let mut input = io::stdin();
        let mut key = [0; 256];
        loop {
            // In the background a read would stop the whole program.
            let foreground = tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp());
            if !foreground {
                std::thread::sleep(std::time::Duration::from_millis(500));
                continue;
            }
            let read = terminal.keys(|| {
                let descriptor = io::stdin();
                let mut wait = [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)];
                // No longer: a passphrase that is to be asked waits for this.
                let ready = poll(&mut wait, PollTimeout::from(100_u16));
                matches!(ready, Ok(1..)).then(|| input.read(&mut key))
            });
            match read {
                None => {}
                Some(Ok(0) | Err(_)) => return,
                Some(Ok(_)) => {
                    out.key();
                    enter.notify_waiters();
                }
            }
        }
    };
    // Without the thread there is no Enter, and everything else works.
    let _ = std::thread::Builder::new().name("keys".into()).spawn(listener);
}
