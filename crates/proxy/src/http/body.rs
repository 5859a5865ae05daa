//! Moves a message body from one side to the other: removes its framing and adds the framing of the other side.

use std::cell::Cell;
use std::task::Poll;
use std::time::{Duration, Instant};

use logic::grpc;
use logic::http1::chunked::{ChunkFault, ChunkLimits, Decoder, Step, write_chunk_header, write_end};
use logic::http1::request::{BodyLength, Limits};
use tls::plain::Ended;

use super::heads::HeadBuffer;
use super::kept_body::KeptBody;
use crate::bandwidth::Wait;
use crate::stream::{Carriage, Stream};
use crate::timer::Timer;

/// Largest body in bytes that is copied behind its head, so that one send(2) sends both: the copy costs less than
/// writev(2).
pub(super) const SMALL: usize = 2048;

/// Position of a reader in a body.
pub(super) enum Reader {
    /// Number of bytes still to read.
    Length(u64),
    Chunked(Box<Decoder>),
    /// The body ends when the connection ends.
    UntilClose,
}

impl Reader {
    /// Makes a reader for a body, whose trailers have `limits`. `None` if there is no body.
    pub(super) fn new(length: BodyLength, limits: &Limits) -> Option<Self> {
        match length {
            BodyLength::None | BodyLength::Length(0) => None,
            BodyLength::Length(length) => Some(Self::Length(length)),
            BodyLength::Chunked => {
                let limits = ChunkLimits::of_trailers(limits.trailers);
                Some(Self::Chunked(Box::new(Decoder::new(limits))))
            }
            BodyLength::UntilClose => Some(Self::UntilClose),
        }
    }

    fn step(&mut self, bytes: &[u8]) -> Result<Step, ChunkFault> {
        match self {
            Self::Length(0) => Ok(Step::End { consumed: 0 }),
            Self::Length(_) | Self::UntilClose if bytes.is_empty() => Ok(Step::NeedMore { consumed: 0 }),
            Self::Length(left) => {
                let len = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= len as u64;
                Ok(Step::Data { offset: 0, len })
            }
            Self::UntilClose => Ok(Step::Data { offset: 0, len: bytes.len() }),
            Self::Chunked(decoder) => decoder.decode(bytes),
        }
    }

    fn trailers(&self) -> &[(Vec<u8>, Vec<u8>)] {
        match self {
            Self::Chunked(decoder) => decoder.trailers(),
            Self::Length(_) | Self::UntilClose => &[],
        }
    }

    fn announced(&self) -> u64 {
        match self {
            Self::Chunked(decoder) => decoder.announced(),
            Self::Length(_) | Self::UntilClose => 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Raw,
    Chunked,
}

/// Reason why a body was not moved to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The sender closed early, or its connection broke.
    SourceClosed,
    /// The sender sent nothing within its time limit.
    SourceTimeout,
    /// The sender's chunked coding is malformed.
    SourceFault(ChunkFault),
    /// The body is larger than the limit.
    TooLarge,
    /// The receiver's connection broke.
    DestinationClosed,
    /// The receiver read nothing within its time limit.
    DestinationTimeout,
}

pub(super) struct Transfer<'a> {
    pub(super) timer: &'a Timer,
    pub(super) from: &'a Stream,
    /// Bytes read from the sender and not yet moved.
    pub(super) buffer: Vec<u8>,
    pub(super) reader: Reader,
    pub(super) to: &'a Stream,
    pub(super) framing: Framing,
    /// Head of the message, sent together with the first bytes.
    pub(super) prefix: Option<HeadBuffer>,
    /// Set while `prefix` has the whole of what was read, with the framing of the receiver.
    pub(super) coded: Option<Progress>,
    pub(super) limit: Option<u64>,
    /// Name of a trailer field that is not forwarded.
    pub(super) withheld: Option<&'a str>,
    pub(super) read_timeout: Duration,
    /// End of the time limit of the whole body.
    pub(super) whole_by: Option<Instant>,
    pub(super) write_timeout: Duration,
    pub(super) read: &'a Cell<u64>,
    /// Gets the bytes that are read.
    pub(super) kept: Option<&'a KeptBody>,
    pub(super) written: &'a Cell<u64>,
    /// Receives `grpc-status` of the trailers.
    pub(super) grpc_status: Option<&'a Cell<Option<u8>>>,
}

