//! One client of the control socket: reads lines, runs them, writes answers. Every wait has an end.

use std::sync::Arc;
use std::time::Duration;

use logic::places::{Doing, Standing};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{timeout, timeout_at};

use super::client::{Shared, Who};
use super::command::{self, Following, Format, Step};
use super::framing;
use crate::events::{Event, Level};
use crate::front::Request;
use crate::places::Place;
use crate::report::text;

/// Longest command, in bytes.
const LINE_LIMIT: usize = 4096;

/// A command must be complete so long after its first byte.
const LINE_TIME: Duration = Duration::from_secs(30);

/// A client that says nothing is closed after so long.
const IDLE_TIME: Duration = Duration::from_secs(300);

/// A client must take a piece of an answer within so long.
const WRITE_TIME: Duration = Duration::from_secs(5);

/// Size of these pieces.
const WRITE_PIECE: usize = 16 * 1024;

/// Events that are delivered in one step.
const EVENTS_AT_ONCE: usize = 64;

/// The first line of the answer to a reload that changed nothing.
const REFUSED: &str = "reload refused, nothing changed: the server goes on with the configuration it has";

/// How long a reload may take until its answer.
const RELOAD_TIME: Duration = Duration::from_secs(120);

pub(super) struct Session {
    shared: Arc<Shared>,
    who: Who,
    stream: UnixStream,
    /// Read and not yet run; never longer than [`LINE_LIMIT`] and one read.
    input: Vec<u8>,
    place: Arc<Place>,
}

/// The session is over: closed, too slow, or in error.
struct Over;

impl Session {
    pub(super) fn new(shared: Arc<Shared>, who: Who, stream: UnixStream, place: Arc<Place>) -> Self {
        Self { shared, who, stream, input: Vec::new(), place }
    }

    pub(super) async fn run(mut self) {
        self.place.set(Doing::Waiting);
        while let Ok(line) = self.read_line().await {
            self.place.set(Doing::Working);
            if self.run_line(&line).await.is_err() {
                return;
            }
            if self.place.set(Doing::Waiting) == Standing::GivesWay {
                return;
            }
            // Each command is a step that is paid for before the next one.
            yield_now().await;
        }
    }

