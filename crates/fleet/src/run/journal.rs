//! What the last runs did, one file each: `$XDG_STATE_HOME/penstock/runs/ID.jsonl`.
//!
//! The first line has the command and the hosts; it is there, whole, before anything is sent. Each host then adds a line
//! before its command is sent and one when it has ended. So a run that was killed shows which hosts were running. The file
//! is locked (flock) while its run goes on.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use logic::fleet::ending::{Ending, Remote};
use logic::fleet::verdict::Status;
use serde_json::{Value, json};

use super::stop::{Brake, impatient};
use super::view::json;

mod pen;

use pen::Pen;

/// The file of the run that is going on, and the thread that writes it (`journal/pen.rs`).
#[derive(Debug)]
pub struct Journal {
    id: String,
    pen: Pen,
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
    /// How each ended, in the words of `--json`; null for one that did not. `sha256` is that of its standard output.
    pub ends: Vec<Value>,
    /// The exit status, if the run came to its end.
    pub status: Option<u64>,
    /// Whether it still goes on.
    pub pulse: Pulse,
    /// Later runs that repeated it, or part of it, on some of its hosts; the oldest first.
    pub later: Vec<String>,
}

/// Whether the program that keeps a record lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pulse {
    /// It does: its hosts are on their way.
    Running,
    /// It ended, or was killed.
    Gone,
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
    /// Begins the file of a run, and removes the oldest ones. It waits for the disk: nothing goes on yet that this could hold up,
    /// and signals still end the program.
    ///
    /// # Errors
    /// The directory or the file cannot be made.
    pub fn begin(directory: &Path, id: &str, order: &Value, hosts: &[String]) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        prune(directory);
        let part = directory.join(format!(".{id}.part"));
        let mut file = File::options().append(true).create_new(true).mode(0o600).open(&part)?;
        // Held as long as we live. A file system without locks costs the warning, not the run.
        let _ = file.try_lock();
        let head = json!({ "id": id, "order": order, "hosts": hosts });
        let begun =
            writeln!(file, "{head}").and_then(|()| fs::rename(&part, directory.join(format!("{id}.jsonl"))));
        if let Err(error) = begun {
            let _ = fs::remove_file(&part);
            return Err(error);
        }
        Ok(Self { id: id.to_owned(), pen: Pen::take(file)? })
    }

    /// The name of the run.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The command is about to be sent to a host. If this cannot be written it must not be: who reads the record would take
    /// the host for one that never started.
    pub(super) async fn sent(&self, host: usize) -> io::Result<()> {
        self.pen.written(&json!({ "sent": host })).await
    }

    /// A host has ended; `then` tells of it, so that nothing is told that a crash could take back. On a full disk it counts as
    /// one that may have run.
    pub(super) fn ended(&self, host: usize, ending: &Ending, then: impl FnOnce() + Send + 'static) {
        let mut value = json!({ "host": host });
        if let (Some(value), Value::Object(extra)) = (value.as_object_mut(), json::ending(ending)) {
            value.extend(extra);
        }
        self.pen.note(&value, then);
    }

    /// Waits until everybody is told of what has happened so far; once the run is stopped, for `patience` more. Then the disk is
    /// given up: what comes is told all the same.
    pub(super) async fn settled(&self, brake: &Brake, patience: Duration) {
        let impatient = tokio::select! {
            biased;
            () = self.pen.settled() => false,
            () = impatient(brake, patience) => true,
        };
        if impatient {
            self.pen.give_up();
        }
    }

    /// The run has ended. Gives why not all that happened is on record.
    pub(super) async fn finish(
        &self,
        status: Status,
        hashes: &[Option<String>],
        brake: &Brake,
        patience: Duration,
    ) -> Option<io::Error> {
        self.pen.note(&json!({ "status": status.code(), "sha256": hashes }), || ());
        self.settled(brake, patience).await;
        self.pen.lost()
    }
}

