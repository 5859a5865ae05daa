//! Maglev hashing (Eisenbud et al., NSDI 2016, section 3.4) with weights: a table from slot to backend.

use super::hash::{hash_bytes, mix};
use super::rendezvous;

/// Slots of a table: a prime, large compared with the number of backends, so that shares are exact to a fraction of a
/// percent.
pub const SLOTS: usize = 65_537;

const EMPTY: u32 = u32::MAX;

/// Slots and the backends that own them. Equal for an equal set of names and weights, in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Indexes of backends; empty if no backend has a weight.
    slots: Box<[u32]>,
}

/// A table in which slots of backends that are not open have gone to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Substituted {
    pub table: Table,
    open: Vec<bool>,
}

impl Substituted {
    fn is_open(&self, index: usize) -> bool {
        self.open.get(index).copied().unwrap_or_default()
    }
}

/// Backend while the table is filled: its preferred slots are `offset + n * skip`, in this order.
struct Claimant {
    index: u32,
    weight: u64,
    position: usize,
    skip: usize,
    taken: u64,
}

impl Table {
    /// Fills the table for backends with name and weight. A backend of weight 0 gets no slot.
    pub fn new(backends: &[(&str, u32)]) -> Self {
        let mut claimants = claimants(backends);
        let Some(heaviest) = claimants.iter().map(|claimant| claimant.weight).max() else {
            return Table { slots: Box::default() };
        };
        let mut slots = vec![EMPTY; SLOTS].into_boxed_slice();
        let mut free = SLOTS;
        // After round r each backend has r * weight / heaviest slots: all grow in proportion.
        for round in 1.. {
            for claimant in &mut claimants {
                while claimant.taken * heaviest < round * claimant.weight {
                    claimant.take_next(&mut slots);
                    free -= 1;
                    if free == 0 {
                        return Table { slots };
                    }
                }
            }
        }
        Table { slots }
    }

    /// The table in which the slots of backends that are not open go to open ones, by rendezvous hashing and weight. Slots
    /// of open backends stay where they are: no key of theirs moves. Without an open backend nothing has an owner.
    ///
    /// `before` is the last one of this table and these backends: what it knows is not searched again.
    #[must_use]
    pub fn with_substitutes(
        &self,
        backends: &[(&str, u32)],
        is_open: impl Fn(usize) -> bool,
        before: Option<&Substituted>,
    ) -> Substituted {
        let open: Vec<bool> =
            (0..backends.len()).map(|index| is_open(index) && backends[index].1 > 0).collect();
        let ticket =
            |index: usize| (index, mix(hash_bytes(0, backends[index].0.as_bytes())), backends[index].1);
        let tickets: Vec<_> = (0..backends.len()).map(ticket).collect();
        let of_open: Vec<_> = tickets.iter().copied().filter(|(index, ..)| open[*index]).collect();
        if of_open.is_empty() {
            return Substituted { table: Table { slots: Box::default() }, open };
        }
        let before = before.filter(|before| before.table.slots.len() == self.slots.len());
        let is_new = |index: usize| before.is_some_and(|before| !before.is_open(index));
        let opened: Vec<_> = of_open.iter().copied().filter(|(index, ..)| is_new(*index)).collect();
        let mut table = self.clone();
        for (slot, owner) in table.slots.iter_mut().enumerate() {
            let own = *owner as usize;
            if open[own] {
                continue;
            }
            // The substitute until now won against all that were open then.
            let last = before
                .filter(|before| !before.is_open(own))
                .map(|before| before.table.slots[slot] as usize)
                .filter(|last| open[*last]);
            let found = match last {
                Some(last) => {
                    let rivals = opened.iter().copied();
                    rendezvous::highest(slot as u64, std::iter::once(tickets[last]).chain(rivals))
                }
                None => rendezvous::highest(slot as u64, of_open.iter().copied()),
            };
            if let Some(index) = found {
                *owner = index as u32;
            }
        }
        Substituted { table, open }
    }

    /// Owners of all slots; empty if no backend has a weight.
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Index of the backend that owns the slot of `key`.
    pub fn lookup(&self, key: u64) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        Some(self.slots[(mix(key) % SLOTS as u64) as usize] as usize)
    }
}

/// Sorts by a hash of the name: of two backends that prefer the same slot, the first one gets it.
fn claimants(backends: &[(&str, u32)]) -> Vec<Claimant> {
    let mut order: Vec<usize> = (0..backends.len()).filter(|index| backends[*index].1 > 0).collect();
    order.sort_by_key(|index| (mix(hash_bytes(0, backends[*index].0.as_bytes())), backends[*index].0));
    let claimant = |index: usize| {
        let (name, weight) = backends[index];
        let slots = SLOTS as u64;
        Claimant {
            index: index as u32,
            weight: u64::from(weight),
            position: (hash_bytes(1, name.as_bytes()) % slots) as usize,
            skip: (hash_bytes(2, name.as_bytes()) % (slots - 1) + 1) as usize,
            taken: 0,
        }
    };
    order.into_iter().map(claimant).collect()
}

