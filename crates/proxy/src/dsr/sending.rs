//! Sends the frames of a batch to backends, and counts packets once the network card has taken them
//! (`crates/proxy/src/dsr/packets.rs`).

use std::io;
use std::os::fd::AsFd;

use logic::dsr::Progress;
use state::ending::Ending;

use super::backends::Tally;
use super::packets::Fate;
use super::{Server, TICK, sockets};
use crate::accept::CloseSignal;

impl Server {
    /// Sends the frames of the batch that are for backends. While the network card is busy, others wait in the socket; after
    /// a tick what is left is dropped, so that a card that takes nothing holds up neither the ticks nor a reload.
    pub(super) async fn send(&mut self, close_signal: &CloseSignal) -> io::Result<()> {
        let socket = self.socket.clone();
        let deadline = tokio::time::Instant::now() + TICK;
        while !self.batch.waiting().is_empty() {
            match self.batch.send(socket.get_ref().as_fd()) {
                Ok(sent) => self.sending.settle(sent, Fate::Sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::select! {
                    biased;
                    ready = sockets::has_room(&socket) => if ready.is_err() { break },
                    () = close_signal.closed() => break,
                    () = tokio::time::sleep_until(deadline) => break,
                },
                Err(_) => {
                    self.batch.skip();
                    self.sending.settle(1, Fate::Lost);
                }
            }
        }
        self.sending.settle(self.batch.waiting().len(), Fate::Lost);
        Ok(())
    }

    /// Counts what became of the packets of the batch.
    pub(super) fn count_sent(&mut self) {
        let (mut forwarded, mut bytes, mut lost) = (0, 0, 0);
        for packet in self.sending.settled.drain(..) {
            let (count, length) = match packet.fate {
                Fate::Sent => (1, packet.bytes),
                Fate::Lost => (0, 0),
            };
            (forwarded, bytes, lost) = (forwarded + count, bytes + length, lost + 1 - count);
            // Its flow is remembered in any case.
            let began = u64::from(packet.flow == Progress::Began);
            self.gauges.add(Tally { backend: packet.backend, packets: count, bytes: length, began });
        }
        self.totals.packets += forwarded;
        self.totals.bytes += bytes;
        let counters = self.counters();
        counters.packets_forwarded.add(forwarded);
        counters.bytes_in.add(bytes);
        if lost > 0 {
            self.drop_packets(lost, Ending::PacketNotSent);
        }
        self.gauges.flush(&self.director, self.worker.index);
    }
}
