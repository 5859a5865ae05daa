//! The host's own message about a channel that it could not open. The library first reports the failure to the task
//! that opens the channel, and then passes the message to a callback, without naming the channel. The callback waits
//! until the task has taken the message. Until the callback returns, no other channel can fail: so the message belongs
//! to this channel.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use text::terminal::escaped;
use tokio::sync::Notify;
use tokio::time::timeout;

#[derive(Default)]
pub(crate) struct Refusals {
    /// Number of tasks that open a channel and want the message of a failure.
    opening: AtomicUsize,
    words: Mutex<Option<String>>,
    there: Notify,
    taken: Notify,
}

/// A task that opens a channel. On drop, the task no longer wants a message.
pub(crate) struct Opening<'a>(&'a Refusals);

impl Refusals {
    /// Registers a task. The caller must do this before it opens the channel.
    pub(crate) fn opening(&self) -> Opening<'_> {
        self.opening.fetch_add(1, Relaxed);
        Opening(self)
    }

    /// Stores the message of a channel that failed, until a task takes the message or [`SOON`] is over.
    pub(crate) async fn tell(&self, words: &str) {
        if self.opening.load(Relaxed) == 0 {
            return;
        }
        // Discards an old notification: a task may have taken the last message just after the wait for it was over.
        tokio::select! {
            biased;
            () = self.taken.notified() => {}
            () = std::future::ready(()) => {}
        }
        *self.words() = Some(escaped(words, LONGEST));
        self.there.notify_one();
        // The connection reads nothing during this wait. If the task has given up, the wait ends after [`SOON`].
        let _ = timeout(SOON, self.taken.notified()).await;
        *self.words() = None;
    }

    fn words(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Opening<'_> {
    /// Returns the host's message after the channel failed; empty if no message came.
    pub(crate) async fn words(self) -> String {
        let taken = async {
            loop {
                if let Some(words) = self.0.words().take() {
                    self.0.taken.notify_one();
                    return words;
                }
                self.0.there.notified().await;
            }
        };
        timeout(SOON, taken).await.unwrap_or_default()
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.opening.fetch_sub(1, Relaxed);
    }
}

/// Maximum wait for a task or a message. A busy machine may wake a task late.
const SOON: Duration = Duration::from_millis(250);

/// Maximum length of a message in characters. OpenSSH's messages are far shorter.
const LONGEST: usize = 200;
