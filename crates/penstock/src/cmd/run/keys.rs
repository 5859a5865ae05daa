//! The keyboard during a run: Enter shows who is still running, or starts the next wave.

use std::io::{self, Read};
use std::sync::Arc;

use fleet::run::output::Outbox;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{getpgrp, tcgetpgrp};
use std::os::fd::AsFd;
use tokio::sync::Notify;

/// Listens on a thread of its own for as long as the program runs.
pub fn listen(out: Outbox, enter: Arc<Notify>) {
    let listener = move || {
        let mut input = io::stdin();
        let mut key = [0; 256];
        loop {
            // In the background a read would stop the whole program.
            let foreground = tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp());
            let descriptor = io::stdin();
            let mut wait = [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)];
            let ready = poll(&mut wait, PollTimeout::from(500_u16));
            if !foreground || !matches!(ready, Ok(1..)) {
                if !foreground {
                    std::thread::sleep(std::time::Duration::from_millis(500));
                }
                continue;
            }
            match input.read(&mut key) {
                Ok(0) | Err(_) => return,
                Ok(_) => {
                    out.key();
                    enter.notify_waiters();
                }
            }
        }
    };
    // Without the thread there is no Enter, and everything else works.
    let _ = std::thread::Builder::new().name("keys".into()).spawn(listener);
}
