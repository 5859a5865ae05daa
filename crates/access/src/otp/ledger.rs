//! All tokens and API clients of a store. Every change is a record (`crates/access/src/otp/record.rs`), which the program that
//! keeps them must make durable before it tells a client that an OTP was good. `crates/access/src/otp/ledger/keys.rs` has the keys
//! that respond to challenges.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::oath::Code;
pub use super::record::Record;
use super::record::{Told, VERSION};
use super::seal::Key;
use super::token::{Effect, Kind, Moved, Refusal, Standing, Token};
use super::yubico::{self, Otp};

mod keys;

/// Largest number of tokens of a store.
pub const MOST_TOKENS: usize = 200_000;

/// Largest number of API clients of a store.
pub const MOST_CLIENTS: usize = 10_000;

/// Largest number of tokens of one user: each code is tried on all of them.
pub const MOST_OF_ONE: usize = 16;

/// Largest number of other validation servers of which it is remembered what they know.
const MOST_PEERS: usize = 64;

/// Longest name of a token or a user, in bytes.
pub const LONGEST_NAME: usize = 128;

/// A party that asks the validation server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its number.
    pub id: u32,
    /// What it is, for people.
    pub note: String,
    /// The key that signs its messages, sealed; `None` if it signs none.
    pub sealed: Option<String>,
}

/// Why a store takes no change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error("{name:?} is no name: up to {LONGEST_NAME} characters without spaces or control characters")]
    Name {
        /// What was given.
        name: String,
    },
    #[error(
        "there is a token {id} already: remove it first (penstock otp remove {id}), or give this one another name"
    )]
    Exists {
        /// The token.
        id: String,
    },
    #[error("there is no token {id}")]
    NoToken {
        /// What was given.
        id: String,
    },
    #[error("there is an API client {id} already")]
    ClientExists {
        /// Its number.
        id: u32,
    },
    #[error("there is no API client {id}")]
    NoClient {
        /// What was given.
        id: u32,
    },
    #[error("the store is full: it has {MOST_TOKENS} tokens or {MOST_CLIENTS} API clients; remove one first")]
    Full,
    #[error(
        "key {id} of {owner} has the same serial number, or none as well: say which key is which (--serial)"
    )]
    SameKey {
        /// The token that there is.
        id: String,
        /// The user.
        owner: String,
    },
    #[error("{owner} has {MOST_OF_ONE} tokens, which is the limit for one user; remove one first")]
    TooManyOfOne {
        /// The user.
        owner: String,
    },
}

/// What an OTP proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The token that made it.
    pub id: String,
    /// The user it belongs to.
    pub owner: Option<String>,
    /// What its use changed.
    pub moved: Moved,
    /// Number of that change.
    pub change: u64,
}

/// All tokens and API clients of a store.
#[derive(Debug)]
pub struct Ledger {
    key: Arc<Key>,
    tokens: BTreeMap<String, Token>,
    clients: BTreeMap<u32, Client>,
    owners: BTreeMap<String, Vec<String>>,
    /// Number of the last change of counters. It only grows, also over the life of a process.
    changes: u64,
    /// The token whose last change has this number.
    changed: BTreeMap<u64, String>,
    /// What other validation servers know.
    told: BTreeMap<String, Told>,
}

impl Ledger {
    /// An empty one.
    #[must_use]
    pub fn new(key: Key) -> Self {
        Self {
            key: Arc::new(key),
            tokens: BTreeMap::new(),
            clients: BTreeMap::new(),
            owners: BTreeMap::new(),
            changes: 0,
            changed: BTreeMap::new(),
            told: BTreeMap::new(),
        }
    }

    /// The key that seals its secrets.
    #[must_use]
    pub fn key(&self) -> &Arc<Key> {
        &self.key
    }

    /// All tokens, by name.
    pub fn tokens(&self) -> impl Iterator<Item = &Token> {
        self.tokens.values()
    }

    /// A token.
    #[must_use]
    pub fn token(&self, id: &str) -> Option<&Token> {
        self.tokens.get(id)
    }

