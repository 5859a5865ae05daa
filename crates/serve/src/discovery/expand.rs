//! A pool with the backends that its names stand for.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use config::types::{Backend, BackendAddress, DnsName, Pool, Standing};
use logic::discovery::{Members, Rank};

/// Replaces each name of which `members` knows backends by them; each has the settings of the name.
pub(super) fn pool<'m>(pool: &mut Pool, members: impl Fn(&DnsName) -> Option<&'m Members>) {
    let is_name = |backend: &Backend| matches!(backend.address, BackendAddress::Dns(_));
    if !pool.backends.iter().any(is_name) {
        return;
    }
    let mut backends: Vec<Backend> = Vec::new();
    // Two names may have the same host: `dns:app.internal:80` and `srv:app.internal`.
    let mut known = HashMap::new();
    for entry in std::mem::take(&mut pool.backends) {
        let name = match &entry.address {
            BackendAddress::Dns(name) => name,
            _ => {
                backends.push(entry);
                continue;
            }
        };
        let Some(members) = members(name).filter(|members| !members.is_empty()) else {
            backends.push(entry);
            continue;
        };
        let name = Arc::new(name.clone());
        for member in members.iter() {
            let address = BackendAddress::Discovered { name: name.clone(), address: member.address };
            let rank = member.rank.within(Rank { weight: entry.weight, priority: entry.priority });
            let Rank { weight, priority } = rank;
            let standing = member.standing;
            let place = known.entry(address.to_string());
            let backend = Backend { address, weight, priority, standing, ..entry.clone() };
            match place {
                Entry::Vacant(place) => {
                    place.insert(backends.len());
                    backends.push(backend);
                }
                // A name that lost the address does not take it from another that has it.
                Entry::Occupied(place) => {
                    if let Some(before) = backends.get_mut(*place.get())
                        && before.standing == Standing::Leaving
                        && standing == Standing::Here
                    {
                        *before = backend;
                    }
                }
            }
        }
    }
    pool.backends = backends;
}
