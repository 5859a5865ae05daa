//! Writes a configuration: a listener for each frontend (two where some of its addresses have TLS), a pool for each backend.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::emitter::{DAY, Emitter, YEAR};
use super::model::{At, Bind, File, Mode, Proxy, Timeout};
use super::order::{Earlier, Order};
use super::pool;
use super::route;
use super::server::Role;
use crate::document::{Document, Section, list, quoted};
use crate::fits;
use crate::keys::{NewKey, State};
use crate::{Effect, Fault, Faults, Translation};

/// Directory for certificates that have to be moved.
const CERTIFICATES: &str = "/etc/penstock/certs";

/// Most text of the routes of one listener: a configuration has at most 4 MiB.
const LONGEST: usize = 2 * 1024 * 1024;

pub(super) fn emit(name: &str, file: File, keys: fn(NewKey) -> State) -> Result<Translation, Faults> {
    let File { proxies, max_connections, user, group, notes } = file;
    let pools = pools(&proxies);
    let mut document = Document::default();
    document.title(format!("Translated from: {name}"));
    for note in &notes {
        document.title(format!("{}: {}", note.place, note.text));
    }
    let (listeners, bound) = (BTreeSet::new(), BTreeMap::new());
    let mut emitter = Emitter { notes, told: BTreeSet::new(), keys, pools, listeners, bound };
    let section = document.section("process");
    if let Some(most) = &max_connections {
        section.put("max-connections", most.value.max(1).to_string(), &[]);
    }
    for (key, value) in [("user", user), ("group", group)] {
        let Some(value) = value else { continue };
        match fits::account(&value.value) {
            Ok(()) => section.put(key, quoted(&value.value), &[]),
            Err(why) => {
                let comment = emitter.note(Effect::Missing, &value.place, &why);
                section.comment(comment);
            }
        }
    }
    for proxy in proxies.iter().filter(|proxy| proxy.kind.takes_clients()) {
        emitter.frontend(&mut document, proxy);
    }
    if emitter.listeners.is_empty() {
        // Why each of them could not be served, before what that means.
        let missing = emitter.notes.into_iter().filter(|note| note.effect == Effect::Missing);
        let fault = |place, message| Fault { place, message, hint: None };
        let mut faults: Vec<Fault> = missing.map(|note| fault(note.place, note.text)).collect();
        let message = "there is no frontend with a `bind` that could be served".to_owned();
        faults.push(fault(name.to_owned(), message));
        return Err(Faults(faults));
    }
    for proxy in proxies.iter().filter(|proxy| !proxy.servers.is_empty()) {
        let name = emitter.pools.get(&proxy.name).cloned().unwrap_or_default();
        pool::pool(&mut emitter, &mut document, proxy, &name);
    }
    document.tell(&emitter.notes);
    Ok(Translation { toml: document.render(), notes: emitter.notes })
}

/// A name for each backend that our configuration accepts.
fn pools(proxies: &[Proxy]) -> BTreeMap<String, String> {
    let mut pools: BTreeMap<String, String> = BTreeMap::new();
    let mut taken: BTreeSet<String> = BTreeSet::new();
    // Number of the last name that was made of the same one.
    let mut numbers: BTreeMap<String, u32> = BTreeMap::new();
    for proxy in proxies.iter().filter(|proxy| !proxy.servers.is_empty()) {
        let clean = clean(&proxy.name);
        let number = numbers.entry(clean.clone()).or_insert(1);
        let mut name = clean.clone();
        // The backup servers have a pool of their own.
        let has_backup = proxy.servers.iter().any(|server| server.value.role == Role::Backup);
        while taken.contains(&name) || has_backup && taken.contains(&pool::of_backup(&name)) {
            *number += 1;
            name = format!("{clean}-{number}");
        }
        if has_backup {
            taken.insert(pool::of_backup(&name));
        }
        taken.insert(name.clone());
        pools.insert(proxy.name.clone(), name);
    }
    pools
}

fn clean(name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let name: String = name.chars().map(|c| if fits(c) { c } else { '_' }).take(50).collect();
    if name.is_empty() { "main".to_owned() } else { name }
}

impl Emitter {
    fn frontend(&mut self, document: &mut Document, proxy: &Proxy) {
        let bound = |bind: &At<Bind>| At { value: bind.value.address.clone(), place: bind.place.clone() };
        let binds: Vec<_> = proxy.binds.iter().filter(|bind| self.bind(&bound(bind))).collect();
        let (tls, plain): (Vec<_>, Vec<_>) =
            binds.into_iter().partition(|bind| bind.value.certificates.is_some());
        let name = clean(&proxy.name);
        if plain.is_empty() && tls.is_empty() {
            self.note(Effect::Missing, &proxy.place, "it has no `bind`");
        }
        let pool = self.pool_of(proxy);
        let is_empty =
            proxy.servers.is_empty() && proxy.rules.is_empty() && proxy.settings.default_backend.is_none();
        if proxy.statistics && is_empty && proxy.redirect.is_none() {
            let text =
                "nothing but a page of statistics is there: `[admin]` has one, at an address of its own";
            self.note(Effect::Dropped, &proxy.place, text);
            return;
        }
        if pool.is_none() && proxy.mode() == Mode::Tcp {
            self.note(Effect::Missing, &proxy.place, "it has no backend with servers, and is left out");
            return;
        }
        if let Some(redirect) = proxy.redirect.as_ref().filter(|_| proxy.mode() == Mode::Tcp) {
            let text = "`redirect` needs `mode http`: with `mode tcp` HAProxy ignores it as well";
            self.note(Effect::Dropped, &redirect.place, text);
        }
        if !plain.is_empty() {
            self.listener(document, proxy, &name, &plain, Encryption::None, pool.as_deref());
        }
        if !tls.is_empty() {
            let name = if plain.is_empty() { name } else { format!("{name}-tls") };
            self.listener(document, proxy, &name, &tls, Encryption::Tls, pool.as_deref());
        }
    }

