//! Batches of changes under a lock, and the journal that has them.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use access::otp::journal::{self, Chain, Damage, Tail};
use access::otp::ledger::{Ledger, Record};
use nix::unistd::User;
use zeroize::Zeroizing;

use crate::error::StoreError;
use crate::file::{self, Content, Journal, Seen};
use crate::key_file;

/// Time for another process to give the lock back: it holds it for one write.
const LOCK_LIMIT: Duration = Duration::from_secs(5);

/// Least growth of a journal before it is replaced by a short one.
const GROWTH: u64 = 1 << 20;

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its directory.
    pub directory: PathBuf,
    /// The file with its key.
    pub key_file: PathBuf,
}

/// An open store.
#[derive(Debug)]
pub struct Store {
    place: Place,
    lock: File,
    journal: Journal,
    chain: Chain,
    ledger: Ledger,
    /// Length of the journal when it was replaced last.
    short: u64,
    shape: Shape,
    after: After,
}

/// What the last write left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// All of it is on the disk.
    Success,
    /// Some of it may not be, and the system may not say so again: only a new file can be trusted.
    Failure,
}

/// Whether the journal may be appended to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// It may.
    Good,
    /// Its last line is not whole: it must be replaced first.
    Torn,
    /// What is known of it may be wrong, or a write failed: it must be read again from its start.
    Unknown,
    /// It has lost lines that are known: what it has left would count used OTPs as new.
    Shorter,
}

/// Something that reads or changes a store.
pub trait Job: Send {
    /// Decides, and returns what must be durable before [`Self::finish`]. `now` is the time since 1970 in milliseconds.
    fn decide(&mut self, ledger: &mut Ledger, now: u64) -> Vec<Record>;

    /// Tells the result: the records are durable, or nothing may be said to be good. Without a decision there was an error.
    fn finish(self: Box<Self>, durable: Result<(), Arc<StoreError>>);
}

/// A job of two functions: the first one decides, the second one gets what it decided.
pub fn job<T: Send + 'static>(
    decide: impl FnOnce(&mut Ledger, u64) -> (T, Vec<Record>) + Send + 'static,
    finish: impl FnOnce(Result<T, Arc<StoreError>>) + Send + 'static,
) -> Box<dyn Job> {
    Box::new(Closures { decide: Some(decide), decided: None, finish })
}

struct Closures<D, T, F> {
    decide: Option<D>,
    decided: Option<T>,
    finish: F,
}

impl<D, T, F> Job for Closures<D, T, F>
where
    D: FnOnce(&mut Ledger, u64) -> (T, Vec<Record>) + Send,
    T: Send,
    F: FnOnce(Result<T, Arc<StoreError>>) + Send,
{
    fn decide(&mut self, ledger: &mut Ledger, now: u64) -> Vec<Record> {
        let Some(decide) = self.decide.take() else { return Vec::new() };
        let (decided, records) = decide(ledger, now);
        self.decided = Some(decided);
        records
    }

    fn finish(self: Box<Self>, durable: Result<(), Arc<StoreError>>) {
        let Self { decided, finish, .. } = *self;
        match (durable, decided) {
            (Ok(()), Some(decided)) => finish(Ok(decided)),
            (Err(error), _) => finish(Err(error)),
            // It was not asked to decide.
            (Ok(()), None) => {}
        }
    }
}

impl Store {
    /// Makes a store and its key file, unless there is one already; a key file that is there is used. `owner` is the user that
    /// both shall belong to.
    pub fn create(place: Place, owner: Option<&str>) -> Result<Self, StoreError> {
        let directory = &place.directory;
        let path = directory.join("journal");
        if is_there(&path)? {
            return Err(StoreError::Exists { path: directory.clone() });
        }
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(StoreError::io("make", directory))?;
        if let Some(name) = owner {
            give(directory, name)?;
        }
        let owner = private(directory)?;
        let key = match is_there(&place.key_file)? {
            true => key_file::read_key(&place.key_file)?,
            false => key_file::write_key(&place.key_file, owner)?,
        };
        let lock = file::create(&directory.join("lock"), Content::Kept)?;
        hold(&lock, directory)?;
        // Another process may have been quicker.
        if is_there(&path)? {
            return Err(StoreError::Exists { path: directory.clone() });
        }
        // With its first line it gets its name: a journal without one has lost it.
        let (mut chain, mut lines) = (Chain::default(), Vec::new());
        let ledger = Ledger::new(key);
        ledger.records().for_each(|record| chain.write(ledger.key(), &record.text(), &mut lines));
        Journal::replace(&path, &lines)?;
        drop(lock);
        Self::open(place)
    }

    /// Opens a store and reads it. It must be whole, but for a last line that no client was told of.
    pub fn open(place: Place) -> Result<Self, StoreError> {
        let path = place.directory.join("journal");
        if !is_there(&path)? {
            return Err(StoreError::Missing { path: place.directory });
        }
        private(&place.directory)?;
        let key = key_file::read_key(&place.key_file)?;
        let lock = file::create(&place.directory.join("lock"), Content::Kept)?;
        let mut store = Self {
            lock,
            journal: Journal::open(&path)?,
            chain: Chain::default(),
            ledger: Ledger::new(key),
            short: 0,
            shape: Shape::Unknown,
            after: After::Success,
            place,
        };
        store.locked(Self::catch_up)?;
        Ok(store)
    }

