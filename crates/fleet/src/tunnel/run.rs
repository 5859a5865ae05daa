//! Carries out a run, step by step, as `hosts/src/tunnel/sequence.rs` says. Before a step that leaves traces, the undo
//! list on disk says how to undo it.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use hosts::tunnel::backoff::{Backoff, LONGEST};
use hosts::tunnel::ending::Ending;
use hosts::tunnel::mounts::{Claim, MountEntry};
use hosts::tunnel::plan::{Mount, MountPoint, Tunnel, Values};
use hosts::tunnel::sequence::{Act, JobEnd, Mounting, Sequence, UnmountMode, Verdict};
use hosts::tunnel::template::fill_known;
use hosts::tunnel::undo::{self, Entry, Kind};
use text::units;

use super::control::{Control, other_tunnel_at};
use super::engine::{Engine, said};
use super::job::{Job, given_up};
use super::journal::Journal;
use super::lock::Lock;
use super::mount::MountState;
use super::place::{PlaceError, Places, boot, new_run};
use super::processes::{RunProcesses, Step};
use super::say::Say;
use super::status::Board;
use super::stop::Stop;
use super::supervise::{Owner, Supervised, Unbound};
use super::unwind::{UnwindError, is_left, unwind_locked};
use super::{command, ending, left, mount};

pub struct Run {
    pub tunnel: Tunnel,
    pub engine: Arc<dyn Engine>,
    pub places: Places,
    pub work: Work,
    /// Reaction to a failure of the first connection or the first check.
    pub patience: RetryPolicy,
    pub say: Say,
}

/// Purpose of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// The tunnel stays up until a signal or `down` ends it.
    Hold,
    /// The tunnel runs this command and ends with it. Names in `{ }` are replaced with values of the tunnel.
    Job(Vec<OsString>),
    /// The tunnel checks its services once, then ends.
    Check,
}

/// Reaction to a failure of the first connection or the first check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryPolicy {
    Once,
    /// Retries without a limit. An error that a retry cannot fix still ends the run.
    Keep,
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The lock is held, or a directory cannot be used.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The traces of an earlier run could not be undone.
    #[error("the leftovers of an earlier run of tunnel {tunnel} cannot be undone")]
    Left { tunnel: String, source: UnwindError },
    /// The undo list, the control socket or the signal handlers could not be set up.
    #[error("cannot begin tunnel {tunnel}: {doing}")]
    Begin { tunnel: String, doing: String, source: io::Error },
}

impl Run {
    /// Runs from the lock to the last step of the teardown. SIGINT, SIGTERM and SIGHUP are passed to the job; without a
    /// job they end the tunnel. No signal skips the teardown.
    pub async fn to_the_end(self) -> Result<Verdict, RunError> {
        let name = self.tunnel.name.to_string();
        let lock = self.places.lock(&name)?;
        unwind_locked(&self.places, &name, Some(&self.tunnel), &self.say)
            .await
            .map_err(|source| RunError::Left { tunnel: name.clone(), source })?;
        // A check is not recorded as a run.
        let kept = self.work != Work::Check;
        if kept {
            ending::forget(&self.places, &name);
        }
        let begin = |doing: &str| {
            let (tunnel, doing) = (name.clone(), doing.to_owned());
            move |source| RunError::Begin { tunnel, doing, source }
        };
        let stop = Stop::install().map_err(begin("signals"))?;
        let run = new_run();
        let list = self.places.list(&name);
        let journal =
            Journal::begin(&list, &undo::first_line(&name, &run, boot().as_deref(), &self.places.runtime))
                .map_err(begin("the undo list"))?;
        let board = Arc::new(Board::new(self.tunnel.clone()));
        let control = Control::listen(&self.places, &name, Arc::clone(&board), stop.trigger())
            .map_err(|why| begin("the control socket")(io::Error::other(why)))?;
        let own = self.places.own(&run);
        let mounting = match &self.tunnel.mount {
            Some(_) if self.work != Work::Check => Mounting::Wanted,
            Some(_) | None => Mounting::None,
        };
        let mut running = Running {
            run,
            own,
            board,
            stop,
            journal: Some(journal),
            supervised: None,
            mounted: None,
            command: Vec::new(),
            set: self,
        };
        let verdict = running.carry_out(mounting).await;
        if kept {
            ending::keep(&running.set.places, &name, &Ending::of(&verdict, ending::now()));
        }
        // The notes of processes are kept while the undo list has entries, which need them.
        if !is_left(&running.set.places, &name) {
            let _ = std::fs::remove_dir_all(&running.own);
        }
        drop(running);
        let control_ended: Lock = lock;
        control.finish().await;
        drop(control_ended);
        Ok(verdict)
    }
}