    fn listener(
        &mut self,
        document: &mut Document,
        proxy: &Proxy,
        name: &str,
        binds: &[&At<Bind>],
        encryption: Encryption,
        pool: Option<&str>,
    ) {
        let redirect =
            proxy.redirect.as_ref().filter(|_| encryption == Encryption::None && proxy.mode() == Mode::Http);
        let is_own = binds.iter().any(|bind| bind.value.address.ends_with(":443"));
        if let Some(redirect) = redirect.filter(|_| is_own) {
            let text = "port 443 of this frontend has no TLS itself: clients would be redirected for ever";
            self.note(Effect::Missing, &redirect.place, text);
        }
        let redirect = redirect.filter(|_| !is_own);
        if pool.is_none() && redirect.is_none() && !self.has_route(proxy) {
            let text = "no backend with servers takes its requests, and it is left out";
            self.note(Effect::Missing, &proxy.place, text);
            return;
        }
        let name = &self.listener_name(name);
        let section = document.section(format!("listener.{name}"));
        section.comment(proxy.place.clone());
        let addresses: Vec<_> = binds.iter().map(|bind| quoted(&bind.value.address)).collect();
        section.put("bind", list(&addresses), &[]);
        let protocol = if proxy.mode() == Mode::Http { "http" } else { "tcp" };
        section.put("protocol", quoted(protocol), &[]);
        if encryption == Encryption::Tls {
            self.certificates(section, binds);
        }
        if let Some(redirect) = redirect {
            section.put("redirect-to-https", "true", std::slice::from_ref(&redirect.place));
        }
        if let Some(pool) = pool {
            section.put("pool", quoted(pool), &[]);
        }
        if let Some(most) = &proxy.settings.max_connections {
            let text = "one client more is turned away; with HAProxy it waits";
            let comment = self.note(Effect::Changed, &most.place, text);
            section.put("max-connections", most.value.max(1).to_string(), &[comment]);
        }
        self.times(section, proxy);
        if proxy.mode() == Mode::Http && proxy.settings.forward_for.is_none() {
            let text = "backends get X-Forwarded-* and Forwarded also without `option forwardfor`; forwarded-headers = \"off\" \
                        ends that";
            let comment = self.note(Effect::Changed, &proxy.place, text);
            section.comment(comment);
        }
        if redirect.is_none() {
            self.routes(document, proxy, name);
        }
    }

    /// Whether a `use_backend` of the proxy becomes a route.
    fn has_route(&self, proxy: &Proxy) -> bool {
        proxy.mode() == Mode::Http
            && proxy.rules.iter().any(|rule| {
                self.pools.contains_key(&rule.value.backend)
                    && route::routes(&rule.value.condition, &proxy.acls).is_ok()
            })
    }

    /// The pool for what no route takes.
    fn pool_of(&mut self, proxy: &Proxy) -> Option<String> {
        let named = proxy.settings.default_backend.as_ref();
        let backend = match named {
            Some(named) => &named.value,
            None if proxy.servers.is_empty() => return None,
            None => &proxy.name,
        };
        let pool = self.pools.get(backend).cloned();
        if let (None, Some(named)) = (&pool, named) {
            self.note(Effect::Missing, &named.place, &format!("there is no backend {backend} with servers"));
        }
        pool
    }

    fn certificates(&mut self, section: &mut Section, binds: &[&At<Bind>]) {
        let place = binds.first().map(|bind| bind.place.clone()).unwrap_or_default();
        let mut files: Vec<&String> =
            binds.iter().flat_map(|bind| bind.value.certificates.iter().flatten()).collect();
        files.dedup();
        let path = |file: &String| Path::new(file).to_owned();
        let one = match files[..] {
            [file] => Some((path(file), file)),
            _ => None,
        };
        match one {
            Some((path, file)) if path.is_absolute() && path.extension().is_none() => {
                let directory = file.trim_end_matches('/');
                section.put(
                    "tls.certificates",
                    quoted(if directory.is_empty() { "/" } else { directory }),
                    &[],
                );
            }
            Some((path, _)) if path.is_absolute() && path.extension().is_some_and(|end| end == "pem") => {
                let directory = path.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
                section.put("tls.certificates", quoted(&directory), &[]);
                let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                section.put("tls.default", quoted(&stem), &[]);
            }
            _ => {
                let names: Vec<_> = files.iter().map(|file| file.as_str()).collect();
                let text = format!(
                    "certificates are in one directory: copy {} to {CERTIFICATES}/NAME.pem, for users that may read keys only",
                    names.join(", ")
                );
                let comment = self.note(Effect::Missing, &place, &text);
                section.put("tls.certificates", quoted(CERTIFICATES), &[comment]);
            }
        }
    }