    /// What it holds, as this process knows it.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Where it is.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Runs one job on this thread. `decide` gets the time since 1970 in milliseconds.
    pub fn run_one<T: Send + 'static>(
        &mut self,
        decide: impl FnOnce(&mut Ledger, u64) -> (T, Vec<Record>) + Send + 'static,
    ) -> Result<T, Arc<StoreError>> {
        let (tell, told) = mpsc::channel();
        // The receiver lives until after the job has told its result.
        self.run(vec![job(decide, move |result| drop(tell.send(result)))]);
        told.recv().unwrap_or_else(|_| Err(Arc::new(StoreError::NoRandom)))
    }

    /// Lets each job decide, makes all their records durable with one write, and tells each its result.
    pub fn run(&mut self, mut jobs: Vec<Box<dyn Job>>) {
        let durable = self.try_run(&mut jobs).map_err(Arc::new);
        for job in jobs {
            job.finish(durable.clone());
        }
    }

    fn try_run(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<(), StoreError> {
        self.locked(|store| {
            store.catch_up()?;
            let now = now();
            let mut records = Vec::new();
            jobs.iter_mut().for_each(|job| records.extend(job.decide(&mut store.ledger, now)));
            store.commit(&records)
        })
    }

    fn locked<T>(&mut self, act: impl FnOnce(&mut Self) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let directory = &self.place.directory;
        let lock = self.lock.try_clone().map_err(StoreError::io("hold the lock of", directory))?;
        hold(&lock, directory)?;
        let done = act(self);
        // Were it to fail, the lock would go with its file.
        let _ = lock.unlock();
        done
    }

    /// Reads what other processes wrote.
    fn catch_up(&mut self) -> Result<(), StoreError> {
        let seen = match self.shape {
            Shape::Unknown => Seen::Replaced,
            Shape::Good | Shape::Torn => self.journal.look()?,
            Shape::Shorter => match self.journal.look()? {
                Seen::Shorter => Seen::Shorter,
                // Its first part may be another one, too.
                Seen::More(_) | Seen::Replaced => Seen::Replaced,
            },
        };
        let bytes = match seen {
            Seen::More(bytes) => bytes,
            Seen::Shorter => {
                self.shape = Shape::Shorter;
                let why = "the journal is shorter than it was (an older one counts after a restart of the server only)".to_owned();
                return Err(StoreError::Damaged { path: self.journal.path().to_owned(), why });
            }
            Seen::Replaced => {
                self.shape = Shape::Unknown;
                self.journal = Journal::open(&self.place.directory.join("journal"))?;
                self.ledger.clear();
                self.chain = Chain::default();
                let Seen::More(bytes) = self.journal.look()? else { return self.unsteady() };
                self.has_own_key(&bytes)?;
                self.short = bytes.len() as u64;
                bytes
            }
        };
        if bytes.is_empty() && self.shape != Shape::Unknown {
            return Ok(());
        }
        let began = self.journal.length;
        let (ledger, chain) = (&mut self.ledger, &mut self.chain);
        let key = Arc::clone(ledger.key());
        let tail = journal::read(&key, chain, &bytes, |record| ledger.take(Record::read(record)?));
        match tail {
            Ok(tail) => {
                let torn = match tail {
                    Tail::Clean => 0,
                    Tail::Torn(length) => length,
                };
                self.journal.length += (bytes.len() - torn) as u64;
                self.shape = match (tail, self.shape) {
                    (Tail::Clean, Shape::Good | Shape::Unknown) => Shape::Good,
                    _ => Shape::Torn,
                };
                if self.chain == Chain::default() {
                    self.shape = Shape::Unknown;
                    return Err(StoreError::Emptied { path: self.journal.path().to_owned() });
                }
                Ok(())
            }
            Err(damage) => {
                self.shape = Shape::Unknown;
                let why = match began {
                    0 => damage.to_string(),
                    began => format!("after byte {began}, {damage}"),
                };
                Err(StoreError::Damaged { path: self.journal.path().to_owned(), why })
            }
        }
    }

    fn unsteady(&self) -> Result<(), StoreError> {
        let why = "another process replaces it without its lock".to_owned();
        Err(StoreError::Damaged { path: self.journal.path().to_owned(), why })
    }

    /// Tells another key from damage.
    fn has_own_key(&self, bytes: &[u8]) -> Result<(), StoreError> {
        match journal::first_record(bytes).map(Record::read) {
            Some(Ok(Record::Store { key, .. })) if key != self.ledger.key().id() => {
                Err(StoreError::OtherKey {
                    journal: self.journal.path().to_owned(),
                    theirs: key,
                    key_file: self.place.key_file.clone(),
                    ours: self.ledger.key().id().to_owned(),
                })
            }
            _ => Ok(()),
        }
    }

    fn commit(&mut self, records: &[Record]) -> Result<(), StoreError> {
        if records.is_empty() {
            return Ok(());
        }
        let grown = self.journal.length.saturating_sub(self.short);
        if self.shape != Shape::Good || self.after == After::Failure || grown > GROWTH.max(3 * self.short) {
            return self.replace();
        }
        let (mut chain, mut lines) = (self.chain, Vec::new());
        for record in records {
            chain.write(self.ledger.key(), &record.text(), &mut lines);
        }
        // Until it is known to be on the disk.
        (self.shape, self.after) = (Shape::Unknown, After::Failure);
        self.journal.append(&lines)?;
        (self.chain, self.shape, self.after) = (chain, Shape::Good, After::Success);
        Ok(())
    }

    /// Writes a new journal with all that the ledger holds.
    fn replace(&mut self) -> Result<(), StoreError> {
        let (mut chain, mut lines) = (Chain::default(), Vec::new());
        for record in self.ledger.records() {
            chain.write(self.ledger.key(), &record.text(), &mut lines);
        }
        (self.shape, self.after) = (Shape::Unknown, After::Failure);
        self.journal = Journal::replace(&self.place.directory.join("journal"), &lines)?;
        (self.chain, self.shape, self.after) = (chain, Shape::Good, After::Success);
        self.short = lines.len() as u64;
        Ok(())
    }
}

