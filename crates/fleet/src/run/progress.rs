//! One line on a terminal about how far the run is, which is taken away before anything else is written.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use super::board::Board;
use super::terminal::Terminal;

/// The line.
pub struct Progress {
    board: Arc<Board>,
    terminal: Arc<Terminal>,
}

impl Progress {
    /// A line as wide as the terminal behind standard error at most.
    #[must_use]
    pub fn new(board: Arc<Board>, terminal: Arc<Terminal>) -> Self {
        Self { board, terminal }
    }

    pub(super) fn draw(&mut self) {
        let (counts, elapsed) = (self.board.counts(), self.board.begin().elapsed());
        let failed = if counts.failed > 0 { format!(", {} failed", counts.failed) } else { String::new() };
        let mut line = format!(
            "{} done{failed}, {} running, {} starting, {} left  {}",
            counts.well + counts.failed,
            counts.running,
            counts.starting,
            counts.left,
            seconds(elapsed)
        );
        if self.board.bytes() > 0 {
            line.push_str(&format!("  {}", bytes(self.board.bytes())));
        }
        if let Some((host, phase, took)) = self.board.at_work().first()
            && *took >= Duration::from_secs(1)
        {
            let name = self.board.name(*host);
            line.push_str(&format!("  slowest {name}: {phase} {}", seconds(*took)));
        }
        // A line that wraps could not be taken away again. The window may have changed since the last one.
        let columns = sys::terminal::columns(&io::stderr()).unwrap_or(COLUMNS);
        let line: String = line.chars().take(columns.saturating_sub(1)).collect();
        self.terminal.draw(&line);
    }

    pub(super) fn clear(&mut self) {
        self.terminal.clear();
    }

    /// Who is still at work, in which phase, for how long.
    pub(super) fn tell_running(&mut self) {
        const MOST: usize = 20;
        self.clear();
        let busy = self.board.at_work();
        let mut text = String::new();
        for (host, phase, took) in busy.iter().take(MOST) {
            let name = self.board.name(*host);
            text.push_str(&format!("  {name}: {phase} for {}\n", seconds(*took)));
        }
        let more = busy.len().saturating_sub(MOST);
        if more > 0 {
            text.push_str(&format!("  and {more} more\n"));
        }
        if busy.is_empty() {
            text.push_str("  nobody is running\n");
        }
        let _ = write!(io::stderr(), "{text}");
    }
}

/// Of a terminal that does not say how wide it is.
const COLUMNS: usize = 80;

/// `312 bytes`, `4.0 kB`, `1.2 GB`.
pub(super) fn bytes(count: u64) -> String {
    let units = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if count < 1000 {
        return format!("{count} {}", if count == 1 { "byte" } else { "bytes" });
    }
    let mut amount = count as f64 / 1000.0;
    let mut unit = 0;
    while amount >= 999.95 && unit + 1 < units.len() {
        amount /= 1000.0;
        unit += 1;
    }
    format!("{amount:.1} {}", units[unit])
}

/// `0.4 s`, `12 s`, `3 min 5 s`.
pub(super) fn seconds(time: Duration) -> String {
    let whole = time.as_secs();
    match whole {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        10..120 => format!("{whole} s"),
        _ => format!("{} min {} s", whole / 60, whole % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_the_unit_in_which_they_are_short() {
        let told = [0, 1, 999, 1000, 999_949, 999_950, 1_234_567, u64::MAX].map(bytes);
        let expected =
            ["0 bytes", "1 byte", "999 bytes", "1.0 kB", "999.9 kB", "1.0 MB", "1.2 MB", "18.4 EB"];
        assert_eq!(told, expected);
    }
}
