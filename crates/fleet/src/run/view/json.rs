//! One JSON object per line: what came, how each host ended.

use std::io::{self, Write};
use std::time::Duration;

use logic::fleet::ending::{Ending, Remote};
use logic::fleet::verdict::{Status, title};
use serde_json::{Value, json};
use ssh::Moved;

use crate::run::engine::Stream;
use crate::run::output::View;

/// Events as they come.
pub struct Json {
    names: Vec<String>,
}

impl Json {
    /// For hosts of these names.
    #[must_use]
    pub fn new(names: &[String]) -> Self {
        Self { names: names.to_vec() }
    }

    fn name(&self, host: usize) -> &str {
        self.names.get(host).map_or("", String::as_str)
    }
}

/// An ending as an object: also in the journal.
#[must_use]
pub fn ending(ending: &Ending) -> Value {
    let mut value = json!({ "ended": title(ending), "status": Status::of(ending).code(), "remote": remote(ending.remote()) });
    let extra = match ending {
        Ending::Exited(code) => json!({ "exit": code }),
        Ending::Signalled { signal, .. } => json!({ "signal": signal }),
        Ending::Failed(failure) => json!({
            "phase": failure.phase.word(),
            "reason": failure.reason.word(),
            "detail": failure.detail,
            "advice": failure.advice,
        }),
    };
    if let (Some(value), Value::Object(extra)) = (value.as_object_mut(), extra) {
        value.extend(extra);
    }
    value
}

/// The word for what is known of a remote process.
#[must_use]
pub fn remote(remote: Remote) -> &'static str {
    match remote {
        Remote::NeverStarted => "never-started",
        Remote::Ended => "ended",
        Remote::Unknown => "unknown",
    }
}

impl View for Json {
    fn output(&mut self, host: usize, stream: Stream, bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
        let stream = match stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        let text = String::from_utf8_lossy(bytes);
        writeln!(
            out,
            "{}",
            json!({ "event": "output", "host": self.name(host), "stream": stream, "text": text })
        )
    }

    fn copied(&mut self, host: usize, moved: Moved, out: &mut dyn Write) -> io::Result<()> {
        let Moved { files, bytes } = moved;
        let line = json!({ "event": "copied", "host": self.name(host), "files": files, "bytes": bytes });
        writeln!(out, "{line}")
    }

    fn ended(&mut self, host: usize, end: &Ending, took: Duration, out: &mut dyn Write) -> io::Result<()> {
        let mut value = json!({ "event": "end", "host": self.name(host), "seconds": took.as_secs_f64() });
        if let (Some(value), Value::Object(extra)) = (value.as_object_mut(), ending(end)) {
            value.extend(extra);
        }
        writeln!(out, "{value}")
    }

    fn finish(&mut self, _: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }
}
