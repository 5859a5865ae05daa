//! How many handshakes may be unfinished at once. The oldest one makes room: it is the one that stalls.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use crate::lock::lock;

/// The unfinished handshakes of a listener.
#[derive(Debug)]
pub(crate) struct Handshakes {
    limit: usize,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    begun: u64,
    unfinished: BTreeMap<u64, oneshot::Sender<()>>,
}

/// A place among the unfinished ones, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    number: u64,
    of: Arc<Handshakes>,
    cut: oneshot::Receiver<()>,
}

impl Handshakes {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, inside: Mutex::default() })
    }

    /// Begins one. If there are too many, the oldest is told to end.
    pub(crate) fn begin(self: &Arc<Self>) -> Place {
        let (sender, cut) = oneshot::channel();
        let mut inside = lock(&self.inside);
        if inside.unfinished.len() >= self.limit
            && let Some((_, oldest)) = inside.unfinished.pop_first()
        {
            // It may have ended just now.
            let _ = oldest.send(());
        }
        inside.begun += 1;
        let number = inside.begun;
        inside.unfinished.insert(number, sender);
        Place { number, of: self.clone(), cut }
    }
}

impl Place {
    /// Comes when another one needs the place.
    pub(crate) async fn needed(&mut self) {
        if (&mut self.cut).await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.of.inside).unfinished.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_unfinished_one_makes_room_and_a_finished_one_does_not_count() {
        let handshakes = Handshakes::new(2);
        let (mut first, second) = (handshakes.begin(), handshakes.begin());
        drop(second);
        let mut third = handshakes.begin();
        let still = tokio::time::timeout(std::time::Duration::ZERO, first.needed());
        assert!(still.await.is_err(), "two are allowed");
        let _fourth = handshakes.begin();
        first.needed().await;
        let still = tokio::time::timeout(std::time::Duration::ZERO, third.needed());
        assert!(still.await.is_err());
    }
}
