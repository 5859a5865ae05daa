//! The socket on which PAM modules ask whether what a user typed is good: one line of JSON each way.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use access::otp::challenge::{Challenge, Response};
use access::otp::ledger::Ledger;
use access::otp::sync::Verdict;
use access::otp::token::Refusal;
use access::otp::yubico::Otp;
use config::types::{self, LogIn};
use nix::unistd::{User, geteuid};
use serde::Deserialize;
use state::State;
use state::listen::SocketPath;
use state::lock::lock;
use sys::peer::Credentials;
use sys::socket::ListenUnixError;
use text::terminal::plain;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::challenge::{Fault, Keys, Responded};
use super::judge::{Keys as Names, KeysOf, judge};
use super::passwords::{Password, Passwords};
use super::peers::{News, Peers};
use super::refusals::{Asker, Refusals, Why};
use super::tokens::{SUBJECT, Tokens};
use crate::acceptor::{Acceptor, Arrival, Bound};

/// Subject of events about the socket, and of what is degraded.
pub(super) const SOCKET: &str = "otp.socket";

/// Everyone may ask: the kernel says who it is.
const MODE: u32 = 0o666;

/// Time for one question.
const LIMIT: Duration = Duration::from_secs(5);

/// Time for other servers to answer: the module waits two seconds for all.
const PEERS_LIMIT: Duration = Duration::from_millis(1500);

/// Longest question.
const LONGEST: u64 = 8192;

/// Connections at once, of all and of one user that is not root.
const CONNECTIONS: usize = 128;
const OF_ONE_USER: usize = 8;

/// Share of [`CONNECTIONS`] that all users but root may have together. One person may have many user ids (user namespaces), and
/// must leave connections for sshd and sudo.
const OF_ORDINARY_USERS: usize = 64;

/// A socket with its task. Dropping it ends the task and removes the socket's file.
#[derive(Debug)]
pub(super) struct AuthSocket {
    task: JoinHandle<()>,
    _file: SocketPath,
}

impl Drop for AuthSocket {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl AuthSocket {
    /// Begins to answer at a path. Call it in the runtime.
    pub(super) fn start(path: &Path, judges: Judges) -> Result<Self, String> {
        let bound = Bound::unix_and_file(path, MODE);
        let (socket, file) = bound.map_err(|error: ListenUnixError| error.to_string())?;
        let acceptor = socket.register(SOCKET, judges.state.clone()).map_err(|error| error.to_string())?;
        let door = Arc::new(Door { judges, open: Mutex::default() });
        Ok(Self { task: tokio::spawn(accept(acceptor, door)), _file: file })
    }
}

/// What decides about questions.
pub(super) struct Judges {
    pub(super) tokens: Arc<Tokens>,
    pub(super) keys: Keys,
    pub(super) peers: Arc<Peers>,
    pub(super) refusals: Refusals,
    pub(super) passwords: Arc<Passwords>,
    pub(super) settings: types::Otp,
    pub(super) state: Arc<State>,
}

struct Door {
    judges: Judges,
    open: Mutex<Open>,
}

/// Open connections of each user.
#[derive(Debug, Default)]
struct Open(HashMap<u32, usize>);

impl Open {
    /// Counts one more connection of a user, if there may be one.
    fn take(&mut self, user: u32, trust: Trust) -> Option<()> {
        let (most, most_of_all) = match trust {
            Trust::All => (CONNECTIONS, CONNECTIONS),
            Trust::Own => (OF_ONE_USER, OF_ORDINARY_USERS),
        };
        let all: usize = self.0.values().sum();
        let own = self.0.get(&user).copied().unwrap_or(0);
        (own < most && all < most_of_all).then(|| *self.0.entry(user).or_default() += 1)
    }

    fn give_back(&mut self, user: u32) {
        if let Some(count) = self.0.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&user);
            }
        }
    }
}

/// The users whose log-ins the peer of a connection may ask to judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    All,
    /// The user of the peer only.
    Own,
}

