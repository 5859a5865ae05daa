//! One host's turn: connect, send the command, pass its output on, see it end, or end it.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use logic::fleet::ending::{Ending, Failure, Phase, Reason, Remote};
use logic::fleet::leash::{self, Hold, Mark};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep_until, timeout};

use super::board::{Board, Stage};
use super::engine::{Engine, Happening, Leash, Running, Stream, Way, Writer};
use super::input::Input;
use super::journal::Journal;
use super::output::Outbox;
use super::stop::{Brake, Stop, Why, cut, stopped};
use super::{Done, Host, Job, Order, copy};

mod ended;

/// What all turns of a run share.
pub(super) struct Shared {
    pub(super) hosts: Vec<Host>,
    pub(super) job: Job,
    pub(super) engine: Engine,
    pub(super) board: Arc<Board>,
    pub(super) brake: Brake,
    pub(super) out: Outbox,
    pub(super) journal: Option<Journal>,
    /// Hosts whose command has started, and how long their way up took.
    pub(super) up: mpsc::UnboundedSender<(usize, Duration)>,
}

/// What a turn came to.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) ending: Ending,
    pub(super) hold: Hold,
}

/// Takes the turn of a host.
pub(super) async fn take(shared: Arc<Shared>, host: usize) -> Finished {
    let order = match &shared.job {
        Job::Command(order) => order,
        Job::Copy(order) => {
            let ending = copy::take(&shared, host, order).await.unwrap_or_else(Ending::Failed);
            return Finished { ending, hold: Hold::Unclear };
        }
    };
    let mut turn = Turn {
        stop: shared.brake.watch(),
        shared: &shared,
        order,
        host,
        began: Instant::now(),
        mark: None,
        announced: false,
        held: None,
        since: None,
        gave_up: false,
        passed: 0,
        dropped: 0,
    };
    let ending = match turn.go().await {
        Ok(ending) => ending,
        Err(failure) => Ending::Failed(failure),
    };
    Finished { ending, hold: turn.mark.map_or(Hold::Unclear, |mark| mark.hold()) }
}

struct Turn<'a> {
    shared: &'a Shared,
    order: &'a Order,
    host: usize,
    stop: watch::Receiver<Stop>,
    began: Instant,
    mark: Option<Mark>,
    announced: bool,
    /// The input of a command without input: its leash waits at the other end.
    held: Option<Writer>,
    /// Since when the command runs, as far as is known.
    since: Option<tokio::time::Instant>,
    /// Whether that was closed before it was clear that nothing waits there.
    gave_up: bool,
    /// Bytes of output, of both streams and without the mark, that went on to the output thread in the order in which they came;
    /// and bytes that came but did not.
    passed: u64,
    dropped: u64,
}

/// Why a running command is ended by us.
enum Cause {
    Stopped(Stop),
    TimedOut(Duration),
    TimedOutAt(Phase),
    /// What it was to read cannot be read; the writer is kept, for its end would look like that of the input.
    NoInput {
        error: std::io::Error,
        _writer: Writer,
    },
}

impl Shared {
    /// Gets ready to send, and writes down that it is going to be.
    pub(super) async fn connect(
        &self,
        host: usize,
        stop: &mut watch::Receiver<Stop>,
    ) -> Result<Way, Failure> {
        let on_phase = |phase| self.board.set(host, Stage::At(phase));
        on_phase(Phase::Resolve);
        let way = tokio::select! {
            biased;
            stop = stopped(stop) => {
                let phase = self.board.phase(host);
                return Err(Failure::never_started(phase, Reason::Stopped, why(stop).to_owned()));
            }
            way = self.engine.connect(&self.hosts[host], &on_phase) => way?,
        };
        if let Some(journal) = &self.journal {
            let recorded = tokio::select! {
                biased;
                // The record may say that it was sent; that it ended as never started comes after that.
                stop = stopped(stop) => {
                    return Err(Failure::never_started(Phase::Start, Reason::Stopped, why(stop).to_owned()));
                }
                recorded = journal.sent(host) => recorded,
            };
            if let Err(error) = recorded {
                let detail = format!("not sent, since the record of this run cannot be written: {error}");
                return Err(Failure::never_started(Phase::Start, Reason::Local, detail));
            }
        }
        if let Way::Native(_) = way {
            on_phase(Phase::Start);
        }
        Ok(way)
    }
}

