//! What an earlier process knew of backends that the DNS has not named yet: it is kept until their names are answered,
//! also over further restarts, and given to each backend when it appears.

use std::collections::BTreeMap;
use std::sync::Mutex;

use serde_json::Value;

use super::Millis;
use crate::lock::lock;

/// By the names of pool and backend.
#[derive(Default)]
pub struct Awaited(Mutex<BTreeMap<(String, String), Mark>>);

/// A backend as a file has it.
pub(super) struct Mark {
    /// When the file was written.
    pub(super) written: Millis,
    pub(super) backend: Value,
}

impl Awaited {
    pub(super) fn add(&self, pool: &str, backend: &str, mark: Mark) {
        lock(&self.0).insert((pool.to_owned(), backend.to_owned()), mark);
    }

    /// Calls `visit` with the names of pool and backend.
    pub(super) fn each(&self, mut visit: impl FnMut(&str, &str, &Value)) {
        for ((pool, backend), mark) in &*lock(&self.0) {
            visit(pool, backend, &mark.backend);
        }
    }

    pub(super) fn take(&self, pool: &str, backend: &str) -> Option<Mark> {
        let mut waiting = lock(&self.0);
        if waiting.is_empty() {
            return None;
        }
        waiting.remove(&(pool.to_owned(), backend.to_owned()))
    }

    /// Forgets backends of which `gone` returns true; it gets the names of pool and backend.
    pub fn forget(&self, gone: impl Fn(&str, &str) -> bool) {
        lock(&self.0).retain(|(pool, backend), _| !gone(pool, backend));
    }
}
