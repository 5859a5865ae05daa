//! A runtime with threads of its own, or the reason why there is none.

use std::io;
use std::sync::RwLock;
use std::thread;

use tokio::runtime::{Builder, Runtime};

use crate::output::Failure;

/// A runtime with so many workers.
///
/// # Errors
/// The kernel gives this user no more threads. Tokio would panic: so as many as it needs at first are started before, and end again.
pub fn runtime(workers: usize) -> Result<Runtime, Failure> {
    // The workers, and one that may wait: for the DNS, a file, a terminal.
    let needed = workers + 1;
    try_out(needed).map_err(|error| {
        Failure::runtime(format_args!(
            "cannot start {needed} threads: {error}\n  hint: this user has too many processes (ulimit -u), or the service \
             has too many tasks (TasksMax)"
        ))
    })?;
    Ok(Builder::new_multi_thread().worker_threads(workers).enable_all().build()?)
}

/// Whether so many threads can be had at once.
fn try_out(threads: usize) -> io::Result<()> {
    let gate = RwLock::new(());
    thread::scope(|scope| {
        let closed = gate.write();
        let started: io::Result<Vec<_>> =
            (0..threads).map(|_| thread::Builder::new().spawn_scoped(scope, || drop(gate.read()))).collect();
        drop(closed);
        // They are gone when the runtime starts its own.
        started.map(|threads| threads.into_iter().for_each(|thread| _ = thread.join()))
    })
}
