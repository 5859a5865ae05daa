//! Packets of an SFTP channel, found in its bytes without a copy of their contents.

use std::collections::VecDeque;
use std::io;

use bytes::Bytes;
use russh_sftp::protocol::{Packet as Parsed, Status};

/// Requests of copies have numbers from here on; the library counts its own from 1.
pub(super) const FIRST_BULK: u32 = 1 << 31;

/// Maximum length of a packet, as OpenSSH's client has it.
const LONGEST: usize = 256 * 1024;

/// Pieces below this length are joined, up to the other one.
const SMALL: usize = 512;
const JOINED: usize = 16 * 1024;

/// Types of packets (draft section 3).
const STATUS: u8 = 101;
const DATA: u8 = 103;

/// A packet from the server.
#[derive(Debug)]
pub(super) enum Packet {
    /// For the library: its bytes with their length in front.
    Other(Vec<Bytes>),
    /// The answer to a request of a copy.
    Bulk(u32, Answer),
}

/// The answer to a request of a copy.
#[derive(Debug)]
pub(super) enum Answer {
    /// Bytes of a file, in the pieces in which they came.
    Data(Vec<Bytes>),
    Status(Status),
    /// Not an answer to `SSH_FXP_READ` or `SSH_FXP_WRITE`.
    Wrong,
}

/// Bytes that have arrived and were not taken as packets yet.
#[derive(Default)]
pub(super) struct Packets {
    pieces: VecDeque<Bytes>,
    length: usize,
}

impl Packets {
    pub(super) fn push(&mut self, piece: Bytes) {
        self.length += piece.len();
        // A server that sends single bytes must not make each of them a piece with its own memory.
        if piece.len() < SMALL
            && let Some(last) = self.pieces.back_mut()
            && last.len() < JOINED
        {
            let mut joined = std::mem::take(last).try_into_mut().unwrap_or_else(|last| last[..].into());
            joined.extend_from_slice(&piece);
            *last = joined.freeze();
        } else if !piece.is_empty() {
            self.pieces.push_back(piece);
        }
    }

    /// Takes the next packet, if all of it has come.
    ///
    /// # Errors
    /// The packet is longer than any packet may be, or too short for its type.
    pub(super) fn take(&mut self) -> io::Result<Option<Packet>> {
        let Some(head) = self.peek::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes(head) as usize;
        if length == 0 || length > LONGEST {
            return Err(io::Error::other(format!("an SFTP packet of {length} bytes")));
        }
        if self.length < 4 + length {
            return Ok(None);
        }
        let bulk = self.peek::<9>().filter(|_| length >= 5).and_then(|[_, _, _, _, kind, number @ ..]| {
            let number = u32::from_be_bytes(number);
            (number >= FIRST_BULK && matches!(kind, STATUS | DATA)).then_some((kind, number))
        });
        Ok(Some(match bulk {
            None => Packet::Other(self.split(4 + length)),
            Some((DATA, number)) => {
                let told =
                    self.peek::<13>().map(|head| u32::from_be_bytes([head[9], head[10], head[11], head[12]]));
                if told.is_none_or(|told| told as usize + 9 != length) {
                    return Err(io::Error::other("an SFTP packet whose lengths contradict each other"));
                }
                self.split(13);
                Packet::Bulk(number, Answer::Data(self.split(length - 9)))
            }
            Some((_, number)) => {
                self.split(4);
                let mut whole = Bytes::from(self.split(length).concat());
                Packet::Bulk(
                    number,
                    match Parsed::try_from(&mut whole) {
                        Ok(Parsed::Status(status)) => Answer::Status(status),
                        _ => Answer::Wrong,
                    },
                )
            }
        }))
    }

    fn peek<const N: usize>(&self) -> Option<[u8; N]> {
        if self.length < N {
            return None;
        }
        let mut found = [0; N];
        let bytes = self.pieces.iter().flat_map(|piece| piece.iter());
        found.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
        Some(found)
    }

    /// Takes `length` bytes, which have come.
    fn split(&mut self, mut length: usize) -> Vec<Bytes> {
        self.length -= length;
        let mut taken = Vec::with_capacity(2);
        while length > 0
            && let Some(piece) = self.pieces.front_mut()
        {
            let part = piece.split_to(piece.len().min(length));
            length -= part.len();
            taken.push(part);
            if piece.is_empty() {
                self.pieces.pop_front();
            }
        }
        taken
    }
}

/// Appends a request for `length` bytes of a file (draft section 6.4).
pub(super) fn put_read(to: &mut Vec<u8>, number: u32, handle: &str, offset: u64, length: u32) {
    put_head(to, READ, number, handle, 12);
    to.extend_from_slice(&offset.to_be_bytes());
    to.extend_from_slice(&length.to_be_bytes());
}

/// Length in bytes of a write request without its data.
pub(super) fn write_head(handle: &str) -> usize {
    4 + 1 + 4 + 4 + handle.len() + 8 + 4
}

/// Writes what stands before the data of a request to write (draft section 6.4): `to` has the length that [`write_head`]
/// tells.
pub(super) fn put_write_head(to: &mut [u8], number: u32, handle: &str, offset: u64, length: usize) {
    let mut head = Vec::with_capacity(to.len());
    put_head(&mut head, WRITE, number, handle, 12 + length);
    head.extend_from_slice(&offset.to_be_bytes());
    head.extend_from_slice(&number_of(length).to_be_bytes());
    to.copy_from_slice(&head);
}

