//! Listening addresses, backend addresses and paths. No name is resolved here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use hosts::ssh::place::NameWithPort;
use hosts::tunnel::plan::Endpoint;

use super::refused::Refused;
use crate::quote::quote;
use crate::types::{BackendAddress, BindAddress};

/// Parses the address of a listener. Hints for a port without an address suggest all addresses.
pub(super) fn bind(text: &str) -> Result<BindAddress, Refused> {
    bind_for(Audience::Everybody, text)
}

/// Parses the listening address of a tunnel's forward. Its clients need no password, so hints suggest 127.0.0.1.
pub(super) fn bind_privately(text: &str) -> Result<BindAddress, Refused> {
    bind_for(Audience::ThisMachine, text)
}

/// Clients that a port without an address is probably intended for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Audience {
    Everybody,
    ThisMachine,
}

fn bind_for(audience: Audience, text: &str) -> Result<BindAddress, Refused> {
    if let Some(path) = text.strip_prefix("unix:") {
        trailing(path, "unix:")?;
        return unix_path(path).map(BindAddress::Unix);
    }
    if let Some(name) = text.strip_prefix("systemd:") {
        let fits = |byte: u8| byte.is_ascii_graphic() && byte != b':';
        return if (1..=255).contains(&name.len()) && name.bytes().all(fits) {
            Ok(BindAddress::Systemd(name.to_owned()))
        } else {
            Err(Refused::new("names no socket unit")
                .instead("write \"systemd:NAME\" with the FileDescriptorName="))
        };
    }
    if text.starts_with('/') {
        return Err(
            Refused::new("is not an address").instead(format!("for a Unix socket write \"unix:{text}\""))
        );
    }
    if let Some(rest) = without_scheme(text) {
        return Err(Refused::new("is a URL, not an address").instead(format!("write \"{rest}\"")));
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let refused = Refused::new("is not an address");
        return Err(match audience {
            Audience::Everybody => refused
                .instead(format!("to listen on every address write \":{text}\""))
                .in_general("to listen on every address put a colon before the port, as in \":9000\""),
            Audience::ThisMachine => refused
                .instead(format!("write \"127.0.0.1:{text}\""))
                .in_general("put an address before the port, as in \"127.0.0.1:9000\""),
        });
    }
    let (host, port) = host_and_port(text, "\":80\"")?;
    if port == "*" {
        return match ip(host)? {
            Some(ip) => Ok(BindAddress::EveryPort(ip)),
            None => {
                Err(Refused::new("has every port, and needs one address").instead("write \"192.0.2.10:*\""))
            }
        };
    }
    let port = port_number(port)?;
    if host.is_empty() || host == "*" {
        return Ok(BindAddress::AnyIp(port));
    }
    match ip(host)? {
        Some(ip) if ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) => {
            Err(Refused::new("is a multicast or broadcast address"))
        }
        Some(ip) => Ok(BindAddress::Ip(SocketAddr::new(ip, port))),
        None => {
            let instead = if host.eq_ignore_ascii_case("localhost") {
                format!("write \"127.0.0.1:{port}\" or \"[::1]:{port}\"")
            } else if audience == Audience::ThisMachine {
                format!("write the address itself, such as \"127.0.0.1:{port}\"")
            } else {
                format!("write the address itself, or \":{port}\" for every address")
            };
            Err(Refused::new("is a name, and a listener needs an address").instead(instead))
        }
    }
}

