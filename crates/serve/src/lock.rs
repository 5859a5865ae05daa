//! Locks that a panic elsewhere does not poison.

use std::sync::{Mutex, MutexGuard};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while holding one of these locks leaves a map that is still whole: each holder does one operation.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
