//! Large output whose every byte is predictable: the command `flood BYTES [SEED]` of a host.

use bytes::Bytes;

/// Output of `flood BYTES SEED`, in pieces of at most 32 KiB.
///
/// Lines have 64 bytes: the seed, the number of the line, and letters derived from both. The last line is cut at
/// `BYTES`.
#[derive(Debug, Clone)]
pub struct Flood {
    seed: u64,
    line: u64,
    left: u64,
}

impl Flood {
    #[must_use]
    pub fn new(bytes: u64, seed: u64) -> Self {
        Self { seed, line: 0, left: bytes }
    }

    #[must_use]
    pub fn endless(seed: u64) -> Self {
        Self::new(u64::MAX, seed)
    }
}

impl Iterator for Flood {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.left == 0 {
            return None;
        }
        let mut piece = Vec::with_capacity(PIECE);
        while piece.len() < PIECE && (piece.len() as u64) < self.left {
            write_line(&mut piece, self.seed, self.line);
            self.line += 1;
        }
        let length = self.left.min(piece.len() as u64);
        piece.truncate(usize::try_from(length).unwrap_or(PIECE));
        self.left -= length;
        Some(piece.into())
    }
}

fn write_line(out: &mut Vec<u8>, seed: u64, line: u64) {
    let start = out.len();
    push_decimal(out, seed % 100_000_000, 8);
    out.push(b' ');
    push_decimal(out, line % 1_000_000_000_000, 12);
    out.push(b' ');
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ line;
    while out.len() - start < LINE - 1 {
        // splitmix64, so that no two lines are equal.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits ^= bits >> 27;
        let room = LINE - 1 - (out.len() - start);
        for _ in 0..room.min(14) {
            out.push(b'a' + (bits & 15) as u8);
            bits >>= 4;
        }
    }
    out.push(b'\n');
}

fn push_decimal(out: &mut Vec<u8>, value: u64, digits: u32) {
    for digit in (0..digits).rev() {
        out.push(b'0' + (value / 10_u64.pow(digit) % 10) as u8);
    }
}

/// Bytes of a line, including its line feed.
const LINE: usize = 64;

/// Limit of the data in one SSH packet, in bytes.
const PIECE: usize = 32 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_has_exactly_its_bytes_and_the_same_each_time() {
        for bytes in [0, 1, 63, 64, 65, 32_768, 100_000] {
            let whole: Vec<u8> = Flood::new(bytes, 7).flatten().collect();
            assert_eq!(whole.len() as u64, bytes);
            assert_eq!(whole, Flood::new(bytes, 7).flatten().collect::<Vec<u8>>());
        }
    }

    #[test]
    fn every_line_of_a_flood_says_whose_it_is_and_its_number() {
        let whole: Vec<u8> = Flood::new(64 * 2_000, 42).flatten().collect();
        for (number, line) in whole.chunks(64).enumerate() {
            let line = std::str::from_utf8(line).unwrap();
            assert!(line.starts_with(&format!("00000042 {number:012} ")), "{line}");
            assert!(line.ends_with('\n') && line.trim_end().len() == 63, "{line}");
        }
    }
}