/// A place among the connections of a user.
struct Slot {
    door: Arc<Door>,
    user: u32,
}

impl Drop for Slot {
    fn drop(&mut self) {
        lock(&self.door.open).give_back(self.user);
    }
}

/// What a module asks.
#[derive(Deserialize)]
struct Question {
    user: String,
    #[serde(default)]
    service: String,
    #[serde(default)]
    from: String,
    /// What the log-in must prove: a word of [`LogIn`].
    auth: Option<String>,
    /// A one-time password; with `either` what may be one.
    otp: Option<String>,
    password: Option<String>,
    /// Public names of which the OTP must have one.
    keys: Option<Vec<String>>,
    /// Who says so.
    #[serde(default)]
    keys_of: KeysOf,
    /// `None`: whether the log-in is good.
    want: Option<Want>,
    /// Serial number of the key at the machine of the user.
    serial: Option<String>,
    /// What a key was asked, and its responses.
    challenge: Option<String>,
    response: Option<String>,
    next: Option<String>,
}

/// What a PAM module asks for, where it does not ask whether a log-in is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Want {
    /// What to ask the key of the user.
    Challenge,
}

/// What it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Good,
    Bad,
    NoToken,
    /// The user has several keys: the serial number must say which one is there.
    WhichKey,
    Unable,
}

impl Said {
    fn of(fault: &Fault) -> Self {
        match fault {
            Fault::Refused(Refusal::NoToken) => Self::NoToken,
            Fault::Refused(_) => Self::Bad,
            Fault::Unable(_) => Self::Unable,
        }
    }

    fn line(self) -> &'static str {
        match self {
            Self::Good => "{\"result\":\"good\"}\n",
            Self::Bad => "{\"result\":\"bad\"}\n",
            Self::NoToken => "{\"result\":\"no-token\"}\n",
            Self::WhichKey => "{\"result\":\"which-key\"}\n",
            Self::Unable => "{\"result\":\"unable\"}\n",
        }
    }
}

async fn accept(acceptor: Acceptor, door: Arc<Door>) {
    loop {
        let Arrival::Unix(stream) = acceptor.next().await else { continue };
        let Ok(peer) = sys::peer::credentials(&stream) else { continue };
        let Some(slot) = slot(&door, peer) else { continue };
        tokio::spawn(async move {
            // Who asks too slowly is closed.
            let _ = timeout(LIMIT, serve(stream, peer, &slot.door)).await;
        });
    }
}

fn slot(door: &Arc<Door>, peer: Credentials) -> Option<Slot> {
    lock(&door.open).take(peer.uid, trust(peer))?;
    Some(Slot { door: door.clone(), user: peer.uid })
}

/// Root, and the user of this process, may ask about every user.
fn trust(peer: Credentials) -> Trust {
    if peer.uid == 0 || peer.uid == geteuid().as_raw() { Trust::All } else { Trust::Own }
}

async fn serve(stream: UnixStream, peer: Credentials, door: &Door) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    // It may have a password.
    let mut line = Zeroizing::new(String::with_capacity(LONGEST as usize));
    BufReader::new(read.take(LONGEST)).read_line(&mut line).await?;
    let said = match serde_json::from_str::<Question>(&line) {
        Ok(question) if line.ends_with('\n') => answer(question, peer, door).await,
        _ => Said::Unable.line().into(),
    };
    write.write_all(said.as_bytes()).await
}

