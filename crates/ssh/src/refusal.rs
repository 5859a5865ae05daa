//! Why the host could not connect, in its own words. The library hands those to a callback, without the channel, right after
//! it told whoever opens one that it failed. The callback waits for that one to take them, and until it has returned nobody
//! else's channel fails: so the words are those of the channel.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use logic::harmless::escaped;
use tokio::sync::Notify;
use tokio::time::timeout;

/// The words of a channel that failed just now.
#[derive(Default)]
pub(crate) struct Refusals {
    /// How many want to know, should theirs fail.
    opening: AtomicUsize,
    words: Mutex<Option<String>>,
    there: Notify,
    taken: Notify,
}

/// Somebody who opens a channel. Whoever gives up drops it.
pub(crate) struct Opening<'a>(&'a Refusals);

impl Refusals {
    /// To be held from before a channel is opened.
    pub(crate) fn opening(&self) -> Opening<'_> {
        self.opening.fetch_add(1, Relaxed);
        Opening(self)
    }

    /// A channel failed with these words: they are there until they are taken, or it is clear that nobody does.
    pub(crate) async fn tell(&self, words: &str) {
        if self.opening.load(Relaxed) == 0 {
            return;
        }
        // Of one who took the words before these just as nobody waited for that any more.
        tokio::select! {
            biased;
            () = self.taken.notified() => {}
            () = std::future::ready(()) => {}
        }
        *self.words() = Some(escaped(words, LONGEST));
        self.there.notify_one();
        // The connection stands still meanwhile: whoever gave up at this moment costs it no more than this.
        let _ = timeout(SOON, self.taken.notified()).await;
        *self.words() = None;
    }

    fn words(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Opening<'_> {
    /// The words of the host, after the channel failed; empty when they did not come.
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

/// A busy machine takes its time to wake who waits.
const SOON: Duration = Duration::from_millis(250);

/// Words of a host that are kept: what OpenSSH says is far shorter.
const LONGEST: usize = 200;
