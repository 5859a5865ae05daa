//! What outlives the process, as files of the state directory: `traffic.state` has counters, health and the marks of
//! operators, `clients.state` the sticky clients, `changes.state` the history of live changes.
//!
//! This is the pure part: what is kept, and how a file is made and read. Nothing in a file can make its reader panic: a
//! file that is not whole, or not understood, is an error. `crates/serve/src/kept.rs` reads and writes the files.

use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

pub mod awaited;
pub mod board;
pub mod changes;
pub mod clients;
mod counts;
pub mod traffic;

#[cfg(test)]
mod tests;

/// Format that this version writes, and the newest one that it reads.
pub const FORMAT: u32 = 1;

/// Largest file that is read or written.
pub const MOST_BYTES: usize = 64 * 1024 * 1024;

/// First word of every file.
const MAGIC: &str = "penstock-state";

/// Longest first line.
const HEAD: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Traffic,
    Clients,
    Changes,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Traffic, Self::Clients, Self::Changes];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Traffic => "traffic",
            Self::Clients => "clients",
            Self::Changes => "changes",
        }
    }

    /// Name in the state directory.
    pub const fn file(self) -> &'static str {
        match self {
            Self::Traffic => "traffic.state",
            Self::Clients => "clients.state",
            Self::Changes => "changes.state",
        }
    }
}

/// Why a file is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    #[error("is no state file of Penstock")]
    Foreign,
    #[error("is of a newer version of Penstock: its format is {0}, and this version reads up to {FORMAT}")]
    Newer(u32),
    #[error("is damaged: {0}")]
    Damaged(&'static str),
    #[error("is whole, but this version does not understand it: {0}")]
    NotUnderstood(String),
}

/// Makes a file: a line with format, kind, length and SHA-256 of what follows, and a line of JSON.
pub fn seal(kind: Kind, content: &impl Serialize) -> Result<Vec<u8>, String> {
    let mut json = serde_json::to_vec(content).map_err(|error| error.to_string())?;
    json.push(b'\n');
    let mut bytes =
        format!("{MAGIC} {FORMAT} {} {} {}\n", kind.word(), json.len(), digest(&json)).into_bytes();
    if bytes.len() + json.len() > MOST_BYTES {
        let most = text::units::bytes(MOST_BYTES as u64);
        return Err(format!("it would have {} bytes, more than {most}", bytes.len() + json.len()));
    }
    bytes.append(&mut json);
    Ok(bytes)
}

/// Reads what [`seal`] has made.
pub fn unseal<T: DeserializeOwned>(kind: Kind, bytes: &[u8]) -> Result<T, Unusable> {
    let end = memchr::memchr(b'\n', &bytes[..bytes.len().min(HEAD)]).ok_or(Unusable::Foreign)?;
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| Unusable::Foreign)?;
    let json = &bytes[end + 1..];
    let mut words = head.split(' ');
    let mut word = || words.next().unwrap_or_default();
    if word() != MAGIC {
        return Err(Unusable::Foreign);
    }
    let format: u32 = word().parse().map_err(|_| Unusable::Damaged("its first line has no format"))?;
    if format > FORMAT {
        return Err(Unusable::Newer(format));
    }
    if format == 0 {
        return Err(Unusable::Damaged("its first line has a format that no version writes"));
    }
    if word() != kind.word() {
        return Err(Unusable::Damaged("it is another kind of state"));
    }
    if word().parse() != Ok(json.len()) {
        return Err(Unusable::Damaged("a part is missing, or there is more than was written"));
    }
    if word() != digest(json) || !word().is_empty() {
        return Err(Unusable::Damaged("its checksum is wrong"));
    }
    serde_json::from_slice(json).map_err(|error| Unusable::NotUnderstood(error.to_string()))
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Milliseconds of the Unix time.
pub type Millis = u64;

pub fn millis(time: SystemTime) -> Millis {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Translates the wall-clock times of a file. If the clock is behind the time at which the file was written, no time
/// has passed since then.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    pub written: Millis,
    pub wall: SystemTime,
    pub monotonic: Instant,
}

impl Clock {
    pub fn now(written: Millis) -> Self {
        Self { written, wall: SystemTime::now(), monotonic: Instant::now() }
    }

    /// How long ago a time of the file was.
    pub fn ago(&self, at: Millis) -> Duration {
        Duration::from_millis(millis(self.wall).max(self.written).saturating_sub(at))
    }

    /// How far ahead a time of the file is.
    pub fn ahead(&self, at: Millis) -> Duration {
        Duration::from_millis(at.saturating_sub(millis(self.wall).max(self.written)))
    }

    /// A time of the file for display, never in the future.
    pub fn wall(&self, at: Millis) -> SystemTime {
        let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(at)).unwrap_or(self.wall);
        at.min(self.wall)
    }

    /// A time of the file on the monotonic clock.
    pub fn instant(&self, at: Millis) -> Instant {
        self.monotonic.checked_sub(self.ago(at)).unwrap_or(self.monotonic)
    }
}
