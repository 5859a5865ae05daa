//! One request to an HTTP/2 backend. The exchange uses it like a connection to an HTTP/1.1 backend, as `side.rs` does
//! for a client. The exchange writes an HTTP/1.1 request, whose head becomes HEADERS and whose body becomes DATA, and
//! reads an HTTP/1.1 response. Both directions run concurrently, so both bodies may be streamed. A request for a
//! WebSocket becomes an extended CONNECT (RFC 8441), whose success is a switch of protocols in HTTP/1.1.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use h2::client::ResponseFuture;
use h2::ext::Protocol;
use h2::{Reason, RecvStream};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{HeaderMap, Method, Request, Response};
use logic::http1::chunked::write_end;
use logic::http1::refusal::Refusal;
use logic::http1::request::{self, BodyLength, MethodKind, Parse, Progress, RequestHead};
use logic::http2::downgrade::{self, Body};
use logic::http2::upgrade::{self, Download};
use logic::http2::web_socket::{self, Accept};
use tokio::io::ReadBuf;
use tokio::time::{Instant, Sleep};

use super::super::convert::{OUR_OWN, append, broken, chunk};
use super::super::outflow::{BodySender, Ended};
use super::super::rules::{Processing, Unprocessed};
use super::line::StreamPermit;

/// Time that the backend of a WebSocket has for more data or its end after the client has ended its direction. A
/// WebSocket has no use for a half of a connection, and some backends do not react to the end of a stream.
const HALF_OPEN: Duration = Duration::from_secs(5);

pub struct Call {
    place: StreamPermit,
    upload: Writing,
    download: Reading,
    method: MethodKind,
    /// `Some` if the request asks for a WebSocket.
    accept: Option<Accept>,
    /// The end of [`HALF_OPEN`].
    half_open: Option<Pin<Box<Sleep>>>,
    /// Bytes of the response that were received and not yet read by the exchange.
    piece: Bytes,
    /// Bytes of `piece` that count in the flow-control windows, released when the exchange has read all of `piece`.
    unreleased: usize,
    processing: Processing,
}

enum Writing {
    Head { bytes: Vec<u8>, progress: Progress },
    Body(BodySender),
    Ended,
}

enum Reading {
    /// The request has not been sent. The waker is that of the task that reads the response.
    Unasked(Option<Waker>),
    Waiting(ResponseFuture),
    Length(RecvStream, u64),
    Chunked(RecvStream),
    Tunnel(RecvStream),
    Ended,
}

impl Call {
    pub(super) fn new(place: StreamPermit) -> Self {
        Self {
            place,
            upload: Writing::Head { bytes: Vec::new(), progress: Progress::default() },
            download: Reading::Unasked(None),
            method: MethodKind::Other,
            accept: None,
            half_open: None,
            piece: Bytes::new(),
            unreleased: 0,
            processing: Processing::Unknown,
        }
    }

    /// Returns whether the backend processed the request, after its stream has failed.
    pub(crate) fn processing(&self) -> Processing {
        self.processing
    }

    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let is_new = self.piece.is_empty();
        while self.piece.is_empty() {
            match &mut self.download {
                Reading::Unasked(waker) => {
                    *waker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                Reading::Waiting(response) => match response.poll_informational(cx) {
                    Poll::Ready(Some(interim)) => {
                        let interim = interim.map_err(|error| self.failed(error))?;
                        self.take_interim(&interim)?;
                    }
                    _ => {
                        let response = ready!(Pin::new(response).poll(cx));
                        let response = response.map_err(|error| self.failed(error))?;
                        self.take_head(response)?;
                    }
                },
                Reading::Length(body, _) | Reading::Chunked(body) | Reading::Tunnel(body) => {
                    let Poll::Ready(data) = body.poll_data(cx) else { return self.poll_half_open(cx) };
                    match data {
                        Some(data) => {
                            let data = data.map_err(|error| self.failed(error))?;
                            self.take_data(data)?;
                        }
                        None => {
                            let trailers =
                                ready!(body.poll_trailers(cx)).map_err(|error| self.failed(error))?;
                            self.end(trailers.as_ref())?;
                        }
                    }
                }
                Reading::Ended => return Poll::Ready(Ok(())),
            }
        }
        let count = self.piece.len().min(into.remaining());
        into.put_slice(&self.piece[..count]);
        self.piece.advance(count);
        if self.piece.is_empty() {
            self.piece = Bytes::new();
            if let Reading::Length(body, _) | Reading::Chunked(body) | Reading::Tunnel(body) =
                &mut self.download
            {
                // The call fails if the stream has ended, which has released the bytes.
                let _ = body.flow_control().release_capacity(std::mem::take(&mut self.unreleased));
            }
        } else if is_new {
            // The exchange took only a part. The copy frees the frame layer's buffer, which is larger than `piece`.
            self.piece = Bytes::copy_from_slice(&self.piece);
        }
        Poll::Ready(Ok(()))
    }

