//! Stores the output of hosts until it is shown, with a limit for each stream of a host and a limit for the memory of
//! all streams together. The rest is in one unnamed file, which the kernel removes when the program ends.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

#[derive(Debug, Default)]
pub(super) struct Transcript {
    memory: String,
    /// Parts in the file, in order: offset and size.
    parts: Vec<(u64, usize)>,
    filed: usize,
    lines: usize,
    left_out: u64,
}

#[derive(Debug)]
pub(super) struct TranscriptStore {
    file: Option<File>,
    room: Space,
    end: u64,
    /// Free areas of the file before its end: offset and size. No two of them are adjacent.
    free: BTreeMap<u64, u64>,
    /// Bytes of all transcripts in memory.
    memory: usize,
    limits: Limits,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Space {
    Left,
    None,
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    bytes: usize,
    lines: usize,
    memory: usize,
    /// Size of the parts that are written to the file.
    part: usize,
    open: fn() -> io::Result<File>,
}

impl Transcript {
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.filed == 0 && self.memory.is_empty() && self.left_out == 0
    }

    /// Bytes beyond the limit, which were not kept.
    #[must_use]
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }
}

impl TranscriptStore {
    /// Creates an empty store with a limit of 8 MiB for each stream of a host, and of 64 MiB of memory for all.
    #[must_use]
    pub(super) fn new() -> Self {
        Self::within(Limits {
            bytes: 8 << 20,
            lines: 1 << 18,
            memory: 64 << 20,
            part: 64 << 10,
            open: tempfile::tempfile,
        })
    }

    fn within(limits: Limits) -> Self {
        Self { file: None, room: Space::Left, end: 0, free: BTreeMap::new(), memory: 0, limits }
    }

    /// Appends a line. A line beyond the limit is only counted.
    pub(super) fn keep(&mut self, of: &mut Transcript, line: &str) {
        let size = line.len() + 1;
        let full = of.left_out > 0
            || of.filed + of.memory.len() + size > self.limits.bytes
            || of.lines == self.limits.lines
            || (self.room == Space::None && self.memory + size > self.limits.memory);
        if full {
            of.left_out += size as u64;
            return;
        }
        of.lines += 1;
        of.memory.push_str(line);
        of.memory.push('\n');
        self.memory += size;
        if of.memory.len() >= self.limits.part {
            self.settle(of);
        }
    }

    /// Moves a transcript to the file if memory is short. Called when the transcript is complete.
    pub(super) fn settle(&mut self, of: &mut Transcript) {
        let short = self.memory > self.limits.memory && !of.memory.is_empty() && self.room == Space::Left;
        if short && self.file_away(of).is_err() {
            self.room = Space::None;
        }
    }

    /// Removes a transcript and frees its space.
    pub(super) fn forget(&mut self, of: Transcript) {
        self.memory -= of.memory.len().min(self.memory);
        for (from, size) in of.parts {
            self.free_up(from, size as u64);
        }
    }

    /// Frees an area of the file and joins it with the free areas beside it.
    fn free_up(&mut self, mut from: u64, mut size: u64) {
        if let Some((&before, &length)) = self.free.range(..from).next_back()
            && before + length == from
        {
            self.free.remove(&before);
            (from, size) = (before, size + length);
        }
        size += self.free.remove(&(from + size)).unwrap_or(0);
        if from + size == self.end {
            self.end = from;
        } else {
            self.free.insert(from, size);
        }
    }

    /// Reads all that is kept of a transcript.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn read(&self, of: &Transcript) -> io::Result<String> {
        let mut bytes = Vec::with_capacity(of.filed + of.memory.len());
        if let Some(mut file) = self.file.as_ref() {
            for &(from, size) in &of.parts {
                file.seek(SeekFrom::Start(from))?;
                file.take(size as u64).read_to_end(&mut bytes)?;
            }
        }
        bytes.extend_from_slice(of.memory.as_bytes());
        String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    fn file_away(&mut self, of: &mut Transcript) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert((self.limits.open)()?),
        };
        let size = of.memory.len();
        let hole =
            self.free.iter().find(|(_, room)| **room >= size as u64).map(|(from, room)| (*from, *room));
        let from = hole.map_or(self.end, |(from, _)| from);
        file.seek(SeekFrom::Start(from))?;
        file.write_all(of.memory.as_bytes())?;
        match hole {
            Some((from, room)) => {
                self.free.remove(&from);
                if room > size as u64 {
                    self.free.insert(from + size as u64, room - size as u64);
                }
            }
            None => self.end += size as u64,
        }
        of.parts.push((from, size));
        of.filed += size;
        self.memory -= size.min(self.memory);
        of.memory = String::new();
        Ok(())
    }
}

