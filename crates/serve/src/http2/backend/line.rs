//! One connection to an HTTP/2 backend, shared by the requests of a worker.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use h2::{Ping, SendStream};
use http::Request;
use http::uri::Scheme;
use logic::account::Refusal;
use logic::health::Cause;
use tokio::sync::Notify;
use tokio::time::timeout_at;

use super::super::rules::{Rules, Width};
use super::line_place::{Further, LinePlace};
use super::room::Room;
use crate::connect::Link;
use crate::tls::backend::Endpoint;
use crate::worker::Control;

/// Bytes of a response that may wait for a slow client, for each stream. The connection's window is as large as those of all
/// streams together: a client that takes nothing stops only its own stream. The frame layer needs up to twice as much memory
/// as it holds bytes.
const fn window(width: Width) -> u32 {
    match width {
        Width::Wide => 64 * 1024,
        Width::Narrow => 4 * 1024,
    }
}

/// Bytes of a request that may wait for a backend that reads nothing, for each stream.
const SEND_BUFFER: usize = 32 * 1024;

/// Most requests at once, whatever the backend allows.
const STREAMS: usize = 128;

/// While requests wait, the backend is asked this often whether it still lives.
const PING_EVERY: Duration = Duration::from_secs(10);

/// A backend that does not answer a ping for so long is dead.
const PING_WITHIN: Duration = Duration::from_secs(10);

/// A connection. It ends when nobody holds it any more.
pub(super) struct Line {
    requests: RefCell<SendRequest<Bytes>>,
    scheme: Scheme,
    endpoint: Option<Arc<Endpoint>>,
    /// Requests now.
    open: Cell<usize>,
    /// The end of the last one, or the beginning.
    since: Cell<Instant>,
    ended: Cell<bool>,
    /// What it is counted in, unless it is the first one.
    further: Option<Rc<Further>>,
    /// Those who wait for room on it.
    room: Rc<Room>,
    /// Notified when it is to be closed.
    closing: Rc<Notify>,
}

impl Line {
    /// Begins HTTP/2 on a connection just opened. Its settings are awaited, so that it is known how many requests it takes,
    /// and that it is HTTP/2 at all: until then nothing was sent that would have to be sent again.
    pub(super) async fn begin(
        link: Link,
        endpoint: Option<&Arc<Endpoint>>,
        rules: &Rules,
        deadline: Instant,
        place: LinePlace,
        room: Rc<Room>,
    ) -> Result<Rc<Self>, Cause> {
        let scheme = if endpoint.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
        let beginning = async {
            let shaken = builder(rules).handshake::<_, Bytes>(link).await;
            let (requests, mut connection) = shaken.map_err(|error| words(&error))?;
            poll_fn(|cx| match Pin::new(&mut connection).poll(cx) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(words(&error))),
                Poll::Ready(Ok(())) => Poll::Ready(Err(CLOSED.to_owned())),
                Poll::Pending if requests.current_max_send_streams() > 0 => Poll::Ready(Ok(())),
                Poll::Pending => Poll::Pending,
            })
            .await?;
            Ok((requests, connection))
        };
        let (requests, connection) = match timeout_at(deadline.into(), beginning).await {
            Ok(Ok(begun)) => begun,
            Ok(Err(why)) => return Err(Cause::Http2(why)),
            Err(_) => return Err(Cause::Http2("no settings within the time for a connect".to_owned())),
        };
        let line = Rc::new(Self {
            requests: RefCell::new(requests),
            scheme,
            endpoint: endpoint.cloned(),
            open: Cell::new(0),
            since: Cell::new(Instant::now()),
            ended: Cell::new(false),
            further: place.further().cloned(),
            room,
            closing: Rc::default(),
        });
        tokio::task::spawn_local(drive(Rc::downgrade(&line), line.closing.clone(), connection, place));
        Ok(line)
    }

    /// Whether it takes one more request, made with these settings.
    pub(super) fn has_room(&self, endpoint: Option<&Arc<Endpoint>>) -> bool {
        let same = match (&self.endpoint, endpoint) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        let mut requests = self.requests.borrow_mut();
        // After GOAWAY it takes no more.
        let mut nobody = Context::from_waker(Waker::noop());
        if matches!(requests.poll_ready(&mut nobody), Poll::Ready(Err(_))) {
            self.ended.set(true);
        }
        let most = requests.current_max_send_streams().min(STREAMS);
        same && !self.ended.get() && self.open.get() < most
    }

    /// A place for a request of `client`, if its share allows.
    pub(super) fn place(self: &Rc<Self>, client: &Rc<Control>) -> Result<Place, Refusal> {
        if let Some(further) = &self.further {
            further.enter(client)?;
        }
        Ok(self.place_of_opener(client))
    }

    /// The place for the request that it was opened for: it has been counted with the connection.
    pub(super) fn place_of_opener(self: &Rc<Self>, client: &Rc<Control>) -> Place {
        self.open.set(self.open.get() + 1);
        Place { line: self.clone(), client: client.clone() }
    }

    /// How many places in the account are free for others as soon as they are wanted.
    pub(super) fn spare(&self) -> usize {
        match &self.further {
            Some(further) if !self.ended.get() => further.spare(),
            _ => 0,
        }
    }

    /// Closes it. It must carry none.
    pub(super) fn close(&self) {
        self.ended.set(true);
        self.closing.notify_one();
    }

    /// Whether it has ended, or was idle for too long.
    pub(super) fn is_over(&self, now: Instant, keep_alive: Duration) -> bool {
        self.ended.get()
            || self.open.get() == 0 && now.saturating_duration_since(self.since.get()) >= keep_alive
    }
}