impl Turn<'_> {
    async fn go(&mut self) -> Result<Ending, Failure> {
        let shared = self.shared;
        let (host, order) = (&shared.hosts[self.host], self.order);
        let way = shared.connect(self.host, &mut self.stop).await?;
        let (command, input) = self.command();
        let patience = order.connect_timeout;
        let running = tokio::select! {
            biased;
            () = cut(&mut self.stop) => return Err(self.failure(Phase::Start, Reason::Stopped, Remote::Unknown, "let go while the command was being sent".to_owned())),
            running = timeout(patience, shared.engine.exec(host, &way, &command)) => match running {
                Ok(running) => running?,
                Err(_) => {
                    let detail = format!("it did not open a channel within {} s", patience.as_secs_f32());
                    // What waits is the opening of a channel; the command goes out when that is done.
                    let late = self.failure(Phase::Start, Reason::TimedOut, Remote::NeverStarted, detail);
                    return Err(Failure { advice: Some(LATE_START.to_owned()), ..late });
                }
            },
        };
        Ok(self.watch(running, input).await)
    }

    /// What is sent, and what its input is.
    fn command(&mut self) -> (String, Input) {
        let order = &self.order;
        let leashed = order.leash == Leash::Wanted && self.shared.engine.can_leash() == Leash::Wanted;
        if !leashed {
            return (order.command.clone(), order.input.clone());
        }
        self.mark = Some(Mark::new(&order.nonce));
        let kind = match order.input {
            Input::None => leash::Input::None,
            _ => leash::Input::Sent,
        };
        (leash::wrap(&order.command, kind, &order.nonce), order.input.clone())
    }

    async fn watch(&mut self, mut running: Running, input: Input) -> Ending {
        let mut phase = self.shared.board.phase(self.host).max(Phase::Resolve);
        let mut since = tokio::time::Instant::now();
        let mut writer = running.take_input();
        // Without input the leash needs its end of the pipe open; everybody else is told at once that there is none.
        if matches!(input, Input::None) && self.mark.is_some() {
            self.held = writer.take();
        }
        let mut feed = pin!(async move {
            match writer {
                Some(writer) => input.feed(writer).await,
                None => Ok(()),
            }
        });
        let mut fed = false;
        let mut mark_due = None;
        loop {
            let limit = match phase {
                Phase::Run => self.order.timeout,
                _ => Some(self.order.connect_timeout),
            };
            let late = limit.map(|limit| since + limit);
            let cause = |phase| match (phase, limit) {
                (Phase::Run, Some(limit)) => Cause::TimedOut(limit),
                (phase, _) => Cause::TimedOutAt(phase),
            };
            tokio::select! {
                biased;
                stop = stopped(&mut self.stop) => return self.end(running, phase, Cause::Stopped(stop)).await,
                () = until(mark_due), if mark_due.is_some() => {
                    mark_due = None;
                    // Nothing took up the leash: what runs there may wait for the end of its input.
                    if self.mark.as_ref().is_none_or(|mark| !mark.hold().is_marked()) {
                        self.gave_up = self.mark.as_ref().is_some_and(|mark| mark.hold() == Hold::Unclear);
                        close(&mut self.held).await;
                    }
                }
                result = &mut feed, if !fed => match result {
                    Ok(()) => fed = true,
                    Err((error, _writer)) => {
                        return self.end(running, phase, Cause::NoInput { error, _writer }).await;
                    }
                },
                happening = running.next() => match happening {
                    Happening::Phase(next) => {
                        phase = next;
                        since = tokio::time::Instant::now();
                        self.since = (phase == Phase::Run).then_some(since);
                        mark_due = (phase == Phase::Run && self.held.is_some()).then(|| since + self.order.connect_timeout * MARK_WAIT);
                        self.reached(phase);
                    }
                    Happening::Output(stream, bytes) => {
                        let Some(bytes) = self.strip(stream, bytes) else { continue };
                        if self.mark.as_ref().is_some_and(|mark| mark.hold() == Hold::None) {
                            close(&mut self.held).await;
                        }
                        let size = bytes.len() as u64;
                        let cause = tokio::select! {
                            biased;
                            stop = stopped(&mut self.stop) => Cause::Stopped(stop),
                            () = until(late) => cause(phase),
                            () = self.shared.out.output(self.host, stream, bytes) => {
                                self.passed += size;
                                continue;
                            }
                        };
                        self.dropped += size;
                        return self.end(running, phase, cause).await;
                    }
                    Happening::Ended(ending) => {
                        self.last_words().await;
                        return self.told(ending);
                    }
                },
                // Last, since what has come already may be the step that this waits for; output looks at it too.
                () = until(late) => return self.end(running, phase, cause(phase)).await,
            }
        }
    }

    fn reached(&mut self, phase: Phase) {
        self.shared.board.set(self.host, Stage::At(phase));
        if phase == Phase::Run && !self.announced {
            self.announced = true;
            let _ = self.shared.up.send((self.host, self.began.elapsed()));
        }
    }

    fn strip(&mut self, stream: Stream, bytes: Bytes) -> Option<Bytes> {
        let bytes = match (stream, &mut self.mark) {
            (Stream::Stdout, Some(mark)) if mark.hold() == Hold::Unclear => Bytes::from(mark.feed(&bytes)),
            _ => bytes,
        };
        (!bytes.is_empty()).then_some(bytes)
    }

    /// What was held back as the possible start of a mark.
    async fn last_words(&mut self) {
        let Some(mark) = &mut self.mark else { return };
        let rest = mark.give_up();
        if !rest.is_empty() {
            let mut stop = self.stop.clone();
            let size = rest.len() as u64;
            tokio::select! {
                biased;
                // However slowly somebody reads: until we are told to stop nothing is lost.
                () = self.shared.out.output(self.host, Stream::Stdout, Bytes::from(rest)) => self.passed += size,
                _ = stopped(&mut stop) => self.dropped += size,
            }
        }
    }

    /// The mark knows more than an engine that only guesses: a command that said nothing of itself was started if it came.
    fn told(&self, ending: Ending) -> Ending {
        match (ending, &self.mark) {
            (Ending::Failed(mut failure), Some(mark))
                if mark.hold().is_marked() && failure.remote == Remote::NeverStarted =>
            {
                failure.remote = Remote::Unknown;
                Ending::Failed(failure)
            }
            // Its watcher came late, found our end closed, and may have taken that for the end of the connection.
            (Ending::Signalled { .. } | Ending::Exited(TERMINATED), Some(mark))
                if self.gave_up && matches!(mark.hold(), Hold::Leashed(_)) =>
            {
                let limit = (self.order.connect_timeout * MARK_WAIT).as_secs_f32();
                let detail = format!(
                    "its leash took longer than {limit} s, and may have ended it; --connect-timeout gives it more"
                );
                Ending::Failed(self.failure(Phase::Run, Reason::TimedOut, Remote::Ended, detail))
            }
            (ending, _) => ending,
        }
    }

    fn failure(&self, phase: Phase, reason: Reason, remote: Remote, detail: String) -> Failure {
        Failure { phase, reason, detail, advice: None, remote }
    }
}

