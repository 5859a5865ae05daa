//! Who may log in: the file of users and tokens, read again when it has changed, and how long those who guess must wait. Doors
//! of one process share it. No file is touched on the thread of a door: a slow disk delays the one who logs in, and no other.
//!
//! `crates/access/src/users.rs` has the form of the file, `crates/access/src/backoff.rs` decides who waits.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use access::backoff::{Backoff, HeldOff, OF_SOURCE, Wait};
use access::policy::{Granted, Policy, Subject};
use access::sasl::Credential;
use access::users::{Exposed, LARGEST, User, Users};
use logic::client_slots::Party;
use state::State;
use state::events::{Level, RateLimitedEvent, timestamp};
use state::lock::lock;
use tokio::task::spawn_blocking;

/// Time after a change within which a file can change again without a change of its times.
const TICK: Duration = Duration::from_millis(50);

/// Begin of the subjects of the list of degraded subjects: the path of a file follows.
pub(crate) const SUBJECT: &str = "users ";

pub struct Logins {
    state: Arc<State>,
    /// Key of the credentials of users that do not exist, if the file has none.
    secret: [u8; 32],
    backoff: Mutex<Backoff<Party>>,
    /// Limits events about a file of users that cannot be used: each client causes one.
    pub(crate) unusable: RateLimitedEvent,
    /// Limits events about clients whose certificate is refused.
    pub(crate) untrusted: RateLimitedEvent,
    files: Arc<Mutex<HashMap<PathBuf, Read>>>,
}

/// Whose rights are asked for, and by what they are decided.
pub(crate) struct Rules<'a> {
    /// File of users.
    pub(crate) users: Option<&'a Path>,
    pub(crate) policy: &'a Policy,
}

/// What is known of an operator now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) granted: Granted,
    /// Name of the user in the file, whichever mechanism has proved it.
    pub(crate) user: Option<String>,
    pub(crate) groups: Vec<String>,
}

impl Standing {
    fn refused(reason: String) -> Self {
        Self { granted: Granted { role: None, reason }, user: None, groups: Vec::new() }
    }

    /// Whether one of these rules is for the operator.
    pub(crate) fn is_among(&self, subject: &Subject, rules: &[Subject]) -> bool {
        rules.iter().any(|rule| match rule {
            Subject::Group(group) => self.groups.contains(group),
            Subject::User(name) => self.user.as_ref() == Some(name),
            one => one == subject,
        })
    }
}

/// A file as it was read.
#[derive(Debug)]
struct Read {
    /// `None`: it may have changed since without a trace.
    stamp: Option<Stamp>,
    users: Result<Arc<Users>, String>,
}

/// Changes with the content and the owner of a file: device, inode, size, mode, mtime and ctime.
type Stamp = (u64, u64, u64, u32, (i64, i64), (i64, i64));

impl Logins {
    pub fn new(state: Arc<State>) -> io::Result<Self> {
        let secret = access::random().ok_or_else(|| io::Error::other("the system gives no random bytes"))?;
        let (unusable, untrusted) = (RateLimitedEvent::default(), RateLimitedEvent::default());
        Ok(Self { state, secret, backoff: Mutex::default(), unusable, untrusted, files: Arc::default() })
    }

    /// Returns the users, or why there are none: then no operator logs in with a password or a token.
    pub(crate) async fn users(&self, path: Option<&Path>) -> Result<Arc<Users>, String> {
        let Some(path) = path else { return Ok(Arc::default()) };
        let (files, file) = (self.files.clone(), path.to_owned());
        let read = spawn_blocking(move || current(&files, &file)).await;
        let users = read.unwrap_or_else(|error| Err(error.to_string()));
        match &users {
            Ok(_) => self.state.restore(&subject(path)),
            Err(why) => self.state.degrade(&subject(path), &format!("no log-in can be judged: {why}")),
        }
        users.map_err(|why| format!("the file of users cannot be used: {why}"))
    }

    /// Decides what an operator may do now.
    pub(crate) async fn standing(&self, rules: Rules<'_>, subject: &Subject) -> Standing {
        match self.users(rules.users).await {
            Ok(users) => standing(&users, rules.policy, subject, unix_time()),
            Err(reason) => Standing::refused(reason),
        }
    }

    /// Returns the credential of a user, or as the error one that looks like it.
    pub(crate) fn credential(&self, users: &Users, name: &str) -> Result<Credential, Credential> {
        let known = users.find(name).and_then(|user: &User| user.scram.clone());
        let secret = users.key().unwrap_or(&self.secret);
        // Both are computed, so that the time tells nothing.
        let fake = Credential::fake(secret, name, users.credentials());
        known.ok_or(fake)
    }

    /// Whether a source must wait before it may try again.
    pub(crate) fn is_held_off(&self, source: IpAddr) -> bool {
        lock(&self.backoff).source(&Party::source(source), Instant::now()).is_some()
    }

    pub(crate) fn wait(&self, source: IpAddr, subject: &Subject) -> Option<Wait> {
        let (source, now) = (Party::source(source), Instant::now());
        let backoff = lock(&self.backoff);
        backoff.source(&source, now).or_else(|| backoff.subject(&source, subject, now))
    }

