//! Backends that were removed. One that comes back while sessions are open on it has its state of before: they count for
//! its limits, and an operator who drains it is told of them. An undo also brings back the marks of operators.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Instant, SystemTime};

use crate::lock::lock;
use crate::queue::Queue;
use crate::{Admission, BackendKey, BackendState, Drain};

/// Removed backends that are remembered at most.
const MOST: usize = 10_000;

#[derive(Debug, Default)]
pub struct Removed {
    backends: Mutex<Backends>,
    queues: Mutex<HashMap<Arc<str>, Weak<Queue>>>,
    /// Whether the next snapshot is that of an undo.
    brings_marks: AtomicBool,
}

#[derive(Debug, Default)]
struct Backends {
    all: HashMap<BackendKey, Kept>,
    /// Number of the next one.
    next: u64,
}

#[derive(Debug)]
struct Kept {
    state: Weak<BackendState>,
    marks: Marks,
    number: u64,
}

/// What an operator has set on a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Marks {
    drain: Option<Drain>,
    weight: Option<u32>,
}

impl Marks {
    fn of(backend: &BackendState) -> Self {
        let unknown = || Drain { by: "unknown".to_owned(), at: SystemTime::now(), until: None };
        let drain = (backend.asked_admission() == Admission::Draining)
            .then(|| backend.drain().unwrap_or_else(unknown));
        Self { drain, weight: backend.weight_override() }
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Sets them, and says which.
    fn set(self, backend: &BackendState, now: Instant) -> Vec<&'static str> {
        let mut said = Vec::new();
        // A drain may have ended meanwhile.
        if let Some(drain) = self.drain.filter(|drain| drain.until.is_none_or(|until| until > now)) {
            backend.note_drain(drain);
            said.push("drained");
        }
        if self.weight.is_some() {
            backend.set_weight_override(self.weight);
            said.push("weight of an operator");
        }
        said
    }
}

/// Until it is dropped, backends that come back get the marks that they had.
#[must_use]
pub struct BringsMarks<'r>(&'r Removed);

impl Drop for BringsMarks<'_> {
    fn drop(&mut self) {
        self.0.brings_marks.store(false, Relaxed);
    }
}

