//! Texts that other programs accept and our configuration refuses. A translation finds them itself, with the line that
//! they stand in, so that `penstock check` accepts what it prints.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Words before a colon that have a meaning of their own in `backends`.
const PREFIXES: [&str; 6] = ["dns", "http", "https", "srv", "ssh", "unix"];

/// Longest name of a network interface.
const INTERFACE: usize = 15;

/// Longest path of a Unix socket.
const SOCKET: usize = 107;

/// The host of a backend: an address, or a name that the DNS can have.
pub(crate) fn host(text: &str) -> Result<(), String> {
    let inside = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Ok(ip) = inside.parse::<IpAddr>() {
        let unusable = ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST);
        return if unusable { Err(format!("{text} is not the address of a server")) } else { Ok(()) };
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    let last = name.rsplit('.').next().unwrap_or_default();
    if last.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("{text:?} is neither an address nor a host name"));
    }
    labels(name, text)?;
    if name.split('.').any(|label| label.starts_with('-') || label.ends_with('-')) {
        return Err(format!("{text:?} has a label that begins or ends with -"));
    }
    if PREFIXES.contains(&text.to_ascii_lowercase().as_str()) {
        return Err(format!(
            "{text}: has another meaning here: write the address of the host, or its whole name"
        ));
    }
    Ok(())
}

/// The name of a network interface.
pub(crate) fn interface(text: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    if (1..=INTERFACE).contains(&text.len()) && text.bytes().all(fits) {
        return Ok(());
    }
    Err(format!("{text:?} is no name of a network interface: up to {INTERFACE} letters, digits and signs"))
}

/// The one text for all that mean the same backend.
pub(crate) fn canonical(address: &str) -> String {
    if address.starts_with("unix:") {
        return address.to_owned();
    }
    match address.parse::<SocketAddr>() {
        Ok(address) => SocketAddr::new(address.ip().to_canonical(), address.port()).to_string(),
        Err(_) => address.to_ascii_lowercase().replace(".:", ":"),
    }
}

/// The host of a route: a name, one after `*.`, or an IPv6 address in brackets.
pub(crate) fn route_host(text: &str) -> Result<(), String> {
    if let Some(inside) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        let is_address = inside.parse::<Ipv6Addr>().is_ok();
        return if is_address {
            Ok(())
        } else {
            Err(format!("{text:?} has no IPv6 address in its brackets"))
        };
    }
    labels(text.strip_prefix("*.").unwrap_or(text), text)
}

/// The labels of `name`, a part of `text`.
fn labels(name: &str, text: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if name.split('.').any(|label| label.is_empty() || !label.bytes().all(fits)) {
        return Err(format!("{text:?} is neither an address nor a host name"));
    }
    if name.len() > 253 || name.split('.').any(|label| label.len() > 63) {
        return Err(format!("{text:?} is too long for a host name"));
    }
    Ok(())
}

/// The start of the paths of a route. They are compared when they are decoded, and runs of `/` are one.
pub(crate) fn route_path(text: &str) -> Result<(), String> {
    if !text.starts_with('/') {
        return Err(format!("{text:?} does not begin with /, as every path does"));
    }
    if text.contains('%') || text.contains('*') {
        return Err(format!("{text:?}: a path is compared as it is after decoding, and without wildcards"));
    }
    if text.chars().any(|c| !c.is_ascii_graphic() || matches!(c, '?' | '#' | '\\')) {
        return Err(format!("{text:?} has a character that is in no path"));
    }
    let is_dots = |segment: &str| matches!(segment.split(';').next(), Some("." | ".."));
    if text.contains("//") || text.split('/').any(is_dots) {
        return Err(format!("{text:?} matches nothing here: paths have no // and no dot segments"));
    }
    Ok(())
}

/// The path that a check asks for.
pub(crate) fn target(text: &str) -> Result<(), String> {
    let fits = text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    if fits { Ok(()) } else { Err(format!("{text:?} is not a path: it begins with / and has no blanks")) }
}

