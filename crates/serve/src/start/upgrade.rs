//! The upgrade as the supervisor of the old process sees it: what may be upgraded, what the next process gets, and the end of
//! this one after the last of its sessions. The conversation with the next process: `crates/serve/src/upgrade/hand_over.rs`.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use config::types::BindAddress;
use proxy::front::{Denied, Extent, Front, Said, Upgrade};
use proxy::given::Standing;
use proxy::worker::Command;
use sd_notify::NotifyState;
use serde_json::json;
use state::events::Level;
use state::kept::traffic::Traffic;
use state::listen::{BoundKey, HandedKey};
use text::units;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};

use super::means::HandedOver;
use super::{FrontDoor, Stopping, notify};
use crate::kept::Passed;
use crate::signals::Signals;
use crate::upgrade::guardian::Guardian;
use crate::upgrade::hand_over::{Attempt, Failed, Newer, Offers, Ready, Serving};
use crate::upgrade::offer;
use crate::upgrade::protocol::TICKETS;
use crate::upgrade::sessions;

/// Time for the sessions of a process that was upgraded, unless the operator names another one.
const DRAIN: Duration = Duration::from_secs(3600);

/// Time for an operator to read the answer.
const TOLD_LIMIT: Duration = Duration::from_secs(2);

/// How often the next process hears how many sessions are left.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Time for sessions to go to the next process before the operator is told how many have.
const GIVE_LIMIT: Duration = Duration::from_secs(1);

/// How often it is looked at meanwhile.
const GIVE_LOOK: Duration = Duration::from_millis(10);

impl FrontDoor {
    /// Has another process take over. On an error this one serves on, unchanged.
    pub(super) async fn upgrade(&mut self, upgrade: Upgrade, signals: &mut Signals) -> Result<Said, Denied> {
        let guardian = self.may_be_upgraded()?;
        let state = self.supervisor.front.state.clone();
        let word = if upgrade.extent == Extent::Check { "check of an upgrade" } else { "upgrade" };
        state.events.record(Level::Info, "upgrade", format!("{word} asked for by {}", upgrade.by));
        let offers = self.offers().await.map_err(|why| denied(&why))?;
        let cancelled = Arc::new(AtomicBool::new(false));
        let attempt = Attempt::new(state.clone(), guardian.clone(), cancelled.clone());
        let program = upgrade.program.clone();
        let starting = spawn_blocking(move || attempt.start(program.as_deref(), offers));
        let ready = self.unless_stopped(starting, &cancelled, signals).await?;
        if upgrade.extent == Extent::Check {
            let checked = spawn_blocking(move || ready.end()).await;
            let (version, steps) = checked.map_err(|error| denied(&error.to_string()))?;
            let sentence = format!("version {version} would take over: nothing was changed");
            return Ok(said(&steps, &sentence, &json!({ "version": version, "upgraded": false })));
        }
        state.upgrade.settle();
        let served = self.go(ready, &cancelled, signals).await;
        match served {
            Ok((serving, counted)) => {
                let limit = upgrade.drain.unwrap_or(DRAIN);
                let said = self.hand_over(serving, limit, &guardian).await;
                if let Some(handed_over) = &mut self.handed_over {
                    handed_over.counted = Some(counted);
                }
                Ok(said)
            }
            Err(why) => {
                state.upgrade.undo();
                self.keeper.go_on();
                Err(why)
            }
        }
    }

    async fn go(
        &mut self,
        ready: Ready,
        cancelled: &AtomicBool,
        signals: &mut Signals,
    ) -> Result<(Serving, Traffic), Denied> {
        let passed = self.keeper.pause(&self.live).and_then(|mut passed| {
            let keys = sys::file::in_memory(c"penstock-tickets", &self.supervisor.tls.ticket_keys())?;
            passed.files.push((TICKETS, keys));
            Ok(passed)
        });
        let Passed { files, counted } = match passed {
            Ok(passed) => passed,
            Err(error) => {
                let why = format!("the state cannot be passed on: {error}");
                // It is told to end, so that it does not wait.
                let _ = spawn_blocking(move || ready.end()).await;
                return Err(denied(&why));
            }
        };
        let going = spawn_blocking(move || ready.go(files));
        Ok((self.unless_stopped(going, cancelled, signals).await?, counted))
    }

