//! Answers that change nothing: `show`, `diff`, `history`, and the texts for `save`.

use config::edit::Path;
use std::time::Instant;

use logic::transaction::{Cause, Edition, Entry, Standing, Trial};
use proxy::front::{Denied, Said};
use serde_json::json;
use state::events::timestamp;
use text::table::Table;
use text::units::count;

use super::{DryRun, Live, denied, summary, unusable, value};

impl Live {
    pub(super) fn show(&self, path: Option<&str>) -> Result<Said, Denied> {
        let Some(path) = path else {
            let text = self.ledger.served();
            let json = json!({ "text": value(text), "configuration": self.loaded.json() });
            return Ok(Said { text: text.to_string(), json: json.to_string() });
        };
        let path = Path::parse(path).map_err(unusable)?;
        let part = self.loaded.part(&path).map_err(unusable)?;
        let json = json!({ "path": path.to_string(), "value": part.value, "text": part.text });
        Ok(Said { text: part.text, json: json.to_string() })
    }

    /// Shows what `commit` would change, with what trying it out has shown; without a transaction, what the file does not
    /// have.
    pub(crate) fn diff(&self, tried: Option<&DryRun>) -> Said {
        let (from, old, new) = match self.ledger.transaction() {
            Some(transaction) => ("served", &transaction.base, &transaction.text),
            None => ("file", self.ledger.source(), self.ledger.served()),
        };
        let shown = self.unified(old, new);
        let transaction = self.ledger.transaction().map(|transaction| {
            json!({
                "by": transaction.by.to_string(),
                "since": timestamp(transaction.since),
                "changes": transaction.changes(),
            })
        });
        let overtaken = self.ledger.transaction_is_current().err().map(denied);
        let overtaken = overtaken.map(|Denied { message, details }| format!("{message}\n{details}"));
        let (changes, faults) = match self.ledger.transaction() {
            None => (None, None),
            // What is served is not what it would change.
            Some(_) if overtaken.is_some() => (None, None),
            Some(_) => match self.load(new) {
                Ok(loaded) => (Some(summary(&self.loaded.config, &loaded.config)), None),
                Err(faults) => (None, Some(faults)),
            },
        };
        let mut text = match (self.ledger.transaction(), shown.is_empty()) {
            (None, true) => "there is no transaction, and nothing is unsaved\n".to_owned(),
            (Some(_), true) => "the transaction has no change yet\n".to_owned(),
            (None, false) => format!("there is no transaction; not saved to the file:\n{shown}"),
            (Some(_), false) => shown.clone(),
        };
        if let Some(changes) = changes.as_ref().filter(|_| !shown.is_empty()) {
            text.push_str(&format!("commit would change: {changes}\n"));
        }
        if let Some(faults) = &faults {
            text.push_str(&format!("it cannot be committed yet:\n{faults}"));
        }
        if let Some(why) = &overtaken {
            text.push_str(&format!("commit would be refused: {why}\n"));
        }
        if let Some(tried) = tried.filter(|_| !shown.is_empty()) {
            text.push_str(&tried.text());
        }
        text.insert_str(0, &self.waits());
        let json = json!({
            "from": from,
            "unconfirmed": self.ledger.trial().map(|trial| trial.number),
            "transaction": transaction,
            "diff": shown,
            "changes": changes,
            "faults": faults,
            "refused": overtaken.as_ref().or_else(|| tried?.refused.as_ref()),
            "degraded": tried.map(|tried| &tried.degraded).map(|all| {
                all.iter().map(|(subject, why)| json!({ "subject": subject, "reason": why })).collect::<Vec<_>>()
            }),
            "warnings": tried.and_then(|tried| tried.warnings.as_ref()),
        });
        Said { text, json: json.to_string() }
    }

