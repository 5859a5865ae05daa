//! Chooses what happens with a request: a pool, a redirect, an answer of the route itself, or a refusal.
//!
//! The table is sorted once, when it is created: exact host before longer wildcard before any host, then the longer
//! path, then more conditions, then the order of the file. The first matching route decides.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::net::Ipv6Addr;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use crate::acl::AccessList;
use crate::bandwidth::Bandwidth;

mod edits;
mod explain;
mod path;
mod redirect;
mod respond;

pub use edits::{HeaderEdit, HeaderEditError, HeaderEdits};
pub use explain::{Fate, Missed, Step};
pub use path::{PathAmbiguity, PathPrefix, PathPrefixError};
pub use redirect::{Location, LocationError, RedirectStatus, RedirectStatusError};
pub use respond::{
    ContentType, ContentTypeError, LARGEST_BODY, Respond, RespondBodyError, RespondStatus, RespondStatusError,
};

/// Index of a pool in `Config::pools` and in the snapshot made from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(pub usize);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// Every host, and requests without a host.
    #[default]
    Any,
    /// One host, in lower case.
    Exact(Box<str>),
    /// `*.example.com`, stored as `.example.com`: matches names with one or more labels before it, not `example.com`.
    Wildcard(Box<str>),
}

impl HostPattern {
    /// `host` must be in lower case, without port.
    pub fn matches(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        match self {
            HostPattern::Any => true,
            HostPattern::Exact(name) => host == &**name,
            HostPattern::Wildcard(suffix) => host.len() > suffix.len() && host.ends_with(&**suffix),
        }
    }
}

impl FromStr for HostPattern {
    type Err = HostPatternError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "*" {
            return Ok(HostPattern::Any);
        }
        if let Some(inside) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let address: Ipv6Addr = inside.parse().map_err(|_| HostPatternError::Character('['))?;
            return Ok(HostPattern::Exact(format!("[{address}]").into()));
        }
        let name = text.strip_prefix("*.").unwrap_or(text);
        check_host_name(name)?;
        let lower = name.to_ascii_lowercase();
        Ok(if name.len() == text.len() {
            HostPattern::Exact(lower.into())
        } else {
            HostPattern::Wildcard(format!(".{lower}").into())
        })
    }
}

fn check_host_name(name: &str) -> Result<(), HostPatternError> {
    if name.is_empty() {
        return Err(HostPatternError::Empty);
    }
    if name.contains(':') {
        return Err(HostPatternError::Port);
    }
    if name.contains('*') {
        return Err(HostPatternError::Star);
    }
    if !name.is_ascii() {
        return Err(HostPatternError::NotAscii);
    }
    if let Some(other) = name.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))) {
        return Err(HostPatternError::Character(other));
    }
    if name.split('.').any(str::is_empty) {
        return Err(HostPatternError::EmptyLabel);
    }
    if name.len() > 253 || name.split('.').any(|label| label.len() > 63) {
        return Err(HostPatternError::TooLong);
    }
    Ok(())
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostPattern::Any => f.write_str("*"),
            HostPattern::Exact(name) => f.write_str(name),
            HostPattern::Wildcard(suffix) => write!(f, "*{suffix}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostPatternError {
    #[error("a host is empty: write a name, `*.example.com`, or `*` for every host")]
    Empty,
    /// Routes are compared with the host without its port.
    #[error(
        "a host is matched without its port: leave out everything from the `:` on (an IPv6 address stands in [ ])"
    )]
    Port,
    /// A star that is not the complete first label.
    #[error("`*` may only stand alone or as the whole first label, as in `*.example.com`")]
    Star,
    #[error("a host is written in ASCII: use the `xn--` form of the name")]
    NotAscii,
    #[error("`{0}` does not belong in a host name")]
    Character(char),
    /// The host name has two dots in a row, or begins or ends with a dot.
    #[error("a label of the host is empty: a dot too many")]
    EmptyLabel,
    /// The host is longer than DNS allows (RFC 1035 section 2.3.4).
    #[error("a host holds at most 253 characters, and 63 between two dots")]
    TooLong,
}

/// Header field that a request must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderMatch {
    /// Field name in lower case.
    pub name: Box<str>,
    pub value: HeaderValueMatch,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderValueMatch {
    /// The field must be present, with any value.
    Present,
    /// The value must be equal, byte for byte.
    Exact(Box<str>),
}