/// The run of this name in `directory`, or the newest.
///
/// # Errors
/// It cannot be read, or there is none.
pub fn find(directory: &Path, id: Option<&str>) -> io::Result<Record> {
    let is_it = |path: &PathBuf| id.is_none_or(|id| path.file_stem().is_some_and(|stem| stem == id));
    let found = files(directory, "jsonl")?.into_iter().rev().find(is_it);
    let path = found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such run is on record"))?;
    load(&path)
}

fn load(path: &Path) -> io::Result<Record> {
    // Opening a pipe that nobody writes to would wait for ever.
    let file = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    let about = file.metadata()?;
    let damaged = |what: &str| {
        let text = format!("{} {what}: remove it", path.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    };
    if !about.is_file() {
        return Err(damaged("is no regular file"));
    }
    if about.len() > LONGEST {
        return Err(damaged(&format!("is no record of ours: it is longer than {LONGEST} bytes")));
    }
    let pulse = match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Pulse::Running,
        _ => Pulse::Gone,
    };
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    // A line that was cut may end within a character.
    read(&String::from_utf8_lossy(&bytes), pulse)
        .ok_or_else(|| damaged("is damaged, and hides the runs before it (--id shows them)"))
}

fn read(text: &str, pulse: Pulse) -> Option<Record> {
    let mut lines = text.lines();
    let head: Value = serde_json::from_str(lines.next()?).ok()?;
    let names: Vec<String> = serde_json::from_value(head["hosts"].clone()).ok()?;
    let mut standing: HashMap<u64, Standing> = HashMap::new();
    let mut ends = vec![Value::Null; names.len()];
    let mut status = None;
    let (sent, not_sent) = match pulse {
        Pulse::Running => ("it runs there now", "its turn has not come yet"),
        Pulse::Gone => ("running when the run was killed", "its turn never came"),
    };
    // The last line of a run that was killed may be cut.
    for line in lines.filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        if let Some(host) = line["sent"].as_u64() {
            standing.insert(host, Standing::Unknown(sent.to_owned()));
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
            if let Some(end) = usize::try_from(host).ok().and_then(|host| ends.get_mut(host)) {
                *end = line;
            }
        } else if let Some(code) = line["status"].as_u64() {
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
        (name, how.unwrap_or_else(|| Standing::NeverStarted(not_sent.to_owned())))
    });
    Some(Record {
        id: head["id"].as_str()?.to_owned(),
        order: head["order"].clone(),
        hosts: hosts.collect(),
        ends,
        status,
        pulse,
        later: Vec::new(),
    })
}

impl Record {
    /// The run that it repeated, or part of it, or itself.
    #[must_use]
    pub fn origin(&self) -> &str {
        self.order["again"].as_str().unwrap_or(&self.id)
    }

    /// Takes over how its hosts stand since it was repeated: a command that was never started then may have run since.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn bring_up_to_date(&mut self, directory: &Path) -> io::Result<()> {
        let (id, origin) = (self.id.clone(), self.origin().to_owned());
        let is_later =
            |path: &PathBuf| path.file_stem().is_some_and(|stem| stem.as_encoded_bytes() > id.as_bytes());
        // One at a time, as a record may be long. One that is damaged has been told of when it was the newest.
        let later =
            files(directory, "jsonl")?.into_iter().filter(is_later).filter_map(|path| load(&path).ok());
        for record in later.filter(|record| record.origin() == origin) {
            let began = record.hosts.into_iter().filter(|(_, how)| !matches!(how, Standing::NeverStarted(_)));
            let since: HashMap<String, Standing> = began.collect();
            for (name, known) in &mut self.hosts {
                if let Some(standing) = since.get(name) {
                    known.clone_from(standing);
                }
            }
            self.later.push(record.id);
        }
        Ok(())
    }
}

