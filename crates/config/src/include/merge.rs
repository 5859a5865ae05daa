//! Adds the sections of files up. A name, or a key of a section without names, belongs to one file.

use std::collections::HashMap;

use crate::error::Report;
use crate::quote::quote;
use crate::tree::{NodeId, Nodes, Table, Value};

/// Sections so far.
#[derive(Default)]
pub(super) struct Merge {
    sections: HashMap<String, HashMap<String, NodeId>>,
}

impl Merge {
    /// Adds the sections of one file, and reports what an earlier one has too.
    pub(super) fn add(&mut self, root: &mut Table, table: Table, nodes: &mut Nodes, report: &mut Report) {
        for (section, node) in table.entries {
            let known = self.sections.get_mut(&section);
            let (Some(known), Some(first)) = (known, root.get_mut(&section)) else {
                let names = match &node.value {
                    Value::Table(inner) => {
                        inner.entries.iter().map(|(name, inner)| (name.clone(), inner.id)).collect()
                    }
                    _ => HashMap::new(),
                };
                self.sections.insert(section.clone(), names);
                root.push(section, node);
                continue;
            };
            let (Value::Table(into), Value::Table(from)) = (&mut first.value, node.value) else {
                twice(&quote(&section), node.id, first.id, nodes, report);
                continue;
            };
            nodes.move_broken(node.id, first.id);
            for (name, inner) in from.entries {
                match known.get(&name) {
                    Some(first) => {
                        let path = nodes.path(inner.id);
                        twice(&path, inner.id, *first, nodes, report);
                    }
                    None => {
                        known.insert(name.clone(), inner.id);
                        into.push(name, inner);
                    }
                }
            }
        }
    }
}

fn twice(what: &str, second: NodeId, first: NodeId, nodes: &Nodes, report: &mut Report) {
    let place = report.whereabouts(nodes, first);
    let draft = report.at_key(nodes, second, format!("{what} is in two files"));
    drop(draft.hint(format!("the other one is{place}: keep one of them")));
}
