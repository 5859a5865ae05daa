//! One client connection of the admin listener: hyper speaks HTTP, this file reports the client's activity to its slot.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use logic::client_slots::{ClientActivity, ClientDecision};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::access::Door;
use crate::client_slots::ClientSlot;

/// Time limit of a request head, and therefore of an idle connection.
pub(super) const HEAD_LIMIT: Duration = Duration::from_secs(5);

/// Size of hyper's read buffer in bytes: the minimum that hyper allows, because requests here are small.
const BUFFER: usize = 8 * 1024;

#[derive(Debug, Default)]
struct Seen {
    working: AtomicBool,
    /// The client's receive window is full: the last write did not complete.
    stuck: AtomicBool,
    asked: AtomicU64,
}

/// Serves a connection until it ends, and reports its activity to `slot`.
pub(super) async fn serve<S>(stream: S, router: Router, slot: Arc<ClientSlot>, door: Door)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let seen = Arc::new(Seen::default());
    let service = {
        let (seen, router, slot) = (seen.clone(), TowerToHyperService::new(router), slot.clone());
        service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(door);
            seen.working.store(true, Relaxed);
            seen.asked.fetch_add(1, Relaxed);
            let answer = router.call(request);
            let (seen, slot) = (seen.clone(), slot.clone());
            async move {
                let mut answer = answer.await;
                seen.working.store(false, Relaxed);
                // Without `Connection: close`, the client could keep its slot with pipelined requests.
                if let (Ok(answer), ClientDecision::GivesWay) = (&mut answer, slot.give_way()) {
                    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                answer
            }
        })
    };
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(Watched { stream, seen: seen.clone() }), service);
    let mut connection = std::pin::pin!(connection);
    let mut asked = 0;
    std::future::poll_fn(|cx| {
        let polled = connection.as_mut().poll(cx);
        // Each request restarts the idle time, also when it was answered within this poll.
        if std::mem::replace(&mut asked, seen.asked.load(Relaxed)) != asked {
            slot.set(ClientActivity::Working);
        }
        match slot.set(doing(&seen)) {
            ClientDecision::GivesWay => Poll::Ready(()),
            // A connection error is ignored: the client caused it.
            _ => polled.map(drop),
        }
    })
    .await;
}

fn doing(seen: &Seen) -> ClientActivity {
    match (seen.working.load(Relaxed), seen.stuck.load(Relaxed)) {
        (true, _) => ClientActivity::Working,
        (false, true) => ClientActivity::Writing,
        (false, false) => ClientActivity::Waiting,
    }
}

/// Wraps a stream to observe whether its writes make progress.
struct Watched<S> {
    stream: S,
    seen: Arc<Seen>,
}

impl<S> Watched<S> {
    fn see(&self, written: &Poll<io::Result<usize>>) {
        self.seen.stuck.store(written.is_pending(), Relaxed);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.see(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.see(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
