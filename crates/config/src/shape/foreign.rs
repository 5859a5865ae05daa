//! Words of other programs, and the keys that mean the same here.

use crate::tree::{NodeId, Nodes, Step, is_bare};

/// What was meant by a word of another program.
pub(super) struct Meant {
    /// The key of the same table that it stands for, if there is one.
    pub(super) key: Option<&'static str>,
    /// How to write it.
    pub(super) hint: String,
}

/// What an unknown key means that another program has.
pub(super) fn key(nodes: &Nodes, id: NodeId, written: &str) -> Option<Meant> {
    let (place, name) = place(nodes, id)?;
    let written = plain(written);
    let (.., key, hint) =
        KEYS.iter().find(|(at, words, ..)| *at == place && words.contains(&written.as_str()))?;
    let key = (!key.is_empty()).then_some(*key);
    let name = name.filter(|name| is_bare(name)).unwrap_or("NAME");
    Some(Meant { key, hint: hint.replace("NAME", name) })
}

/// What another program's word for a policy means, as a hint.
pub(super) fn policy(written: &str) -> Option<&'static str> {
    let written = plain(written);
    POLICIES.iter().find(|(words, _)| words.contains(&written.as_str())).map(|(_, hint)| *hint)
}

/// The table that a key stands in, and the name of the listener or pool around it.
fn place(nodes: &Nodes, id: NodeId) -> Option<(Place, Option<&str>)> {
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
        [] => (Place::Root, None),
        ["process"] => (Place::Process, None),
        ["listener", name] => (Place::Listener, Some(name)),
        ["listener", name, "route"] => (Place::Route, Some(name)),
        ["listener", name, "tls"] => (Place::Tls, Some(name)),
        ["pool", name] => (Place::Pool, Some(name)),
        _ => return None,
    })
}

fn plain(written: &str) -> String {
    written.to_ascii_lowercase().replace('_', "-")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Root,
    Process,
    Listener,
    Route,
    Tls,
    Pool,
}

/// Where it is written, the words with `-` for `_`, the key of that table that is meant, and the hint, in which NAME
/// stands for the name of the listener or pool.
const KEYS: [(Place, &[&str], &str, &str); 16] = [
    (
        Place::Root,
        &["upstream", "upstreams", "backend", "backends"],
        "pool",
        "backends stand in [pool.NAME]: backends = [\"10.0.0.11:8000\"]",
    ),
    (
        Place::Root,
        &["server", "servers", "http", "stream"],
        "listener",
        "write [listener.NAME] for where clients arrive, and [pool.NAME] for the servers behind it",
    ),
    (
        Place::Root,
        &["frontend", "frontends", "listen"],
        "listener",
        "write [listener.NAME], with bind = \":80\"",
    ),
    (Place::Root, &WORKERS, "", "write [process], and in it workers = 4"),
    (Place::Process, &WORKERS, "workers", "write workers = 4"),
    (Place::Listener, &["listen", "port", "address"], "bind", "write bind = \":80\""),
    (
        Place::Listener,
        &["server-name", "hosts"],
        "",
        "hosts stand in routes: [[listener.NAME.route]] with host = \"www.example.com\"",
    ),
    (
        Place::Listener,
        &["location", "locations"],
        "route",
        "paths stand in routes: [[listener.NAME.route]] with path = \"/api\"",
    ),
    (Place::Listener, &POOL, "pool", "write pool = \"app\", and list the backends in [pool.app]"),
    (
        Place::Listener,
        &CERTIFICATE,
        "tls",
        "write tls = { certificates = \"DIR\" }: a directory that holds FILE.pem, or FILE.crt and FILE.key",
    ),
    (
        Place::Listener,
        &["access-log"],
        "",
        "it is a section of its own: [access-log] with target = \"stdout\"",
    ),
    (Place::Route, &["server-name", "hosts"], "host", "write host = \"www.example.com\""),
    (Place::Route, &["location", "locations"], "path", "write path = \"/api\""),
    (Place::Route, &POOL, "pool", "write pool = \"app\", and list the backends in [pool.app]"),
    (
        Place::Tls,
        &CERTIFICATE,
        "certificates",
        "write certificates = \"DIR\": a directory that holds FILE.pem, or FILE.crt and FILE.key",
    ),
    (
        Place::Pool,
        &["server", "servers", "members", "upstream", "upstreams"],
        "backends",
        "write backends = [\"10.0.0.11:8000\"]",
    ),
];

const WORKERS: [&str; 3] = ["worker-processes", "threads", "nbthread"];
const POOL: [&str; 5] = ["proxy-pass", "upstream", "backend", "backends", "default-backend"];
const CERTIFICATE: [&str; 6] =
    ["ssl-certificate", "ssl-certificate-key", "certificate", "cert", "crt", "key"];

/// Words for policies, with `-` for `_`, and what they are here.
const POLICIES: [(&[&str], &str); 4] = [
    (&["least-conn", "leastconn"], "write \"least-connections\""),
    (&["roundrobin", "rr", "wrr"], "write \"round-robin\""),
    (&["ip-hash", "source"], "write \"hash\": it hashes the address of the client"),
    (&["random", "p2c"], "write \"two-choices\": the better of two random backends"),
];