    /// All API clients, by number.
    pub fn clients(&self) -> impl Iterator<Item = &Client> {
        self.clients.values()
    }

    /// An API client.
    #[must_use]
    pub fn client(&self, id: u32) -> Option<&Client> {
        self.clients.get(&id)
    }

    /// The tokens of a user.
    pub fn of_owner(&self, owner: &str) -> impl Iterator<Item = &Token> {
        self.owners.get(owner).into_iter().flatten().filter_map(|id| self.tokens.get(id))
    }

    /// Forgets all tokens and clients, to read them again.
    pub fn clear(&mut self) {
        (self.tokens, self.clients, self.owners) = Default::default();
        (self.changes, self.changed, self.told) = Default::default();
    }

    /// Number of the last change of counters.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Tokens whose counters have changed after a change, with the number of their last one, in that order.
    pub fn changed_after(&self, change: u64) -> impl Iterator<Item = (u64, &Token)> {
        let after = self.changed.range((Bound::Excluded(change), Bound::Unbounded));
        after.filter_map(|(number, id)| Some((*number, self.tokens.get(id)?)))
    }

    /// What another validation server knows.
    #[must_use]
    pub fn told(&self, peer: &str) -> Told {
        self.told.get(peer).copied().unwrap_or_default()
    }

    /// The record of what another validation server knows. `None` if too many servers are remembered: it is told all again
    /// after a restart.
    #[must_use]
    pub fn tell(&mut self, peer: &str, told: Told) -> Option<Record> {
        let is_known = self.told.contains_key(peer);
        (is_known || self.told.len() < MOST_PEERS).then(|| {
            self.told.insert(peer.to_owned(), told);
            Record::Told { peer: peer.to_owned(), told }
        })
    }