impl Claimant {
    /// Takes the first free slot in the backend's order of preference. A free slot is always found: the number of slots
    /// is a prime, so the order visits all of them, and the caller stops when none is free.
    fn take_next(&mut self, slots: &mut [u32]) {
        while slots[self.position] != EMPTY {
            self.position = (self.position + self.skip) % SLOTS;
        }
        slots[self.position] = self.index;
        self.taken += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(table: &Table, backends: usize) -> Vec<usize> {
        let mut shares = vec![0; backends];
        for slot in &table.slots {
            shares[*slot as usize] += 1;
        }
        shares
    }

    #[test]
    fn shares_follow_the_weights_to_a_slot_or_two() {
        let weights = [1, 1, 2, 3, 10, 0, 7];
        let names: Vec<_> = (0..weights.len()).map(|n| format!("10.0.0.{n}:80")).collect();
        let backends: Vec<_> = names.iter().map(String::as_str).zip(weights).collect();
        let table = Table::new(&backends);
        for (share, weight) in shares(&table, weights.len()).into_iter().zip(weights) {
            let fair = SLOTS as f64 * f64::from(weight) / 24.0;
            assert!((share as f64 - fair).abs() <= 10.0, "weight {weight}: {share} slots instead of {fair}");
        }
    }

    #[test]
    fn the_order_of_the_list_changes_nothing() {
        let forwards = [("a:1", 3), ("b:1", 1), ("unix:/c", 2), ("d:1", 1)];
        let mut backwards = forwards;
        backwards.reverse();
        let (one, other) = (Table::new(&forwards), Table::new(&backwards));
        for (a, b) in one.slots.iter().zip(&other.slots) {
            assert_eq!(forwards[*a as usize], backwards[*b as usize]);
        }
    }

    #[test]
    fn nobody_with_weight_means_no_owner() {
        assert_eq!(Table::new(&[]).lookup(7), None);
        assert_eq!(Table::new(&[("a", 0)]).lookup(7), None);
        assert_eq!(Table::new(&[("a", 0), ("b", u32::MAX)]).lookup(7), Some(1));
    }

    #[test]
    fn only_slots_of_a_closed_backend_move_and_they_are_spread_by_weight() {
        let names: Vec<_> = (0..10).map(|n| format!("10.0.0.{n}:80")).collect();
        let backends: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let all = Table::new(&backends);
        let less = all.with_substitutes(&backends, |index| index != 4, None).table;
        for (before, after) in all.slots.iter().zip(&less.slots) {
            assert!(*after != 4 && (*before == 4 || before == after));
        }
        for (index, share) in shares(&less, 10).into_iter().enumerate().filter(|(index, _)| *index != 4) {
            assert!((7_100..=7_500).contains(&share), "{index}: {share}");
        }
        assert_eq!(all.with_substitutes(&backends, |_| false, None).table.lookup(1), None);
    }

    #[test]
    fn substitutes_are_the_same_whatever_was_open_before() {
        let names: Vec<_> = (0..60).map(|n| format!("10.0.0.{n}:80")).collect();
        let backends: Vec<_> = names.iter().map(String::as_str).zip((0..60).map(|n| n % 4)).collect();
        let all = Table::new(&backends);
        let mut state = 1;
        let mut before: Option<Substituted> = None;
        for turn in 0..30 {
            state = mix(state + turn);
            // Few changes, many, and none or all of them open.
            let bits = match turn % 5 {
                0 => state,
                1 => state | 1,
                2 => (state | 1) & !(1 << 7),
                3 => u64::MAX,
                _ => {
                    if turn == 9 {
                        0
                    } else {
                        mix(state)
                    }
                }
            };
            let is_open = |index: usize| bits >> index & 1 == 1;
            let new = all.with_substitutes(&backends, is_open, None);
            assert_eq!(all.with_substitutes(&backends, is_open, before.as_ref()), new, "{turn}");
            before = Some(new);
        }
    }

    #[test]
    fn even_extreme_weights_fill_the_table() {
        let table = Table::new(&[("a", u32::MAX), ("b", 1)]);
        let shares = shares(&table, 2);
        assert_eq!(shares[0] + shares[1], SLOTS);
        assert!(shares[1] >= 1, "a backend with any weight owns at least one slot");
    }
}