/// A place on a connection, given back when dropped.
pub(super) struct Place {
    line: Rc<Line>,
    client: Rc<Control>,
}

impl Place {
    /// What the requests of this connection are sent with.
    pub(super) fn scheme(&self) -> Scheme {
        self.line.scheme.clone()
    }

    /// Sends a head.
    pub(super) fn send(
        &self,
        request: Request<()>,
        end_of_stream: bool,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        let mut requests = self.line.requests.borrow().clone();
        let sent = requests.send_request(request, end_of_stream);
        if sent.is_err() {
            // It takes no new streams: GOAWAY, or its numbers have run out.
            self.line.ended.set(true);
        }
        sent
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let line = &self.line;
        line.open.set(line.open.get() - 1);
        line.since.set(Instant::now());
        if let Some(further) = &line.further {
            further.leave(&self.client);
            if further.is_wanted() && line.spare() > 0 {
                line.close();
            }
        }
        line.room.freed(Some(&self.client));
    }
}

fn builder(rules: &Rules) -> Builder {
    let window = window(rules.width);
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        // Nothing until the backend says how many it takes.
        .initial_max_send_streams(0)
        .initial_window_size(window)
        .initial_connection_window_size(window * STREAMS as u32)
        .max_header_list_size(rules.header_list)
        .max_send_buffer_size(SEND_BUFFER)
        .max_concurrent_reset_streams(STREAMS)
        .reset_stream_duration(Duration::from_secs(1));
    builder
}

/// Moves the frames until the connection ends. What has ended is told by the streams.
async fn drive(
    line: Weak<Line>,
    closing: Rc<Notify>,
    mut connection: Connection<Link, Bytes>,
    place: LinePlace,
) {
    let mut pings = connection.ping_pong();
    let keeping_watch = async {
        loop {
            tokio::time::sleep(PING_EVERY).await;
            let waits = line.upgrade().is_none_or(|line| line.open.get() > 0);
            let Some(pings) = pings.as_mut().filter(|_| waits) else { continue };
            if tokio::time::timeout(PING_WITHIN, pings.ping(Ping::opaque())).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        ended = &mut connection => {
            if let Err(error) = ended {
                tracing::debug!("a connection to an HTTP/2 backend ended: {error}");
            }
        }
        () = closing.notified() => {}
        () = keeping_watch => tracing::debug!("an HTTP/2 backend answers no ping"),
    }
    drop((connection, place));
    if let Some(line) = line.upgrade() {
        line.ended.set(true);
        line.room.freed(None);
    }
}

const CLOSED: &str = "the backend closed the connection at once: does this port speak HTTP/2?";

fn words(error: &h2::Error) -> String {
    match error.get_io() {
        Some(error)
            if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) =>
        {
            CLOSED.to_owned()
        }
        Some(error) => format!("the connection broke: {error}"),
        None => format!("what the backend says is not HTTP/2 ({error})"),
    }
}
