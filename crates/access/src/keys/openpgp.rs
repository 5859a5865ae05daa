//! OpenPGP keys for the DNS (RFC 9580): read from a file, and written in their smallest form for one mail address.
//!
//! A key is a sequence of packets, and the smallest form is a choice of them: the primary key, the user ID of the address, the
//! subkeys, and of each the newest signature by the primary key. A signature that does not hold is none: any person can add a
//! user ID to a key of another one.

use super::owner::{Owner, OwnerFault};
use fault::MOST_PACKETS;
use packet::{Packet, Signature, Tag};
use verify::Subject;

mod armor;
mod fault;
mod packet;
mod verify;

pub use fault::KeyFault;

/// A mail address. The case of the local part is kept: RFC 7929 section 3 has the hash of it as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    pub local_part: String,
    pub domain: Owner,
}

impl Address {
    /// Reads `alice@example.org`. Quoted local parts are refused.
    pub fn parse(text: &str) -> Result<Self, OwnerFault> {
        let wrong = || OwnerFault::Address(text.chars().filter(|c| !c.is_control()).take(80).collect());
        let (local_part, domain) = text.rsplit_once('@').ok_or_else(wrong)?;
        let is_plain = |c: char| !c.is_control() && !c.is_whitespace() && !"\"(),:;<>@[\\]".contains(c);
        let has_dots = local_part.split('.').any(str::is_empty);
        if local_part.is_empty() || local_part.len() > 64 || has_dots || !local_part.chars().all(is_plain) {
            return Err(wrong());
        }
        let domain = Owner::parse(domain).map_err(|_| wrong())?;
        Ok(Self { local_part: local_part.to_owned(), domain })
    }

    /// Names of its OPENPGPKEY records: that of the address as it is written, and that of its lower case, by which GnuPG asks.
    pub fn openpgpkey_owners(&self) -> Result<Vec<Owner>, OwnerFault> {
        let mut owners = vec![Owner::of_mailbox(&self.local_part, &self.domain)?];
        let lower = self.local_part.to_lowercase();
        if lower != self.local_part {
            owners.push(Owner::of_mailbox(&lower, &self.domain)?);
        }
        Ok(owners)
    }

    /// Name of its CERT records: the address with a dot in place of the at sign, as GnuPG asks (RFC 4398 section 3.4).
    pub fn cert_owner(&self) -> Result<Owner, OwnerFault> {
        Owner::parse(&format!("{}.{}", self.local_part, self.domain))
    }

    fn is(&self, other: &Self) -> bool {
        self.domain == other.domain && self.local_part.eq_ignore_ascii_case(&other.local_part)
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.local_part, self.domain)
    }
}

/// A transferable public key (RFC 9580 section 10.1).
#[derive(Clone, Debug)]
pub struct Key {
    fingerprint: Vec<u8>,
    created: u64,
    primary: Part,
    users: Vec<Part>,
    subkeys: Vec<Part>,
}

/// A packet with the signatures behind it.
#[derive(Clone, Debug)]
struct Part {
    packet: Packet,
    signatures: Vec<(Packet, Signature)>,
}

/// Reads the keys of a file, binary or in ASCII armor.
pub fn read(file: &[u8]) -> Result<Vec<Key>, KeyFault> {
    let bytes = armor::remove(file)?;
    let mut keys: Vec<Key> = Vec::new();
    // What comes behind a packet that is not kept belongs to it, and is not kept either.
    let mut keeps = false;
    for (count, packet) in packet::walk(&bytes).enumerate() {
        let packet = packet?;
        if count >= MOST_PACKETS {
            return Err(KeyFault::TooMany);
        }
        match packet.tag {
            Tag::SecretKey => return Err(KeyFault::Secret),
            Tag::PublicKey => {
                let (fingerprint, created) = packet.key()?;
                let primary = Part { packet, signatures: Vec::new() };
                keys.push(Key { fingerprint, created, primary, users: Vec::new(), subkeys: Vec::new() });
                keeps = true;
            }
            Tag::UserId | Tag::Subkey => {
                let key = keys.last_mut().ok_or(KeyFault::NoKey)?;
                let parts = if packet.tag == Tag::UserId { &mut key.users } else { &mut key.subkeys };
                parts.push(Part { packet, signatures: Vec::new() });
                keeps = true;
            }
            Tag::Signature if keeps => {
                let key = keys.last_mut().ok_or(KeyFault::NoKey)?;
                let signature = packet.signature();
                let part = key.last_part();
                part.signatures.extend(signature.map(|signature| (packet, signature)));
            }
            Tag::Signature => {}
            Tag::Attribute => keeps = false,
            Tag::Other(_) => {}
        }
    }
    if keys.is_empty() { Err(KeyFault::NoKey) } else { Ok(keys) }
}

impl Key {
    /// 20 bytes of version 4, 32 of version 6.
    pub fn fingerprint(&self) -> &[u8] {
        &self.fingerprint
    }

    /// Mail addresses of its user IDs.
    pub fn addresses(&self) -> Vec<Address> {
        let mut found: Vec<Address> = Vec::new();
        for address in self.users.iter().filter_map(Part::address) {
            if !found.contains(&address) {
                found.push(address);
            }
        }
        found
    }

