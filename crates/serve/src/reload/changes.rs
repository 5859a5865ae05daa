//! Says in one line what a reload changes: sections that came and went, and how many backends of which pool. It names
//! no value, because values may be secrets.

use std::fmt::Debug;

use config::Config;
use config::types::{Acl, Backend, BackendAddress, Listener, Pool};

/// Returns the changes, such as `pool app: +1 backend; +1 listener (admin)`, or `nothing changed`.
pub(crate) fn between(old: &Config, new: &Config) -> String {
    let mut changes = Vec::new();
    let pools = Pools { old, new };
    let of_listener = |old: &Listener, new: &Listener| pools.differ(old, new).then(|| "settings".to_owned());
    sections(
        &mut changes,
        "listener",
        &old.listeners,
        &new.listeners,
        |listener| &listener.name,
        of_listener,
    );
    sections(
        &mut changes,
        "pool",
        &old.pools,
        &new.pools,
        |pool| &pool.name,
        |old, new| of_pool(pools, old, new),
    );
    let of_acl =
        |old: &Acl, new: &Acl| (old.list.digest() != new.list.digest()).then(|| "entries".to_owned());
    sections(&mut changes, "acl", &old.acls, &new.acls, |acl| acl.list.name(), of_acl);
    let others = [
        ("process", differs(&old.process, &new.process)),
        ("control", differs(&old.control, &new.control)),
        ("admin", differs(&old.admin, &new.admin)),
        ("access-log", differs(&old.access_log, &new.access_log)),
        ("events", differs(&old.events, &new.events)),
        ("geoip", old.geoip != new.geoip),
        ("otp", old.otp != new.otp),
        ("acme", differs(&old.acme, &new.acme)),
        ("tunnel", differs(&old.tunnels, &new.tunnels)),
    ];
    changes
        .extend(others.iter().filter(|(_, changed)| *changed).map(|(name, _)| format!("{name}: settings")));
    if changes.is_empty() { "nothing changed".to_owned() } else { changes.join("; ") }
}

fn sections<T>(
    changes: &mut Vec<String>,
    kind: &str,
    old: &[T],
    new: &[T],
    name: impl Fn(&T) -> &str,
    change: impl Fn(&T, &T) -> Option<String>,
) {
    for section in new {
        let before = old.iter().find(|old| name(old) == name(section));
        if let Some(change) = before.and_then(|before| change(before, section)) {
            changes.push(format!("{kind} {}: {change}", name(section)));
        }
    }
    let missing = |from: &[T], there: &[T]| -> Vec<String> {
        from.iter()
            .filter(|section| there.iter().all(|other| name(other) != name(section)))
            .map(|section| name(section).to_owned())
            .collect()
    };
    for (sign, names) in [('+', missing(new, old)), ('-', missing(old, new))] {
        if !names.is_empty() {
            let plural = if names.len() == 1 { "" } else { "s" };
            changes.push(format!("{sign}{} {kind}{plural} ({})", names.len(), names.join(", ")));
        }
    }
}

fn of_pool(pools: Pools<'_>, old: &Pool, new: &Pool) -> Option<String> {
    let other = |pool: &Pool| Pool { backends: Vec::new(), ..pool.clone() };
    let backends =
        |pool: &Pool| pool.backends.iter().map(|backend| backend.address.clone()).collect::<Vec<_>>();
    let (before, after) = (backends(old), backends(new));
    let absent = |from: &[BackendAddress], there: &[BackendAddress]| {
        from.iter().filter(|address| !there.contains(address)).count()
    };
    let mut parts = Vec::new();
    for (sign, number) in [('+', absent(&after, &before)), ('-', absent(&before, &after))] {
        if number > 0 {
            parts.push(format!("{sign}{}", text::units::count(number, "backend")));
        }
    }
    let same = |backend: &&Backend| before.contains(&backend.address);
    let kept_differ = new.backends.iter().filter(same).any(|backend| !old.backends.contains(backend));
    if kept_differ {
        parts.push("settings of backends".to_owned());
    }
    if pools.differ(&other(old), &other(new)) {
        parts.push(if parts.is_empty() { "settings" } else { "other settings" }.to_owned());
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Compares by the debugging text: parts of a configuration, such as its patterns, have no equality.
fn differs<T: Debug>(old: &T, new: &T) -> bool {
    format!("{old:?}") != format!("{new:?}")
}

/// Both configurations, for parts that name pools by their numbers: a pool that comes or goes changes those of others.
#[derive(Clone, Copy)]
struct Pools<'c> {
    old: &'c Config,
    new: &'c Config,
}

impl Pools<'_> {
    fn differ<T: Debug>(self, old: &T, new: &T) -> bool {
        with_names(&format!("{old:?}"), self.old) != with_names(&format!("{new:?}"), self.new)
    }
}

/// The debugging text of a part, with the names of pools in place of their numbers.
fn with_names(text: &str, config: &Config) -> String {
    const NUMBER: &str = "PoolId(";
    let mut parts = text.split(NUMBER);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (number, rest) = part.split_once(')').unwrap_or((part, ""));
        let pool = number.parse::<usize>().ok().and_then(|at| config.pools.get(at));
        out.push_str(NUMBER);
        out.push_str(pool.map_or(number, |pool| &pool.name));
        out.push(')');
        out.push_str(rest);
    }
    out
}

#[cfg(test)]
mod tests {
    use config::{Environment, Source};

    use super::*;

    fn config(text: &str) -> Config {
        let source = Source { name: "test".to_owned(), text: text.to_owned() };
        config::load(&source, &Environment::default()).unwrap_or_else(|faults| panic!("{faults:?}")).config
    }

    #[test]
    fn a_pool_that_goes_changes_no_listener_or_pool_behind_it() {
        let rest = "[listener.dns]\nbind = ':53'\nprotocol = 'udp'\npool = 'dns'\n\
                    [listener.web]\nbind = ':80'\ndenied-pool = 'abuse'\nacl = 'some'\n\
                    [[listener.web.route]]\npool = 'app'\n[acl.some]\ndefault = 'permit'\n\
                    [pool.dns]\nbackends = ['b:1']\n[pool.app]\nbackends = ['c:1']\nfallback = 'sorry'\n\
                    [pool.abuse]\nbackends = ['d:1']\n[pool.sorry]\nbackends = ['e:1']\n";
        let first = "[pool.first]\nbackends = ['a:1']\n";
        let (with, without) = (config(&format!("{first}{rest}")), config(rest));
        assert_eq!(between(&with, &without), "-1 pool (first)");
        assert_eq!(between(&without, &with), "+1 pool (first)");
        let other = rest.replacen("pool = 'dns'", "pool = 'app'", 1).replacen(
            "fallback = 'sorry'",
            "fallback = 'dns'",
            1,
        );
        assert_eq!(
            between(&with, &config(&other)),
            "listener dns: settings; pool app: settings; -1 pool (first)"
        );
    }
}