impl Default for TranscriptStore {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_memory_does_not_hold_comes_back_from_the_file_in_order() {
        let mut shelf = TranscriptStore::within(Limits {
            bytes: 1000,
            lines: 1000,
            memory: 20,
            part: 10,
            open: tempfile::tempfile,
        });
        let mut both = [Transcript::default(), Transcript::default()];
        for number in 0..40 {
            for (which, of) in both.iter_mut().enumerate() {
                shelf.keep(of, &format!("{which} says {number}"));
            }
            assert!(shelf.memory <= 20 + 2 * 12, "{}", shelf.memory);
        }
        for (which, of) in both.iter().enumerate() {
            let said: String = (0..40).map(|number| format!("{which} says {number}\n")).collect();
            assert_eq!(shelf.read(of).unwrap(), said);
            assert!(of.parts.len() > 1);
        }
        both.into_iter().for_each(|of| shelf.forget(of));
        assert_eq!(shelf.memory, 0);
    }

    #[test]
    fn room_in_the_file_is_used_again_and_what_lies_beside_it_stays() {
        let mut shelf = TranscriptStore::within(Limits {
            bytes: 1 << 20,
            lines: 1 << 20,
            memory: 20,
            part: 10,
            open: tempfile::tempfile,
        });
        let mut kept = Transcript::default();
        (0..50).for_each(|number| shelf.keep(&mut kept, &format!("kept {number}")));
        let before = shelf.end;
        // Two hosts write at once, lines of all lengths, and their transcripts are removed, a hundred times.
        for turn in 0..100 {
            let mut both = [Transcript::default(), Transcript::default()];
            let mut said = [String::new(), String::new()];
            for number in 0..60_usize {
                for (which, of) in both.iter_mut().enumerate() {
                    let line = format!("{turn} {which} {}", "x".repeat(number * 7 % 23 + which));
                    shelf.keep(of, &line);
                    said[which].push_str(&format!("{line}\n"));
                }
            }
            for (of, said) in both.iter().zip(&said) {
                assert_eq!(shelf.read(of).unwrap(), *said);
            }
            both.into_iter().for_each(|of| shelf.forget(of));
        }
        let whole: String = (0..50).map(|number| format!("kept {number}\n")).collect();
        assert_eq!(shelf.read(&kept).unwrap(), whole);
        assert_eq!((shelf.end, shelf.free.len()), (before, 0));
        let size = shelf.file.as_ref().unwrap().metadata().unwrap().len();
        assert!(size < before + 2 * 60 * 40, "{size} bytes in the file");
        shelf.forget(kept);
        assert_eq!((shelf.end, shelf.memory), (0, 0));
    }

    #[test]
    fn no_host_keeps_more_than_the_limit_and_what_is_left_out_is_counted() {
        let mut shelf = TranscriptStore::within(Limits {
            bytes: 12,
            lines: 3,
            memory: 20,
            part: 10,
            open: tempfile::tempfile,
        });
        let (mut long, mut many) = (Transcript::default(), Transcript::default());
        for line in ["12345", "12345", "1", "1"] {
            shelf.keep(&mut long, line);
        }
        assert_eq!((shelf.read(&long).unwrap().as_str(), long.left_out()), ("12345\n12345\n", 4));
        (0..5).for_each(|_| shelf.keep(&mut many, ""));
        assert_eq!((shelf.read(&many).unwrap().as_str(), many.left_out()), ("\n\n\n", 2));
    }

    #[test]
    fn disk_that_is_full_leaves_output_out_and_memory_bounded() {
        let open = || File::options().write(true).open("/dev/full");
        let mut shelf =
            TranscriptStore::within(Limits { bytes: 1000, lines: 1000, memory: 20, part: 10, open });
        let mut of = Transcript::default();
        (0..40).for_each(|_| shelf.keep(&mut of, "12345"));
        assert!(shelf.memory <= 24, "{}", shelf.memory);
        assert_eq!(shelf.read(&of).unwrap().len() as u64 + of.left_out(), 40 * 6);
    }
}
