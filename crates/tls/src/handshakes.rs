//! Limits the number of unfinished handshakes. At the limit, a new handshake ends the oldest, which is probably
//! stalled.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use state::lock::lock;
use tokio::sync::oneshot;

#[derive(Debug)]
pub struct Handshakes {
    limit: usize,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    begun: u64,
    unfinished: BTreeMap<u64, oneshot::Sender<()>>,
}

/// Permit of one unfinished handshake; dropping the permit ends its count.
#[derive(Debug)]
pub struct HandshakePermit {
    number: u64,
    of: Arc<Handshakes>,
    cut: oneshot::Receiver<()>,
}

impl Handshakes {
    /// Makes a limiter for at most `limit` unfinished handshakes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, inside: Mutex::default() })
    }

    /// Starts counting a handshake. At the limit, the oldest handshake is told to end.
    pub fn begin(self: &Arc<Self>) -> HandshakePermit {
        let (sender, cut) = oneshot::channel();
        let mut inside = lock(&self.inside);
        if inside.unfinished.len() >= self.limit
            && let Some((_, oldest)) = inside.unfinished.pop_first()
        {
            // The oldest handshake may have just ended.
            let _ = oldest.send(());
        }
        inside.begun += 1;
        let number = inside.begun;
        inside.unfinished.insert(number, sender);
        HandshakePermit { number, of: self.clone(), cut }
    }
}

impl HandshakePermit {
    /// Completes when a newer handshake needs the permit.
    pub async fn needed(&mut self) {
        if (&mut self.cut).await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for HandshakePermit {
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