/// The line of an answer.
async fn answer(question: Question, peer: Credentials, door: &Door) -> Cow<'static, str> {
    let Question { user, service, from, auth, otp, password, keys, keys_of, want, .. } = question;
    let (otp, password) = (otp.map(Zeroizing::new), password.map(Zeroizing::new));
    let responses =
        [question.challenge, question.response, question.next].map(|text| text.map(Zeroizing::new));
    let responded = match responses.each_ref().map(Option::as_deref) {
        [None, None, None] => None,
        [Some(challenge), Some(response), Some(next)] => {
            let read = (Challenge::read(challenge), Response::read(response), Response::read(next));
            let (Some(challenge), Some(response), Some(next)) = read else {
                return Said::Unable.line().into();
            };
            Some(Responded { challenge, response, next })
        }
        _ => return Said::Unable.line().into(),
    };
    // What an ordinary user says of a host counts for no guesses at that host: they would keep others out.
    let trust = trust(peer);
    let source = match trust {
        Trust::All if !from.is_empty() => from.clone(),
        Trust::All | Trust::Own => format!("user {user}"),
    };
    let mut place = if from.is_empty() { String::new() } else { format!(" from {}", plain(&from)) };
    if trust == Trust::Own {
        place = format!("{place}, asked by user {}", peer.uid);
    }
    let who = format!("{} ({}{place})", plain(&user), plain(&service));
    let asker = Asker::Module { who, user: user.clone() };
    if trust == Trust::Own {
        let name = user.clone();
        // It may ask a directory service.
        let own = tokio::task::spawn_blocking(move || User::from_name(&name)).await;
        let is_own = matches!(own, Ok(Ok(Some(own))) if own.uid.as_raw() == peer.uid);
        // Who tells the response that is expected next could do without the key from then on.
        let is_of_key = want.is_some() || responded.is_some();
        if !is_own || keys.is_some() || is_of_key {
            let why = match is_of_key {
                true => format!("user {} may not ask a key: only root may (challenge-response)", peer.uid),
                false => {
                    format!("user {} may not ask about another user, nor say which keys one has", peer.uid)
                }
            };
            door.judges.refusals.tell(&asker, &Why::Other(why));
            return Said::Unable.line().into();
        }
    }
    let judges = &door.judges;
    if want == Some(Want::Challenge) {
        let serial = question.serial.map(|serial| serial.parse());
        return match serial.transpose() {
            Ok(serial) => judges.challenge(&user, serial, &asker).await,
            Err(_) => Said::Unable.line().into(),
        };
    }
    let wanted = match auth.as_deref().map(str::parse::<LogIn>) {
        None => LogIn::Otp,
        Some(Ok(wanted)) => wanted,
        Some(Err(_)) => return Said::Unable.line().into(),
    };
    let proof = match (otp, responded) {
        (Some(_), Some(_)) => return Said::Unable.line().into(),
        (Some(otp), None) => Some(Proof::Otp(otp, keys.map(|names| Names { names, of: keys_of }))),
        (None, Some(responded)) => Some(Proof::Key(responded)),
        (None, None) => None,
    };
    let log_in = LogInQuestion { user, proof, password, source };
    let said = match judges.judge(wanted, log_in).await {
        Judged::Good(by) => {
            tracing::info!(subject = SUBJECT, "{asker}: good, by {}", plain(&by));
            Said::Good
        }
        Judged::Refused(said, reasons) => {
            reasons.iter().for_each(|why| judges.refusals.tell(&asker, why));
            said
        }
    };
    said.line().into()
}

/// A question without its form.
struct LogInQuestion {
    user: String,
    proof: Option<Proof>,
    password: Option<Zeroizing<String>>,
    /// Where the user comes from.
    source: String,
}

/// What proves that the user has something.
enum Proof {
    /// A one-time password, and the public names of which it must have one.
    Otp(Zeroizing<String>, Option<Names>),
    /// Responses of a key at this machine.
    Key(Responded),
}

enum Judged {
    /// By what.
    Good(String),
    Refused(Said, Vec<Why>),
}

/// What became of one factor.
enum Factor {
    Proven(String),
    /// It was not asked.
    Absent,
    Failed(Said, Why),
}

impl Factor {
    fn proof(&self) -> Option<&str> {
        match self {
            Self::Proven(by) => Some(by),
            Self::Absent | Self::Failed(..) => None,
        }
    }
}

