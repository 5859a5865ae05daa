//! `LocalForward`, `RemoteForward` and `DynamicForward`. Penstock parses and reports them, but does not open them.

use std::fmt;

use super::value;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// Port, on all interfaces or by the GatewayPorts rules.
    Port(u16),
    Host(String, u16),
    Path(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardKind {
    Local,
    Remote,
    /// SOCKS proxy on the local machine.
    Dynamic,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    pub listen: End,
    /// Target of the connection; `None` if a SOCKS client chooses the target.
    pub connect: Option<End>,
}

/// Parses `[host:]port` or a path, followed by a target except for dynamic forwards.
pub(super) fn parse(kind: ForwardKind, text: &str) -> Option<Forward> {
    let fields = fields(text)?;
    let port = |field: &Field| value::port(&field.text);
    let named = |host: &Field, port_: &Field| Some(End::Host(host.text.clone(), port(port_)?));
    let path = |field: &Field| End::Path(field.text.clone());
    let dynamic = kind == ForwardKind::Dynamic;
    let forward = match &fields[..] {
        [one] if dynamic && one.is_path => Forward { listen: path(one), connect: None },
        [one] if dynamic => Forward { listen: End::Port(port(one)?), connect: None },
        [one, two] if dynamic && !two.is_path => Forward { listen: named(one, two)?, connect: None },
        _ if dynamic => return None,
        [one, two] if one.is_path && two.is_path => Forward { listen: path(one), connect: Some(path(two)) },
        [one, two] if two.is_path => Forward { listen: End::Port(port(one)?), connect: Some(path(two)) },
        [one, two, three] if one.is_path => Forward { listen: path(one), connect: Some(named(two, three)?) },
        [one, two, three] if three.is_path => {
            Forward { listen: named(one, two)?, connect: Some(path(three)) }
        }
        [one, two, three] => Forward { listen: End::Port(port(one)?), connect: Some(named(two, three)?) },
        [one, two, three, four] => Forward { listen: named(one, two)?, connect: Some(named(three, four)?) },
        _ => return None,
    };
    let zero = |end: &End| matches!(end, End::Port(0) | End::Host(_, 0));
    let too_long = |end: &End| matches!(end, End::Path(path) if path.len() >= LONGEST_PATH);
    let ends = || std::iter::once(&forward.listen).chain(&forward.connect);
    let bad = forward.connect.as_ref().is_some_and(zero)
        || (kind != ForwardKind::Remote && zero(&forward.listen))
        || ends().any(too_long);
    (!bad).then_some(forward)
}

/// Writes the format of `ssh -G`.
impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.listen.fmt(f)?;
        self.connect.as_ref().map_or(Ok(()), |connect| write!(f, " {connect}"))
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(port) => write!(f, "{port}"),
            Self::Host(host, port) => write!(f, "[{host}]:{port}"),
            Self::Path(path) => f.write_str(path),
        }
    }
}

struct Field {
    text: String,
    is_path: bool,
}

/// Splits at colons; a colon in brackets does not split.
fn fields(text: &str) -> Option<Vec<Field>> {
    let mut rest = text.trim_start();
    let mut fields = Vec::new();
    while !rest.is_empty() {
        if fields.len() == 4 {
            return None;
        }
        if let Some(inside) = rest.strip_prefix('[') {
            let (field, after) = inside.split_once(']')?;
            fields.push(Field { text: field.to_owned(), is_path: field.contains('/') });
            rest = match after {
                "" => after,
                after => after.strip_prefix(':')?,
            };
            continue;
        }
        let mut field = String::new();
        let mut chars = rest.chars();
        loop {
            match chars.next() {
                None | Some(':') => break,
                Some('\\') => field.push(chars.next()?),
                Some(c) => field.push(c),
            }
        }
        rest = chars.as_str();
        fields.push(Field { is_path: field.contains('/'), text: field });
    }
    Some(fields)
}

/// Limit of `sockaddr_un` in bytes.
const LONGEST_PATH: usize = 108;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwards_are_written_back_as_openssh_writes_them() {
        for (kind, text, shown) in [
            (ForwardKind::Local, "8080:web:80", "8080 [web]:80"),
            (ForwardKind::Local, "localhost:8080:[::1]:80", "[localhost]:8080 [::1]:80"),
            (ForwardKind::Local, ":8080:web:80", "[]:8080 [web]:80"),
            (ForwardKind::Local, "/run/a:/run/b", "/run/a /run/b"),
            (ForwardKind::Remote, "0:localhost:80", "0 [localhost]:80"),
            (ForwardKind::Dynamic, "1080", "1080"),
            (ForwardKind::Dynamic, "*:1080", "[*]:1080"),
        ] {
            assert_eq!(
                parse(kind, text).map(|forward| forward.to_string()).as_deref(),
                Some(shown),
                "{text}"
            );
        }
        for (kind, text) in [
            (ForwardKind::Local, "8080"),
            (ForwardKind::Local, "0:a:1"),
            (ForwardKind::Local, "1:2"),
            (ForwardKind::Dynamic, "a:b:c"),
            (ForwardKind::Local, ""),
        ] {
            assert_eq!(parse(kind, text), None, "{text}");
        }
    }
}
