//! Packets on their way to the network card: which of them it has taken. `crates/proxy/src/dsr/sending.rs` sends.

use std::collections::VecDeque;

use logic::dsr::{BackendId, Progress};

/// Packets that were decided about, in the order of their frames.
#[derive(Default)]
pub(super) struct Sending {
    waiting: VecDeque<Packet>,
    /// What became of those before.
    pub(super) settled: Vec<Packet>,
}

pub(super) struct Packet {
    pub(super) backend: BackendId,
    pub(super) bytes: u64,
    pub(super) flow: Progress,
    /// Frames that were neither sent nor lost yet. A tunnel may need several.
    frames: usize,
    pub(super) fate: Fate,
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
