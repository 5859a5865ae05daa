//! The state of the link of an interface, asked where no packet waits for the answer: the kernel gives it under the lock of
//! all changes to network interfaces (RTNL), which such a change may hold for long.

use std::io;
use std::sync::{Arc, Mutex};

use state::lock::lock;
use sys::interfaces::{self, Link};
use tokio::task::{JoinHandle, spawn_blocking};

/// Asks one question at a time.
#[derive(Debug, Default)]
pub(super) struct LinkWatch {
    interface: Box<str>,
    question: Option<JoinHandle<()>>,
    /// The last answer.
    answer: Arc<Mutex<Option<Link>>>,
}

impl LinkWatch {
    /// The last answer, while a new one is asked for. `None`: there is none yet, or the interface is gone.
    pub(super) fn look(&mut self, interface: &str) -> Option<Link> {
        if *self.interface != *interface {
            // An answer about the other one has no receiver.
            *self = Self { interface: interface.into(), ..Self::default() };
        }
        if self.question.as_ref().is_none_or(JoinHandle::is_finished) {
            let (name, answer) = (self.interface.clone(), self.answer.clone());
            self.question = Some(spawn_blocking(move || {
                let found: io::Result<Link> = interfaces::link(&name);
                *lock(&answer) = found.ok();
            }));
        }
        *lock(&self.answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_answer_comes_later_and_an_interface_that_is_missing_has_none() {
        let mut watch = LinkWatch::default();
        assert_eq!(watch.look("lo"), None, "it was not asked yet");
        watch.question.take().unwrap().await.unwrap();
        assert_eq!(watch.look("lo"), interfaces::link("lo").ok());
        assert_eq!(watch.look("no-such-card"), None);
        watch.question.take().unwrap().await.unwrap();
        assert_eq!(watch.look("no-such-card"), None);
    }
}
