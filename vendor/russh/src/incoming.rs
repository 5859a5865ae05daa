//! Penstock: the bytes that the peer has sent. Packets are cut from them and decrypted where they are.

use bytes::{Bytes, BytesMut};
use ssh_encoding::{Decode, Error};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::session::LONGEST_COPY;

/// Received bytes that no packet was cut from yet.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    bytes: BytesMut,
    /// Size of the buffer that `bytes` is the rest of.
    size: usize,
    /// Full buffers whose packets may still be in use. They are filled again when the last of those packets is dropped.
    retired: Vec<BytesMut>,
    /// Size of a buffer, unless one packet is longer.
    room: usize,
}

impl Incoming {
    pub(crate) fn new(room: usize) -> Self {
        Incoming {
            room,
            ..Default::default()
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Cuts off the first `len` bytes; `None` if fewer have come.
    pub(crate) fn take(&mut self, len: usize) -> Option<BytesMut> {
        (self.bytes.len() >= len).then(|| self.bytes.split_to(len))
    }

    /// A packet that was cut off, for as long a use as its user likes. A short one is copied, so that it does not keep a buffer of
    /// many times its length.
    pub(crate) fn keep(&self, packet: BytesMut) -> Bytes {
        let least = match self.size <= self.room {
            true => SHORT.max(self.size / 8),
            false => self.size / 2,
        };
        if packet.len() >= least {
            return packet.freeze();
        }
        let mut copy = BytesMut::with_capacity(packet.len());
        extend(&mut copy, &packet);
        copy.freeze()
    }

    /// Reads once from `stream`. The buffer has room for `total` bytes then, those that it has already included.
    pub(crate) async fn read<R: AsyncRead + Unpin>(
        &mut self,
        stream: &mut R,
        total: usize,
    ) -> std::io::Result<()> {
        self.make_room(total);
        match stream.read_buf(&mut self.bytes).await? {
            0 => Err(std::io::Error::new(
                std::io::ErrorKind::UnexpectedEof,
                "early eof",
            )),
            _ => Ok(()),
        }
    }

    fn make_room(&mut self, total: usize) {
        let spare = self.bytes.capacity() - self.bytes.len();
        let missing = total.saturating_sub(self.bytes.len());
        // A small rest of the buffer would make small reads.
        if spare >= missing.max(self.room / 2) {
            return;
        }
        let size = total.max(self.room).max(self.bytes.len() + 1);
        // A buffer that one long packet needed is not used again.
        if self.size <= size && self.bytes.try_reclaim(size - self.bytes.len()) {
            return;
        }
        let free = match size <= self.room {
            true => self.retired.iter_mut().position(|it| it.try_reclaim(size)),
            false => None,
        };
        let mut next = match free {
            Some(at) => self.retired.swap_remove(at),
            None => BytesMut::with_capacity(size),
        };
        extend(&mut next, &self.bytes);
        let mut full = std::mem::replace(&mut self.bytes, next);
        full.clear();
        if self.size == self.room && self.retired.len() < MOST_RETIRED {
            self.retired.push(full);
        }
        self.size = size;
    }
}

fn extend(to: &mut BytesMut, from: &[u8]) {
    for part in from.chunks(LONGEST_COPY) {
        to.extend_from_slice(part);
    }
}

/// Reads a string of `packet`, which `reader` is the rest of, as a part of the packet.
pub(crate) fn decode_shared(packet: &Bytes, reader: &mut &[u8]) -> Result<Bytes, Error> {
    let len = usize::decode(reader)?;
    let (data, rest) = reader.split_at_checked(len).ok_or(Error::Length)?;
    *reader = rest;
    Ok(packet.slice_ref(data))
}

/// Buffers that are kept for use again.
const MOST_RETIRED: usize = 3;
/// Bytes of a packet that is copied.
const SHORT: usize = 8 * 1024;
