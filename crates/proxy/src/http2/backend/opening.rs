//! Opens a connection to an HTTP/2 backend in a separate task. The connection is kept even if the request that started
//! it ends or gets a stream on another connection first.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use logic::health::Cause;
use state::BackendState;
use sys::socket::{Opening as SocketOpening, Outgoing};
use tls::backend::Endpoint;
use tokio::sync::oneshot;

use super::line::{Line, StreamPermit, Transport};
use super::permit::ConnectionPermit;
use super::room::Room;
use super::{Kept, Key};
use crate::connect::{self, ConnectFault};
use crate::http2::rules::Rules;
use crate::worker::ConnectionHandle;

/// Receives the stream for the request and the time that the connect took. A stream that is not received is freed.
pub(super) type Told = oneshot::Receiver<Result<(StreamPermit, Duration), ConnectFault>>;

pub(super) struct Opening {
    pub(super) kept: Rc<RefCell<HashMap<Key, Kept>>>,
    pub(super) key: Key,
    pub(super) room: Rc<Room>,
    pub(super) backend: Arc<BackendState>,
    pub(super) tls: Option<Arc<Endpoint>>,
    pub(super) outgoing: Outgoing,
    pub(super) rules: Rules,
    /// Index of the worker whose counters are updated.
    pub(super) worker: usize,
    /// The client of the request that opens the connection.
    pub(super) client: Rc<ConnectionHandle>,
    pub(super) limit: Duration,
}

impl Opening {
    pub(super) fn begin(self, place: ConnectionPermit) -> Told {
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
            // The send fails if the request has ended.
            drop(tell.send(result));
        });
        told
    }

    async fn open(&self, place: ConnectionPermit, began: Instant) -> Result<Rc<Line>, ConnectFault> {
        let (tls, limit) = (self.tls.as_ref(), self.limit);
        let opening = SocketOpening::WeSpeak;
        let time = connect::TimeLimit { began, limit };
        let link = connect::establish(&self.backend, tls, self.outgoing, opening, &[], time).await?;
        let transport = Transport { link, backend: self.backend.clone(), worker: self.worker };
        let line = Line::begin(transport, tls, &self.rules, began + limit, place, self.room.clone()).await;
        line.map_err(ConnectFault::Backend)
    }

    fn note(&self, result: &Result<(StreamPermit, Duration), ConnectFault>) {
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
            // The error is not the backend's fault, so waiting requests do not fail; each tries to connect itself.
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
