//! The progress line on a terminal, which is erased before anything else is written.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use text::units;

use super::board::Board;
use super::terminal::Terminal;

pub struct Progress {
    board: Arc<Board>,
    terminal: Arc<Terminal>,
}

impl Progress {
    /// Creates a line that is at most as wide as the terminal on standard error.
    #[must_use]
    pub fn new(board: Arc<Board>, terminal: Arc<Terminal>) -> Self {
        Self { board, terminal }
    }

    pub(super) fn draw(&mut self) {
        let (counts, elapsed) = (self.board.counts(), self.board.begin().elapsed());
        let failed = if counts.failed > 0 { format!(", {} failed", counts.failed) } else { String::new() };
        let mut line = format!(
            "{} done{failed}, {} running, {} starting, {} left  {}",
            counts.ok + counts.failed,
            counts.running,
            counts.starting,
            counts.left,
            units::elapsed(elapsed)
        );
        if self.board.bytes() > 0 {
            line.push_str(&format!("  {}", units::bytes(self.board.bytes())));
        }
        if let Some((host, phase, took)) = self.board.at_work().first()
            && *took >= Duration::from_secs(1)
        {
            let name = self.board.name(*host);
            line.push_str(&format!("  slowest {name}: {phase} {}", units::elapsed(*took)));
        }
        // A wrapped line could not be erased. The width is read each time, since the user may resize the window.
        let columns = sys::terminal::columns(&io::stderr()).unwrap_or(COLUMNS);
        let line: String = line.chars().take(columns.saturating_sub(1)).collect();
        self.terminal.draw(&line);
    }

    pub(super) fn clear(&mut self) {
        self.terminal.clear();
    }

    /// Prints the hosts that have not ended, with the phase of each and its duration.
    pub(super) fn tell_running(&mut self) {
        const MOST: usize = 20;
        self.clear();
        let busy = self.board.at_work();
        let mut text = String::new();
        for (host, phase, took) in busy.iter().take(MOST) {
            let name = self.board.name(*host);
            text.push_str(&format!("  {name}: {phase} for {}\n", units::elapsed(*took)));
        }
        let more = busy.len().saturating_sub(MOST);
        if more > 0 {
            text.push_str(&format!("  and {more} more\n"));
        }
        if busy.is_empty() {
            text.push_str("  no host is running\n");
        }
        let _ = write!(io::stderr(), "{text}");
    }
}

/// Width of a terminal that does not report its width.
const COLUMNS: usize = 80;
