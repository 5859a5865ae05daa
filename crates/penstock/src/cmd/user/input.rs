//! Keys that an operator gives: a line as an argument, a file, or standard input; with a limit of size and of lines.

use std::io::{self, Read};
use std::path::Path;

use hosts::authorized::line::{self, Line, LineFault};

use crate::output::{Failure, plain};
use crate::usage;

/// A file of keys, or what came from standard input.
pub(super) struct Lines {
    /// The file for people; `-` is "standard input".
    pub(super) shown: String,
    text: Vec<u8>,
}

/// Largest file of keys.
const LARGEST: u64 = 16 * 1024 * 1024;

impl Lines {
    /// Reads a file of keys; `-` is standard input.
    pub(super) fn read(file: &Path) -> Result<Self, Failure> {
        if let Some(text) = usage::private_key(&[file.to_string_lossy().into_owned()]) {
            return Err(Failure::usage(text));
        }
        let is_input = file.as_os_str() == "-";
        let shown = if is_input { "standard input".to_owned() } else { plain(&file.display().to_string()) };
        let read = match is_input {
            true => {
                let mut bytes = Vec::new();
                io::stdin().lock().take(LARGEST + 1).read_to_end(&mut bytes).map(|_| bytes)
            }
            false => sys::file::read(file, LARGEST),
        };
        let text = read.map_err(|error| Failure::usage(format_args!("cannot read {shown}: {error}")))?;
        if text.len() as u64 > LARGEST {
            return Err(Failure::usage(format_args!(
                "{shown} is larger than {} MiB, the most",
                LARGEST >> 20
            )));
        }
        Ok(Self { shown, text })
    }

    /// A line that was an argument.
    pub(super) fn argument(text: &str) -> Self {
        Self { shown: "the key".to_owned(), text: text.as_bytes().to_vec() }
    }

    /// Its keys and faults, with the numbers of their lines.
    pub(super) fn parse(&self) -> Vec<(usize, Result<Line, LineFault>)> {
        let mut all = Vec::new();
        for (at, bytes) in self.text.split(|byte| *byte == b'\n').enumerate() {
            let parsed = match bytes.len() {
                length if length > line::LONGEST => Err(LineFault::TooLong { length, most: line::LONGEST }),
                _ => Line::parse(&String::from_utf8_lossy(bytes)),
            };
            match parsed {
                Ok(None) => {}
                Ok(Some(line)) => all.push((at + 1, Ok(line))),
                Err(fault) => {
                    let ends_it = matches!(fault, LineFault::Private | LineFault::OtherForm(_));
                    all.push((at + 1, Err(fault)));
                    // What follows is the body of that key.
                    if ends_it {
                        break;
                    }
                }
            }
        }
        all
    }
}
