//! Serves changes: those of an operator, and a reload of the file.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use config::{Loaded, Source};
use logic::transaction::{Ask, Changes, Operator};
use proxy::front::{Denied, Said};
use sd_notify::NotifyState;
use state::events::Level;
use state::lock::lock;
use sys::file;

use super::{ConfigSource, FrontDoor, notify};
use crate::log_in_files;
use crate::otp;
use crate::transaction::removed::{self, still_open};
use crate::transaction::{Plan, Served, Step};

/// Subject of a commit that was not confirmed in time and cannot be undone.
const UNDO: &str = "live-changes";

/// What a reload did.
struct Reloaded {
    said: String,
    /// A warning about live changes that are not served any more.
    dropped: Option<String>,
    /// A warning about keys that take effect at the next start.
    fixed: Option<String>,
}

impl FrontDoor {
    pub(super) async fn change(&mut self, by: Operator, ask: Ask) -> (Result<Said, Denied>, Changes) {
        let ends = matches!(ask, Ask::Abort { .. } | Ask::Confirm).then(|| by.to_string());
        match self.live.handle(by, ask) {
            Step::Answer(answer) => {
                if let (Ok(said), Some(by)) = (&answer, ends) {
                    let message = format!("{} by {by}", said.text);
                    self.supervisor.front.state.events.record(Level::Info, "control", message);
                }
                (answer, Changes::No)
            }
            Step::Serve(plan) => (self.serve_plan(*plan).await, Changes::Yes),
            Step::DryRun(loaded) => (Ok(self.live.diff(Some(&self.dry_run(&loaded).await))), Changes::No),
            Step::ReadFile(path) => {
                let bytes = read_file(path).await.map_err(|error| error.to_string());
                (self.live.written(bytes), Changes::Yes)
            }
        }
    }

    /// Serves a live change as a reload serves a file.
    async fn serve_plan(&mut self, plan: Plan) -> Result<Said, Denied> {
        let state = self.supervisor.front.state.clone();
        let marks = plan.is_undo().then(|| state.removed.bring_marks());
        let result = self.adopt(&plan.loaded).await;
        drop(marks);
        let settled = self.live.settle(plan, result);
        if let Some(event) = settled.event {
            self.supervisor.front.state.events.record(Level::Info, "control", event);
        }
        settled.answer
    }

    /// Undoes a commit that was not confirmed in time.
    pub(super) async fn undo_unconfirmed(&mut self) {
        let undone = match self.live.expired() {
            None => return,
            Some(Ok(plan)) => self.serve_plan(plan).await.map_err(|denied| denied.details),
            Some(Err(faults)) => Err(faults),
        };
        self.publish_changes();
        if let Err(why) = undone {
            // The same reason is recorded once, however often it is tried.
            let why: Vec<_> = unquoted(&why).lines().map(|line| line.trim().to_owned()).collect();
            let why = why.join("; ");
            let message = format!(
                "a commit was not confirmed in time, and cannot be undone yet (tried again every 5 s): {why}"
            );
            self.supervisor.front.state.degrade(UNDO, &message);
        }
    }

    pub(super) async fn reload(&mut self, by: Option<Operator>) -> Result<String, String> {
        notify(&[
            NotifyState::Reloading,
            NotifyState::monotonic_usec_now().unwrap_or(NotifyState::Status("reloading")),
        ]);
        let result = self.try_reload(by).await;
        let events = &self.supervisor.front.state.events;
        match &result {
            Ok(Reloaded { said, dropped, .. }) => {
                events.record(Level::Info, "process", format!("reloaded: {said}"));
                // A record of its own: what an operator made live is not served any more.
                if let Some(dropped) = dropped {
                    events.record(Level::Warning, "process", dropped.as_str());
                }
            }
            Err(faults) => {
                self.supervisor.front.state.reloads_refused.fetch_add(1, Relaxed);
                events.record(
                    Level::Error,
                    "process",
                    format!("reload refused, the earlier configuration stays in use:\n{}", unquoted(faults)),
                );
            }
        }
        notify(&[NotifyState::Ready, NotifyState::Status("serving")]);
        result.map(|Reloaded { mut said, dropped, fixed }| {
            for warning in dropped.into_iter().chain(fixed) {
                said.push_str(&format!("\nwarning: {warning}"));
            }
            said
        })
    }

