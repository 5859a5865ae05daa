//! Addresses as Pen writes them: where it listens, and `h[:p[:soft[:hard[:weight[:prio]]]]]`.

use std::net::{IpAddr, Ipv4Addr};

use super::model::Server;
use super::place::{Listen, Place};
use crate::{Outside, fits};

/// `[host:]port` or a path.
pub(super) fn listen(text: &str, outside: &Outside<'_>) -> Result<Listen, String> {
    if text.contains('/') {
        let path = outside.absolute(text);
        fits::socket(&path)?;
        return Ok(Listen::Unix(path));
    }
    let (host, port) = text.rsplit_once(':').unwrap_or(("0.0.0.0", text));
    let port = port_of(port, outside)?;
    let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let address = match inside.parse() {
        Ok(address) => address,
        Err(_) if inside.eq_ignore_ascii_case("localhost") => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Err(_) => {
            return Err(format!(
                "{host:?} is a name, and a listener needs an address: write the address that it has"
            ));
        }
    };
    Ok(Listen::Ip { address, port })
}

/// `address[:port]` of a service with direct server return: without a port it is every one.
pub(super) fn service(text: &str, outside: &Outside<'_>) -> Result<Listen, String> {
    match text.parse::<Ipv4Addr>() {
        Ok(address) => Ok(Listen::EveryPort(IpAddr::V4(address))),
        Err(_) => listen(text, outside),
    }
}

/// `h[:p[:soft[:hard[:weight[:prio]]]]]`, `[h]:...` or a path.
pub(super) fn server(text: &str, outside: &Outside<'_>) -> Result<Server, String> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(inside) => {
            let (host, rest) = inside.split_once(']').ok_or("the ] after the address is missing")?;
            (host, rest)
        }
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    if host.is_empty() {
        return Err("the address of the server is missing".to_owned());
    }
    let rest = match rest.strip_prefix(':') {
        Some(rest) => rest,
        None if rest.is_empty() => "",
        None => return Err("a colon is missing after the ]".to_owned()),
    };
    let mut parts = if rest.is_empty() { Vec::new() } else { rest.split(':').collect::<Vec<_>>() };
    if parts.len() > 5 {
        return Err(
            "it has more than host:port:soft:hard:weight:prio; an IPv6 address needs [ and ]".to_owned()
        );
    }
    parts.resize(5, "");
    let names = ["soft limit", "hard limit", "weight", "priority"];
    let mut numbers = [0; 4];
    for ((number, text), name) in numbers.iter_mut().zip(&parts[1..]).zip(names) {
        if !text.is_empty() {
            *number = text.parse().map_err(|_| format!("its {name} {text:?} is not a number"))?;
        }
    }
    let [soft, hard, weight, prio] = numbers;
    let port = match parts[0] {
        "" => None,
        text => Some(port_of(text, outside)?),
    };
    Ok(Server { place: Some(place(host, port, outside)?), soft, hard, weight, prio, ..Server::default() })
}

/// Where a server is, by its address alone.
pub(super) fn place(host: &str, port: Option<u16>, outside: &Outside<'_>) -> Result<Place, String> {
    if host.contains('/') {
        let path = outside.absolute(host);
        fits::socket(&path)?;
        return Ok(Place::Unix(path));
    }
    let place = Place::Host { host: host.to_owned(), port };
    if !place.is_unused() {
        fits::host(host)?;
    }
    Ok(place)
}

/// A port by number, or by the name of its service.
pub(super) fn port_of(text: &str, outside: &Outside<'_>) -> Result<u16, String> {
    match text.parse::<u16>() {
        Ok(0) => Err("port 0 cannot be used".to_owned()),
        Ok(port) => Ok(port),
        Err(_) if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() => {
            Err(format!("port {text} is out of range"))
        }
        Err(_) => {
            outside.port(text).ok_or_else(|| format!("{text:?} is no port and no service of /etc/services"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn outside() -> Outside<'static> {
        Outside {
            services: "http 80/tcp",
            directory: Path::new("/here"),
            read: &|_| Err(String::new()),
            exists: &|_| true,
        }
    }

    #[test]
    fn servers_are_read_as_pen_reads_them() {
        for (text, written, numbers) in [
            ("a", "a:7", [0; 4]),
            ("a:http", "a:80", [0; 4]),
            ("10.0.0.1:8000:10", "10.0.0.1:8000", [10, 0, 0, 0]),
            ("10.0.0.1:8000:10:20:3:4", "10.0.0.1:8000", [10, 20, 3, 4]),
            ("[fd00::1]:8000:1", "[fd00::1]:8000", [1, 0, 0, 0]),
            ("[fd00::1]", "[fd00::1]:7", [0; 4]),
            ("/run/app.sock", "unix:/run/app.sock", [0; 4]),
            ("./app.sock::5", "unix:/here/./app.sock", [5, 0, 0, 0]),
        ] {
            let read = server(text, &outside()).unwrap();
            assert_eq!(read.place.unwrap().written(Some(7)).as_deref(), Some(written), "{text}");
            assert_eq!([read.soft, read.hard, read.weight, read.prio], numbers, "{text}");
        }
        for text in [
            "",
            ":80",
            "fd00::1:2:3:4:5:6",
            "[fd00::1",
            "[fd00::1]80",
            "a:x",
            "a:0",
            "a:70000",
            "a:80:x",
            "x\"y",
            "a b",
            "a\nb:80",
            "${HOME}",
            "ssh:80",
            "224.0.0.1",
            "/run/",
        ] {
            assert!(server(text, &outside()).is_err(), "{text}");
        }
    }

    #[test]
    fn listeners_are_read_as_pen_reads_them() {
        let ip = |address: &str, port| Ok(Listen::Ip { address: address.parse().unwrap(), port });
        assert_eq!(listen("http", &outside()), ip("0.0.0.0", 80));
        assert_eq!(listen("127.0.0.1:8080", &outside()), ip("127.0.0.1", 8080));
        assert_eq!(listen("localhost:1", &outside()), ip("127.0.0.1", 1));
        assert_eq!(listen("::1:8080", &outside()), ip("::1", 8080));
        assert_eq!(listen("[::1]:8080", &outside()), ip("::1", 8080));
        assert_eq!(listen("/run/pen", &outside()), Ok(Listen::Unix("/run/pen".to_owned())));
        for text in ["", "www:80", "0", "70000", "127.0.0.1:"] {
            assert!(listen(text, &outside()).is_err(), "{text}");
        }
    }
}
