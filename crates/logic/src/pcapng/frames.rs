//! Frames of network interfaces in a file of pcapng, each with a comment.

use std::time::{SystemTime, UNIX_EPOCH};

use super::{PACKET, block, describe, option, pad, section};

/// LINKTYPE_ETHERNET
const ETHERNET: u16 = 1;

/// Bytes of a frame that are written, at most: its headers, and the beginning of what is in it.
pub const LONGEST: usize = 2048;

/// Returns the beginning of a file without interfaces.
pub fn start(program: &str) -> Vec<u8> {
    section(program)
}

/// Appends the description of an interface: its number is that of the interfaces before it.
pub fn interface(out: &mut Vec<u8>, name: &str) {
    describe(out, ETHERNET, name);
}

/// Appends a frame that an interface has received.
pub fn frame(out: &mut Vec<u8>, interface: u32, at: SystemTime, bytes: &[u8], comment: &str) {
    const COMMENT: u16 = 1;
    const FLAGS: u16 = 2;
    const INBOUND: u32 = 1;
    let micros = at.duration_since(UNIX_EPOCH).map_or(0, |at| at.as_micros() as u64);
    let kept = &bytes[..bytes.len().min(LONGEST)];
    let mut body = Vec::with_capacity(kept.len() + comment.len() + 48);
    body.extend(interface.to_le_bytes());
    body.extend(((micros >> 32) as u32).to_le_bytes());
    body.extend((micros as u32).to_le_bytes());
    body.extend((kept.len() as u32).to_le_bytes());
    body.extend((bytes.len() as u32).to_le_bytes());
    body.extend(kept);
    pad(&mut body, kept.len());
    option(&mut body, COMMENT, comment);
    body.extend(FLAGS.to_le_bytes());
    body.extend(4u16.to_le_bytes());
    body.extend(INBOUND.to_le_bytes());
    body.extend([0; 4]);
    block(out, PACKET, &body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_cut_and_their_length_and_comment_are_kept() {
        let mut out = start("penstock");
        interface(&mut out, "eth0");
        let before = out.len();
        for (length, comment) in [(60, "forwarded"), (64 * 1024, "\u{e9}".repeat(400).as_str())] {
            frame(&mut out, 0, UNIX_EPOCH, &vec![7; length], comment);
        }
        assert_eq!((super::super::packets(&out), super::super::packets(&out[..before])), (2, 0));
        let word = |at: usize| u32::from_le_bytes(out[at..at + 4].try_into().unwrap()) as usize;
        let mut at = before;
        for (kept, length) in [(60, 60), (LONGEST, 64 * 1024)] {
            assert_eq!((word(at), word(at + 20), word(at + 24)), (6, kept, length));
            let end = at + word(at + 4);
            assert_eq!((word(at + 4) % 4, word(end - 4)), (0, word(at + 4)));
            let option = at + 28 + kept.next_multiple_of(4);
            let length = usize::from(u16::from_le_bytes([out[option + 2], out[option + 3]]));
            assert!(std::str::from_utf8(&out[option + 4..][..length]).is_ok(), "no half letter");
            at = end;
        }
        assert_eq!(at, out.len());
    }
}
