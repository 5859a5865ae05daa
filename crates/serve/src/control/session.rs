//! One client of the control socket: reads lines, runs commands, writes answers. Every wait has a timeout.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use access::policy::Role;
use base64ct::{Base64, Encoding};
use logic::client_slots::{ClientActivity, ClientDecision};
use logic::transaction::{Ask, Changes};
use proxy::front::{Request, Upgrade};
use state::events::{Event, Level};
use state::kept::board::StoredWithin;
use sys::cpu::thread_time;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout, timeout_at};

use super::client::{Admitted, Allowed, Origin, PeerCredentials, Shared};
use super::command::capture::{CaptureEnd, Running, Sent, Total};
use super::command::{self, Following, Format, Step};
use super::ending::Open;
use super::framing;
use super::mail::{self, Then};
use super::step_up::{Outcome, Rule};
use super::stream::Stream;
use crate::client_slots::ClientSlot;

mod held;

use held::Held;

/// Wrong one-time passwords after which the connection is closed.
const WRONG: u32 = 3;

/// Longest command line in bytes.
const LINE_LIMIT: usize = 4096;

/// Time limit from a command's first byte to its end of line.
const LINE_TIME: Duration = Duration::from_secs(30);

/// Idle timeout of a client.
const IDLE_TIME: Duration = Duration::from_secs(300);

/// Time limit for writing `WRITE_PIECE` bytes of an answer.
const WRITE_TIME: Duration = Duration::from_secs(5);

/// The same for a client that follows events: it may be a pager that stands still. It has one of the slots for followers,
/// and the events that it misses meanwhile are counted.
const FOLLOWER_TIME: Duration = Duration::from_secs(600);

/// Time after which no further command is run in the same step: other clients have their turns.
const STEP_TIME: Duration = Duration::from_micros(200);

/// Number of bytes that `WRITE_TIME` applies to.
const WRITE_PIECE: usize = 16 * 1024;

/// Bytes of answers that may wait for one store.
const HELD: usize = 64 * 1024;

/// Time after which a follower's rights are looked up again although nothing has happened.
const RIGHTS_TIME: Duration = Duration::from_secs(1);

/// Largest number of events sent in one write.
const EVENTS_AT_ONCE: usize = 64;

/// First line of the answer to a reload that failed.
const REFUSED: &str = "reload refused, nothing changed: the server keeps its configuration";

/// Time for which an answer waits until what it says is stored.
const STORE_TIME: Duration = Duration::from_secs(1);

/// Time limit of an upgrade before its answer: it has a shorter one itself, and may wait behind a reload.
const UPGRADE_TIME: Duration = Duration::from_secs(150);

/// Time limit of a reload before its answer.
const RELOAD_TIME: Duration = Duration::from_secs(120);

pub(super) struct Session {
    shared: Arc<Shared>,
    who: PeerCredentials,
    origin: Origin,
    /// Configuration that gave `who` its rights.
    generation: u64,
    /// Whether a change needs a one-time password.
    step_up: Option<Rule>,
    /// Wrong ones in this session.
    wrong: u32,
    stream: Stream,
    /// Bytes read but not yet run; at most [`LINE_LIMIT`] plus one read.
    input: Vec<u8>,
    /// Answers that wait until the state is stored, and those behind them: one store is for all.
    held: Held,
    slot: Arc<ClientSlot>,
    /// Whether it has sent a command.
    has_asked: bool,
    /// The end of this process waits for it. `None` if it follows something.
    open: Option<Open>,
}

/// The time of a step: [`STEP_TIME`] of the processor.
struct StepTime {
    began: Instant,
    used: Duration,
}

impl StepTime {
    fn begin() -> Self {
        Self { began: Instant::now(), used: thread_time() }
    }

    /// Asks the kernel for the time of the thread only after that much wall time: the thread cannot have used more.
    fn is_over(&self) -> bool {
        self.began.elapsed() >= STEP_TIME && thread_time().saturating_sub(self.used) >= STEP_TIME
    }
}

/// The session has ended: the client closed it, was too slow, or caused an error.
struct Over;

impl Session {
    pub(super) fn new(
        shared: Arc<Shared>,
        Admitted { who, origin, generation }: Admitted,
        stream: Stream,
        slot: Arc<ClientSlot>,
    ) -> Self {
        let held = Held::new(shared.front.state.clone());
        let (step_up, wrong, input, has_asked) = (None, 0, Vec::new(), false);
        let open = Some(shared.ending.client());
        Self { shared, who, origin, generation, step_up, wrong, stream, input, held, slot, has_asked, open }
    }

