//! Locks that ignore poisoning by a panic.

use std::sync::{Mutex, MutexGuard};

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Safe after a panic: each holder does a single operation, so the map stays consistent.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
