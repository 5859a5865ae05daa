//! A password or another secret in the first line of a file.

use std::io::{self, Read};
use std::path::Path;

use crate::output::{Failure, plain};

/// Largest file of a secret.
const LARGEST: u64 = 4096;

/// The first line of a file; `-` is standard input.
pub(crate) fn first_line(file: &Path, what: &str) -> Result<String, Failure> {
    let shown = plain(&file.display().to_string());
    let bytes = match file.as_os_str() == "-" {
        true => {
            let mut bytes = Vec::new();
            io::stdin().take(LARGEST + 1).read_to_end(&mut bytes).map(|_| bytes)
        }
        false => sys::file::read(file, LARGEST),
    };
    let bytes =
        bytes.map_err(|error| Failure::usage(format_args!("cannot read the {what} in {shown}: {error}")))?;
    let first = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if first.len() as u64 > LARGEST {
        return Err(Failure::usage(format_args!(
            "the first line of {shown} is longer than {LARGEST} bytes: it is no {what}"
        )));
    }
    let text = String::from_utf8(first.to_vec());
    let text = text.map_err(|_| Failure::usage(format_args!("the {what} in {shown} is not UTF-8 text")))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}
