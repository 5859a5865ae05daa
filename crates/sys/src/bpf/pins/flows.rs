//! Name of the table of flows of a service. One with another number of places has another name, so that those of the program
//! of an earlier process stay until the start with the new number has succeeded.

use std::io;
use std::os::fd::AsFd;

use super::super::calls;
use super::Pins;

pub(in super::super) struct FlowsName {
    pub(in super::super) name: String,
    is_new: bool,
    /// Tables with other numbers of places.
    others: Vec<String>,
}

impl FlowsName {
    /// The name of a table with this number of places.
    pub(in super::super) fn choose(pins: &Pins, places: u32) -> Self {
        let has_places = |name: &str| {
            let table = calls::get(&pins.path(name)).and_then(|map| calls::entries_of(map.as_fd()));
            table.is_ok_and(|found| found == places)
        };
        // Earlier versions have this name alone.
        let name = if has_places(USUAL) { USUAL.to_owned() } else { format!("{USUAL}-{places}") };
        let is_new = !pins.path(&name).exists();
        let others = pins.found.iter().filter(|other| other.starts_with(USUAL) && **other != name);
        let others = others.cloned().collect();
        Self { name, is_new, others }
    }

    /// Forgets the table.
    pub(in super::super) fn remove(&self, pins: &Pins) -> io::Result<()> {
        pins.remove_one(&self.name)
    }

    /// The start has succeeded: forgets the other tables.
    pub(in super::super) fn keep(&self, pins: &Pins) {
        // A table that cannot be removed takes memory until the next start removes it.
        self.others.iter().for_each(|name| drop(pins.remove_one(name)));
    }

    /// The start has failed: forgets the table that it has made.
    pub(in super::super) fn undo(&self, pins: &Pins) {
        if self.is_new {
            let _ = pins.remove_one(&self.name);
        }
    }
}

const USUAL: &str = "flows";
