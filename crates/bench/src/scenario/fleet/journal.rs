//! Counts from the lab's journal for one run: hosts that ran the command, and parallel sessions.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// The journal from its current end on.
pub(super) struct Journal(File);

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Commands that ended with exit status 0.
    pub ended: usize,
    /// Largest number of parallel connections.
    pub at_once: usize,
}

impl Journal {
    pub(super) fn at_end(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self(file))
    }

    /// Reads until all connections of the run are closed: a client ends slightly before its host notices.
    pub(super) fn tally(&mut self) -> io::Result<Tally> {
        let begin = Instant::now();
        let mut text = String::new();
        loop {
            self.0.read_to_string(&mut text)?;
            let (tally, open) = count(&text);
            if open == 0 || begin.elapsed() > PATIENCE {
                return Ok(tally);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Counts lines of `HOST CONNECTION EVENT`. Also returns the number of open connections.
fn count(text: &str) -> (Tally, usize) {
    let mut tally = Tally::default();
    let mut open: usize = 0;
    for line in text.lines() {
        let event = line.splitn(3, ' ').nth(2).unwrap_or_default();
        match event.split(' ').next() {
            Some("connect") => open += 1,
            Some("close") => open = open.saturating_sub(1),
            _ if event == "ended status=0" => tally.ended += 1,
            _ => {}
        }
        tally.at_once = tally.at_once.max(open);
    }
    (tally, open)
}

/// Time limit for the hosts to notice that their clients have ended.
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_ended_well_and_connections_at_once_are_counted() {
        let text = "a 1 connect from=x\nb 1 connect from=y\na 1 exec true\na 1 ended status=0\na 1 close received=1 sent=1\n\
                    c 1 connect from=z\nb 1 ended status=1\nb 1 close received=1 sent=1\n";
        assert_eq!(count(text), (Tally { ended: 1, at_once: 2 }, 1));
    }
}
