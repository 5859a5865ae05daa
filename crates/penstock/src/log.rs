//! The log of the process on standard error. A reader that stops reading must delay neither traffic nor a signal.
//! Therefore lines go through a bounded queue to a separate thread; lines that do not fit are counted.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::output::Failure;

/// Largest number of lines in the queue.
const QUEUE: usize = 1024;

/// Time limit for writing the remaining lines at the end of the process.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Shortest time between two writes.
const GATHER: Duration = Duration::from_millis(2);

type Change = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

/// Filter of the start.
static START: OnceLock<String> = OnceLock::new();
static LEVEL: OnceLock<Change> = OnceLock::new();

static LINES: OnceLock<SyncSender<Message>> = OnceLock::new();
static DROPPED: AtomicUsize = AtomicUsize::new(0);

enum Message {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

/// Starts the log: colours only on a terminal; PENSTOCK_LOG sets the level.
pub(crate) fn start() -> Result<(), Failure> {
    let named = std::env::var("PENSTOCK_LOG").ok().filter(|text| !text.is_empty());
    let text = START.get_or_init(|| named.unwrap_or_else(|| filter_of("info")));
    if let Some(word) = no_directive(text) {
        let meant = text::nearest::nearest(word, LEVELS).map(|level| format!("; did you mean {level}?"));
        return Err(Failure::usage(format_args!(
            "PENSTOCK_LOG: {} is no level{}\n  hint: use error, warn, info, debug or trace, or MODULE=LEVEL with commas",
            crate::output::plain(word),
            meant.unwrap_or_default()
        )));
    }
    let filter = EnvFilter::try_new(text).map_err(|error| {
        Failure::usage(format_args!(
            "PENSTOCK_LOG: {error}\n  hint: use error, warn, info, debug or trace, or MODULE=LEVEL with commas"
        ))
    })?;
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(ToThread)
        .with_ansi(io::stderr().is_terminal() && !no_colour)
        .with_target(false)
        .with_filter_reloading();
    let handle = log.reload_handle();
    let _ = LEVEL.set(Box::new(move |filter| handle.reload(filter).map_err(|error| error.to_string())));
    log.try_init().map_err(|error| Failure::runtime(format_args!("cannot start the log: {error}")))
}

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// A part of a filter that is neither LEVEL nor MODULE=LEVEL. The filter itself would take a misspelt level for a module of which
/// all is logged. What has a span in brackets is left to it.
fn no_directive(text: &str) -> Option<&str> {
    let is_level = |word: &str| LEVELS.iter().any(|level| word.eq_ignore_ascii_case(level));
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let levels = parts.map(|part| part.rsplit_once('=').map_or(part, |(_, level)| level.trim()));
    match text.contains('[') {
        true => None,
        false => levels.into_iter().find(|level| !is_level(level)),
    }
}

/// Changes the level of the log; `None` is that of the start.
pub(crate) fn apply(level: Option<&str>) -> Result<(), String> {
    let text = match level {
        Some(level) => filter_of(level),
        None => START.get().cloned().unwrap_or_else(|| filter_of("info")),
    };
    let filter = EnvFilter::try_new(text).map_err(|error| error.to_string())?;
    LEVEL.get().ok_or("the log has not started")?(filter)
}

fn filter_of(level: &str) -> String {
    // rustls would warn of each failed handshake, which the access log already contains.
    format!("{level},rustls=error")
}

/// Waits until all queued lines are written, at most `LAST_WORDS`.
pub(crate) fn finish() {
    let Some(lines) = LINES.get() else { return };
    let (done, written) = sync_channel(1);
    if lines.try_send(Message::Flush(done)).is_ok() {
        // Times out if the reader has stopped reading.
        let _ = written.recv_timeout(LAST_WORDS);
    }
}

struct ToThread;

impl<'a> MakeWriter<'a> for ToThread {
    type Writer = ToThread;

    fn make_writer(&'a self) -> Self::Writer {
        ToThread
    }
}

impl Write for ToThread {
    /// Queues one line: the formatter calls `write` once per line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match sender() {
            // An error is ignored, as in the thread below: a full standard error must not end the process.
            None => drop(io::stderr().write_all(line)),
            Some(lines) => {
                if lines.try_send(Message::Line(line.to_vec())).is_err() {
                    DROPPED.fetch_add(1, Relaxed);
                }
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the queue. `None` while the process has only one thread: privileges can only be dropped then, and a blocked
/// standard error delays nothing else.
fn sender() -> Option<&'static SyncSender<Message>> {
    if LINES.get().is_none() && !has_other_threads() {
        return None;
    }
    Some(LINES.get_or_init(|| {
        let (lines, queue) = sync_channel(QUEUE);
        // If the thread cannot be started, the queue is closed and every line counts as dropped.
        let _ = std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write_all(&queue, &mut io::stderr()));
        lines
    }))
}

fn has_other_threads() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() > 1)
}

/// Writes lines as they come. Those that follow within [`GATHER`] are written together: operators may cause thousands a
/// second, and each line by itself would wake this thread, which takes the core from a worker.
fn write_all(queue: &Receiver<Message>, out: &mut impl Write) {
    let mut text = Vec::new();
    while let Ok(first) = queue.recv() {
        let (began, mut last) = (Instant::now(), None);
        for message in std::iter::once(first).chain(queue.try_iter().take(QUEUE)) {
            match message {
                Message::Line(line) => text.extend_from_slice(&line),
                Message::Flush(done) => {
                    last = Some(done);
                    break;
                }
            }
        }
        let dropped = DROPPED.swap(0, Relaxed);
        if dropped > 0 {
            // An error is ignored: there is no other place to report a closed standard error.
            let lost = text::units::count(dropped, "line");
            let _ = writeln!(out, "{lost} missing from this log: standard error was not read");
        }
        // An error is ignored, as above.
        let _ = out.write_all(&text);
        text.clear();
        match last {
            Some(done) => drop(done.send(())),
            None => std::thread::sleep(GATHER.saturating_sub(began.elapsed())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps each write by itself.
    #[derive(Default)]
    struct Writes(Vec<String>);

    impl Write for Writes {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.push(String::from_utf8(text.to_vec()).unwrap());
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_wait_are_written_at_once_in_their_order_and_before_a_flush_is_answered() {
        let (lines, queue) = sync_channel(QUEUE);
        let (done, written) = sync_channel(1);
        for number in 0..100 {
            lines.send(Message::Line(format!("{number}\n").into_bytes())).unwrap();
        }
        lines.send(Message::Flush(done)).unwrap();
        lines.send(Message::Line(b"later\n".to_vec())).unwrap();
        drop(lines);
        let mut out = Writes::default();
        write_all(&queue, &mut out);
        let expected: String = (0..100).map(|number| format!("{number}\n")).collect();
        assert_eq!(out.0, [expected, "later\n".to_owned()]);
        assert_eq!(written.recv(), Ok(()));
    }
}
