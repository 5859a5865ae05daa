//! Records of the last runs, one file each: `$XDG_STATE_HOME/penstock/runs/ID.jsonl`.
//!
//! The first line has the command and the hosts. The program writes it before it sends anything to a host. Each host
//! adds a line before its command is sent and a line when it has ended. So the record of a killed run shows which hosts
//! were running. The program holds a lock (flock) on the file until its run ends.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hosts::fleet::again::RecordedResult;
use hosts::fleet::ending::Ending;
use hosts::fleet::verdict::Status;
use serde_json::{Value, json};

use super::ending;
use super::stop::{Brake, impatient};

mod record;
mod writer;

pub use record::{Liveness, Record};
use writer::RecordWriter;

/// The record of the current run, and the thread that writes it (`journal/writer.rs`).
#[derive(Debug)]
pub struct Journal {
    id: String,
    writer: RecordWriter,
}

impl Journal {
    /// Creates the record of a run and removes the oldest records. Blocks on the disk, which delays no host, since none
    /// has started; signals still end the program.
    ///
    /// # Errors
    /// The directory or the file cannot be made.
    pub fn begin(directory: &Path, id: &str, order: &Value, hosts: &[String]) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        prune(directory);
        let part = directory.join(format!(".{id}.part"));
        let mut file = File::options().append(true).create_new(true).mode(0o600).open(&part)?;
        // The lock is held until the program ends. Without a lock, on a file system that has none, the run shows as
        // ended.
        let _ = file.try_lock();
        let head = json!({ "id": id, "order": order, "hosts": hosts });
        let begun =
            writeln!(file, "{head}").and_then(|()| fs::rename(&part, directory.join(format!("{id}.jsonl"))));
        if let Err(error) = begun {
            let _ = fs::remove_file(&part);
            return Err(error);
        }
        Ok(Self { id: id.to_owned(), writer: RecordWriter::take(file)? })
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Records that the command is about to be sent to `host`. After an error the command must not be sent: a reader of
    /// the record would believe that the host had not started it.
    pub(super) async fn sent(&self, host: usize) -> io::Result<()> {
        self.writer.written(&json!({ "sent": host })).await
    }

    /// Records that `host` has ended, then calls `then`, which reports it: a crash must not lose what was reported. If
    /// the disk is full, the record shows that the host may have run the command.
    pub(super) fn ended(&self, host: usize, ending: &Ending, then: impl FnOnce() + Send + 'static) {
        let mut value = json!({ "host": host });
        if let (Some(value), Value::Object(extra)) = (value.as_object_mut(), ending::as_json(ending)) {
            value.extend(extra);
        }
        self.writer.note(&value, then);
    }

    /// Waits until all records so far are written. Once the run is stopped, it waits for `patience` at most; after that
    /// no record is written, and all waiting tasks are notified.
    pub(super) async fn settled(&self, brake: &Brake, patience: Duration) {
        let impatient = tokio::select! {
            biased;
            () = self.writer.settled() => false,
            () = impatient(brake, patience) => true,
        };
        if impatient {
            self.writer.give_up();
        }
    }

    /// Records the end of the run. Returns the first write error, if a record was lost.
    pub(super) async fn finish(
        &self,
        status: Status,
        hashes: &[Option<String>],
        brake: &Brake,
        patience: Duration,
    ) -> Option<io::Error> {
        self.writer.note(&json!({ "exit_code": status.code(), "sha256": hashes }), || ());
        self.settled(brake, patience).await;
        self.writer.lost()
    }
}

/// Loads the record of run `id` in `directory`, or of the newest run.
///
/// # Errors
/// The record does not exist or cannot be read.
pub fn find(directory: &Path, id: Option<&str>) -> io::Result<Record> {
    let is_it = |path: &PathBuf| id.is_none_or(|id| path.file_stem().is_some_and(|stem| stem == id));
    let found = files(directory, "jsonl")?.into_iter().rev().find(is_it);
    let path = found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such run is recorded"))?;
    load(&path)
}

fn load(path: &Path) -> io::Result<Record> {
    // Without O_NONBLOCK the open of a FIFO without a writer would block.
    let file = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    let about = file.metadata()?;
    let damaged = |what: &str| {
        let text = format!("{} {what}: remove it", path.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    };
    if !about.is_file() {
        return Err(damaged("is not a regular file"));
    }
    if about.len() > LONGEST {
        return Err(damaged(&format!("is not a record of penstock: it is longer than {LONGEST} bytes")));
    }
    let pulse = match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Liveness::Running,
        _ => Liveness::Gone,
    };
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    // The last line of a killed run may end within a UTF-8 character.
    Record::parse(&String::from_utf8_lossy(&bytes), pulse)
        .ok_or_else(|| damaged("is damaged (earlier runs: --id)"))
}