struct Running {
    set: Run,
    run: String,
    own: PathBuf,
    board: Arc<Board>,
    stop: Stop,
    journal: Option<Journal>,
    supervised: Option<Supervised>,
    /// The mount, as seen after the mount command has succeeded.
    mounted: Option<MountEntry>,
    /// The words of the mount command, after it has started.
    command: Vec<String>,
}

impl Running {
    async fn carry_out(&mut self, mounting: Mounting) -> Verdict {
        let mut sequence = Sequence::new(mounting);
        while let Some(act) = sequence.act() {
            self.board.step(match (act, &self.set.work) {
                (Act::Work, Work::Hold) => UP.to_owned(),
                _ => act.to_string(),
            });
            if let Some(entry) = self.begins(act)
                && let Err(error) = self.note(&undo::begun(&entry))
            {
                // A step whose entry is not on the undo list could not be undone after a crash, so it does not begin.
                sequence.handle_done(Err(format!("cannot write the undo list: {error}")));
                continue;
            }
            if act == Act::Work {
                let end = self.work(&mut sequence).await;
                self.noted(&undo::undone(Kind::Job));
                sequence.handle_job(end);
                continue;
            }
            if act == Act::VerifyUnmounted
                && let Ok(MountState::Left(why)) = self.remains()
            {
                sequence.handle_left(why);
                continue;
            }
            let outcome = self.perform(act, &mut sequence).await;
            match (act, &outcome) {
                (Act::VerifyUnmounted, Ok(())) => {
                    self.board.mounted(None);
                    self.noted(&undo::undone(Kind::Mount));
                    self.kill_left(Step::Mount).await;
                }
                (Act::Disconnect, _) => self.noted(&undo::undone(Kind::Forwards)),
                _ => {}
            }
            if let Err(why) = &outcome {
                match act {
                    // An unmount is retried; the end of the run reports what remains mounted.
                    Act::Unmount(_) => (self.set.say)(&format!("{act}: {why}")),
                    // These acts end the run, whose last message has the cause.
                    Act::VerifyUnmounted | Act::Guard | Act::Connect | Act::Prove => {}
                    _ => (self.set.say)(&format!("{act} failed")),
                }
            }
            sequence.handle_done(outcome);
        }
        let verdict = sequence.verdict();
        let still_mounted = verdict.problems.iter().any(|it| matches!(it.at, Act::Unmount(_)));
        if let (false, Some(journal)) = (still_mounted, self.journal.take())
            && let Err(error) = journal.finish()
        {
            (self.set.say)(&format!("cannot remove the undo list: {error}"));
        }
        verdict
    }

    /// The entry of the undo list that is written before an act.
    fn begins(&self, act: Act) -> Option<Entry> {
        match act {
            Act::Connect => Some(left::forwards(&self.set.tunnel)),
            Act::Mount => Some(left::mount(self.set.tunnel.mount.as_ref()?, &self.values())),
            Act::Work if matches!(self.set.work, Work::Job(_)) => Some(Entry::Job),
            _ => None,
        }
    }

    fn note(&mut self, line: &str) -> io::Result<()> {
        match &mut self.journal {
            Some(journal) => journal.write(line),
            None => Ok(()),
        }
    }

    /// Writes that an entry was undone. Without that line the entry is undone again after a crash, which is harmless.
    fn noted(&mut self, line: &str) {
        if let Err(error) = self.note(line) {
            (self.set.say)(&format!("cannot write the undo list: {error}"));
        }
    }

