//! Keys and words of other programs, with their equivalents in this configuration.

use crate::tree::{NodeId, Nodes, Step, is_bare};

/// Equivalent of another program's word.
pub(super) struct Meant {
    /// Key of the same table that replaces the word, if any.
    pub(super) key: Option<&'static str>,
    /// Hint with the correct spelling.
    pub(super) hint: String,
}

/// Finds the equivalent of another program's key.
pub(super) fn key(nodes: &Nodes, id: NodeId, written: &str) -> Option<Meant> {
    let (place, name) = place(nodes, id)?;
    let written = plain(written);
    let (.., key, hint) =
        KEYS.iter().find(|(at, words, ..)| *at == place && words.contains(&written.as_str()))?;
    let key = (!key.is_empty()).then_some(*key);
    let name = name.filter(|name| is_bare(name)).unwrap_or("NAME");
    Some(Meant { key, hint: hint.replace("NAME", name) })
}

/// Returns a hint for another program's name of a balancing policy.
pub(super) fn policy(written: &str) -> Option<&'static str> {
    let written = plain(written);
    POLICIES.iter().find(|(words, _)| words.contains(&written.as_str())).map(|(_, hint)| *hint)
}

/// Returns the kind of table that contains a key, and the name of its listener or pool.
fn place(nodes: &Nodes, id: NodeId) -> Option<(Table, Option<&str>)> {
    let mut keys = Vec::new();
    let mut next = nodes.parent(id);
    while let Some(at) = next {
        if let Step::Key(key) = nodes.step(at) {
            keys.push(key.as_str());
        }
        next = nodes.parent(at);
    }
    keys.reverse();
    Some(match keys.as_slice() {
        [] => (Table::Root, None),
        ["process"] => (Table::Process, None),
        ["listener", name] => (Table::Listener, Some(name)),
        ["listener", name, "route"] => (Table::Route, Some(name)),
        ["listener", name, "tls"] => (Table::Tls, Some(name)),
        ["pool", name] => (Table::Pool, Some(name)),
        _ => return None,
    })
}

fn plain(written: &str) -> String {
    written.to_ascii_lowercase().replace('_', "-")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Table {
    Root,
    Process,
    Listener,
    Route,
    Tls,
    Pool,
}

/// Table, foreign words (with `-` for `_`), equivalent key, and hint (with NAME for the name of listener or pool).
const KEYS: [(Table, &[&str], &str, &str); 16] = [
    (
        Table::Root,
        &["upstream", "upstreams", "backend", "backends"],
        "pool",
        "backends stand in [pool.NAME]: backends = [\"10.0.0.11:8000\"]",
    ),
    (
        Table::Root,
        &["server", "servers", "http", "stream"],
        "listener",
        "write [listener.NAME] for where clients arrive, and [pool.NAME] for the servers behind it",
    ),
    (
        Table::Root,
        &["frontend", "frontends", "listen"],
        "listener",
        "write [listener.NAME], with bind = \":80\"",
    ),
    (Table::Root, &WORKERS, "", "write [process], and in it workers = 4"),
    (Table::Process, &WORKERS, "workers", "write workers = 4"),
    (Table::Listener, &["listen", "port", "address"], "bind", "write bind = \":80\""),
    (
        Table::Listener,
        &["server-name", "hosts"],
        "",
        "hosts stand in routes: [[listener.NAME.route]] with host = \"www.example.com\"",
    ),
    (
        Table::Listener,
        &["location", "locations"],
        "route",
        "paths stand in routes: [[listener.NAME.route]] with path = \"/api\"",
    ),
    (Table::Listener, &POOL, "pool", "write pool = \"app\", and list the backends in [pool.app]"),
    (
        Table::Listener,
        &CERTIFICATE,
        "tls",
        "write tls = { certificates = \"DIR\" }: a directory that holds FILE.pem, or FILE.crt and FILE.key",
    ),
    (
        Table::Listener,
        &["access-log"],
        "",
        "it is a section of its own: [access-log] with target = \"stdout\"",
    ),
    (Table::Route, &["server-name", "hosts"], "host", "write host = \"www.example.com\""),
    (Table::Route, &["location", "locations"], "path", "write path = \"/api\""),
    (Table::Route, &POOL, "pool", "write pool = \"app\", and list the backends in [pool.app]"),
    (
        Table::Tls,
        &CERTIFICATE,
        "certificates",
        "write certificates = \"DIR\": a directory that holds FILE.pem, or FILE.crt and FILE.key",
    ),
    (
        Table::Pool,
        &["server", "servers", "members", "upstream", "upstreams"],
        "backends",
        "write backends = [\"10.0.0.11:8000\"]",
    ),
];

const WORKERS: [&str; 3] = ["worker-processes", "threads", "nbthread"];
const POOL: [&str; 5] = ["proxy-pass", "upstream", "backend", "backends", "default-backend"];
const CERTIFICATE: [&str; 6] =
    ["ssl-certificate", "ssl-certificate-key", "certificate", "cert", "crt", "key"];

/// Foreign names of policies (with `-` for `_`), and their equivalents.
const POLICIES: [(&[&str], &str); 5] = [
    (&["least-conn", "leastconn"], "write \"least-connections\""),
    (&["roundrobin", "rr", "wrr"], "write \"round-robin\""),
    (&["ip-hash", "source"], "write \"hash\": it hashes the address of the client"),
    (&["least-time", "leasttime", "ewma"], "write \"peak-ewma\": the faster one of two random backends"),
    (&["random", "p2c"], "write \"two-choices\": the better of two random backends"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_of_ours_is_told_as_that_of_another_program() {
        for word in logic::balance::Policy::WORDS {
            assert_eq!(policy(word), None, "{word} is a policy: take it out of POLICIES");
        }
    }
}
