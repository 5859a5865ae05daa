//! The old process of an upgrade: has the new one started, gives it what it needs, and waits until it serves. Until then nothing
//! is given away. All of it blocks, so it runs on a thread for that.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use state::State;
use state::events::Level;
use state::kept::traffic::Traffic;
use state::kept::{self, Kind};
use state::listen::BoundKey;
use sys::message_socket::MessageSocket;

use super::guardian::{Guardian, Started};
use super::protocol::{self, FromNew, FromOld, Key, Link, LinkError, MAGIC, NEWEST, OLDEST, Offer};

/// Time for the whole hand-over.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// How often a wait looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(100);

/// Why an upgrade ends before its end.
const STOPS: &str = "this process is told to stop";

/// Sockets and files for the new process.
pub(crate) type Offers = Vec<(Offer, Vec<OwnedFd>)>;

/// One upgrade.
pub(crate) struct Attempt {
    state: Arc<State>,
    guardian: Arc<Guardian>,
    began: Instant,
    /// Set when the process is told to stop.
    cancelled: Arc<AtomicBool>,
    /// What has happened so far, for the operator.
    steps: Vec<String>,
}

/// A new process that is ready to serve, and waits.
pub(crate) struct Ready {
    attempt: Attempt,
    link: Link,
    started: Started,
    version: String,
    terms: Terms,
}

/// What the new process has said of itself.
struct Terms {
    /// Addresses that it listens on.
    taken: HashSet<Key>,
    /// Version of the hand-over of sessions; `None`: it takes none.
    sessions: Option<u32>,
}

/// A new process that serves.
pub(crate) struct Serving {
    pub(crate) newer: Newer,
    pub(crate) pid: u32,
    pub(crate) version: String,
    pub(crate) steps: Vec<String>,
    terms: Terms,
}

/// The connection to the new process while the old one has sessions.
pub(crate) struct Newer(Arc<Link>);

/// Why an upgrade did not happen.
pub(crate) struct Failed {
    pub(crate) why: String,
    pub(crate) steps: Vec<String>,
}

impl Attempt {
    pub(crate) fn new(state: Arc<State>, guardian: Arc<Guardian>, cancelled: Arc<AtomicBool>) -> Self {
        Self { state, guardian, began: Instant::now(), cancelled, steps: Vec::new() }
    }

    /// Has the program started and gives it the offers, until it is ready.
    pub(crate) fn start(mut self, program: Option<&str>, offers: Offers) -> Result<Ready, Failed> {
        let (ours, theirs) = match MessageSocket::pair() {
            Ok(pair) => pair,
            Err(error) => return Err(self.fail(format!("no socket for the new process: {error}"))),
        };
        let started = match self.guardian.start_program(program, theirs) {
            Ok(started) => started,
            Err(why) => return Err(self.fail(why)),
        };
        self.note(format!("started {} (pid {})", started.program, started.pid));
        let link = Link::new(ours);
        match self.converse(&link, &started, offers) {
            Ok((version, terms)) => Ok(Ready { attempt: self, link, started, version, terms }),
            Err(why) => Err(self.give_up(&link, why)),
        }
    }

    fn converse(
        &mut self,
        link: &Link,
        started: &Started,
        offers: Offers,
    ) -> Result<(String, Terms), String> {
        let (version, sessions) = match self.hear(link, "say hello") {
            Ok(FromNew::Hello { magic, .. }) if magic != MAGIC => return Err(STRANGER.to_owned()),
            Ok(FromNew::Hello { oldest, newest, version, pid, sessions, .. }) => {
                if oldest > NEWEST || newest < OLDEST {
                    return Err(format!(
                        "version {version} speaks protocol {oldest} to {newest} of the upgrade, and this one, version {}, speaks {OLDEST} to {NEWEST}: restart the server instead",
                        env!("CARGO_PKG_VERSION")
                    ));
                }
                if pid != started.pid {
                    tracing::debug!(
                        pid,
                        started = started.pid,
                        "the new process has another number than its parent saw"
                    );
                }
                (version, sessions)
            }
            Ok(FromNew::Failed { why }) => return Err(why),
            Ok(other) => return Err(unexpected(&other)),
            Err(why) => return Err(format!("{why}\n  hint: {STRANGER}")),
        };
        self.note(format!("version {version} has read its configuration"));
        let own = env!("CARGO_PKG_VERSION").to_owned();
        let sockets: usize = offers.iter().map(|(_, descriptors)| descriptors.len()).sum();
        let give = || {
            link.say(&FromOld::Welcome { protocol: NEWEST, version: own, pid: std::process::id() })?;
            for (offer, descriptors) in offers {
                let all: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                link.give(&FromOld::Offer(offer), &all)?;
            }
            link.say(&FromOld::Offered)
        };
        give().map_err(|error| last_word(link, "take the sockets", &error))?;
        self.note(format!("gave it {sockets} sockets and files"));
        let taken = match self.hear(link, "become ready") {
            Ok(FromNew::Ready { taken }) => taken.into_iter().collect(),
            Ok(FromNew::Failed { why }) => return Err(why),
            Ok(other) => return Err(unexpected(&other)),
            Err(why) => return Err(why),
        };
        self.note("it is ready to serve".to_owned());
        Ok((version, Terms { taken, sessions }))
    }

