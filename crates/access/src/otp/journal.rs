//! Lines of a journal: each holds a record and a signature over it and over all lines before it. A line that was cut off at
//! the end is told from damage: no client got an answer for the first, while the second may hide a counter that was used.

use std::str;

use super::hex;
use super::seal::Key;

/// Longest line, without its end.
pub const LONGEST_LINE: usize = 16 * 1024;

/// Letters of a signature, and the space behind it.
const PREFIX: usize = 17;

/// The signature of the last line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Chain([u8; 8]);

impl Chain {
    /// Appends the line of a record.
    pub fn write(&mut self, key: &Key, record: &str, out: &mut Vec<u8>) {
        self.0 = key.sign(&self.0, record);
        out.extend_from_slice(hex::encode(&self.0).as_bytes());
        out.push(b' ');
        out.extend_from_slice(record.as_bytes());
        out.push(b'\n');
    }

    /// Returns the record of a line without its end, if it is the next one.
    fn read<'a>(&mut self, key: &Key, line: &'a [u8]) -> Option<&'a str> {
        let (prefix, record) = line.split_at_checked(PREFIX)?;
        let record = str::from_utf8(record).ok()?;
        let next = key.sign(&self.0, record);
        if prefix[PREFIX - 1] != b' ' || prefix[..PREFIX - 1] != *hex::encode(&next).as_bytes() {
            return None;
        }
        self.0 = next;
        Some(record)
    }
}

/// What stands behind the last whole line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Nothing.
    Clean,
    /// A line of this length that was not written to its end: it must be taken away before another one is written.
    Torn(usize),
}

/// Lines that are not what was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} (at byte {at}) is damaged: {why}")]
pub struct Damage {
    /// Place of the line in the bytes.
    pub at: usize,
    /// Its number in them, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: String,
}

/// Reads the records in `bytes`, which continue the chain. `take` may refuse a record.
pub fn read(
    key: &Key,
    chain: &mut Chain,
    bytes: &[u8],
    mut take: impl FnMut(&str) -> Result<(), String>,
) -> Result<Tail, Damage> {
    let (mut at, mut line) = (0, 1);
    loop {
        let rest = &bytes[at..];
        let damage = |why: String| Damage { at, line, why };
        let Some(length) = rest.iter().position(|byte| *byte == b'\n') else {
            return match rest {
                [] => Ok(Tail::Clean),
                // Whole but for its end, or but for one byte in its place: it counts.
                [all @ .., _] => {
                    let whole = [rest, all].into_iter().find_map(|text| chain.read(key, text));
                    whole.map_or(Ok(()), |record| take(record).map_err(damage))?;
                    Ok(Tail::Torn(rest.len()))
                }
            };
        };
        let record = chain.read(key, &rest[..length]);
        let record =
            record.ok_or_else(|| damage("its signature does not fit it and the lines before".to_owned()))?;
        take(record).map_err(damage)?;
        (at, line) = (at + length + 1, line + 1);
    }
}

/// The first record of a journal, if it has a whole line: it names the key, and is read before that is known.
#[must_use]
pub fn first_record(bytes: &[u8]) -> Option<&str> {
    let line = bytes.split(|byte| *byte == b'\n').next().filter(|line| line.len() < bytes.len())?;
    str::from_utf8(line.get(PREFIX..)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::read(&Key::text(&[7; 32])).unwrap()
    }

    fn written(records: &[&str]) -> Vec<u8> {
        let (mut chain, mut out) = (Chain::default(), Vec::new());
        records.iter().for_each(|record| chain.write(&key(), record, &mut out));
        out
    }

    fn read_all(bytes: &[u8]) -> (Vec<String>, Result<Tail, Damage>) {
        let mut records = Vec::new();
        let tail = read(&key(), &mut Chain::default(), bytes, |record| {
            records.push(record.to_owned());
            Ok(())
        });
        (records, tail)
    }

    const RECORDS: [&str; 3] = [r#"{"one":1}"#, r#"{"two":"zwei"}"#, r#"{"three":3}"#];

    #[test]
    fn records_come_back_in_parts_too() {
        let bytes = written(&RECORDS);
        assert_eq!(read_all(&bytes), (RECORDS.map(str::to_owned).to_vec(), Ok(Tail::Clean)));
        assert_eq!(first_record(&bytes), Some(RECORDS[0]));
        let (first, rest) = bytes.split_at(written(&RECORDS[..1]).len());
        let mut chain = Chain::default();
        let mut seen = 0;
        for part in [first, rest] {
            let mut count = |_: &str| {
                seen += 1;
                Ok(())
            };
            assert_eq!(read(&key(), &mut chain, part, &mut count), Ok(Tail::Clean));
        }
        assert_eq!(seen, 3);
    }

    #[test]
    fn a_journal_cut_anywhere_gives_the_whole_lines_before_and_tells_of_the_rest() {
        let bytes = written(&RECORDS);
        let ends: Vec<usize> = (1..=3).map(|count| written(&RECORDS[..count]).len()).collect();
        for cut in 0..bytes.len() {
            let (records, tail) = read_all(&bytes[..cut]);
            let whole = ends.iter().filter(|end| **end <= cut).count();
            let begun = cut - ends[..whole].last().copied().unwrap_or(0);
            // A line that lacks only its end counts.
            let counts = usize::from(ends.contains(&(cut + 1)));
            assert_eq!(records, RECORDS[..whole + counts], "{cut}");
            assert_eq!(tail, Ok(if begun == 0 { Tail::Clean } else { Tail::Torn(begun) }), "{cut}");
        }
    }

    #[test]
    fn a_byte_changed_anywhere_loses_no_record_silently() {
        let bytes = written(&RECORDS);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let (records, tail) = read_all(&changed);
            match tail {
                // Only the very last byte: the line before it is whole.
                Ok(tail) => assert_eq!((records.len(), tail != Tail::Clean, at), (3, true, bytes.len() - 1)),
                Err(damage) => assert!(damage.at <= at && records.len() < 3, "{damage}"),
            }
        }
    }

    #[test]
    fn lines_left_out_or_in_another_order_are_damage() {
        let line = |records: &[&str], at: usize| {
            written(records).split_inclusive(|byte| *byte == b'\n').nth(at).unwrap().to_vec()
        };
        let lines = [0, 1, 2].map(|at| line(&RECORDS, at));
        for order in [&[1, 2][..], &[0, 2], &[0, 0], &[2, 1, 0]] {
            let bytes: Vec<u8> = order.iter().flat_map(|at| lines[*at].clone()).collect();
            assert!(read_all(&bytes).1.is_err(), "{order:?}");
        }
    }

    #[test]
    fn a_record_that_is_refused_is_damage_with_the_reason() {
        let refused = read(&key(), &mut Chain::default(), &written(&RECORDS), |_| Err("no token".to_owned()));
        assert_eq!(refused.unwrap_err().to_string(), "line 1 (at byte 0) is damaged: no token");
    }
}
