//! Live changes: edits the text of the configuration that is served, and shows it.
//!
//! `crates/logic/src/transaction.rs` decides who may make one and keeps the history, `crates/config/src/edit.rs` edits.
//! A changed text is loaded with the same code as a file, and `crates/serve/src/start.rs` serves it as a reload does: what
//! a file can say can be changed live. `crates/serve/src/start/dry_run.rs` compiles the text of an open transaction and
//! serves nothing of it: for `diff`, and for `why --pending`.

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use config::edit::{self, Edit, EditError, Path};
use config::{Config, Environment, Loaded, Source};
use logic::transaction::{Ask, Goes, Ledger, Memory, Now, Operator, Pending, Refused, Resumed, Target};
use proxy::front::{Denied, Said};
use serde_json::{Value, json};
use state::State;
use state::events::timestamp;
use text::units::{self, count};

use crate::reload;
use removed::StillOpen;
use start::Start;

mod collected;
pub(crate) mod removed;
mod shown;
mod start;

/// Shortest and longest time for a confirmation.
const CONFIRM: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);

/// The configuration that is served, as a text, and its changes.
pub(crate) struct Live {
    ledger: Ledger,
    loaded: Loaded,
    environment: Environment,
    /// The file of the configuration; `None` if flags of the command line made it.
    file: Option<PathBuf>,
    /// With `--commit-confirm`: knows the services that wait for a confirmation.
    started: Option<Arc<State>>,
}

/// What follows from a question.
pub(crate) enum Step {
    Answer(Result<Said, Denied>),
    /// This is to be served; then [`Live::settle`].
    Serve(Box<Plan>),
    /// The file is to be read; then [`Live::written`].
    ReadFile(PathBuf),
    /// This is to be tried out, without serving it; then [`Live::diff`].
    DryRun(Box<Loaded>),
}

/// What would become of a configuration if it were served, as far as that can be known without serving it.
pub(crate) struct DryRun {
    /// Why it would not be served.
    pub(crate) refused: Option<String>,
    /// What would not work as configured, with the reasons.
    pub(crate) degraded: Vec<(String, String)>,
    /// Warnings about the text.
    pub(crate) warnings: Option<String>,
}

/// A valid configuration that an operator wants to be served.
pub(crate) struct Plan {
    pub(crate) loaded: Loaded,
    text: String,
    intent: Intent,
    /// A section that it makes, with the one that was probably meant.
    beside: Option<String>,
}

impl Plan {
    pub(crate) fn is_undo(&self) -> bool {
        matches!(self.intent, Intent::Undo { .. })
    }
}

enum Intent {
    Change { by: Operator, what: String },
    Commit { confirm: Option<Duration> },
    Undo { by: Option<Operator>, target: Target },
}

/// What serving a plan said.
pub(crate) struct Served {
    pub(crate) said: String,
    /// Keys that take effect at the next start.
    pub(crate) fixed: Option<String>,
    /// What `said` warns of.
    pub(crate) warnings: Vec<String>,
    /// Sessions on backends that were removed.
    pub(crate) still_open: Vec<StillOpen>,
}

impl Live {
    pub(crate) fn new(loaded: Loaded, environment: Environment, file: Option<PathBuf>) -> Self {
        let file = file.map(|file| std::path::absolute(&file).unwrap_or(file));
        Self { ledger: Ledger::new(loaded.text()), loaded, environment, file, started: None }
    }

    /// The configuration that operators see: names stand for their backends.
    pub(crate) fn config(&self) -> &Config {
        &self.loaded.config
    }

    /// What the next process needs to know, if it is not what `before` has.
    pub(crate) fn memory_since(&self, before: Option<&Memory>) -> Option<Memory> {
        let is_known = before.is_some_and(|before| self.ledger.is_at(before));
        (!is_known).then(|| self.ledger.memory())
    }

    /// Goes on with the history of the process before.
    pub(crate) fn resume(&mut self, memory: Memory) -> Resumed {
        self.ledger.resume(memory, now())
    }

    /// What operators have begun and not ended.
    pub(crate) fn pending(&self) -> Pending {
        self.ledger.pending()
    }

