//! Changes of a store as its journal has them: one line of JSON each.

use serde::{Deserialize, Serialize};

use super::challenge::Exchange;
use super::token::{Kind, Last, Moved, Standing, StoredForm, Token};

/// Version of the records.
pub(super) const VERSION: u32 = 1;

/// A change of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "r", rename_all = "kebab-case")]
pub enum Record {
    /// The first record: what reads it must know this version and have this key.
    Store {
        /// Version of the records.
        version: u32,
        /// Id of the key.
        key: String,
        /// Number of the last change of counters.
        #[serde(default)]
        changes: u64,
    },
    /// A token with all its state, instead of one of the same name.
    Token(StoredToken),
    /// An OTP was accepted.
    Used {
        /// The token.
        id: String,
        /// What that changed.
        moved: Moved,
        /// Seconds since 1970.
        at: u64,
    },
    /// A token may be used no more, or again.
    Standing {
        /// The token.
        id: String,
        /// Whether it may.
        now: Standing,
    },
    /// A token belongs to another user.
    Owner {
        /// The token.
        id: String,
        /// The user.
        owner: Option<String>,
    },
    /// A token is gone.
    Removed {
        /// The token.
        id: String,
    },
    /// An API client, instead of one with the same number.
    Client {
        /// Its number.
        id: u32,
        /// What it is.
        note: String,
        /// Its key, sealed.
        sealed: Option<String>,
    },
    /// An API client is gone.
    ClientRemoved {
        /// Its number.
        id: u32,
    },
    /// Another validation server knows all changes of counters up to one.
    Told {
        /// Its address.
        peer: String,
        /// How far.
        #[serde(flatten)]
        told: Told,
    },
}

/// What another validation server knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// It was told all changes up to this one.
    pub through: u64,
    /// The number of its own last change, as it said. With a lower one it has lost some, and must be told all again.
    pub theirs: u64,
}

impl Record {
    /// Its text in a journal: one line of JSON.
    #[must_use]
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the text of a record.
    pub fn read(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| format!("it is no record: {error}"))
    }
}

/// A token in a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredToken {
    id: String,
    owner: Option<String>,
    kind: StoredKind,
    standing: Standing,
    sealed: String,
    enrolled: u64,
    used: Option<u64>,
    /// Nonce of the request with the code that was accepted last.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    nonce: String,
    /// Number of the last change of its counters; a record without it is that change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    changed: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum StoredKind {
    Yubico { last: Option<Last> },
    Hotp { form: StoredForm, next: u64 },
    Totp { form: StoredForm, period: u64, last: Option<u64>, drift: i64 },
    Challenge(Exchange),
}

impl From<&Token> for StoredToken {
    fn from(token: &Token) -> Self {
        let kind = match &token.kind {
            Kind::Yubico { last } => StoredKind::Yubico { last: last.clone() },
            Kind::Hotp { form, next } => StoredKind::Hotp { form: (*form).into(), next: *next },
            Kind::Totp { form, period, last, drift } => {
                StoredKind::Totp { form: (*form).into(), period: *period, last: *last, drift: *drift }
            }
            Kind::Challenge(exchange) => StoredKind::Challenge(exchange.clone()),
        };
        Self {
            id: token.id.clone(),
            owner: token.owner.clone(),
            kind,
            standing: token.standing,
            sealed: token.sealed.clone(),
            enrolled: token.enrolled,
            used: token.used,
            nonce: token.nonce.clone(),
            changed: token.changed,
        }
    }
}

impl StoredToken {
    pub(super) fn token(self) -> Result<Token, String> {
        let kind = match self.kind {
            StoredKind::Yubico { last } => Kind::Yubico { last },
            StoredKind::Hotp { form, next } => Kind::Hotp { form: form.form()?, next },
            StoredKind::Totp { form, period, last, drift } => {
                Kind::Totp { form: form.form()?, period, last, drift }
            }
            StoredKind::Challenge(exchange) => Kind::Challenge(exchange),
        };
        let mut token = Token::new(self.id, self.owner, kind, self.sealed, self.enrolled);
        (token.standing, token.used) = (self.standing, self.used);
        (token.nonce, token.changed) = (self.nonce, self.changed);
        Ok(token)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::ledger::Ledger;
    use super::super::seal::Key;
    use super::*;

    fn records() -> Vec<String> {
        let key = Key::read(&Key::text(&[7; 32])).unwrap();
        let mut ledger = Ledger::new(key);
        let form = StoredForm::from(super::super::oath::Form {
            algorithm: super::super::oath::Algorithm::Sha1,
            digits: super::super::oath::Digits::SIX,
        });
        let sealed = ledger.key().seal("t", &[9; 20], [4; 12]);
        let kind = StoredKind::Totp { form, period: 30, last: Some(7), drift: -2 };
        let token = StoredToken {
            id: "t".to_owned(),
            owner: Some("alice".to_owned()),
            kind,
            standing: Standing::Active,
            sealed,
            enrolled: 1,
            used: None,
            nonce: "n".to_owned(),
            changed: Some(5),
        };
        let told = Told { through: 5, theirs: 9 };
        ledger.take(Record::Token(token)).unwrap();
        let moved = Moved::Stepped { last: 9, drift: 1, nonce: "m".to_owned() };
        ledger.take(Record::Used { id: "t".to_owned(), moved, at: 3 }).unwrap();
        drop(ledger.tell("10.0.0.2:80", told));
        ledger.records().map(|record| record.text()).collect()
    }

    #[test]
    fn records_come_back_and_those_without_numbers_of_changes_are_read() {
        for text in records() {
            assert_eq!(Record::read(&text).unwrap().text(), text);
        }
        let before = r#"{"r":"store","version":1,"key":"00"}"#;
        let store = Record::Store { version: 1, key: "00".to_owned(), changes: 0 };
        assert_eq!(Record::read(before), Ok(store));
        let before = r#"{"r":"used","id":"t","moved":{"counted":{"next":4}},"at":3}"#;
        let moved = Moved::Counted { next: 4, nonce: String::new() };
        assert_eq!(Record::read(before), Ok(Record::Used { id: "t".to_owned(), moved, at: 3 }));
    }

    proptest! {
        #[test]
        fn any_change_of_a_record_is_read_or_refused(
            which in 0..3_usize, at in any::<prop::sample::Index>(), by in "[ -~]{0,3}", length in 0..3_usize,
        ) {
            let mut text = records().swap_remove(which);
            let at = at.index(text.len());
            let end = (at + length).min(text.len());
            text.replace_range(at..end, &by);
            let mut ledger = Ledger::new(Key::read(&Key::text(&[7; 32])).unwrap());
            if let Ok(record) = Record::read(&text) {
                let _ = ledger.take(record);
                let _ = ledger.records().count();
            }
        }
    }
}
