//! `[acl.NAME]`: access lists with their files, and the keys that name them.

use std::path::Path;
use std::sync::Arc;

use logic::acl::{self, AccessList, Entry, EntryError, MOST_ENTRIES, Verdict};

use super::parser::Parser;
use crate::de::{At, Key};
use crate::environment::Environment;
use crate::quote::quote;
use crate::raw::{RawAcl, RawConfig};
use crate::tree::{NodeId, Nodes};
use crate::types::Acl;
use text::nearest::nearest;

/// Largest file of an access list, in bytes.
const MAX_FILE: usize = 32 * 1024 * 1024;

/// Faults of one file that are listed; further ones are counted.
const MOST_FAULTS: usize = 20;

/// Largest number of entries that the warning about entries without effect names for one list.
const MOST_SHADOWED: usize = 10;

impl Parser<'_> {
    pub(super) fn all_acls(&mut self, raw: &RawConfig, env: &Environment) -> Option<Vec<Acl>> {
        let sections = &raw.acl.as_ref()?.value.0;
        let mut all = Vec::new();
        for (name, section) in sections {
            let acl = self.acl_section(name, section, env);
            self.acls.order.push((name.clone(), section.id));
            self.acls.lists.insert(name.clone(), acl.as_ref().map(|acl| acl.list.clone()));
            all.push(acl);
        }
        all.into_iter().collect()
    }

    fn acl_section(&mut self, name: &str, at: &At<RawAcl>, env: &Environment) -> Option<Acl> {
        let raw = &at.value;
        let valid = self.name(name, at.id);
        let default = raw.default.as_ref().and_then(|word| word.value.parse::<Verdict>().ok());
        let own = raw.entries.as_ref().and_then(|entries| {
            let parsed: Vec<_> = entries.value.iter().map(|entry| self.acl_entry(entry)).collect();
            let all: Option<Vec<Entry>> = parsed.into_iter().collect();
            all.filter(|_| !self.nodes.is_incomplete(entries.id))
        });
        let file = match &raw.file {
            None => (!self.nodes.is_broken(at.id, "file")).then_some(None),
            Some(path) => self.file(path).map(Some),
        };
        let read = match (&file, &raw.file) {
            (Some(Some(path)), Some(key)) => self.acl_file(key, path, env),
            (Some(_), _) => Some(Vec::new()),
            (None, _) => None,
        };
        let (default, mut entries, read) = (default?, own?, read?);
        valid?;
        let written = entries.len();
        entries.extend(read);
        if entries.len() > MOST_ENTRIES {
            let message = format!("{} entries: at most {MOST_ENTRIES} fit in a list", entries.len());
            drop(self.report.at_key(self.nodes, at.id, message));
            return None;
        }
        let (list, shadowed) = AccessList::new(name, default, &entries, self.acls.geography());
        for one in shadowed.iter().take(MOST_SHADOWED) {
            let (entry, by) = (&entries[one.entry], &entries[one.by]);
            let message = format!("`{entry}` never applies: `{by}` comes before it and holds it");
            let place = raw.entries.as_ref().and_then(|list| list.value.get(one.entry)).map(|entry| entry.id);
            let key = raw.file.as_ref().map(|file| file.id);
            let place = place.filter(|_| one.entry < written).or(key).unwrap_or(at.id);
            let hint = "the first entry that matches decides: put the smaller network first";
            drop(self.report.at(self.nodes, place, message).warning().hint(hint));
        }
        let file = file?;
        Some(Acl { list: Arc::new(list), file })
    }

    fn acl_entry<T: AsRef<str>>(&mut self, entry: &At<T>) -> Option<Entry> {
        let parsed = entry.value.as_ref().parse::<Entry>();
        match parsed.and_then(|entry| self.acls.geography().check(&entry).map(|()| entry)) {
            Ok(entry) => Some(entry),
            Err(error) => {
                drop(self.refuse_with(entry, &error));
                None
            }
        }
    }

    /// Reads the file of a list. Each wrong line is a fault of the key that names the file.
    fn acl_file<T: AsRef<str>>(&mut self, key: &At<T>, path: &Path, env: &Environment) -> Option<Vec<Entry>> {
        let shown = self.nodes.show(key.id, key.value.as_ref());
        let bytes = match (env.read)(path, MAX_FILE) {
            Ok(bytes) => bytes,
            Err(error) => {
                let message = format!("{shown} cannot be read: {error}");
                drop(self.report.at(self.nodes, key.id, message));
                return None;
            }
        };
        let Some(text) = text_of(&bytes) else {
            let why = if bytes.len() > MAX_FILE { "is longer than 32 MiB" } else { "is not UTF-8" };
            drop(self.report.at(self.nodes, key.id, format!("{shown} {why}")));
            return None;
        };
        let mut faults = Vec::new();
        let mut count = 0_usize;
        let entries = acl::parse_lines(text, self.acls.geography(), |line, error| {
            count += 1;
            if count <= MOST_FAULTS {
                faults.push((line, error));
            }
        });
        for (line, error) in &faults {
            let draft = self.report.at(self.nodes, key.id, format!("line {line} of {shown}: {error}"));
            drop(draft.maybe_hint(hint(error)));
        }
        if count > faults.len() {
            let message = format!("{} more lines of {shown} are wrong", count - faults.len());
            drop(self.report.at(self.nodes, key.id, message));
        }
        (count == 0).then_some(entries)
    }

    /// Finds the list that a key names; `Some(None)` if the key is absent.
    pub(super) fn acl(&mut self, key: &Key<String>, parent: NodeId) -> Option<Option<Arc<AccessList>>> {
        let Some(name) = key else {
            return (!self.nodes.is_broken(parent, "acl")).then_some(None);
        };
        if let Some(known) = self.acls.lists.get(&name.value) {
            self.acls.used.insert(name.value.clone());
            return known.clone().map(Some);
        }
        if self.nodes.is_broken(Nodes::ROOT, "acl") {
            return None;
        }
        let shown = self.nodes.show(name.id, &name.value);
        let near = nearest(&name.value, self.acls.order.iter().map(|(name, _)| name.as_str()));
        let near = near.map(|near| format!("did you mean {}?", quote(near)));
        let draft = self.report.at(self.nodes, name.id, format!("no access list named {shown}"));
        drop(match near {
            Some(near) => draft.hint_from_value(near),
            None => draft.hint("add a section [acl.NAME] with entries and default"),
        });
        None
    }

    pub(super) fn unused_acls(&mut self) {
        for (name, id) in &self.acls.order {
            if !self.acls.used.contains(name) {
                drop(self.report.at_key(self.nodes, *id, "nothing names this access list").warning());
            }
        }
    }
}

fn text_of(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= MAX_FILE)?;
    Some(text.strip_prefix('\u{feff}').unwrap_or(text))
}

fn hint(error: &EntryError) -> Option<String> {
    match error {
        EntryError::OnlyAddress(_) => {
            Some("`sed 's/^[0-9a-fA-F]/deny &/'` makes a list of plain addresses one of entries".to_owned())
        }
        EntryError::NoDatabase(_) => {
            Some("[geoip]\ndatabase = \"/var/lib/GeoIP/GeoLite2-Country.mmdb\"".to_owned())
        }
        _ => None,
    }
}
