//! What the last runs did, one file each: `$XDG_STATE_HOME/penstock/runs/ID.jsonl`.
//!
//! The first line has the command and the hosts; it is there, whole, before anything is sent. Each host then adds a line
//! before its command is sent and one when it has ended. So a run that was killed shows which hosts were running.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use logic::fleet::ending::{Ending, Remote};
use logic::fleet::verdict::Status;
use serde_json::{Value, json};

use super::view::json;

/// The file of the run that is going on.
#[derive(Debug)]
pub struct Journal {
    file: File,
}

/// What a run did, as its file tells.
#[derive(Debug)]
pub struct Record {
    /// Its name: the time of its begin.
    pub id: String,
    /// What was asked for, as it was given.
    pub order: Value,
    /// Hosts in their order, and how each stands.
    pub hosts: Vec<(String, Standing)>,
    /// The exit status, if the run came to its end.
    pub status: Option<u64>,
}

/// How a host stands in a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Its command was never sent.
    NeverStarted(String),
    /// It ended with 0.
    Well,
    /// It ended otherwise.
    Failed(String),
    /// It may have run: the connection broke, or this program was killed.
    Unknown(String),
}

impl Journal {
    /// Begins the file of a run, and removes the oldest ones.
    ///
    /// # Errors
    /// The directory or the file cannot be made.
    pub fn begin(directory: &Path, id: &str, order: &Value, hosts: &[String]) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        prune(directory);
        let part = directory.join(format!(".{id}.part"));
        let mut file = File::options().append(true).create_new(true).mode(0o600).open(&part)?;
        writeln!(file, "{}", json!({ "id": id, "order": order, "hosts": hosts }))?;
        fs::rename(&part, directory.join(format!("{id}.jsonl")))?;
        Ok(Self { file })
    }

    /// The command is about to be sent to a host.
    pub(super) fn sent(&self, host: usize) {
        self.add(&json!({ "sent": host }));
    }

    /// A host has ended.
    pub(super) fn ended(&self, host: usize, ending: &Ending) {
        let mut value = json!({ "host": host });
        if let (Some(value), Value::Object(extra)) = (value.as_object_mut(), json::ending(ending)) {
            value.extend(extra);
        }
        self.add(&value);
    }

    /// The run has ended.
    pub(super) fn finish(&self, status: Status, hashes: &[Option<String>]) {
        self.add(&json!({ "status": status.code(), "sha256": hashes }));
    }

    /// A full disk costs the record, not the run.
    fn add(&self, value: &Value) {
        let _ = (&self.file).write_all(format!("{value}\n").as_bytes());
    }
}

/// The newest run in `directory`.
///
/// # Errors
/// It cannot be read, or there is none.
pub fn last(directory: &Path) -> io::Result<Record> {
    let newest = files(directory).pop();
    let path = newest.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no run is on record"))?;
    let text = fs::read_to_string(path)?;
    read(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "its record is damaged"))
}

fn read(text: &str) -> Option<Record> {
    let mut lines = text.lines();
    let head: Value = serde_json::from_str(lines.next()?).ok()?;
    let names: Vec<String> = serde_json::from_value(head["hosts"].clone()).ok()?;
    let mut standing: HashMap<u64, Standing> = HashMap::new();
    let mut status = None;
    // The last line of a run that was killed may be cut.
    for line in lines.filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        if let Some(host) = line["sent"].as_u64() {
            standing.insert(host, Standing::Unknown("running when the run was killed".to_owned()));
        } else if let Some(host) = line["host"].as_u64() {
            let how = match line["detail"].as_str().filter(|detail| !detail.is_empty()) {
                Some(detail) => format!("{}: {detail}", line["ended"].as_str().unwrap_or("?")),
                None => line["ended"].as_str().unwrap_or("?").to_owned(),
            };
            let known = match line["remote"].as_str() {
                Some("never-started") => Standing::NeverStarted(how),
                Some("ended") if line["exit"] == 0 => Standing::Well,
                Some("ended") => Standing::Failed(how),
                _ => Standing::Unknown(how),
            };
            standing.insert(host, known);
        } else if let Some(code) = line["status"].as_u64() {
            status = Some(code);
        }
    }
    let hosts = names.into_iter().zip(0_u64..).map(|(name, host)| {
        let how = standing.remove(&host);
        (name, how.unwrap_or_else(|| Standing::NeverStarted("its turn never came".to_owned())))
    });
    Some(Record {
        id: head["id"].as_str()?.to_owned(),
        order: head["order"].clone(),
        hosts: hosts.collect(),
        status,
    })
}

/// Records, the oldest first.
fn files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "jsonl"))
        .collect();
    files.sort();
    files
}

/// Keeps the newest runs, in number and size.
fn prune(directory: &Path) {
    let mut size = 0;
    for (at, path) in files(directory).into_iter().rev().enumerate() {
        size += fs::metadata(&path).map_or(0, |about| about.len());
        if at + 1 >= MOST_RUNS || size > MOST_BYTES {
            let _ = fs::remove_file(path);
        }
    }
}

const MOST_RUNS: usize = 100;
const MOST_BYTES: u64 = 64 << 20;

/// What is known of the process on a host, from its standing.
impl From<&Standing> for Remote {
    fn from(standing: &Standing) -> Self {
        match standing {
            Standing::NeverStarted(_) => Remote::NeverStarted,
            Standing::Well | Standing::Failed(_) => Remote::Ended,
            Standing::Unknown(_) => Remote::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_that_was_killed_shows_who_was_running_and_who_never_started() {
        let directory = tempfile::tempdir().unwrap();
        let names = ["a", "b", "c", "d"].map(str::to_owned);
        let journal = Journal::begin(directory.path(), "1", &json!({ "command": "true" }), &names).unwrap();
        journal.sent(0);
        journal.ended(0, &Ending::Exited(0));
        journal.sent(1);
        journal.sent(2);
        journal.ended(2, &Ending::Exited(3));
        let file = directory.path().join("1.jsonl");
        let mut text = fs::read_to_string(file).unwrap();
        text.push_str("{\"host\":1,\"exi");
        let record = read(&text).unwrap();
        let shown: Vec<_> = record.hosts.iter().map(|(_, standing)| standing.clone()).collect();
        assert!(matches!(shown[0], Standing::Well));
        assert!(matches!(shown[1], Standing::Unknown(_)));
        assert_eq!(shown[2], Standing::Failed("exit 3".to_owned()));
        assert!(matches!(shown[3], Standing::NeverStarted(_)));
        assert_eq!(record.status, None);
    }

    #[test]
    fn only_the_newest_runs_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        for run in 0..MOST_RUNS + 20 {
            Journal::begin(directory.path(), &format!("{run:04}"), &json!({}), &[]).unwrap();
        }
        let kept = files(directory.path());
        assert_eq!(kept.len(), MOST_RUNS);
        assert_eq!(last(directory.path()).unwrap().id, "0119");
    }
}
