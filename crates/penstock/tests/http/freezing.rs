//! A backend that falls silent when it is told to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use testing::peers::Latch;
use testing::{Scripted, eventually, secs};

/// A backend that answers until [`Self::fall_silent`]. Then it holds requests, except that its checks still pass until
/// [`Self::fail_checks`].
pub(crate) struct Freezing {
    pub(crate) backend: Scripted,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    is_silent: AtomicBool,
    checks_fail: AtomicBool,
    /// Requests that were held.
    held: AtomicUsize,
    /// Requests that it answers late, once this is open.
    late: Latch,
}

impl Freezing {
    pub(crate) fn start(name: &'static str) -> Self {
        let state = Arc::new(State::default());
        let seen = state.clone();
        let backend = Scripted::start(move |talk| {
            while let Some(request) = talk.request() {
                let is_check = request.target == "/healthz";
                if is_check && seen.checks_fail.load(SeqCst) {
                    return;
                }
                if !is_check && seen.is_silent.load(SeqCst) {
                    seen.held.fetch_add(1, SeqCst);
                    seen.late.wait();
                }
                if talk.answer(200, &[], name.as_bytes()).is_err() {
                    return;
                }
            }
        });
        Self { backend, state }
    }

    pub(crate) fn address(&self) -> &str {
        &self.backend.address
    }

    pub(crate) fn fall_silent(&self) {
        self.state.is_silent.store(true, SeqCst);
    }

    pub(crate) fn fail_checks(&self) {
        self.state.checks_fail.store(true, SeqCst);
    }

    pub(crate) fn held(&self) -> usize {
        self.state.held.load(SeqCst)
    }

    /// Answers the requests that are held, and all later ones of their connections.
    pub(crate) fn answer_late(&self) {
        self.state.late.open();
    }

    #[track_caller]
    pub(crate) fn until_it_holds(&self, count: usize) {
        eventually(&format!("{count} requests are held"), secs(20), || (self.held() == count).then_some(()));
    }
}
