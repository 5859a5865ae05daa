//! Reads the question of `why`: the words of the control command.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use logic::peers::Peer;
use text::nearest::nearest;

/// Largest number of header lines in a question.
const MOST_HEADERS: usize = 50;

/// The session that is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) configuration: Configuration,
    /// Name of the listener; `None` if the URL is to find it.
    pub(crate) listener: Option<String>,
    pub(crate) client: Peer,
    pub(crate) scheme: Scheme,
    /// Authority of the URL; with `tcp` and `udp` perhaps the name of a listener.
    pub(crate) authority: String,
    /// Path and query.
    origin: String,
    method: String,
    headers: Vec<(String, String)>,
}

text::words! {
    /// The configuration under which the session would come.
    pub(crate) enum Configuration: "configuration" {
        Served = "served",
        /// That of the open transaction.
        Pending = "pending",
    }
}

text::words! {
    /// Kinds of sessions.
    pub(crate) enum Scheme: "scheme of a URL for `why`" {
        Http = "http",
        Https = "https",
        /// TLS that is passed through.
        Tls = "tls",
        Tcp = "tcp",
        Udp = "udp",
    }
}

/// What a command asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A session that could come now.
    Now(Box<Asked>),
    /// A session that has ended: its request id, or the address of its client.
    Past(String),
}

impl Wanted {
    pub(crate) fn read(words: &[&str]) -> Result<Self, AskedError> {
        match *words {
            ["--session" | "--request", id] if !id.chars().any(char::is_control) => {
                // As it stands in a line of the access log, and as the fields of JSON are called.
                let bare = ["id=", "request_id="].iter().find_map(|name| id.strip_prefix(name));
                Ok(Self::Past(bare.unwrap_or(id).to_owned()))
            }
            _ if words.iter().any(|word| ["--session", "--request"].contains(word)) => Err(AskedError::Usage),
            _ => Asked::read(words).map(|asked| Self::Now(Box::new(asked))),
        }
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AskedError {
    #[error("usage: why {}", USAGE)]
    Usage,
    #[error("unknown option \"{}\"{}; usage: why {}", .0, hint(.0), USAGE)]
    Option(String),
    #[error(
        "\"{0}\" is not a URL: write http://HOST/PATH, https://HOST/PATH, tls://NAME, tcp://LISTENER or udp://LISTENER"
    )]
    NoUrl(String),
    #[error("{url}: {why}")]
    Scheme { url: String, why: String },
    #[error("{0}: no host between // and /: write http://HOST/PATH")]
    NoHost(String),
    #[error("--from {0}: not an address: write 203.0.113.7, 203.0.113.7:4711, [2001:db8::7]:4711 or unix")]
    From(String),
    #[error("--header \"{0}\": write 'NAME: VALUE'")]
    Header(String),
    #[error("--header: at most {}", MOST_HEADERS)]
    TooManyHeaders,
    #[error("control characters have no place in a question")]
    Control,
    #[error("--method and --header are parts of HTTP: {0} is not http:// or https://")]
    NotHttp(String),
}

const USAGE: &str = "[--pending] [--listener NAME] [--from ADDRESS[:PORT]] [--method M] [--header 'NAME: VALUE']... URL|--session ID";

const OPTIONS: [&str; 7] =
    ["--session", "--request", "--pending", "--listener", "--from", "--method", "--header"];

fn hint(wanted: &str) -> String {
    nearest(wanted, OPTIONS).map_or(String::new(), |name| format!(", did you mean {name}?"))
}

impl Asked {
    pub(crate) fn read(words: &[&str]) -> Result<Self, AskedError> {
        if words.iter().any(|word| word.chars().any(char::is_control)) {
            return Err(AskedError::Control);
        }
        let (mut listener, mut from, mut method, mut url) = (None, None, None, None);
        let mut configuration = Configuration::Served;
        let mut headers = Vec::new();
        let mut rest = words.iter().copied();
        while let Some(word) = rest.next() {
            let mut value = || rest.next().ok_or(AskedError::Usage);
            match word {
                "--pending" => configuration = Configuration::Pending,
                "--listener" => listener = Some(value()?.to_owned()),
                "--from" => from = Some(client(value()?)?),
                "--method" => method = Some(value()?.to_owned()),
                "--header" => headers.push(header(value()?)?),
                option if option.starts_with("--") => return Err(AskedError::Option(option.to_owned())),
                _ if url.is_some() => return Err(AskedError::Usage),
                word => url = Some(word),
            }
        }
        if headers.len() > MOST_HEADERS {
            return Err(AskedError::TooManyHeaders);
        }
        let url = url.ok_or(AskedError::Usage)?;
        let (scheme, authority, origin) = parts(url)?;
        let is_http = matches!(scheme, Scheme::Http | Scheme::Https);
        if !is_http && (method.is_some() || !headers.is_empty()) {
            return Err(AskedError::NotHttp(url.to_owned()));
        }
        let loopback = Peer::Ip(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0));
        Ok(Self {
            configuration,
            listener,
            client: from.unwrap_or(loopback),
            scheme,
            authority,
            origin,
            method: method.unwrap_or_else(|| "GET".to_owned()),
            headers,
        })
    }

    /// The head of the request.
    pub(crate) fn head(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.origin);
        if !self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str(&format!("Host: {}\r\n", self.authority));
        }
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        head.into_bytes()
    }

    /// Server name that a TLS client sends for the URL: none for an address (RFC 6066 section 3).
    pub(crate) fn server_name(&self) -> Option<String> {
        let (host, _) = self.host_and_port();
        let host = host.strip_suffix('.').unwrap_or(host);
        let is_address = host.starts_with('[') || host.parse::<IpAddr>().is_ok();
        (!is_address && !host.is_empty()).then(|| host.to_ascii_lowercase())
    }

    /// Port of the URL; the default port of its scheme if it has none.
    pub(crate) fn port(&self) -> Option<u16> {
        let default = match self.scheme {
            Scheme::Http => Some(80),
            Scheme::Https | Scheme::Tls => Some(443),
            Scheme::Tcp | Scheme::Udp => None,
        };
        match self.host_and_port() {
            (_, Some(port)) => port.parse().ok(),
            (_, None) => default,
        }
    }

    fn host_and_port(&self) -> (&str, Option<&str>) {
        match self.authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            _ => (&self.authority, None),
        }
    }
}

