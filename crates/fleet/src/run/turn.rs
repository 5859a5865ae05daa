//! The task of one host: connect, send the command, forward its output, wait for its end or end it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hosts::fleet::ending::{Ending, Failure, Phase, Reason, Remote};
use hosts::fleet::watcher::{self, Hold, Mark};
use tokio::sync::watch;
use tokio::time::timeout;

use super::board::Stage;
use super::copy;
use super::engine::{Running, Watcher};
use super::happening::{HostEvent, Stream};
use super::input::Input;
use super::job::{Done, Job, Order};
use super::shared::Shared;
use super::stop::{Stop, cut, stopped, until, why};
use super::writer::Writer;

mod ended;

#[derive(Debug)]
pub(super) struct Finished {
    pub(super) ending: Ending,
    pub(super) hold: Hold,
}

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
    /// Standard input of a command that gets no input. It stays open, since the watcher takes its end of file for the
    /// end of the connection.
    held: Option<Writer>,
    /// Start of the command, as far as the engine knows it.
    since: Option<tokio::time::Instant>,
    /// Whether `held` was closed before it was known if a watcher reads it.
    gave_up: bool,
    /// Bytes of standard output and standard error, without the mark, that went to the output thread; and bytes that
    /// were received but did not go there.
    passed: u64,
    dropped: u64,
}

/// Reason why this program ends a running command.
enum Cause {
    Stopped(Stop),
    TimedOut(Duration),
    TimedOutAt(Phase),
    /// The input could not be read. The writer is kept: its drop would close standard input, and the command would take
    /// half an input for the whole.
    NoInput {
        error: std::io::Error,
        _writer: Writer,
    },
}

