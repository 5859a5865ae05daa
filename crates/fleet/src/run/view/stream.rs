//! Lines in the order of their arrival, with the host before each line: `web1 -> out`, `web1 => err`, `web1 =: exit 1`.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use hosts::fleet::ending::Ending;
use hosts::fleet::line::{LONGEST, LineSplitter, Piece, harmless, harmless_text, last_writing};
use hosts::fleet::verdict::title;

use super::Colour;
use crate::run::happening::Stream;
use crate::run::output::View;

pub struct Lines {
    names: Vec<String>,
    colour: Colour,
    cutters: HashMap<(usize, Stream), LineSplitter>,
}

impl Lines {
    /// Creates the view; names are padded to the width of the longest.
    #[must_use]
    pub fn new(names: &[String], colour: Colour) -> Self {
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).min(WIDEST);
        let names = names.iter().map(|name| format!("{name:width$}")).collect();
        Self { names, colour, cutters: HashMap::new() }
    }

    fn line(&self, host: usize, sign: Sign, before: &str, text: &str, out: &mut dyn Write) -> io::Result<()> {
        let name = self.names.get(host).map_or("", String::as_str);
        let (mark, colour) = match sign {
            Sign::Out => ("->", "32"),
            Sign::Err => ("=>", "31"),
            Sign::End => ("=:", "31"),
        };
        match self.colour {
            Colour::On => writeln!(out, "{name} \x1b[{colour}m{mark}\x1b[0m {before}{text}"),
            Colour::Off => writeln!(out, "{name} {mark} {before}{text}"),
        }
    }

    /// Writes the lines that the closure `cut` returns.
    fn cut(
        &self,
        host: usize,
        stream: Stream,
        out: &mut dyn Write,
        cut: impl FnOnce(&mut dyn FnMut(Piece<'_>)),
    ) -> io::Result<()> {
        let sign = match stream {
            Stream::Stdout => Sign::Out,
            Stream::Stderr => Sign::Err,
        };
        let mut written = Ok(());
        cut(&mut |piece| {
            if written.is_ok() {
                let (line, _) = last_writing(piece.bytes);
                written = self.line(host, sign, piece.start.mark(), &harmless(line), out);
            }
        });
        written
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
        let mut cutter = self.cutters.remove(&(host, stream)).unwrap_or_else(|| LineSplitter::new(LONGEST));
        let written = self.cut(host, stream, out, |each| cutter.push(bytes, each));
        // Most output ends with a line feed, so only a few hosts keep an unfinished line.
        if !cutter.pending().is_empty() {
            self.cutters.insert((host, stream), cutter);
        }
        written
    }

    fn ended(&mut self, host: usize, ending: &Ending, _: Duration, out: &mut dyn Write) -> io::Result<()> {
        for stream in [Stream::Stdout, Stream::Stderr] {
            if let Some(mut cutter) = self.cutters.remove(&(host, stream)) {
                self.cut(host, stream, out, |each| cutter.finish(each))?;
            }
        }
        match ending {
            Ending::Exited(0) => Ok(()),
            Ending::Failed(failure) => self.line(
                host,
                Sign::End,
                "",
                &format!("{}: {}", title(ending), harmless_text(&failure.detail)),
                out,
            ),
            _ => self.line(host, Sign::End, "", &title(ending), out),
        }
    }

    fn finish(&mut self, _: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }
}

const WIDEST: usize = 40;
