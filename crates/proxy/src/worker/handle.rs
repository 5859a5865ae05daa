//! Lets a worker close an idle client connection or keep it without a task, and wake the task of a connection when the
//! process shuts down.

use std::cell::Cell;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use state::account::{Granted, Share};

use crate::live::Live;

#[derive(Default)]
pub struct ConnectionHandle {
    pub(super) phase: Cell<Phase>,
    /// Index in the worker's table of connections.
    pub(super) number: u32,
    /// When the client connection last became idle; valid only in [`Phase::Idle`].
    idle_since: Cell<Option<Instant>>,
    /// The right of a waiting client of another worker to the slots of this connection.
    pub(super) granted: Cell<Option<Granted>>,
    waker: Cell<Option<Waker>>,
    task: Cell<TaskState>,
    /// The connection's use of the account of descriptors, and its limit.
    pub(crate) share: Share,
    /// What an operator may see of the connection.
    pub(crate) live: Live,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Busy,
    /// The connection waits for the next request: closing the connection loses nothing.
    Idle,
    Closing,
    Gone,
}

/// Whether an idle connection needs its task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TaskState {
    /// The connection cannot wait without its task.
    #[default]
    Needed,
    /// The connection could wait without its task.
    Optional,
    /// The worker has asked the task to end, and to leave the connection to the worker.
    EndWanted,
    /// The connection waits without a task, under this key in the worker's idle sessions.
    Parked { key: u32 },
    /// The session of the connection waits without a task under this key, until one side sends.
    RelayParked { key: u32 },
}

/// Result of a wait for the next request of a client.
pub enum WaitEnd<T> {
    By(T),
    /// The worker has asked the connection to close.
    Closing,
    /// The worker has asked for the connection, which waits without a task from now on.
    Parking,
}

impl ConnectionHandle {
    pub(super) fn new(number: u32, share: Share, live: Live) -> Self {
        Self { number, share, live, ..Self::default() }
    }

    /// Waits with `poll` for a request, or until the worker asks to close the connection. `since` starts the wait.
    pub fn poll_idle<T>(
        &self,
        cx: &mut Context<'_>,
        since: Instant,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<WaitEnd<T>> {
        match poll(cx) {
            Poll::Ready(value) => {
                self.go_on();
                Poll::Ready(WaitEnd::By(value))
            }
            Poll::Pending if self.phase.get() == Phase::Closing => Poll::Ready(WaitEnd::Closing),
            Poll::Pending if self.task.get() == TaskState::EndWanted => Poll::Ready(WaitEnd::Parking),
            Poll::Pending => {
                self.phase.set(Phase::Idle);
                self.idle_since.set(Some(since));
                self.keep_waker(cx);
                Poll::Pending
            }
        }
    }

    /// Records that a request has arrived.
    pub fn go_on(&self) {
        self.resumed();
        if self.phase.replace(Phase::Busy) == Phase::Closing {
            // The request may take a minute: the waiting client asks for another connection.
            drop(self.granted.take());
        }
    }

    /// Wakes the task of `cx` when the process starts to shut down, even if the connection is busy: an HTTP/2
    /// connection with open streams must send GOAWAY.
    pub fn wake_for_drain(&self, cx: &mut Context<'_>) {
        self.go_on();
        self.keep_waker(cx);
    }

    /// Keeps what wakes the task of `cx`.
    pub(crate) fn keep_waker(&self, cx: &Context<'_>) {
        let kept = self.waker.take().filter(|before| before.will_wake(cx.waker()));
        self.waker.set(Some(kept.unwrap_or_else(|| cx.waker().clone())));
    }

    /// Allows the worker to ask for the connection during the next wait.
    pub fn may_park(&self) {
        self.task.set(TaskState::Optional);
    }

    /// Asks the task of a connection that is idle since `before` or earlier to end, if the connection can wait without.
    pub(super) fn end_task(&self, before: Instant) {
        if self.task.get() == TaskState::Optional && self.idle_since().is_some_and(|since| since <= before) {
            self.task.set(TaskState::EndWanted);
            self.wake_task();
        }
    }

    /// Records that the connection waits without a task, under `key`.
    pub fn parked(&self, key: usize) {
        self.parked_as(|key| TaskState::Parked { key }, key);
    }

    /// Records that the TCP session of the connection waits without a task, under `key`.
    pub fn relay_parked(&self, key: usize) {
        self.parked_as(|key| TaskState::RelayParked { key }, key);
    }

    /// Records that the session of the connection has no task, and waits for another process.
    pub(crate) fn set_aside(&self) {
        drop((self.waker.take(), self.live.task.take()));
        self.resumed();
    }

    /// Keeps what wakes the task that awaits this.
    pub(crate) async fn keep_waker_of_task(&self) {
        std::future::poll_fn(|cx| {
            self.keep_waker(cx);
            Poll::Ready(())
        })
        .await;
    }

    /// Wakes the task and keeps what wakes it.
    pub(super) fn wake_again(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake_by_ref();
            self.waker.set(Some(waker));
        }
    }