impl Transfer<'_> {
    /// Moves the body to its end. Also returns the bytes that were read after it.
    pub(super) async fn run(mut self) -> (Result<(), Broken>, Vec<u8>) {
        let moved = self.move_all().await;
        (moved, self.buffer)
    }

    async fn move_all(&mut self) -> Result<(), Broken> {
        loop {
            let is_limited = self.from.pace(self.to).is_some();
            if is_limited {
                // Boxed: a body without a limit does not hold the state of the wait.
                Box::pin(self.wait_for_turn()).await?;
            }
            let ended = match self.framing {
                Framing::Raw if !matches!(self.reader, Reader::Chunked(_)) => self.forward_raw().await?,
                _ => self.forward_coded().await?,
            };
            if is_limited && let Some(pace) = self.from.pace(self.to) {
                pace.gone();
            }
            if ended == Progress::Ended {
                return Ok(());
            }
            // No buffer is held during a wait.
            self.buffer = Vec::new();
            if self.to.carriage() == Carriage::Multiplexed {
                self.flows().await?;
            }
            let mut limit = self.read_timeout;
            if let Some(whole_by) = self.whole_by {
                let left = whole_by.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Broken::SourceTimeout);
                }
                limit = limit.min(left);
            }
            let Self { timer, from, to, buffer, .. } = &mut *self;
            let filling = std::future::poll_fn(|cx| from.poll_fill_for(cx, buffer, to));
            match timer.within(limit, filling).await {
                Err(_) => return Err(Broken::SourceTimeout),
                Ok(Err(_)) => return Err(Broken::SourceClosed),
                Ok(Ok(0)) if matches!(self.reader, Reader::UntilClose) && self.from.ended() != Ended::Cut => {
                    return self.finish_until_close().await;
                }
                Ok(Ok(0)) => return Err(Broken::SourceClosed),
                Ok(Ok(count)) => {
                    self.read.set(self.read.get() + count as u64);
                    if let Some(kept) = self.kept {
                        kept.add(&self.buffer);
                    }
                }
            }
        }
    }

    /// Waits until the bytes that were read may go. No peer is blamed for the time, also not the backend that was given a
    /// time for the whole body.
    async fn wait_for_turn(&mut self) -> Result<(), Broken> {
        let bytes = self.buffer.len() + self.prefix.as_ref().map_or(0, |prefix| prefix.len());
        let (from, to) = (self.from, self.to);
        let Some(pace) = from.pace(to).filter(|_| bytes > 0) else { return Ok(()) };
        let began = Instant::now();
        loop {
            let waited = std::future::poll_fn(|cx| {
                if pace.poll_turn(cx, bytes).is_ready() {
                    return Poll::Ready(Ok(Waited::Whole));
                }
                match to.look_after(pace) {
                    Wait::GoesOn => from.poll_reset(cx).map(|()| Err(Broken::SourceClosed)),
                    Wait::Over => Poll::Ready(Err(Broken::DestinationClosed)),
                    Wait::Ask => Poll::Ready(Ok(Waited::Asks)),
                }
            });
            match waited.await? {
                Waited::Whole => break,
                Waited::Asks => self.send_first_byte().await?,
            }
        }
        self.whole_by = self.whole_by.map(|whole_by| whole_by + began.elapsed());
        Ok(())
    }

    /// Sends the first byte of what waits, as it will be on the wire.
    async fn send_first_byte(&mut self) -> Result<(), Broken> {
        let is_raw = self.framing == Framing::Raw && !matches!(self.reader, Reader::Chunked(_));
        if self.prefix.is_none() && !is_raw {
            let (out, ended) = self.code()?;
            (self.prefix, self.coded) = (Some(out), Some(ended));
        }
        let byte = match (&mut self.prefix, &mut self.buffer) {
            (Some(prefix), _) if !prefix.is_empty() => prefix.remove(0),
            (None, buffer) if !buffer.is_empty() => {
                match self.reader.step(&buffer[..1]) {
                    Ok(Step::Data { len: 1, .. }) => {}
                    // What follows the body.
                    _ => return Ok(()),
                }
                buffer.remove(0)
            }
            _ => return Ok(()),
        };
        write(self.timer, self.to, &[byte], &[], self.write_timeout, self.written).await
    }

    /// Waits until more bytes may be read for the receiver.
    async fn flows(&self) -> Result<(), Broken> {
        let flows = std::future::poll_fn(|cx| self.to.poll_flows(cx));
        self.timer.within(self.write_timeout, flows).await.map_err(|_| Broken::DestinationTimeout)
    }

    /// Forwards bytes without a copy.
    async fn forward_raw(&mut self) -> Result<Progress, Broken> {
        let mut taken = 0;
        let ended = loop {
            match self.reader.step(&self.buffer[taken..]) {
                Ok(Step::Data { len, .. }) => taken += len,
                Ok(Step::NeedMore { .. }) => break Progress::More,
                Ok(Step::End { .. }) => break Progress::Ended,
                Err(fault) => return Err(Broken::SourceFault(fault)),
            }
        };
        let mut prefix = self.prefix.take();
        if let Some(prefix) = prefix.as_mut().filter(|_| taken <= SMALL) {
            prefix.extend_from_slice(&self.buffer[..taken]);
            match taken == self.buffer.len() {
                // The buffer is freed while the receiver reads nothing.
                true => self.buffer = Vec::new(),
                false => drop(self.buffer.drain(..taken)),
            }
            taken = 0;
        }
        let prefix = prefix.as_ref().map_or(&[][..], |prefix| prefix);
        let rest = &self.buffer[..taken];
        write(self.timer, self.to, prefix, rest, self.write_timeout, self.written).await?;
        self.buffer.drain(..taken);
        Ok(ended)
    }

    /// Removes the sender's framing and adds the receiver's.
    async fn forward_coded(&mut self) -> Result<Progress, Broken> {
        let (out, ended) = match (self.prefix.take(), self.coded.take()) {
            (Some(out), Some(ended)) => (out, ended),
            (prefix, _) => {
                self.prefix = prefix;
                self.code()?
            }
        };
        write(self.timer, self.to, &out, &[], self.write_timeout, self.written).await?;
        Ok(ended)
    }

    fn code(&mut self) -> Result<(HeadBuffer, Progress), Broken> {
        let framing = self.framing;
        let mut out = self.prefix.take().unwrap_or_else(HeadBuffer::take);
        let mut at = 0;
        let ended = loop {
            let step = self.reader.step(&self.buffer[at..]).map_err(Broken::SourceFault)?;
            if self.limit.is_some_and(|limit| self.reader.announced() > limit) {
                return Err(Broken::TooLarge);
            }
            match step {
                Step::Data { offset, len } => {
                    let data = &self.buffer[at + offset..at + offset + len];
                    push_data(&mut out, framing, data);
                    at += offset + len;
                }
                Step::NeedMore { consumed } => {
                    at += consumed;
                    break Progress::More;
                }
                Step::End { consumed } => {
                    at += consumed;
                    if let Some(status) = self.grpc_status.filter(|status| status.get().is_none()) {
                        let trailers = self.reader.trailers().iter();
                        status.set(grpc::status(trailers.map(|(name, value)| (&name[..], &value[..]))));
                    }
                    if framing == Framing::Chunked {
                        write_end(&mut out, &self.trailers());
                    }
                    break Progress::Ended;
                }
            }
        };
        match at == self.buffer.len() {
            // The buffer is freed while the receiver reads nothing.
            true => self.buffer = Vec::new(),
            false => drop(self.buffer.drain(..at)),
        }
        Ok((out, ended))
    }

    /// Returns the sender's trailers without the field that only penstock may set.
    fn trailers(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let is_ours = |name: &[u8]| self.withheld.is_some_and(|ours| is_same_name(name, ours.as_bytes()));
        self.reader.trailers().iter().filter(|(name, _)| !is_ours(name)).cloned().collect()
    }

    async fn finish_until_close(&mut self) -> Result<(), Broken> {
        let mut out = self.prefix.take().unwrap_or_else(HeadBuffer::take);
        if self.framing == Framing::Chunked {
            write_end(&mut out, &[]);
        }
        write(self.timer, self.to, &out, &[], self.write_timeout, self.written).await
    }
}

