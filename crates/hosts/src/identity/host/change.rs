//! Changes of the file of a host. Other lines keep their text.

use std::net::IpAddr;

use super::{Address, Binding, Entry, HostFile, Line, MOVES_KEPT, Move, Pin, Signer};
use crate::identity::date::Date;
use crate::identity::line::comment;
use crate::identity::name::Name;
use crate::ssh::key::PublicKey;

impl HostFile {
    /// Adds a line after the last line of its kind, or at the end. Does nothing if the entry exists.
    pub fn add(&mut self, entry: Entry) {
        if self.entries().any(|known| *known == entry) {
            return;
        }
        let kind = std::mem::discriminant(&entry);
        let is_kind =
            |line: &Line| line.entry.as_ref().is_some_and(|known| std::mem::discriminant(known) == kind);
        let at = self.lines.iter().rposition(is_kind).map_or(self.lines.len(), |at| at + 1);
        self.lines.insert(at, Line::of(entry));
    }

    /// Pins a key, or replaces the proof of a pinned key. A retired key is active again.
    pub fn pin_key(&mut self, pin: Pin) {
        self.lines.retain(|line| !matches!(&line.entry, Some(Entry::RetiredKey(key, _)) if *key == pin.key));
        let of_key =
            |line: &&mut Line| matches!(&line.entry, Some(Entry::Pin(known)) if known.key == pin.key);
        match self.lines.iter_mut().find(of_key) {
            Some(line) => line.replace(Entry::Pin(pin)),
            None => self.add(Entry::Pin(pin)),
        }
    }

    /// Moves a key from the pins to the former keys of the host.
    pub fn retire_key(&mut self, key: &PublicKey, date: Date) {
        for line in &mut self.lines {
            if matches!(&line.entry, Some(Entry::Pin(pin)) if pin.key == *key) {
                line.replace(Entry::RetiredKey(key.clone(), date));
            }
        }
    }

    /// Revokes a key, so that the key is refused from every host.
    pub fn revoke(&mut self, key: &PublicKey, date: Date) {
        self.lines.retain(|line| match &line.entry {
            Some(Entry::Pin(pin)) => pin.key != *key,
            Some(Entry::RetiredKey(known, _)) => known != key,
            _ => true,
        });
        if !self.revoked().any(|known| known == key) {
            self.add(Entry::Revoked(key.clone(), Some(date)));
        }
    }

    /// Retires the host. The host is refused, and its keys are still recognised.
    pub fn retire(&mut self, date: Date) {
        self.lines.retain(|line| !matches!(line.entry, Some(Entry::RetiredHost(_))));
        self.add(Entry::RetiredHost(date));
    }

    /// Makes a retired host active again.
    pub fn revive(&mut self) {
        self.lines.retain(|line| !matches!(line.entry, Some(Entry::RetiredHost(_))));
    }

    /// Records that the host was found at `to`, and replaces the hint `from` by `to`.
    pub fn record_move(&mut self, from: IpAddr, to: IpAddr, date: Date) {
        self.drop_address(from);
        self.add_address(to);
        let is_move = |line: &Line| matches!(line.entry, Some(Entry::Seen(_)));
        while self.moves().count() >= MOVES_KEPT {
            let Some(oldest) = self.lines.iter().position(is_move) else { break };
            self.lines.remove(oldest);
        }
        self.add(Entry::Seen(Move { from, to, date }));
    }

    /// Replaces the hint `from` by the earlier address `to`, and records no move.
    pub fn record_return(&mut self, from: IpAddr, to: IpAddr) {
        self.drop_address(from);
        self.add_address(to);
    }

    pub fn add_address(&mut self, address: IpAddr) {
        if self.address().addresses.contains(&address) {
            return;
        }
        self.change_address(|all| all.addresses.push(address));
    }

    pub fn add_dns(&mut self, name: Name) {
        if !self.address().names.contains(&name) {
            self.change_address(|all| all.names.push(name));
        }
    }

    pub fn set_port(&mut self, port: u16) {
        if self.address().port != Some(port) {
            self.change_address(|all| all.port = Some(port));
        }
    }

