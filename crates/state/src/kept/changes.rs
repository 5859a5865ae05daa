//! The history of live changes. Their texts may have secrets, as the file of the configuration may: only the user of
//! the process can read the file.

use std::sync::Arc;

use logic::transaction::{Cause, Entry, Memory, Operator, Remembered};
use serde::{Deserialize, Serialize};

use super::{Clock, Millis, millis};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changes {
    pub at: Millis,
    served: String,
    source: String,
    newest: Option<u64>,
    head: Option<u64>,
    saved: Option<u64>,
    entries: Vec<KeptEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptEntry {
    number: u64,
    at: Millis,
    by: Option<KeptOperator>,
    cause: KeptCause,
    what: String,
    before: String,
    head_before: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    dropped: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptOperator {
    uid: u32,
    name: Option<String>,
    pid: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    login: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum KeptCause {
    Change,
    Undo,
    Expiry,
    Reload,
    Start,
}

impl Changes {
    pub fn of(memory: &Memory, at: Millis) -> Self {
        let Remembered { entries, newest, head, saved } = &memory.history;
        Self {
            at,
            served: memory.served.to_string(),
            source: memory.source.to_string(),
            newest: *newest,
            head: *head,
            saved: *saved,
            entries: entries.iter().map(KeptEntry::of).collect(),
        }
    }

    pub fn memory(self, clock: &Clock) -> Memory {
        let entries = self.entries.into_iter().map(|entry| entry.entry(clock)).collect();
        Memory {
            history: Remembered { entries, newest: self.newest, head: self.head, saved: self.saved },
            served: self.served.into(),
            source: self.source.into(),
        }
    }
}

impl KeptEntry {
    fn of(entry: &Entry) -> Self {
        let operator = |by: &Operator| {
            let (name, login) = (by.name.clone(), by.login.clone());
            KeptOperator { uid: by.uid, name, pid: by.pid, login }
        };
        Self {
            number: entry.number,
            at: millis(entry.at),
            by: entry.by.as_ref().map(operator),
            cause: match entry.cause {
                Cause::Change => KeptCause::Change,
                Cause::Undo => KeptCause::Undo,
                Cause::Expiry => KeptCause::Expiry,
                Cause::Reload => KeptCause::Reload,
                Cause::Start => KeptCause::Start,
            },
            what: entry.what.clone(),
            before: entry.before.to_string(),
            head_before: entry.head_before,
            dropped: entry.dropped.clone(),
        }
    }

    fn entry(self, clock: &Clock) -> Entry {
        Entry {
            number: self.number,
            at: clock.wall(self.at),
            by: self.by.map(|by| Operator { uid: by.uid, name: by.name, pid: by.pid, login: by.login }),
            cause: match self.cause {
                KeptCause::Change => Cause::Change,
                KeptCause::Undo => Cause::Undo,
                KeptCause::Expiry => Cause::Expiry,
                KeptCause::Reload => Cause::Reload,
                KeptCause::Start => Cause::Start,
            },
            what: self.what,
            before: Arc::from(self.before),
            head_before: self.head_before,
            dropped: self.dropped,
        }
    }
}
