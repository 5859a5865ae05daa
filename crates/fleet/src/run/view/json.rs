//! One JSON object per line: output, and the ending of each host. Output that is not UTF-8 has U+FFFD in `text`, and
//! its bytes in `base64`.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use hosts::fleet::ending::Ending;
use hosts::fleet::text::{OutputText, Text};
use serde_json::{Value, json};
use ssh::Moved;
use text::terminal;

use crate::run::ending;
use crate::run::happening::Stream;
use crate::run::output::View;

pub struct Json {
    names: Vec<String>,
    /// Streams whose last piece ended within a UTF-8 character.
    unfinished: HashMap<(usize, Stream), Text>,
}

impl Json {
    #[must_use]
    pub fn new(names: &[String]) -> Self {
        Self { names: names.to_vec(), unfinished: HashMap::new() }
    }

    fn name(&self, host: usize) -> &str {
        self.names.get(host).map_or("", String::as_str)
    }

    fn say(&self, host: usize, stream: Stream, said: &OutputText, out: &mut dyn Write) -> io::Result<()> {
        let stream = match stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        let mut value =
            json!({ "event": "output", "host": self.name(host), "stream": stream, "text": said.text });
        if let Some(base64) = &said.base64 {
            value["base64"] = json!(base64);
        }
        line(&value, out)
    }
}

fn line(value: &Value, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", terminal::json(&value.to_string()))
}

impl View for Json {
    fn output(&mut self, host: usize, stream: Stream, bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
        let mut text = self.unfinished.remove(&(host, stream)).unwrap_or_default();
        let said = text.push(bytes);
        if !text.is_idle() {
            self.unfinished.insert((host, stream), text);
        }
        said.map_or(Ok(()), |said| self.say(host, stream, &said, out))
    }

    fn copied(&mut self, host: usize, moved: Moved, out: &mut dyn Write) -> io::Result<()> {
        let Moved { files, bytes } = moved;
        let copied = json!({ "event": "copied", "host": self.name(host), "files": files, "bytes": bytes });
        line(&copied, out)
    }

    fn ended(&mut self, host: usize, end: &Ending, took: Duration, out: &mut dyn Write) -> io::Result<()> {
        for stream in [Stream::Stdout, Stream::Stderr] {
            if let Some(said) = self.unfinished.remove(&(host, stream)).and_then(|mut text| text.finish()) {
                self.say(host, stream, &said, out)?;
            }
        }
        let mut value = json!({ "event": "end", "host": self.name(host), "seconds": took.as_secs_f64() });
        if let (Some(value), Value::Object(extra)) = (value.as_object_mut(), ending::as_json(end)) {
            value.extend(extra);
        }
        line(&value, out)
    }

    fn finish(&mut self, _: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_stay_whole_over_records_and_streams() {
        let mut view = Json::new(&["a".to_owned(), "b".to_owned()]);
        let mut out = Vec::new();
        for (host, stream, bytes) in [
            (0, Stream::Stdout, &b"x\xc3"[..]),
            (1, Stream::Stdout, b"y"),
            (0, Stream::Stderr, b"\xe2\x82"),
            (0, Stream::Stdout, b"\xa4"),
        ] {
            view.output(host, stream, bytes, &mut out).unwrap();
        }
        view.ended(0, &Ending::Exited(0), Duration::ZERO, &mut out).unwrap();
        let said: Vec<Value> =
            out.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
        let output =
            |host, stream, text| json!({ "event": "output", "host": host, "stream": stream, "text": text });
        let mut broken = output("a", "stderr", "\u{fffd}");
        broken["base64"] = json!("4oI=");
        assert_eq!(
            said[..4],
            [output("a", "stdout", "x"), output("b", "stdout", "y"), output("a", "stdout", "ä"), broken]
        );
        assert_eq!(said[4]["event"], "end");
    }

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_readers_get_it_as_it_was() {
        let mut view = Json::new(&["a".to_owned()]);
        let mut out = Vec::new();
        let odd = "a\u{9b}b\u{9d}c\u{202e}d\u{7f}\u{e0041}\n\u{e4}";
        view.output(0, Stream::Stdout, odd.as_bytes(), &mut out).unwrap();
        view.ended(0, &Ending::Exited(0), Duration::ZERO, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(!text.contains(['\u{9b}', '\u{9d}', '\u{202e}', '\u{7f}', '\u{e0041}']), "{text:?}");
        let said: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!(said["text"], odd);
    }
}
