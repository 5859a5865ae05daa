//! Sends the frames of a batch to backends, and counts packets once the network card has taken them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;

use logic::dsr::{BackendId, Progress};
use state::ending::Ending;

use super::backends::Tally;
use super::{Server, TICK, sockets};
use crate::accept::CloseSignal;

/// Packets that were decided about, in the order of their frames.
#[derive(Default)]
pub(super) struct Sending {
    waiting: VecDeque<Packet>,
    /// What became of those before.
    settled: Vec<Packet>,
}

struct Packet {
    backend: BackendId,
    bytes: u64,
    flow: Progress,
    /// Frames that were neither sent nor lost yet. A tunnel may need several.
    frames: usize,
    fate: Fate,
}

/// What becomes of frames, and of a packet with all of its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Sent,
    Lost,
}

impl Sending {
    /// Begins a batch.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.settled.clear();
    }

    pub(super) fn add(&mut self, backend: BackendId, bytes: u64, flow: Progress, frames: usize) {
        if frames > 0 {
            self.waiting.push_back(Packet { backend, bytes, flow, frames, fate: Fate::Sent });
        }
    }

    /// Tells the fate of the next frames.
    pub(super) fn settle(&mut self, mut frames: usize, fate: Fate) {
        while frames > 0
            && let Some(packet) = self.waiting.front_mut()
        {
            let of_it = frames.min(packet.frames);
            (frames, packet.frames) = (frames - of_it, packet.frames - of_it);
            if fate == Fate::Lost {
                packet.fate = fate;
            }
            if packet.frames == 0 {
                self.settled.extend(self.waiting.pop_front());
            }
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(sending: &mut Sending) -> Vec<(usize, Fate)> {
        sending.settled.drain(..).map(|packet| (packet.backend.number(), packet.fate)).collect()
    }

    #[test]
    fn a_packet_is_sent_with_all_of_its_frames_and_else_lost_once() {
        let mut sending = Sending::default();
        for (number, frames) in [(0, 1), (1, 3), (2, 0), (3, 3), (4, 1), (5, 1)] {
            sending.add(BackendId::at(number), 100, Progress::Began, frames);
        }
        sending.settle(2, Fate::Sent);
        assert_eq!(settled(&mut sending), [(0, Fate::Sent)]);
        sending.settle(2, Fate::Sent);
        assert_eq!(settled(&mut sending), [(1, Fate::Sent)]);
        sending.settle(1, Fate::Lost);
        sending.settle(3, Fate::Sent);
        sending.settle(9, Fate::Lost);
        assert_eq!(settled(&mut sending), [(3, Fate::Lost), (4, Fate::Sent), (5, Fate::Lost)]);
        sending.add(BackendId::at(6), 100, Progress::GoesOn, 1);
        sending.clear();
        sending.settle(1, Fate::Sent);
        assert!(settled(&mut sending).is_empty());
    }
}