    /// Counts a wrong log-in. That its address is refused from now on is an event, once for each wait.
    pub(crate) fn wrong(&self, source: IpAddr, subject: Option<&Subject>) {
        let held_off = lock(&self.backoff).wrong(&Party::source(source), subject, Instant::now());
        let Some(HeldOff { wait, wrong }) = held_off else { return };
        let (of, seconds) = (network(source), wait.as_secs());
        let (until, most) = (timestamp(SystemTime::now() + wait), OF_SOURCE.most.as_secs());
        let message = format!(
            "{of}: refused until {until} ({seconds} s), after {wrong} wrong log-ins; each further one doubles the time, up to {most} s"
        );
        self.state.events.record(Level::Warning, "access", message);
    }

    pub(crate) fn right(&self, source: IpAddr, subject: &Subject) {
        lock(&self.backoff).right(&Party::source(source), subject, Instant::now());
    }
}

/// An address, or the network of an IPv6 address: its wrong log-ins are counted together.
fn network(source: IpAddr) -> String {
    match Party::source(source) {
        Party::Source(IpAddr::V6(network)) => format!("{network}/64"),
        _ => source.to_canonical().to_string(),
    }
}

/// Subject of a file of users that cannot be used.
pub(crate) fn subject(path: &Path) -> String {
    format!("{SUBJECT}{}", path.display())
}

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn standing(users: &Users, policy: &Policy, subject: &Subject, now: u64) -> Standing {
    let user = match subject {
        // A rule of the configuration may still name this user.
        Subject::User(name) => match not_good(users, name) {
            Some(why) => return Standing::refused(why),
            None => users.find(name),
        },
        Subject::Token(name) => {
            return match users.token_named(name) {
                Some(token) if token.has_ended(now) => {
                    Standing::refused(format!("the token {name} has ended"))
                }
                Some(token) => {
                    let owner = token.owner.as_deref();
                    if let Some(why) = owner.and_then(|owner| not_good(users, owner)) {
                        return Standing::refused(format!("{why}, whose token {name} is"));
                    }
                    let granted = policy.role(subject, &[], Some(token.role));
                    Standing { granted, user: None, groups: Vec::new() }
                }
                None => Standing::refused(format!("there is no token {name} any more")),
            };
        }
        Subject::Principal(name) => users.of_principal(name),
        Subject::Certificate(name) => users.of_certificate(name),
        Subject::Group(_) => None,
    };
    let groups = user.map_or(&[][..], |user| &user.groups);
    let granted = policy.role(subject, groups, user.and_then(|user| user.role));
    Standing { granted, user: user.map(|user| user.name.clone()), groups: groups.to_vec() }
}

/// Returns why a user has no rights: revoked, or removed from the file. `None` if the user is in the file and not revoked.
fn not_good(users: &Users, name: &str) -> Option<String> {
    match users.find(name) {
        Some(user) if user.revoked.is_some() => Some(format!("the user {name} is revoked")),
        Some(_) => None,
        None => Some(format!("there is no user {name} any more")),
    }
}

/// The users of a file as it is now. Blocks; while one caller reads the file, others wait for what it has read.
fn current(files: &Mutex<HashMap<PathBuf, Read>>, path: &Path) -> Result<Arc<Users>, String> {
    let mut files = lock(files);
    let stamp = stamp(path, SystemTime::now());
    if let Some(read) = files.get(path)
        && read.stamp == stamp
        && stamp.is_some()
    {
        return read.users.clone();
    }
    let users = read_users(path);
    files.insert(path.to_owned(), Read { stamp, users: users.clone() });
    users
}

/// `None`: it cannot be examined, or was changed just now.
fn stamp(path: &Path, now: SystemTime) -> Option<Stamp> {
    let file = std::fs::metadata(path).ok()?;
    let recent = now.checked_sub(TICK)?.duration_since(UNIX_EPOCH).ok()?;
    let changed = (file.ctime(), file.ctime_nsec());
    let is_old = changed < (i64::try_from(recent.as_secs()).ok()?, i64::from(recent.subsec_nanos()));
    let modified = (file.mtime(), file.mtime_nsec());
    is_old.then(|| (file.dev(), file.ino(), file.len(), file.mode(), modified, changed))
}