    /// Begins with bytes that have been read already.
    pub(super) fn with_input(mut self, input: Vec<u8>) -> Self {
        self.input = input;
        self
    }

    /// Takes over what a newer configuration says of this user.
    async fn renew_rights(&mut self) -> Result<(), String> {
        let generation = self.shared.front.state.generation.load(Relaxed);
        // The file of users may change without a new configuration.
        if self.generation != generation || matches!(self.origin, Origin::Remote(_)) {
            self.generation = generation;
            let Allowed { role, step_up } = self.shared.allowed(self.who.uid, &self.origin).await?;
            (self.who.role, self.step_up) = (role, step_up);
        }
        Ok(())
    }

    pub(super) async fn run(mut self) {
        self.serve().await;
        // A client that does not read its last bytes must not keep its task.
        let _ = timeout(WRITE_TIME, self.stream.close()).await;
    }

    async fn serve(&mut self) {
        self.slot.set(ClientActivity::Waiting);
        while let Ok(line) = self.read_line().await {
            self.has_asked = true;
            self.slot.set(ClientActivity::Working);
            if self.run_lines(line).await.is_err() {
                return;
            }
            // A client that loses its slot has read all its answers before: those that are held say what was done.
            if self.held.is_empty() && self.slot.set(ClientActivity::Waiting) == ClientDecision::GivesWay {
                return;
            }
            // Yield after each command, so that `Paced` charges its time before the next one.
            yield_now().await;
        }
    }

