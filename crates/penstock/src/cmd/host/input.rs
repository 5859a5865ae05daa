//! Reading of files named in arguments.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use crate::output::Failure;

/// Reads a file, or standard input for `-`; at most `longest` bytes. Replaces invalid UTF-8: a damaged line is then
/// reported, and the other lines stay readable.
pub(super) fn read(path: &Path, longest: u64) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let result = if path == Path::new("-") {
        std::io::stdin().lock().take(longest).read_to_end(&mut bytes)
    } else {
        fs::File::open(path).and_then(|file| file.take(longest).read_to_end(&mut bytes))
    };
    result.map_err(|fault| Failure::unreadable(path, fault))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