    /// Waits for a message, until the limit of the whole or the end of the process.
    fn hear<T: DeserializeOwned>(&self, link: &Link, what: &str) -> Result<T, String> {
        loop {
            if self.cancelled.load(Relaxed) {
                return Err(STOPS.to_owned());
            }
            let left = LIMIT.saturating_sub(self.began.elapsed());
            if left.is_zero() {
                return Err(format!("it did not {what} within {} s of its start", LIMIT.as_secs()));
            }
            match link.hear(left.min(LOOK)) {
                Ok((heard, _)) => return Ok(heard),
                Err(LinkError::Silent(_)) => {}
                Err(error) => return Err(format!("it did not {what}: {error}")),
            }
        }
    }

    fn note(&mut self, step: String) {
        self.state.events.record(Level::Info, "upgrade", step.as_str());
        self.steps.push(format!("{:6.3} s  {step}", self.began.elapsed().as_secs_f64()));
    }

    /// Ends the new process.
    fn give_up(self, link: &Link, why: String) -> Failed {
        // It may have ended already.
        let _ = link.say(&FromOld::Refused { why: protocol::shortened(&why) });
        let how = self.guardian.end_program().unwrap_or_else(|why| why);
        let (first, rest) = why.split_once('\n').map_or((&*why, ""), |(first, rest)| (first, rest));
        let rest = if rest.is_empty() { String::new() } else { format!("\n{rest}") };
        self.fail(format!("{first} ({how}){rest}"))
    }

    fn fail(self, why: String) -> Failed {
        let message = format!("refused, this process serves on: {why}");
        self.state.events.record(Level::Warning, "upgrade", message);
        Failed { why, steps: self.steps }
    }
}

impl Ready {
    /// Ends the new process, which has shown that it could serve. Returns its version and what has happened.
    pub(crate) fn end(self) -> (String, Vec<String>) {
        let Self { attempt, link, version, .. } = self;
        let _ = link.say(&FromOld::Refused { why: "it was a check".to_owned() });
        // A guardian that is gone has taken nothing with it: the new process ends by itself.
        let _ = attempt.guardian.end_program();
        (version, attempt.steps)
    }

    /// Gives the new process the state, and lets it serve.
    pub(crate) fn go(self, state: Vec<(&'static str, File)>) -> Result<Serving, Failed> {
        let Self { mut attempt, link, started, version, terms } = self;
        let mut converse = || {
            let kinds = state.iter().map(|(kind, _)| (*kind).to_owned()).collect();
            let files: Vec<_> = state.iter().map(|(_, file)| file.as_fd()).collect();
            let gave = link.give(&FromOld::State { kinds }, &files);
            gave.map_err(|error| last_word(&link, "take the state over", &error))?;
            attempt.expect(&link, "take the state over", |heard| matches!(heard, FromNew::Prepared))?;
            attempt.note("it has the counters, health and marks".to_owned());
            link.say(&FromOld::Go).map_err(|error| last_word(&link, "serve", &error))?;
            attempt.expect(&link, "serve", |heard| matches!(heard, FromNew::Serving))?;
            // It may have come with the last answer.
            if attempt.cancelled.load(Relaxed) {
                return Err(STOPS.to_owned());
            }
            attempt.note("it serves".to_owned());
            Ok(())
        };
        match converse() {
            Ok(()) => {
                let (newer, steps) = (Newer(Arc::new(link)), attempt.steps);
                Ok(Serving { newer, pid: started.pid, version, steps, terms })
            }
            Err(why) => Err(attempt.give_up(&link, why)),
        }
    }
}

impl Attempt {
    fn expect(&self, link: &Link, what: &str, is_it: fn(&FromNew) -> bool) -> Result<(), String> {
        match self.hear(link, what)? {
            FromNew::Failed { why } => Err(why),
            heard if is_it(&heard) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

impl Serving {
    /// Whether the new process listens on an address of this one.
    pub(crate) fn has_taken(&self, key: &BoundKey) -> bool {
        self.terms.taken.contains(&Key::from(state::listen::HandedKey::of(key)))
    }

    /// Version of the hand-over of sessions that it knows; `None`: it goes on with none of this one.
    pub(crate) fn takes(&self) -> Option<u32> {
        self.terms.sessions
    }
}

impl Newer {
    /// Tells the new process that it may use what only one may have.
    pub(crate) fn release(&self) {
        // It goes on without this after a moment.
        let _ = self.0.say(&FromOld::Released);
    }

    /// The connection, for sessions.
    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.0
    }

    /// Tells the new process how many sessions are left here, and what they have counted since the last time.
    pub(crate) fn tell_left(&self, sessions: usize, counted: Option<&Traffic>) {
        let sealed = counted.and_then(|counted| kept::seal(Kind::Traffic, counted).ok());
        let file = sealed.and_then(|bytes| sys::file::in_memory(c"penstock-counted", &bytes).ok());
        let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        // It may have ended: then this one is the last, and its sessions go on all the same.
        let _ = self.0.give(&FromOld::Left { sessions }, &files);
    }
}

const STRANGER: &str =
    "it is no Penstock, or one of a version without upgrades; its lines on standard error may say more";

/// Why nothing can be said to the new process: it may have given the reason before it ended.
fn last_word(link: &Link, what: &str, error: &LinkError) -> String {
    match link.hear::<FromNew>(Duration::ZERO) {
        Ok((FromNew::Failed { why }, _)) => why,
        _ => format!("it did not {what}: {error}"),
    }
}

fn unexpected(heard: &FromNew) -> String {
    let words = serde_json::to_string(heard).unwrap_or_default();
    let words: String = words.chars().take(200).collect();
    format!("it said {words}, which does not belong here")
}
