//! The keyboard during a run: Enter shows the hosts still running, or starts the next wave.

use std::io::{self, Read};
use std::sync::Arc;

use fleet::run::output::Outbox;
use fleet::run::terminal::Terminal;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{getpgrp, tcgetpgrp};
use std::os::fd::AsFd;
use tokio::sync::Notify;

/// Starts a thread that reads keys until the program ends.
pub(super) fn listen(out: Outbox, enter: Arc<Notify>, terminal: Arc<Terminal>) {
    let listener = move || {
        let mut input = io::stdin();
        let mut key = [0; 256];
        loop {
            // A read in the background would stop the whole process (SIGTTIN).
            let foreground = tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp());
            if !foreground {
                std::thread::sleep(std::time::Duration::from_millis(500));
                continue;
            }
            let read = terminal.keys(|| {
                let descriptor = io::stdin();
                let mut wait = [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)];
                // Use a short timeout, because the prompt for a passphrase waits for this read.
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
    // Without the thread only the Enter key does not work.
    let _ = std::thread::Builder::new().name("keys".into()).spawn(listener);
}