impl Removed {
    /// To be called before the snapshot of an undo is built.
    pub fn bring_marks(&self) -> BringsMarks<'_> {
        self.brings_marks.store(true, Relaxed);
        BringsMarks(self)
    }

    pub(crate) fn add(&self, gone: Vec<(BackendKey, Arc<BackendState>)>) {
        if gone.is_empty() {
            return;
        }
        let mut backends = lock(&self.backends);
        for (key, state) in gone {
            let (state, marks) = (Arc::downgrade(&state), Marks::of(&state));
            let number = backends.next;
            backends.next += 1;
            backends.all.insert(key, Kept { state, marks, number });
        }
        backends.all.retain(|_, kept| kept.state.strong_count() > 0 || !kept.marks.is_empty());
        if let Some(first) = backends.next.checked_sub(MOST as u64).filter(|_| backends.all.len() > MOST) {
            backends.all.retain(|_, kept| kept.number >= first);
        }
    }

    pub(crate) fn add_queues(&self, gone: Vec<(Arc<str>, Arc<Queue>)>) {
        let mut queues = lock(&self.queues);
        queues.retain(|_, queue| queue.strong_count() > 0);
        queues.extend(gone.into_iter().map(|(pool, queue)| (pool, Arc::downgrade(&queue))));
    }

    /// Backends that have open sessions.
    pub(crate) fn in_use(&self) -> HashMap<BackendKey, Arc<BackendState>> {
        let backends = lock(&self.backends);
        let in_use = backends.all.iter().filter_map(|(key, kept)| {
            let state = kept.state.upgrade().filter(|state| state.in_flight.load(Relaxed) > 0)?;
            Some((key.clone(), state))
        });
        in_use.collect()
    }

    /// Queues that the ends of sessions call.
    pub(crate) fn queues_in_use(&self) -> HashMap<Arc<str>, Arc<Queue>> {
        let queues = lock(&self.queues);
        queues.iter().filter_map(|(pool, queue)| Some((pool.clone(), queue.upgrade()?))).collect()
    }

    /// A backend is served again. Returns the marks that it has got back.
    pub(crate) fn returns(&self, key: &BackendKey, backend: &Arc<BackendState>) -> Vec<&'static str> {
        let Some(kept) = lock(&self.backends).all.remove(key) else { return Vec::new() };
        // The state of before has them still.
        let is_same = std::ptr::eq(kept.state.as_ptr(), Arc::as_ptr(backend));
        if is_same || !self.brings_marks.load(Relaxed) {
            return Vec::new();
        }
        kept.marks.set(backend, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use config::types::BackendAddress;
    use logic::health::{Health, PassiveRule};

    use super::*;
    use crate::State;

    fn known(state: &State, number: u16) -> Arc<BackendState> {
        let address = BackendAddress::Ip(([127, 0, 0, 1], number).into());
        let health = || Health::new(None, PassiveRule::DEFAULT, Instant::now(), 0.0);
        state.known().backend(&"app".into(), &address, health)
    }

    fn backend(state: &State, number: u16) -> Arc<BackendState> {
        let backend = known(state, number);
        state.keep_backend(&backend);
        backend
    }

    fn remove_all(state: &State) {
        state.retain(|_| true, |_| true, |_, _| false);
    }

    #[test]
    fn a_backend_with_open_sessions_comes_back_and_another_one_is_new() {
        let state = State::new(1);
        let (busy, idle) = (backend(&state, 1), backend(&state, 2));
        busy.in_flight.store(1, Relaxed);
        busy.set_weight_override(Some(3));
        remove_all(&state);
        assert!(Arc::ptr_eq(&busy, &backend(&state, 1)));
        assert_eq!(busy.weight_override(), Some(3));
        assert!(!Arc::ptr_eq(&idle, &backend(&state, 2)));
        remove_all(&state);
        busy.in_flight.store(0, Relaxed);
        assert!(!Arc::ptr_eq(&busy, &backend(&state, 1)), "its last session has ended");
    }

    #[test]
    fn a_backend_that_only_sessions_of_the_process_before_have_may_be_configured_again() {
        let state = State::new(1);
        let carried = known(&state, 1);
        state.keep_removed(&carried);
        carried.in_flight.store(1, Relaxed);
        assert!(Arc::ptr_eq(&carried, &backend(&state, 1)));
    }

    #[test]
    fn only_an_undo_brings_back_marks_and_no_drain_that_has_ended() {
        let state = State::new(1);
        let drain = |until: Option<Duration>| Drain {
            by: "root".to_owned(),
            at: SystemTime::now(),
            until: until.map(|left| Instant::now() + left),
        };
        let set = |until| {
            let backend = backend(&state, 1);
            backend.note_drain(drain(until));
            backend.set_weight_override(Some(0));
            remove_all(&state);
        };
        set(None);
        assert_eq!(Marks::of(&backend(&state, 1)), Marks::default());
        set(Some(Duration::from_secs(3600)));
        let brings = state.removed.bring_marks();
        let back = backend(&state, 1);
        assert_eq!((back.asked_admission(), back.weight_override()), (Admission::Draining, Some(0)));
        assert_eq!(back.drain().map(|drain| drain.by).as_deref(), Some("root"));
        drop(back);
        remove_all(&state);
        drop(brings);
        set(Some(Duration::ZERO));
        let _brings = state.removed.bring_marks();
        let back = backend(&state, 1);
        assert_eq!((back.asked_admission(), back.weight_override()), (Admission::Ready, Some(0)));
    }

    #[test]
    fn what_is_remembered_has_a_limit() {
        let state = State::new(1);
        for number in 0..=MOST {
            backend(&state, number as u16).set_weight_override(Some(1));
        }
        remove_all(&state);
        assert_eq!(lock(&state.removed.backends).all.len(), MOST);
        for number in 0..10 {
            drop(backend(&state, number));
            remove_all(&state);
        }
        assert!(lock(&state.removed.backends).all.len() < MOST, "without marks there is nothing to remember");
    }
}