impl Judges {
    /// The factors are checked for a revoked user too, so that the answer is as late, and the OTP used up.
    async fn judge(&self, wanted: LogIn, question: LogInQuestion) -> Judged {
        let standing = self.standing(&question.user).await;
        let judged = self.judge_factors(wanted, question).await;
        match standing {
            Ok(()) => judged,
            Err((said, why)) => Judged::Refused(said, vec![Why::Other(why)]),
        }
    }

    /// What the key of a user is asked.
    async fn challenge(&self, user: &str, serial: Option<u32>, asker: &Asker) -> Cow<'static, str> {
        let (said, why) = match self.standing(user).await {
            Err((said, why)) => (said, Why::Other(why)),
            Ok(()) => match self.keys.ask(user, serial).await {
                Ok(line) => return line.into(),
                // The module comes back with the serial number.
                Err(Fault::Refused(Refusal::WhichKey)) => return Said::WhichKey.line().into(),
                Err(fault) => (Said::of(&fault), fault.why(user)),
            },
        };
        self.refusals.tell(asker, &why);
        said.line().into()
    }

    /// Whether the file of users leaves the user any right.
    async fn standing(&self, user: &str) -> Result<(), (Said, String)> {
        match self.passwords.revoked(self.settings.users.as_deref(), user).await {
            Ok(None) => Ok(()),
            // Not `NoToken`: `nullok` would leave the user to other modules.
            Ok(Some(date)) => {
                Err((Said::Bad, format!("the user was revoked on {date} (penstock user list)")))
            }
            Err(why) => Err((Said::Unable, why)),
        }
    }

    /// Every factor that came is checked, also after a wrong one: the answer does not tell which one was wrong.
    async fn judge_factors(&self, wanted: LogIn, question: LogInQuestion) -> Judged {
        let LogInQuestion { user, proof, password, source } = question;
        let is_whole = match wanted {
            LogIn::Otp => proof.is_some(),
            LogIn::Password => password.is_some(),
            LogIn::Either => proof.is_some() || password.is_some(),
            LogIn::Both => proof.is_some() && password.is_some(),
        };
        if !is_whole {
            let why = Why::Other("the question lacks what was typed".to_owned());
            return Judged::Refused(Said::Unable, vec![why]);
        }
        let otp = match proof {
            Some(Proof::Otp(otp, keys)) => self.judge_otp(&user, otp, keys).await,
            Some(Proof::Key(responded)) => match self.keys.judge(&user, responded).await {
                Ok(token) => Factor::Proven(format!("token {token}")),
                Err(fault) => Factor::Failed(Said::of(&fault), fault.why(&user)),
            },
            None => Factor::Absent,
        };
        let is_enough = wanted == LogIn::Either && otp.proof().is_some();
        let password = match password.filter(|_| !is_enough) {
            Some(password) => self.judge_password(wanted, &user, password, &source).await,
            None => Factor::Absent,
        };
        let proven = |rule: LogIn| match (rule, otp.proof(), password.proof()) {
            (LogIn::Otp, Some(by), _) | (LogIn::Password, _, Some(by)) => Some(by.to_owned()),
            (LogIn::Either, by, other) => by.or(other).map(str::to_owned),
            (LogIn::Both, Some(by), Some(other)) => Some(format!("{other} and {by}")),
            (LogIn::Otp | LogIn::Password | LogIn::Both, ..) => None,
        };
        let by = proven(wanted);
        match (by, self.settings.log_in) {
            (Some(by), None) => return Judged::Good(by),
            (Some(_), Some(rule)) => {
                if let Some(by) = proven(rule) {
                    return Judged::Good(by);
                }
                let why = format!(
                    "log-in = \"{rule}\" in [otp] asks for more than auth={wanted} of the module: write auth={rule} in the file of pam.d"
                );
                return Judged::Refused(Said::Unable, vec![Why::Other(why)]);
            }
            (None, _) => {}
        }
        let mut said = Vec::new();
        let mut reasons = Vec::new();
        for factor in [password, otp] {
            if let Factor::Failed(one, why) = factor {
                said.push(one);
                reasons.push(why);
            }
        }
        let said = [Said::Unable, Said::Bad, Said::NoToken]
            .into_iter()
            .find(|one| said.contains(one))
            .unwrap_or(Said::Bad);
        Judged::Refused(said, reasons)
    }

    async fn judge_password(
        &self,
        wanted: LogIn,
        user: &str,
        password: Zeroizing<String>,
        source: &str,
    ) -> Factor {
        let file = self.settings.users.clone();
        match self.passwords.check(file, user, password, source).await {
            Password::Right => Factor::Proven("password".to_owned()),
            Password::Wrong(why) => Factor::Failed(Said::Bad, Why::Other(why)),
            Password::None => {
                let why = format!("the user has no password (penstock user add {user})");
                // `nullok` is for users without tokens, not for those without a password.
                let said = if wanted == LogIn::Both { Said::Bad } else { Said::NoToken };
                Factor::Failed(said, Why::Other(why))
            }
            Password::Unable(why) => Factor::Failed(Said::Unable, Why::Other(why)),
        }
    }

    async fn judge_otp(&self, user: &str, otp: Zeroizing<String>, keys: Option<Names>) -> Factor {
        let nonce = format!("pam{:032x}", fastrand::u128(..));
        let (user, name) = (user.to_owned(), Otp::read(&otp).ok().map(|otp| otp.name));
        let decide = move |ledger: &mut Ledger, now: u64| {
            let now = now / 1000;
            let judged = judge(ledger, &user, &otp, keys.as_ref(), &nonce, now);
            match judged {
                Ok((accepted, record)) => (Ok(News::of(accepted, &otp, now)), vec![record]),
                Err(why) => (Err(why), Vec::new()),
            }
        };
        let news = match self.tokens.decide(decide).await {
            Ok(Ok(news)) => {
                self.tokens.works();
                news
            }
            Ok(Err(why)) => {
                let said = if why == Refusal::NoToken { Said::NoToken } else { Said::Bad };
                return Factor::Failed(said, Why::Refused { token: name, why });
            }
            Err(error) => {
                self.tokens.failed(&error);
                return Factor::Failed(Said::Unable, Why::Other(format!("BACKEND_ERROR: {error}")));
            }
        };
        let token = news.state.name.clone();
        match self.agreed(news).await {
            Verdict::Agreed(_) => Factor::Proven(format!("token {token}")),
            verdict => {
                let said = if verdict == Verdict::Replayed { Said::Bad } else { Said::Unable };
                Factor::Failed(said, Why::Others { token, verdict })
            }
        }
    }

    /// What other servers say of an OTP that is good here.
    async fn agreed(&self, news: News) -> Verdict {
        if self.peers.is_empty() {
            return Verdict::Agreed(100);
        }
        let (tell, told) = oneshot::channel();
        let limit = self.settings.sync_timeout.min(PEERS_LIMIT);
        self.peers.ask(news, self.settings.sync_level, limit, move |verdict| {
            let _ = tell.send(verdict);
        });
        told.await.unwrap_or(Verdict::TooFew(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_users_with_many_names_leave_places_for_root() {
        let mut open = Open::default();
        let mut taken = 0;
        for user in 100_000..100_100 {
            while open.take(user, Trust::Own).is_some() {
                taken += 1;
            }
        }
        assert_eq!((taken, open.0[&100_000]), (OF_ORDINARY_USERS, OF_ONE_USER));
        for _ in OF_ORDINARY_USERS..CONNECTIONS {
            assert!(open.take(0, Trust::All).is_some());
        }
        assert!(open.take(0, Trust::All).is_none(), "all have a limit");
        open.give_back(100_000);
        assert!(open.take(100_000, Trust::Own).is_none() && open.take(0, Trust::All).is_some());
        for _ in 1..OF_ONE_USER {
            open.give_back(100_000);
        }
        assert!(!open.0.contains_key(&100_000));
    }
}