/// Reads a store without its lock and changes nothing: it may be out of date.
pub fn peek(place: &Place) -> Result<Ledger, StoreError> {
    let path = place.directory.join("journal");
    if !is_there(&path)? {
        return Err(StoreError::Missing { path: place.directory.clone() });
    }
    let (ledger, chain, read) = peek_far(place)?;
    match read {
        Ok(_) if chain == Chain::default() => Err(StoreError::Emptied { path }),
        Ok(_) => Ok(ledger),
        Err(damage) => Err(StoreError::Damaged { path, why: damage.to_string() }),
    }
}

/// Keys of the API clients of a store, as far as it can be read: what cannot be answered from it is signed all the same. It
/// needs no lock, and may be out of date.
#[must_use]
pub fn client_keys(place: &Place) -> BTreeMap<u32, Zeroizing<Vec<u8>>> {
    let Ok((ledger, ..)) = peek_far(place) else { return BTreeMap::new() };
    ledger.clients().filter_map(|client| Some((client.id, ledger.client_key(client)?))).collect()
}

/// Reads a store up to the first line that is damaged: the lines before it are good.
fn peek_far(place: &Place) -> Result<(Ledger, Chain, Result<Tail, Damage>), StoreError> {
    let mut ledger = Ledger::new(key_file::read_key(&place.key_file)?);
    let bytes = match Journal::open_to_read(&place.directory.join("journal"))?.look()? {
        Seen::More(bytes) => bytes,
        Seen::Replaced | Seen::Shorter => Vec::new(),
    };
    let key = Arc::clone(ledger.key());
    let take = |record: &str| ledger.take(Record::read(record)?);
    let mut chain = Chain::default();
    let read = journal::read(&key, &mut chain, &bytes, take);
    Ok((ledger, chain, read))
}

/// Whether only the owner of a directory may write to it. Root gets the owner, to whom files belong that it makes there.
fn private(directory: &Path) -> Result<Option<(u32, u32)>, StoreError> {
    let facts = fs::metadata(directory).map_err(StoreError::io("look at", directory))?;
    let mode = facts.mode() & 0o777;
    if mode & 0o022 != 0 {
        return Err(StoreError::DirectoryOpen { path: directory.to_owned(), mode });
    }
    let root = nix::unistd::geteuid().is_root();
    Ok(root.then_some((facts.uid(), facts.gid())))
}

/// Gives a directory to a user.
fn give(directory: &Path, name: &str) -> Result<(), StoreError> {
    let io = || StoreError::io("give away", directory);
    let user = match User::from_name(name) {
        Ok(Some(user)) => user,
        Ok(None) => return Err(StoreError::NoUser { name: name.to_owned() }),
        Err(error) => return Err(io()(error.into())),
    };
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_DIRECTORY;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(directory).map_err(io())?;
    std::os::unix::fs::fchown(&opened, Some(user.uid.as_raw()), Some(user.gid.as_raw())).map_err(io())
}

/// Whether there is a file. That it may not be looked at is not the same as that there is none.
fn is_there(path: &Path) -> Result<bool, StoreError> {
    path.try_exists().map_err(StoreError::io("look at", path))
}

/// Milliseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn hold(lock: &File, directory: &Path) -> Result<(), StoreError> {
    let began = Instant::now();
    let mut wait = Duration::from_micros(20);
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(source)) => {
                return Err(StoreError::io("lock", directory)(source));
            }
            Err(TryLockError::WouldBlock) if began.elapsed() > LOCK_LIMIT => {
                return Err(StoreError::Locked { path: directory.to_owned(), seconds: LOCK_LIMIT.as_secs() });
            }
            Err(TryLockError::WouldBlock) => {
                thread::sleep(wait);
                wait = (wait * 2).min(Duration::from_millis(1));
            }
        }
    }
}