    /// The key as small as it can be for this address. `now` is seconds of Unix time.
    pub fn minimal(&self, address: &Address, now: u64) -> Result<Vec<u8>, KeyFault> {
        let name = super::record::hex(&self.fingerprint).to_uppercase();
        if !verify::is_known(&self.primary.packet) {
            return Err(KeyFault::Algorithm(name));
        }
        if self.own(&self.primary).any(|(_, signature)| signature.kind == KEY_REVOCATION) {
            return Err(KeyFault::Revoked(name));
        }
        let fits = |part: &&Part| part.address().is_some_and(|own| own.is(address));
        let users: Vec<&Part> = self.users.iter().filter(fits).collect();
        if users.is_empty() {
            let has: Vec<String> = self.addresses().iter().map(ToString::to_string).collect();
            let has = if has.is_empty() { "no address".to_owned() } else { has.join(", ") };
            return Err(KeyFault::OtherAddress { key: name, address: address.to_string(), has });
        }
        let newest = |part, kinds: &[u8]| {
            let own = self.own(part).filter(|(_, signature)| kinds.contains(&signature.kind));
            own.max_by_key(|(_, signature)| signature.created)
        };
        let mut chosen = vec![&self.primary.packet];
        let direct = newest(&self.primary, &[DIRECT_KEY]);
        chosen.extend(direct.map(|(packet, _)| packet));
        let mut ends = direct.and_then(|(_, signature)| signature.key_expires);
        let (mut revoked, mut kept) = (false, false);
        for user in users {
            let revocation = newest(user, &[USER_REVOCATION]).map(|(_, signature)| signature.created);
            let Some((packet, signature)) = newest(user, &CERTIFICATIONS) else { continue };
            if revocation.is_some_and(|at| at >= signature.created) {
                revoked = true;
                continue;
            }
            kept = true;
            ends = signature.key_expires.or(ends);
            chosen.extend([&user.packet, packet]);
        }
        match (kept, revoked) {
            (true, _) => {}
            (false, true) => return Err(KeyFault::RevokedAddress(address.to_string())),
            (false, false) => return Err(KeyFault::Unsigned(address.to_string())),
        }
        let is_over = |created: u64, lives: Option<u32>| {
            lives.is_some_and(|lives| lives != 0 && created.saturating_add(u64::from(lives)) <= now)
        };
        if is_over(self.created, ends) {
            return Err(KeyFault::Expired(name));
        }
        for subkey in &self.subkeys {
            let Some((packet, signature)) = newest(subkey, &[SUBKEY_BINDING]) else { continue };
            let created = subkey.packet.key().map_or(0, |(_, created)| created);
            let is_revoked = newest(subkey, &[SUBKEY_REVOCATION]).is_some();
            if !is_revoked && !is_over(created, signature.key_expires) {
                chosen.extend([&subkey.packet, packet]);
            }
        }
        Ok(chosen.iter().flat_map(|packet| packet.whole.iter().copied()).collect())
    }

    /// Signatures of a part that this key has made.
    fn own<'k>(&'k self, part: &'k Part) -> impl Iterator<Item = &'k (Packet, Signature)> {
        let subject = match part.packet.tag {
            Tag::UserId => Subject::User(&part.packet),
            Tag::Subkey => Subject::Subkey(&part.packet),
            _ => Subject::Key,
        };
        let named = part.signatures.iter().filter(|(_, signature)| signature.is_by(&self.fingerprint));
        named.filter(move |(_, signature)| verify::holds(&self.primary.packet, subject, signature))
    }

    fn last_part(&mut self) -> &mut Part {
        // Subkeys come behind user IDs.
        self.subkeys.last_mut().or(self.users.last_mut()).unwrap_or(&mut self.primary)
    }
}

impl Part {
    /// The mail address of a user ID: `Alice <alice@example.org>` or `alice@example.org`.
    fn address(&self) -> Option<Address> {
        let text = std::str::from_utf8(&self.packet.body).ok()?;
        let text = match text.rsplit_once('<') {
            Some((_, rest)) => rest.strip_suffix('>')?,
            None => text,
        };
        Address::parse(text.trim()).ok()
    }
}

/// Signature types (RFC 9580 section 5.2.1).
const CERTIFICATIONS: [u8; 4] = [0x10, 0x11, 0x12, 0x13];
const SUBKEY_BINDING: u8 = 0x18;
const DIRECT_KEY: u8 = 0x1f;
const KEY_REVOCATION: u8 = 0x20;
const SUBKEY_REVOCATION: u8 = 0x28;
const USER_REVOCATION: u8 = 0x30;

/// For fuzzing: reads what may be a file of keys, and uses all that is in it.
pub fn try_all(file: &[u8]) {
    for key in read(file).unwrap_or_default() {
        for address in key.addresses() {
            let _ = (key.minimal(&address, u64::MAX), key.minimal(&address, 0), address.cert_owner());
        }
    }
}

#[cfg(test)]
mod tests;
