//! From the facts of a request to what happens with it: a pool, a redirect, or a refusal.
//!
//! The table is ordered once, when it is made: exact host before longer wildcard before any host, then the
//! longer path, then more conditions, then the order of the file. The first route that matches decides.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::net::Ipv6Addr;
use std::ops::Range;
use std::str::FromStr;

mod edits;
mod path;
mod redirect;

pub use edits::{HeaderEdit, HeaderEditError, HeaderEdits};
pub use path::{PathAmbiguity, PathPrefix, PathPrefixError};
pub use redirect::{Location, LocationError, RedirectStatus, RedirectStatusError};

/// Index of a pool in `Config::pools` and in the snapshot made from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(pub usize);

/// Which hosts a route is for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// Every host, and requests that name none.
    #[default]
    Any,
    /// One host, lower case.
    Exact(Box<str>),
    /// `*.example.com`, kept as `.example.com`: any name of one or more labels before it, not `example.com`
    /// itself.
    Wildcard(Box<str>),
}

impl HostPattern {
    /// Whether `host` (lower case, without port) is one of these.
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

/// Why a text is no [`HostPattern`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostPatternError {
    /// Nothing is written.
    #[error("a host is empty: write a name, `*.example.com`, or `*` for every host")]
    Empty,
    /// Routes see the host without its port.
    #[error(
        "a host is matched without its port: leave out everything from the `:` on (an IPv6 address stands in [ ])"
    )]
    Port,
    /// A star anywhere but as the whole first label.
    #[error("`*` may only stand alone or as the whole first label, as in `*.example.com`")]
    Star,
    /// The name is written in Unicode.
    #[error("a host is written in ASCII: use the `xn--` form of the name")]
    NotAscii,
    /// A character that no host name holds.
    #[error("`{0}` does not belong in a host name")]
    Character(char),
    /// Two dots in a row, or one at an end.
    #[error("a label of the host is empty: a dot too many")]
    EmptyLabel,
    /// Longer than the DNS can hold (RFC 1035 section 2.3.4).
    #[error("a host holds at most 253 characters, and 63 between two dots")]
    TooLong,
}

/// A header field that a request must carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderMatch {
    /// Field name, lower case.
    pub name: Box<str>,
    /// What its value must be.
    pub value: HeaderValueMatch,
}

/// What the value of a header field must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderValueMatch {
    /// Anything: the field must only be there.
    Present,
    /// Exactly this, byte for byte.
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

/// What a route does with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send it to a backend of this pool.
    Pool(PoolId),
    /// Answer with a redirect.
    Redirect {
        /// The status of the answer.
        status: RedirectStatus,
        /// Where to.
        location: Location,
    },
}

/// One route: conditions, and what happens when all of them hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Which hosts.
    pub host: HostPattern,
    /// Which paths.
    pub path: PathPrefix,
    /// Which methods, in their own case (RFC 9110 section 9.1); empty means any.
    pub methods: Vec<Box<str>>,
    /// Header fields that must be there, all of them.
    pub headers: Vec<HeaderMatch>,
    /// What happens.
    pub action: Action,
    /// Header changes on the way.
    pub edits: HeaderEdits,
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

/// What routing may know of a request.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    /// Host, lower case, without port; empty if the request names none.
    pub host: &'a str,
    /// Path of the target as it came, without query.
    pub path: &'a str,
    /// Method as it came.
    pub method: &'a str,
    /// The header fields.
    pub headers: &'a dyn HeaderLookup,
}

/// Access to the header fields of a request.
pub trait HeaderLookup {
    /// The value of the first line of this name (given in lower case), without surrounding white space.
    fn header(&self, lower_case_name: &str) -> Option<&[u8]>;
}

/// What the table says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision<'a> {
    /// This route takes it.
    Route(&'a Route),
    /// No route matches; the listener names this pool.
    Fallback(PoolId),
    /// No route matches and the listener names no pool: 404.
    NoRoute,
    /// Two readers could take the path for different resources, and the table decides by path: 400.
    Ambiguous(PathAmbiguity),
}

/// The routes of a listener, ready to decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTable {
    /// Grouped by host, each group in the order in which its routes are tried.
    routes: Vec<Route>,
    exact: HashMap<Box<str>, Range<usize>>,
    /// Keyed by suffix, `.example.com`.
    wildcard: HashMap<Box<str>, Range<usize>>,
    any: Range<usize>,
    fallback: Option<PoolId>,
    paths: PathUse,
}

/// Whether the table looks at paths. Without it even an odd path leads to the same place, and is none of
/// our business.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PathUse {
    #[default]
    Ignored,
    Decides,
}

impl RouteTable {
    /// A table of these routes, given in the order of the file. `fallback` takes what no route matches.
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

    /// The routes, in the order in which they are tried for one host.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The pool for what no route matches.
    pub fn fallback(&self) -> Option<PoolId> {
        self.fallback
    }

    /// Decides about one request.
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

    /// The wildcard groups that hold `host`, longest suffix first.
    fn wildcards<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a Range<usize>> {
        let host = if self.wildcard.is_empty() { "" } else { host };
        let dots = host.match_indices('.').filter(|(at, _)| *at > 0);
        dots.filter_map(|(at, _)| self.wildcard.get(&host[at..]))
    }
}

type SortKey<'a> = (u8, &'a str, Reverse<usize>, Reverse<usize>);

/// Groups routes of one host, then the longer path, then more conditions; the sort is stable, so the file
/// decides last.
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
