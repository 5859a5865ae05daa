//! Reads the lines of a file into its sections.

use std::collections::BTreeMap;

use super::bind::binds;
use super::model::{At, File, HttpCheck, Kind, Mode, Proxy, Settings, Timeout};
use super::route::{self, Acls, Rule};
use super::server;
use super::words::{milliseconds, words};
use crate::fits;
use crate::{Effect, Fault, Faults, Note};

/// Lines that change nothing for clients, or that are always so here, with what is said of them.
const NEEDLESS: [(&str, &str); 27] = [
    ("log", "the access log has a line for each session: `[access-log]`"),
    ("log-format", "the format is `text` or `json`: `[access-log]`"),
    ("log-tag", "the format is `text` or `json`: `[access-log]`"),
    ("log-send-hostname", "the format is `text` or `json`: `[access-log]`"),
    ("daemon", "penstock stays in the foreground: systemd keeps it"),
    ("master-worker", "penstock stays in the foreground: systemd keeps it"),
    ("pidfile", "systemd knows the process"),
    ("chroot", "Landlock and seccomp leave the process only what it needs"),
    ("stats", "`penstock ctl status`, and `/metrics` and `/status` of `[admin]`"),
    ("nbthread", "`workers` of `[process]` is one for each core"),
    ("nbproc", "`workers` of `[process]` is one for each core"),
    ("cpu-map", "the kernel places workers"),
    ("ulimit-n", "the account of descriptors takes what the process may open"),
    ("ca-base", "paths are absolute"),
    ("crt-base", "paths are absolute"),
    ("ssl-default-bind-ciphers", "`tls.policy` has a safe default"),
    ("ssl-default-bind-ciphersuites", "`tls.policy` has a safe default"),
    ("ssl-default-bind-options", "`tls.policy` has a safe default"),
    ("ssl-default-server-ciphers", "TLS to backends has a safe default"),
    ("ssl-default-server-ciphersuites", "TLS to backends has a safe default"),
    ("ssl-default-server-options", "TLS to backends has a safe default"),
    ("ssl-server-verify", "certificates of backends are verified"),
    ("tune.ssl.default-dh-param", "key exchange is by elliptic curves"),
    ("description", "a comment"),
    ("fullconn", "limits of backends do not change with load"),
    ("hash-type", "a change of one backend moves few keys in any case"),
    ("http-reuse", "connections to backends are always reused where that is safe"),
];

/// The same for `option`.
const NEEDLESS_OPTIONS: [(&str, &str); 14] = [
    ("httplog", "the access log has a line for each session"),
    ("tcplog", "the access log has a line for each session"),
    ("dontlognull", "connections without a request are no sessions of HTTP"),
    ("dontlog-normal", "`[access-log]` has every session"),
    ("log-health-checks", "`penstock ctl events` has them"),
    ("log-separate-errors", "`[access-log]` has every session"),
    ("http-server-close", "connections to backends are kept where that is safe"),
    ("http-keep-alive", "always so"),
    ("redispatch", "a further attempt goes to another backend in any case"),
    ("abortonclose", "a request whose client has left is ended"),
    ("tcpka", "timeouts end connections whose peer is gone"),
    ("clitcpka", "timeouts end connections whose peer is gone"),
    ("srvtcpka", "timeouts end connections whose peer is gone"),
    ("splice-auto", "bulk data is spliced where that is faster"),
];

const SECTIONS: [&str; 17] = [
    "global",
    "defaults",
    "frontend",
    "backend",
    "listen",
    "resolvers",
    "peers",
    "userlist",
    "mailers",
    "cache",
    "program",
    "ring",
    "http-errors",
    "log-forward",
    "fcgi-app",
    "crt-store",
    "traces",
];

/// Where a line belongs.
enum Section {
    Nowhere,
    Global,
    /// Index of the proxy.
    Proxy(usize),
    /// A section that is left out as a whole.
    Other,
}

struct Reader {
    file: File,
    faults: Vec<Fault>,
    /// What the last `defaults` says.
    defaults: Settings,
    /// Places of the sections that take clients and of those that have servers, by name. `listen` is both.
    names: [BTreeMap<String, String>; 2],
    /// Places of the servers of the last section, by name.
    servers: BTreeMap<String, String>,
}

