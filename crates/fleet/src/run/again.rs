//! Finds the run that `--again` repeats. `hosts::fleet::again` chooses its hosts.

use std::io;
use std::path::Path;

use hosts::fleet::again::Maker;

use super::journal::{self, Liveness, Record};

#[derive(Debug, thiserror::Error)]
pub enum AgainError {
    /// The run is not on record, or its record cannot be read.
    #[error(transparent)]
    Record(io::Error),
    /// The records of later runs cannot be read.
    #[error(transparent)]
    Later(io::Error),
    /// Another command, such as `put`, made the run.
    #[error("it was a penstock {}", .0.word())]
    OtherMaker(Maker),
    #[error("it is still running")]
    Running,
}

/// Finds the run `id` in `directory`, or the newest run. The results of its hosts include those of later runs that
/// repeated it.
///
/// # Errors
/// The run does not exist, cannot be read, was made by another command than `maker`, or has not ended.
pub fn find(directory: &Path, id: Option<&str>, maker: Maker) -> Result<Record, AgainError> {
    let mut record = journal::find(directory, id).map_err(AgainError::Record)?;
    record.bring_up_to_date(directory).map_err(AgainError::Later)?;
    if record.maker() != maker {
        return Err(AgainError::OtherMaker(record.maker()));
    }
    if record.pulse == Liveness::Running {
        return Err(AgainError::Running);
    }
    Ok(record)
}