    /// Ends a WebSocket whose client has ended its direction and whose backend has been silent since. Dropping the call
    /// then resets the stream.
    fn poll_half_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(limit) = &mut self.half_open else { return Poll::Pending };
        ready!(limit.as_mut().poll(cx));
        self.download = Reading::Ended;
        Poll::Ready(Ok(()))
    }

    fn failed(&mut self, error: h2::Error) -> io::Error {
        let reason = error.reason();
        if error.is_remote() && error.is_go_away() {
            // The stream is above the last one of the GOAWAY, or its error would be another one.
            self.processing = Processing::NotProcessed(Unprocessed::Leaving);
        } else if error.is_remote() && reason == Some(Reason::REFUSED_STREAM) {
            self.processing = Processing::NotProcessed(Unprocessed::Refused);
        } else if error.is_library() && !matches!(reason, Some(Reason::NO_ERROR | Reason::REFUSED_STREAM)) {
            // The frame layer resets with REFUSED_STREAM what there is no room for.
            self.processing = Processing::Violated;
        }
        let error = broken(error);
        match (&self.download, error.kind()) {
            // Only the end of the stream is an end of a tunnel: one whose connection ends was cut short.
            (Reading::Tunnel(_), io::ErrorKind::UnexpectedEof) => io::ErrorKind::ConnectionAborted.into(),
            _ => error,
        }
    }

    /// The backend sent what cannot be a response.
    fn violated(&mut self, error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
        self.processing = Processing::Violated;
        invalid_data(error)
    }

    fn take_interim(&mut self, response: &Response<()>) -> io::Result<()> {
        let status = response.status();
        let head = upgrade::interim(status.as_u16(), reason(status), lines(response.headers()));
        self.piece = head.map_err(|fault| self.violated(fault))?.into();
        Ok(())
    }

    fn take_head(&mut self, response: Response<RecvStream>) -> io::Result<()> {
        let (parts, body) = response.into_parts();
        let follows = if body.is_end_stream() { Body::None } else { Body::Follows };
        let (status, headers) = (parts.status, lines(&parts.headers));
        let response = match &self.accept {
            Some(accept) => web_socket::response(status.as_u16(), reason(status), headers, follows, accept),
            None => upgrade::response(status.as_u16(), reason(status), headers, follows, self.method),
        };
        let response = response.map_err(|fault| self.violated(fault))?;
        self.piece = response.head.into();
        self.download = match response.body {
            Download::None => Reading::Ended,
            Download::Length(length) => Reading::Length(body, length),
            Download::Chunked => Reading::Chunked(body),
            Download::Tunnel => Reading::Tunnel(body),
        };
        Ok(())
    }

    fn take_data(&mut self, data: Bytes) -> io::Result<()> {
        self.unreleased = data.len();
        if let Some(limit) = &mut self.half_open {
            limit.as_mut().reset(Instant::now() + HALF_OPEN);
        }
        self.piece = match &mut self.download {
            Reading::Length(_, left) => {
                *left = left.checked_sub(data.len() as u64).ok_or(io::ErrorKind::InvalidData)?;
                data
            }
            Reading::Chunked(_) if !data.is_empty() => chunk(&data),
            _ => data,
        };
        Ok(())
    }

    fn end(&mut self, trailers: Option<&HeaderMap>) -> io::Result<()> {
        let trailers = downgrade::trailers(trailers.into_iter().flat_map(lines));
        let trailers = trailers.map_err(|fault| self.violated(fault))?;
        match std::mem::replace(&mut self.download, Reading::Ended) {
            Reading::Length(_, 1..) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Reading::Chunked(_) => {
                let mut end = Vec::new();
                write_end(&mut end, &trailers);
                self.piece = end.into();
            }
            _ => {}
        }
        Ok(())
    }

    /// Writes a part of the HTTP/1.1 request. Waits while the backend's windows do not allow the previous part.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Some(part) = parts.iter().find(|part| !part.is_empty()) else { return Poll::Ready(Ok(0)) };
        match &mut self.upload {
            Writing::Head { .. } => Poll::Ready(self.write_head(part)),
            Writing::Body(body) => {
                let written = ready!(body.poll_write(cx, part));
                self.end_upload();
                Poll::Ready(written)
            }
            Writing::Ended => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Waits until the frame layer has taken all written bytes.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Writing::Body(body) = &mut self.upload {
            ready!(body.poll_piece(cx))?;
            self.end_upload();
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the request direction of a tunnel. Other requests end by their framing, so this only flushes.
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Writing::Body(body) = &mut self.upload {
            let shut = ready!(body.poll_shutdown(cx));
            self.end_upload();
            shut?;
            if let Reading::Tunnel(_) = &self.download {
                self.half_open = Some(Box::pin(tokio::time::sleep(HALF_OPEN)));
            }
        }
        Poll::Ready(Ok(()))
    }

    fn end_upload(&mut self) {
        if matches!(&self.upload, Writing::Body(body) if body.ended() == Ended::Yes) {
            self.upload = Writing::Ended;
        }
    }

    /// Returns how many bytes of `part` belong to the head.
    fn write_head(&mut self, part: &[u8]) -> io::Result<usize> {
        let Writing::Head { bytes, progress } = &mut self.upload else { return Ok(0) };
        let before = bytes.len();
        bytes.extend_from_slice(part);
        let Parse::Complete(head) = request::resume(bytes, progress, &OUR_OWN).map_err(invalid_data)? else {
            return Ok(part.len());
        };
        let taken = head.len - before;
        self.method = head.kind(bytes).method;
        let (upload, download, asked) = match self.ask(&head) {
            Ok((body, response)) => {
                (body.map_or(Writing::Ended, Writing::Body), Reading::Waiting(response), Ok(taken))
            }
            // The reader then sees the end of the stream without a response.
            Err(error) => (Writing::Ended, Reading::Ended, Err(error)),
        };
        self.upload = upload;
        if let Reading::Unasked(Some(waker)) = std::mem::replace(&mut self.download, download) {
            waker.wake();
        }
        asked
    }

    fn ask(&mut self, head: &RequestHead) -> io::Result<(Option<BodySender>, ResponseFuture)> {
        let Writing::Head { bytes, .. } = &self.upload else { return Err(io::ErrorKind::BrokenPipe.into()) };
        self.accept = web_socket::asked(bytes, head).map_err(|refusal| {
            self.processing = Processing::Unrepresentable(refusal);
            invalid_data(refusal)
        })?;
        if self.accept.is_some() && !self.place.takes_web_sockets() {
            self.processing = Processing::NoWebSockets;
            return Err(io::ErrorKind::Unsupported.into());
        }
        let form = if self.accept.is_some() { Form::WebSocket } else { Form::Ordinary };
        let request = convert(bytes, head, self.place.scheme(), form)
            .inspect_err(|_| self.processing = Processing::Unrepresentable(Refusal::TargetSyntax))?;
        let has_no_body = matches!(head.body, BodyLength::None | BodyLength::Length(0));
        let ends = form == Form::Ordinary && has_no_body;
        let (response, send) = self.place.send(request, ends).map_err(|error| {
            // The frame layer did not send the request, so it may be sent again.
            self.processing = Processing::NotProcessed(Unprocessed::Leaving);
            broken(error)
        })?;
        let body = match form {
            Form::WebSocket => Some(BodySender::tunnel(send)),
            Form::Ordinary => BodySender::new(send, head.body),
        };
        Ok((body, response))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // The reset tells the backend that the body is incomplete, and that no client waits for the response.
        if let Writing::Body(body) = &mut self.upload {
            body.reset(Reason::CANCEL);
        }
    }
}

