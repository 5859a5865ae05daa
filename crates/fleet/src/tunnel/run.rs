//! Carries out a run, step by step, as `logic/src/tunnel/sequence.rs` says. Before a step that leaves something behind, the list
//! on disk says how to undo it.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use logic::tunnel::backoff::{Backoff, LONGEST};
use logic::tunnel::ending::Ending;
use logic::tunnel::mounts::{Claim, MountEntry};
use logic::tunnel::plan::{Mount, MountPoint, Tunnel, Values};
use logic::tunnel::sequence::{Act, JobEnd, Manner, Mounting, Sequence, Verdict};
use logic::tunnel::template::fill_known;
use logic::tunnel::undo::{self, Entry, Kind};

use super::control::{Control, other_listening};
use super::engine::{Engine, said};
use super::job::{Job, given_up};
use super::journal::Journal;
use super::lock::Lock;
use super::mount::Remains;
use super::place::{PlaceError, Places, boot, new_run};
use super::processes::{RunProcesses, Step};
use super::status::Board;
use super::stop::Stop;
use super::supervise::{Owner, Supervised, Unbound};
use super::unwind::{UnwindError, is_left, unwind_locked};
use super::{command, ending, left, mount};

/// Told what happens, a line at a time, without the name of the tunnel.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// One run of a tunnel.
pub struct Run {
    /// What to bring up.
    pub tunnel: Tunnel,
    /// What carries it.
    pub engine: Arc<dyn Engine>,
    /// Where lists and sockets are.
    pub places: Places,
    /// What it is brought up for.
    pub work: Work,
    /// What to do when the host cannot be reached at first.
    pub patience: Patience,
    /// Told what happens.
    pub say: Say,
}

/// What a tunnel is brought up for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// It stays until somebody wants its end.
    Hold,
    /// This command, with the names in `{ }` that the tunnel gives a value; the tunnel ends with it.
    Job(Vec<OsString>),
    /// To see whether its services answer.
    Check,
}

/// What to do when the host cannot be reached, or a service does not answer, at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Give up.
    Once,
    /// Try again for as long as it takes; what trying cannot change ends the run all the same.
    Keep,
}

/// Why there was no run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No lock, or no directories.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// What an earlier run left could not be undone.
    #[error("what an earlier run of tunnel {tunnel} left cannot be undone")]
    Left {
        /// Its name.
        tunnel: String,
        /// Why.
        source: UnwindError,
    },
    /// The list, the control socket or the signals.
    #[error("cannot begin tunnel {tunnel}: {doing}")]
    Begin {
        /// Its name.
        tunnel: String,
        /// What failed.
        doing: String,
        /// Why.
        source: io::Error,
    },
}

