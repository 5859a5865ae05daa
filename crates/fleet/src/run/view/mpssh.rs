//! Lines in the format of mpssh-py; `hosts::fleet::mpssh` formats them.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use hosts::fleet::ending::{Ending, Reason};
use hosts::fleet::line::harmless;
use hosts::fleet::mpssh::{self, End, Lines, Settings, Sign, Unprintable};

use super::Colour;
use crate::run::happening::Stream;
use crate::run::output::View;

/// The output of mpssh between its header and its footer.
pub struct Mpssh {
    names: Vec<String>,
    printer: Printer,
    /// Hosts with an unfinished line.
    talks: HashMap<usize, Talk>,
}

struct Printer {
    settings: Settings,
    colour: Colour,
    reader: Reader,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// A terminal, with or without colours: control characters are escaped, since the terminal would obey them.
    Terminal,
    /// A program or a file, which gets the same bytes that mpssh would print.
    Program,
}

#[derive(Default)]
struct Talk {
    out: Lines,
    err: Lines,
}

impl Mpssh {
    /// Creates the view; names are padded to the width of the longest.
    #[must_use]
    pub fn new(names: &[String], settings: Settings, colour: Colour, reader: Reader) -> Self {
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let names = names.iter().map(|name| format!("{name:width$}")).collect();
        Self { names, printer: Printer { settings, colour, reader }, talks: HashMap::new() }
    }
}

impl Printer {
    fn line(&self, name: &str, sign: Sign, line: &[u8], out: &mut dyn Write) -> io::Result<()> {
        let sign = match self.colour {
            Colour::Off => sign.plain(),
            Colour::On => sign.coloured(),
        };
        write!(out, "{name} {sign} ")?;
        match (self.reader, self.settings.unprintable) {
            (Reader::Program, _) | (_, Unprintable::Printed) => out.write_all(line)?,
            (Reader::Terminal, Unprintable::Counted | Unprintable::LeftOut) => {
                write!(out, "{}", harmless(line))?;
            }
        }
        out.write_all(b"\n")
    }

    /// Writes the lines of a message of penstock, without a limit of their length.
    fn text(&self, name: &str, sign: Sign, text: &str, out: &mut dyn Write) -> io::Result<()> {
        let mut lines = Lines::default();
        self.lines(name, sign, out, |settings, each| {
            lines.push(settings, text.as_bytes(), each);
            lines.finish(settings, each);
        })
    }

    /// Writes the lines that the closure `cut` returns.
    fn lines(
        &self,
        name: &str,
        sign: Sign,
        out: &mut dyn Write,
        cut: impl FnOnce(&Settings, &mut dyn FnMut(&[u8])),
    ) -> io::Result<()> {
        let mut written = Ok(());
        cut(&self.settings, &mut |line| {
            if written.is_ok() {
                written = self.line(name, sign, line, out);
            }
        });
        written
    }

    /// Reports the bytes of a stream that were left out since the last report.
    fn left_out(&self, name: &str, lines: &mut Lines, out: &mut dyn Write) -> io::Result<()> {
        let count = lines.left_out();
        if count == 0 || self.settings.unprintable != Unprintable::Counted {
            return Ok(());
        }
        self.text(name, Sign::Failure, &mpssh::left_out(count), out)
    }
}

impl View for Mpssh {
    fn output(&mut self, host: usize, stream: Stream, bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
        let name = self.names.get(host).map_or("", String::as_str);
        let mut talk = self.talks.remove(&host).unwrap_or_default();
        let (sign, lines, other) = match stream {
            Stream::Stdout => (Sign::Output, &mut talk.out, &mut talk.err),
            Stream::Stderr => (Sign::Error, &mut talk.err, &mut talk.out),
        };
        self.printer.left_out(name, other, out)?;
        self.printer.lines(name, sign, out, |settings, each| lines.push(settings, bytes, each))?;
        if !talk.out.is_idle() || !talk.err.is_idle() {
            self.talks.insert(host, talk);
        }
        Ok(())
    }

    fn ended(&mut self, host: usize, ending: &Ending, _: Duration, out: &mut dyn Write) -> io::Result<()> {
        let name = self.names.get(host).map_or("", String::as_str);
        let mut talk = self.talks.remove(&host).unwrap_or_default();
        for (sign, lines) in [(Sign::Output, &mut talk.out), (Sign::Error, &mut talk.err)] {
            self.printer.lines(name, sign, out, |settings, each| lines.finish(settings, each))?;
            self.printer.left_out(name, lines, out)?;
        }
        if matches!(ending, Ending::Failed(failure) if failure.reason == Reason::Stopped) {
            // mpssh prints nothing more after Ctrl-C.
            return Ok(());
        }
        let (reason, end) = End::of(ending);
        if let Some(reason) = reason {
            self.printer.text(name, Sign::Error, &reason, out)?;
        }
        match end.line(&self.printer.settings) {
            Some((sign, text)) => self.printer.text(name, sign, &text, out),
            None => Ok(()),
        }
    }

    fn finish(&mut self, _: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }
}
