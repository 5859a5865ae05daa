//! A timeout that applies to the server only: the time of agents and persons does not count.

use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

pub(super) struct QuestionTimeout {
    limit: Duration,
    state: Mutex<State>,
}

enum State {
    /// The server must answer; the timeout counts from this moment.
    Server(Instant),
    /// An agent or a person works.
    Us,
}

impl QuestionTimeout {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, state: Mutex::new(State::Server(Instant::now())) }
    }

    /// Waits for the result of `question`. `None` if the server has not answered within the limit.
    pub(super) async fn wait<T>(&self, question: impl Future<Output = T>) -> Option<T> {
        let mut question = pin!(question);
        loop {
            let now = Instant::now();
            let until = match *self.state.lock().unwrap_or_else(PoisonError::into_inner) {
                State::Server(since) if since + self.limit <= now => return None,
                State::Server(since) => since + self.limit,
                State::Us => now + self.limit,
            };
            if let Ok(answer) = timeout_at(until, &mut question).await {
                return Some(answer);
            }
        }
    }

    /// Runs `work`, whose time does not count for the server's timeout.
    pub(super) async fn ours<T>(&self, work: impl Future<Output = T>) -> T {
        self.set(State::Us);
        let result = work.await;
        self.set(State::Server(Instant::now()));
        result
    }

    fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_is_waited_for_only_in_its_own_turn() {
        let patience = QuestionTimeout::new(Duration::from_secs(10));
        let began = Instant::now();
        let answer = patience
            .wait(async {
                tokio::time::sleep(Duration::from_secs(9)).await;
                patience.ours(tokio::time::sleep(Duration::from_secs(95))).await;
                tokio::time::sleep(Duration::from_secs(9)).await;
            })
            .await;
        assert_eq!(answer, Some(()));
        assert_eq!(began.elapsed().as_secs(), 113);
        assert_eq!(
            QuestionTimeout::new(Duration::from_secs(10)).wait(std::future::pending::<()>()).await,
            None
        );
        assert_eq!(began.elapsed().as_secs(), 123);
    }
}
