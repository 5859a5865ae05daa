//! The JSON file of a run. The file is untrusted: it may have another version, be truncated, or contain control
//! characters from an attacker.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use serde_json::error::Category;

use super::{FORMAT, Results};
use crate::error::{Error, ErrorContext};
use text::terminal::plain;

impl Results {
    /// Reads a file that [`Results::write`] wrote. Replaces terminal control characters in its texts.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let name = plain(&path.display().to_string());
        let mut bytes = Vec::new();
        let doing = format!("read {name}");
        let file = File::open(path).doing(doing.as_str())?;
        file.take(LARGEST + 1).read_to_end(&mut bytes).doing(doing)?;
        let wrong = |text: String| Error::Results { file: name.clone(), text: plain(&text) };
        if bytes.len() as u64 > LARGEST {
            return Err(wrong(format!("it has more than {} MiB", LARGEST >> 20)));
        }
        if bytes.trim_ascii().is_empty() {
            return Err(wrong("it is empty".to_owned()));
        }
        // Only a file of the known format can be parsed further.
        let Head { format, .. } = parse(&bytes).map_err(wrong)?;
        if format != u64::from(FORMAT) {
            return Err(Error::Format { file: name, found: format, known: FORMAT });
        }
        let whole: Results = parse(&bytes).map_err(wrong)?;
        let mut value = serde_json::to_value(whole).map_err(|error| wrong(error.to_string()))?;
        clean(&mut value, Lines::One);
        let mut results: Results = serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
        for scenario in &mut results.scenarios {
            scenario.groups.iter_mut().for_each(super::GroupResult::mark);
        }
        Ok(results)
    }

    /// Writes the results as JSON.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let text = serde_json::to_string(self).expect("results are made of plain values with text keys");
        fs::write(path, text + "\n").doing(format!("write {}", path.display()))
    }
}

/// Parses JSON. The error names its place: `scenarios[0].groups[2].rounds: invalid type: ... at line 1 column 733`.
fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    let mut source = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut source).map_err(|error| {
        let place = error.path().to_string();
        let cause = error.into_inner();
        let place = if place == "." { String::new() } else { format!("{place}: ") };
        match cause.classify() {
            Category::Eof => format!("{place}it ends too early, as if cut off ({cause})"),
            _ => format!("{place}{cause}"),
        }
    })?;
    source.end().map_err(|error| format!("something follows its end: {error}"))?;
    Ok(value)
}

/// Whether a text may contain newlines.
#[derive(Clone, Copy)]
enum Lines {
    One,
    Many,
}

/// Replaces terminal control characters in every text of `value`.
fn clean(value: &mut Value, lines: Lines) {
    match value {
        Value::String(text) => {
            *text = match lines {
                Lines::One => plain(text),
                Lines::Many => text.split('\n').map(plain).collect::<Vec<_>>().join("\n"),
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| clean(value, lines)),
        Value::Object(members) => {
            let old = std::mem::take(members);
            for (name, mut value) in old {
                clean(&mut value, if name == "configuration" { Lines::Many } else { Lines::One });
                members.insert(plain(&name), value);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Fields that every version of the format has.
#[derive(Deserialize)]
struct Head {
    format: u64,
    /// Required field that distinguishes a results file from other files with a format number.
    #[serde(rename = "scenarios")]
    _scenarios: serde::de::IgnoredAny,
}

/// Size limit in bytes. A full run needs less than a tenth.
const LARGEST: u64 = 32 << 20;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::report::tests::{FAST, SLOW, results};

    fn write(directory: &Path, text: impl AsRef<[u8]>) -> PathBuf {
        let path = directory.join("r.json");
        fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_with_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let mut whole = serde_json::to_value(results(FAST, SLOW)).unwrap();
        let text = whole.to_string();
        // Cut at a comma: a cut within a number is another error.
        let half = text[..text.len() / 2].rfind(',').unwrap();
        whole["scenarios"][0]["groups"][0]["contestants"][1]["samples"] = "\u{1b}[31mmany".into();
        let cases: [(Vec<u8>, &[&str]); 8] = [
            (Vec::new(), &["it is empty"]),
            (b" \n".into(), &["it is empty"]),
            (text.as_bytes()[..half].into(), &["cut off", "line 1 column"]),
            (whole.to_string().into(), &["scenarios[0].groups[0].contestants[1].samples: ", "line 1 column"]),
            ((text.clone() + "}").into(), &["something follows its end", "column"]),
            (b"{\"format\": 3, \"scenarios\": []}".into(), &["missing field"]),
            ([b"{\"format\": 3, \"scenarios\": \"", &b"\xff\xff\"}"[..]].concat(), &["column"]),
            ("[".repeat(1_000_000).into(), &["column"]),
        ];
        for (bytes, expected) in cases {
            let error = Results::read(&write(directory.path(), bytes)).unwrap_err().to_string();
            assert!(error.contains("r.json: not a results file"), "{error}");
            assert!(expected.iter().all(|part| error.contains(part)), "{expected:?}: {error}");
            assert!(!error.contains('\u{1b}'), "{error}");
        }
    }

    #[test]
    fn a_file_without_end_is_refused() {
        let error = Results::read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(error.contains("more than 32 MiB"), "{error}");
    }

    #[test]
    fn texts_of_a_file_cannot_move_the_cursor() {
        let directory = tempfile::tempdir().unwrap();
        let mut evil = results(FAST, SLOW);
        let scenario = &mut evil.scenarios[0];
        scenario.name = "\u{1b}[2Jhttp\nall is well".to_owned();
        scenario.groups[0].contestants[0].name = "pen\u{9b}31m\u{202e}stock".to_owned();
        scenario.groups[0].contestants[0].configuration = "a\n\u{1b}b".to_owned();
        evil.interrupted = Some("\u{1b}]0;title\u{7}".to_owned());
        evil.machine.programs = vec![("ng\u{1b}c".to_owned(), "1\r2".to_owned())];
        let path = write(directory.path(), serde_json::to_string(&evil).unwrap());
        let read = Results::read(&path).unwrap();
        let text = crate::report::contrast::Contrast::of(&read, &read).text;
        assert!(
            !text.contains(|c: char| c.is_control() && c != '\n') && !text.contains('\u{202e}'),
            "{text:?}"
        );
        assert!(text.contains("\u{fffd}[2Jhttp\u{fffd}all is well/g: "), "{text}");
        assert_eq!(read.scenarios[0].groups[0].contestants[0].configuration, "a\n\u{fffd}b");
    }
}
