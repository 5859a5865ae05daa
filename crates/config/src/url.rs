//! Backends written as URLs: `http://10.0.0.11:8000` is the address, `https://10.0.0.11` also asks for TLS to the pool.
//! Called before the defaults are filled in, so that the rest of this crate, and `check --print`, see addresses and `tls`.

use crate::error::Report;
use crate::tree::{Node, NodeId, Nodes, Origin, Spans, Step, Table, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

/// Replaces URLs of backends by their addresses, and sets `tls` of a pool whose backends are all `https`.
pub(crate) fn resolve(root: &mut Table, nodes: &mut Nodes, report: &mut Report) {
    let Some(Node { value: Value::Table(pools), .. }) = root.get_mut("pool") else { return };
    for (_, pool) in &mut pools.entries {
        if let Value::Table(table) = &mut pool.value {
            resolve_pool(pool.id, table, nodes, report);
        }
    }
}

fn resolve_pool(id: NodeId, pool: &mut Table, nodes: &mut Nodes, report: &mut Report) {
    let tls = match pool.get("tls").map(|node| &node.value) {
        None => Tls::Unsaid,
        Some(Value::Text(word)) if word == "off" => Tls::Off,
        Some(_) => Tls::On,
    };
    let Some(Node { value: Value::List(list), .. }) = pool.get_mut("backends") else { return };
    let mut found = Vec::new();
    for entry in list {
        let entry = match &mut entry.value {
            Value::Table(table) => table.get_mut("address"),
            Value::Text(_) => Some(entry),
            _ => None,
        };
        let Some(Node { id, value: Value::Text(text) }) = entry else { continue };
        let scheme = address(text).map(|(scheme, address)| {
            *text = address;
            scheme
        });
        found.push((*id, scheme));
    }
    let first_https = found.iter().find(|(_, scheme)| *scheme == Some(Scheme::Https)).map(|(id, _)| *id);
    for (id, scheme) in &found {
        let (message, hint) = match (scheme, tls) {
            (Some(Scheme::Https), Tls::Off) => {
                ("https asks for TLS, and this pool has tls = \"off\"", "remove tls = \"off\"")
            }
            (Some(Scheme::Http), Tls::On) => (
                "http asks for no TLS, and this pool has tls",
                "write https://, or move it into another pool",
            ),
            (Some(Scheme::Http) | None, Tls::Unsaid) if first_https.is_some() => (
                "another backend of this pool is https, and TLS is for all backends of a pool or none",
                "write https:// before each, or make a pool for those with TLS",
            ),
            _ => continue,
        };
        drop(report.at(nodes, *id, message).hint(hint));
    }
    if let (Some(https), Tls::Unsaid) = (first_https, tls) {
        let spans = Spans { key: None, value: nodes.value_span(https) };
        let origin = match nodes.origin(https).clone() {
            // The text with variables is that of the address.
            Origin::Substituted(_) => Origin::File,
            other => other,
        };
        let id = nodes.add(Some(id), Step::Key("tls".to_owned()), spans, origin);
        pool.push("tls", Node { id, value: Value::Text("on".to_owned()) });
    }
}

#[derive(Clone, Copy)]
enum Tls {
    Unsaid,
    Off,
    On,
}

/// Parses a URL without userinfo, path, query and fragment. `None` for other text, which is not changed and refused
/// later if it is no address.
fn address(text: &str) -> Option<(Scheme, String)> {
    let (scheme, rest) = text.split_once("://")?;
    let (scheme, port) = match scheme.to_ascii_lowercase().as_str() {
        "http" => (Scheme::Http, 80),
        "https" => (Scheme::Https, 443),
        _ => return None,
    };
    let host = rest.strip_suffix('/').unwrap_or(rest);
    if host.is_empty() || host.contains(['/', '?', '#', '@', ' ', ',']) {
        return None;
    }
    let after_host = host.rsplit_once(']').map_or(host, |(_, after)| after);
    match after_host.rsplit_once(':') {
        Some((_, "")) => Some((scheme, format!("{host}{port}"))),
        Some(_) => Some((scheme, host.to_owned())),
        None => Some((scheme, format!("{host}:{port}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_an_address_and_its_scheme_names_the_port_and_nothing_else_may_be_in_it() {
        let of = |text: &str| address(text);
        assert_eq!(of("http://10.0.0.11:8000"), Some((Scheme::Http, "10.0.0.11:8000".to_owned())));
        assert_eq!(of("HTTPS://app.internal/"), Some((Scheme::Https, "app.internal:443".to_owned())));
        assert_eq!(of("http://[2001:db8::1]"), Some((Scheme::Http, "[2001:db8::1]:80".to_owned())));
        assert_eq!(of("http://[2001:db8::1]:81/"), Some((Scheme::Http, "[2001:db8::1]:81".to_owned())));
        assert_eq!(of("http://app:"), Some((Scheme::Http, "app:80".to_owned())));
        for text in ["http://a/x", "http://u:p@a", "http://a?x", "http://", "http:///", "ftp://a", "a:80"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