    fn times(&mut self, section: &mut Section, proxy: &Proxy) {
        let of = |timeout| proxy.timeout(timeout);
        match proxy.mode() {
            Mode::Http => {
                let idle = of(Timeout::HttpKeepAlive).or(of(Timeout::Client));
                let head = of(Timeout::HttpRequest).or(of(Timeout::Client));
                let body = of(Timeout::Client);
                let words = [("head", head), ("idle", idle), ("body", body), ("write", body)];
                let words = words
                    .iter()
                    .filter_map(|(key, time)| Some(format!("{key} = {}", self.time((*time)?, DAY))));
                let words: Vec<_> = words.collect();
                if !words.is_empty() {
                    section.put("timeouts", format!("{{ {} }}", words.join(", ")), &[]);
                }
            }
            Mode::Tcp => {
                let times = [Timeout::Tunnel, Timeout::Client, Timeout::Server].into_iter().filter_map(of);
                let longest = times.max_by_key(|time| match time.value {
                    0 => u64::MAX,
                    value => value,
                });
                if let Some(time) = longest {
                    let text = "the longest of `timeout client`, `server` and `tunnel`: a session is idle if both sides are".to_owned();
                    section.put("idle-timeout", self.time(time, YEAR), &[text]);
                }
            }
        }
    }

    fn routes(&mut self, document: &mut Document, proxy: &Proxy, name: &str) {
        let mut order = Order::default();
        let mut written = 0;
        let mut length = 0;
        for rule in &proxy.rules {
            if length > LONGEST {
                self.note(
                    Effect::Missing,
                    &rule.place,
                    "these routes and those after them are too many for one file",
                );
                break;
            }
            let line = format!("use_backend {} if {}", rule.value.backend, rule.value.condition.join(" "));
            let routes = match (proxy.mode(), self.pools.get(&rule.value.backend).cloned()) {
                (Mode::Tcp, _) => {
                    Err("tcp has no host and no path; `tls-passthrough` has the name of the server"
                        .to_owned())
                }
                (Mode::Http, None) => Err(format!("there is no backend {} with servers", rule.value.backend)),
                (Mode::Http, Some(pool)) => {
                    route::routes(&rule.value.condition, &proxy.acls).map(|routes| (routes, pool))
                }
            };
            match routes {
                Ok((routes, pool)) => {
                    for route in routes {
                        let paths = if route.paths.is_empty() { vec!["/".to_owned()] } else { route.paths };
                        for path in paths {
                            let mut comments = vec![rule.place.clone()];
                            if path != "/" && !path.ends_with('/') {
                                let text = format!(
                                    "{path:?} is a whole segment here: {path} and {path}/x, and not {path}x"
                                );
                                comments.push(self.note(Effect::Changed, &rule.place, &text));
                            }
                            match order.add(&route.hosts, &path, &pool, &rule.place) {
                                Earlier::None => {}
                                Earlier::TakesFirst(first) => {
                                    let text = format!(
                                        "`{line}`: what {first} matches too goes there in HAProxy, which takes the first match, and here to this one, which is more specific: add conditions until only one of both matches"
                                    );
                                    comments.push(self.note(Effect::Missing, &rule.place, &text));
                                }
                                Earlier::Unknown => {
                                    let text = "too many routes: whether an earlier one matches the same requests was not looked at";
                                    comments.push(self.note(Effect::Changed, &rule.place, text));
                                }
                            }
                            let section = document.section(format!("[listener.{name}.route]"));
                            comments.into_iter().for_each(|text| section.comment(text));
                            match &route.hosts[..] {
                                [] => {}
                                [host] => section.put("host", quoted(host), &[]),
                                hosts => {
                                    let hosts: Vec<_> = hosts.iter().map(|host| quoted(host)).collect();
                                    section.put("host", list(&hosts), &[]);
                                }
                            }
                            section.put("path", quoted(&path), &[]);
                            section.put("pool", quoted(&pool), &[]);
                            written += 1;
                            length += 100 + path.len() + route.hosts.iter().map(String::len).sum::<usize>();
                            if length > LONGEST {
                                break;
                            }
                        }
                    }
                }
                Err(why) => {
                    self.note(Effect::Missing, &rule.place, &format!("`{line}` is not translated: {why}"));
                }
            }
        }
        if written > 1 {
            let text = "of several routes that match, the most specific one is used, and not the first";
            self.note(Effect::Changed, &proxy.place, text);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encryption {
    None,
    Tls,
}