pub(super) fn backend(text: &str) -> Result<BackendAddress, Refused> {
    if let Some(url) = text.strip_prefix("ssh://") {
        let meant = match behind_ssh(url) {
            Ok(address) => Some(format!("write {}", quote(&address.to_string()))),
            Err(refused) => refused.instead,
        };
        let meant = meant.unwrap_or_else(|| "write \"ssh:HOST/127.0.0.1:8000\"".to_owned());
        return Err(Refused::new("is a URL: a backend is an address").instead(meant));
    }
    if let Some(rest) = text.strip_prefix("ssh:") {
        return behind_ssh(rest);
    }
    if let Some(path) = text.strip_prefix("unix:") {
        trailing(path, "unix:")?;
        return unix_path(path).map(BackendAddress::Unix);
    }
    if text.starts_with('/') {
        return Err(
            Refused::new("is not an address").instead(format!("for a Unix socket write \"unix:{text}\""))
        );
    }
    if let Some(rest) = without_scheme(text) {
        // Without userinfo: it may be a password.
        let meant =
            rest.split(['?', '#']).next().and_then(|rest| rest.rsplit('@').next()).unwrap_or_default();
        let refused = Refused::new(refused_url(text));
        return Err(if meant.is_empty() { refused } else { refused.instead(format!("write \"{meant}\"")) });
    }
    let (host, port) = host_and_port(text, "\"10.0.0.11:8000\"")?;
    let port = port_number(port)?;
    if port == 0 {
        return Err(Refused::new("has port 0, where nothing can listen"));
    }
    if host.is_empty() || host == "*" {
        return Err(
            Refused::new("names no host").instead(format!("for this machine write \"127.0.0.1:{port}\""))
        );
    }
    if let Some(ip) = ip(host)? {
        return if ip.is_unspecified() {
            Err(Refused::new("is not a server: this address means every address of a machine")
                .instead(format!("for this machine write \"127.0.0.1:{port}\"")))
        } else if ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
            Err(Refused::new("is a multicast or broadcast address"))
        } else {
            Ok(BackendAddress::Ip(SocketAddr::new(ip.to_canonical(), port)))
        };
    }
    let host = host.strip_suffix('.').unwrap_or(host);
    host_name(host)?;
    Ok(BackendAddress::Name { host: host.to_ascii_lowercase(), port })
}

/// Says why a URL is no backend; `crate::url` has replaced those that are.
fn refused_url(url: &str) -> &'static str {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        "is a URL, and of those only http and https mean a backend"
    } else if authority.contains('@') {
        "is a URL with a user or password, which requests to a backend do not get from here"
    } else if authority.is_empty() {
        "is a URL without a host"
    } else if authority.len() < rest.trim_end_matches('/').len() || rest.ends_with("//") {
        "is a URL with a path or query: a backend is an address, and gets the path of each request"
    } else {
        "is a URL: a backend is an address"
    }
}

/// Parses `nas/127.0.0.1:8000`: the SSH host, and the address that the host connects to.
fn behind_ssh(text: &str) -> Result<BackendAddress, Refused> {
    let Some((host, connect)) = text.split_once('/') else {
        return Err(Refused::new("names no service behind the host")
            .instead("write \"ssh:HOST/127.0.0.1:8000\" or \"ssh:HOST/unix:/run/app.sock\""));
    };
    let host = ssh_host(host).map_err(|_| {
        let meant = NameWithPort::of(host).map(|meant| {
            let NameWithPort { user, host, port } = meant;
            let here = quote(&format!("ssh:{user}{host}/{connect}"));
            format!("in ~/.ssh/config write \"Host {host}\" with \"Port {port}\", and here {here}")
        });
        match meant {
            Some(meant) => {
                Refused::new("has a port after the SSH host, where it is not allowed").instead(meant)
            }
            None => Refused::new("names no SSH host before the /"),
        }
    })?;
    let connect = match backend(connect).map_err(|refused| refused.behind(&host))? {
        BackendAddress::Ip(address) => Endpoint::Tcp { host: address.ip().to_string(), port: address.port() },
        BackendAddress::Name { host, port } => Endpoint::Tcp { host, port },
        BackendAddress::Unix(path) => Endpoint::Unix(path),
        BackendAddress::Ssh { .. } | BackendAddress::Dns(_) | BackendAddress::Discovered { .. } => {
            let hint = "jump hosts belong into ~/.ssh/config (ProxyJump)";
            return Err(Refused::new("names two SSH hosts").in_general(hint));
        }
    };
    Ok(BackendAddress::Ssh { host, connect })
}

