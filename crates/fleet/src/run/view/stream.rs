//! Lines as they come, each with its host before it: `web1 -> out`, `web1 => err`, `web1 =: exit 1`.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use logic::fleet::ending::Ending;
use logic::fleet::verdict::title;

use super::Colour;
use crate::run::engine::Stream;
use crate::run::output::View;

/// Prefixed lines.
pub struct Lines {
    names: Vec<String>,
    colour: Colour,
    partial: HashMap<(usize, Stream), Vec<u8>>,
}

impl Lines {
    /// With names padded to the width of the longest.
    #[must_use]
    pub fn new(names: &[String], colour: Colour) -> Self {
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).min(WIDEST);
        let names = names.iter().map(|name| format!("{name:width$}")).collect();
        Self { names, colour, partial: HashMap::new() }
    }

    fn line(&self, host: usize, sign: Sign, text: &str, out: &mut dyn Write) -> io::Result<()> {
        let name = self.names.get(host).map_or("", String::as_str);
        let (mark, colour) = match sign {
            Sign::Out => ("->", "32"),
            Sign::Err => ("=>", "31"),
            Sign::End => ("=:", "31"),
        };
        match self.colour {
            Colour::On => writeln!(out, "{name} \x1b[{colour}m{mark}\x1b[0m {text}"),
            Colour::Off => writeln!(out, "{name} {mark} {text}"),
        }
    }

    fn whole(&self, host: usize, stream: Stream, line: &[u8], out: &mut dyn Write) -> io::Result<()> {
        let sign = match stream {
            Stream::Stdout => Sign::Out,
            Stream::Stderr => Sign::Err,
        };
        let text: String =
            String::from_utf8_lossy(line).chars().filter(|c| !c.is_control() || *c == '\t').collect();
        self.line(host, sign, &text, out)
    }
}

#[derive(Clone, Copy)]
enum Sign {
    Out,
    Err,
    End,
}

impl View for Lines {
    fn output(&mut self, host: usize, stream: Stream, bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
        let mut held = self.partial.remove(&(host, stream)).unwrap_or_default();
        held.extend_from_slice(bytes);
        let mut rest = &held[..];
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.whole(host, stream, &rest[..end], out)?;
            rest = &rest[end + 1..];
        }
        if !rest.is_empty() {
            self.partial.insert((host, stream), rest.to_vec());
        }
        Ok(())
    }

    fn ended(&mut self, host: usize, ending: &Ending, _: Duration, out: &mut dyn Write) -> io::Result<()> {
        for stream in [Stream::Stdout, Stream::Stderr] {
            if let Some(rest) = self.partial.remove(&(host, stream)) {
                self.whole(host, stream, &rest, out)?;
            }
        }
        match ending {
            Ending::Exited(0) => Ok(()),
            Ending::Failed(failure) => {
                self.line(host, Sign::End, &format!("{}: {}", title(ending), failure.detail), out)
            }
            _ => self.line(host, Sign::End, &title(ending), out),
        }
    }

    fn finish(&mut self, _: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }
}

const WIDEST: usize = 40;
