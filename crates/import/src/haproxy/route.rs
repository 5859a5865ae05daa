//! `acl` and `use_backend ... if`: conditions on host and path only.

use std::collections::BTreeMap;

use crate::fits;

/// What a named condition asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// Hosts as routes write them.
    Host(Vec<String>),
    /// Starts of paths.
    Path(Vec<String>),
    /// Whether the client uses TLS.
    Tls,
    /// It has no translation: the reason.
    Other(String),
}

/// The tests of each name: of several, one is enough.
pub(super) type Acls = BTreeMap<String, Vec<Test>>;

/// `use_backend`.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) backend: String,
    /// Words after `if`.
    pub(super) condition: Vec<String>,
}

/// One route: all hosts with all paths lead to the backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) hosts: Vec<String>,
    pub(super) paths: Vec<String>,
}

/// The test of an `acl` line, without its name.
pub(super) fn test(words: &[String]) -> Test {
    let Some((criterion, rest)) = words.split_first() else {
        return Test::Other("it has no criterion".to_owned());
    };
    let mut values = Vec::new();
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            // Hosts are compared without case in any case.
            "-i" => {}
            "-m" => match words.next().map(String::as_str) {
                Some("str" | "beg") => {}
                _ => return Test::Other(format!("{criterion} with -m is not a host or the start of a path")),
            },
            "-f" => return Test::Other("its values are in another file".to_owned()),
            value => values.push(value.to_owned()),
        }
    }
    let name = criterion.strip_prefix("req.").unwrap_or(criterion).to_ascii_lowercase();
    let is_case_blind = rest.iter().any(|word| word == "-i");
    match name.as_str() {
        "hdr(host)" | "hdr(host),lower" => hosts(values.iter().map(|host| without_port(host)).collect()),
        "hdr_end(host)" if values.iter().all(|value| value.starts_with('.')) => {
            hosts(values.iter().map(|end| format!("*{}", without_port(end))).collect())
        }
        "path_beg" if is_case_blind => Test::Other("paths are compared with case here".to_owned()),
        "path_beg" if values.is_empty() => Test::Other("it has no path".to_owned()),
        "path_beg" => values
            .iter()
            .find_map(|path| fits::route_path(path).err())
            .map_or(Test::Path(values), Test::Other),
        "ssl_fc" => Test::Tls,
        "path" => Test::Other("a route has the start of a path, not a whole one".to_owned()),
        _ => Test::Other(format!("{criterion} is neither a host nor the start of a path")),
    }
}

fn hosts(hosts: Vec<String>) -> Test {
    if hosts.is_empty() {
        return Test::Other("it has no host".to_owned());
    }
    hosts.iter().find_map(|host| fits::route_host(host).err()).map_or(Test::Host(hosts), Test::Other)
}

fn without_port(host: &str) -> String {
    let (name, port) = host.rsplit_once(':').unwrap_or((host, ""));
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    if is_port { name.to_owned() } else { host.to_owned() }
}

/// The routes of a condition: several where it has `or`.
pub(super) fn routes(condition: &[String], acls: &Acls) -> Result<Vec<Route>, String> {
    let mut routes = Vec::new();
    for part in condition.split(|word| word == "||" || word == "or") {
        routes.push(one(part, acls)?);
    }
    Ok(routes)
}

fn one(words: &[String], acls: &Acls) -> Result<Route, String> {
    let (mut hosts, mut paths) = (None, None);
    let mut rest = words;
    while let Some((word, after)) = rest.split_first() {
        rest = after;
        if word.starts_with('!') {
            return Err(format!("{word}: a route has no \"not\""));
        }
        let tests: Vec<Test> = if word == "{" {
            let end = rest.iter().position(|word| word == "}").ok_or("the } is missing")?;
            let inside = test(&rest[..end]);
            rest = &rest[end + 1..];
            vec![inside]
        } else {
            acls.get(word).cloned().unwrap_or_default()
        };
        if tests.is_empty() {
            return Err(format!("no acl is called {word}"));
        }
        let (mut of_hosts, mut of_paths) = (Vec::new(), Vec::new());
        for test in tests {
            match test {
                Test::Host(values) => of_hosts.extend(values),
                Test::Path(values) => of_paths.extend(values),
                Test::Tls => return Err("whether the client uses TLS is no condition of a route".to_owned()),
                Test::Other(why) => return Err(format!("{word}: {why}")),
            }
        }
        match (of_hosts.is_empty(), of_paths.is_empty()) {
            (false, true) if hosts.is_none() => hosts = Some(of_hosts),
            (true, false) if paths.is_none() => paths = Some(of_paths),
            _ => return Err("a route has one condition on the host and one on the path".to_owned()),
        }
    }
    match (hosts, paths) {
        (None, None) => Err("it has no condition".to_owned()),
        (hosts, paths) => Ok(Route { hosts: hosts.unwrap_or_default(), paths: paths.unwrap_or_default() }),
    }
}

/// Whether a condition is only that the client uses no TLS.
pub(super) fn is_plain_only(condition: &[String], acls: &Acls) -> bool {
    let words: Vec<&str> = condition.iter().map(String::as_str).collect();
    match words[..] {
        [] => true,
        ["if", "!{", "ssl_fc", "}"] | ["if", "!", "{", "ssl_fc", "}"] | ["unless", "{", "ssl_fc", "}"] => {
            true
        }
        ["if", name] => named(name.strip_prefix('!'), acls),
        ["unless", name] => named(Some(name), acls),
        _ => false,
    }
}

fn named(name: Option<&str>, acls: &Acls) -> bool {
    let of_name = |name: &str| acls.get(name).is_some_and(|tests| tests[..] == [Test::Tls]);
    name.is_some_and(of_name)
}