/// A status code of HTTP, or a range of codes.
pub(crate) fn statuses(text: &str) -> Result<(), String> {
    let number = |text: &str| {
        let status = text.parse::<u16>().ok().filter(|status| (100..=599).contains(status));
        status.filter(|_| text.len() == 3)
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Ok(()),
        _ => Err(format!("{text:?} is not a status or a range of them")),
    }
}

/// The absolute path of a file.
pub(crate) fn path(path: &str) -> Result<(), String> {
    let fits = path.starts_with('/') && path.len() < 4096 && !path.contains('\0');
    if fits { Ok(()) } else { Err(format!("{path:?} is not the path of a file")) }
}

/// The path of a Unix socket.
pub(crate) fn socket(path: &str) -> Result<(), String> {
    if path.trim() != path || path.ends_with(['/', ';']) || path.contains('\0') {
        return Err(format!("{path:?} is not the path of a socket"));
    }
    if !path.starts_with('/') {
        return Err(format!("{path:?} is not an absolute path"));
    }
    if path.len() > SOCKET {
        return Err(format!("{path:?} is too long for a Unix socket: at most {SOCKET} bytes"));
    }
    Ok(())
}

/// The name of a user or group.
pub(crate) fn account(name: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.$".contains(&byte);
    let good = !name.is_empty() && name.len() <= 32 && !name.starts_with('-') && name.bytes().all(fits);
    if good { Ok(()) } else { Err(format!("{name:?} is not the name of an account")) }
}

/// The name of a header field.
pub(crate) fn field(name: &str) -> Result<(), String> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let fits = !name.is_empty() && name.bytes().all(token);
    if fits { Ok(()) } else { Err(format!("{name:?} is not the name of a header")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_backends_are_addresses_and_names() {
        for good in ["a", "a.b.", "A-1.b", "10.0.0.1", "::1", "[::1]", "x_y", "sshd", "1.a"] {
            assert_eq!(host(good), Ok(()), "{good}");
        }
        for bad in [
            "x\"y",
            "",
            ".",
            "a..b",
            "-a",
            "1.2.3",
            "ä",
            "a b",
            "0.0.0.0",
            "[::]",
            "224.0.0.1",
            "ssh",
            "DNS",
            "a\n",
        ] {
            assert!(host(bad).is_err(), "{bad}");
        }
        assert!(host(&"a".repeat(64)).is_err());
    }

    #[test]
    fn a_backend_has_one_canonical_text() {
        for (text, one) in [
            ("A.b.:80", "a.b:80"),
            ("[0:0::1]:80", "[::1]:80"),
            ("[::ffff:10.0.0.1]:80", "10.0.0.1:80"),
            ("unix:/A", "unix:/A"),
        ] {
            assert_eq!(canonical(text), one);
        }
    }

    #[test]
    fn hosts_and_paths_of_routes_are_those_that_requests_have() {
        for good in ["a", "*.a.b", "[::1]", "10.0.0.1"] {
            assert_eq!(route_host(good), Ok(()), "{good}");
        }
        for bad in ["", "*", "*a", "a*.b", "[x]", "a:80", "a."] {
            assert!(route_host(bad).is_err(), "{bad}");
        }
        for good in ["/", "/a/", "/.a", "/a..b"] {
            assert_eq!(route_path(good), Ok(()), "{good}");
        }
        for bad in ["", "a", "/%41", "/a*", "/a b", "/a?b", "//", "/a/../b", "/.", "/..;x/", "/ä"] {
            assert!(route_path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_checks_and_sockets_have_is_tested_as_well() {
        assert!(target("/a?b").is_ok() && target("a").is_err() && target("/a b").is_err());
        assert!(statuses("200").is_ok() && statuses("200-399").is_ok());
        for bad in ["", "20", "600", "399-200", "200,201", "+20", "2xx"] {
            assert!(statuses(bad).is_err(), "{bad}");
        }
        assert!(socket("/run/a").is_ok() && socket("run/a").is_err() && socket("/run/").is_err());
        assert!(socket(&format!("/{}", "a".repeat(107))).is_err());
        assert!(
            account("www-data").is_ok()
                && account("").is_err()
                && account("-a").is_err()
                && account("a b").is_err()
        );
        assert!(field("X-A").is_ok() && field("").is_err() && field("a b").is_err());
    }
}
