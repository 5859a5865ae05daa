//! What the lab's journal says of one run: how many hosts ran the command, and how many sessions there were at once.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// The journal from some moment on.
pub(super) struct Journal(File);

/// What it says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Commands that ended with status 0.
    pub ended: usize,
    /// The most connections at once.
    pub at_once: usize,
}

impl Journal {
    /// From its present end on.
    pub(super) fn at_end(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self(file))
    }

    /// Reads until all connections of the run are closed: a client is gone a little earlier than its host notices.
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

/// Lines are `HOST CONNECTION EVENT`. Gives how many connections are still open, too.
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

/// How long hosts have to notice that their clients are gone.
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