/// The name of a run that begins now, `now` being its time; names sort by time, and after those of all runs on record: a clock
/// that was put back must not make an older run the last one.
#[must_use]
pub fn id(directory: Option<&Path>, now: jiff::Timestamp) -> String {
    let time_of = |path: &PathBuf| {
        let (time, _) = path.file_stem()?.to_str()?.split_once('-')?;
        let time = jiff::civil::DateTime::strptime(TIME, time).ok()?;
        Some(time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
    };
    let all = directory.and_then(|directory| files(directory, "jsonl").ok()).unwrap_or_default();
    let newest = all.iter().rev().find_map(time_of);
    let next = newest.and_then(|newest| newest.checked_add(jiff::Span::new().microseconds(1)).ok());
    let time = next.map_or(now, |next| next.max(now));
    format!("{}-{}", time.strftime(TIME), std::process::id())
}

/// How the time stands in the name of a run.
const TIME: &str = "%Y%m%dT%H%M%S.%6f";

/// Records, the oldest first; or others that end so.
fn files(directory: &Path, ending: &str) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|found| found == ending))
        .collect();
    files.sort();
    Ok(files)
}

/// Keeps the newest runs, in number and size, and those that still go on.
fn prune(directory: &Path) {
    let mut size = 0;
    for (at, path) in files(directory, "jsonl").into_iter().flatten().rev().enumerate() {
        size += fs::metadata(&path).map_or(0, |about| about.len());
        if at + 1 >= MOST_RUNS || size > MOST_BYTES {
            remove(&path, Duration::ZERO);
        }
    }
    // Of programs that were killed before they began. Another one may not have locked its own yet.
    files(directory, "part").into_iter().flatten().for_each(|path| remove(&path, STALE));
}

/// Removes a file that nobody has locked or written to for so long.
fn remove(path: &Path, unused: Duration) {
    // Opening a pipe that nobody writes to would wait for ever.
    let Ok(file) = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path) else { return };
    let written = file.metadata().and_then(|about| about.modified());
    let age = written.ok().and_then(|written| written.elapsed().ok()).unwrap_or_default();
    // First: whoever made it just now wants to lock it.
    if age < unused {
        return;
    }
    // Shared, so that whoever reads it meanwhile does not take its run for one that goes on.
    if !matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)) {
        let _ = fs::remove_file(path);
    }
}