    /// Waits for a part of the hand-over. A signal to stop, or an operator who asks for it, ends the hand-over first.
    async fn unless_stopped<T>(
        &mut self,
        mut part: JoinHandle<Result<T, Failed>>,
        cancelled: &AtomicBool,
        signals: &mut Signals,
    ) -> Result<T, Denied> {
        let ended = loop {
            tokio::select! {
                ended = &mut part => break ended,
                () = signals.stop() => {}
                () = self.asked.stop() => {}
            }
            cancelled.store(true, Relaxed);
            self.stopping = Stopping::Asked;
        };
        match ended {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(Failed { why, steps })) => {
                let (message, hint) = why.split_once('\n').unwrap_or((&why, ""));
                let message = message.strip_prefix("error: ").unwrap_or(message);
                let steps: String = steps.iter().map(|step| format!("  {step}\n")).collect();
                let message = format!("upgrade refused, this process serves on: {message}");
                let details = if hint.is_empty() { steps } else { format!("{hint}\n{steps}") };
                Err(Denied { message, details })
            }
            Err(error) => Err(denied(&format!("a fault of penstock: {error}"))),
        }
    }

    /// Explains why there can be no upgrade.
    fn may_be_upgraded(&self) -> Result<Arc<Guardian>, Denied> {
        let front = &self.supervisor.front;
        let guardian = self.means.guardian.as_ref().map_err(|why| denied(why))?;
        if std::process::id() == 1 {
            return Err(denied(
                "this is process 1 of its container, which ends with it: start another container instead",
            ));
        }
        if front.snapshot.load().config.listeners.iter().any(|listener| listener.dsr().is_some()) {
            return Err(denied(
                "a dsr listener has an address of its own in the kernel, which two processes cannot have: restart the server instead (at-stop = \"keep\" forwards its flows meanwhile)",
            ));
        }
        let unsaved = self.live.unsaved();
        if unsaved > 0 {
            let changes = units::count(unsaved, "live change");
            return Err(Denied {
                message: format!(
                    "not upgraded: the file lacks {changes}, which the next process would not serve"
                ),
                details:
                    "  hint: `penstock ctl save` writes them to the file, `penstock ctl undo` takes them back\n"
                        .to_owned(),
            });
        }
        let pending = self.live.pending();
        if pending.transaction.is_some() || pending.unconfirmed.is_some() {
            return Err(denied(
                "an operator has begun changes: `penstock ctl status` shows who; commit, confirm or abort them first",
            ));
        }
        Ok(guardian.clone())
    }

    /// Descriptors of everything that clients connect to, and of what belongs to the server as such.
    async fn offers(&self) -> Result<Offers, String> {
        let mut answers = Vec::new();
        for worker in &self.supervisor.workers {
            let (answer, answered) = oneshot::channel();
            if worker.send(Command::Share { answer }).is_ok() {
                answers.push(answered);
            }
        }
        let mut sockets: HashMap<BoundKey, Vec<OwnedFd>> = HashMap::new();
        for answered in answers {
            for (key, socket) in answered.await.map_err(|_| "a worker has ended")? {
                // Those of systemd are below, and of a Unix socket one descriptor is enough.
                let is_own = !matches!(key.bind, BindAddress::Systemd(_) | BindAddress::Unix(_));
                if is_own {
                    sockets.entry(key).or_default().push(socket);
                }
            }
        }
        let mut offers = Offers::new();
        for (key, open) in &self.supervisor.open {
            let file = open.socket_file();
            let shared = match open.share() {
                Some(shared) => vec![OwnedFd::from(shared.map_err(|error| error.to_string())?)],
                None => sockets.remove(key).unwrap_or_default(),
            };
            if !shared.is_empty() {
                offers.push((offer::listener(HandedKey::of(key), file), shared));
            }
        }
        for socket in self.supervisor.passed.sockets() {
            let shared = socket.socket.try_clone().map_err(|error| error.to_string())?;
            offers.push((offer::systemd(&socket.name), vec![shared]));
        }
        self.offer_services(&mut offers).map_err(|error| error.to_string())?;
        Ok(offers)
    }

    fn offer_services(&self, offers: &mut Offers) -> std::io::Result<()> {
        if let Some(control) = &self.control {
            let (socket, file) = control.share()?;
            offers.extend(offer::control(&file.0).map(|offer| (offer, vec![socket])));
            let config = &self.supervisor.started_with;
            if let (Some(socket), Some(remote)) = (control.share_remote()?, config.remote_control()) {
                offers.push((offer::remote(&remote.listen.to_string()), vec![socket]));
            }
        }
        if let Some((bind, socket, file)) = &self.means.admin {
            offers.push((offer::admin(bind, file.as_ref()), vec![socket.try_clone()?]));
        }
        if let Some(file) = &self.means.pid_file {
            let (path, descriptor) = file.share()?;
            offers.extend(offer::pid_file(path).map(|offer| (offer, vec![descriptor])));
        }
        Ok(())
    }

    /// Gives the next process what it serves with, and ends with the last session.
    async fn hand_over(&mut self, serving: Serving, limit: Duration, guardian: &Arc<Guardian>) -> Said {
        let front = self.supervisor.front.clone();
        let taken = self.supervisor.open.keys().filter(|key| serving.has_taken(key)).cloned();
        let taken = Arc::new(taken.collect());
        for worker in &self.supervisor.workers {
            // A worker that has ended accepts no clients.
            let _ = worker.send(Command::HandOver { taken: Arc::clone(&taken) });
        }
        if let Some(control) = &mut self.control {
            control.leave();
        }
        self.means.admin_off.notify_one();
        self.keeper.release().await;
        self.slow.otp.close();
        if let Some(file) = self.means.pid_file.take() {
            file.leave();
        }
        let takes = serving.takes();
        let Serving { newer, pid, version, mut steps, .. } = serving;
        let guardian = guardian.clone();
        // Afterwards the new process is a child of init, which sees its end: systemd wants that of a main process.
        let _ = spawn_blocking(move || guardian.leave()).await;
        notify(&[NotifyState::MainPid(pid)]);
        newer.release();
        let giving = takes.map(|version| sessions::give(&newer, version, &self.supervisor.workers));
        let giving = giving.transpose().unwrap_or_else(|error| {
            let message = format!("sessions stay in the old process, which cannot start a thread: {error}");
            front.state.events.record(Level::Warning, "upgrade", message);
            None
        });
        let Standing { pending, mut staying } = self.left_after_giving().await;
        let given = giving.map_or(0, |taken| taken.load(Relaxed));
        staying.extend(pending);
        if given > 0 {
            steps.push(format!("{} went to the new process", units::count(given, "session")));
        }
        let open = front.state.connections.load(Relaxed);
        let why: Vec<_> = staying.iter().map(|(why, count)| format!("{count} {why}")).collect();
        let left = match open {
            0 => "no session is left in the old process".to_owned(),
            1 => "1 session goes on in the old process".to_owned(),
            open => format!("{} go on in the old process", units::count(open, "session")),
        };
        let own = std::process::id();
        steps.push(match open {
            0 => format!("{left} (pid {own}): it ends"),
            _ => {
                let limit = units::duration(limit);
                format!("{left} (pid {own}), for {limit} at most: {}", why.join("; "))
            }
        });
        let sentence = format!("upgraded: version {version} (pid {pid}) serves");
        front.state.events.record(
            Level::Info,
            "upgrade",
            format!("{sentence}; {given} of its sessions have gone there; {left}"),
        );
        self.handed_over = Some(HandedOver { newer, limit, counted: None, told: None });
        self.stopping = Stopping::Asked;
        let old = json!({
            "pid": own, "sessions": open, "seconds": limit.as_secs(), "given": given, "staying": staying,
        });
        let json = json!({ "version": version, "pid": pid, "upgraded": true, "old": old });
        said(&steps, &sentence, &json)
    }

    /// What the workers have left when the next process has the sessions that it can have now.
    async fn left_after_giving(&self) -> Standing {
        let until = Instant::now() + GIVE_LIMIT;
        loop {
            let mut all = Standing::default();
            for worker in &self.supervisor.workers {
                let (answer, answered) = oneshot::channel();
                let asked = worker.send(Command::Standing { answer }).is_ok();
                // A worker that has ended has no sessions.
                if asked && let Ok(standing) = answered.await {
                    all.add(standing);
                }
            }
            if all.pending.is_empty() || Instant::now() >= until {
                return all;
            }
            tokio::time::sleep(GIVE_LOOK).await;
        }
    }

    /// Waits for the last session, up to the limit, and for the end of the process before this one, whose counts go through this
    /// one. A signal to stop ends the wait.
    pub(super) async fn leave(&mut self, handed_over: HandedOver, signals: &mut Signals) {
        let HandedOver { newer, limit, mut counted, told } = handed_over;
        let front = self.supervisor.front.clone();
        let deadline = Instant::now() + limit;
        let mut look = tokio::time::interval(Duration::from_millis(20));
        let mut tell = tokio::time::interval(TELL_EVERY);
        let mut is_cut = false;
        while (self.has_workers() && !is_cut) || front.state.upgrade.older().is_some() {
            if !is_cut && Instant::now() >= deadline {
                // A worker may be there for the counts of the process before alone.
                if front.state.connections.load(Relaxed) > 0 {
                    self.say_what_is_left("the limit for sessions from before the upgrade is reached");
                }
                self.cut().await;
                is_cut = true;
            }
            tokio::select! {
                _ = look.tick() => {}
                _ = tell.tick() => tell_left(&front, &newer, &mut counted),
                () = self.asked.refuse_when_upgraded() => {}
                () = signals.stop() => {
                    self.say_what_is_left("a signal came after the upgrade");
                    // What it has counted is told below.
                    self.cut().await;
                    break;
                }
            }
        }
        tell_left(&front, &newer, &mut counted);
        if let Some(told) = told {
            // An operator who does not read keeps nothing here.
            let _ = tokio::time::timeout(TOLD_LIMIT, told).await;
        }
        let message = "ended: the process that was started by the upgrade serves alone";
        front.state.events.record(Level::Info, "upgrade", message);
    }

    /// Keeps what tells that the operator has the answer.
    pub(super) fn wait_until_told(&mut self, told: oneshot::Receiver<()>) {
        if let Some(handed_over) = &mut self.handed_over {
            handed_over.told = Some(told);
        }
    }
}

/// Tells the next process how many sessions are left, here and in a process before this one, and what was counted since it was told
/// last.
fn tell_left(front: &Front, newer: &Newer, counted: &mut Option<Traffic>) {
    let now = Traffic::gather(&front.state);
    let more = counted.as_ref().and_then(|before| now.counted_since(before));
    let earlier = front.state.upgrade.older().and_then(|older| older.sessions).unwrap_or(0);
    newer.tell_left(front.state.connections.load(Relaxed) + earlier, more.as_ref());
    *counted = Some(now);
}

fn denied(why: &str) -> Denied {
    Denied { message: format!("not upgraded: {why}"), details: String::new() }
}

fn said(steps: &[String], sentence: &str, json: &serde_json::Value) -> Said {
    let steps: String = steps.iter().map(|step| format!("{step}\n")).collect();
    Said { text: format!("{steps}{sentence}"), json: json.to_string() }
}
