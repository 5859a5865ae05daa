//! One end of a named pipe whose other end is a program's standard input or output: bytes in or out as fast as it goes.
//! It is what `pv` and `cat` are beside `ssh`, without their copies on the measured core.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;

use super::{Gauge, Phase};

/// The load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pipe {
    /// The named pipe.
    pub path: PathBuf,
    /// Which of its ends is ours.
    pub end: End,
}

/// An end of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// We write what the program reads.
    Write,
    /// We read what the program writes.
    Read,
}

impl Pipe {
    /// Moves bytes until the window is over.
    ///
    /// # Errors
    /// The pipe cannot be opened, or the other end is gone.
    pub fn run(&self, gauge: &Rc<Gauge>) -> io::Result<()> {
        let mut file = self.open()?;
        let mut ring = Ring::new();
        // A program that has stopped must not stop the clock: nobody waits in a read or write.
        while gauge.advance(Instant::now()) != Phase::Over {
            let moved = match self.end {
                End::Write => file.write(ring.next()),
                End::Read => file.read(ring.buffer()),
            };
            match moved {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other end is gone")),
                Ok(count) => {
                    ring.advance(count);
                    gauge.bytes(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(&file)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn open(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(self.end == End::Read).write(self.end == End::Write);
        options.custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits()).open(&self.path)
    }

    fn wait(&self, file: &File) -> io::Result<()> {
        let events = match self.end {
            End::Write => PollFlags::POLLOUT,
            End::Read => PollFlags::POLLIN,
        };
        let mut waiting = [PollFd::new(file.as_fd(), events)];
        poll(&mut waiting, PollTimeout::from(LOOK)).map(drop).map_err(io::Error::from)
    }
}

/// Memory that is written again and again: larger than the caches near a core, as data that is really sent is, and not
/// zeros.
struct Ring {
    bytes: Vec<u8>,
    at: usize,
}

impl Ring {
    fn new() -> Self {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut bytes = Vec::with_capacity(RING);
        while bytes.len() < RING {
            // xorshift64: quick, and nothing can compress it.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.extend_from_slice(&state.to_le_bytes());
        }
        Ring { bytes, at: 0 }
    }

    fn next(&self) -> &[u8] {
        &self.bytes[self.at..(self.at + CHUNK).min(RING)]
    }

    fn buffer(&mut self) -> &mut [u8] {
        let end = (self.at + CHUNK).min(RING);
        &mut self.bytes[self.at..end]
    }

    fn advance(&mut self, count: usize) {
        self.at = (self.at + count) % RING;
    }
}

/// Writes a file of the same bytes, which a program on the other side can read again and again.
///
/// # Errors
/// It cannot be written.
pub fn write_ring(path: &std::path::Path) -> io::Result<()> {
    std::fs::write(path, Ring::new().bytes)
}

/// The size of the ring.
const RING: usize = 16 * 1024 * 1024;
/// The most that is moved at once: what a pipe can be made to hold.
const CHUNK: usize = 128 * 1024;
/// How often, in milliseconds, the clock is looked at while nothing moves.
const LOOK: u8 = 50;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Window;
    use nix::sys::stat::Mode;
    use std::time::Duration;

    #[test]
    fn what_is_written_at_one_end_is_counted_at_the_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fifo");
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        let _held = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let window = Window { warm_up: Duration::ZERO, duration: Duration::from_millis(50) };
        let run = |end| {
            let gauge = Gauge::new(window, Vec::new());
            Pipe { path: path.clone(), end }.run(&gauge).unwrap();
            gauge.tally().bytes
        };
        let wrote = run(End::Write);
        assert!(wrote > 0);
        assert_eq!(run(End::Read), wrote);
    }
}