pub(super) fn read(name: &str, text: &str) -> Result<File, Faults> {
    let mut reader = Reader {
        file: File::default(),
        faults: Vec::new(),
        defaults: Settings::default(),
        names: Default::default(),
        servers: BTreeMap::new(),
    };
    let mut section = Section::Nowhere;
    for (at, line) in text.lines().enumerate() {
        let place = format!("{name}:{}", at + 1);
        match words(line) {
            Ok(words) if words.is_empty() => {}
            Ok(words) if SECTIONS.contains(&&*words[0]) => section = reader.begin(&words, place),
            Ok(words) => reader.line(&section, &words, &place),
            Err(why) => reader.fault(&place, why),
        }
    }
    if reader.faults.is_empty() { Ok(reader.file) } else { Err(Faults(reader.faults)) }
}

impl Reader {
    fn fault(&mut self, place: &str, message: &str) {
        self.faults.push(Fault { place: place.to_owned(), message: message.to_owned(), hint: None });
    }

    fn note(&mut self, effect: Effect, place: &str, text: &str) {
        self.file.notes.push(Note { effect, place: place.to_owned(), text: text.to_owned() });
    }

    fn missing(&mut self, place: &str, words: &[String], why: &str) {
        let line = words.join(" ");
        self.note(Effect::Missing, place, &format!("`{line}` is not translated: {why}"));
    }

    fn begin(&mut self, words: &[String], place: String) -> Section {
        let kind = match &*words[0] {
            "global" => return Section::Global,
            "defaults" => Kind::Defaults,
            "frontend" => Kind::Frontend,
            "backend" => Kind::Backend,
            "listen" => Kind::Listen,
            "resolvers" => {
                self.note(
                    Effect::Dropped,
                    &place,
                    "names are looked up with the servers of /etc/resolv.conf",
                );
                return Section::Other;
            }
            other => {
                self.missing(&place, words, &format!("there is no section like {other} here"));
                return Section::Other;
            }
        };
        let name = words.get(1).cloned().unwrap_or_default();
        self.servers.clear();
        if kind == Kind::Defaults {
            self.defaults = Settings::default();
            if words.len() > 2 {
                self.missing(
                    &place,
                    words,
                    "the settings before are those of the next sections, whatever `from` says",
                );
            }
        } else if name.is_empty() {
            self.fault(&place, &format!("`{}` needs a name", words[0]));
        } else {
            self.names_of(kind, &name, &place);
        }
        self.file.proxies.push(Proxy {
            kind,
            name,
            place,
            settings: self.defaults.clone(),
            binds: Vec::new(),
            servers: Vec::new(),
            acls: Acls::new(),
            rules: Vec::new(),
            redirect: None,
            statistics: false,
        });
        Section::Proxy(self.file.proxies.len() - 1)
    }

    /// Reports a second section of one name: which of them a `use_backend` means is not clear, and HAProxy refuses it.
    fn names_of(&mut self, kind: Kind, name: &str, place: &str) {
        let sides = [kind.takes_clients(), matches!(kind, Kind::Backend | Kind::Listen)];
        let mut first = None;
        for (names, _) in self.names.iter_mut().zip(sides).filter(|(_, is_there)| *is_there) {
            match names.get(name) {
                Some(place) => first = Some(place.clone()),
                None => drop(names.insert(name.to_owned(), place.to_owned())),
            }
        }
        if let Some(first) = first {
            self.fault(place, &format!("a section like this is called {name:?} already: {first}"));
        }
    }

    fn line(&mut self, section: &Section, words: &[String], place: &str) {
        match *section {
            Section::Nowhere => self.fault(place, "a section such as `frontend NAME` must come first"),
            Section::Other => {}
            Section::Global => self.global(words, place),
            Section::Proxy(index) => {
                let mut proxy = self.file.proxies.remove(index);
                self.proxy(&mut proxy, words, place);
                if proxy.kind == Kind::Defaults {
                    self.defaults = proxy.settings.clone();
                }
                self.file.proxies.insert(index, proxy);
            }
        }
    }

    fn global(&mut self, words: &[String], place: &str) {
        let text = |at: usize| words.get(at).map(|word| At { value: word.clone(), place: place.to_owned() });
        match &*words[0] {
            "maxconn" => self.file.max_connections = self.number(words, place),
            "user" => self.file.user = text(1),
            "group" => self.file.group = text(1),
            "setenv" | "presetenv" | "unsetenv" => {
                self.missing(place, words, "`${NAME:-text}` in a value has a default for a variable");
            }
            _ => self.other(words, place),
        }
    }