    pub(super) fn history(&self, number: Option<u64>) -> Result<Said, Denied> {
        let history = self.ledger.history();
        let Some(number) = number else {
            let mut table = Table::indented("");
            for entry in history.iter() {
                table.row([
                    entry.number.to_string(),
                    timestamp(entry.at),
                    who(entry),
                    self.state(entry),
                    entry.what.clone(),
                ]);
            }
            let mut text = match history.newest() {
                None => "no change yet\n".to_owned(),
                Some(_) => table.render(),
            };
            text.push_str(&self.waits());
            let json: Vec<_> = history.iter().map(|entry| self.entry(entry)).collect();
            return Ok(Said { text, json: json!(json).to_string() });
        };
        let entry = history.get(number).ok_or_else(|| {
            let (oldest, newest) = (history.iter().next().map(|entry| entry.number), history.newest());
            denied(logic::transaction::Refused::NoSuchChange { number, oldest, newest })
        })?;
        let diff = self.unified(&entry.before, history.after(entry, self.ledger.served()));
        let mut json = self.entry(entry);
        json["diff"] = json!(diff);
        let text = format!("{} {} {}: {}\n{diff}", entry.number, timestamp(entry.at), who(entry), entry.what);
        Ok(Said { text, json: json.to_string() })
    }

    fn entry(&self, entry: &Entry) -> serde_json::Value {
        json!({
            "number": entry.number,
            "at": timestamp(entry.at),
            "uid": entry.by.as_ref().filter(|by| by.login.is_none()).map(|by| by.uid),
            "login": entry.by.as_ref().and_then(|by| by.login.clone()),
            "user": entry.by.as_ref().and_then(|by| by.name.clone()),
            "pid": entry.by.as_ref().and_then(|by| by.pid),
            "cause": cause(entry.cause),
            "change": entry.what,
            "in_effect": self.in_effect(entry),
            "dropped_by": match self.ledger.history().standing(entry) {
                Standing::Dropped(by) => Some(by.number),
                Standing::InEffect | Standing::Undone => None,
            },
            "undone_in_seconds": self.unconfirmed(entry).map(|trial| trial.left(Instant::now())),
        })
    }

    /// What is to be said of a change beside who made it: nothing if it is served and stays.
    fn state(&self, entry: &Entry) -> String {
        if let Some(trial) = self.unconfirmed(entry) {
            return trial.words(Instant::now());
        }
        if self.in_effect(entry).is_none() {
            return String::new();
        }
        match self.ledger.history().standing(entry) {
            Standing::InEffect => String::new(),
            Standing::Undone => "undone".to_owned(),
            Standing::Dropped(by) if by.cause == Cause::Start => "not served since the start".to_owned(),
            Standing::Dropped(_) => "dropped by the reload".to_owned(),
        }
    }

    fn unconfirmed(&self, entry: &Entry) -> Option<&Trial> {
        self.ledger.trial().filter(|trial| trial.number == entry.number)
    }

    /// What has been begun and not ended, a line each.
    fn waits(&self) -> String {
        let lines = self.ledger.pending().lines(Instant::now(), timestamp);
        lines.into_iter().map(|line| line + "\n").collect()
    }

    /// Whether a change is served; nothing for an undo, which is no change of its own.
    fn in_effect(&self, entry: &Entry) -> Option<bool> {
        match entry.cause {
            Cause::Change | Cause::Reload | Cause::Start => {
                Some(matches!(self.ledger.history().standing(entry), Standing::InEffect))
            }
            Cause::Undo | Cause::Expiry => None,
        }
    }

    /// The texts with which a client writes the file, because this process may not.
    pub(super) fn save(&self) -> Result<Said, Denied> {
        self.ledger.nothing_waits().map_err(denied)?;
        let json = json!({
            "file": self.file.as_ref().map(|file| file.display().to_string()),
            "text": value(self.ledger.served()),
            "loaded": value(self.ledger.source()),
            "unsaved_changes": self.unsaved(),
            "undone_reload": self.ledger.edition() == Edition::Earlier,
        });
        let unsaved = count(self.unsaved(), "unsaved change");
        Ok(Said { text: format!("{unsaved}; `penstock ctl save` writes the file\n"), json: json.to_string() })
    }
}

impl DryRun {
    fn text(&self) -> String {
        let mut text = String::new();
        if let Some(why) = &self.refused {
            text.push_str(&format!("commit would be refused:\n{}\n", why.trim_end()));
        }
        for (subject, why) in &self.degraded {
            text.push_str(&format!("warning: {subject} would be degraded: {why}\n"));
        }
        if let Some(warnings) = &self.warnings {
            text.push_str(warnings);
        }
        text
    }
}

fn who(entry: &Entry) -> String {
    entry.by.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string)
}

fn cause(cause: Cause) -> &'static str {
    match cause {
        Cause::Change => "change",
        Cause::Undo => "undo",
        Cause::Expiry => "not-confirmed",
        Cause::Reload => "reload",
        Cause::Start => "start",
    }
}
