//! The requests and sessions of a worker that wait for a backend. When the health of a backend changes, the worker wakes
//! them, and each decides anew: `logic/src/retry.rs` has the rule, `http/moving.rs` applies it.

use std::cell::RefCell;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Instant;

use slab::Slab;
use state::BackendState;

#[derive(Default)]
pub struct Waits(RefCell<Slab<Waker>>);

impl Waits {
    /// Wakes all that wait. Each costs one poll, and a change of health is rare.
    pub fn wake(&self) {
        for (_, waker) in self.0.borrow().iter() {
            waker.wake_by_ref();
        }
    }
}

/// A wait at one backend. It is registered from its first poll until it is dropped.
pub(crate) struct BackendWait<'a> {
    waits: &'a Waits,
    backend: &'a Arc<BackendState>,
    /// Number of outages when the wait began: a request that was sent to a backend which was down already stays there.
    outages: u32,
    number: Option<usize>,
    lost: Option<Instant>,
}

impl<'a> BackendWait<'a> {
    pub(crate) fn new(waits: &'a Waits, backend: &'a Arc<BackendState>) -> Self {
        Self { waits, backend, outages: backend.outages(), number: None, lost: None }
    }

    /// Returns since when the backend has been known to be down, if it became so during the wait. The task of `cx` is
    /// woken when that changes.
    pub(crate) fn poll_lost(&mut self, cx: &mut Context<'_>) -> Option<Instant> {
        let mut waits = self.waits.0.borrow_mut();
        match self.number {
            Some(number) => {
                if !waits[number].will_wake(cx.waker()) {
                    waits[number] = cx.waker().clone();
                }
            }
            None => self.number = Some(waits.insert(cx.waker().clone())),
        }
        if self.backend.outages() == self.outages || self.backend.is_up() {
            self.lost = None;
        } else if self.lost.is_none() {
            self.lost = Some(Instant::now());
        }
        self.lost
    }
}

impl Drop for BackendWait<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.waits.0.borrow_mut().remove(number);
        }
    }
}