impl Turn<'_> {
    async fn go(&mut self) -> Result<Ending, Failure> {
        let shared = self.shared;
        let (host, order) = (&shared.hosts[self.host], self.order);
        let way = shared.connect(self.host, &mut self.stop).await?;
        let (command, input) = self.command();
        let patience = order.connect_timeout;
        let opened = AtomicBool::new(false);
        let mut stop = self.stop.clone();
        // Once the channel is open the command is on its way, and is ended as a running one.
        let unopened = async {
            let stop = stopped(&mut stop).await;
            if opened.load(Relaxed) { std::future::pending().await } else { stop }
        };
        let running = tokio::select! {
            biased;
            stop = unopened => {
                let detail = format!("{}: it had not opened a channel", why(stop));
                return Err(self.failure(Phase::Start, Reason::Stopped, Remote::NotStarted, detail));
            }
            () = cut(&mut self.stop) => return Err(self.failure(Phase::Start, Reason::Stopped, Remote::MayHaveRun, "quit while the command was being sent".to_owned())),
            running = timeout(patience, shared.engine.exec(host, &way, &command, &opened)) => match running {
                Ok(running) => running?,
                Err(_) => {
                    let detail = format!("it did not open a channel within {} s", patience.as_secs_f32());
                    // The command is sent only after the channel is open, so the host has not started it.
                    let late = self.failure(Phase::Start, Reason::TimedOut, Remote::NotStarted, detail);
                    return Err(Failure { advice: Some(LATE_START.to_owned()), ..late });
                }
            },
        };
        Ok(self.watch(running, input).await)
    }

    /// The command line that is sent, and its input.
    fn command(&mut self) -> (String, Input) {
        let order = &self.order;
        let watched = order.watcher == Watcher::Wanted && self.shared.engine.can_watch() == Watcher::Wanted;
        if !watched {
            return (order.command.clone(), order.input.clone());
        }
        self.mark = Some(Mark::new(&order.nonce));
        let kind = match order.input {
            Input::None => watcher::Input::None,
            _ => watcher::Input::Sent,
        };
        (watcher::wrap(&order.command, kind, &order.nonce), order.input.clone())
    }

    async fn watch(&mut self, mut running: Running, input: Input) -> Ending {
        let mut phase = self.shared.board.phase(self.host).max(Phase::Resolve);
        let mut since = tokio::time::Instant::now();
        let mut writer = running.take_input();
        // The watcher needs an open standard input. A command without input and without a watcher gets end of file at
        // once.
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
                    // No watcher has started. The process on the host may wait for the end of its input.
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
                    HostEvent::Phase(next) => {
                        phase = next;
                        since = tokio::time::Instant::now();
                        self.since = (phase == Phase::Run).then_some(since);
                        mark_due = (phase == Phase::Run && self.held.is_some()).then(|| since + self.order.connect_timeout * MARK_WAIT);
                        self.reached(phase);
                    }
                    HostEvent::Output(stream, bytes) => {
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
                    HostEvent::Ended(ending) => {
                        self.last_words().await;
                        return self.told(ending);
                    }
                },
                // Last in order: a received event may be the step that this timeout waits for. The wait for room in the
                // output queue has the same timeout.
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

    /// Forwards the bytes that were held back because they could be the start of a mark.
    async fn last_words(&mut self) {
        let Some(mark) = &mut self.mark else { return };
        let rest = mark.give_up();
        if !rest.is_empty() {
            let mut stop = self.stop.clone();
            let size = rest.len() as u64;
            tokio::select! {
                biased;
                // A slow reader is waited for without a limit, so that no output is lost until the run is stopped.
                () = self.shared.out.output(self.host, Stream::Stdout, Bytes::from(rest)) => self.passed += size,
                _ = stopped(&mut stop) => self.dropped += size,
            }
        }
    }

    /// Corrects an ending by the mark. If the mark came, the host may have run the command, although the engine says
    /// that it has not.
    fn told(&self, ending: Ending) -> Ending {
        match (ending, &self.mark) {
            (Ending::Failed(mut failure), Some(mark))
                if mark.hold().is_marked() && failure.remote == Remote::NotStarted =>
            {
                failure.remote = Remote::MayHaveRun;
                Ending::Failed(failure)
            }
            // The watcher started after `held` was closed, so it may have taken the end of file for the end of the
            // connection.
            (Ending::Signalled { .. } | Ending::Exited(TERMINATED), Some(mark))
                if self.gave_up && matches!(mark.hold(), Hold::Watched(_)) =>
            {
                let limit = (self.order.connect_timeout * MARK_WAIT).as_secs_f32();
                let detail = format!(
                    "its watcher took longer than {limit} s, and may have ended it; --connect-timeout gives it more"
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

/// Advice for a host that accepts the log-in and then does not open a channel.
const LATE_START: &str = "it accepted the log-in, then did nothing: its disk or memory may be full, or its login program hangs (PAM)";

/// The ending after the task of a host panicked, which is a bug. The state of the host is unknown.
pub(super) fn broken(job: &Job) -> Finished {
    let (detail, remote) = match job.done() {
        Done::Ran => ("and the command may have run", Remote::MayHaveRun),
        Done::Put(_) => ("and files may have been changed there", Remote::MayHaveRun),
        // `get` changes nothing on the host.
        Done::Got(_) => ("and not everything is here", Remote::Ended),
    };
    let detail = format!("internal error: its task failed, {detail}; please report this");
    let ending = Ending::Failed(Failure {
        phase: Phase::Queued,
        reason: Reason::Internal,
        detail,
        advice: None,
        remote,
    });
    Finished { ending, hold: Hold::Unclear }
}

async fn close(held: &mut Option<Writer>) {
    if let Some(mut writer) = held.take() {
        writer.finish().await;
    }
}

/// Exit status that a shell gives a process that SIGTERM has ended.
const TERMINATED: u32 = 128 + 15;
/// Time limit for the end of a command after each signal.
pub(super) const GRACE: Duration = Duration::from_secs(3);
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Time limit for the mark of a watcher, as a multiple of the connect timeout: the start files of the shell run first.
const MARK_WAIT: u32 = 2;
