//! Whether the source of a datagram is one of our own listeners. Such a source is forged: the reply to it would come back
//! as the next datagram, and go round for ever.

use std::net::{IpAddr, SocketAddr};

/// Addresses on which this process receives datagrams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listening(Vec<SocketAddr>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Elsewhere,
    /// One of our listeners.
    Ours,
    /// One of our listeners, which listens on every address, if this machine has the address.
    OursIfLocal,
}

impl Listening {
    pub fn new(addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self(addresses.into_iter().collect())
    }

    pub fn judge(&self, source: SocketAddr) -> Source {
        let ip = source.ip().to_canonical();
        let mut judged = Source::Elsewhere;
        for own in self.0.iter().filter(|own| own.port() == source.port()) {
            match own.ip().to_canonical() {
                same if same == ip => return Source::Ours,
                IpAddr::V4(any) if any.is_unspecified() && ip.is_ipv4() => judged = Source::OursIfLocal,
                // It may receive IPv4 as well.
                IpAddr::V6(any) if any.is_unspecified() => judged = Source::OursIfLocal,
                _ => {}
            }
        }
        match judged {
            Source::OursIfLocal if ip.is_loopback() => Source::Ours,
            judged => judged,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_ours_if_one_of_our_listeners_has_it() {
        let own = ["192.0.2.1:53", "[::]:5353", "0.0.0.0:123"];
        let own = Listening::new(own.map(|address| address.parse().unwrap()));
        for (source, judged) in [
            ("192.0.2.1:53", Source::Ours),
            ("[::ffff:192.0.2.1]:53", Source::Ours),
            ("192.0.2.2:53", Source::Elsewhere),
            ("192.0.2.1:54", Source::Elsewhere),
            ("192.0.2.9:5353", Source::OursIfLocal),
            ("[2001:db8::1]:5353", Source::OursIfLocal),
            ("127.0.0.9:5353", Source::Ours),
            ("[::1]:5353", Source::Ours),
            ("198.51.100.1:123", Source::OursIfLocal),
            ("[2001:db8::1]:123", Source::Elsewhere),
        ] {
            assert_eq!(own.judge(source.parse().unwrap()), judged, "{source}");
        }
    }
}
