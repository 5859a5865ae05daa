//! Dates and times. The caller reads the clock.

use std::fmt;
use std::str::FromStr;

/// Seconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub u64);

impl Moment {
    #[must_use]
    pub fn date(self) -> Date {
        Date::from_days(i64::try_from(self.0 / 86_400).unwrap_or(i64::MAX).min(LAST_DAY))
    }
}

/// 9999-12-31, in days since 1970-01-01.
const LAST_DAY: i64 = 2_932_896;

/// Date of the Gregorian calendar, written `2026-03-01`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Date {
    year: u16,
    month: u8,
    day: u8,
}

impl Date {
    /// Days from `self` to `later`; negative if `later` is the earlier date.
    #[must_use]
    pub fn days_until(self, later: Self) -> i64 {
        later.days() - self.days()
    }

    /// Days since 1970-01-01. Years start in March, so that the leap day is the last day of a year.
    fn days(self) -> i64 {
        let year = i64::from(self.year) - i64::from(self.month <= 2);
        let era = year.div_euclid(400);
        let month = (i64::from(self.month) + 9) % 12;
        let of_year = (153 * month + 2) / 5 + i64::from(self.day) - 1;
        let of_era =
            year.rem_euclid(400) * 365 + year.rem_euclid(400) / 4 - year.rem_euclid(400) / 100 + of_year;
        era * 146_097 + of_era - 719_468
    }

    fn from_days(days: i64) -> Self {
        let days = days + 719_468;
        let of_era = days.rem_euclid(146_097);
        let of_400 = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * of_400 + of_400 / 4 - of_400 / 100);
        let shifted = (5 * of_year + 2) / 153;
        let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
        let year = of_400 + days.div_euclid(146_097) * 400 + i64::from(month <= 2);
        let small = |number: i64| u8::try_from(number).unwrap_or(1);
        Self {
            year: u16::try_from(year).unwrap_or(9999),
            month: small(month),
            day: small(of_year - (153 * shifted + 2) / 5 + 1),
        }
    }
}

impl FromStr for Date {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let digits = |range: std::ops::Range<usize>| -> Result<u16, ()> {
            let part = text.get(range).ok_or(())?;
            if part.bytes().all(|byte| byte.is_ascii_digit()) {
                part.parse().map_err(|_| ())
            } else {
                Err(())
            }
        };
        let is_shaped = text.len() == 10 && text.get(4..5) == Some("-") && text.get(7..8) == Some("-");
        if !is_shaped {
            return Err(());
        }
        let (month, day) = (digits(5..7)?, digits(8..10)?);
        let narrow = |number: u16| u8::try_from(number).map_err(|_| ());
        let date = Self { year: digits(0..4)?, month: narrow(month)?, day: narrow(day)? };
        // The conversion to days and back detects dates that do not exist: April 31 becomes May 1.
        let is_day =
            (1..=12).contains(&month) && (1..=31).contains(&day) && Self::from_days(date.days()) == date;
        if is_day { Ok(date) } else { Err(()) }
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

impl fmt::Debug for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_fall_on_their_days() {
        let of = |seconds| Moment(seconds).date().to_string();
        assert_eq!(of(0), "1970-01-01");
        assert_eq!(of(951_782_400), "2000-02-29");
        assert_eq!(of(1_795_219_199), "2026-11-20");
        assert_eq!(of(1_795_219_200), "2026-11-21");
        assert_eq!(of(u64::MAX), "9999-12-31");
    }

    #[test]
    fn days_that_do_not_exist_are_no_dates() {
        let days: Vec<_> = (-700_000..2_932_896).step_by(37).collect();
        for day in days {
            let date = Date::from_days(day);
            assert_eq!(date.to_string().parse(), Ok(date));
        }
        for bad in [
            "2026-02-29",
            "2026-04-31",
            "2026-13-01",
            "2026-00-10",
            "2026-1-1",
            "20260101",
            "2026-01-0",
            "+026-01-01",
        ] {
            assert_eq!(bad.parse::<Date>(), Err(()), "{bad}");
        }
        let day = |text: &str| text.parse::<Date>().unwrap();
        assert_eq!(day("2024-02-28").days_until(day("2024-03-01")), 2);
    }
}
