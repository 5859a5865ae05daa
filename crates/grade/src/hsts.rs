//! Parses Strict-Transport-Security (RFC 6797) like a browser.

use crate::observed::{Feature, Hsts, Policy};

/// Finds the field in the head of a response.
pub(crate) fn find(head: &[u8]) -> Hsts {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.split("\r\n").skip(1).take_while(|line| !line.is_empty());
    let value = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("strict-transport-security").then(|| value.trim().to_owned())
    });
    // Browsers take the first field and ignore others (RFC 6797 section 8.1).
    value.map_or(Hsts::Missing, |value| parse(&value))
}

pub(crate) fn parse(value: &str) -> Hsts {
    let mut max_age = None;
    let mut policy = Policy {
        value: value.chars().take(200).collect(),
        max_age: 0,
        include_sub_domains: Feature::No,
        preload: Feature::No,
    };
    for directive in value.split(';').map(str::trim).filter(|directive| !directive.is_empty()) {
        let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
        match name.trim().to_ascii_lowercase().as_str() {
            "max-age" if max_age.is_none() => match value.trim().trim_matches('"').parse::<u64>() {
                Ok(seconds) => max_age = Some(seconds),
                Err(_) => return Hsts::Malformed(policy.value),
            },
            // A repeated directive makes the whole field invalid (RFC 6797 section 6.1).
            "max-age" => return Hsts::Malformed(policy.value),
            "includesubdomains" => policy.include_sub_domains = Feature::Yes,
            "preload" => policy.preload = Feature::Yes,
            _ => {}
        }
    }
    match max_age {
        Some(seconds) => Hsts::Sent(Policy { max_age: seconds, ..policy }),
        None => Hsts::Malformed(policy.value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(value: &str) -> (u64, Feature, Feature) {
        match parse(value) {
            Hsts::Sent(policy) => (policy.max_age, policy.include_sub_domains, policy.preload),
            other => panic!("{value}: {other:?}"),
        }
    }

    #[test]
    fn values_are_read_as_browsers_read_them() {
        assert_eq!(sent("max-age=31536000"), (31_536_000, Feature::No, Feature::No));
        assert_eq!(sent("Max-Age=\"5\" ; includesubdomains;preload; x=y"), (5, Feature::Yes, Feature::Yes));
        for bad in ["", "includeSubDomains", "max-age=", "max-age=-1", "max-age=1; max-age=2", "max-age=1y"] {
            assert!(matches!(parse(bad), Hsts::Malformed(_)), "{bad}");
        }
    }

    #[test]
    fn the_first_of_two_headers_counts_and_bodies_do_not() {
        let head = b"HTTP/1.1 200 OK\r\nstrict-transport-security: max-age=1\r\nStrict-Transport-Security: max-age=2\r\n\r\n";
        assert!(matches!(find(head), Hsts::Sent(Policy { max_age: 1, .. })));
        assert_eq!(
            find(b"HTTP/1.1 200 OK\r\n\r\nStrict-Transport-Security: max-age=2\r\n\r\n"),
            Hsts::Missing
        );
        assert_eq!(find(b"\xff\xfe"), Hsts::Missing);
    }
}
