//! Limits the number of unfinished handshakes. At the limit, a new handshake ends the oldest, which is probably
//! stalled.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use state::lock::lock;
use tokio::sync::oneshot;

#[derive(Debug)]
pub struct Handshakes {
    limit: usize,
    inside: Arc<Mutex<Inside>>,
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
        Arc::new(Self { limit, inside: Arc::default() })
    }

    /// The limiter of a listener whose settings were loaded again: the unfinished handshakes of `before` count on.
    /// Otherwise each reload would let as many more be unfinished.
    pub fn after(before: Option<&Arc<Self>>, limit: usize) -> Arc<Self> {
        let inside = before.map(|before| before.inside.clone()).unwrap_or_default();
        Arc::new(Self { limit, inside })
    }

    /// Starts counting a handshake. At the limit, the oldest handshake is told to end; several are if the limit has become
    /// lower.
    pub fn begin(self: &Arc<Self>) -> HandshakePermit {
        let (sender, cut) = oneshot::channel();
        let mut inside = lock(&self.inside);
        while inside.unfinished.len() >= self.limit
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

    #[tokio::test]
    async fn a_reload_lets_no_more_be_unfinished_and_a_lower_limit_counts_from_the_next_one() {
        let first = Handshakes::new(2);
        let (mut one, mut two) = (first.begin(), first.begin());
        let second = Handshakes::after(Some(&first), 2);
        let mut three = second.begin();
        one.needed().await;
        let third = Handshakes::after(Some(&second), 1);
        let mut four = third.begin();
        two.needed().await;
        three.needed().await;
        let still = tokio::time::timeout(std::time::Duration::ZERO, four.needed());
        assert!(still.await.is_err(), "one is allowed");
        drop((one, two, three, four));
        assert!(lock(&third.inside).unfinished.is_empty());
    }
}