impl Record {
    /// Updates the result of each host from later runs that repeated this run.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn bring_up_to_date(&mut self, directory: &Path) -> io::Result<()> {
        let (id, origin) = (self.id.clone(), self.origin().to_owned());
        let is_later =
            |path: &PathBuf| path.file_stem().is_some_and(|stem| stem.as_encoded_bytes() > id.as_bytes());
        // One record is in memory at a time, as it may be large. A damaged record was reported when it was the newest.
        let later =
            files(directory, "jsonl")?.into_iter().filter(is_later).filter_map(|path| load(&path).ok());
        for record in later.filter(|record| record.origin() == origin) {
            let began =
                record.hosts.into_iter().filter(|(_, how)| !matches!(how, RecordedResult::NotStarted(_)));
            let since: HashMap<String, RecordedResult> = began.collect();
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

/// Creates the name of a run that starts at `now`. Names sort by time. The new name sorts after all recorded names,
/// even if the clock was set back: otherwise an older run would count as the newest.
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

const TIME: &str = "%Y%m%dT%H%M%S.%6f";

/// Files in `directory` with the extension `ending`, the oldest first.
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

/// Removes the oldest records beyond a limit of number and size, except those of runs that have not ended.
fn prune(directory: &Path) {
    let mut size = 0;
    for (at, path) in files(directory, "jsonl").into_iter().flatten().rev().enumerate() {
        size += fs::metadata(&path).map_or(0, |about| about.len());
        if at + 1 >= MOST_RUNS || size > MOST_BYTES {
            remove(&path, Duration::ZERO);
        }
    }
    // Temporary files of programs that were killed at their start. A program that starts now may not have locked its
    // file yet.
    files(directory, "part").into_iter().flatten().for_each(|path| remove(&path, STALE));
}

/// Removes a file that no process has locked, and that was not written to for the time `unused`.
fn remove(path: &Path, unused: Duration) {
    // Without O_NONBLOCK the open of a FIFO without a writer would block.
    let Ok(file) = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path) else { return };
    let written = file.metadata().and_then(|about| about.modified());
    let age = written.ok().and_then(|written| written.elapsed().ok()).unwrap_or_default();
    // Before the lock is tried: the process that has just created this file wants to lock it.
    if age < unused {
        return;
    }
    // A shared lock, since a reader of the record takes an exclusive lock for a run that has not ended.
    if !matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)) {
        let _ = fs::remove_file(path);
    }
}

/// Limit of a record's size in bytes: a host needs a few hundred bytes, so a larger file is no record.
const LONGEST: u64 = 1 << 30;
const MOST_RUNS: usize = 100;
const MOST_BYTES: u64 = 64 << 20;
const STALE: Duration = Duration::from_secs(3600);

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
        let record = Record::parse(&text, Liveness::Gone).unwrap();
        let shown: Vec<_> = record.hosts.iter().map(|(_, standing)| standing.clone()).collect();
        assert!(matches!(shown[0], RecordedResult::Ok));
        assert!(matches!(shown[1], RecordedResult::MayHaveRun(_)));
        assert_eq!(shown[2], RecordedResult::Failed("exit 3".to_owned()));
        assert!(matches!(shown[3], RecordedResult::NotStarted(_)));
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
        assert_eq!(*standing("a"), RecordedResult::Ok);
        assert!(matches!(standing("b"), RecordedResult::MayHaveRun(_)));
        assert!(
            matches!(standing("c"), RecordedResult::NotStarted(_))
                && matches!(standing("d"), RecordedResult::NotStarted(_))
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
        assert_eq!(find(directory.path(), Some("0000")).unwrap().pulse, Liveness::Running);
        assert!(find(directory.path(), Some("0001")).is_err());
        assert_eq!((left.exists(), fresh.exists()), (false, true));
        drop(live);
        // The writer's thread closes the file, which releases the lock.
        while find(directory.path(), Some("0000")).unwrap().pulse == Liveness::Running {
            std::thread::yield_now();
        }
        begin("9999");
        assert!(find(directory.path(), Some("0000")).is_err());
    }
}
