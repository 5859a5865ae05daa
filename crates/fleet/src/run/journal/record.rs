//! The record of a run, parsed from its file.

use std::collections::HashMap;
use std::fmt::Write as _;

use hosts::fleet::again::{Maker, RecordedResult};
use serde_json::{Value, json};
use text::table;

#[derive(Debug)]
pub struct Record {
    /// Name of the run, which starts with its start time.
    pub id: String,
    /// The request as the user gave it.
    pub order: Value,
    /// Hosts in their order, with the result of each.
    pub hosts: Vec<(String, RecordedResult)>,
    /// Ending of each host, in the format of `--json`; null for a host that has not ended. `sha256` is the hash of its
    /// standard output.
    pub ends: Vec<Value>,
    /// The exit status, if the run has ended.
    pub status: Option<u64>,
    pub pulse: Liveness,
    /// Later runs that repeated this run or a part of it, the oldest first.
    pub later: Vec<String>,
}

/// Whether the program that writes the record still runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// It runs; hosts may not have ended.
    Running,
    /// It ended or was killed.
    Gone,
}

impl Record {
    /// Parses the lines of a record. `None` if the first line is damaged.
    pub(super) fn parse(text: &str, pulse: Liveness) -> Option<Self> {
        let mut lines = text.lines();
        let head: Value = serde_json::from_str(lines.next()?).ok()?;
        let names: Vec<String> = serde_json::from_value(head["hosts"].clone()).ok()?;
        let mut standing: HashMap<u64, RecordedResult> = HashMap::new();
        let mut ends = vec![Value::Null; names.len()];
        let mut status = None;
        let (sent, not_sent) = match pulse {
            Liveness::Running => ("still running there", "not its turn yet"),
            Liveness::Gone => ("running when the run was killed", "its turn did not come"),
        };
        // The last line of a killed run may be incomplete.
        for line in lines.filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            if let Some(host) = line["sent"].as_u64() {
                standing.insert(host, RecordedResult::MayHaveRun(sent.to_owned()));
            } else if let Some(host) = line["host"].as_u64() {
                let how = match line["detail"].as_str().filter(|detail| !detail.is_empty()) {
                    Some(detail) => format!("{}: {detail}", line["ending"].as_str().unwrap_or("?")),
                    None => line["ending"].as_str().unwrap_or("?").to_owned(),
                };
                let known = match line["remote"].as_str() {
                    Some("not-started") => RecordedResult::NotStarted(how),
                    Some("ended") if line["exit_status"] == 0 => RecordedResult::Ok,
                    Some("ended") => RecordedResult::Failed(how),
                    _ => RecordedResult::MayHaveRun(how),
                };
                standing.insert(host, known);
                if let Some(end) = usize::try_from(host).ok().and_then(|host| ends.get_mut(host)) {
                    *end = line;
                }
            } else if let Some(code) = line["exit_code"].as_u64() {
                status = Some(code);
                for (end, sum) in ends.iter_mut().zip(line["sha256"].as_array().into_iter().flatten()) {
                    if !sum.is_null() && end.is_object() {
                        end["sha256"] = sum.clone();
                    }
                }
            }
        }
        let hosts = names.into_iter().zip(0_u64..).map(|(name, host)| {
            let how = standing.remove(&host);
            (name, how.unwrap_or_else(|| RecordedResult::NotStarted(not_sent.to_owned())))
        });
        Some(Self {
            id: head["id"].as_str()?.to_owned(),
            order: head["order"].clone(),
            hosts: hosts.collect(),
            ends,
            status,
            pulse,
            later: Vec::new(),
        })
    }

    /// Name of the first run in a chain of repeated runs; the run itself, if it repeats none.
    #[must_use]
    pub fn origin(&self) -> &str {
        self.order["again"].as_str().unwrap_or(&self.id)
    }

    /// The subcommand of penstock that made the run.
    #[must_use]
    pub fn maker(&self) -> Maker {
        let copies = [Maker::Put, Maker::Get];
        copies.into_iter().find(|copy| self.order[copy.word()].is_object()).unwrap_or(Maker::Run)
    }

    /// The command or the copy, as the user typed it.
    #[must_use]
    pub fn asked(&self) -> String {
        let words = |list: &Value| -> Vec<String> {
            list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let command = words(&self.order["command"]).join(" ");
        match (self.maker(), self.order["script"].as_str()) {
            (Maker::Run, Some(script)) => format!("{script} {command}"),
            (Maker::Run, None) => command,
            (copy, _) => {
                let copied = &self.order[copy.word()];
                let to = copied["to"].as_str().map(str::to_owned);
                let named = [copy.word().to_owned()].into_iter().chain(words(&copied["sources"])).chain(to);
                named.collect::<Vec<_>>().join(" ")
            }
        }
    }

    /// The record as text: the command, the ending of the run, and the result of each host.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}  {}\n", self.id, self.asked());
        match (self.status, self.pulse) {
            (Some(code), _) => _ = writeln!(text, "exit code {code}"),
            (None, Liveness::Running) => text.push_str("still running\n"),
            (None, Liveness::Gone) => text.push_str("killed before its end\n"),
        }
        let told =
            |(name, standing): &(String, RecordedResult)| vec![name.clone(), standing.told(self.maker())];
        text.push_str(&table::of(&self.hosts.iter().map(told).collect::<Vec<_>>()));
        text
    }

    /// The record as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let host = |((name, standing), end): (&(String, RecordedResult), &Value)| {
            let mut host = json!({ "host": name, "result": standing.word() });
            // A host that has not ended has no `end` with the reason.
            if let (RecordedResult::NotStarted(why) | RecordedResult::MayHaveRun(why), Value::Null) =
                (standing, end)
            {
                host["detail"] = json!(why);
            }
            if let (Some(host), Value::Object(end)) = (host.as_object_mut(), end) {
                // `host` is the index of the host in this object.
                let rest = end.iter().filter(|(key, _)| !matches!(key.as_str(), "host" | "result"));
                host.extend(rest.map(|(key, value)| (key.clone(), value.clone())));
            }
            host
        };
        let state = match (self.status, self.pulse) {
            (Some(_), _) => "ended",
            (None, Liveness::Running) => "running",
            (None, Liveness::Gone) => "killed",
        };
        json!({
            "id": self.id,
            "state": state,
            "exit_code": self.status,
            "order": self.order,
            "hosts": self.hosts.iter().zip(&self.ends).map(host).collect::<Vec<_>>(),
        })
    }
}
