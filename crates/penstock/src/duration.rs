//! Durations in options: the format of the configuration (`500ms`, `30s`, `1m`), or a number in the option's own unit.

use std::time::Duration;

/// Parses a duration; a number without a unit is seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let time = match text.parse::<f64>() {
        Ok(seconds) if seconds > LONGEST.as_secs_f64() => return Err(too_long()),
        Ok(seconds) => Duration::try_from_secs_f64(seconds).unwrap_or_default(),
        Err(_) => config::duration(text)?,
    };
    match time {
        Duration::ZERO => Err("the number of seconds must be greater than 0".to_owned()),
        time if time > LONGEST => Err(too_long()),
        time => Ok(time),
    }
}

/// Parses a duration into milliseconds; a number without a unit is milliseconds.
pub(crate) fn milliseconds(text: &str) -> Result<u64, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let time = config::duration(text)?;
    match u64::try_from(time.as_millis()) {
        Ok(number) if Duration::from_millis(number) == time => Ok(number),
        _ => Err(format!("{text:?} is not a whole number of milliseconds")),
    }
}

/// Parses a duration between `least` and `most`; a number without a unit is seconds.
pub(crate) fn between(text: &str, least: Duration, most: Duration) -> Result<Duration, String> {
    let time = seconds(text)?;
    if (least..=most).contains(&time) {
        return Ok(time);
    }
    Err(format!("it must be from {least:?} to {} s", most.as_secs()))
}

fn too_long() -> String {
    format!("a number of seconds is {} at most", LONGEST.as_secs())
}

const LONGEST: Duration = Duration::from_secs(10_000_000);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_of_the_configuration_and_a_number_alone_is_what_it_was() {
        let milli = Duration::from_millis;
        for (text, time) in
            [("1ms", 1), ("0.5", 500), ("30", 30_000), ("30s", 30_000), ("1m", 60_000), ("2h", 7_200_000)]
        {
            assert_eq!(seconds(text), Ok(milli(time)), "{text}");
        }
        for text in ["0", "-1", "nan", "inf", "0s", "1e9", "200d", "", "s", "1 m", "1x", "5ss"] {
            assert!(seconds(text).is_err(), "{text}");
        }
        assert_eq!(milliseconds("250"), Ok(250));
        assert_eq!(milliseconds("1.5s"), Ok(1_500));
        assert_eq!(milliseconds("0"), Ok(0));
        for text in ["-1", "0.0001s", "1x", ""] {
            assert!(milliseconds(text).is_err(), "{text}");
        }
        assert_eq!(between("500ms", milli(1), milli(1_000)), Ok(milli(500)));
        assert!(between("2", milli(1), milli(1_000)).is_err());
    }

    #[test]
    fn error_says_what_to_write() {
        assert_eq!(
            seconds("1M").unwrap_err(),
            "\"1M\" has an unknown unit: use ms, s, m, h or d; write \"1m\""
        );
    }
}