    fn number(&mut self, words: &[String], place: &str) -> Option<At<u64>> {
        let number =
            words.get(1).and_then(|word| word.parse::<u64>().ok()).filter(|number| *number <= 100_000_000);
        if number.is_none() {
            self.fault(place, &format!("`{}` needs a number", words[0]));
        }
        number.map(|value| At { value, place: place.to_owned() })
    }

    fn other(&mut self, words: &[String], place: &str) {
        match NEEDLESS.iter().find(|(name, _)| *name == words[0]) {
            Some((_, why)) => self.note(Effect::Dropped, place, &format!("`{}`: {why}", words[0])),
            None if words[0].starts_with("tune.") => {
                self.note(Effect::Dropped, place, &format!("`{}`: a setting of HAProxy's inside", words[0]));
            }
            None => self.missing(place, words, "it is not among the common settings that are understood"),
        }
    }

    fn proxy(&mut self, proxy: &mut Proxy, words: &[String], place: &str) {
        let said = |at: usize| words.get(at).map(|word| At { value: word.clone(), place: place.to_owned() });
        match &*words[0] {
            "mode" => match words.get(1).map(String::as_str) {
                Some("http") => proxy.settings.mode = Some(At { value: Mode::Http, place: place.to_owned() }),
                Some("tcp") => proxy.settings.mode = Some(At { value: Mode::Tcp, place: place.to_owned() }),
                _ => self.fault(place, "`mode` is http or tcp"),
            },
            "bind" => match binds(&words[1..]) {
                Ok((found, left_out)) => {
                    let found = found.into_iter().map(|value| At { value, place: place.to_owned() });
                    proxy.binds.extend(found);
                    if !left_out.is_empty() {
                        self.missing(place, &left_out, "this parameter of `bind` has no translation");
                    }
                }
                Err(why) => self.fault(place, &why),
            },
            "balance" => {
                let value = words[1..].to_vec();
                proxy.settings.balance = Some(At { value, place: place.to_owned() });
            }
            "retries" => proxy.settings.retries = self.number(words, place),
            "maxconn" => proxy.settings.max_connections = self.number(words, place),
            "timeout" => self.timeout(proxy, words, place),
            "default_backend" => proxy.settings.default_backend = said(1),
            "default-server" => {
                proxy
                    .settings
                    .default_server
                    .push(At { value: words[1..].to_vec(), place: place.to_owned() });
            }
            "server" => self.server(proxy, words, place),
            "option" => self.option(proxy, words, place),
            "no" if words.get(1).is_some_and(|word| word == "option") => {
                match words.get(2).map(String::as_str) {
                    Some("forwardfor") => proxy.settings.forward_for = None,
                    Some("httpchk") => proxy.settings.http_check = None,
                    _ => self.note(Effect::Dropped, place, "an option that is not set"),
                }
            }
            "http-check" => self.http_check(proxy, words, place),
            "acl" => match words.get(1) {
                Some(name) => proxy.acls.entry(name.clone()).or_default().push(route::test(&words[2..])),
                None => self.fault(place, "`acl` needs a name"),
            },
            "use_backend" => self.use_backend(proxy, words, place),
            "http-request" if words.get(1).is_some_and(|word| word == "redirect") => {
                self.redirect(proxy, &words[1..], words, place);
            }
            "redirect" => self.redirect(proxy, words, words, place),
            "stats" => {
                proxy.statistics = true;
                self.other(words, place);
            }
            _ => self.other(words, place),
        }
    }

    fn timeout(&mut self, proxy: &mut Proxy, words: &[String], place: &str) {
        let [_, name, time] = words else {
            return self.fault(place, "`timeout` needs a name and a time");
        };
        match (name.parse::<Timeout>(), milliseconds(time)) {
            (Ok(timeout), Some(value)) => {
                proxy.settings.timeouts.insert(timeout, At { value, place: place.to_owned() });
            }
            (Err(_), _) => self.missing(place, words, "there is no such timeout here"),
            (_, None) => self.fault(place, &format!("{time:?} is not a time")),
        }
    }