    /// The records that make this ledger from an empty one.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        let client = |client: &Client| Record::Client {
            id: client.id,
            note: client.note.clone(),
            sealed: client.sealed.clone(),
        };
        let tokens = self.tokens.values().map(|token| Record::Token(token.into()));
        let told = self.told.iter().map(|(peer, told)| Record::Told { peer: peer.clone(), told: *told });
        [self.first_record()].into_iter().chain(tokens).chain(self.clients.values().map(client)).chain(told)
    }

    fn first_record(&self) -> Record {
        Record::Store { version: VERSION, key: self.key.id().to_owned(), changes: self.changes }
    }

    /// Takes over a record of a journal. The reason says why it cannot be one of this store.
    pub fn take(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Store { version, key, changes } => {
                if version != VERSION {
                    return Err(format!("a newer version wrote it (records of version {version})"));
                }
                if key != self.key.id() {
                    return Err(format!("key {key} sealed it, not {}", self.key.id()));
                }
                self.changes = self.changes.max(changes);
            }
            Record::Token(stored) => {
                let token = stored.token()?;
                token.prove_sealed(&self.key).map_err(|why| why.to_string())?;
                self.remove(&token.id);
                if let Some(owner) = &token.owner {
                    self.owners.entry(owner.clone()).or_default().push(token.id.clone());
                }
                let id = token.id.clone();
                let (change, is_news) = (token.changed, token.position().is_some());
                self.tokens.insert(id.clone(), token);
                match change {
                    Some(change) => {
                        self.changes = self.changes.max(change);
                        self.changed.insert(change, id);
                    }
                    // Enrolled with counters that other servers must know.
                    None if is_news => self.count_change(&id),
                    None => {}
                }
            }
            Record::Used { id, moved, at } => {
                if self.existing(&id)?.take(&moved, at) == Effect::Moved {
                    self.count_change(&id);
                }
            }
            Record::Standing { id, now } => self.existing(&id)?.standing = now,
            Record::Owner { id, owner } => {
                let mut token = self.existing(&id)?.clone();
                token.owner = owner;
                self.take(Record::Token((&token).into()))?;
            }
            Record::Removed { id } => {
                self.existing(&id)?;
                self.remove(&id);
            }
            Record::Client { id, note, sealed } => {
                if let Some(sealed) = &sealed {
                    self.key
                        .open(&client_owner(id), sealed)
                        .map_err(|why| format!("API client {id}: {why}"))?;
                }
                self.clients.insert(id, Client { id, note, sealed });
            }
            Record::ClientRemoved { id } => drop(self.clients.remove(&id)),
            Record::Told { peer, told } => drop(self.told.insert(peer, told)),
        }
        Ok(())
    }

    /// The counters of a token have changed.
    fn count_change(&mut self, id: &str) {
        let Some(token) = self.tokens.get_mut(id) else { return };
        self.changes = self.changes.saturating_add(1);
        if let Some(before) = token.changed.replace(self.changes) {
            self.changed.remove(&before);
        }
        self.changed.insert(self.changes, id.to_owned());
    }

    fn existing(&mut self, id: &str) -> Result<&mut Token, String> {
        self.tokens.get_mut(id).ok_or_else(|| format!("a record of token {id}, which there is not"))
    }

    fn remove(&mut self, id: &str) {
        let Some(token) = self.tokens.remove(id) else { return };
        if let Some(change) = token.changed {
            self.changed.remove(&change);
        }
        if let Some(owner) = token.owner
            && let Some(ids) = self.owners.get_mut(&owner)
        {
            ids.retain(|other| other != id);
            if ids.is_empty() {
                self.owners.remove(&owner);
            }
        }
    }

    /// The record that enrols a token.
    pub fn enrol(&self, token: &Token) -> Result<Record, Unfit> {
        let names = [Some(&token.id), token.owner.as_ref()];
        if let Some(name) = names.into_iter().flatten().find(|name| !is_name(name)) {
            return Err(Unfit::Name { name: name.clone() });
        }
        if self.tokens.contains_key(&token.id) {
            return Err(Unfit::Exists { id: token.id.clone() });
        }
        if self.tokens.len() >= MOST_TOKENS {
            return Err(Unfit::Full);
        }
        self.has_room(token.owner.as_deref())?;
        self.is_another_key(token, token.owner.as_deref())?;
        Ok(Record::Token(token.into()))
    }

    fn has_room(&self, owner: Option<&str>) -> Result<(), Unfit> {
        match owner {
            Some(owner) if self.owners.get(owner).is_some_and(|ids| ids.len() >= MOST_OF_ONE) => {
                Err(Unfit::TooManyOfOne { owner: owner.to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// The record that gives a token to a user, or takes it from one.
    pub fn give(&self, id: &str, owner: Option<&str>) -> Result<Record, Unfit> {
        let id = self.named(id)?;
        if let Some(name) = owner.filter(|name| !is_name(name)) {
            return Err(Unfit::Name { name: name.to_owned() });
        }
        self.has_room(owner)?;
        if let Some(token) = self.tokens.get(&id) {
            self.is_another_key(token, owner)?;
        }
        Ok(Record::Owner { id, owner: owner.map(str::to_owned) })
    }

    /// The record that revokes a token or allows it again.
    pub fn set_standing(&self, id: &str, now: Standing) -> Result<Record, Unfit> {
        Ok(Record::Standing { id: self.named(id)?, now })
    }

    /// The record that removes a token. Its counters are lost: enrolled again, it would take old OTPs.
    pub fn removal(&self, id: &str) -> Result<Record, Unfit> {
        Ok(Record::Removed { id: self.named(id)? })
    }

    fn named(&self, id: &str) -> Result<String, Unfit> {
        self.tokens
            .contains_key(id)
            .then(|| id.to_owned())
            .ok_or_else(|| Unfit::NoToken { id: id.to_owned() })
    }

    /// The record of an API client with the next number, or with the given one. `nonce` is for its key.
    pub fn enrol_client(
        &self,
        id: Option<u32>,
        note: &str,
        secret: Option<(&[u8], [u8; super::seal::NONCE_BYTES])>,
    ) -> Result<Record, Unfit> {
        let next = self.clients.keys().next_back().map_or(1, |last| last.saturating_add(1));
        let id = id.unwrap_or(next);
        if self.clients.len() >= MOST_CLIENTS {
            return Err(Unfit::Full);
        }
        if note.len() > LONGEST_NAME || note.chars().any(char::is_control) {
            return Err(Unfit::Name { name: note.to_owned() });
        }
        let sealed = secret.map(|(secret, nonce)| self.key.seal(&client_owner(id), secret, nonce));
        Ok(Record::Client { id, note: note.to_owned(), sealed })
    }

    /// The record that removes an API client.
    pub fn client_removal(&self, id: u32) -> Result<Record, Unfit> {
        self.clients.contains_key(&id).then_some(Record::ClientRemoved { id }).ok_or(Unfit::NoClient { id })
    }

    /// The key that signs the messages of an API client.
    #[must_use]
    pub fn client_key(&self, client: &Client) -> Option<zeroize::Zeroizing<Vec<u8>>> {
        self.key.open(&client_owner(client.id), client.sealed.as_deref()?).ok()
    }

    /// Judges the OTP of a YubiKey by its public name alone. Of two that come at once, the second one is a replay: a good one
    /// is used up at once; if its record cannot be written, the ledger is read again from the disk.
    pub fn press(&mut self, otp: &Otp, nonce: &str, now: u64) -> Result<(Accepted, Record), Refusal> {
        let token = self.tokens.get(&otp.name).ok_or(Refusal::UnknownToken)?;
        let last = token.judge_press(&self.key, otp, nonce)?;
        let id = token.id.clone();
        Ok(self.accept(id, Moved::Pressed(last), now))
    }

    /// Judges what a user typed: the OTP of one of their YubiKeys, or a code of one of their other tokens.
    pub fn prove(
        &mut self,
        user: &str,
        typed: &str,
        nonce: &str,
        now: u64,
    ) -> Result<(Accepted, Record), Refusal> {
        if let Ok(otp) = Otp::read(typed) {
            let token = self.tokens.get(&otp.name).ok_or(Refusal::UnknownToken)?;
            if token.owner.as_deref() != Some(user) {
                return Err(Refusal::NotTheirs { id: token.id.clone() });
            }
            return self.press(&otp, nonce, now);
        }
        let code = Code::read(typed).ok_or(Refusal::NotAnOtp)?;
        let (mut refused, mut wrong) = (Refusal::UnknownToken, Vec::new());
        for id in self.owners.get(user).into_iter().flatten() {
            let Some(token) = self.tokens.get_mut(id) else { continue };
            if matches!(token.kind, Kind::Yubico { .. } | Kind::Challenge(_)) {
                continue;
            }
            match token.judge_code(&self.key, &code, nonce, now) {
                Ok(moved) => {
                    let id = id.clone();
                    return Ok(self.accept(id, moved, now));
                }
                Err(why) => {
                    if matches!(why, Refusal::WrongCode { .. }) {
                        wrong.push(id.clone());
                    }
                    // That a code was used before says more than that it is not one of another token.
                    if !matches!(refused, Refusal::Replayed { .. }) {
                        refused = why;
                    }
                }
            }
        }
        for id in wrong {
            if let Some(token) = self.tokens.get_mut(&id) {
                token.count_failure(now);
            }
        }
        Err(refused)
    }

    /// Brings a token back in step by two codes in a row.
    pub fn resync(&mut self, id: &str, codes: &[Code; 2], now: u64) -> Result<(Accepted, Record), Refusal> {
        let token = self.tokens.get_mut(id).ok_or(Refusal::UnknownToken)?;
        let moved = token.judge_resync(&self.key, codes, now)?;
        Ok(self.accept(id.to_owned(), moved, now))
    }

    /// Takes over what another server accepted. Returns what was known before, and the record if it is news; `None` for a token
    /// that there is not, or that is of another kind.
    pub fn follow(&mut self, id: &str, moved: Moved, now: u64) -> Option<(Option<Moved>, Option<Record>)> {
        let token = self.tokens.get(id)?;
        if !token.is_moved_by(&moved) {
            return None;
        }
        let before = token.position();
        let is_news = before.as_ref().is_none_or(|before| moved.order() > before.order());
        let record = is_news.then(|| self.accept(id.to_owned(), moved, now).1);
        Some((before, record))
    }

    fn accept(&mut self, id: String, moved: Moved, now: u64) -> (Accepted, Record) {
        let mut owner = None;
        if let Some(token) = self.tokens.get_mut(&id) {
            let effect = token.take(&moved, now);
            owner.clone_from(&token.owner);
            if effect == Effect::Moved {
                self.count_change(&id);
            }
        }
        let record = Record::Used { id: id.clone(), moved: moved.clone(), at: now };
        (Accepted { id, owner, moved, change: self.changes }, record)
    }
}

/// Whether a text may name a token or a user.
fn is_name(text: &str) -> bool {
    (1..=LONGEST_NAME).contains(&text.len()) && !text.chars().any(|c| c.is_whitespace() || c.is_control())
}

/// To what the key of an API client is bound: no token has such a name.
fn client_owner(id: u32) -> String {
    format!("api client {id}")
}

/// Whether a name could be the public name of a YubiKey.
#[must_use]
pub fn is_public_name(text: &str) -> bool {
    yubico::is_name(text)
}

#[cfg(test)]
mod tests {
    use super::super::oath::{Algorithm, Digits, Form, Shared};
    use super::super::token::Last;
    use super::super::yubico::{Counter, Press, Secret};
    use super::*;

    fn ledger() -> Ledger {
        Ledger::new(Key::read(&Key::text(&[7; 32])).unwrap())
    }

    fn secret() -> Secret {
        Secret::new([1; 16], [2; 6])
    }

    fn otp(session: u16, press: u8) -> Otp {
        let press = Press { counter: Counter { session, press }, timestamp: 7, random: 9 };
        Otp::read(&secret().typed_by("cccccccccccb", press)).unwrap()
    }

    fn typed(session: u16, press: u8) -> String {
        let press = Press { counter: Counter { session, press }, timestamp: 7, random: 9 };
        secret().typed_by("cccccccccccb", press)
    }

    fn with_key(owner: Option<&str>) -> Ledger {
        let mut ledger = ledger();
        let sealed = ledger.key().seal("cccccccccccb", &secret().bytes(), [3; 12]);
        let kind = Kind::Yubico { last: None };
        let token = Token::new("cccccccccccb".to_owned(), owner.map(str::to_owned), kind, sealed, 100);
        let record = ledger.enrol(&token).unwrap();
        ledger.take(record).unwrap();
        ledger
    }

    fn with_code(kind: Kind) -> Ledger {
        let mut ledger = ledger();
        let sealed = ledger.key().seal("alice-code", b"12345678901234567890", [4; 12]);
        let token = Token::new("alice-code".to_owned(), Some("alice".to_owned()), kind, sealed, 100);
        let record = ledger.enrol(&token).unwrap();
        ledger.take(record).unwrap();
        ledger
    }

    const FORM: Form = Form { algorithm: Algorithm::Sha1, digits: Digits::SIX };

    fn code(counter: u64) -> String {
        FORM.code(&Shared::new(b"12345678901234567890".to_vec()).unwrap(), counter)
    }

    #[test]
    fn counters_must_grow_and_the_same_request_is_told_from_a_replay() {
        let mut ledger = with_key(None);
        assert!(ledger.press(&otp(3, 4), "nonce-a", 200).is_ok());
        let id = || "cccccccccccb".to_owned();
        assert_eq!(
            ledger.press(&otp(3, 4), "nonce-a", 200).unwrap_err(),
            Refusal::ReplayedRequest { id: id() }
        );
        for (session, press) in [(3, 4), (3, 3), (2, 200), (0, 0)] {
            let counter = Some(Counter { session, press });
            assert_eq!(
                ledger.press(&otp(session, press), "nonce-b", 200).unwrap_err(),
                Refusal::Replayed { id: id(), counter }
            );
        }
        for (session, press) in [(3, 5), (4, 0), (0x7fff, 255)] {
            assert!(ledger.press(&otp(session, press), "nonce-c", 200).is_ok(), "{session} {press}");
        }
    }

    #[test]
    fn a_ledger_comes_back_from_its_records_and_from_the_whole_history() {
        let mut first = with_key(Some("alice"));
        let mut history: Vec<Record> = first.records().collect();
        history.push(first.press(&otp(3, 4), "n", 200).unwrap().1);
        history.push(first.set_standing("cccccccccccb", Standing::Revoked).unwrap());
        history.push(first.enrol_client(None, "vpn", Some((b"key", [5; 12]))).unwrap());
        for record in &history[2..] {
            first.take(record.clone()).unwrap();
        }
        let (mut second, mut third) = (ledger(), ledger());
        let texts: Vec<String> = history.iter().map(Record::text).collect();
        texts.iter().for_each(|text| second.take(Record::read(text).unwrap()).unwrap());
        first.records().for_each(|record| third.take(record).unwrap());
        for other in [&second, &third] {
            assert_eq!(other.tokens, first.tokens);
            assert_eq!(other.clients, first.clients);
            assert_eq!(other.owners, first.owners);
        }
        assert_eq!(
            second.press(&otp(9, 9), "n", 300).unwrap_err(),
            Refusal::Revoked { id: "cccccccccccb".to_owned() }
        );
        assert_eq!(second.client_key(second.client(1).unwrap()).unwrap().as_slice(), b"key");
    }

    #[test]
    fn an_otp_proves_its_owner_only() {
        let mut ledger = with_key(Some("alice"));
        assert!(matches!(ledger.prove("bob", &typed(1, 1), "n", 200), Err(Refusal::NotTheirs { .. })));
        assert_eq!(
            ledger.prove("alice", &typed(1, 1).to_uppercase(), "n", 200).unwrap().0.owner.as_deref(),
            Some("alice")
        );
        assert!(matches!(ledger.prove("alice", &typed(1, 1), "m", 200), Err(Refusal::Replayed { .. })));
        assert_eq!(ledger.prove("alice", "hello", "n", 200).unwrap_err(), Refusal::NotAnOtp);
        assert_eq!(ledger.prove("nobody", "123456", "n", 200).unwrap_err(), Refusal::UnknownToken);
        let other = Secret::new([9; 16], [2; 6])
            .typed_by("vvvv", Press { counter: Counter::default(), timestamp: 0, random: 0 });
        assert_eq!(ledger.prove("alice", &other, "n", 200).unwrap_err(), Refusal::UnknownToken);
    }

    #[test]
    fn a_code_by_counter_is_good_once_within_its_window_and_two_bring_it_back_in_step() {
        let mut ledger = with_code(Kind::Hotp { form: FORM, next: 0 });
        assert!(ledger.prove("alice", &code(3), "n", 200).is_ok());
        assert!(matches!(ledger.prove("alice", &code(3), "n", 200), Err(Refusal::Replayed { .. })));
        assert!(matches!(ledger.prove("alice", &code(15), "n", 200), Err(Refusal::WrongCode { .. })));
        let pair = [400, 401].map(|counter| Code::read(&code(counter)).unwrap());
        assert!(ledger.resync("alice-code", &pair, 200).is_ok());
        assert!(ledger.resync("alice-code", &pair, 200).is_err());
        assert!(ledger.prove("alice", &code(402), "n", 200).is_ok());
    }

    #[test]
    fn a_code_by_time_is_good_once_and_one_step_around() {
        let mut ledger = with_code(Kind::Totp { form: FORM, period: 30, last: None, drift: 0 });
        let now = 30 * 1000;
        assert!(matches!(ledger.prove("alice", &code(998), "n", now), Err(Refusal::WrongCode { .. })));
        assert!(ledger.prove("alice", &code(999), "n", now).is_ok());
        assert!(matches!(ledger.prove("alice", &code(999), "n", now), Err(Refusal::Replayed { .. })));
        assert!(ledger.prove("alice", &code(1001), "n", now).is_ok());
        assert!(matches!(ledger.prove("alice", &code(1000), "n", now), Err(Refusal::Replayed { .. })));
        // A clock that is 20 steps ahead.
        let pair = [1020, 1021].map(|step| Code::read(&code(step)).unwrap());
        assert!(ledger.resync("alice-code", &pair, now).is_ok());
        assert!(ledger.prove("alice", &code(1022), "n", now + 30).is_ok());
    }

    #[test]
    fn wrong_codes_in_a_row_must_wait_longer_and_longer() {
        let mut ledger = with_code(Kind::Hotp { form: FORM, next: 0 });
        for _ in 0..5 {
            assert!(matches!(ledger.prove("alice", "000000", "n", 200), Err(Refusal::WrongCode { .. })));
        }
        let refused = ledger.prove("alice", &code(0), "n", 200).unwrap_err();
        assert_eq!(refused.to_string(), "after 5 wrong codes the next one must wait 1 s");
        assert!(matches!(ledger.prove("alice", "000000", "n", 201), Err(Refusal::WrongCode { .. })));
        assert!(matches!(ledger.prove("alice", "000000", "n", 202), Err(Refusal::TooManyFailures { .. })));
        assert!(ledger.prove("alice", &code(0), "n", 203).is_ok());
        assert!(matches!(ledger.prove("alice", "000000", "n", 203), Err(Refusal::WrongCode { .. })));
    }

    #[test]
    fn codes_of_one_token_are_no_failures_of_another_one_of_the_same_user() {
        let mut ledger = with_code(Kind::Hotp { form: FORM, next: 0 });
        let sealed = ledger.key().seal("alice-b", &[9; 20], [4; 12]);
        let kind = Kind::Hotp { form: FORM, next: 0 };
        let other = Token::new("alice-b".to_owned(), Some("alice".to_owned()), kind, sealed, 1);
        let record = ledger.enrol(&other).unwrap();
        ledger.take(record).unwrap();
        for number in 0..10 {
            assert!(ledger.prove("alice", &code(number), "n", 200).is_ok());
        }
        let key = Arc::clone(ledger.key());
        let other = ledger.tokens.get_mut("alice-b").unwrap();
        let refused = other.judge_code(&key, &Code::read("000000").unwrap(), "n", 200);
        assert!(matches!(refused, Err(Refusal::WrongCode { .. })), "it need not wait: {refused:?}");
    }

    #[test]
    fn what_another_server_accepted_is_not_accepted_here() {
        let mut ledger = with_key(None);
        let last = |session, press, nonce: &str| {
            Moved::Pressed(Last { session, press, timestamp: 1, nonce: nonce.to_owned() })
        };
        let (before, record) = ledger.follow("cccccccccccb", last(5, 0, "there"), 200).unwrap();
        assert!(before.is_none() && record.is_some());
        assert!(matches!(ledger.press(&otp(5, 0), "here", 200), Err(Refusal::Replayed { .. })));
        let (before, record) = ledger.follow("cccccccccccb", last(4, 9, "late"), 200).unwrap();
        assert_eq!((before, record), (Some(last(5, 0, "there")), None));
        assert!(ledger.follow("vvvv", last(1, 1, "n"), 200).is_none());
        let code = Moved::Counted { next: 9, nonce: "n".to_owned() };
        assert!(ledger.follow("cccccccccccb", code, 200).is_none(), "a token of another kind");
    }

    #[test]
    fn codes_that_another_server_accepted_are_not_accepted_here() {
        for kind in
            [Kind::Hotp { form: FORM, next: 0 }, Kind::Totp { form: FORM, period: 30, last: None, drift: 0 }]
        {
            let (mut here, mut there) = (with_code(kind.clone()), with_code(kind));
            let now = 30 * 5;
            let (accepted, _) = there.prove("alice", &code(5), "there", now).unwrap();
            let (before, record) = here.follow("alice-code", accepted.moved.clone(), now).unwrap();
            assert!(before.is_none() && record.is_some());
            assert!(matches!(here.prove("alice", &code(5), "here", now), Err(Refusal::Replayed { .. })));
            // The same message once more tells what it told before.
            let (before, record) = here.follow("alice-code", accepted.moved.clone(), now).unwrap();
            assert_eq!((before, record), (Some(accepted.moved), None));
        }
    }

    #[test]
    fn changes_of_counters_have_numbers_that_outlive_a_shorter_journal() {
        let mut ledger = with_key(None);
        let mut records = Vec::new();
        assert_eq!((ledger.changes(), ledger.changed_after(0).count()), (0, 0), "it was never used");
        for press in 1..4 {
            let (accepted, record) = ledger.press(&otp(1, press), "n", 200).unwrap();
            assert_eq!(accepted.change, u64::from(press));
            records.push(record);
        }
        let changed: Vec<_> =
            ledger.changed_after(0).map(|(number, token)| (number, token.id.clone())).collect();
        assert_eq!(changed, [(3, "cccccccccccb".to_owned())]);
        assert_eq!(ledger.changed_after(3).count(), 0);
        records.push(ledger.tell("10.0.0.2:80", Told { through: 3, theirs: 7 }).unwrap());
        // One that reads the records one by one, and one that reads what a short journal has.
        let mut reader = with_key(None);
        records.into_iter().for_each(|record| reader.take(record).unwrap());
        let mut short = super::tests::ledger();
        ledger.records().for_each(|record| short.take(record).unwrap());
        for other in [&reader, &short] {
            assert_eq!((other.changes, &other.changed), (3, &ledger.changed));
            assert_eq!(other.told("10.0.0.2:80"), Told { through: 3, theirs: 7 });
            assert_eq!(other.told("10.0.0.3:80"), Told::default());
        }
        // The numbers of a token that is gone are not given again.
        let removal = ledger.removal("cccccccccccb").unwrap();
        ledger.take(removal).unwrap();
        let mut short = super::tests::ledger();
        ledger.records().for_each(|record| short.take(record).unwrap());
        assert_eq!((short.changes(), short.changed_after(0).count()), (3, 0));
    }

    #[test]
    fn names_and_numbers_have_limits() {
        let mut ledger = with_key(Some("alice"));
        let token = |id: &str, owner: &str| {
            let sealed = Key::read(&Key::text(&[7; 32])).unwrap().seal(id, &secret().bytes(), [3; 12]);
            Token::new(id.to_owned(), Some(owner.to_owned()), Kind::Yubico { last: None }, sealed, 1)
        };
        for (id, owner) in [("", "a"), ("a b", "a"), ("a", "b\n"), (&*"a".repeat(129), "a")] {
            assert!(matches!(ledger.enrol(&token(id, owner)), Err(Unfit::Name { .. })), "{id:?} {owner:?}");
        }
        assert!(matches!(ledger.enrol(&token("cccccccccccb", "bob")), Err(Unfit::Exists { .. })));
        for number in 1..MOST_OF_ONE {
            let record = ledger.enrol(&token(&format!("t{number}"), "alice")).unwrap();
            ledger.take(record).unwrap();
        }
        assert!(matches!(ledger.enrol(&token("one-more", "alice")), Err(Unfit::TooManyOfOne { .. })));
        assert_eq!(ledger.of_owner("alice").count(), MOST_OF_ONE);
        assert!(matches!(ledger.removal("nobody"), Err(Unfit::NoToken { .. })));
        assert!(matches!(ledger.client_removal(7), Err(Unfit::NoClient { id: 7 })));
    }

    #[test]
    fn a_record_of_another_key_or_version_or_token_is_refused() {
        let mut ledger = ledger();
        let refused = |record| ledger_error(&record);
        fn ledger_error(record: &Record) -> String {
            super::tests::ledger().take(record.clone()).unwrap_err()
        }
        assert!(
            refused(Record::Store { version: 2, key: ledger.key().id().to_owned(), changes: 0 })
                .contains("newer version")
        );
        assert!(
            refused(Record::Store { version: 1, key: "00000000".to_owned(), changes: 0 })
                .contains("key 00000000 sealed it")
        );
        assert!(refused(Record::Removed { id: "x".to_owned() }).contains("token x"));
        let token = Token::new("x".to_owned(), None, Kind::Yubico { last: None }, "AAAA".to_owned(), 1);
        assert!(ledger.take(Record::Token((&token).into())).unwrap_err().contains("does not open"));
    }
}
