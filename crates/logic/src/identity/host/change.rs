//! Changes of a host's file. Lines that are not concerned stay as they were written.

use std::net::IpAddr;

use super::{Address, Binding, Entry, HostFile, Line, MOVES_KEPT, Move, Pin, Signer};
use crate::identity::date::Date;
use crate::identity::line::comment;
use crate::identity::name::Name;
use crate::ssh::key::PublicKey;

impl HostFile {
    /// Adds a line after the last one of its kind, or at the end. Nothing happens if the same is said already.
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

    /// Pins a key, or says anew how a pinned one was proved. A retired key is in service again.
    pub fn pin_key(&mut self, pin: Pin) {
        self.lines.retain(|line| !matches!(&line.entry, Some(Entry::RetiredKey(key, _)) if *key == pin.key));
        let of_key =
            |line: &&mut Line| matches!(&line.entry, Some(Entry::Pin(known)) if known.key == pin.key);
        match self.lines.iter_mut().find(of_key) {
            Some(line) => line.replace(Entry::Pin(pin)),
            None => self.add(Entry::Pin(pin)),
        }
    }

    /// Takes a key out of service; it stays known as one that was the host's.
    pub fn retire_key(&mut self, key: &PublicKey, date: Date) {
        for line in &mut self.lines {
            if matches!(&line.entry, Some(Entry::Pin(pin)) if pin.key == *key) {
                line.replace(Entry::RetiredKey(key.clone(), date));
            }
        }
    }

    /// Marks a key as one that nobody may show.
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

    /// Retires the host: it is refused, and its keys stay known as its.
    pub fn retire(&mut self, date: Date) {
        self.lines.retain(|line| !matches!(line.entry, Some(Entry::RetiredHost(_))));
        self.add(Entry::RetiredHost(date));
    }

    /// Puts a retired host in service again.
    pub fn revive(&mut self) {
        self.lines.retain(|line| !matches!(line.entry, Some(Entry::RetiredHost(_))));
    }

    /// Records that the key was found at `to`: the hint `from` gives way to it.
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

    /// Records that it is where it was before: the hint `from` gives way to `to`, and no move is written.
    pub fn record_return(&mut self, from: IpAddr, to: IpAddr) {
        self.drop_address(from);
        self.add_address(to);
    }

    /// Adds a hint.
    pub fn add_address(&mut self, address: IpAddr) {
        if self.address().addresses.contains(&address) {
            return;
        }
        self.change_address(|all| all.addresses.push(address));
    }

    /// Adds the hint `dns:NAME`.
    pub fn add_dns(&mut self, name: Name) {
        if !self.address().names.contains(&name) {
            self.change_address(|all| all.names.push(name));
        }
    }

    /// Sets the hint `port=`.
    pub fn set_port(&mut self, port: u16) {
        if self.address().port != Some(port) {
            self.change_address(|all| all.port = Some(port));
        }
    }

    /// Sets the hint `via=`.
    pub fn set_via(&mut self, via: Name) {
        self.change_address(|all| all.via = Some(via));
    }

    /// Takes the hint of an address away.
    pub fn drop_address(&mut self, address: IpAddr) {
        self.drop_hint(|all| all.addresses.retain(|known| *known != address));
    }

    /// Takes the hint `dns:NAME` away.
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

    /// Adds another name.
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

    /// Binds it to an authority; a binding to the same one is replaced.
    pub fn bind(&mut self, signer: Signer) {
        self.unbind(&signer.authority);
        self.add(Entry::Signer(signer));
    }

    fn unbind(&mut self, authority: &Binding) {
        let is_same =
            |line: &Line| matches!(&line.entry, Some(Entry::Signer(known)) if known.authority == *authority);
        self.lines.retain(|line| !is_same(line));
    }

    /// Gives it another name; the old one stays as an alias.
    pub fn rename(&mut self, name: Name) {
        for line in &mut self.lines {
            if matches!(line.entry, Some(Entry::Id(_))) {
                line.replace(Entry::Id(name.clone()));
            }
        }
        let old = std::mem::replace(&mut self.name, name.clone());
        self.drop_alias(&name);
        self.add_alias(old);
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

    /// Says something else, and keeps the comment.
    fn replace(&mut self, entry: Entry) {
        let kept = comment(&self.text).map(str::to_owned);
        self.text = match kept {
            Some(comment) => format!("{entry}  {comment}"),
            None => entry.to_string(),
        };
        self.entry = Some(entry);
    }
}
