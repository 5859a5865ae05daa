//! Configuration of a health check, and the text form of a duration.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::dns::Name;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Check {
    /// Passes if a connection is established.
    #[default]
    Tcp,
    /// Sends a request and checks the status.
    Http {
        /// Path and query of the request.
        path: Box<str>,
        /// `Host` of the request; `None` means the backend's address.
        host: Option<Box<str>>,
        method: CheckMethod,
        /// Statuses that pass.
        expect: StatusRange,
    },
    /// Asks a DNS server over UDP; every answer to the question passes.
    Dns { name: Name },
    /// Sends a datagram, and passes if an answer begins with `expect`.
    Datagram { send: Box<[u8]>, expect: Box<[u8]> },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckMethod {
    #[default]
    Get,
    Head,
    Options,
}

impl CheckMethod {
    pub fn as_str(self) -> &'static str {
        match self {
            CheckMethod::Get => "GET",
            CheckMethod::Head => "HEAD",
            CheckMethod::Options => "OPTIONS",
        }
    }

    /// The request of a check, after which the connection ends.
    pub fn request(self, path: &str, host: &str) -> String {
        format!(
            "{} {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: penstock-health/{}\r\nAccept: */*\r\nConnection: close\r\n\r\n",
            self.as_str(),
            env!("CARGO_PKG_VERSION"),
        )
    }
}

/// Range of HTTP statuses, both ends included. Default: 200 to 399.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRange {
    first: u16,
    last: u16,
}

impl StatusRange {
    /// `None` if the range is empty or not within 100 to 599.
    pub fn new(first: u16, last: u16) -> Option<Self> {
        (100 <= first && first <= last && last <= 599).then_some(StatusRange { first, last })
    }

    pub fn contains(self, status: u16) -> bool {
        (self.first..=self.last).contains(&status)
    }
}

impl Default for StatusRange {
    fn default() -> Self {
        StatusRange { first: 200, last: 399 }
    }
}

impl fmt::Display for StatusRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            return self.first.fmt(f);
        }
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl FromStr for StatusRange {
    type Err = StatusRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| {
            let digits = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse().ok()).flatten()
        };
        let range = number(first).zip(number(last)).and_then(|(first, last)| StatusRange::new(first, last));
        range.ok_or_else(|| StatusRangeError(text.into()))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a range of statuses: write 200 or 200-399, within 100 to 599", .0.escape_debug())]
pub struct StatusRangeError(Box<str>);

/// Duration in the form of messages: `250 ms`, `1.5 s`, `2 min`, `1 h 30 min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationText(pub Duration);

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.0.as_secs(), u64::from(self.0.subsec_micros()));
        match seconds {
            0 if micros == 0 => f.write_str("0 s"),
            0 if micros < 1000 => write!(f, "{micros} us"),
            0 if micros < 10_000 => tenths(f, micros / 100, "ms"),
            0 => write!(f, "{} ms", micros / 1000),
            1..60 => tenths(f, seconds * 10 + micros / 100_000, "s"),
            60..3600 => write_two_units(f, (seconds / 60, "min"), (seconds % 60, "s")),
            3600..86_400 => write_two_units(f, (seconds / 3600, "h"), (seconds % 3600 / 60, "min")),
            _ => write_two_units(f, (seconds / 86_400, "d"), (seconds % 86_400 / 3600, "h")),
        }
    }
}

fn tenths(f: &mut fmt::Formatter<'_>, tenths: u64, unit: &str) -> fmt::Result {
    match tenths % 10 {
        0 => write!(f, "{} {unit}", tenths / 10),
        part => write!(f, "{}.{part} {unit}", tenths / 10),
    }
}

fn write_two_units(f: &mut fmt::Formatter<'_>, large: (u64, &str), small: (u64, &str)) -> fmt::Result {
    write!(f, "{} {}", large.0, large.1)?;
    if small.0 > 0 {
        write!(f, " {} {}", small.0, small.1)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        let said = [
            (0, "0 s"),
            (250, "250 us"),
            (1_500, "1.5 ms"),
            (3_000, "3 ms"),
            (250_999, "250 ms"),
            (1_000_000, "1 s"),
            (1_500_000, "1.5 s"),
            (59_999_999, "59.9 s"),
            (60_000_000, "1 min"),
            (150_000_000, "2 min 30 s"),
            (5_400_000_000, "1 h 30 min"),
            (90_000_000_000, "1 d 1 h"),
        ];
        for (micros, text) in said {
            assert_eq!(DurationText(Duration::from_micros(micros)).to_string(), text);
        }
        assert_eq!(DurationText(Duration::from_nanos(1)).to_string(), "0 s");
    }

    #[test]
    fn status_ranges_are_read_and_refused() {
        let range: StatusRange = "200-299".parse().unwrap();
        assert!(range.contains(200) && range.contains(299) && !range.contains(300) && !range.contains(199));
        for text in ["200", "200-399", "100-599"] {
            assert_eq!(text.parse::<StatusRange>().unwrap().to_string(), text);
        }
        for text in ["", "-", "2xx", "200-", "-200", "300-200", "99", "600", "200-1000", "+20", "200 - 299"] {
            assert!(text.parse::<StatusRange>().is_err(), "{text}");
        }
        assert_eq!(StatusRange::default().to_string(), "200-399");
    }
}
