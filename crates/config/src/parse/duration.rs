//! Durations: one number and its unit.

use std::time::Duration;

use super::refused::Refused;

/// Longest duration for a phase of a session.
pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Longest duration for an idle tunnel or a remembered client.
pub(super) const YEAR: Duration = Duration::from_secs(366 * 24 * 60 * 60);

const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
];

/// `500ms`, `2s`, `1.5s`, `5m`, `1h`, `7d`
pub(super) fn parse(text: &str) -> Result<Duration, Refused> {
    if text.is_empty() {
        return Err(Refused::new("is not a duration").instead("write a number and a unit: \"5s\""));
    }
    if text.starts_with('-') {
        return Err(Refused::new("is negative"));
    }
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    if number.is_empty()
        || number.starts_with('.')
        || number.ends_with('.')
        || number.matches('.').count() > 1
    {
        return Err(Refused::new("is not a duration: a number and one of ms, s, m, h, d, such as \"5s\""));
    }
    if unit.is_empty() {
        return Err(Refused::new("has no unit").instead(format!("for seconds write \"{number}s\"")));
    }
    let Some((_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(unknown_unit(number, unit));
    };
    nanoseconds(number, *factor)
        .map(Duration::from_nanos)
        .ok_or_else(|| Refused::new("is too long, or more precise than a nanosecond"))
}

/// Writes the shortest text for a duration.
pub(super) fn write(duration: Duration) -> String {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let unit = UNITS.iter().find(|(_, factor)| nanos != 0 && nanos.is_multiple_of(*factor));
    let (unit, factor) = unit.unwrap_or(&("ms", 1_000_000));
    format!("{}{unit}", nanos / factor)
}

fn nanoseconds(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.len() > 9 {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    let scale = 10_u64.pow(u32::try_from(fraction.len()).ok()?);
    let part = if fraction.is_empty() { 0 } else { fraction.parse::<u64>().ok()? };
    let part = u128::from(part) * u128::from(factor) / u128::from(scale);
    whole.checked_add(u64::try_from(part).ok()?)
}

fn unknown_unit(number: &str, unit: &str) -> Refused {
    let trimmed = unit.trim();
    let lower = trimmed.to_ascii_lowercase();
    let meant = match lower.as_str() {
        "sec" | "secs" | "second" | "seconds" | "s" => Some("s"),
        "min" | "mins" | "minute" | "minutes" | "m" => Some("m"),
        "hour" | "hours" | "hr" | "h" => Some("h"),
        "day" | "days" | "d" => Some("d"),
        "msec" | "millis" | "milliseconds" | "ms" => Some("ms"),
        _ => None,
    };
    match meant {
        Some(unit) => Refused::new("has an unknown unit: use ms, s, m, h or d")
            .instead(format!("write \"{number}{unit}\"")),
        None if trimmed.bytes().any(|byte| byte.is_ascii_digit()) => Refused::new("has more than one unit")
            .instead("write it in the smaller one: \"90s\", not \"1m30s\""),
        None => Refused::new("has an unknown unit: use ms, s, m, h or d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_fractions_are_exact() {
        for (text, nanos) in [
            ("500ms", 500_000_000),
            ("2s", 2_000_000_000),
            ("1.5s", 1_500_000_000),
            ("5m", 300_000_000_000),
            ("0.25h", 900_000_000_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
        assert_eq!(parse("7d"), Ok(Duration::from_secs(7 * 86400)));
    }

    #[test]
    fn what_is_written_reads_as_the_same_duration() {
        for text in ["1ms", "2s", "5m", "1h", "7d", "90s", "0ms"] {
            assert_eq!(write(parse(text).unwrap()), text);
        }
    }

    #[test]
    fn texts_that_are_no_duration_are_refused_and_never_overflow() {
        let huge = "9".repeat(400);
        for text in [
            "",
            "5",
            "-5s",
            "s",
            ".5s",
            "5.s",
            "1.2.3s",
            "5 s",
            "5S",
            "1m30s",
            "5us",
            "1e3s",
            "٣s",
            &huge,
            &format!("{huge}d"),
            "0.0000000001s",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("300000d").is_err());
    }
}