/// What to do about a host that logs us in, and then goes no further.
const LATE_START: &str =
    "it let us in and then did nothing: its disk or memory may be exhausted, or what logs in hangs (PAM)";

/// Why a run was stopped, in words.
pub(super) fn why(stop: Stop) -> &'static str {
    match stop {
        Stop::No => "stopped",
        Stop::Gently(why) | Stop::AtOnce(why) => match why {
            Why::Interrupted => "interrupted",
            Why::ReaderGone => "nobody reads our output any more",
            Why::OutputLost => "standard output cannot be written to",
            Why::NoInput => "the input for all hosts could not be read",
        },
    }
}

/// What a turn came to that panicked: a fault of ours, after which nothing is known of the host.
pub(super) fn broken(job: &Job) -> Finished {
    let done = match job {
        Job::Command(_) => Done::Ran,
        Job::Copy(order) => order.done(),
    };
    let (detail, remote) = match done {
        Done::Ran => ("and the command may have run", Remote::Unknown),
        Done::Put(_) => ("and files may have been changed there", Remote::Unknown),
        // Reading changes nothing there.
        Done::Got(_) => ("and not everything is here", Remote::Ended),
    };
    let detail = format!("internal error: its turn broke, {detail}; please report this");
    let ending = Ending::Failed(Failure {
        phase: Phase::Queued,
        reason: Reason::Internal,
        detail,
        advice: None,
        remote,
    });
    Finished { ending, hold: Hold::Unclear }
}

pub(super) async fn until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

async fn close(held: &mut Option<Writer>) {
    if let Some(mut writer) = held.take() {
        writer.finish().await;
    }
}

/// What a shell makes of TERM.
const TERMINATED: u32 = 128 + 15;
/// How long a command has to end after each signal.
pub(super) const GRACE: Duration = Duration::from_secs(3);
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How long the mark of a leash may take, in limits of a step: start files that go first may take their time.
const MARK_WAIT: u32 = 2;
