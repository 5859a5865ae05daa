//! A client of the admin listener in its place: the HTTP of it is hyper's, what it is doing is seen here.

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
use logic::places::{Doing, Standing};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::places::Place;

/// Time for a request's head, which is also how long an idle connection is kept.
pub(super) const HEAD_LIMIT: Duration = Duration::from_secs(5);

/// What hyper may hold of a connection's bytes: its least. Requests here are small.
const BUFFER: usize = 8 * 1024;

/// What is seen of a connection.
#[derive(Debug, Default)]
struct Seen {
    /// A request is being answered.
    working: AtomicBool,
    /// The client has taken nothing of what was last written.
    stuck: AtomicBool,
    /// Requests so far.
    asked: AtomicU64,
}

/// Serves a connection to its end, and tells its place what it does.
pub(super) async fn serve<S>(stream: S, router: Router, place: Arc<Place>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let seen = Arc::new(Seen::default());
    let service = {
        let (seen, router, place) = (seen.clone(), TowerToHyperService::new(router), place.clone());
        service_fn(move |request| {
            seen.working.store(true, Relaxed);
            seen.asked.fetch_add(1, Relaxed);
            let answer = router.call(request);
            let (seen, place) = (seen.clone(), place.clone());
            async move {
                let mut answer = answer.await;
                seen.working.store(false, Relaxed);
                // What a client has sent behind this request would be answered for ever.
                if let (Ok(answer), Standing::GivesWay) = (&mut answer, place.give_way()) {
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
        // A request, also one that was answered at once, ends the wait before: the next one begins now.
        if std::mem::replace(&mut asked, seen.asked.load(Relaxed)) != asked {
            place.set(Doing::Working);
        }
        match place.set(doing(&seen)) {
            Standing::GivesWay => Poll::Ready(()),
            // An error of the connection is the client's: there is nothing to undo here.
            _ => polled.map(drop),
        }
    })
    .await;
}

fn doing(seen: &Seen) -> Doing {
    match (seen.working.load(Relaxed), seen.stuck.load(Relaxed)) {
        (true, _) => Doing::Working,
        (false, true) => Doing::Writing,
        (false, false) => Doing::Waiting,
    }
}

/// A connection whose writes are seen.
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