fn put_head(to: &mut Vec<u8>, kind: u8, number: u32, handle: &str, rest: usize) {
    to.extend_from_slice(&number_of(1 + 4 + 4 + handle.len() + rest).to_be_bytes());
    to.push(kind);
    to.extend_from_slice(&number.to_be_bytes());
    to.extend_from_slice(&number_of(handle.len()).to_be_bytes());
    to.extend_from_slice(handle.as_bytes());
}

/// Converts a length of a request that this program makes: it is far below 4 GiB.
fn number_of(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

const READ: u8 = 5;
const WRITE: u8 = 6;

#[cfg(test)]
mod tests {
    use russh_sftp::protocol::{Data, StatusCode};

    use super::*;

    fn status(id: u32) -> Vec<u8> {
        let status = Status {
            id,
            status_code: StatusCode::Eof,
            error_message: "end".into(),
            language_tag: "en".into(),
        };
        Bytes::try_from(Parsed::Status(status)).unwrap().to_vec()
    }

    fn data(id: u32, data: Vec<u8>) -> Vec<u8> {
        Bytes::try_from(Parsed::Data(Data { id, data })).unwrap().to_vec()
    }

    fn told(packets: &mut Packets) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(packet) = packets.take().unwrap() {
            all.push(match packet {
                Packet::Other(pieces) => format!("other {}", pieces.concat().len()),
                Packet::Bulk(number, Answer::Data(pieces)) => {
                    format!("data {} {:?}", number - FIRST_BULK, pieces.concat())
                }
                Packet::Bulk(number, Answer::Status(status)) => {
                    format!("status {} {:?}", number - FIRST_BULK, status.status_code)
                }
                Packet::Bulk(number, Answer::Wrong) => format!("wrong {}", number - FIRST_BULK),
            });
        }
        all
    }

    #[test]
    fn packets_are_found_however_their_bytes_are_cut() {
        let parts = [data(FIRST_BULK, vec![1, 2, 3]), status(7), status(FIRST_BULK + 1), data(9, vec![4]), {
            let handle = russh_sftp::protocol::Handle { id: 3, handle: "h".into() };
            Bytes::try_from(Parsed::Handle(handle)).unwrap().to_vec()
        }];
        let all = parts.concat();
        let lengths: Vec<usize> = [1, 3, 4].iter().map(|at| parts[*at].len()).collect();
        let wanted = [
            "data 0 [1, 2, 3]".to_owned(),
            format!("other {}", lengths[0]),
            "status 1 Eof".to_owned(),
            format!("other {}", lengths[1]),
            format!("other {}", lengths[2]),
        ];
        for size in 1..=all.len() {
            let (mut packets, mut found) = (Packets::default(), Vec::new());
            for piece in all.chunks(size) {
                packets.push(Bytes::copy_from_slice(piece));
                found.extend(told(&mut packets));
            }
            assert_eq!(found, wanted, "in pieces of {size}");
            assert_eq!((packets.length, packets.pieces.len()), (0, 0));
        }
    }

    #[test]
    fn packets_of_wrong_lengths_are_refused() {
        let refused = |bytes: &[u8]| {
            let mut packets = Packets::default();
            packets.push(Bytes::copy_from_slice(bytes));
            packets.take().unwrap_err().to_string()
        };
        assert_eq!(refused(&[0, 0, 0, 0]), "an SFTP packet of 0 bytes");
        assert_eq!(refused(&[255, 255, 255, 255]), "an SFTP packet of 4294967295 bytes");
        let mut wrong = data(FIRST_BULK, vec![1, 2, 3]);
        wrong[12] = 4;
        assert!(refused(&wrong).contains("contradict"));
        // An answer that ends in its own number is for the library, which refuses it.
        let mut packets = Packets::default();
        packets.push(Bytes::from_static(&[0, 0, 0, 2, STATUS, 128]));
        assert!(matches!(packets.take(), Ok(Some(Packet::Other(_)))));
        // A status without a code.
        packets.push(Bytes::from_static(&[0, 0, 0, 5, STATUS, 128, 0, 0, 0]));
        assert!(matches!(packets.take(), Ok(Some(Packet::Bulk(FIRST_BULK, Answer::Wrong)))));
    }

    #[test]
    fn requests_are_those_of_the_library() {
        let mut ours = Vec::new();
        put_read(&mut ours, 5, "a handle", 1 << 40, 32768);
        let read =
            russh_sftp::protocol::Read { id: 5, handle: "a handle".into(), offset: 1 << 40, len: 32768 };
        assert_eq!(ours, Bytes::try_from(Parsed::Read(read)).unwrap());
        let head = write_head("a handle");
        let mut ours = vec![7; head + 3];
        put_write_head(&mut ours[..head], 6, "a handle", 12345, 3);
        let write =
            russh_sftp::protocol::Write { id: 6, handle: "a handle".into(), offset: 12345, data: vec![7; 3] };
        assert_eq!(ours, Bytes::try_from(Parsed::Write(write)).unwrap());
    }
}
