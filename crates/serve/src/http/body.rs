//! Moves a message body from one side to the other, taking its framing off and putting ours on.

use std::cell::Cell;
use std::task::Poll;
use std::time::{Duration, Instant};

use logic::http1::chunked::{ChunkFault, ChunkLimits, Decoder, Step, write_chunk_header, write_end};
use logic::http1::request::BodyLength;

use super::heads::HeadBuffer;
use crate::plain::Ended;
use crate::stream::{Carriage, Stream};
use crate::timer::Timer;

/// A body of so many bytes is copied behind its head, so that both go out in one piece: send(2) with a copy costs less than
/// writev(2) without.
pub(super) const SMALL: usize = 2048;

/// How far a body has been read.
pub(super) enum Reader {
    /// So many bytes are missing.
    Length(u64),
    /// The decoder knows.
    Chunked(Box<Decoder>),
    /// Everything up to the end of the connection.
    UntilClose,
}

impl Reader {
    /// A reader for a body, `None` if there is nothing to read.
    pub(super) fn new(length: BodyLength) -> Option<Self> {
        match length {
            BodyLength::None | BodyLength::Length(0) => None,
            BodyLength::Length(length) => Some(Self::Length(length)),
            BodyLength::Chunked => Some(Self::Chunked(Box::new(Decoder::new(ChunkLimits::default())))),
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

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// As it is.
    Raw,
    /// In chunks, with trailers.
    Chunked,
}

/// Why a body could not be moved to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The sender closed too early, or its connection broke.
    SourceClosed,
    /// The sender was silent for too long.
    SourceTimeout,
    /// The sender broke the chunked coding.
    SourceFault,
    /// There is more of it than the limit allows.
    TooLarge,
    /// The receiver's connection broke.
    DestinationClosed,
    /// The receiver took nothing for too long.
    DestinationTimeout,
}

/// One body on its way.
pub(super) struct Transfer<'a> {
    pub(super) timer: &'a Timer,
    pub(super) from: &'a Stream,
    /// Bytes of the sender that were read already.
    pub(super) buffer: Vec<u8>,
    pub(super) reader: Reader,
    pub(super) to: &'a Stream,
    pub(super) framing: Framing,
    /// Goes out with the first bytes: the message's head.
    pub(super) prefix: Option<HeadBuffer>,
    pub(super) limit: Option<u64>,
    /// Name of a trailer that is not passed on.
    pub(super) withheld: Option<&'a str>,
    pub(super) read_timeout: Duration,
    pub(super) write_timeout: Duration,
    pub(super) read: &'a Cell<u64>,
    pub(super) written: &'a Cell<u64>,
}

impl Transfer<'_> {
    /// Moves the body to its end. Gives what was read behind it, too.
    pub(super) async fn run(mut self) -> (Result<(), Broken>, Vec<u8>) {
        let moved = self.move_all().await;
        (moved, self.buffer)
    }

    async fn move_all(&mut self) -> Result<(), Broken> {
        loop {
            let ended = match self.framing {
                Framing::Raw if !matches!(self.reader, Reader::Chunked(_)) => self.forward_raw().await?,
                framing => self.forward_coded(framing).await?,
            };
            if ended == Progress::Ended {
                return Ok(());
            }
            // Nothing is held while we wait.
            self.buffer = Vec::new();
            if self.to.carriage() == Carriage::Multiplexed {
                self.flows().await?;
            }
            let Self { timer, from, to, buffer, read_timeout, .. } = &mut *self;
            let filling = std::future::poll_fn(|cx| from.poll_fill_for(cx, buffer, to));
            match timer.within(*read_timeout, filling).await {
                Err(_) => return Err(Broken::SourceTimeout),
                Ok(Err(_)) => return Err(Broken::SourceClosed),
                Ok(Ok(0)) if matches!(self.reader, Reader::UntilClose) && self.from.ended() != Ended::Cut => {
                    return self.finish_until_close().await;
                }
                Ok(Ok(0)) => return Err(Broken::SourceClosed),
                Ok(Ok(count)) => self.read.set(self.read.get() + count as u64),
            }
        }
    }

    /// Waits until more may be read for the receiver.
    async fn flows(&self) -> Result<(), Broken> {
        let flows = std::future::poll_fn(|cx| self.to.poll_flows(cx));
        self.timer.within(self.write_timeout, flows).await.map_err(|_| Broken::DestinationTimeout)
    }

    /// Bytes go out as they came in, without a copy.
    async fn forward_raw(&mut self) -> Result<Progress, Broken> {
        let mut taken = 0;
        let ended = loop {
            match self.reader.step(&self.buffer[taken..]) {
                Ok(Step::Data { len, .. }) => taken += len,
                Ok(Step::NeedMore { .. }) => break Progress::More,
                Ok(Step::End { .. }) => break Progress::Ended,
                Err(_) => return Err(Broken::SourceFault),
            }
        };
        let mut prefix = self.prefix.take();
        if let Some(prefix) = prefix.as_mut().filter(|_| taken <= SMALL) {
            prefix.extend_from_slice(&self.buffer[..taken]);
            match taken == self.buffer.len() {
                // Nothing is held twice while the receiver takes nothing.
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

    /// Bytes are taken out of their framing and put into ours.
    async fn forward_coded(&mut self, framing: Framing) -> Result<Progress, Broken> {
        let mut out = self.prefix.take().unwrap_or_else(HeadBuffer::take);
        let mut at = 0;
        let ended = loop {
            let step = self.reader.step(&self.buffer[at..]).map_err(|_| Broken::SourceFault)?;
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
                    if framing == Framing::Chunked {
                        write_end(&mut out, &self.trailers());
                    }
                    break Progress::Ended;
                }
            }
        };
        match at == self.buffer.len() {
            // Nothing is held twice while the receiver takes nothing.
            true => self.buffer = Vec::new(),
            false => drop(self.buffer.drain(..at)),
        }
        write(self.timer, self.to, &out, &[], self.write_timeout, self.written).await?;
        Ok(ended)
    }

    /// The sender's trailers without the one that only we may set.
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    More,
    Ended,
}

/// Whether a reader that folds case and takes `_` for `-` sees the same name.
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

/// Writes all of both parts; the receiver may take `limit` for each next byte. One state of few bytes: every message is
/// written through it.
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
