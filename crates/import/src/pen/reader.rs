//! Reads a command line and files of commands into a [`Pen`], and collects notes and faults.

use std::path::Path;

use super::address;
use super::model::{Given, Pen, Said, Server};
use super::option::Opt;
use super::place::Listen;
use crate::{Effect, Fault, Note, Outside, fits};

/// Files that include each other more deeply than this are refused.
const DEEPEST: usize = 8;
/// Most lines of all files together: a file that is included often must not take for ever.
const MOST_LINES: usize = 1_000_000;

/// Notes among which a repeated one is looked for: lines of a file have places of their own.
const REPEATED: usize = 100;

pub(super) struct Reader<'o> {
    pub(super) pen: Pen,
    pub(super) notes: Vec<Note>,
    pub(super) faults: Vec<Fault>,
    pub(super) outside: &'o Outside<'o>,
    /// `-F`: Pen reads the last one, after all options.
    pub(super) commands: Given<String>,
    lines: usize,
}

impl<'o> Reader<'o> {
    pub(super) fn new(outside: &'o Outside<'o>) -> Self {
        Self { pen: Pen::default(), notes: Vec::new(), faults: Vec::new(), outside, commands: None, lines: 0 }
    }

    pub(super) fn note(&mut self, effect: Effect, place: &str, text: &str) {
        let note = Note { effect, place: place.to_owned(), text: text.to_owned() };
        // An option that is repeated (-dd) is told once.
        if !self.notes.iter().rev().take(REPEATED).any(|before| *before == note) {
            self.notes.push(note);
        }
    }

    pub(super) fn fault(&mut self, place: &str, message: &str, hint: Option<&str>) {
        let hint = hint.map(str::to_owned);
        self.faults.push(Fault { place: place.to_owned(), message: message.to_owned(), hint });
    }

    pub(super) fn number(&mut self, text: &str, place: &str) -> Given<u64> {
        // Our configuration has no number that is larger.
        match text.parse::<u64>() {
            Ok(value) if value <= 100_000_000 => Some(Said { value, place: place.to_owned() }),
            Ok(_) => {
                self.fault(place, &format!("{text} is too large: at most 100000000"), None);
                None
            }
            Err(_) => {
                self.fault(place, &format!("{text:?} is not a number"), None);
                None
            }
        }
    }

    /// A path, made absolute.
    pub(super) fn path(&mut self, text: &str, place: &str) -> Given<String> {
        if text.is_empty() {
            self.fault(place, "the path is empty", None);
            return None;
        }
        let value = self.outside.absolute(text);
        if let Err(why) = fits::path(&value) {
            self.fault(place, &why, None);
            return None;
        }
        Some(Said { value, place: place.to_owned() })
    }

    /// The same of a file of the certificate, without which no client is served.
    pub(super) fn present(&mut self, text: &str, place: &str) -> Given<String> {
        let said = self.path(text, place)?;
        if !(self.outside.exists)(Path::new(&said.value)) {
            self.pen.tls.absent.push(said.clone());
        }
        Some(said)
    }

    /// Reads a command line without its program name, as getopt(3) does: options may follow operands, several letters
    /// may share a dash, and `--` ends the options.
    pub(super) fn command_line(&mut self, words: &[String]) {
        let mut operands = Vec::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if word == "--" {
                operands.extend(words.by_ref());
            } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
                let mut rest = letters;
                while let Some(letter) = rest.chars().next() {
                    rest = &rest[letter.len_utf8()..];
                    let Some(option) = Opt::of(letter) else {
                        let hint = "`penstock import pen --help` has examples; docs/pen.md lists the options";
                        self.fault(word, &format!("Pen has no option -{letter}"), Some(hint));
                        break;
                    };
                    if !option.has_argument() {
                        self.option(option, "");
                        continue;
                    }
                    let argument =
                        if rest.is_empty() { words.next().map(String::as_str) } else { Some(rest) };
                    match argument {
                        Some(argument) => self.option(option, argument),
                        None => self.fault(word, &format!("-{letter} needs an argument"), None),
                    }
                    break;
                }
            } else {
                operands.push(word);
            }
        }
        if let Some(Said { value, place }) = self.commands.take() {
            self.file(&value, &place, 0);
        }
        self.operands(&operands);
    }

    /// The first operand says where Pen listens, the others are the servers.
    fn operands(&mut self, operands: &[&String]) {
        let Some((first, servers)) = operands.split_first() else { return };
        match &self.pen.listen {
            // Pen skips the first argument in any case.
            Some(listen) => {
                let why = format!("not used: {} says where to listen", listen.place);
                self.note(Effect::Dropped, first, &why);
            }
            None => match self.listens(first) {
                Ok(value) => self.pen.listen = Some(Said { value, place: (*first).clone() }),
                Err(why) => {
                    self.fault(first, &why, Some("[host:]port or the path of a Unix socket comes first"))
                }
            },
        }
        for (at, text) in servers.iter().enumerate() {
            if let Some(Said { value, .. }) = self.server(text, text) {
                // The access list of a server is the only thing that a command before could say of it.
                let before = self.pen.servers.get(&at).cloned().unwrap_or_default();
                if before.says_more_than_its_list() {
                    let why = format!(
                        "this argument replaces what commands say of server {at}, but for its access list, as in Pen; Pen takes \
                         what a file says of it (-F) only after a SIGHUP"
                    );
                    self.note(Effect::Changed, text, &why);
                }
                self.pen.servers.insert(at, Server { acl: before.acl, ..value });
            }
        }
    }

    /// Where Pen listens, by this text.
    pub(super) fn listens(&self, text: &str) -> Result<Listen, String> {
        match self.pen.dsr {
            Some(_) => address::service(text, self.outside),
            None => address::listen(text, self.outside),
        }
    }

    /// Reads a file of commands.
    pub(super) fn file(&mut self, name: &str, place: &str, depth: usize) {
        if depth > DEEPEST {
            self.fault(place, "files include each other too deeply", Some("does a file include itself?"));
            return;
        }
        match (self.outside.read)(Path::new(&self.outside.absolute(name))) {
            Ok(text) => self.text(name, &text, depth),
            Err(why) => self.fault(place, &format!("{name} cannot be read: {why}"), None),
        }
    }

    /// Reads the text of a file of commands.
    pub(super) fn text(&mut self, name: &str, text: &str, depth: usize) {
        for (at, line) in text.lines().enumerate() {
            self.lines += 1;
            if self.lines > MOST_LINES {
                self.fault(name, "the files have more than a million lines", None);
                return;
            }
            self.command(line, &format!("{name}:{}", at + 1), depth);
        }
    }
}
