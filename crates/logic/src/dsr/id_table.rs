//! The servers by their numbers in connection ids of QUIC, as the program in the kernel looks them up
//! (`crates/sys/bpf/dsr.bpf.c`): a table of slots, of which it looks at a few from the one of the number's hash on.

use std::collections::HashMap;

use super::quic::ServerId;
use super::ring::{BACKENDS, BackendId};

/// Slots of the table, two words each: the number, and that of the backend and one more.
pub const SLOTS: usize = 32_768;

/// Slots that the program looks at.
const TRIES: usize = 16;

const _: () = assert!(BACKENDS * 8 <= SLOTS);

/// The servers by their numbers, as a program in the kernel has them.
pub struct IdTable {
    pub words: Vec<u64>,
    /// Backends without a place: their flows whose address changes are new ones.
    pub left_out: Vec<BackendId>,
}

impl IdTable {
    pub(super) fn new(ids: &HashMap<ServerId, BackendId>) -> Self {
        let mut table = Self { words: vec![0; 2 * SLOTS], left_out: Vec::new() };
        // Equal tables of equal backends.
        let mut all: Vec<_> = ids.iter().map(|(id, backend)| (*backend, id.word())).collect();
        all.sort_unstable_by_key(|(backend, id)| (backend.number(), *id));
        for (backend, id) in all {
            if backend.number() >= BACKENDS || !table.insert(id, backend) {
                table.left_out.push(backend);
            }
        }
        table
    }

    fn insert(&mut self, id: u64, backend: BackendId) -> bool {
        let first = mix(id) as usize;
        let slots = (first..first + TRIES).map(|at| 2 * (at % SLOTS));
        let Some(free) = slots.into_iter().find(|at| self.words[at + 1] == 0) else { return false };
        (self.words[free], self.words[free + 1]) = (id, backend.number() as u64 + 1);
        true
    }
}

/// As `mix` of `crates/sys/bpf/dsr.bpf.c`: its low bits are those of a slot.
fn mix(mut x: u64) -> u64 {
    for _ in 0..2 {
        x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    }
    (x ^ x >> 32) % SLOTS as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_backends_as_a_program_has_are_in_its_table_once_each_and_further_ones_are_told() {
        let number = |at: usize| ServerId::new(&(at as u32).to_be_bytes()).unwrap();
        let ids: HashMap<_, _> = (0..BACKENDS + 2).map(|at| (number(at), BackendId::at(at))).collect();
        let table = IdTable::new(&ids);
        assert_eq!(table.left_out, [BackendId::at(BACKENDS), BackendId::at(BACKENDS + 1)]);
        for at in 0..BACKENDS {
            let word = number(at).word();
            let first = mix(word) as usize;
            let mut slots = (first..first + TRIES).map(|slot| 2 * (slot % SLOTS));
            let found = slots.find(|slot| table.words[*slot] == word).unwrap();
            assert_eq!(table.words[found + 1], at as u64 + 1);
        }
        // Numbers that all have the same first slot.
        let mut same: Vec<usize> = (0..SLOTS * 32).filter(|at| mix(number(*at).word()) == 7).collect();
        same.truncate(TRIES + 1);
        let ids = same.iter().enumerate().map(|(at, id)| (number(*id), BackendId::at(at))).collect();
        assert_eq!(IdTable::new(&ids).left_out, [BackendId::at(TRIES)]);
    }
}