impl Run {
    /// From the lock to the last step of the teardown. SIGINT, SIGTERM and SIGHUP go to the job if there is one; otherwise
    /// they are the end. None of them skips the teardown.
    pub async fn to_the_end(self) -> Result<Verdict, RunError> {
        let name = self.tunnel.name.to_string();
        let lock = self.places.lock(&name)?;
        unwind_locked(&self.places, &name, Some(&self.tunnel), &self.say)
            .await
            .map_err(|source| RunError::Left { tunnel: name.clone(), source })?;
        // A question is no run of the kind that is asked for.
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
                .map_err(begin("the list of what to undo"))?;
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
        // What is left to be undone is found by what is noted there.
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
    /// What the mount command has mounted, as it was seen when that had succeeded.
    mounted: Option<MountEntry>,
    /// The words of the mount command, once it was begun.
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
                // What could not be undone after a crash is not begun.
                sequence.handle_done(Err(format!("cannot write the list of what to undo: {error}")));
                continue;
            }
            if act == Act::Work {
                let end = self.work(&mut sequence).await;
                self.noted(&undo::undone(Kind::Job));
                sequence.handle_job(end);
                continue;
            }
            if act == Act::VerifyUnmounted
                && let Ok(Remains::Left(why)) = self.remains()
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
                    // They are tried again; what remains is said in the end.
                    Act::Unmount(_) => (self.set.say)(&format!("{act}: {why}")),
                    // What ends it is said in the end, which comes at once, with its cause.
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
            (self.set.say)(&format!("cannot remove the list of what to undo: {error}"));
        }
        verdict
    }

    /// What is written down before an act.
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

    /// Something is undone: if that cannot be written, it is undone once more after a crash, which does no harm.
    fn noted(&mut self, line: &str) {
        if let Err(error) = self.note(line) {
            (self.set.say)(&format!("cannot write the list of what to undo: {error}"));
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
                    .map_err(|error| format!("cannot write the list: {error}"))?;
                self.stopped(sequence);
                Ok(())
            }
            Act::Work => Ok(()),
            Act::Sync => {
                let mount = self.mount()?.clone();
                match mount::mounted(&mount.point)? {
                    Some(_) => mount::sync(&mount.point, mount.timeout).await,
                    None => Err(format!(
                        "{} is not mounted any more: what was written last may be lost",
                        mount.point.display()
                    )),
                }
            }
            Act::Unmount(manner) => {
                let (mount, values) = (self.mount()?.clone(), self.values());
                let manner = mount::manner(self.claim(), manner);
                mount::is_ours(&mount.point, self.claim())?;
                let words = match manner {
                    Manner::Proper => &mount.unmount,
                    Manner::Lazy => &mount.unmount_lazy,
                };
                let words: Vec<_> = words.iter().map(|word| word.fill(&values)).collect();
                (self.set.say)(&format!("{}: {}", Act::Unmount(manner), words.join(" ")));
                command::run(&words, Some(&self.started()), &self.variables(), mount.timeout).await
            }
            Act::VerifyUnmounted => match self.remains()? {
                Remains::Nothing => Ok(()),
                Remains::Other(what) => {
                    (self.set.say)(&what);
                    Ok(())
                }
                Remains::Ours(why) | Remains::Left(why) => Err(why),
            },
            Act::Wait(wait) => {
                tokio::time::sleep(wait).await;
                Ok(())
            }
            Act::Disconnect => {
                if let Some(supervised) = self.supervised.take() {
                    supervised.down().await;
                    // One that was never up has not come down.
                    if self.board.status().connections > 0 {
                        (self.set.say)("down");
                    }
                }
                self.kill_left(Step::Engine).await;
                Ok(())
            }
        }
    }

    /// By what this run knows its own mount.
    fn claim(&self) -> Claim<'_> {
        self.mounted.as_ref().map_or(Claim::Command(&self.command), Claim::Seen)
    }

    fn remains(&self) -> Result<Remains, String> {
        mount::remains(&self.mount()?.point, self.claim())
    }

    fn started(&self) -> RunProcesses {
        RunProcesses::new(&self.own, &self.run)
    }

    /// Ends what a step has left, and names what cannot be proved to be of it.
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
                Patience::Once => supervised.connect().await,
                Patience::Keep => supervised.connect_patiently().await,
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

    /// Why a forward cannot listen: one of our own tunnels is taken down more easily than its port is changed.
    async fn unbound(&self, Unbound { at, why }: Unbound) -> String {
        match other_listening(&self.set.places, &self.set.tunnel.name, &at).await {
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
        let Some(supervised) = &self.supervised else { return Err("there is no connection".to_owned()) };
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
                (Err(why), Patience::Keep) => {
                    let wait = backoff.next(fastrand::f64());
                    if why != told {
                        (self.set.say)(&format!(
                            "not up until every service answers: asked again in {:.1} s, then less often, after {} s at most",
                            wait.as_secs_f64(),
                            LONGEST.as_secs()
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

    /// Runs the job, or waits for the end.
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
                // What is no text has no names.
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

/// The step of a tunnel that is up and waits for its end, as `status` has it.
pub const UP: &str = "up";