/// What a request becomes in HTTP/2.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Ordinary,
    /// An extended CONNECT.
    WebSocket,
}

fn convert(bytes: &[u8], head: &RequestHead, scheme: Scheme, form: Form) -> io::Result<Request<()>> {
    let unfit = || io::Error::from(io::ErrorKind::InvalidData);
    let mut request = Request::new(());
    match form {
        Form::Ordinary => {
            *request.method_mut() = Method::from_bytes(head.method.of(bytes)).map_err(invalid_data)?;
        }
        Form::WebSocket => {
            *request.method_mut() = Method::CONNECT;
            request.extensions_mut().insert(Protocol::from_static(web_socket::PROTOCOL));
        }
    }
    let mut uri = http::uri::Parts::default();
    uri.path_and_query = Some(PathAndQuery::try_from(head.target.of(bytes)).map_err(invalid_data)?);
    if !head.authority.is_empty() {
        uri.authority = Some(Authority::try_from(head.authority.of(bytes)).map_err(invalid_data)?);
        uri.scheme = Some(scheme);
    }
    *request.uri_mut() = Uri::from_parts(uri).map_err(invalid_data)?;
    let headers = request.headers_mut();
    headers.try_reserve(head.headers.len()).map_err(invalid_data)?;
    let mut add = |(name, value)| append(headers, name, value).ok_or_else(unfit);
    match form {
        Form::Ordinary => upgrade::fields(bytes, head).try_for_each(&mut add)?,
        Form::WebSocket => web_socket::fields(bytes, head).try_for_each(&mut add)?,
    }
    Ok(request)
}

fn lines(headers: &HeaderMap) -> impl Iterator<Item = (&[u8], &[u8])> {
    headers.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()))
}

fn reason(status: http::StatusCode) -> &'static str {
    status.canonical_reason().unwrap_or_default()
}

fn invalid_data(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
