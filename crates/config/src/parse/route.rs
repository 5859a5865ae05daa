//! Routes of a listener.

use std::collections::HashMap;
use std::sync::Arc;

use logic::route::{
    Action, ContentType, HeaderEdit, HeaderMatch, HeaderValueMatch, HostPattern, Location, PathPrefix,
    RedirectStatus, Respond, RespondStatus, RespondStatusError, Route,
};

use super::header::is_token;
use super::parser::Parser;
use crate::de::{At, Key};
use crate::quote::quote;
use crate::raw::{OneOrMany, RawRespond, RawRoute};
use crate::tree::NodeId;

/// URL scheme of the listener's requests.
#[derive(Clone, Copy)]
pub(super) enum Scheme {
    Http,
    Https,
}

impl Parser<'_> {
    pub(super) fn routes(&mut self, key: &Key<Vec<At<RawRoute>>>, scheme: Scheme) -> Option<Vec<Route>> {
        let mut routes = Vec::new();
        let mut seen: HashMap<String, NodeId> = HashMap::new();
        let mut faults = 0;
        for raw in &key.as_ref()?.value {
            match self.route(raw, scheme) {
                Some(expanded) => {
                    self.duplicates(&expanded, raw.id, &mut seen);
                    routes.extend(expanded);
                }
                None => faults += 1,
            }
        }
        (faults == 0).then_some(routes)
    }

    /// Converts one entry of the file into routes, one for each pair of host and path.
    fn route(&mut self, raw: &At<RawRoute>, scheme: Scheme) -> Option<Vec<Route>> {
        let at = raw.id;
        let raw = &raw.value;
        let hosts = self.each(&raw.host, |parser, id, text| parser.parsed::<HostPattern>(id, text));
        let paths = self.each(&raw.path, Self::path);
        let methods = match &raw.method {
            Some(_) => self.each(&raw.method, Self::method),
            None if self.nodes.is_broken(at, "method") => None,
            None => Some(Vec::new()),
        };
        let headers = raw.header.as_ref().and_then(|header| self.header_conditions(&header.value.0));
        let edits = self.edits(&raw.request_headers, &raw.response_headers);
        let acl = self.acl(&raw.acl, at);
        let bandwidth = self.route_bandwidth(&raw.bandwidth, at);
        let action = self.action(at, raw);
        let (hosts, paths, action) = (hosts?, paths?, action?);
        if let Action::Redirect { location, .. } = &action
            && let Some(redirect) = &raw.redirect
            // After a redirect the client may use another method, which the route may not match.
            && raw.method.is_none()
            && leads_back(location.as_str(), &hosts, scheme)
        {
            let message = "this redirect leads back to the same route: clients would be redirected for ever";
            drop(self.report.at(self.nodes, redirect.id, message));
            return None;
        }
        self.routes = self.routes.saturating_add(hosts.len().saturating_mul(paths.len()));
        if self.routes > MOST_ROUTES {
            let message = format!("hosts times paths: more than {MOST_ROUTES} routes in all");
            drop(self.report.at_key(self.nodes, at, message));
            return None;
        }
        let (methods, headers, edits, acl, bandwidth) = (methods?, headers?, edits?, acl?, bandwidth?);
        let texts =
            headers.iter().map(header_size).chain(edits.request.iter().chain(&edits.response).map(edit_size));
        let size = texts.sum::<usize>().saturating_mul(hosts.len() * paths.len());
        if size > LARGEST_ROUTE {
            let message = "hosts times paths times header fields: this route would take too much memory";
            drop(self.report.at_key(self.nodes, at, message).hint("put the header fields on the listener"));
            return None;
        }
        let mut routes = Vec::with_capacity(hosts.len() * paths.len());
        for host in &hosts {
            for path in &paths {
                routes.push(Route {
                    host: host.clone(),
                    path: path.clone(),
                    methods: methods.clone(),
                    headers: headers.clone(),
                    acl: acl.clone(),
                    action: action.clone(),
                    edits: edits.clone(),
                    bandwidth,
                });
            }
        }
        Some(routes)
    }

    fn path(&mut self, id: NodeId, text: &str) -> Option<PathPrefix> {
        let Some((before, _)) = text.split_once('*') else {
            return self.parsed(id, text);
        };
        let above = before.rsplit_once('/').map_or("", |(above, _)| above);
        let above = if above.is_empty() { "/" } else { above };
        let hint =
            format!("wildcards are not supported: {} covers everything below it already", quote(above));
        drop(self.refuse(&At { id, value: text }, "holds a *").hint_from_value(hint));
        None
    }

    fn action(&mut self, at: NodeId, raw: &RawRoute) -> Option<Action> {
        if let Some(status) = &raw.status
            && raw.redirect.is_none()
            && !self.nodes.is_broken(at, "redirect")
        {
            let message = "a status belongs to a redirect, and there is none";
            let draft = self.report.at_key(self.nodes, status.id, message);
            drop(match &raw.respond {
                Some(_) => draft.hint(format!("write respond = {{ status = {} }}", status.value)),
                None => draft,
            });
        }
        if let Some(respond) = &raw.respond {
            let other = raw.pool.as_ref().map(|pool| pool.id).or(raw.redirect.as_ref().map(|it| it.id));
            if let Some(other) = other {
                let message = "this route answers by itself (respond): it has no pool and no redirect";
                drop(self.report.at_key(self.nodes, other, message).hint("keep one of them"));
                return None;
            }
            return self.respond(respond).map(|respond| Action::Respond(Arc::new(respond)));
        }
        match (&raw.pool, &raw.redirect) {
            (Some(pool), None) => self.pool_id(pool).map(Action::Pool),
            (None, Some(redirect)) => {
                let location = self.parsed::<Location>(redirect.id, &redirect.value);
                let status = match &raw.status {
                    None if self.nodes.is_broken(at, "status") => None,
                    None => Some(RedirectStatus::PermanentRedirect),
                    Some(status) => self.status(status),
                };
                Some(Action::Redirect { status: status?, location: location? })
            }
            (Some(_), Some(redirect)) => {
                let message = "a route has a pool or a redirect, not both";
                drop(self.report.at_key(self.nodes, redirect.id, message).hint("keep one of them"));
                None
            }
            (None, None) => {
                if !["pool", "redirect", "respond"].into_iter().any(|key| self.nodes.is_broken(at, key)) {
                    let message = "this route has no pool, no redirect and no respond";
                    let hint =
                        "add pool = \"NAME\", redirect = \"https://...\" or respond = { body = \"...\" }";
                    drop(self.report.at_key(self.nodes, at, message).hint(hint));
                }
                None
            }
        }
    }

    fn respond(&mut self, at: &At<RawRespond>) -> Option<Respond> {
        let raw = &at.value;
        let status = raw.status.as_ref().and_then(|status| self.respond_status(status));
        let content_type =
            raw.content_type.as_ref().and_then(|text| self.parsed::<ContentType>(text.id, &text.value));
        let (status, content_type, body) = (status?, content_type?, raw.body.as_ref()?);
        match Respond::new(status, content_type, body.value.as_str().into()) {
            Ok(respond) => Some(respond),
            Err(error) => {
                drop(self.report.at_key(self.nodes, body.id, error.to_string()));
                None
            }
        }
    }

    fn respond_status(&mut self, status: &At<i64>) -> Option<RespondStatus> {
        // The schema limits it to three digits.
        match RespondStatus::try_from(u16::try_from(status.value).unwrap_or_default()) {
            Ok(status) => Some(status),
            Err(error) => {
                let draft = self.report.at(self.nodes, status.id, error.to_string());
                drop(match error {
                    RespondStatusError::Redirect(code) => draft
                        .hint(format!("write redirect = \"https://...\" and status = {code} in the route")),
                    RespondStatusError::NeedsMore(_) | RespondStatusError::Unknown(_) => draft,
                });
                None
            }
        }
    }

    fn status(&mut self, status: &At<i64>) -> Option<RedirectStatus> {
        let code = u16::try_from(status.value).ok();
        match code.map(RedirectStatus::try_from) {
            Some(Ok(status)) => Some(status),
            _ => {
                let message = format!("{} is not a redirect: use 301, 302, 303, 307 or 308", status.value);
                drop(self.report.at(self.nodes, status.id, message));
                None
            }
        }
    }

    fn method(&mut self, id: NodeId, text: &str) -> Option<Box<str>> {
        const KNOWN: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"];
        let shown = self.nodes.show(id, text);
        if !is_token(text) || text.len() > 32 {
            drop(self.report.at(self.nodes, id, format!("{shown} is not a method")));
            return None;
        }
        if text == "CONNECT" {
            drop(self.report.at(self.nodes, id, "CONNECT is never forwarded"));
            return None;
        }
        let upper = text.to_ascii_uppercase();
        if upper != text && KNOWN.contains(&upper.as_str()) {
            let message = format!("{shown} is not a method: methods are case-sensitive");
            drop(self.report.at(self.nodes, id, message).hint_from_value(format!("write {}", quote(&upper))));
            return None;
        }
        Some(text.into())
    }

    /// Converts each text of a key with one or many texts.
    fn each<T: AsRef<str>, V>(
        &mut self,
        key: &Key<OneOrMany<T>>,
        mut read: impl FnMut(&mut Self, NodeId, &str) -> Option<V>,
    ) -> Option<Vec<V>> {
        let key = key.as_ref()?;
        match &key.value {
            OneOrMany::One(text) => Some(vec![read(self, key.id, text.as_ref())?]),
            OneOrMany::Many(list) if list.is_empty() => {
                if !self.nodes.is_incomplete(key.id) {
                    drop(self.report.at(self.nodes, key.id, "this list is empty: nothing would ever match"));
                }
                None
            }
            OneOrMany::Many(list) => {
                let values: Vec<_> =
                    list.iter().map(|entry| read(self, entry.id, entry.value.as_ref())).collect();
                values.into_iter().collect()
            }
        }
    }

    /// Parses a text with a type of `logic`.
    fn parsed<V>(&mut self, id: NodeId, text: &str) -> Option<V>
    where
        V: std::str::FromStr<Err: std::fmt::Display>,
    {
        match text.parse() {
            Ok(value) => Some(value),
            Err(error) => {
                let text = At { id, value: text };
                drop(self.refuse_with(&text, &error));
                None
            }
        }
    }

    /// Warns of a route that is never used, because an earlier one has the same conditions.
    fn duplicates(&mut self, routes: &[Route], id: NodeId, seen: &mut HashMap<String, NodeId>) {
        for route in routes {
            match seen.entry(conditions(route)) {
                std::collections::hash_map::Entry::Vacant(entry) => drop(entry.insert(id)),
                std::collections::hash_map::Entry::Occupied(entry) => {
                    let first = *entry.get();
                    if first == id {
                        let message = format!("{} {} is listed twice in this route", route.host, route.path);
                        drop(self.report.at_key(self.nodes, id, message).warning());
                    } else {
                        let place = self.report.whereabouts(self.nodes, first);
                        let message =
                            format!("never reached: an earlier route has the same conditions{place}");
                        drop(self.report.at_key(self.nodes, id, message).warning());
                    }
                    return;
                }
            }
        }
    }
}

