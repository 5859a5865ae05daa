//! A pool for each backend.

use std::collections::BTreeMap;

use super::emitter::{DAY, Emitter, YEAR, milliseconds};
use super::model::{At, Mode, Proxy, Timeout};
use super::server::{Check, Role, Server, Verify};
use crate::Effect;
use crate::document::{Document, Section, list, quoted};
use crate::fits;
use crate::keys::{NewKey, State};

/// The largest `weight` of a backend is 256 in HAProxy.
const HEAVIEST: u64 = 1000;

/// Name of the pool of a pool's backup servers.
pub(super) fn of_backup(name: &str) -> String {
    format!("{name}-backup")
}

pub(super) fn pool(emitter: &mut Emitter, document: &mut Document, proxy: &Proxy, name: &str) {
    let (usual, backup): (Vec<_>, Vec<_>) =
        proxy.servers.iter().partition(|server| server.value.role == Role::Usual);
    let backup_name = of_backup(name);
    let (first, second) = if usual.is_empty() { (&backup, None) } else { (&usual, Some(&backup)) };
    let section = document.section(format!("pool.{name}"));
    section.comment(proxy.place.clone());
    settings(emitter, section, proxy, first);
    let Some(backup) = second.filter(|backup| !backup.is_empty()) else { return };
    if emitter.key(NewKey::Fallback, &backup[0].place) == State::Here {
        section.put("fallback", quoted(&backup_name), &[backup[0].place.clone()]);
        settings(emitter, document.section(format!("pool.{backup_name}")), proxy, backup);
    }
}

fn settings(emitter: &mut Emitter, section: &mut Section, proxy: &Proxy, servers: &[&At<Server>]) {
    let mut once = once(emitter, servers);
    let mut comments = Vec::new();
    if once.iter().all(|server| server.weight == 0) {
        let text = "every server has the weight 0, so HAProxy uses none: here all have the same";
        comments.push(emitter.note(Effect::Missing, &servers[0].place, text));
        once.iter_mut().for_each(|server| server.weight = 1);
    }
    let entries: Vec<_> = once.iter().map(entry).collect();
    section.put("backends", list(&entries), &comments);
    balance(emitter, section, proxy);
    health(emitter, section, proxy, servers);
    if let Some(retries) = &proxy.settings.retries {
        section.put("retries", retries.value.min(100).to_string(), &[]);
    }
    tls(emitter, section, servers);
    let proxies: Vec<_> = servers.iter().filter_map(|server| server.value.send_proxy).collect();
    if let Some(version) = proxies.first() {
        let mut comments = Vec::new();
        if proxies.len() < servers.len() {
            let text = "here all backends of the pool get a PROXY header, or none";
            comments.push(emitter.note(Effect::Missing, &servers[0].place, text));
        }
        section.put("send-proxy", quoted(version), &comments);
    }
    let mut times = Vec::new();
    let http = proxy.mode() == Mode::Http;
    for (timeout, keys) in [
        (Timeout::Connect, &["connect"][..]),
        (Timeout::Queue, &["queue"]),
        (Timeout::Server, if http { &["response", "body"] } else { &[] }),
        (Timeout::Tunnel, &["tunnel"]),
    ] {
        if let Some(time) = proxy.timeout(timeout) {
            let most = if timeout == Timeout::Tunnel { YEAR } else { DAY };
            times.extend(keys.iter().map(|key| format!("{key} = {}", emitter.time(time, most))));
        }
    }
    if !times.is_empty() {
        section.put("timeouts", format!("{{ {} }}", times.join(", ")), &[]);
    }
}

/// The servers, each address once: of one that several have, the server has the weights and the limits of all.
fn once(emitter: &mut Emitter, servers: &[&At<Server>]) -> Vec<Server> {
    let mut once: Vec<Server> = Vec::new();
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for At { value: server, place } in servers {
        let address = fits::canonical(&server.address);
        let Some(first) = known.get(&address).and_then(|at| once.get_mut(*at)) else {
            known.insert(address, once.len());
            once.push(server.clone());
            continue;
        };
        first.weight += server.weight;
        first.max_connections =
            first.max_connections.zip(server.max_connections).map(|(one, other)| one.saturating_add(other));
        let text = format!(
            "{} is the address of two servers: here it is one backend with the weight and the limit of both",
            server.address
        );
        emitter.note(Effect::Changed, place, &text);
    }
    once
}

fn entry(server: &Server) -> String {
    let mut words = Vec::new();
    if server.weight != 1 {
        words.push(format!("weight = {}", server.weight.min(HEAVIEST)));
    }
    if let Some(most) = server.max_connections {
        words.push(format!("max-connections = {}", most.min(100_000_000)));
    }
    if words.is_empty() {
        return quoted(&server.address);
    }
    format!("{{ address = {}, {} }}", quoted(&server.address), words.join(", "))
}