    fn server(&mut self, proxy: &mut Proxy, words: &[String], place: &str) {
        let [_, name, address, parameters @ ..] = words else {
            return self.fault(place, "`server` needs a name and an address");
        };
        if !matches!(proxy.kind, Kind::Backend | Kind::Listen) {
            let why = "`server` is for `backend` and `listen`: HAProxy ignores it here, too";
            return self.note(Effect::Dropped, place, why);
        }
        if let Some(first) = self.servers.insert(name.clone(), place.to_owned()) {
            return self
                .fault(place, &format!("a server of this section is called {name:?} already: {first}"));
        }
        let defaults = proxy.settings.default_server.iter().flat_map(|line| line.value.iter().cloned());
        let parameters: Vec<_> = defaults.chain(parameters.iter().cloned()).collect();
        if parameters.iter().any(|word| word == "disabled") {
            let why = "it is disabled: `penstock ctl drain` takes a backend out, and it is left out here";
            return self.note(Effect::Dropped, place, why);
        }
        match server::server(address, &parameters) {
            Ok((value, left_out)) => {
                proxy.servers.push(At { value, place: place.to_owned() });
                if !left_out.is_empty() {
                    self.missing(place, &left_out, "this parameter of `server` has no translation");
                }
            }
            Err(why) => self.fault(place, &why),
        }
    }

    fn option(&mut self, proxy: &mut Proxy, words: &[String], place: &str) {
        let Some(name) = words.get(1) else { return self.fault(place, "`option` needs a name") };
        match name.as_str() {
            "forwardfor" => proxy.settings.forward_for = Some(At { value: (), place: place.to_owned() }),
            "httpchk" => {
                let path = words.get(3).or(words.get(2)).cloned().unwrap_or_else(|| "/".to_owned());
                self.check_path(proxy, path, words, place);
            }
            "tcp-check" => {}
            name => match NEEDLESS_OPTIONS.iter().find(|(known, _)| *known == name) {
                Some((_, why)) => self.note(Effect::Dropped, place, &format!("`option {name}`: {why}")),
                None => self.missing(place, words, "there is no such option here"),
            },
        }
    }

    fn http_check(&mut self, proxy: &mut Proxy, words: &[String], place: &str) {
        let words_of: Vec<&str> = words.iter().map(String::as_str).collect();
        match words_of[..] {
            [_, "expect", "status", status] => match fits::statuses(status) {
                Ok(()) => {
                    proxy.settings.expect = Some(At { value: status.to_owned(), place: place.to_owned() });
                }
                Err(why) => self.missing(place, words, &why),
            },
            [_, "send", ref rest @ ..] if rest.contains(&"uri") => {
                let at = rest.iter().position(|word| *word == "uri").unwrap_or(0);
                let path = rest.get(at + 1).copied().unwrap_or("/").to_owned();
                self.check_path(proxy, path, words, place);
                if rest.iter().any(|word| ["hdr", "body"].contains(word)) {
                    self.missing(place, words, "a check has a path, and `host`");
                }
            }
            _ => {
                self.missing(place, words, "a check has a path and the expected status: `health` of the pool")
            }
        }
    }

    fn check_path(&mut self, proxy: &mut Proxy, path: String, words: &[String], place: &str) {
        match fits::target(&path) {
            Ok(()) => {
                proxy.settings.http_check = Some(At { value: HttpCheck { path }, place: place.to_owned() });
            }
            Err(why) => self.missing(place, words, &why),
        }
    }

    fn use_backend(&mut self, proxy: &mut Proxy, words: &[String], place: &str) {
        match words {
            [_, backend, word, condition @ ..] if word == "if" && !backend.starts_with('%') => {
                let value = Rule { backend: backend.clone(), condition: condition.to_vec() };
                proxy.rules.push(At { value, place: place.to_owned() });
            }
            [_, backend] if !backend.starts_with('%') => {
                proxy.settings.default_backend = Some(At { value: backend.clone(), place: place.to_owned() });
            }
            _ => self.missing(place, words, "a route leads to one pool, on conditions on host and path"),
        }
    }

    fn redirect(&mut self, proxy: &mut Proxy, words: &[String], line: &[String], place: &str) {
        let scheme = words.get(1).is_some_and(|word| word == "scheme")
            && words.get(2).is_some_and(|word| word == "https");
        let mut condition = words.get(3..).unwrap_or_default();
        let mut code = None;
        if let [word, number, rest @ ..] = condition
            && word == "code"
        {
            (code, condition) = (Some(number.clone()), rest);
        }
        if !scheme || !route::is_plain_only(condition, &proxy.acls) {
            let why = "only `redirect scheme https` is, for all clients without TLS; `redirect` of a route has others";
            return self.missing(place, line, why);
        }
        proxy.redirect = Some(At { value: (), place: place.to_owned() });
        if code.as_deref() != Some("308") {
            self.note(
                Effect::Changed,
                place,
                "the status of the redirect is 308, which keeps the method of the request",
            );
        }
    }
}
