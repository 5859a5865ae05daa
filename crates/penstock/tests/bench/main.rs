//! `penstock bench` with tiny runs.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod docker;
mod dsr;
mod forwarded;
mod relays;
mod robust;
mod scenarios;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Runs that measure would take each other's cores: then a trial ends before the target had its turn. And the kernel gives
/// the number of a network namespace that ended to the next one, so a run that looks for its own must be the only one.
fn only_run() -> MutexGuard<'static, ()> {
    static RUN: Mutex<()> = Mutex::new(());
    RUN.lock().unwrap_or_else(PoisonError::into_inner)
}
