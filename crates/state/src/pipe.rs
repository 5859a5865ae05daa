//! Packets on their way to an operator: what the operator takes too slowly is left out and counted, so that no worker
//! waits and memory is bounded.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{self, Receiver, Sender};

/// Bytes of packets that may wait; more are left out.
pub(crate) const WAITING: usize = 4 * 1024 * 1024;

/// Batches of packets that may wait.
const BATCHES: usize = 4096;

#[derive(Debug)]
pub(crate) struct Pipe {
    packets: Sender<Vec<u8>>,
    pub(crate) waiting: AtomicUsize,
    left_out: AtomicU64,
}

/// Whether packets go to the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Yes,
    No,
}

impl Pipe {
    pub(crate) fn new() -> (Self, Receiver<Vec<u8>>) {
        let (packets, taken) = mpsc::channel(BATCHES);
        (Self { packets, waiting: AtomicUsize::new(0), left_out: AtomicU64::new(0) }, taken)
    }

    /// Sends what `make` appends, unless the operator has left.
    pub(crate) fn send(&self, make: impl FnOnce(&mut Vec<u8>)) -> Taken {
        if self.packets.is_closed() {
            return Taken::No;
        }
        let mut out = Vec::new();
        make(&mut out);
        let length = out.len();
        let before = self.waiting.fetch_add(length, Relaxed);
        let taken = match before + length > WAITING {
            true => Err(TrySendError::Full(out)),
            false => self.packets.try_send(out),
        };
        let Err(error) = taken else { return Taken::Yes };
        self.waiting.fetch_sub(length, Relaxed);
        if let TrySendError::Full(_) = error {
            self.left_out.fetch_add(length as u64, Relaxed);
        }
        Taken::No
    }

    /// Takes note of bytes that the operator has got.
    pub(crate) fn took(&self, bytes: usize) {
        self.waiting.fetch_sub(bytes, Relaxed);
    }

    /// Bytes that were left out.
    pub(crate) fn left_out(&self) -> u64 {
        self.left_out.load(Relaxed)
    }
}