impl HeaderMatch {
    fn matches(&self, headers: &dyn HeaderLookup) -> bool {
        match (headers.header(&self.name), &self.value) {
            (None, _) => false,
            (Some(_), HeaderValueMatch::Present) => true,
            (Some(value), HeaderValueMatch::Exact(wanted)) => value == wanted.as_bytes(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send the request to a backend of this pool.
    Pool(PoolId),
    Redirect {
        status: RedirectStatus,
        location: Location,
    },
    /// Answer the request.
    Respond(Arc<Respond>),
}

/// Conditions, and the action if all of them match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub host: HostPattern,
    pub path: PathPrefix,
    /// Methods, case-sensitive (RFC 9110 section 9.1); empty means any.
    pub methods: Vec<Box<str>>,
    /// Header fields that must all match.
    pub headers: Vec<HeaderMatch>,
    /// Clients that are served; `None`: all. No condition: what is denied goes to no other route.
    pub acl: Option<Arc<AccessList>>,
    pub action: Action,
    pub edits: HeaderEdits,
    /// Limits of a matching request, instead of those of the listener.
    pub bandwidth: Option<Bandwidth>,
}

impl Route {
    fn conditions(&self) -> usize {
        self.headers.len() + usize::from(!self.methods.is_empty())
    }

    fn matches(&self, path: &[u8], facts: &Facts<'_>) -> bool {
        self.path.matches(path)
            && (self.methods.is_empty() || self.methods.iter().any(|method| **method == *facts.method))
            && self.headers.iter().all(|header| header.matches(facts.headers))
    }
}

/// Parts of a request that routing depends on.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    /// Host in lower case, without port; empty if the request has none.
    pub host: &'a str,
    /// Path of the target, unchanged, without query.
    pub path: &'a str,
    pub method: &'a str,
    pub headers: &'a dyn HeaderLookup,
}

pub trait HeaderLookup {
    /// Value of the first line of this name (in lower case), without surrounding white space.
    fn header(&self, lower_case_name: &str) -> Option<&[u8]>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision<'a> {
    Route(&'a Route),
    /// No route matches; the listener has this default pool.
    Fallback(PoolId),
    /// No route matches and the listener has no default pool: 404.
    NoRoute,
    /// Two programs could map the path to different resources, and a route depends on the path: 400.
    Ambiguous(PathAmbiguity),
}

/// Sorted routes of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTable {
    /// Grouped by host; within a group in the order of comparison.
    routes: Vec<Route>,
    exact: HashMap<Box<str>, Range<usize>>,
    /// Key: suffix, `.example.com`.
    wildcard: HashMap<Box<str>, Range<usize>>,
    any: Range<usize>,
    fallback: Option<PoolId>,
    paths: PathUse,
}

/// Whether any route depends on the path. If none does, an ambiguous path is not refused, because it cannot change the
/// route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PathUse {
    #[default]
    Ignored,
    Decides,
}

impl RouteTable {
    /// `routes` are in the order of the file. `fallback` is the pool for requests that match no route.
    pub fn new(mut routes: Vec<Route>, fallback: Option<PoolId>) -> Self {
        routes.sort_by(|a, b| sort_key(a).cmp(&sort_key(b)));
        let mut table = RouteTable { fallback, ..RouteTable::default() };
        if routes.iter().any(|route| !route.path.is_root()) {
            table.paths = PathUse::Decides;
        }
        let mut start = 0;
        for group in routes.chunk_by(|a, b| a.host == b.host) {
            let range = start..start + group.len();
            start = range.end;
            match &group[0].host {
                HostPattern::Exact(name) => drop(table.exact.insert(name.clone(), range)),
                HostPattern::Wildcard(suffix) => drop(table.wildcard.insert(suffix.clone(), range)),
                HostPattern::Any => table.any = range,
            }
        }
        table.routes = routes;
        table
    }

    /// Routes in the order of comparison for one host.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// Pool for requests that match no route.
    pub fn fallback(&self) -> Option<PoolId> {
        self.fallback
    }

    pub fn decide(&self, facts: &Facts<'_>) -> Decision<'_> {
        let path = match self.paths {
            PathUse::Ignored => path::Comparable::root(),
            PathUse::Decides => match path::comparable(facts.path) {
                Ok(path) => path,
                Err(ambiguity) => return Decision::Ambiguous(ambiguity),
            },
        };
        let host = facts.host.strip_suffix('.').unwrap_or(facts.host);
        let exact = self.exact.get(host).into_iter();
        let groups = exact.chain(self.wildcards(host)).chain([&self.any]);
        for group in groups {
            for route in &self.routes[group.clone()] {
                if route.matches(path.as_bytes(), facts) {
                    return Decision::Route(route);
                }
            }
        }
        self.fallback.map_or(Decision::NoRoute, Decision::Fallback)
    }

    /// Wildcard groups that match `host`, longest suffix first.
    fn wildcards<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a Range<usize>> {
        let host = if self.wildcard.is_empty() { "" } else { host };
        let dots = host.match_indices('.').filter(|(at, _)| *at > 0);
        dots.filter_map(|(at, _)| self.wildcard.get(&host[at..]))
    }
}

type SortKey<'a> = (u8, &'a str, Reverse<usize>, Reverse<usize>);

/// Groups routes by host, then sorts longer paths first, then more conditions; the sort is stable, so the order of the
/// file decides last.
fn sort_key(route: &Route) -> SortKey<'_> {
    let (class, host) = match &route.host {
        HostPattern::Exact(name) => (0, &**name),
        HostPattern::Wildcard(suffix) => (1, &**suffix),
        HostPattern::Any => (2, ""),
    };
    (class, host, Reverse(route.path.as_str().len()), Reverse(route.conditions()))
}

#[cfg(test)]
mod tests;