    async fn read_line(&mut self) -> Result<Vec<u8>, Over> {
        let mut deadline =
            tokio::time::Instant::now() + if self.input.is_empty() { IDLE_TIME } else { LINE_TIME };
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.input).filter(|end| *end <= LINE_LIMIT) {
                let mut line: Vec<u8> = self.input.drain(..=end).collect();
                line.pop();
                return Ok(line);
            }
            if self.input.len() > LINE_LIMIT {
                let message = format!("a command has at most {LINE_LIMIT} bytes");
                let _ = self.send(&framing::refusal(&message, "")).await;
                return Err(Over);
            }
            let was_empty = self.input.is_empty();
            match timeout_at(deadline, self.stream.read_buf(&mut self.input)).await {
                Ok(Ok(some)) if some > 0 => {}
                Ok(_) => return Err(Over),
                Err(_) if was_empty => return Err(Over),
                Err(_) => {
                    let message = format!("no whole command within {} s", LINE_TIME.as_secs());
                    let _ = self.send(&framing::refusal(&message, "")).await;
                    return Err(Over);
                }
            }
            if was_empty {
                deadline = tokio::time::Instant::now() + LINE_TIME;
            }
        }
    }

    async fn run_line(&mut self, line: &[u8]) -> Result<(), Over> {
        let step = match std::str::from_utf8(line) {
            Ok(line) => command::run(line, &self.shared.front, self.who),
            Err(_) => Step::Refused("a command is UTF-8 text".into()),
        };
        let wire = match step {
            Step::Nothing => Vec::new(),
            Step::Answer(text) => framing::answer(&text),
            Step::Refused(refusal) => framing::refusal(&refusal.message, &refusal.details),
            Step::Reload(format) => self.reload(format).await,
            Step::Stop(format) => self.stop(format).await,
            Step::Follow(following) => match self.place.set(Doing::Following) {
                Standing::Keeps => return self.follow(following).await,
                Standing::GivesWay => return Err(Over),
                Standing::TooManyFollow => {
                    let most = self.place.most_following();
                    let message = format!("{most} clients follow the events already, which is the most");
                    framing::refusal(&message, "without `follow` the events so far are shown")
                }
            },
        };
        self.send(&wire).await
    }

    async fn reload(&self, format: Format) -> Vec<u8> {
        let (answer, answered) = oneshot::channel();
        let asked = async {
            self.shared
                .front
                .requests
                .send(Request::Reload(answer))
                .await
                .map_err(|_| "the process is ending")?;
            answered.await.map_err(|_| "the process is ending")
        };
        let message = format!("reload asked for by {}", self.who);
        self.shared.front.state.events.record(Level::Info, "control", message);
        match timeout(RELOAD_TIME, asked).await {
            Ok(Ok(Ok(text))) => framing::answer(&command::said(format, "reload", &text)),
            Ok(Ok(Err(faults))) => framing::refusal(REFUSED, &faults),
            Ok(Err(reason)) => framing::refusal(reason, ""),
            Err(_) => framing::refusal("no answer to the reload yet; see the events", ""),
        }
    }

    async fn stop(&self, format: Format) -> Vec<u8> {
        let message = format!("stop asked for by {}", self.who);
        self.shared.front.state.events.record(Level::Info, "control", message);
        match timeout(WRITE_TIME, self.shared.front.requests.send(Request::Stop)).await {
            Ok(Ok(())) => framing::answer(&command::said(
                format,
                "stop",
                "stopping: no new sessions, established ones drain",
            )),
            _ => framing::refusal("the process is ending already", ""),
        }
    }

    /// Shows events until the client goes away, is too slow, or says something: that ends the answer.
    async fn follow(&mut self, following: Following) -> Result<(), Over> {
        let mut events: Receiver<Event> = self.shared.front.state.events.follow();
        let mut wire = framing::ok();
        let mut shown = 0;
        for event in self.shared.front.state.events.last(following.count) {
            framing::push_text(&mut wire, &command::event_line(following.format, &event));
            shown = event.number;
        }
        self.deliver(&wire).await?;
        loop {
            let mut wire = Vec::new();
            let mut push = |event| match event {
                Ok(Event { number, .. }) if number <= shown => Ok(()),
                Ok(event) => {
                    framing::push_text(&mut wire, &command::event_line(following.format, &event));
                    Ok(())
                }
                Err(RecvError::Lagged(lost)) => {
                    framing::push_text(&mut wire, &following.lost(lost));
                    Ok(())
                }
                Err(RecvError::Closed) => Err(Over),
            };
            tokio::select! {
                event = events.recv() => push(event)?,
                read = self.stream.read_buf(&mut self.input) => match read {
                    Ok(some) if some > 0 => return self.send(framing::END).await,
                    _ => return Err(Over),
                },
            }
            for _ in 1..EVENTS_AT_ONCE {
                match events.try_recv() {
                    Ok(event) => push(Ok(event))?,
                    Err(TryRecvError::Lagged(lost)) => push(Err(RecvError::Lagged(lost)))?,
                    // What is closed is found by the next `recv`.
                    Err(TryRecvError::Empty | TryRecvError::Closed) => break,
                }
            }
            self.deliver(&wire).await?;
            // A step is paid for before the next one.
            yield_now().await;
        }
    }

    /// Sends an answer. A client that takes long to read it may lose its place.
    async fn send(&mut self, wire: &[u8]) -> Result<(), Over> {
        self.place.set(Doing::Writing);
        self.deliver(wire).await
    }

    /// Sends what a follower waits for.
    async fn deliver(&mut self, wire: &[u8]) -> Result<(), Over> {
        for piece in wire.chunks(WRITE_PIECE) {
            self.write(piece).await?;
        }
        Ok(())
    }

    async fn write(&mut self, piece: &[u8]) -> Result<(), Over> {
        match timeout(WRITE_TIME, self.stream.write_all(piece)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Over),
        }
    }
}

impl Following {
    fn lost(&self, count: u64) -> String {
        match self.format {
            Format::Text => {
                text::printable(&format!("({count} events lost: they came faster than they were read)"))
            }
            Format::Json => serde_json::json!({ "lost": count }).to_string(),
        }
    }
}
