//! One end of a named pipe, whose other end is a program's standard input or output; it transfers bytes as fast as
//! possible. It replaces `pv` or `cat` beside `ssh`, without their copies on the measured core.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;

use super::gauge::{Gauge, Phase};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pipe {
    pub path: PathBuf,
    pub end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// Write the program's input.
    Write,
    /// Read the program's output.
    Read,
}

impl Pipe {
    /// Transfers bytes until the window is over.
    ///
    /// # Errors
    /// The pipe cannot be opened, or the other end was closed.
    pub fn run(&self, gauge: &Rc<Gauge>) -> io::Result<()> {
        let mut file = self.open()?;
        let mut ring = Ring::new();
        // Non-blocking, so that a stopped program cannot delay the end of the window.
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

/// A buffer that is written repeatedly: larger than the caches near a core, like real data, and not zeros.
struct Ring {
    bytes: Vec<u8>,
    at: usize,
}

impl Ring {
    fn new() -> Self {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut bytes = Vec::with_capacity(RING);
        while bytes.len() < RING {
            // xorshift64: fast, and its output cannot be compressed.
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

/// Writes a file with the same bytes, for a program on the other side that reads it repeatedly.
///
/// # Errors
/// The file cannot be written.
pub fn write_ring(path: &std::path::Path) -> io::Result<()> {
    std::fs::write(path, Ring::new().bytes)
}

const RING: usize = 16 * 1024 * 1024;
/// Largest number of bytes per read or write.
const CHUNK: usize = 128 * 1024;
/// Interval of the clock checks in milliseconds while no byte moves.
const LOOK: u8 = 50;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::gauge::Window;
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