/// Parses a host name as written after `ssh`. A leading dash would make it an option there.
pub(super) fn ssh_host(text: &str) -> Result<String, Refused> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:@%".contains(&byte);
    if text.is_empty() || text.len() > 255 || text.starts_with('-') || !text.bytes().all(fits) {
        return Err(Refused::new("is not a host name")
            .in_general("such as \"nas\", a Host of ~/.ssh/config, or a name in the DNS"));
    }
    if let Some(meant) = NameWithPort::of(text) {
        return Err(Refused::new("has a port, which is not allowed here").instead(meant.to_string()));
    }
    Ok(text.to_owned())
}

/// Splits `10.0.0.1:80 weight=5` or `10.0.0.1:80,weight=5` into the address and the weight, if that is a number.
pub(super) fn with_options(text: &str) -> Option<(&str, Option<u16>)> {
    let (address, options) = text.split_once([' ', '\t', ','])?;
    let mut options = options.split([' ', '\t', ',']).filter_map(|option| option.split_once('='));
    if address.starts_with("unix:") || backend(address).is_err() {
        return None;
    }
    let (key, value) = options.next()?;
    let mut all = std::iter::once((key, value)).chain(options);
    Some((address, all.find(|(key, _)| *key == "weight").and_then(|(_, value)| value.parse().ok())))
}

pub(super) fn unix_path(text: &str) -> Result<PathBuf, Refused> {
    // sun_path has 108 bytes on Linux, including the terminating zero byte (unix(7)).
    const LONGEST: usize = 107;
    trailing(text, "")?;
    let path = absolute_path(text)?;
    if text.len() > LONGEST {
        return Err(Refused::new(format!("is too long for a Unix socket: at most {LONGEST} bytes")));
    }
    if text.ends_with('/') {
        return Err(Refused::new("is a directory, not a socket"));
    }
    Ok(path)
}

/// Refuses characters that are valid in a path but never intended: surrounding blanks, or a final `;`.
fn trailing(path: &str, prefix: &str) -> Result<(), Refused> {
    let meant = path.trim().trim_end_matches(';').trim();
    if meant == path {
        return Ok(());
    }
    let reason = if path.trim() == path { "ends in ;" } else { "has blanks around its path" };
    Err(Refused::new(reason).instead(format!("write {}", quote(&format!("{prefix}{meant}")))))
}

pub(super) fn absolute_path(text: &str) -> Result<PathBuf, Refused> {
    const LONGEST: usize = 4095;
    if text.is_empty() {
        return Err(Refused::new("names no file"));
    }
    if !text.starts_with('/') {
        return Err(Refused::new("is not an absolute path: it must begin with /"));
    }
    if text.bytes().any(|byte| byte == 0) {
        return Err(Refused::new("holds a zero byte"));
    }
    if text.len() > LONGEST {
        return Err(Refused::new("is too long for a path"));
    }
    Ok(PathBuf::from(text))
}

/// Splits at the last colon; an IPv6 address is in brackets.
fn host_and_port<'t>(text: &'t str, example: &str) -> Result<(&'t str, &'t str), Refused> {
    if text.trim() != text || text.is_empty() {
        return Err(Refused::new(format!("is not an address: write it as {example}, without blanks")));
    }
    if let Some((host, port)) = text.rsplit_once(':')
        && host.parse::<Ipv6Addr>().is_ok()
        && port.parse::<u16>().is_ok()
    {
        let reason = "is ambiguous: an IPv6 address stands in [ ], and the port behind it";
        return Err(Refused::new(reason).instead(format!("write \"[{host}]:{port}\"")));
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err(
            Refused::new("is an IPv6 address without a port").instead(format!("write \"[{text}]:80\""))
        );
    }
    if let Some(rest) = text.strip_prefix('[') {
        let Some((host, after)) = rest.split_once(']') else {
            return Err(Refused::new("has no closing ]"));
        };
        return match after.strip_prefix(':') {
            Some(port) => Ok((&text[..host.len() + 2], port)),
            None => Err(Refused::new("has no port").instead(format!("write \"[{host}]:80\""))),
        };
    }
    match text.rsplit_once(':') {
        Some((host, _)) if host.contains(':') => {
            Err(Refused::new("is ambiguous: an IPv6 address stands in [ ]")
                .instead("write \"[2001:db8::1]:80\""))
        }
        Some(split) => Ok(split),
        None if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err(Refused::new("has no host").instead(format!("write \"127.0.0.1:{text}\"")))
        }
        None => Err(Refused::new("has no port").instead(format!("write \"{text}:80\""))),
    }
}

