//! Parsers of numbers, ports, durations, sizes and addresses.

use std::net::{IpAddr, Ipv4Addr};

/// Parses a duration such as `90`, `1m30s` or `2w` in seconds; `None` for other text.
pub(super) fn time(text: &str) -> Option<u32> {
    if text.is_empty() {
        return None;
    }
    let (mut total, mut rest) = (0u64, text);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let count: u64 = rest[..end].parse().ok()?;
        let mut after = rest[end..].chars();
        let unit = match after.next() {
            None | Some('s' | 'S') => 1,
            Some('m' | 'M') => 60,
            Some('h' | 'H') => 60 * 60,
            Some('d' | 'D') => 24 * 60 * 60,
            Some('w' | 'W') => 7 * 24 * 60 * 60,
            Some(_) => return None,
        };
        total = total.checked_add(count.checked_mul(unit)?).filter(|total| *total <= LARGEST)?;
        rest = after.as_str();
    }
    u32::try_from(total).ok()
}

/// Parses a whole number that fits into a C `int`.
pub(super) fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number| u64::from(*number) <= LARGEST)
}

/// Parses a port. `ssh` is the only known service name.
pub(super) fn port(text: &str) -> Option<u16> {
    match text {
        "ssh" => Some(22),
        text => text.parse().ok(),
    }
}

/// Parses a size such as `512M` or `1.5G` in bytes; `None` for other text.
pub(super) fn size(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let shift = match unit {
        "" | "b" | "B" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        "t" | "T" => 40,
        "p" | "P" => 50,
        "e" | "E" => 60,
        _ => return None,
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if fraction.contains('.') || whole.len() > 18 {
        return None;
    }
    let number = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u64>().ok() };
    let bytes = number(whole)?.checked_mul(1 << shift).filter(|bytes| i64::try_from(*bytes).is_ok())?;
    // Further digits do not change the number of bytes in usual units.
    let fraction = &fraction[..fraction.len().min(9)];
    let scale = 10u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let part = u128::from(number(fraction)?) * (1u128 << shift) / u128::from(scale);
    // Without a unit, a fraction is discarded.
    let part = if unit.is_empty() { 0 } else { u64::try_from(part).ok()? };
    bytes.checked_add(part)
}

/// Parses an address in all numeric forms of `getaddrinfo`, such as `127.1` and `2130706433`.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    text.parse().ok().or_else(|| short_v4(text).map(IpAddr::V4))
}

/// Parses the forms of `inet_aton`: 1 to 4 parts, decimal, octal (`0`) or hexadecimal (`0x`); the last fills the rest.
/// longest.
fn short_v4(text: &str) -> Option<Ipv4Addr> {
    let part = |part: &str| {
        let digits = |radix, digits: &str| {
            (!digits.starts_with('+')).then(|| u32::from_str_radix(digits, radix).ok()).flatten()
        };
        match part.strip_prefix("0x").or_else(|| part.strip_prefix("0X")) {
            Some(hexadecimal) => digits(16, hexadecimal),
            None if part.len() > 1 && part.starts_with('0') => digits(8, &part[1..]),
            None => digits(10, part),
        }
    };
    let parts = text.split('.').map(part).collect::<Option<Vec<u32>>>()?;
    let (last, head) = parts.split_last()?;
    if head.len() > 3 || head.iter().any(|byte| *byte > 255) {
        return None;
    }
    let bits = 32 - 8 * u32::try_from(head.len()).ok()?;
    if bits < 32 && *last >= 1 << bits {
        return None;
    }
    let high = head.iter().enumerate().fold(0u32, |all, (at, byte)| all | byte << (24 - 8 * at));
    Some(Ipv4Addr::from_bits(high | last))
}

/// `INT_MAX`, the limit of numbers in OpenSSH.
const LARGEST: u64 = 2_147_483_647;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_add_up_and_anything_else_is_no_time() {
        for (text, seconds) in
            [("0", 0), ("90", 90), ("1m30s", 90), ("1h", 3600), ("2W", 1_209_600), ("5m5", 305)]
        {
            assert_eq!(time(text), Some(seconds), "{text}");
        }
        for text in ["", "m", "-5", "1y", "5 m", "99999999999", "4000w"] {
            assert_eq!(time(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_take_units_and_fractions() {
        for (text, bytes) in [("0", 0), ("16", 16), ("1K", 1024), ("1.5k", 1536), ("2g", 2 << 30), ("1.9", 1)]
        {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["x", "1KB", "1.2.3", "99999999999999999999", "9000e", "1 K"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn short_addresses_are_addresses() {
        for (text, address_) in [("127.1", "127.0.0.1"), ("2130706433", "127.0.0.1"), ("0x7f.1", "127.0.0.1")]
        {
            assert_eq!(address(text), address_.parse().ok(), "{text}");
        }
        assert_eq!(address("::0001"), "::1".parse().ok());
        for text in ["web1", "1.2.3.4.5", "256.1", "1.2.3.256", "", "1..2", "08"] {
            assert_eq!(address(text), None, "{text}");
        }
    }
}
