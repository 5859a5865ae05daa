//! Frames and backends at random.

use logic::dsr::{Backend, Standing};

use super::frames::*;
use super::open;

/// A generator without a memory of the machine.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % most
    }

    pub(crate) fn is_one_of(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }

    pub(crate) fn frame(&mut self, is_v6: bool) -> Vec<u8> {
        let (number, port) = (self.below(4) as u8, 1 + self.below(400) as u16);
        let protocol = if self.is_one_of(3) { UDP } else { TCP };
        let to = if self.is_one_of(20) { [81, 7, 0, 65_535][self.below(4)] } else { 80 };
        let flags = [SYN, ACK, ACK, ACK, FIN, RST, SYN | ACK, 0xff][self.below(8)];
        let mut frame = match self.below(10) {
            0 => fragment(is_v6, protocol, number, 0, true, &segment(protocol, port, to, flags)),
            1 => fragment(is_v6, protocol, number, 64, self.is_one_of(2), &[3; 40]),
            2 => {
                let kind = [1, 2, 3, 4, 11, 12][self.below(6)];
                error(is_v6, kind, protocol, number, [port, to], self.below(20))
            }
            3 if is_v6 => {
                let ends = [client(true, number), vip(true)];
                let kinds = [0, 43, 44, 51, 60, TCP, UDP, ICMPV6];
                let headers: Vec<u8> = (0..self.below(10))
                    .flat_map(|_| {
                        let (next, length) = (kinds[self.below(8)], if self.is_one_of(4) { 1 } else { 0 });
                        [next, length, 0, 1, 0, 0, 0, number]
                    })
                    .collect();
                let first = kinds[self.below(8)];
                ethernet(0x86dd, &ipv6(first, ends, &headers, &segment(protocol, port, to, flags)))
            }
            3 => {
                let ends = [client(false, number), vip(false)];
                let (options, segment) = (self.below(11), segment(protocol, port, to, flags));
                ethernet(0x0800, &ipv4(protocol, ends, 0, options, &segment))
            }
            _ => plain(is_v6, protocol, number, port, to, flags),
        };
        // Most are whole.
        if self.is_one_of(2) {
            for _ in 0..self.below(4) {
                let at = 12 + self.below(frame.len() - 12);
                frame[at] = self.below(256) as u8;
            }
        }
        if self.is_one_of(4) {
            frame.truncate(15 + self.below(frame.len() - 14));
        }
        frame
    }

    pub(crate) fn backends(&mut self) -> Vec<Backend<'static>> {
        let standings = [Standing::Open, Standing::Open, Standing::Draining, Standing::Down];
        let mut all = open();
        all.iter_mut().for_each(|one| one.standing = standings[self.below(4)]);
        all.retain(|_| !self.is_one_of(5));
        all
    }
}
