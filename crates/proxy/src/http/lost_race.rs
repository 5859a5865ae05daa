//! What becomes of a request whose copy had its response first: it goes on until its own response begins, so that a backend
//! which never answers is ejected for it, and one that is only slow is not. `crates/logic/src/hedge.rs` decides which of
//! these requests go on, and what their ends say.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Instant;

use config::types::BackendHttp;
use logic::hedge::{self, Late, Says};
use state::BackendState;
use state::account::{Kind, Taken};

use super::race::Leg;
use crate::connect::Freshness;
use crate::http2::rules::Processing;
use crate::snapshot::PoolPlan;
use crate::upstream::{self, Chosen};
use crate::waits::BackendWait;
use crate::worker::Worker;

/// Lets the request go on, if it is sent whole and there is room for it.
pub(super) fn watch(worker: &Rc<Worker>, pool: &Arc<PoolPlan>, chosen: Chosen, leg: Box<Leg>) {
    if leg.message.is_some() {
        return;
    }
    let Some(place) = Place::take(worker, pool, &chosen.backend) else { return };
    let pool = pool.clone();
    tokio::task::spawn_local(async move {
        let worker = &place.worker;
        let mut read = Vec::new();
        let late = wait(worker, &pool, &chosen, &leg, &mut read).await;
        match late.says(pool.settings.timeouts.response) {
            Says::Works => {
                let now = Instant::now();
                upstream::note_latency(&pool, &chosen.backend, now.duration_since(leg.began), now);
                upstream::note_answer(worker, &pool, chosen.index, hedge::status_of(&read));
            }
            Says::Fails(cause) => upstream::note_failure(worker, &pool, chosen.index, cause),
            Says::Nothing => {}
        }
        // The connection is closed before its slots are free.
        drop(leg);
    });
}

async fn wait(worker: &Worker, pool: &PoolPlan, chosen: &Chosen, leg: &Leg, read: &mut Vec<u8>) -> Late {
    let mut wait = BackendWait::new(&worker.waits, &chosen.backend);
    let ends = std::future::poll_fn(|cx| match leg.stream.poll_fill(cx, read) {
        Poll::Ready(Ok(1..)) => Poll::Ready(Late::Answered),
        // A kept connection may have been closed before the request came.
        Poll::Ready(_) if leg.freshness == Freshness::Kept => Poll::Ready(Late::Ended),
        Poll::Ready(_) => Poll::Ready(match leg.stream.processing() {
            Processing::Unknown | Processing::NotProcessed(_) | Processing::Violated => Late::Closed,
            Processing::Unrepresentable(_) | Processing::NoWebSockets => Late::Ended,
        }),
        Poll::Pending if wait.poll_lost(cx).is_some() => Poll::Ready(Late::Ended),
        Poll::Pending => Poll::Pending,
    });
    let limit = leg.began + pool.settings.timeouts.response;
    tokio::time::timeout_at(limit.into(), ends).await.unwrap_or(Late::Silent)
}

/// One of the lost races of a backend that go on, and the slots of its connection. A place on a shared HTTP/2 connection
/// has its slots there.
struct Place {
    worker: Rc<Worker>,
    backend: Arc<BackendState>,
    slots: usize,
}

impl Place {
    fn take(worker: &Rc<Worker>, pool: &PoolPlan, backend: &Arc<BackendState>) -> Option<Self> {
        let most = hedge::most_lost_races(pool.settings.passive.failures);
        let more = |races: u32| (races < most).then_some(races + 1);
        backend.lost_races.fetch_update(Relaxed, Relaxed, more).ok()?;
        let slots = match pool.settings.http {
            BackendHttp::Http1 => backend.slots(),
            BackendHttp::Http2 => 0,
        };
        if slots > 0 && worker.slot_cache.take_of(Kind::Additional, slots) == Taken::No {
            backend.lost_races.fetch_sub(1, Relaxed);
            return None;
        }
        Some(Self { worker: worker.clone(), backend: backend.clone(), slots })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.backend.lost_races.fetch_sub(1, Relaxed);
        if self.slots > 0 {
            self.worker.slot_cache.give_of(Kind::Additional, self.slots);
        }
    }
}
