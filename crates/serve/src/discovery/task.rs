//! The task of a name that stands for backends: looks it up again and again, and tells the answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use logic::discovery::Answer;
use state::State;
use state::account::{OF_LOOK_UP, Purpose};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::{Key, look_up};

/// Time after which a look-up counts as failed. One that answers later still counts.
const LIMIT: Duration = Duration::from_secs(5);

/// Pause after the first failure. Each further failure doubles the pause, up to the pool's interval.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// What a look-up found.
pub(super) struct Told {
    pub(super) key: Key,
    /// The error says why the name does not resolve.
    pub(super) found: Result<Answer, String>,
    pub(super) took: Duration,
}

/// Runs until the sender of `intervals` is dropped.
pub(super) async fn run(
    state: Arc<State>,
    key: Key,
    mut intervals: watch::Receiver<Duration>,
    tell: mpsc::Sender<Told>,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        let turn = tokio::select! {
            turn = state.account.turn(Purpose::LookUp, OF_LOOK_UP) => turn,
            () = gone(&mut intervals) => return,
        };
        let start = Instant::now();
        let name = key.1.clone();
        // getaddrinfo cannot be interrupted: its turn ends with it, and there is no second look-up beside it.
        let mut running = tokio::spawn(async move {
            let _turn = turn;
            look_up::look_up(&name).await
        });
        let found = match timeout(LIMIT, &mut running).await {
            Ok(found) => found,
            Err(_) => {
                let why = format!("no answer within {} s", LIMIT.as_secs());
                let told = Told { key: key.clone(), found: Err(why), took: start.elapsed() };
                // The receiver is gone only while the process ends.
                let _ = tell.send(told).await;
                tokio::select! {
                    found = &mut running => found,
                    () = gone(&mut intervals) => return,
                }
            }
        };
        let found = found.unwrap_or_else(|_| Err("the look-up was aborted".to_owned()));
        if intervals.has_changed().is_err() {
            return;
        }
        // Only now: it may have changed during the look-up, and `gone` skips changes.
        let interval = *intervals.borrow_and_update();
        let next = match found {
            Ok(_) => {
                pause = FIRST_PAUSE;
                interval
            }
            Err(_) => {
                let next = pause.min(interval);
                pause = (pause * 2).min(interval);
                next
            }
        };
        let _ = tell.send(Told { key: key.clone(), found, took: start.elapsed() }).await;
        tokio::select! {
            // Jitter of 10 % spreads the look-ups of names that were configured together.
            () = sleep(next.mul_f64(0.9 + 0.2 * fastrand::f64())) => {}
            changed = intervals.changed() => if changed.is_err() {
                return;
            },
        }
    }
}

/// Completes when the name is removed.
async fn gone(intervals: &mut watch::Receiver<Duration>) {
    while intervals.changed().await.is_ok() {}
}