    async fn read_line(&mut self) -> Result<Vec<u8>, Over> {
        let mut deadline =
            tokio::time::Instant::now() + if self.input.is_empty() { IDLE_TIME } else { LINE_TIME };
        loop {
            if let Some(line) = self.next_line() {
                return Ok(line);
            }
            if self.input.len() > LINE_LIMIT {
                let message = format!("a command has at most {LINE_LIMIT} bytes");
                let _ = self.send(&framing::refusal(&message, "")).await;
                return Err(Over);
            }
            let was_empty = self.input.is_empty();
            let read = tokio::select! {
                read = timeout_at(deadline, self.stream.read_buf(&mut self.input)) => read,
                time = self.shared.ending.begun() => return self.last_line(time).await,
            };
            match read {
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

    /// Reads a command that was sent before the end of this process. A client that has sent none yet has some time for it.
    async fn last_line(&mut self, time: Duration) -> Result<Vec<u8>, Over> {
        let is_between_commands = self.has_asked && self.input.is_empty();
        let deadline = tokio::time::Instant::now() + if is_between_commands { Duration::ZERO } else { time };
        while !self.has_line() {
            let is_too_long = self.input.len() > LINE_LIMIT;
            match timeout_at(deadline, self.stream.read_buf(&mut self.input)).await {
                Ok(Ok(some)) if some > 0 && !is_too_long => {}
                _ => return Err(Over),
            }
        }
        self.next_line().ok_or(Over)
    }

    /// Takes a line that has arrived whole.
    fn next_line(&mut self) -> Option<Vec<u8>> {
        let end = memchr::memchr(b'\n', &self.input).filter(|end| *end <= LINE_LIMIT)?;
        let mut line: Vec<u8> = self.input.drain(..=end).collect();
        line.pop();
        Some(line)
    }

    /// Runs a command, and those that have arrived behind it, as far as they are answered at once and a step has time:
    /// one write has all their answers.
    async fn run_lines(&mut self, first: Vec<u8>) -> Result<(), Over> {
        if let Err(reason) = self.renew_rights().await {
            let mut wire = Vec::new();
            self.held.store(&mut wire).await;
            wire.append(&mut framing::refusal(&reason, ""));
            let _ = self.send(&wire).await;
            return Err(Over);
        }
        let step_time = StepTime::begin();
        let (mut line, mut wire) = (first, Vec::new());
        loop {
            let step = match std::str::from_utf8(&line) {
                Ok(text) => match self.of_remote(text) {
                    Some(step) => step,
                    None => command::run(text, &self.shared.front, &self.who),
                },
                Err(_) => Step::Refused("a command is UTF-8 text".into()),
            };
            match step {
                Step::Nothing => {}
                Step::Answer(text) if self.held.is_empty() => wire.append(&mut framing::answer(&text)),
                Step::Answer(text) => self.held.push(framing::answer(&text)),
                Step::Marked(text, format) => self.held.push_marked(text, format),
                Step::Refused(refusal) => {
                    let mut refusal = framing::refusal(&refusal.message, &refusal.details);
                    match self.held.is_empty() {
                        true => wire.append(&mut refusal),
                        false => self.held.push(refusal),
                    }
                }
                step => {
                    self.held.store(&mut wire).await;
                    self.send(&wire).await?;
                    self.slot.set(ClientActivity::Working);
                    return self.perform(step).await;
                }
            }
            let is_much = wire.len() >= WRITE_PIECE || self.held.bytes() >= HELD;
            if is_much || step_time.is_over() {
                break;
            }
            match self.next_line() {
                Some(next) => line = next,
                None => break,
            }
        }
        // What has arrived behind them comes first, so that its answers need no store of their own.
        if !self.held.is_empty() && (self.held.bytes() >= HELD || !self.has_line()) {
            self.held.store(&mut wire).await;
        }
        if wire.is_empty() { Ok(()) } else { self.send(&wire).await }
    }

    /// What only clients over the network do: commands of SMTP, one-time passwords, and changes that need one.
    fn of_remote(&self, line: &str) -> Option<Step> {
        let Origin::Remote(operator) = &self.origin else { return None };
        if let Some(mail) = mail::answer(line.as_bytes()) {
            return Some(Step::Mail(mail));
        }
        if let Some(typed) = command::password(line) {
            return Some(Step::Password(typed));
        }
        let rule = self.step_up.as_ref().filter(|_| command::changes(line, self.who.role))?;
        self.shared
            .proved
            .lacks_password(rule, &operator.subject, operator.from)
            .map(|refusal| Step::Refused(refusal.into()))
    }

    async fn take_password(&mut self, typed: &str) -> Result<(), Over> {
        let Origin::Remote(operator) = &self.origin else { return Ok(()) };
        let Shared { front, logins, proved, .. } = &*self.shared;
        let who = (&operator.subject, operator.from);
        let by = (&*front.state, &**logins);
        let taken = proved.take_password(by, self.step_up.as_ref(), who, typed);
        let (wire, outcome) = taken.await;
        self.wrong += u32::from(outcome == Outcome::Wrong);
        self.send(&wire).await?;
        if self.wrong >= WRONG { Err(Over) } else { Ok(()) }
    }

    /// Whether a whole line has arrived that was not run yet.
    fn has_line(&mut self) -> bool {
        loop {
            match memchr::memchr(b'\n', &self.input) {
                Some(end) => return end <= LINE_LIMIT,
                None if self.input.len() > LINE_LIMIT => return false,
                None => {}
            }
            match self.stream.try_read_buf(&mut self.input) {
                Ok(1..) => {}
                Ok(0) | Err(_) => return false,
            }
        }
    }

    /// Does what a command asks for beyond an answer.
    async fn perform(&mut self, step: Step) -> Result<(), Over> {
        if matches!(step, Step::Capture(_) | Step::Follow(_)) {
            self.open = None;
        }
        let wire = match step {
            Step::Nothing => Vec::new(),
            // `run_lines` has the answers.
            Step::Answer(text) | Step::Marked(text, _) => framing::answer(&text),
            Step::Refused(refusal) => framing::refusal(&refusal.message, &refusal.details),
            Step::Reload(format) => self.reload(format).await,
            Step::Stop(format) => self.stop(format).await,
            Step::Upgrade(upgrade, format) => return self.upgrade(upgrade, format).await,
            Step::Mail(mail) => {
                self.send(mail.answer.as_bytes()).await?;
                return if mail.then == Then::Ends { Err(Over) } else { Ok(()) };
            }
            Step::Password(typed) => return self.take_password(&typed).await,
            Step::Later(later) => match later.0.await {
                Ok(text) => framing::answer(&text),
                Err(refusal) => framing::refusal(&refusal.message, &refusal.details),
            },
            Step::Change(ask, format) => self.change(ask, format).await,
            Step::Capture(running) => match self.slot.set(ClientActivity::Following) {
                ClientDecision::Keeps => return self.capture(running).await,
                ClientDecision::GivesWay => return Err(Over),
                ClientDecision::TooManyFollow(most) => {
                    framing::refusal(&format!("{most} follow already: that is the limit"), "")
                }
            },
            Step::Follow(following) => match self.slot.set(ClientActivity::Following) {
                ClientDecision::Keeps => return self.follow(following).await,
                ClientDecision::GivesWay => return Err(Over),
                ClientDecision::TooManyFollow(most) => {
                    let message = format!("{most} follow the events already: that is the limit");
                    framing::refusal(&message, "without `follow` the events so far are shown")
                }
            },
        };
        self.send(&wire).await
    }

    async fn reload(&self, format: Format) -> Vec<u8> {
        let (answer, answered) = oneshot::channel();
        let asked = async {
            let request = Request::Reload { by: self.who.operator(), answer };
            self.shared.front.requests.send(request).await.map_err(|_| "the process is ending")?;
            answered.await.map_err(|_| "the process is ending")
        };
        let message = format!("reload asked for by {}", self.who);
        self.shared.front.state.events.record(Level::Info, "control", message);
        match timeout(RELOAD_TIME, asked).await {
            Ok(Ok(Ok(text))) => self.stored(command::said(format, "reload", &text), format).await,
            Ok(Ok(Err(faults))) => framing::refusal(REFUSED, &faults),
            Ok(Err(reason)) => framing::refusal(reason, ""),
            Err(_) => framing::refusal("no answer to the reload yet; see the events", ""),
        }
    }

    /// Frames an answer, when what it says is stored or the time for that is over.
    async fn stored(&self, text: String, format: Format) -> Vec<u8> {
        let state = &self.shared.front.state;
        match state.kept.stored_within(STORE_TIME).await {
            StoredWithin::Yes => framing::answer(&text),
            StoredWithin::No => framing::answer(&command::not_stored(state, text, format)),
        }
    }

    async fn change(&self, ask: Ask, format: Format) -> Vec<u8> {
        let (answer, answered) = oneshot::channel();
        let asked = async {
            let request = Request::Change { by: self.who.operator(), ask, answer };
            self.shared.front.requests.send(request).await.map_err(|_| "the process is ending")?;
            answered.await.map_err(|_| "the process is ending")
        };
        match timeout(RELOAD_TIME, asked).await {
            Ok(Ok((Ok(said), changes))) => {
                let text = match format {
                    Format::Text => said.text,
                    Format::Json => said.json,
                };
                match changes {
                    Changes::Yes => self.stored(text, format).await,
                    Changes::No => framing::answer(&text),
                }
            }
            Ok(Ok((Err(denied), _))) => framing::refusal(&denied.message, &denied.details),
            Ok(Err(reason)) => framing::refusal(reason, ""),
            Err(_) => framing::refusal("no answer yet: the change may still be made; see the events", ""),
        }
    }

    async fn upgrade(&mut self, upgrade: Upgrade, format: Format) -> Result<(), Over> {
        let front = self.shared.front.clone();
        let Some(_turn) = front.state.upgrade.begin() else {
            return self
                .send(&framing::refusal("another upgrade is running: `penstock ctl events` shows it", ""))
                .await;
        };
        let (answer, answered) = oneshot::channel();
        // Dropped when the answer is sent.
        let (_telling, told) = oneshot::channel();
        let asked = async {
            let request = Request::Upgrade { upgrade, answer, told };
            front.requests.send(request).await.map_err(|_| "the process is ending")?;
            answered.await.map_err(|_| "the process is ending")
        };
        let wire = match timeout(UPGRADE_TIME, asked).await {
            Ok(Ok(Ok(said))) => framing::answer(match format {
                Format::Text => &said.text,
                Format::Json => &said.json,
            }),
            Ok(Ok(Err(denied))) => framing::refusal(&denied.message, &denied.details),
            Ok(Err(reason)) => framing::refusal(reason, ""),
            Err(_) => framing::refusal("no answer to the upgrade yet; see the events", ""),
        };
        self.send(&wire).await
    }

    async fn stop(&self, format: Format) -> Vec<u8> {
        let message = format!("stop asked for by {}", self.who);
        let services = crate::stopping::of_services(&self.shared.front);
        self.shared.front.state.events.record(Level::Info, "control", message);
        match timeout(WRITE_TIME, self.shared.front.requests.send(Request::Stop)).await {
            Ok(Ok(())) => {
                let drain = "stopping: no new sessions, established ones drain".to_owned();
                let all = [vec![drain], services].concat().join("\n");
                framing::answer(&command::said(format, "stop", &all))
            }
            _ => framing::refusal("the process is ending already", ""),
        }
    }

    /// Sends events until the client disconnects, reads too slowly, or sends anything: any input ends the answer.
    async fn follow(&mut self, following: Following) -> Result<(), Over> {
        let mut events: Receiver<Event> = self.shared.front.state.events.follow();
        let mut wire = framing::ok();
        let mut shown = 0;
        for event in self.shared.front.state.events.last(following.count) {
            framing::push_text(&mut wire, &command::event_line(following.format, &event));
            shown = event.number;
        }
        self.deliver(&wire, FOLLOWER_TIME).await?;
        loop {
            // A line may have come in one piece with the command.
            if !self.input.is_empty() {
                return self.send(framing::END).await;
            }
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
                () = sleep(RIGHTS_TIME) => {}
                read = self.stream.read_buf(&mut self.input) => match read {
                    Ok(some) if some > 0 => return self.send(framing::END).await,
                    _ => return Err(Over),
                },
            }
            for _ in 1..EVENTS_AT_ONCE {
                match events.try_recv() {
                    Ok(event) => push(Ok(event))?,
                    Err(TryRecvError::Lagged(lost)) => push(Err(RecvError::Lagged(lost)))?,
                    // The next `recv` reports a closed channel.
                    Err(TryRecvError::Empty | TryRecvError::Closed) => break,
                }
            }
            // An operator who was removed sees none of what has happened since.
            if self.renew_rights().await.is_err() {
                return self.send(framing::END).await;
            }
            self.deliver(&wire, FOLLOWER_TIME).await?;
            // Yield, so that `Paced` charges the time of this step before the next one.
            yield_now().await;
        }
    }

    /// Sends packets until the time or the size is reached, or the client disconnects, reads too slowly, or sends anything.
    async fn capture(&mut self, running: Running) -> Result<(), Over> {
        let front = self.shared.front.clone();
        let (size, what) = (running.size, running.what.clone());
        let mut running = running;
        let mut sent = Sent::default();
        let result = self.send_packets(&mut running, &mut sent).await;
        let counts = running.source.counts();
        drop(running);
        let end = result.as_ref().map_or(CaptureEnd::ClientGone, |end| *end);
        let total = Total { counts, packets: sent.packets, bytes: sent.bytes, size, end };
        let message = format!("{what} by {} ended: {}", self.who, total.words());
        front.state.events.record(Level::Info, "capture", message);
        result?;
        let mut wire = Vec::new();
        framing::push_text(&mut wire, &total.line());
        wire.extend_from_slice(framing::END);
        self.send(&wire).await
    }

    async fn send_packets(&mut self, running: &mut Running, sent: &mut Sent) -> Result<CaptureEnd, Over> {
        let Running { source, time, size, packets, start, note, .. } = running;
        let mut wire = framing::ok();
        if let Some(note) = note {
            framing::push_text(&mut wire, note);
        }
        let mut bytes = std::mem::take(start);
        let end = tokio::time::Instant::now() + *time;
        loop {
            sent.add(&bytes);
            framing::push_text(&mut wire, &Base64::encode_string(&bytes));
            self.deliver(&wire, WRITE_TIME).await?;
            wire.clear();
            if sent.packets >= *packets {
                return Ok(CaptureEnd::Packets);
            }
            // Yield, so that `Paced` charges the time of this step before the next one.
            // A line may have come in one piece with the command.
            if !self.input.is_empty() {
                return Ok(CaptureEnd::Client);
            }
            yield_now().await;
            bytes = tokio::select! {
                next = timeout_at(end, source.next()) => match next {
                    Ok(Some(bytes)) => bytes,
                    Ok(None) => return Ok(CaptureEnd::Time),
                    // What was captured until now is still sent.
                    Err(_) => {
                        source.close();
                        Vec::new()
                    }
                },
                read = self.stream.read_buf(&mut self.input) => match read {
                    Ok(some) if some > 0 => return Ok(CaptureEnd::Client),
                    _ => return Err(Over),
                },
            };
            if self.renew_rights().await.is_err() || self.who.role != Role::Admin {
                return Ok(CaptureEnd::NoRights);
            }
            if sent.bytes + bytes.len() as u64 > *size {
                return Ok(CaptureEnd::Size);
            }
        }
    }

    /// Sends an answer. A client that reads it slowly may lose its slot.
    async fn send(&mut self, wire: &[u8]) -> Result<(), Over> {
        self.slot.set(ClientActivity::Writing);
        self.deliver(wire, WRITE_TIME).await
    }

    /// Sends bytes to a client that has `limit` for each piece.
    async fn deliver(&mut self, wire: &[u8], limit: Duration) -> Result<(), Over> {
        for piece in wire.chunks(WRITE_PIECE) {
            self.write(piece, limit).await?;
        }
        Ok(())
    }

    async fn write(&mut self, piece: &[u8], limit: Duration) -> Result<(), Over> {
        let write = async {
            self.stream.write_all(piece).await?;
            self.stream.flush().await
        };
        match timeout(limit, write).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Over),
        }
    }
}

impl Following {
    fn lost(&self, count: u64) -> String {
        match self.format {
            Format::Text => {
                text::terminal::line(&format!("({count} events lost: they came faster than they were read)"))
            }
            Format::Json => serde_json::json!({ "events_lost": count }).to_string(),
        }
    }
}
