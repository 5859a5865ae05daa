//! Writes the configuration that serves as the Pen did which was read.

use super::acl;
use super::emit_dsr;
use super::emit_tls;
use super::emitter::Emitter;
use super::model::{Acl, Said, Server, is_on, place_of};
use super::place::{Listen, Place};
use super::pool;
use super::reader::Reader;
use crate::document::{Document, Section, list, quoted, seconds};
use crate::keys::{NewKey, State};
use crate::{Effect, Fault, Faults, Translation};

/// Pen's default of `-x`.
const CONNECTIONS: u64 = 500;
const DAY: u64 = 86400;

/// The translation, or what is wrong or lacks.
pub(super) fn emit(
    reader: Reader<'_>,
    title: &str,
    keys: fn(NewKey) -> State,
) -> Result<Translation, Faults> {
    let Reader { pen, notes, mut faults, .. } = reader;
    let listen = pen.listen.clone();
    if listen.is_none() && faults.is_empty() {
        faults.push(Fault {
            place: "Pen".to_owned(),
            message: "nothing says where to listen".to_owned(),
            hint: Some(
                "[host:]port comes before the servers: penstock import pen 80 www1:8000 www2:8000; a file has `listen`, or is \
                 read beside it: penstock import pen -F FILE 80"
                    .to_owned(),
            ),
        });
    }
    if is_on(&pen.udp) {
        let emergency = [&pen.emergency, &pen.abuse].into_iter().flatten().map(|said| &said.value);
        let servers = pen.servers.values().chain(emergency);
        let unix = servers.filter(|server| matches!(server.place, Some(Place::Unix(_))));
        let places = unix.map(|server| &server.said_at);
        let listens = listen.iter().filter(|said| matches!(said.value, Listen::Unix(_)));
        faults.extend(listens.map(|said| &said.place).chain(places).map(|place| Fault {
            place: place.clone(),
            message: "a Unix socket carries no UDP (-U)".to_owned(),
            hint: None,
        }));
    }
    let port = match &listen {
        Some(Said { value: Listen::Ip { port, .. }, .. }) => Some(*port),
        _ => None,
    };
    let singles = [&pen.emergency, &pen.abuse].into_iter().flatten().map(|said| &said.value);
    for server in pen.servers.values().chain(singles) {
        let used = server.place.as_ref().filter(|place| !place.is_unused());
        let address = used.and_then(|place| place.written(port));
        if let (Some(listen), Some(address)) = (&listen, address)
            && listen.value.takes(&address)
        {
            faults.push(Fault {
                place: server.said_at.clone(),
                message: format!("{address} is where Pen itself listens: clients would go round in a circle"),
                hint: None,
            });
        }
    }
    let Some(listen) = listen.filter(|_| faults.is_empty()) else { return Err(Faults(faults)) };
    let mut emitter = Emitter { pen, notes, keys };
    let mut document = Document::default();
    document.title(title);
    for note in &emitter.notes {
        document.title(format!("{}: {}", note.place, note.text));
    }
    emitter.process(&mut document);
    if let Some(interface) = emitter.pen.dsr.clone() {
        emit_dsr::service(&mut emitter, &mut document, &listen, &interface)?;
    } else {
        emitter.lists(&mut document);
        let pools = emitter.listener(&mut document, &listen.value);
        pool::main(&mut emitter, &mut document, port)?;
        for (name, server) in pools {
            pool::single(&mut emitter, &mut document, name, &server, port);
        }
    }
    document.tell(&emitter.notes);
    Ok(Translation { toml: document.render(), notes: emitter.notes })
}