    async fn perform(&mut self, act: Act, sequence: &mut Sequence) -> Result<(), String> {
        match act {
            Act::Guard => {
                let mount = self.mount()?;
                if let Some(advice) = mount::guard(&mount.point)? {
                    (self.set.say)(&advice);
                }
                Ok(())
            }
            Act::Connect => self.connect(sequence).await,
            Act::Prove => self.prove(sequence).await,
            Act::Mount => {
                let (mount, values) = (self.mount()?.clone(), self.values());
                let words: Vec<_> = mount.mount.iter().map(|word| word.fill(&values)).collect();
                (self.set.say)(&format!("mount: {}", words.join(" ")));
                self.command.clone_from(&words);
                let started = self.started();
                let variables = self.variables();
                let mounting = command::run(&words, Some(&started), &variables, mount.timeout);
                let outcome = started.noting_daemons(Step::Mount, mounting).await;
                if outcome.is_ok() {
                    self.mounted = mount::mounted(&mount.point)?;
                }
                self.stopped(sequence);
                outcome
            }
            Act::VerifyMount => {
                let mount = self.mount()?.clone();
                let found = self.mounted.clone().ok_or_else(|| {
                    format!(
                        "the mount command succeeded, but nothing is mounted on {}",
                        mount.point.display()
                    )
                })?;
                (self.set.say)(&format!(
                    "mounted: {} of {} on {}",
                    found.kind,
                    found.source,
                    mount.point.display()
                ));
                self.board.mounted(Some(found.clone()));
                self.note(&undo::mounted(&found))
                    .map_err(|error| format!("cannot write the undo list: {error}"))?;
                self.stopped(sequence);
                Ok(())
            }
            Act::Work => Ok(()),
            Act::Sync => {
                let mount = self.mount()?.clone();
                match mount::mounted(&mount.point)? {
                    Some(_) => mount::sync(&mount.point, mount.timeout).await,
                    None => Err(format!(
                        "{} is no longer mounted: the last writes may be lost",
                        mount.point.display()
                    )),
                }
            }
            Act::Unmount(manner) => {
                let (mount, values) = (self.mount()?.clone(), self.values());
                let manner = mount::manner(self.claim(), manner);
                mount::is_ours(&mount.point, self.claim())?;
                let words = match manner {
                    UnmountMode::Proper => &mount.unmount,
                    UnmountMode::Lazy => &mount.unmount_lazy,
                };
                let words: Vec<_> = words.iter().map(|word| word.fill(&values)).collect();
                (self.set.say)(&format!("{}: {}", Act::Unmount(manner), words.join(" ")));
                command::run(&words, Some(&self.started()), &self.variables(), mount.timeout).await
            }
            Act::VerifyUnmounted => match self.remains()? {
                MountState::Nothing => Ok(()),
                MountState::Other(what) => {
                    (self.set.say)(&what);
                    Ok(())
                }
                MountState::Ours(why) | MountState::Left(why) => Err(why),
            },
            Act::Wait(wait) => {
                tokio::time::sleep(wait).await;
                Ok(())
            }
            Act::Disconnect => {
                if let Some(supervised) = self.supervised.take() {
                    supervised.down().await;
                    // A tunnel that has never been up is not reported as down.
                    if self.board.status().connects > 0 {
                        (self.set.say)("down");
                    }
                }
                self.kill_left(Step::Engine).await;
                Ok(())
            }
        }
    }