fn read_users(path: &Path) -> Result<Arc<Users>, String> {
    let shown = path.display();
    let failed = |error: io::Error| {
        let way = match error.kind() {
            io::ErrorKind::NotFound => {
                format!("; penstock user --file {} add NAME makes it", text::shell::path(path))
            }
            io::ErrorKind::PermissionDenied => {
                "; the user that the server runs as must be able to read it (chown)".to_owned()
            }
            _ => String::new(),
        };
        format!("{shown}: {error}{way}")
    };
    let (of, bytes) = sys::file::read_owned(path, LARGEST).map_err(failed)?;
    let own = nix::unistd::geteuid().as_raw();
    if let Some(exposed) = Exposed::of(of.uid(), of.mode(), own) {
        let (why, remedy) = (exposed.why(None), exposed.remedy(&text::shell::path(path), own));
        return Err(format!("{shown} {why}; {remedy}"));
    }
    if bytes.len() as u64 > LARGEST {
        return Err(format!("{shown} is larger than {} MiB", LARGEST >> 20));
    }
    let text = String::from_utf8(bytes).map_err(|_| format!("{shown} is not UTF-8 text"))?;
    Users::parse(&text).map(Arc::new).map_err(|error| format!("{shown}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::future::Future;
    use std::os::unix::fs::PermissionsExt;
    use std::task::{Context, Waker};

    use access::policy::Role;

    use super::*;

    #[tokio::test]
    async fn a_file_that_takes_long_delays_no_other_task_of_the_thread() {
        let logins = Logins::new(Arc::new(State::new(1))).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users");
        let reading = logins.users(Some(&path));
        let mut reading = std::pin::pin!(reading);
        {
            // Another caller reads for as long as this is held.
            let _reader = lock(&logins.files);
            let polled = reading.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending(), "it would have blocked here");
        }
        assert!(reading.await.unwrap_err().contains("No such file"));
    }

    #[tokio::test]
    async fn a_changed_file_counts_at_once_and_an_unchanged_one_is_read_once() {
        let logins = Logins::new(Arc::new(State::new(1))).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users");
        let write = |text: &str| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        };
        for text in ["ann role=view\n", "bob role=view\n", "eve role=view\n"] {
            write(text);
            let users = logins.users(Some(&path)).await.unwrap();
            assert_eq!(users.to_string(), text, "no time passes between two changes");
        }
        let old = SystemTime::now() + 2 * TICK;
        assert!(stamp(&path, old).is_some() && stamp(&path, SystemTime::UNIX_EPOCH).is_none());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(logins.users(Some(&path)).await.unwrap_err().contains("chmod 600"));
        if nix::unistd::geteuid().is_root() {
            // Its owner could write any role into it.
            write("ann role=view\n");
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
            let why = logins.users(Some(&path)).await.unwrap_err();
            assert!(
                why.contains("belongs to user 12345 (mode 0600), who could have written any key"),
                "{why}"
            );
            std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        }
        write("ann role=view\n");
        let same = async || {
            let (one, other) =
                (logins.users(Some(&path)).await.unwrap(), logins.users(Some(&path)).await.unwrap());
            Arc::ptr_eq(&one, &other)
        };
        let until = Instant::now() + Duration::from_secs(20);
        while !same().await {
            assert!(Instant::now() < until, "it is read again and again");
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn an_unknown_user_has_the_same_credential_each_time() {
        let scram = Credential::derive("x", b"0123456789abcdef", 4096.try_into().unwrap()).unwrap();
        let text: String = (0..50).map(|at| format!("user{at} scram={scram}\n")).collect();
        let users = Users::parse(&text).unwrap();
        let logins = Logins::new(Arc::new(State::new(1))).unwrap();
        assert_eq!(logins.credential(&users, "ghost"), logins.credential(&users, "ghost"));
        assert!(logins.credential(&users, "ghost").is_err() && logins.credential(&users, "user7").is_ok());
    }

    #[test]
    fn a_revoked_user_may_do_nothing_even_if_a_rule_names_it() {
        let users = Users::parse("ann revoked=2026-11-28\nbob\n").unwrap();
        let of = |name: &str| Subject::User(name.to_owned());
        let policy = Policy::new([(of("ann"), Role::Admin), (of("bob"), Role::Admin)]);
        let ask = |name: &str| standing(&users, &policy, &of(name), 0);
        assert_eq!(ask("bob").granted.role, Some(Role::Admin));
        let ann = ask("ann");
        assert_eq!((ann.granted.role, ann.user), (None, None));
        assert_eq!(ann.granted.reason, "the user ann is revoked");
    }

    #[test]
    fn a_token_that_has_ended_or_was_removed_gives_no_role() {
        let hash = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        let users = Users::parse(&format!("@token ci role=operate expires=1000 sha256={hash}\n")).unwrap();
        let ask = |name: &str, now| {
            standing(&users, &Policy::default(), &Subject::Token(name.to_owned()), now).granted
        };
        assert_eq!(ask("ci", 999).role, Some(Role::Operate));
        assert_eq!(ask("ci", 1000).reason, "the token ci has ended");
        assert_eq!(ask("other", 999).reason, "there is no token other any more");
    }

    #[test]
    fn a_token_is_good_only_as_long_as_its_owner_is() {
        let hash = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        let ask = |owner: &str| {
            let token = format!("@token ci owner=ann role=operate expires=never sha256={hash}");
            let users = Users::parse(&format!("{token}\n{owner}\n")).unwrap();
            standing(&users, &Policy::default(), &Subject::Token("ci".to_owned()), 0).granted
        };
        assert_eq!(ask("ann role=view").role, Some(Role::Operate));
        let revoked = ask("ann revoked=2026-11-28");
        assert_eq!((revoked.role, &*revoked.reason), (None, "the user ann is revoked, whose token ci is"));
        assert_eq!(ask("bob").reason, "there is no user ann any more, whose token ci is");
    }
}