/// A pool with one server, beside the main one.
type Single = (&'static str, Said<Server>);

impl Emitter {
    fn process(&mut self, document: &mut Document) {
        let most = self.pen.conn_max.as_ref().map_or(CONNECTIONS, |said| said.value);
        let place = place_of(&self.pen.conn_max, "-x");
        let section = document.section("process");
        if !is_on(&self.pen.udp) && self.pen.dsr.is_none() {
            let text = "of all clients together; one more waits until another one ends, as in Pen";
            let comment = match self.pen.conn_max {
                Some(_) => self.note(Effect::Same, &place, text),
                None => format!("{place}: {text}"),
            };
            section.put("max-connections", most.max(1).to_string(), &[comment]);
        }
        match self.pen.user.clone() {
            None => {}
            Some(user) if user.value == "root" => {
                let text = "penstock does not stay root: it becomes user penstock, if there is one, and keeps no capability";
                let comment = self.note(Effect::Dropped, &user.place, text);
                section.comment(comment);
            }
            Some(user) => section.put("user", quoted(&user.value), &[]),
        }
        if let Some(pid_file) = &self.pen.pid_file {
            section.put("pid-file", quoted(&pid_file.value), &[]);
        }
        match self.pen.log.clone() {
            None => document.section("access-log").put("target", quoted("off"), &["without -l".to_owned()]),
            Some(log) if log.value.contains(':') && !log.value.starts_with('/') => {
                // penlogd joined the lines of Pen and of the servers, so that a line had the client's address.
                let text = "messages of syslog (RFC 5424) go there, not lines for penlogd: rsyslog or syslog-ng can receive them; \
                            backends learn the client's address from X-Forwarded-For (-H) or `send-proxy`";
                let comment = self.note(Effect::Changed, &log.place, text);
                let target = format!("syslog+udp://{}", log.value);
                document.section("access-log").put("target", quoted(&target), &[comment]);
            }
            Some(log) => {
                let text = "one line for each session, in the format of docs/outcomes-and-metrics.md";
                let comment = self.note(Effect::Changed, &log.place, text);
                document.section("access-log").put("target", quoted(&log.value), &[comment]);
            }
        }
        if let Some(control) = self.pen.control.clone() {
            if control.value.contains('/') {
                let text = "for `penstock ctl --socket PATH`, with other commands than those of penctl";
                let comment = self.note(Effect::Changed, &control.place, text);
                document.section("control").put("socket", quoted(&control.value), &[comment]);
            } else {
                let text = "a control port has no password: name a Unix socket by `socket` of `[control]`, for `penstock ctl`";
                let comment = self.note(Effect::Dropped, &control.place, text);
                document.section("control").comment(comment);
            }
        }
    }

    /// Writes the access lists that are used.
    fn lists(&mut self, document: &mut Document) {
        let acls = std::mem::take(&mut self.pen.acls);
        let for_clients = self.pen.client_acl.as_ref().map_or(0, |said| said.value);
        for (number, Acl(entries)) in &acls {
            let Some(last) = entries.last() else { continue };
            let used =
                for_clients == *number || self.pen.servers.values().any(|server| server.acl == *number);
            if !used {
                self.note(
                    Effect::Dropped,
                    &last.place,
                    &format!("no server and no client_acl uses list {number}"),
                );
                continue;
            }
            if self.key(NewKey::Acl, &last.place) == State::Awaited {
                continue;
            }
            let mut comments = Vec::new();
            let texts = acl::entries(self, entries, &mut comments);
            let default = last.value.verdict.opposite();
            let text = format!("at the end Pen does the opposite of the last entry: {default}");
            let end = self.note(Effect::Changed, &last.place, &text);
            let section = document.section(format!("acl.list-{number}"));
            section.put("entries", list(&texts), &comments);
            section.put("default", quoted(default.as_str()), &[end]);
        }
        self.pen.acls = acls;
    }

    fn listener(&mut self, document: &mut Document, listen: &Listen) -> Vec<Single> {
        let mut pools = Vec::new();
        let section = document.section("listener.main");
        let bind = match listen {
            Listen::Ip { address, port } => std::net::SocketAddr::new(*address, *port).to_string(),
            Listen::EveryPort(address) => format!("{address}:*"),
            Listen::Unix(path) => format!("unix:{path}"),
        };
        section.put("bind", quoted(&bind), &[]);
        let protocol = match (is_on(&self.pen.udp), is_on(&self.pen.http)) {
            (true, _) => "udp",
            (false, true) => "http",
            (false, false) => "tcp",
        };
        let mut comments = Vec::new();
        if let (Some(http), "udp") = (&self.pen.http, protocol) {
            let place = http.place.clone();
            self.note(Effect::Dropped, &place, "no effect with -U in Pen either");
        } else if let Some(http) = self.pen.http.clone().filter(|_| protocol == "http") {
            let text = "requests of one connection are balanced one by one, have time limits, and get an error page where no \
                        backend answers; a header that the client sends itself is replaced";
            comments.push(self.note(Effect::Changed, &http.place, text));
        }
        section.put("protocol", quoted(protocol), &comments);
        section.put("pool", quoted(pool::MAIN), &[]);
        let port = match listen {
            Listen::Ip { port, .. } => Some(*port),
            Listen::EveryPort(_) | Listen::Unix(_) => None,
        };
        self.acl_of_clients(section, &mut pools, port);
        if let Some(backlog) = self.pen.backlog.clone().filter(|_| protocol != "udp")
            && self.key(NewKey::Backlog, &backlog.place) == State::Here
        {
            section.put("backlog", backlog.value.max(50).to_string(), &[]);
        }
        self.times(section, protocol);
        self.fast_close(section, protocol);
        if let (Some(most), "udp") = (self.pen.conn_max.clone(), protocol) {
            let text = "of one listener, for datagrams between one address and port of a client and a server";
            let comment = self.note(Effect::Changed, &most.place, text);
            section.put("max-flows", most.value.max(1).to_string(), &[comment]);
        }
        if protocol == "http" {
            section.put("request-id-header", quoted("off"), &["Pen adds X-Forwarded-* only".to_owned()]);
        }
        if protocol != "udp" {
            emit_tls::tls(self, section, protocol);
        }
        if let (Some(keepalive), "udp") = (self.pen.keepalive.clone(), protocol) {
            self.note(Effect::Dropped, &keepalive.place, "no effect with -U in Pen either");
        }
        if let Some(tarpit) = self.pen.tarpit.clone() {
            self.note(Effect::Dropped, &tarpit.place, "no effect in Pen without dsr_if either");
        }
        pools
    }

    fn acl_of_clients(&mut self, section: &mut Section, pools: &mut Vec<Single>, port: Option<u16>) {
        let number = self.pen.client_acl.as_ref().map_or(0, |said| said.value);
        let abuse = self.pen.abuse.clone();
        let Some(last) = self.list(number).and_then(|list| list.0.last()) else {
            if let Some(abuse) = abuse {
                self.note(
                    Effect::Dropped,
                    &abuse.place,
                    "no list denies clients, so the abuse server gets none",
                );
            }
            return;
        };
        let place = place_of(&self.pen.client_acl, "client_acl");
        let mut comments = Vec::new();
        if number == 0 {
            let text = "list 0 is also that of the control port and of every server in Pen; here it is only for clients";
            let place = last.place.clone();
            comments.push(self.note(Effect::Changed, &place, text));
        }
        if self.key(NewKey::Acl, &place) == State::Here {
            section.put("acl", quoted(&format!("list-{number}")), &comments);
        }
        if let Some(abuse) = abuse
            && pool::has_address(self, &abuse, port)
            && self.key(NewKey::DeniedPool, &abuse.place) == State::Here
        {
            section.put("denied-pool", quoted(pool::ABUSE), &[]);
            pools.push((pool::ABUSE, abuse));
        }
    }

    fn fast_close(&mut self, section: &mut Section, protocol: &str) {
        let Some(fast_close) = self.pen.fast_close.clone() else { return };
        match protocol {
            "tcp" => section.put("fast-close", quoted(&fast_close.value), &[]),
            "http" => {
                let text = "with -H the end of a response ends nothing but that response: the connection of the client \
                            goes on with its next request";
                let comment = self.note(Effect::Changed, &fast_close.place, text);
                section.comment(comment);
            }
            _ => drop(self.note(Effect::Dropped, &fast_close.place, "no effect with -U in Pen either")),
        }
    }

    fn times(&mut self, section: &mut Section, protocol: &str) {
        let idle = self.pen.idle_timeout.clone().filter(|said| said.value > 0);
        let mut comments = Vec::new();
        match (idle, protocol) {
            (Some(idle), "http") => {
                let value = self.duration(idle.value, DAY, &idle.place, &mut comments);
                section.put("timeouts", format!("{{ idle = {value} }}"), &comments);
            }
            (Some(idle), _) => {
                let value = self.duration(idle.value, 366 * DAY, &idle.place, &mut comments);
                section.put("idle-timeout", value, &comments);
            }
            (None, "tcp") => {
                let text = "Pen has no limit, and leaves clients that vanished to the keep-alive of TCP";
                comments.push(self.note(Effect::Changed, "without idle_timeout", text));
                section.put("idle-timeout", seconds(DAY), &comments);
            }
            (None, _) => {}
        }
    }
}
