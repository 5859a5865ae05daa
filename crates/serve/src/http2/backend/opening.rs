//! Opens a connection to an HTTP/2 backend in a task of its own: it is not thrown away when the request that it was opened for
//! ends, or goes on over another connection meanwhile.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use logic::health::Cause;
use sys::socket::Opening as SocketOpening;
use tokio::sync::oneshot;

use super::line::{Line, Place};
use super::line_place::LinePlace;
use super::room::Room;
use super::{Kept, Key};
use crate::connect::{self, ConnectFault};
use crate::http2::rules::Rules;
use crate::state::BackendState;
use crate::tls::backend::Endpoint;
use crate::worker::Control;

/// What comes of it, and how long that took. A place that the request does not wait for any more is given back.
pub(super) type Told = oneshot::Receiver<Result<(Place, Duration), ConnectFault>>;

/// A connection that is being opened.
pub(super) struct Opening {
    pub(super) kept: Rc<RefCell<HashMap<Key, Kept>>>,
    pub(super) key: Key,
    pub(super) room: Rc<Room>,
    pub(super) backend: Arc<BackendState>,
    pub(super) tls: Option<Arc<Endpoint>>,
    pub(super) rules: Rules,
    /// Which worker counts it.
    pub(super) worker: usize,
    /// The client of the request that it is opened for.
    pub(super) client: Rc<Control>,
    pub(super) limit: Duration,
}

impl Opening {
    /// Begins.
    pub(super) fn begin(self, place: LinePlace) -> Told {
        let (tell, told) = oneshot::channel();
        tokio::task::spawn_local(async move {
            let began = Instant::now();
            let result = self.open(place, began).await.map(|line| {
                let place = line.place_of_opener(&self.client);
                if let Some(kept) = self.kept.borrow_mut().get_mut(&self.key) {
                    kept.lines.push(line);
                }
                (place, began.elapsed())
            });
            self.note(&result);
            // The request may have gone.
            drop(tell.send(result));
        });
        told
    }

    async fn open(&self, place: LinePlace, began: Instant) -> Result<Rc<Line>, ConnectFault> {
        let (tls, limit) = (self.tls.as_ref(), self.limit);
        let link = connect::establish(&self.backend, tls, SocketOpening::WeSpeak, &[], limit).await?;
        let line = Line::begin(link, tls, &self.rules, began + limit, place, self.room.clone()).await;
        line.map_err(ConnectFault::Backend)
    }

    fn note(&self, result: &Result<(Place, Duration), ConnectFault>) {
        let counters = self.backend.counters.of(self.worker);
        match result {
            Ok(_) => {
                counters.connects.add(1);
                self.room.count_opened();
            }
            Err(ConnectFault::Backend(cause)) => {
                if let Cause::Tls(_) = cause {
                    counters.tls_failures.add(1);
                }
                self.room.failed(cause);
            }
            // It says nothing about the backend: the next one tries for itself.
            Err(ConnectFault::Ours(_) | ConnectFault::NoDescriptors(_)) => {}
        }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(kept) = self.kept.borrow_mut().get_mut(&self.key) {
            kept.is_opening = false;
        }
        self.room.freed(None);
    }
}