fn parts(url: &str) -> Result<(Scheme, String, String), AskedError> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| AskedError::NoUrl(url.to_owned()))?;
    let scheme = scheme.to_ascii_lowercase().parse().map_err(|why: text::words::UnknownWord| {
        AskedError::Scheme { url: url.to_owned(), why: why.to_string() }
    })?;
    let rest = rest.split('#').next().unwrap_or_default();
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, origin) = rest.split_at(end);
    if authority.is_empty() {
        return Err(AskedError::NoHost(url.to_owned()));
    }
    let origin = if origin.starts_with('/') { origin.to_owned() } else { format!("/{origin}") };
    Ok((scheme, authority.to_owned(), origin))
}

fn client(text: &str) -> Result<Peer, AskedError> {
    if text == "unix" {
        return Ok(Peer::Unix);
    }
    let inside = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let address = inside.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 0)).or_else(|_| text.parse());
    address.map(Peer::Ip).map_err(|_| AskedError::From(text.to_owned()))
}

fn header(text: &str) -> Result<(String, String), AskedError> {
    match text.split_once(':') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.trim().to_owned())),
        _ => Err(AskedError::Header(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Asked {
        Asked::read(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    fn said(words: &[&str]) -> String {
        Asked::read(words).unwrap_err().to_string()
    }

    #[test]
    fn question_becomes_the_head_that_a_client_would_send() {
        let asked = read(&["--method", "PUT", "--header", "X-A:  b ", "http://Shop:8080/a?b=c#d"]);
        let head = String::from_utf8(asked.head()).unwrap();
        assert_eq!(head, "PUT /a?b=c HTTP/1.1\r\nHost: Shop:8080\r\nX-A: b\r\n\r\n");
        assert_eq!((asked.port(), asked.client.to_string().as_str()), (Some(8080), "127.0.0.1:0"));
        let asked = read(&["https://shop?x", "--header", "host: other", "--from", "2001:db8::7"]);
        assert_eq!(asked.head(), b"GET /?x HTTP/1.1\r\nhost: other\r\n\r\n");
        assert_eq!((asked.port(), asked.client.to_string().as_str()), (Some(443), "[2001:db8::7]:0"));
    }

    #[test]
    fn only_names_are_server_names() {
        let names = ["https://Shop.example.:8443/", "tls://[::1]:443", "tls://192.0.2.1"]
            .map(|url| read(&[url]).server_name());
        assert_eq!(names, [Some("shop.example".to_owned()), None, None]);
    }

    #[test]
    fn wrong_questions_say_what_is_wrong() {
        for (words, part) in [
            (&[][..], "usage: why [--pending] [--listener NAME]"),
            (&["http://a/", "http://b/"], "usage: why"),
            (&["--from"], "usage: why"),
            (&["--form", "1", "http://a/"], "did you mean --from?"),
            (&["shop/x"], "\"shop/x\" is not a URL"),
            (&["htp://shop/x"], "did you mean \"http\"?"),
            (&["http:///x"], "no host between // and /"),
            (&["--from", "shop", "http://a/"], "--from shop: not an address"),
            (&["--header", "X-A", "http://a/"], "write 'NAME: VALUE'"),
            (&["--header", "X: a\rY: b", "http://a/"], "control characters"),
            (&["--method", "PUT", "tcp://web"], "tcp://web is not http://"),
        ] {
            assert!(said(words).contains(part), "{words:?}: {}", said(words));
        }
        assert_eq!(Wanted::read(&["--session", "a"]), Ok(Wanted::Past("a".to_owned())));
        assert_eq!(Wanted::read(&["--session", "a", "http://a/"]), Err(AskedError::Usage));
        for words in [["--request", "a"], ["--session", "id=a"], ["--request", "request_id=a"]] {
            assert_eq!(Wanted::read(&words), Ok(Wanted::Past("a".to_owned())), "{words:?}");
        }
        assert_eq!(Wanted::read(&["--request"]), Err(AskedError::Usage));
        assert_eq!(Wanted::read(&["--pending", "--session", "a"]), Err(AskedError::Usage));
        assert_eq!(Wanted::read(&["--pending"]), Err(AskedError::Usage));
        let [served, pending] = [&["http://a/"][..], &["http://a/", "--pending"]].map(read);
        assert_eq!(served.configuration, Configuration::Served);
        assert_eq!(pending, Asked { configuration: Configuration::Pending, ..served });
        let many: Vec<&str> =
            std::iter::repeat_n(["--header", "a: b"], 51).flatten().chain(["http://a/"]).collect();
        assert!(said(&many).contains("at most 50"));
    }
}