    /// Number of changes that the file does not have.
    pub(crate) fn unsaved(&self) -> usize {
        self.ledger.unsaved()
    }

    /// Time of [`Self::expired`].
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.ledger.poll_deadline().into_iter().chain(self.start_deadline()).min()
    }

    /// Returns what to serve because a commit was not confirmed in time.
    pub(crate) fn expired(&mut self) -> Option<Result<Plan, String>> {
        self.give_up_start();
        let target = self.ledger.poll_expired(Instant::now())?;
        Some(self.undo_plan(None, target).map_err(|denied| denied.details))
    }

    /// A reload is served. Returns a warning about what it dropped.
    pub(crate) fn reloaded(&mut self, loaded: Loaded, by: Option<Operator>) -> Option<String> {
        let is_as_before = **self.ledger.source() == *loaded.text();
        let dropped = self.ledger.reloaded(loaded.text(), by, now());
        self.loaded = loaded;
        (dropped > 0).then(|| {
            let (are, them) = if dropped == 1 { ("is", "it") } else { ("are", "them") };
            let back = match is_as_before {
                true => format!("penstock ctl undo brings {them} back"),
                false => format!(
                    "penstock ctl undo brings {them} back, by going back to before this reload: it takes what the file brought with it"
                ),
            };
            format!("{} made live and not saved {are} dropped: {back}", count(dropped, "change"))
        })
    }

    pub(crate) fn handle(&mut self, by: Operator, ask: Ask) -> Step {
        let result = match ask {
            Ask::Show { path } => self.show(path.as_deref()).map(Step::said),
            Ask::Set { path, value } => self.edit(by, &path, |path| Edit::Set { path, value }),
            Ask::Add { path, value } => self.edit(by, &path, |path| Edit::Add { path, value }),
            Ask::Remove { path, value: None } => self.edit(by, &path, |path| Edit::Remove { path }),
            Ask::Remove { path, value: Some(value) } => {
                self.edit(by, &path, |path| Edit::RemoveEntry { path, value })
            }
            Ask::Begin => self.begin(by).map(Step::said),
            Ask::Diff => Ok(self.to_diff()),
            Ask::Commit { confirm } => self.commit(&by, confirm),
            Ask::Confirm => self.confirm().map(Step::said),
            Ask::Abort { whose } => self.abort(&by, whose).map(Step::said),
            Ask::Undo { number, extent } => {
                let may = self.ledger.still_has_what_it_began(&by);
                let target = may.and_then(|()| self.ledger.to_undo(number, extent, &by));
                target.map_err(denied).and_then(|target| {
                    self.undo_plan(Some(by), target).map(|plan| Step::Serve(Box::new(plan)))
                })
            }
            Ask::History { number } => self.history(number).map(Step::said),
            Ask::Save => self.save().map(Step::said),
            Ask::Saved => match &self.file {
                Some(file) => Ok(Step::ReadFile(file.clone())),
                None => Err(no_file()),
            },
        };
        result.unwrap_or_else(|denied| Step::Answer(Err(denied)))
    }

    fn edit(&mut self, by: Operator, path: &str, edit: impl FnOnce(Path) -> Edit) -> Result<Step, Denied> {
        self.ledger.still_has_what_it_began(&by).map_err(denied)?;
        let goes = self.ledger.goes(&by).map_err(denied)?;
        let path = Path::parse(path).map_err(unusable)?;
        let edit = edit(path);
        let (Goes::Served(before) | Goes::Collected(before)) = &goes;
        let text = edit::apply(before, &edit).map_err(unusable)?;
        let what = edit.summary();
        let loaded = self.load(&text);
        let meant = loaded.as_ref().err().and_then(|_| edit::meant(before, &edit));
        let beside = edit::beside(before, &edit);
        match (loaded, goes) {
            (Ok(loaded), goes) => {
                if let Some(variable) = loaded.overridden(&edit) {
                    return Err(overridden(&edit, variable));
                }
                match goes {
                    Goes::Served(_) => {
                        let intent = Intent::Change { by, what };
                        Ok(Step::Serve(Box::new(Plan { loaded, text, intent, beside })))
                    }
                    Goes::Collected(_) => Ok(Step::said(self.collected(&text, &what, beside, None))),
                }
            }
            (Err(faults), Goes::Served(_)) => {
                let meant = meant.map_or(String::new(), |meant| format!("; {meant}"));
                Err(Denied { message: format!("{what}: refused, nothing changed{meant}"), details: faults })
            }
            // The next changes may make it valid; `commit` decides.
            (Err(faults), Goes::Collected(_)) => {
                if let Some(variable) = config::overridden(&self.source(&text), &edit, &self.environment) {
                    return Err(overridden(&edit, &variable));
                }
                Ok(Step::said(self.collected(&text, &what, beside, Some(&faults))))
            }
        }
    }

    /// `beside` is a section that the change makes, with the one that was probably meant.
    fn collected(&mut self, text: &str, what: &str, beside: Option<String>, faults: Option<&str>) -> Said {
        self.ledger.collect(text, what);
        let changes = self.ledger.transaction().map_or(0, |transaction| transaction.changes());
        let warning = beside.map(|beside| format!("{beside} `penstock ctl abort` ends the transaction"));
        let mut said = format!("{what}: change {changes} of the transaction, not served before `commit`");
        if let Some(warning) = &warning {
            said.push_str(&format!("\nwarning: {warning}"));
        }
        if let Some(faults) = faults {
            said.push_str(&format!("\nwarning: it cannot be committed yet:\n{}", faults.trim_end()));
        }
        let json =
            json!({ "change": what, "collected": changes, "faults": faults, "warning": warning }).to_string();
        Said { text: said, json }
    }

    fn begin(&mut self, by: Operator) -> Result<Said, Denied> {
        let words = by.to_string();
        self.ledger.begin(by, now()).map_err(denied)?;
        Ok(Said {
            text: format!("transaction of {words}: `set`, `add` and `remove` are collected until `commit`"),
            json: json!({ "transaction": { "by": words } }).to_string(),
        })
    }

    fn commit(&mut self, by: &Operator, confirm: Option<Duration>) -> Result<Step, Denied> {
        if let Some(limit) = confirm.filter(|limit| !CONFIRM.contains(limit)) {
            return Err(Denied {
                message: format!("{} s is no time for a confirmation", limit.as_secs_f32()),
                details: "  hint: 1s to 24h, as in `commit --confirm 60s`".to_owned(),
            });
        }
        self.ledger.still_has_what_it_began(by).map_err(denied)?;
        let transaction = self.ledger.to_commit(by).map_err(denied)?;
        if transaction.text == transaction.base {
            return self.commit_nothing(by).map(Step::said);
        }
        let text = transaction.text.to_string();
        let loaded = self.load(&text).map_err(|faults| Denied {
            message: "commit refused, nothing changed: the transaction stays open".to_owned(),
            details: faults,
        })?;
        Ok(Step::Serve(Box::new(Plan { loaded, text, intent: Intent::Commit { confirm }, beside: None })))
    }

    /// Ends a transaction that changes no text: there is nothing to serve, to confirm or to remember.
    fn commit_nothing(&mut self, by: &Operator) -> Result<Said, Denied> {
        self.ledger.abort(by, logic::transaction::Whose::Own).map_err(denied)?;
        let text = "the transaction changed nothing: it has ended, and the configuration is served as before";
        Ok(Said {
            text: text.to_owned(),
            json: json!({
                "number": null,
                "change": "commit",
                "served": text,
                "warning": null,
                "still_open": [],
                "confirm_within_seconds": null,
                "unsaved_changes": self.unsaved(),
            })
            .to_string(),
        })
    }

    fn confirm(&mut self) -> Result<Said, Denied> {
        let start = self.confirm_start();
        let (text, number) = match (&start, self.ledger.confirm()) {
            (Ok(Start::Confirmed), Ok(trial)) => {
                (format!("the start and change {} are confirmed", trial.number), Some(trial.number))
            }
            (Ok(Start::Confirmed), Err(_)) => ("the start is confirmed".to_owned(), None),
            (_, Ok(trial)) => (format!("change {} is confirmed", trial.number), Some(trial.number)),
            (_, Err(nothing)) => return Err(start.err().unwrap_or_else(|| denied(nothing))),
        };
        let is_start = start.is_ok_and(|start| start == Start::Confirmed);
        Ok(Said { text, json: json!({ "confirmed": number, "start": is_start }).to_string() })
    }

    fn abort(&mut self, by: &Operator, whose: logic::transaction::Whose) -> Result<Said, Denied> {
        let transaction = self.ledger.abort(by, whose).map_err(denied)?;
        let changes = transaction.changes();
        Ok(Said {
            text: format!("transaction of {} ended: {} dropped", transaction.by, count(changes, "change")),
            json: json!({ "aborted": { "by": transaction.by.to_string(), "changes": changes } }).to_string(),
        })
    }

    fn undo_plan(&self, by: Option<Operator>, target: Target) -> Result<Plan, Denied> {
        let text = target.text.to_string();
        let loaded = self.load(&text).map_err(|faults| Denied {
            message: format!("{}: refused, nothing changed", target.words()),
            details: faults,
        })?;
        Ok(Plan { loaded, text, intent: Intent::Undo { by, target }, beside: None })
    }

    fn load(&self, text: &str) -> Result<Loaded, String> {
        config::load_joined(&self.source(text), &self.environment).map_err(|faults| faults.render())
    }

    /// Writes a change of the text as `diff -u` does.
    fn unified(&self, old: &Text, new: &Text) -> String {
        let name = self.file.as_deref().and_then(FilePath::file_name);
        config::files::unified(old, new, &name.unwrap_or_default().to_string_lossy())
    }

    fn source(&self, text: &str) -> Source {
        let name = match &self.file {
            Some(file) => format!("{} with this change", file.display()),
            None => "the configuration with this change".to_owned(),
        };
        Source { name, text: text.to_owned() }
    }

    /// Takes over the result of serving a plan. Returns the answer, and what is recorded.
    pub(crate) fn settle(&mut self, plan: Plan, result: Result<Served, String>) -> Settled {
        let Plan { loaded, text, intent, beside } = plan;
        let what = match &intent {
            Intent::Change { by, what } => (what.clone(), Some(by.clone())),
            Intent::Commit { .. } => {
                let transaction = self.ledger.transaction();
                ("commit".to_owned(), transaction.map(|transaction| transaction.by.clone()))
            }
            Intent::Undo { by, target } => (target.words(), by.clone()),
        };
        let served = match result {
            Ok(served) => Served { said: served.said.trim_end().to_owned(), ..served },
            Err(details) => {
                let message = match &intent {
                    Intent::Commit { .. } => {
                        "commit refused, nothing changed: the transaction stays open".to_owned()
                    }
                    _ => format!("{}: refused, nothing changed", what.0),
                };
                return Settled { event: None, answer: Err(Denied { message, details }) };
            }
        };
        let mut confirmation = None;
        let (also_undone, undone) = match &intent {
            Intent::Undo { target, .. } => {
                let undone = self.ledger.history().get(target.number).map(|entry| {
                    let who = entry.by.as_ref().map_or(String::new(), |by| format!(" of {by}"));
                    format!("change {}{who}: {}", entry.number, entry.what)
                });
                (target.also.clone(), undone)
            }
            Intent::Change { .. } | Intent::Commit { .. } => (Vec::new(), None),
        };
        let number = match intent {
            Intent::Change { by, what } => self.ledger.changed(&text, by, what, now()),
            Intent::Commit { confirm } => {
                confirmation = confirm;
                self.ledger.committed(&text, confirm, now())
            }
            Intent::Undo { by, target } => self.ledger.undone(&target, by, now()),
        };
        self.loaded = loaded;
        let (what, by) = what;
        let by = by.map_or("the server: it was not confirmed in time".to_owned(), |by| by.to_string());
        let mut text = format!("change {number}: {what}\n{}", served.said);
        if let Some(undone) = &undone {
            text.push_str(&format!("\nundone: {undone}"));
        }
        let beside = beside.map(|beside| format!("{beside} `penstock ctl undo` takes it back"));
        for warning in beside.iter().chain(&served.fixed) {
            text.push_str(&format!("\nwarning: {warning}"));
        }
        let warnings: Vec<_> = beside.into_iter().chain(served.fixed).chain(served.warnings).collect();
        if let Some(limit) = confirmation {
            let limit = limit.as_secs_f32();
            text.push_str(&format!("\nit is undone unless `penstock ctl confirm` comes within {limit} s"));
        }
        let answer = json!({
            "number": number,
            "change": what,
            "also_undone": also_undone,
            "undone": undone,
            "served": served.said,
            "warning": (!warnings.is_empty()).then(|| warnings.join("; ")),
            "still_open": served.still_open,
            "confirm_within_seconds": confirmation.map(|limit| limit.as_secs_f64()),
            "unsaved_changes": self.unsaved(),
        });
        let unless = confirmation.map_or(String::new(), |limit| {
            format!(", undone in {} unless confirmed", units::duration(limit))
        });
        let event = Some(format!("change {number} by {by}: {what}{unless}; {}", served.said));
        Settled { event, answer: Ok(Said { text, json: answer.to_string() }) }
    }

    /// Compares the file with what is served, after a client wrote it.
    pub(crate) fn written(&mut self, file: Result<Vec<u8>, String>) -> Result<Said, Denied> {
        let name = self.file.as_deref().map(|file| file.display().to_string()).unwrap_or_default();
        let cannot = |why: &str, details: String| Denied { message: format!("{name}: {why}"), details };
        let refused = |faults: config::Faults| {
            let why =
                "its changes are in the file, which the server cannot load: its next start would be refused";
            cannot(why, faults.render())
        };
        let unreadable =
            |error: String| cannot(&format!("the server cannot read it: {error}"), String::new());
        let source = Source::from_bytes(name.clone(), file.map_err(unreadable)?).map_err(refused)?;
        let text = config::join(&source, &self.environment).map_err(refused)?;
        if text != **self.ledger.served() {
            let hint = "  hint: a file was added, removed or changed that is none of those to be saved: `penstock ctl \
                        reload` serves what the files have";
            return Err(cannot("its files have another configuration than the served one", hint.to_owned()));
        }
        let saved = self.unsaved();
        self.ledger.saved();
        Ok(Said {
            text: format!("{name} has the configuration that is served"),
            json: json!({ "file": name, "saved_changes": saved }).to_string(),
        })
    }
}

