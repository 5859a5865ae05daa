//! Server side of SOCKS5 (RFC 1928): no authentication, CONNECT only. The remote host resolves names.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::plan::Endpoint;
use crate::fleet::ending::Reason;

/// Next step after the bytes so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<T> {
    More,
    /// The message is complete; the number is its length in bytes.
    Done(T, usize),
    /// The server must send these bytes and close the connection.
    Refuse(Vec<u8>, &'static str),
}

/// Limit of a message of a client: a request with a name of 255 bytes (RFC 1928 section 4).
pub const LONGEST: usize = 4 + 1 + 255 + 2;

/// Reply to a greeting that offers "no authentication required".
pub const WELCOME: [u8; 2] = [5, 0];

/// Parses the greeting, the first message of the client (section 3).
#[must_use]
pub fn greeting(bytes: &[u8]) -> Step<()> {
    match bytes {
        [] | [5] => Step::More,
        [4, ..] => Step::Refuse(vec![0, 91, 0, 0, 0, 0, 0, 0], "SOCKS version 4: use version 5"),
        [5, count, rest @ ..] => {
            let count = usize::from(*count);
            match rest.get(..count) {
                None => Step::More,
                Some(methods) if methods.contains(&0) => Step::Done((), 2 + count),
                Some(_) => Step::Refuse(
                    vec![5, 0xff],
                    "the client requires authentication, which this proxy does not have",
                ),
            }
        }
        [_, ..] => Step::Refuse(Vec::new(), "what came is not SOCKS"),
    }
}

/// Parses the request (section 4).
#[must_use]
pub fn request(bytes: &[u8]) -> Step<Endpoint> {
    let [version, command, _, kind, rest @ ..] = bytes else { return Step::More };
    if *version != 5 {
        return Step::Refuse(reply(Reply::General), "what came is not SOCKS5");
    }
    if *command != 1 {
        return Step::Refuse(reply(Reply::Command), "only CONNECT is possible");
    }
    let (host, used) = match kind {
        1 => match rest.first_chunk::<4>() {
            Some(address) => (Ipv4Addr::from(*address).to_string(), 4),
            None => return Step::More,
        },
        4 => match rest.first_chunk::<16>() {
            Some(address) => (Ipv6Addr::from(*address).to_string(), 16),
            None => return Step::More,
        },
        3 => {
            let Some(length) = rest.first().map(|length| usize::from(*length)) else { return Step::More };
            let Some(name) = rest.get(1..=length) else { return Step::More };
            let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b".-_:%".contains(byte);
            match std::str::from_utf8(name) {
                Ok(name) if !name.is_empty() && name.bytes().all(|byte| fits(&byte)) => {
                    (name.to_owned(), 1 + length)
                }
                _ => return Step::Refuse(reply(Reply::General), "the name asked for is not a host name"),
            }
        }
        _ => return Step::Refuse(reply(Reply::AddressType), "an unknown type of address"),
    };
    let Some(port) = rest[used..].first_chunk::<2>() else { return Step::More };
    match u16::from_be_bytes(*port) {
        0 => Step::Refuse(reply(Reply::General), "port 0 was asked for"),
        port => Step::Done(Endpoint::Tcp { host, port }, 4 + used + 2),
    }
}

/// Result of a request (section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    Succeeded,
    General,
    /// The remote host does not permit the connection.
    Forbidden,
    /// The remote host cannot reach the target, or the name has no address on the remote host.
    Unreachable,
    Refused,
    /// The connection timed out.
    Late,
    Command,
    AddressType,
}

impl Reply {
    /// Reply for a connection that failed for this reason.
    #[must_use]
    pub fn of(reason: Reason) -> Self {
        match reason {
            Reason::NoAddress | Reason::Unreachable => Self::Unreachable,
            Reason::ConnectionRefused => Self::Refused,
            Reason::TimedOut => Self::Late,
            Reason::ChannelRefused => Self::Forbidden,
            _ => Self::General,
        }
    }
}

/// Builds the message. The bound address is zero, because the SSH server does not report it.
#[must_use]
pub fn reply(reply: Reply) -> Vec<u8> {
    let code = match reply {
        Reply::Succeeded => 0,
        Reply::General => 1,
        Reply::Forbidden => 2,
        Reply::Unreachable => 4,
        Reply::Refused => 5,
        // "TTL expired" is the nearest code.
        Reply::Late => 6,
        Reply::Command => 7,
        Reply::AddressType => 8,
    };
    vec![5, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_by_name_and_address_are_read_at_any_split() {
        let mut name = vec![5, 1, 0, 3, 7];
        name.extend(b"db.lan.\x00\x50");
        let v4 = vec![5, 1, 0, 1, 10, 0, 0, 1, 0x1f, 0x90];
        let mut v6 = vec![5, 1, 0, 4];
        v6.extend([0; 15]);
        v6.extend([1, 0, 22]);
        for (bytes, wanted) in [(name, "db.lan.:80"), (v4, "10.0.0.1:8080"), (v6, "[::1]:22")] {
            for cut in 0..bytes.len() {
                assert_eq!(request(&bytes[..cut]), Step::More);
            }
            let Step::Done(endpoint, used) = request(&bytes) else { panic!("{bytes:?}") };
            assert_eq!((endpoint.to_string().as_str(), used), (wanted, bytes.len()));
        }
    }

    #[test]
    fn what_we_do_not_do_is_refused_with_its_code() {
        let code = |step: Step<Endpoint>| match step {
            Step::Refuse(answer, _) => answer[1],
            other => panic!("{other:?}"),
        };
        assert_eq!(code(request(&[5, 2, 0, 1, 1, 1, 1, 1, 0, 80])), 7);
        assert_eq!(code(request(&[5, 1, 0, 9, 1])), 8);
        assert_eq!(code(request(&[5, 1, 0, 3, 3, b'a', b'\n', b'b', 0, 80])), 1);
        assert_eq!(code(request(&[5, 1, 0, 3, 0, 0, 80])), 1);
        assert_eq!(code(request(&[5, 1, 0, 1, 1, 1, 1, 1, 0, 0])), 1);
        assert!(matches!(greeting(&[5, 1, 2]), Step::Refuse(answer, _) if answer == [5, 0xff]));
        assert!(matches!(greeting(b"GET / HTTP/1.1"), Step::Refuse(..)));
        assert!(matches!(greeting(&[4, 1]), Step::Refuse(..)));
        assert_eq!(greeting(&[5, 2, 2]), Step::More);
        assert_eq!(greeting(&[5, 2, 2, 0, 9]), Step::Done((), 4));
    }
}