    fn parked_as(&self, state: impl FnOnce(u32) -> TaskState, key: usize) {
        // A waker and the handle of a task keep the memory of the task.
        drop((self.waker.take(), self.live.task.take()));
        self.task.set(u32::try_from(key).map_or(TaskState::Needed, state));
    }

    /// Records that the connection has a task again.
    pub fn resumed(&self) {
        self.task.set(TaskState::Needed);
    }

    /// Key of the connection in the worker's idle sessions if it waits without a task.
    pub(super) fn parked_key(&self) -> Option<usize> {
        match self.task.get() {
            TaskState::Parked { key } => Some(key as usize),
            TaskState::RelayParked { .. } => None,
            TaskState::Needed | TaskState::Optional | TaskState::EndWanted => None,
        }
    }

    /// Key in the worker's idle sessions of a connection without a task.
    pub(super) fn idle_key(&self) -> Option<usize> {
        match self.task.get() {
            TaskState::Parked { key } | TaskState::RelayParked { key } => Some(key as usize),
            TaskState::Needed | TaskState::Optional | TaskState::EndWanted => None,
        }
    }

    pub(super) fn wake_task(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Asks the connection to close as soon as it is idle. One without a task must be resumed for that.
    pub fn close_when_idle(&self) {
        self.phase.set(Phase::Closing);
        self.wake_task();
    }

    /// Ends the wait without a request: the task closes the connection.
    pub fn stop_waiting(&self) {
        if self.phase.get() != Phase::Closing {
            self.phase.set(Phase::Busy);
        }
    }

    /// Whether the connection was asked to close and has neither ended nor received another request.
    pub(crate) fn is_closing(&self) -> bool {
        self.phase.get() == Phase::Closing
    }

    /// Returns when the connection became idle; `None` if it is not idle.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        self.idle_since.get().filter(|_| self.phase.get() == Phase::Idle)
    }

    pub(super) fn begin_drain(&self) {
        if self.phase.get() == Phase::Idle {
            self.close_when_idle();
        } else {
            self.wake_task();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection keeps its handle also while it has no task. What the runtime frees then has 256 bytes (`ScheduledIo`)
    /// and 128 bytes (tasks): between handles of the same size class of mimalloc (128, 160, 192, 224, 256) it leaves
    /// holes that cannot be returned to the system. Measured with 7,800 idle TCP sessions: 1,100 bytes each with handles
    /// of 240 bytes, 570 with handles of 160.
    #[test]
    fn a_handle_has_a_size_class_that_the_runtime_does_not_use() {
        let in_rc = 2 * size_of::<usize>() + size_of::<ConnectionHandle>();
        assert!((129..=224).contains(&in_rc), "{in_rc}");
    }
}
