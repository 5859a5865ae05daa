//! Routes between which HAProxy and we choose differently: it takes the first one that matches, we the most specific one.

/// Largest number of routes of a listener that are compared with each other.
const MOST: usize = 2000;

/// The routes of a listener so far, in the order of the file.
#[derive(Default)]
pub(super) struct Order(Vec<Written>);

struct Written {
    /// `None`: any.
    host: Option<String>,
    path: String,
    pool: String,
    place: String,
}

/// What an earlier route means for a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Earlier {
    None,
    /// The route at this place matches some of the same requests. HAProxy gives them to that one, we to the new one.
    TakesFirst(String),
    /// There are too many to compare.
    Unknown,
}

impl Order {
    /// Adds a route for all these hosts; none: for any.
    pub(super) fn add(&mut self, hosts: &[String], path: &str, pool: &str, place: &str) -> Earlier {
        let hosts: Vec<_> = match hosts {
            [] => vec![None],
            hosts => hosts.iter().map(|host| Some(host.to_ascii_lowercase())).collect(),
        };
        let mut earlier = Earlier::None;
        for host in hosts {
            if self.0.len() >= MOST {
                return if earlier == Earlier::None { Earlier::Unknown } else { earlier };
            }
            let new = Written { host, path: path.to_owned(), pool: pool.to_owned(), place: place.to_owned() };
            if let Some(first) = self.0.iter().find(|first| loses(first, &new)) {
                earlier = Earlier::TakesFirst(first.place.clone());
            }
            self.0.push(new);
        }
        earlier
    }
}

/// Whether a request that both match goes to `new` here, although `first` stands before it.
fn loses(first: &Written, new: &Written) -> bool {
    if first.pool == new.pool || !paths_meet(&first.path, &new.path) {
        return false;
    }
    let (of_first, of_new) = (first.host.as_deref(), new.host.as_deref());
    let rank = (rank(of_new), new.path.len()).cmp(&(rank(of_first), first.path.len()));
    hosts_meet(of_first, of_new) && rank.is_gt()
}

/// An exact host is before a wildcard, a longer wildcard before a shorter one, and any host is the last.
fn rank(host: Option<&str>) -> usize {
    match host {
        None => 0,
        Some(host) if host.starts_with("*.") => host.len(),
        Some(_) => usize::MAX,
    }
}

fn hosts_meet(one: Option<&str>, other: Option<&str>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return true };
    let is_under = |host: &str, wildcard: &str| {
        wildcard.strip_prefix('*').is_some_and(|end| host.trim_start_matches('*').ends_with(end))
    };
    one == other || is_under(one, other) || is_under(other, one)
}

fn paths_meet(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    let Some(rest) = long.strip_prefix(short) else { return false };
    rest.is_empty() || short.ends_with('/') || rest.starts_with('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each route of a list, `HOST PATH POOL`, is told; its place is its number.
    fn told(routes: &[&str]) -> Vec<Earlier> {
        let mut order = Order::default();
        let add = |(number, route): (usize, &&str)| {
            let words: Vec<_> = route.split(' ').collect();
            let hosts: Vec<_> =
                words[0].split(',').filter(|host| *host != "any").map(str::to_owned).collect();
            order.add(&hosts, words[1], words[2], &number.to_string())
        };
        routes.iter().enumerate().map(add).collect()
    }

    #[test]
    fn a_more_specific_route_behind_one_that_matches_the_same_is_told() {
        let first = Earlier::TakesFirst("0".to_owned());
        for (routes, expected) in [
            (["any /api api", "blog.example / blog"], first.clone()),
            (["any / all", "any /api/ api"], first.clone()),
            (["any /api api", "any /api/v2 other"], first.clone()),
            (["*.a.example / wide", "b.a.example / one"], first.clone()),
            (["*.example / wide", "*.a.example / narrow"], first.clone()),
            (["any /api api", "c.example,blog.example / blog"], first),
            (["blog.example / blog", "any /api api"], Earlier::None),
            (["any /api/ api", "any / all"], Earlier::None),
            (["any /api api", "any /apix other"], Earlier::None),
            (["any /api same", "blog.example / same"], Earlier::None),
            (["a.example / one", "b.example /x two"], Earlier::None),
            (["*.a.example / wide", "a.example / one"], Earlier::None),
        ] {
            assert_eq!(told(&routes), [Earlier::None, expected], "{routes:?}");
        }
    }
}