/// What became of a plan.
pub(crate) struct Settled {
    pub(crate) event: Option<String>,
    pub(crate) answer: Result<Said, Denied>,
}

impl Step {
    fn said(said: Said) -> Self {
        Self::Answer(Ok(said))
    }
}

fn now() -> Now {
    Now { wall: SystemTime::now(), monotonic: Instant::now() }
}

fn denied(refused: Refused) -> Denied {
    let (message, hint) = refused.words(timestamp);
    Denied { message, details: format!("  hint: {hint}") }
}

fn unusable(error: EditError) -> Denied {
    let details = error.hint.map_or(String::new(), |hint| format!("  hint: {hint}"));
    Denied { message: error.message, details }
}

fn overridden(edit: &Edit, variable: &str) -> Denied {
    Denied {
        message: format!("{}: the environment variable {variable} decides this value", edit.summary()),
        details: "  hint: change the variable and start the server anew, or remove it".to_owned(),
    }
}

fn no_file() -> Denied {
    Denied {
        message: "this server has no configuration file: flags of the command line made its configuration"
            .to_owned(),
        details: "  hint: `penstock ctl save FILE` writes one".to_owned(),
    }
}

/// What a change of the configuration would do, as a reload says it.
fn summary(old: &Config, new: &Config) -> String {
    reload::changes::between(old, new)
}

type Text = Arc<str>;

fn value(text: &Text) -> Value {
    json!(&**text)
}