/// Formats all conditions of a route as one comparable text.
fn conditions(route: &Route) -> String {
    let mut methods = route.methods.clone();
    methods.sort_unstable();
    let mut headers: Vec<_> = route
        .headers
        .iter()
        .map(|header| match &header.value {
            HeaderValueMatch::Present => format!("{}:", header.name),
            HeaderValueMatch::Exact(value) => format!("{}={value}", header.name),
        })
        .collect();
    headers.sort_unstable();
    format!("{}\n{}\n{}\n{}", route.host, route.path, methods.join(","), headers.join("\n"))
}

/// Reports whether a redirect leads to the route itself.
fn leads_back(location: &str, hosts: &[HostPattern], scheme: Scheme) -> bool {
    let own = match scheme {
        Scheme::Http => "http://",
        Scheme::Https => "https://",
    };
    if location.starts_with("{path}") {
        return true;
    }
    let Some((host, path)) = location.strip_prefix(own).and_then(|rest| rest.split_once("{path}")) else {
        return false;
    };
    if !(path.is_empty() || path == "{query}") {
        return false;
    }
    // With a wildcard pattern, this host may belong to a more specific route.
    let host = host.to_ascii_lowercase();
    host == "{host}" || hosts.iter().any(|own| matches!(own, HostPattern::Exact(name) if **name == *host))
}

fn header_size(header: &HeaderMatch) -> usize {
    match &header.value {
        HeaderValueMatch::Present => header.name.len(),
        HeaderValueMatch::Exact(value) => header.name.len() + value.len(),
    }
}

fn edit_size(edit: &HeaderEdit) -> usize {
    match edit {
        HeaderEdit::Set { name, value } => name.len() + value.len(),
        HeaderEdit::Remove { name } => name.len(),
    }
}

const MOST_ROUTES: usize = 100_000;

/// Largest total size, in bytes, of header fields in the routes made from one entry of the file.
const LARGEST_ROUTE: usize = 16 * 1024 * 1024;
