//! Sizes: one integer and its unit.

use super::refused::Refused;

const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// `512B`, `32KiB`, `1MiB`, `2GiB`
pub(super) fn parse(text: &str) -> Result<u64, Refused> {
    if text.starts_with('-') {
        return Err(Refused::new("is negative"));
    }
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    if number.is_empty() || unit.starts_with('.') {
        return Err(Refused::new(
            "is not a size: a whole number and one of B, KiB, MiB, GiB, such as \"32KiB\"",
        ));
    }
    if unit.is_empty() {
        return Err(Refused::new("has no unit").instead(format!("write \"{number}B\" or \"{number}KiB\"")));
    }
    let Some((_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(unknown_unit(number, unit));
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(*factor))
        .ok_or_else(|| Refused::new("is too large"))
}

/// Writes the shortest text for a size.
pub(super) fn write(size: u64) -> String {
    let unit = UNITS.iter().find(|(_, factor)| size != 0 && size.is_multiple_of(*factor));
    let (unit, factor) = unit.unwrap_or(&("B", 1));
    format!("{}{unit}", size / factor)
}

fn unknown_unit(number: &str, unit: &str) -> Refused {
    let meant = match unit.trim().to_ascii_lowercase().as_str() {
        "k" | "kb" | "kib" => "KiB",
        "m" | "mb" | "mib" => "MiB",
        "g" | "gb" | "gib" => "GiB",
        "b" | "byte" | "bytes" => "B",
        _ => return Refused::new("has an unknown unit: use B, KiB, MiB or GiB"),
    };
    Refused::new("has an unknown unit: use B, KiB, MiB or GiB").instead(format!("write \"{number}{meant}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_1024() {
        for (text, bytes) in
            [("0B", 0), ("512B", 512), ("32KiB", 32 << 10), ("1MiB", 1 << 20), ("2GiB", 2 << 30)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
            assert_eq!(write(bytes), text);
        }
    }

    #[test]
    fn texts_that_are_no_size_are_refused_and_never_overflow() {
        let huge = "9".repeat(400);
        for text in [
            "",
            "5",
            "KiB",
            "-1KiB",
            "1.5KiB",
            "32KB",
            "32k",
            "1TiB",
            "1 KiB",
            &format!("{huge}B"),
            "99999999999GiB",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