impl Refused {
    /// Changes the suggestion for an address after `ssh:HOST/`, so that it contains that prefix.
    fn behind(self, host: &str) -> Self {
        let instead = self.instead.map(|instead| {
            let there = instead.replace("for this machine write", "for that host itself write");
            there.replace("write \"", &format!("write \"ssh:{host}/"))
        });
        Self { instead, ..self }
    }
}

fn port_number(text: &str) -> Result<u16, Refused> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Refused::new("has no port number after the colon"));
    }
    text.parse().map_err(|_| Refused::new("has a port that is out of range: 65535 is the highest"))
}

/// Parses the host as an IP address. `None` for a DNS name; a text that only resembles an address is refused.
fn ip(host: &str) -> Result<Option<IpAddr>, Refused> {
    if let Some(inside) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        return match inside.parse::<Ipv6Addr>() {
            Ok(ip) => Ok(Some(ip.into())),
            Err(_) if inside.contains('%') => {
                Err(Refused::new("holds an IPv6 address with a zone (%), which cannot be used here"))
            }
            Err(_) => Err(Refused::new("holds no IPv6 address between [ and ]")),
        };
    }
    if let Ok(ip) = host.parse::<Ipv4Addr>() {
        return Ok(Some(ip.into()));
    }
    let last = host.rsplit('.').find(|label| !label.is_empty()).unwrap_or_default();
    if last.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Refused::new("is not an IPv4 address: four numbers from 0 to 255"));
    }
    Ok(None)
}