    async fn try_reload(&mut self, by: Option<Operator>) -> Result<Reloaded, String> {
        let environment = &self.options.environment;
        let loaded = match &self.options.source {
            ConfigSource::File(path) => {
                let name = path.display().to_string();
                let bytes = read_file(path.clone()).await.map_err(|error| unreadable(&name, &error))?;
                let source = Source::from_bytes(name, bytes).map_err(|faults| faults.render())?;
                config::load(&source, environment).map_err(|faults| faults.render())?
            }
            ConfigSource::Quick(quick) => {
                config::quick(quick, environment).map_err(|faults| faults.render())?
            }
            ConfigSource::Text(source) => {
                config::load(source, environment).map_err(|faults| faults.render())?
            }
        };
        let Served { said, fixed, .. } = self.adopt(&loaded).await?;
        let dropped = self.live.reloaded(loaded, by);
        self.publish_changes();
        Ok(Reloaded { said, dropped, fixed })
    }

    /// Tells reports how the live changes stand.
    pub(super) fn publish_changes(&self) {
        let state = &self.supervisor.front.state;
        state.unsaved_changes.store(self.live.unsaved(), Relaxed);
        let pending = self.live.pending();
        if pending.unconfirmed.as_ref().is_none_or(|trial| trial.again.is_none()) {
            state.restore(UNDO);
        }
        *lock(&state.pending) = pending;
    }

    /// Serves a valid configuration. On an error, the old one remains in use.
    pub(super) async fn adopt(&mut self, loaded: &Loaded) -> Result<Served, String> {
        self.may_serve(&loaded.config)?;
        let before = self.supervisor.front.snapshot.load_full();
        let (log_before, events_before) =
            (before.config.access_log.target.clone(), before.config.events.clone());
        let done = self.apply_with_names(&loaded.config).await?;
        if loaded.config.access_log.target != log_before {
            self.log.set_target(&loaded.config.access_log.target);
        }
        if loaded.config.events != events_before
            && let Err(error) = self.event_log.set(&loaded.config.events)
        {
            self.supervisor.front.state.degrade("events", &error.to_string());
        }
        let fixed = self.supervisor.warn_of_fixed(&loaded.config);
        self.reconcile_backends();
        let snapshot = self.supervisor.front.snapshot.load_full();
        self.slow.discoverer.tell_failures(&snapshot);
        self.slow.orderer.reconcile(&snapshot.config);
        self.slow.otp.follow(&snapshot.config);
        self.slow.otp.opened(otp::RELOAD_LIMIT).await;
        let state = &self.supervisor.front.state;
        log_in_files::look(&snapshot.config, &self.slow.logins, state).await;
        let still_open = still_open(&before, &snapshot);
        let mut said = done;
        said.push_str(&removed::lines(&still_open));
        said.push_str(&removed::listener_lines(&before, &snapshot));
        let mut warnings = Vec::new();
        // What is served now ends it.
        let is_other = |(subject, _): &(String, String)| subject != UNDO;
        for (subject, reason) in self.supervisor.front.state.degraded().into_iter().filter(is_other) {
            let warning = format!("{subject} is degraded: {reason}");
            said.push_str(&format!("\nwarning: {warning}"));
            warnings.push(warning);
        }
        if !loaded.warnings.is_empty() {
            said.push_str(&format!("\n{}", loaded.warnings.render()));
        }
        warnings.extend(loaded.warnings.iter().map(|fault| format!("{}: {}", fault.path, fault.message)));
        Ok(Served { said, fixed, warnings, still_open })
    }
}

/// The operator who asks for a reload may be another user than the server.
fn unreadable(name: &str, error: &io::Error) -> String {
    let reader = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!(" (the server reads it as uid {})", nix::unistd::geteuid())
        }
        _ => String::new(),
    };
    format!("error: {name}: cannot be read: {error}{reader}")
}

/// Leaves the lines of the configuration file out of what is wrong with it: events are also for those who may only read.
fn unquoted(faults: &str) -> String {
    let is_excerpt = |line: &&str| {
        line.trim_start().split_once('|').is_some_and(|(number, _)| {
            number.trim_end().bytes().all(|byte| byte.is_ascii_digit()) && line.starts_with(' ')
        })
    };
    faults.lines().filter(|line| !is_excerpt(line)).collect::<Vec<_>>().join("\n")
}

/// Reads the configuration's file on a thread for blocking calls.
async fn read_file(path: PathBuf) -> io::Result<Vec<u8>> {
    let read = move || file::read(&path, config::MAX_TEXT as u64);
    tokio::task::spawn_blocking(read).await.map_err(io::Error::other).and_then(|read| read)
}
