//! Carries the packets of an SFTP channel between the server, the library and the copies of files.
//!
//! The library copies the data of a file several times, and needs a task for each request. So copies ask for data by
//! themselves: their requests and their answers pass by the library, and what is carried is not copied.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use russh::ChannelWriteHalf;
use russh::client::Msg;
use russh_sftp::client::error::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::packets::{Answer, FIRST_BULK, Packet, Packets};
use super::requests::{MOST_UNASKED, Seen, State, Watched};
use super::{REQUEST_SECONDS, requests};
use crate::stream::Stream;

/// Where the answer to each request of a copy goes.
type Waiting = Arc<Mutex<HashMap<u32, mpsc::UnboundedSender<(u32, Answer)>>>>;

fn lock(waiting: &Waiting) -> MutexGuard<'_, HashMap<u32, mpsc::UnboundedSender<(u32, Answer)>>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends requests of copies to the server, and knows which copy waits for which answer.
pub(super) struct Copies {
    requests: mpsc::Sender<Bytes>,
    waiting: Waiting,
    next: AtomicU32,
    seen: Seen,
    /// Dropped with the last user of the channel.
    _here: watch::Sender<()>,
}

/// Starts the two tasks that carry packets. Returns the stream for the library, the state of the channel, and the sender of
/// requests for copies.
pub(super) fn carry(stream: Stream) -> (Watched<DuplexStream>, Seen, Copies) {
    let (library, ours) = tokio::io::duplex(LIBRARY);
    let (watched, seen, end) = requests::watch(library);
    let (from_library, to_library) = tokio::io::split(ours);
    let (sender, receiver) = mpsc::channel(AHEAD);
    let (here, gone) = watch::channel(());
    let waiting = Waiting::default();
    tokio::spawn(write(stream.writer(), from_library, receiver, seen.state.clone(), gone.clone()));
    tokio::spawn(read(stream, to_library, Arc::clone(&waiting), end, Arc::clone(&seen.unasked), gone));
    let copies =
        Copies { requests: sender, waiting, next: AtomicU32::new(0), seen: seen.clone(), _here: here };
    (watched, seen, copies)
}

/// Passes on what comes from the server, until one side ends.
async fn read(
    stream: Stream,
    mut library: WriteHalf<DuplexStream>,
    waiting: Waiting,
    end: watch::Sender<State>,
    unasked: Arc<AtomicUsize>,
    mut gone: watch::Receiver<()>,
) {
    let mut stream = stream;
    tokio::select! {
        () = pass_on(&mut stream, &mut library, &waiting, &end, &unasked) => {}
        _ = gone.changed() => {
            // A server that does not end the channel by itself must not keep the connection: the drop closes it.
            let ended = async { while stream.chunk().await.is_some() {} };
            let _ = timeout(ENDING, ended).await;
        }
    }
    // The library learns of the end when it has read everything before it, and tells it to all who wait.
    let _ = library.shutdown().await;
}

async fn pass_on(
    stream: &mut Stream,
    library: &mut WriteHalf<DuplexStream>,
    waiting: &Waiting,
    end: &watch::Sender<State>,
    unasked: &AtomicUsize,
) {
    let mut packets = Packets::default();
    while let Some(piece) = stream.chunk().await {
        if unasked.fetch_add(piece.len(), Relaxed) + piece.len() > MOST_UNASKED {
            end.send_replace(State::Flooded);
            return;
        }
        packets.push(piece);
        loop {
            match packets.take() {
                Ok(None) => break,
                Ok(Some(Packet::Bulk(number, answer))) => {
                    let to = lock(waiting).remove(&number);
                    // The copy may have ended meanwhile.
                    to.map(|to| to.send((number, answer)));
                }
                Ok(Some(Packet::Other(pieces))) => {
                    for piece in pieces {
                        if library.write_all(&piece).await.is_err() {
                            return;
                        }
                    }
                }
                Err(error) => {
                    tracing::debug!("the SFTP channel is ended: {error}");
                    return;
                }
            }
        }
    }
}