    /// The facts by which this run recognizes its own mount.
    fn claim(&self) -> Claim<'_> {
        self.mounted.as_ref().map_or(Claim::Command(&self.command), Claim::Seen)
    }

    fn remains(&self) -> Result<MountState, String> {
        mount::remains(&self.mount()?.point, self.claim())
    }

    fn started(&self) -> RunProcesses {
        RunProcesses::new(&self.own, &self.run)
    }

    /// Ends the processes of a step, and reports those that cannot be proved to belong to it.
    async fn kill_left(&self, step: Step) {
        self.started().kill_left(step).await.tell(step, &self.set.say);
    }

    async fn connect(&mut self, sequence: &mut Sequence) -> Result<(), String> {
        let supervised = Supervised::listen(
            Owner::Run,
            Arc::clone(&self.set.engine),
            self.own.clone(),
            self.run.clone(),
            Arc::clone(&self.board),
            Arc::clone(&self.set.say),
        );
        let supervised = match supervised {
            Ok(supervised) => self.supervised.insert(supervised),
            Err(unbound) => return Err(self.unbound(unbound).await),
        };
        let connect = async {
            match self.set.patience {
                RetryPolicy::Once => supervised.connect().await,
                RetryPolicy::Keep => supervised.connect_patiently().await,
            }
        };
        let connected = tokio::select! {
            connected = connect => connected.map_err(|failure| said(&failure)),
            () = self.stop.wanted() => {
                sequence.handle_stop();
                return Ok(());
            }
        };
        connected?;
        supervised.keep();
        let status = self.board.status();
        for forward in &status.forwards {
            let (listen, host) = (&forward.listen, &status.host);
            (self.set.say)(&match (forward.kind.as_str(), &forward.connect) {
                ("remote", Some(connect)) => format!("{}: {host} {listen} -> {connect} here", forward.name),
                (_, Some(connect)) => format!("{}: {listen} -> {host} {connect}", forward.name),
                (_, None) => format!("{}: {listen} -> {host}, SOCKS5", forward.name),
            });
        }
        Ok(())
    }

    /// Reason why a forward cannot listen. Names another tunnel of this user that listens there, since the user can end
    /// it.
    async fn unbound(&self, Unbound { at, why }: Unbound) -> String {
        match other_tunnel_at(&self.set.places, &self.set.tunnel.name, &at).await {
            Some(other) => {
                format!(
                    "{}: tunnel {other} listens there; `penstock tunnel down {other}` ends it",
                    why.detail
                )
            }
            None => said(&why),
        }
    }

    async fn prove(&mut self, sequence: &mut Sequence) -> Result<(), String> {
        let Some(supervised) = &self.supervised else { return Err("not connected".to_owned()) };
        let mut backoff = Backoff::default();
        let mut told = String::new();
        loop {
            let outcome = tokio::select! {
                outcome = supervised.prove() => outcome,
                () = self.stop.wanted() => {
                    sequence.handle_stop();
                    return Ok(());
                }
            };
            match (outcome, self.set.patience) {
                (Err(why), RetryPolicy::Keep) => {
                    let wait = backoff.next(fastrand::f64());
                    if why != told {
                        (self.set.say)(&format!(
                            "not up until every service answers: checked again in {}, then less often, after {} at most",
                            units::elapsed(wait),
                            units::duration(LONGEST)
                        ));
                        told = why;
                    }
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = self.stop.wanted() => {
                            sequence.handle_stop();
                            return Ok(());
                        }
                    }
                }
                (outcome, _) => return outcome,
            }
        }
    }

    /// Runs the job, or waits until the end is requested.
    async fn work(&mut self, sequence: &mut Sequence) -> JobEnd {
        match &self.set.work {
            Work::Check => JobEnd::Stopped,
            Work::Hold => {
                (self.set.say)("up");
                tokio::select! {
                    () = self.stop.wanted() => {}
                    why = given_up(self.supervised.as_ref()) => sequence.handle_broken(why),
                }
                sequence.handle_stop();
                JobEnd::Stopped
            }
            Work::Job(words) => {
                let values = self.values();
                // A word that is not UTF-8 has no names to replace.
                let words = words.iter().map(|word| match word.to_str() {
                    Some(text) => fill_known(text, &values).into(),
                    None => word.clone(),
                });
                let words: &Vec<OsString> = &words.collect();
                let (started, variables) = (&self.started(), self.variables());
                let supervised = self.supervised.as_ref();
                let job = Job { words, started, variables, supervised, say: &self.set.say };
                let end = job.to_its_end(&mut self.stop, sequence).await;
                self.stopped(sequence);
                end
            }
        }
    }

    fn stopped(&self, sequence: &mut Sequence) {
        if self.stop.is_wanted() {
            sequence.handle_stop();
        }
    }

    fn mount(&self) -> Result<&Mount, String> {
        self.set.tunnel.mount.as_ref().ok_or_else(|| "nothing is mounted by this tunnel".to_owned())
    }

    fn values(&self) -> Values {
        let point = match &self.set.tunnel.mount {
            Some(mount) => MountPoint::At(&mount.point),
            None => MountPoint::None,
        };
        match &self.supervised {
            Some(supervised) => Values::new(supervised.listens(), point),
            None => Values::new(std::iter::empty(), point),
        }
    }

    fn variables(&self) -> Vec<(String, String)> {
        self.values().variables().map(|(name, value)| (name, value.to_owned())).collect()
    }
}

/// The step in `status` of a tunnel that is up.
pub const UP: &str = "up";
