//! Text for people, for all crates: safe text for terminals, formats of sizes, times and counts, words for a shell,
//! similar names, patterns with wildcards, tables, wrapping, and enums with a word for each variant. No I/O, and no dependency on our other crates.

pub mod nearest;
pub mod shell;
pub mod table;
pub mod terminal;
pub mod units;
pub mod wildcard;
pub mod words;
pub mod wrap;