/// Why a wait ends.
enum Waited {
    /// The piece may go.
    Whole,
    /// Its first byte is to be sent.
    Asks,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    More,
    Ended,
}

/// Compares field names without case and with `_` equal to `-`, as some backends read them.
fn is_same_name(a: &[u8], b: &[u8]) -> bool {
    let fold = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    a.len() == b.len() && a.iter().map(fold).eq(b.iter().map(fold))
}

fn push_data(out: &mut Vec<u8>, framing: Framing, data: &[u8]) {
    if framing == Framing::Chunked {
        write_chunk_header(out, data.len());
    }
    out.extend_from_slice(data);
    if framing == Framing::Chunked {
        out.extend_from_slice(b"\r\n");
    }
}

/// Waits until `message` may go to the client. Returns its bytes that are not sent yet.
pub(super) async fn wait_for_turn<'m>(
    timer: &Timer,
    client: &Stream,
    message: &'m [u8],
    limit: Duration,
    written: &Cell<u64>,
) -> Result<&'m [u8], Broken> {
    let mut rest = message;
    let Some(pace) = client.limits().and_then(|limits| limits.down.as_ref()) else { return Ok(rest) };
    loop {
        let waited = std::future::poll_fn(|cx| {
            if pace.poll_turn(cx, message.len()).is_ready() {
                return Poll::Ready(Ok(Waited::Whole));
            }
            match client.look_after(pace) {
                Wait::GoesOn => Poll::Pending,
                Wait::Over => Poll::Ready(Err(Broken::DestinationClosed)),
                Wait::Ask => Poll::Ready(Ok(Waited::Asks)),
            }
        });
        match (waited.await?, rest) {
            (Waited::Asks, [first, others @ ..]) => {
                write(timer, client, std::slice::from_ref(first), &[], limit, written).await?;
                rest = others;
            }
            (Waited::Asks, []) => {}
            (Waited::Whole, _) => break,
        }
    }
    pace.gone();
    Ok(rest)
}

/// Writes all of both parts; the receiver has `limit` for each next write. The future is small, because every message
/// is written through it.
pub(super) async fn write(
    timer: &Timer,
    to: &Stream,
    mut first: &[u8],
    mut second: &[u8],
    limit: Duration,
    written: &Cell<u64>,
) -> Result<(), Broken> {
    if first.is_empty() && second.is_empty() {
        return Ok(());
    }
    let mut due = None;
    std::future::poll_fn(|cx| {
        let before = first.len() + second.len();
        let wrote = to.poll_write_all(cx, &mut first, &mut second);
        let count = before - first.len() - second.len();
        written.set(written.get() + count as u64);
        match wrote {
            Poll::Ready(Ok(())) => return Poll::Ready(Ok(())),
            Poll::Ready(Err(_)) => return Poll::Ready(Err(Broken::DestinationClosed)),
            Poll::Pending if count > 0 => due = None,
            Poll::Pending => {}
        }
        let due = *due.get_or_insert_with(|| Instant::now() + limit);
        timer.poll_due(cx, due).map(|()| Err(Broken::DestinationTimeout))
    })
    .await
}
