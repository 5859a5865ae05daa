//! `[otp]`.

use std::collections::HashSet;
use std::sync::Arc;

use text::nearest::nearest;

use super::parser::Parser;
use crate::quote::quote;
use crate::raw::RawConfig;
use crate::tree::Nodes;
use crate::types::{Listener, Otp};

impl Parser<'_> {
    /// `Some(None)` without the section. `listeners` is `None` if one of them was refused.
    pub(super) fn otp(&mut self, raw: &RawConfig, listeners: Option<&[Listener]>) -> Option<Option<Otp>> {
        let Some(section) = &raw.otp else {
            return (!self.nodes.is_broken(Nodes::ROOT, "otp")).then_some(None);
        };
        let section = &section.value;
        let store = section.store.as_ref().and_then(|path| self.file(path));
        let key_file = section.key_file.as_ref().and_then(|path| self.file(path));
        let mut answering: HashSet<Arc<str>> = HashSet::new();
        let mut refused = 0;
        for name in section.listeners.as_ref().into_iter().flat_map(|names| &names.value) {
            let Some(listeners) = listeners else { continue };
            match listeners.iter().find(|listener| *listener.name == *name.value) {
                Some(listener) if listener.protocol.is_http() => {
                    answering.insert(listener.name.clone());
                }
                Some(_) => {
                    let draft = self.refuse(name, "is no listener with protocol = \"http\"");
                    drop(draft.hint("only such a listener reads requests"));
                    refused += 1;
                }
                None => {
                    let near = nearest(&name.value, listeners.iter().map(|listener| &*listener.name));
                    let draft = self.refuse(name, "is no listener");
                    drop(match near {
                        Some(near) => draft.hint_from_value(format!("did you mean {}?", quote(near))),
                        None => draft.hint("write the NAME of a [listener.NAME]"),
                    });
                    refused += 1;
                }
            }
        }
        let (store, key_file) = (store?, key_file?);
        (refused == 0 && listeners.is_some()).then_some(Some(Otp { store, key_file, answering }))
    }
}
