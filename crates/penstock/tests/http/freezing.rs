//! A backend that falls silent when it is told to, before its answer or in the middle of its head, or reads no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use testing::peers::Latch;
use testing::{Scripted, eventually, secs};

/// What a silent backend still does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Silence {
    /// It reads requests.
    Reads,
    /// It reads requests and sends half of a response head.
    HalfAHead,
    /// It reads the heads of requests, and not their bodies.
    ReadsNoBody,
}

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
    /// Requests that it has now and had at a time at most, without checks.
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Freezing {
    pub(crate) fn start(name: &'static str) -> Self {
        Self::with(name, Silence::Reads)
    }

    pub(crate) fn with(name: &'static str, silence: Silence) -> Self {
        let state = Arc::new(State::default());
        let seen = state.clone();
        let backend = Scripted::start(move |talk| {
            loop {
                let target = match silence {
                    Silence::ReadsNoBody => {
                        talk.head().map(|head| head.split(' ').nth(1).unwrap_or_default().to_owned())
                    }
                    Silence::Reads | Silence::HalfAHead => talk.request().map(|request| request.target),
                };
                let Some(target) = target else { return };
                let is_check = target == "/healthz";
                if is_check {
                    if seen.checks_fail.load(SeqCst) || talk.answer(200, &[], b"well").is_err() {
                        return;
                    }
                    continue;
                }
                seen.most.fetch_max(seen.now.fetch_add(1, SeqCst) + 1, SeqCst);
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len());
                let mut rest = &answer[..];
                if seen.is_silent.load(SeqCst) {
                    if silence == Silence::HalfAHead {
                        talk.send(&answer[..20]);
                        rest = &answer[20..];
                    }
                    seen.held.fetch_add(1, SeqCst);
                    seen.late.wait();
                }
                // Before the answer: the next request may come as soon as it is read.
                seen.now.fetch_sub(1, SeqCst);
                if !talk.send(rest) {
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

    /// The largest number of requests that it had at a time.
    pub(crate) fn most(&self) -> usize {
        self.state.most.load(SeqCst)
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