fn balance(emitter: &mut Emitter, section: &mut Section, proxy: &Proxy) {
    let Some(At { value, place }) = &proxy.settings.balance else { return };
    let words: Vec<&str> = value.iter().map(String::as_str).collect();
    let header = words.first().and_then(|word| word.strip_prefix("hdr(")?.strip_suffix(')'));
    let header = header.filter(|name| fits::field(name).is_ok());
    let (word, key, changed) = match (&words[..], header) {
        ([] | ["roundrobin" | "static-rr"], _) => ("round-robin", None, None),
        (["leastconn"], _) => ("least-connections", None, None),
        (["source"], _) => {
            ("hash", Some("client".to_owned()), Some("another hash: a client may get another backend"))
        }
        (["uri", ..], _) => {
            ("hash", Some("path".to_owned()), Some("another hash: a path may get another backend"))
        }
        (["random" | "random(2)", ..], _) => ("two-choices", None, None),
        ([_], Some(name)) => ("hash", Some(format!("header:{name}")), None),
        (words, _) => {
            let text = format!("`balance {}` is not translated: it has no equivalent", words.join(" "));
            let comment = emitter.note(Effect::Missing, place, &text);
            section.comment(comment);
            return;
        }
    };
    let comments: Vec<_> =
        changed.map(|text| emitter.note(Effect::Changed, place, text)).into_iter().collect();
    section.put("balance", quoted(word), &comments);
    if let Some(key) = key {
        section.put("hash-key", quoted(&key), &[]);
    }
}

fn health(emitter: &mut Emitter, section: &mut Section, proxy: &Proxy, servers: &[&At<Server>]) {
    let checked: Vec<_> = servers.iter().filter(|server| server.value.check == Check::On).collect();
    let Some(first) = checked.first() else {
        if let Some(check) = &proxy.settings.http_check {
            emitter.note(Effect::Dropped, &check.place, "no server has `check`, so HAProxy makes none");
        }
        return;
    };
    let mut comments = Vec::new();
    if checked.len() < servers.len() {
        let text = "all backends of a pool are checked, or none: here all are";
        comments.push(emitter.note(Effect::Changed, &first.place, text));
    }
    let server = &first.value;
    let mut words = vec![match &proxy.settings.http_check {
        Some(check) => format!("http = {}", quoted(&check.value.path)),
        None => "tcp = true".to_owned(),
    }];
    if let Some(expect) = proxy.settings.expect.as_ref().filter(|_| proxy.settings.http_check.is_some()) {
        words.push(format!("expect = {}", quoted(&expect.value)));
    }
    // The defaults of HAProxy: `inter` 2 s, `fall` 3, `rise` 2, as here.
    let interval = server.interval.unwrap_or(2000).clamp(1, DAY);
    words.push(format!("interval = {}", milliseconds(interval)));
    // 0 is no limit there.
    let limit = proxy.timeout(Timeout::Check).map(|time| time.value).filter(|time| *time > 0);
    let check = limit.unwrap_or(interval).min(interval);
    words.push(format!("timeout = {}", milliseconds(check)));
    words.extend(server.rise.map(|rise| format!("rise = {}", rise.clamp(1, 100))));
    words.extend(server.fall.map(|fall| format!("fall = {}", fall.clamp(1, 100))));
    section.put("health", format!("{{ {} }}", words.join(", ")), &comments);
}

fn tls(emitter: &mut Emitter, section: &mut Section, servers: &[&At<Server>]) {
    let with: Vec<_> = servers.iter().filter(|server| server.value.tls.is_some()).collect();
    let Some(first) = with.first() else { return };
    let mut comments = Vec::new();
    if with.len() < servers.len() {
        let text = "here all backends of the pool use TLS, or none";
        comments.push(emitter.note(Effect::Missing, &first.place, text));
    }
    let is_verified = !matches!(first.value.tls, Some(Verify::None));
    if is_verified && servers.iter().any(|server| server.value.address.starts_with("unix:")) {
        let text = "`ssl` is not translated: no certificate can be for a Unix socket, add tls = { server-name = \"NAME\" }";
        let comment = emitter.note(Effect::Missing, &first.place, text);
        section.comment(comment);
        return;
    }
    let value = match (first.value.tls, &first.value.ca) {
        (Some(Verify::None), _) => "{ verify = \"off\" }".to_owned(),
        (_, Some(ca)) if ca.starts_with('/') => format!("{{ ca = {} }}", quoted(ca)),
        (_, Some(ca)) => {
            let text =
                format!("ca-file {ca:?} is not an absolute path: here the authorities of the machine count");
            comments.push(emitter.note(Effect::Missing, &first.place, &text));
            quoted("on")
        }
        (_, None) => quoted("on"),
    };
    section.put("tls", value, &comments);
}
