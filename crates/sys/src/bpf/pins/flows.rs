//! Name of the table of flows of a service. One with another number of places has another name, so that those of the program
//! of an earlier process stay until the start with the new number has succeeded. And names of all maps beside such of another
//! form.

use std::io;
use std::os::fd::AsFd;

use super::super::calls;
use super::{MAPS, Pins};

pub(in super::super) struct FlowsName {
    name: String,
    is_new: bool,
    beside: Beside,
    /// Tables with other numbers of places.
    others: Vec<String>,
}

/// Where the maps are until the start has succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    /// They have their names already.
    No,
    /// Beside those of another form.
    OtherForm,
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
        Self { name, is_new, beside: Beside::No, others }
    }

    /// Names beside those of maps of another form.
    pub(in super::super) fn anew(pins: &Pins, places: u32) -> Self {
        // What a start has left that ended in the middle.
        MAPS.iter().for_each(|name| drop(pins.remove_one(&beside(name))));
        let name = format!("{USUAL}-{places}");
        let others = pins.found.iter().filter(|other| other.starts_with(USUAL) && **other != name);
        let others = others.cloned().collect();
        Self { name, is_new: true, beside: Beside::OtherForm, others }
    }

    pub(in super::super) fn is_anew(&self) -> bool {
        self.beside == Beside::OtherForm
    }

    /// The name of a map of the program.
    pub(in super::super) fn of_map(&self, map: &str) -> String {
        match self.beside {
            Beside::OtherForm => beside(map),
            Beside::No => self.name_of(map).to_owned(),
        }
    }

    fn name_of<'a>(&'a self, map: &'a str) -> &'a str {
        if map == USUAL { &self.name } else { map }
    }

    /// Forgets the table.
    pub(in super::super) fn remove(&self, pins: &Pins) -> io::Result<()> {
        self.remove_beside(pins).and(pins.remove_one(&self.name))
    }

    fn remove_beside(&self, pins: &Pins) -> io::Result<()> {
        match self.beside {
            Beside::OtherForm => {
                let mut first = Ok(());
                for name in MAPS {
                    first = first.and(pins.remove_one(&beside(name)));
                }
                first
            }
            Beside::No => Ok(()),
        }
    }

    /// The start has succeeded: forgets the other tables.
    pub(in super::super) fn keep(&self, pins: &Pins) {
        if self.beside == Beside::OtherForm {
            // One that cannot be renamed is made anew by the next start.
            MAPS.iter().for_each(|name| drop(pins.rename_one(&beside(name), self.name_of(name))));
        }
        // A table that cannot be removed takes memory until the next start removes it.
        self.others.iter().for_each(|name| drop(pins.remove_one(name)));
    }

    /// The start has failed: forgets the table that it has made.
    pub(in super::super) fn undo(&self, pins: &Pins) {
        if self.beside == Beside::OtherForm {
            let _ = self.remove_beside(pins);
        } else if self.is_new {
            let _ = pins.remove_one(&self.name);
        }
    }
}

const USUAL: &str = "flows";

fn beside(map: &str) -> String {
    format!("{map}-anew")
}