    pub fn set_via(&mut self, via: Name) {
        self.change_address(|all| all.via = Some(via));
    }

    pub fn drop_address(&mut self, address: IpAddr) {
        self.drop_hint(|all| all.addresses.retain(|known| *known != address));
    }

    pub fn drop_dns(&mut self, name: &Name) {
        self.drop_hint(|all| all.names.retain(|known| known != name));
    }

    fn drop_hint(&mut self, drop: impl Fn(&mut Address)) {
        for line in &mut self.lines {
            if let Some(Entry::Address(all)) = &line.entry {
                let mut left = all.clone();
                drop(&mut left);
                if left != *all {
                    line.replace(Entry::Address(left));
                }
            }
        }
        let is_empty =
            |line: &Line| matches!(&line.entry, Some(Entry::Address(all)) if *all == Address::default());
        self.lines.retain(|line| !is_empty(line) || comment(&line.text).is_some());
    }

    pub fn add_alias(&mut self, alias: Name) {
        if !self.names().any(|name| *name == alias) {
            self.add(Entry::Alias(vec![alias]));
        }
    }

    fn drop_alias(&mut self, alias: &Name) {
        for line in &mut self.lines {
            if let Some(Entry::Alias(names)) = &line.entry
                && names.contains(alias)
            {
                let left: Vec<Name> = names.iter().filter(|name| *name != alias).cloned().collect();
                line.replace(Entry::Alias(left));
            }
        }
        self.lines.retain(|line| !matches!(&line.entry, Some(Entry::Alias(names)) if names.is_empty()));
    }

    /// Binds the host to an authority, and replaces an earlier binding to the same authority.
    pub fn bind(&mut self, signer: Signer) {
        self.unbind(&signer.authority);
        self.add(Entry::Signer(signer));
    }

    fn unbind(&mut self, authority: &Binding) {
        let is_same =
            |line: &Line| matches!(&line.entry, Some(Entry::Signer(known)) if known.authority == *authority);
        self.lines.retain(|line| !is_same(line));
    }

    /// Renames the host; the old name becomes an alias.
    pub fn rename(&mut self, name: Name) {
        let old = self.set_name(name);
        self.add_alias(old);
    }

    /// Names a host `[place]:port` by its place alone; the port becomes a hint.
    pub(in crate::identity) fn name_by_place(&mut self, place: Name, port: u16) {
        self.set_name(place);
        self.set_port(port);
    }

    /// Replaces the name. Returns the old name.
    fn set_name(&mut self, name: Name) -> Name {
        for line in &mut self.lines {
            if matches!(line.entry, Some(Entry::Id(_))) {
                line.replace(Entry::Id(name.clone()));
            }
        }
        self.drop_alias(&name);
        std::mem::replace(&mut self.name, name)
    }

    fn change_address(&mut self, change: impl FnOnce(&mut Address)) {
        let hints = |line: &mut Line| match &line.entry {
            Some(Entry::Address(all)) => Some(all.clone()),
            _ => None,
        };
        let first = self.lines.iter_mut().find_map(|line| hints(line).map(|all| (line, all)));
        if let Some((line, mut all)) = first {
            change(&mut all);
            line.replace(Entry::Address(all));
        } else {
            let mut all = Address::default();
            change(&mut all);
            let after_id = self.lines.iter().position(|line| matches!(line.entry, Some(Entry::Id(_))));
            self.lines.insert(after_id.map_or(0, |at| at + 1), Line::of(Entry::Address(all)));
        }
    }
}

impl Line {
    fn of(entry: Entry) -> Self {
        Self { text: entry.to_string(), entry: Some(entry) }
    }

    /// Replaces the entry of the line, and keeps its comment.
    fn replace(&mut self, entry: Entry) {
        let kept = comment(&self.text).map(str::to_owned);
        self.text = match kept {
            Some(comment) => format!("{entry}  {comment}"),
            None => entry.to_string(),
        };
        self.entry = Some(entry);
    }
}