/// A host takes some hundred bytes: nothing that is longer is a record.
const LONGEST: u64 = 1 << 30;
const MOST_RUNS: usize = 100;
const MOST_BYTES: u64 = 64 << 20;
const STALE: Duration = Duration::from_secs(3600);

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

    #[tokio::test]
    async fn run_that_was_killed_shows_who_was_running_and_who_never_started() {
        let directory = tempfile::tempdir().unwrap();
        let names = ["a", "b", "c", "d"].map(str::to_owned);
        let journal = Journal::begin(directory.path(), "1", &json!({ "command": "true" }), &names).unwrap();
        journal.sent(0).await.unwrap();
        journal.ended(0, &Ending::Exited(0), || ());
        journal.sent(1).await.unwrap();
        journal.sent(2).await.unwrap();
        journal.ended(2, &Ending::Exited(3), || ());
        journal.settled(&Brake::default(), Duration::ZERO).await;
        let file = directory.path().join("1.jsonl");
        let mut text = fs::read_to_string(file).unwrap();
        text.push_str("{\"host\":1,\"exi");
        let record = read(&text, Pulse::Gone).unwrap();
        let shown: Vec<_> = record.hosts.iter().map(|(_, standing)| standing.clone()).collect();
        assert!(matches!(shown[0], Standing::Well));
        assert!(matches!(shown[1], Standing::Unknown(_)));
        assert_eq!(shown[2], Standing::Failed("exit 3".to_owned()));
        assert!(matches!(shown[3], Standing::NeverStarted(_)));
        assert_eq!(record.status, None);
    }

    #[tokio::test]
    async fn host_that_ended_in_a_repetition_has_not_never_started() {
        let directory = tempfile::tempdir().unwrap();
        let begin = |id: &str, order: Value, hosts: &[&str]| {
            let names: Vec<String> = hosts.iter().map(|&name| name.to_owned()).collect();
            Journal::begin(directory.path(), id, &order, &names).unwrap()
        };
        drop(begin("1", json!({}), &["a", "b", "c", "d"]));
        let again = begin("2", json!({ "again": "1" }), &["a", "b", "c"]);
        again.sent(0).await.unwrap();
        again.ended(0, &Ending::Exited(0), || ());
        again.sent(1).await.unwrap();
        again.settled(&Brake::default(), Duration::ZERO).await;
        let other = begin("3", json!({}), &["d"]);
        other.sent(0).await.unwrap();
        let mut record = find(directory.path(), Some("1")).unwrap();
        record.bring_up_to_date(directory.path()).unwrap();
        let standing = |name: &str| &record.hosts.iter().find(|(known, _)| known == name).unwrap().1;
        assert_eq!(*standing("a"), Standing::Well);
        assert!(matches!(standing("b"), Standing::Unknown(_)));
        assert!(
            matches!(standing("c"), Standing::NeverStarted(_))
                && matches!(standing("d"), Standing::NeverStarted(_))
        );
        assert_eq!(record.later, ["2"]);
        assert_eq!(find(directory.path(), Some("2")).unwrap().origin(), "1");
    }

    #[test]
    fn run_is_named_after_those_on_record_whatever_the_clock_says() {
        let directory = tempfile::tempdir().unwrap();
        let at = |text: &str| text.parse::<jiff::Timestamp>().unwrap();
        let (noon, earlier) = (at("2026-11-20T12:00:00.5Z"), at("2025-01-01T00:00:00Z"));
        let first = id(Some(directory.path()), noon);
        assert_eq!(first, format!("20261120T120000.500000-{}", std::process::id()));
        Journal::begin(directory.path(), &first, &json!({}), &[]).unwrap();
        assert_eq!(id(Some(directory.path()), earlier), first.replace(".500000", ".500001"));
        assert!(
            id(Some(directory.path()), at("2026-11-20T12:00:01Z")).starts_with("20261120T120001.000000-")
        );
        Journal::begin(directory.path(), "nonsense", &json!({}), &[]).unwrap();
        assert_eq!(id(Some(directory.path()), earlier), first.replace(".500000", ".500001"));
    }

    #[test]
    fn only_the_newest_runs_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        for run in 0..MOST_RUNS + 20 {
            Journal::begin(directory.path(), &format!("{run:04}"), &json!({}), &[]).unwrap();
        }
        let kept = files(directory.path(), "jsonl").unwrap();
        assert_eq!(kept.len(), MOST_RUNS);
        assert_eq!(find(directory.path(), Some("0050")).unwrap().id, "0050");
        assert!(find(directory.path(), Some("0001")).is_err() && find(directory.path(), Some("")).is_err());
        assert_eq!(find(directory.path(), None).unwrap().id, "0119");
    }

    #[test]
    fn run_that_goes_on_keeps_its_record_and_what_a_killed_program_left_behind_goes() {
        let directory = tempfile::tempdir().unwrap();
        let begin = |id: &str| Journal::begin(directory.path(), id, &json!({}), &[]).unwrap();
        let live = begin("0000");
        let left = directory.path().join(".0000-killed.part");
        let fresh = directory.path().join(".0000-beginning.part");
        let old = std::time::SystemTime::now() - 2 * STALE;
        File::create(&left).unwrap().set_modified(old).unwrap();
        File::create(&fresh).unwrap();
        (1..=MOST_RUNS + 20).for_each(|run| drop(begin(&format!("{run:04}"))));
        assert_eq!(find(directory.path(), Some("0000")).unwrap().pulse, Pulse::Running);
        assert!(find(directory.path(), Some("0001")).is_err());
        assert_eq!((left.exists(), fresh.exists()), (false, true));
        drop(live);
        // Its thread lets go of the file.
        while find(directory.path(), Some("0000")).unwrap().pulse == Pulse::Running {
            std::thread::yield_now();
        }
        begin("9999");
        assert!(find(directory.path(), Some("0000")).is_err());
    }
}