/// Sends requests, until one side ends.
async fn write(
    channel: Arc<ChannelWriteHalf<Msg>>,
    mut library: ReadHalf<DuplexStream>,
    mut requests: mpsc::Receiver<Bytes>,
    mut state: watch::Receiver<State>,
    mut gone: watch::Receiver<()>,
) {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(LIBRARY);
        let data = tokio::select! {
            read = library.read_buf(&mut buffer) => match read {
                Ok(count) if count > 0 => buffer.split().freeze(),
                _ => break,
            },
            Some(data) = requests.recv() => data,
            _ = state.wait_for(|state| *state != State::Open) => return,
        };
        let sent = tokio::select! {
            sent = channel.data_bytes(data) => sent.is_ok(),
            // After its end the channel gets no window any more, so that the write would wait for ever.
            _ = state.wait_for(|state| *state != State::Open) => false,
            // No task waits for an answer any more.
            _ = gone.changed() => false,
        };
        if !sent {
            return;
        }
    }
    // The library has closed its side: the end of input asks the server to close the channel.
    let _ = timeout(ENDING, channel.eof()).await;
}

impl Copies {
    /// Begins a copy, which has no requests yet.
    pub(super) fn begin<T>(&self) -> Copying<'_, T> {
        let (sender, answers) = mpsc::unbounded_channel();
        Copying { copies: self, asked: HashMap::new(), sender, answers }
    }
}

/// Requests of one copy, of each of which `T` is known, and their answers.
pub(super) struct Copying<'a, T> {
    copies: &'a Copies,
    asked: HashMap<u32, T>,
    sender: mpsc::UnboundedSender<(u32, Answer)>,
    answers: mpsc::UnboundedReceiver<(u32, Answer)>,
}

impl<T> Copying<'_, T> {
    /// Returns the number for a request, which is to be sent next.
    pub(super) fn number(&mut self, about: T) -> u32 {
        // Numbers repeat after two thousand million requests of one channel.
        let number = FIRST_BULK | self.copies.next.fetch_add(1, Relaxed);
        self.asked.insert(number, about);
        lock(&self.copies.waiting).insert(number, self.sender.clone());
        number
    }

    /// Number of requests without an answer.
    pub(super) fn unanswered(&self) -> usize {
        self.asked.len()
    }

    /// Sends requests; waits while the server does not read.
    ///
    /// # Errors
    /// The channel has ended.
    pub(super) async fn send(&self, requests: Bytes) -> Result<(), Error> {
        let mut state = self.copies.seen.state.clone();
        tokio::select! {
            sent = self.copies.requests.send(requests) => sent.map_err(|_| self.copies.seen.ended()),
            () = tokio::time::sleep(Duration::from_secs(REQUEST_SECONDS)) => Err(Error::Timeout),
            _ = state.wait_for(|state| *state != State::Open) => Err(self.copies.seen.ended()),
        }
    }

    /// Waits for an answer.
    ///
    /// # Errors
    /// The channel has ended, or no answer came in time.
    pub(super) async fn answer(&mut self) -> Result<(T, Answer), Error> {
        let mut state = self.copies.seen.state.clone();
        loop {
            let answer = tokio::select! {
                // An answer that arrived before the end of the channel counts.
                biased;
                answer = self.answers.recv() => answer,
                _ = state.wait_for(|state| *state != State::Open) => None,
                () = tokio::time::sleep(Duration::from_secs(REQUEST_SECONDS)) => return Err(Error::Timeout),
            };
            let Some(answer) = answer else { return Err(self.copies.seen.ended()) };
            if let Some(answer) = self.take(answer) {
                return Ok(answer);
            }
        }
    }

    /// Returns an answer that has come.
    pub(super) fn answered(&mut self) -> Option<(T, Answer)> {
        loop {
            let answer = self.answers.try_recv().ok()?;
            if let Some(answer) = self.take(answer) {
                return Some(answer);
            }
        }
    }

    fn take(&mut self, (number, answer): (u32, Answer)) -> Option<(T, Answer)> {
        let about = self.asked.remove(&number)?;
        self.copies.seen.unasked.store(0, Relaxed);
        Some((about, answer))
    }
}

impl<T> Drop for Copying<'_, T> {
    fn drop(&mut self) {
        let mut waiting = lock(&self.copies.waiting);
        for number in self.asked.keys() {
            waiting.remove(number);
        }
    }
}

/// Bytes on their way between us and the library.
const LIBRARY: usize = 16 * 1024;

/// Pieces of requests of copies that wait to be sent.
const AHEAD: usize = 2;

/// Maximum wait for the end of the channel to be sent.
const ENDING: Duration = Duration::from_secs(2);