pub(super) fn host_name(host: &str) -> Result<(), Refused> {
    if !host.is_ascii() {
        return Err(Refused::new("is not ASCII: use the xn-- form of the name"));
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let labels = || host.split('.');
    if labels().any(|label| label.is_empty() || !label.bytes().all(fits)) {
        return Err(Refused::new("is neither an address nor a host name"));
    }
    if host.len() > 253 || labels().any(|label| label.len() > 63) {
        return Err(Refused::new("is too long for a host name: 253 characters, 63 between two dots"));
    }
    if labels().any(|label| label.starts_with('-') || label.ends_with('-')) {
        return Err(Refused::new("has a label that begins or ends with -"));
    }
    Ok(())
}

/// Returns the part between a URL scheme such as `http://` and the path.
fn without_scheme(text: &str) -> Option<&str> {
    let (scheme, rest) = text.split_once("://")?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    scheme.bytes().all(fits).then(|| rest.split('/').next().unwrap_or(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_bind_is_read() {
        assert_eq!(bind(":80"), Ok(BindAddress::AnyIp(80)));
        assert_eq!(bind("*:80"), Ok(BindAddress::AnyIp(80)));
        assert_eq!(bind(":0"), Ok(BindAddress::AnyIp(0)));
        assert_eq!(bind("1.2.3.4:80"), Ok(BindAddress::Ip(([1, 2, 3, 4], 80).into())));
        assert_eq!(bind("[::1]:80"), Ok(BindAddress::Ip((Ipv6Addr::LOCALHOST, 80).into())));
        assert_eq!(bind("1.2.3.4:*"), Ok(BindAddress::EveryPort([1, 2, 3, 4].into())));
        assert_eq!(bind("[::1]:*"), Ok(BindAddress::EveryPort(Ipv6Addr::LOCALHOST.into())));
        assert!(bind(":*").is_err() && bind("*:*").is_err() && bind("web:*").is_err());
        assert_eq!(bind("unix:/run/x.sock"), Ok(BindAddress::Unix("/run/x.sock".into())));
        assert_eq!(bind("systemd:web"), Ok(BindAddress::Systemd("web".into())));
    }

    #[test]
    fn addresses_share_datagrams_if_one_of_them_covers_the_other() {
        let may_share = |one: &str, other: &str| {
            let (one, other) = (bind(one).unwrap(), bind(other).unwrap());
            assert_eq!(one.may_share(&other), other.may_share(&one));
            one.may_share(&other)
        };
        for (one, other) in [
            ("1.2.3.4:53", "1.2.3.4:53"),
            ("1.2.3.4:53", "0.0.0.0:53"),
            ("1.2.3.4:53", ":53"),
            ("[::1]:53", "*:53"),
            ("1.2.3.4:53", "[::ffff:1.2.3.4]:53"),
            ("systemd:dns", "systemd:dns"),
        ] {
            assert!(may_share(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("1.2.3.4:53", "1.2.3.4:54"),
            ("1.2.3.4:53", "1.2.3.5:53"),
            ("1.2.3.4:0", ":0"),
            ("systemd:dns", ":53"),
        ] {
            assert!(!may_share(one, other), "{one} {other}");
        }
    }

    #[test]
    fn addresses_that_cannot_be_bound_are_refused() {
        for text in [
            "",
            " :80",
            "80",
            ":",
            ":x",
            ":65536",
            "localhost:80",
            "1.2.3:80",
            "256.1.1.1:80",
            "::1",
            "::1:80",
            "[::1]",
            "[::1",
            "[x]:80",
            "/run/x",
            "unix:",
            "unix:run/x",
            "systemd:",
            "systemd:a b",
            "http://1.2.3.4:80",
            "224.0.0.1:80",
            ":+80",
            "1.2.3.4",
            "unix:/x/",
            "unix:/x;",
            "unix:/x ",
            "unix: /x",
        ] {
            assert!(bind(text).is_err(), "{text}");
        }
        assert!(bind(&format!("unix:/{}", "x".repeat(107))).is_err());
        assert!(bind(&format!("unix:/{}", "x".repeat(106))).is_ok());
    }

    #[test]
    fn a_backend_is_an_address_a_name_or_a_socket() {
        assert_eq!(backend("10.0.0.1:80"), Ok(BackendAddress::Ip(([10, 0, 0, 1], 80).into())));
        assert_eq!(
            backend("App.Internal.:80"),
            Ok(BackendAddress::Name { host: "app.internal".into(), port: 80 })
        );
        assert_eq!(backend("localhost:80"), Ok(BackendAddress::Name { host: "localhost".into(), port: 80 }));
        assert_eq!(backend("unix:/run/app.sock"), Ok(BackendAddress::Unix("/run/app.sock".into())));
        for text in
            ["ssh:nas/127.0.0.1:8000", "ssh:u@nas/unix:/run/app.sock", "ssh:nas/[::1]:80", "ssh:n/db:1"]
        {
            assert_eq!(backend(text).map(|address| address.to_string()), Ok(text.to_owned()));
        }
        for text in [
            "",
            "app",
            ":80",
            "*:80",
            "app:0",
            "app:65536",
            "0.0.0.0:80",
            "[::]:80",
            "a b:80",
            "http://app:80",
            "1.2.3:80",
            "-a:80",
            "a..b:80",
            "/run/app.sock",
            "unix:app.sock",
            "ä:80",
            "255.255.255.255:80",
            "ssh:nas",
            "ssh:/127.0.0.1:80",
            "ssh:-oX/127.0.0.1:80",
            "ssh:nas/127.0.0.1",
            "ssh:nas/ssh:b/127.0.0.1:80",
            "ssh://nas/x",
        ] {
            assert!(backend(text).is_err(), "{text}");
        }
    }
}
