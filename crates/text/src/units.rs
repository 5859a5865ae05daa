//! Sizes, times and counts for people. Programs get plain numbers of seconds and bytes.

use std::time::Duration;

/// Formats a duration: `850 us`, `12.5 ms`, `3 s`, `4 min 5 s`, `3 h 12 min`, `5 d 3 h`.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 if duration.as_micros() == 0 => "<1 us".to_owned(),
        0 if duration.as_micros() < 1000 => format!("{} us", duration.as_micros()),
        0 => format!("{:.1} ms", duration.as_secs_f64() * 1e3),
        1..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// Formats a duration that is still running or has just ended: `0.4 s` below ten seconds, then as [`duration`].
#[must_use]
pub fn elapsed(time: Duration) -> String {
    if time < TENTHS { format!("{:.1} s", time.as_secs_f64()) } else { duration(time) }
}

/// Formats as [`duration`]; `just now` below a second, because "0 s" is no information.
#[must_use]
pub fn or_just_now(elapsed: Duration) -> String {
    if elapsed < SECOND { "just now".to_owned() } else { duration(elapsed) }
}

/// `for 3 s`, for use in a sentence; `since just now` below a second.
#[must_use]
pub fn lasting(elapsed: Duration) -> String {
    let how = if elapsed < SECOND { "since" } else { "for" };
    format!("{how} {}", or_just_now(elapsed))
}

/// `3 s ago`; `just now` below a second.
#[must_use]
pub fn ago(elapsed: Duration) -> String {
    if elapsed < SECOND { or_just_now(elapsed) } else { format!("{} ago", duration(elapsed)) }
}

/// Formats a byte count with a binary unit: `512 B`, `1.5 KiB`, `23.0 GiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// `1 host`, `2 hosts`. For a noun whose plural is irregular, see [`count_of`].
#[must_use]
pub fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// `1 identity`, `2 identities`.
#[must_use]
pub fn count_of(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

const SECOND: Duration = Duration::from_secs(1);
/// Durations below this limit are shown with tenths of a second.
const TENTHS: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_person_is_told_of_zero_seconds() {
        for short in [0, 400, 999] {
            let short = Duration::from_millis(short);
            assert_eq!(
                [or_just_now(short), lasting(short), ago(short)],
                ["just now", "since just now", "just now"]
            );
        }
        let second = Duration::from_secs(1);
        assert_eq!([or_just_now(second), lasting(second), ago(second)], ["1 s", "for 1 s", "1 s ago"]);
    }

    #[test]
    fn durations_sizes_and_counts_read_well() {
        let said = [400, 12_500, 3_000_000, 245_000_000, 11_520_000_000, 442_800_000_000]
            .map(|micros| duration(Duration::from_micros(micros)));
        assert_eq!(said, ["400 us", "12.5 ms", "3 s", "4 min 5 s", "3 h 12 min", "5 d 3 h"]);
        assert_eq!(duration(Duration::ZERO), "<1 us", "a latency below the unit");
        let said = [40, 9_900, 10_000, 75_000].map(|millis| elapsed(Duration::from_millis(millis)));
        assert_eq!(said, ["0.0 s", "9.9 s", "10 s", "1 min 15 s"]);
        assert_eq!([0, 1023, 1536, u64::MAX].map(bytes), ["0 B", "1023 B", "1.5 KiB", "16.0 EiB"]);
        assert_eq!([count(1, "host"), count(0, "host")], ["1 host", "0 hosts"]);
        assert_eq!(count_of(2, "identity", "identities"), "2 identities");
    }
}
