//! The store of one-time-password tokens in a running server: opened when the configuration names it, and asked by listeners.
//!
//! Other validation servers are asked by `crates/serve/src/otp/peers.rs`, PAM modules by `crates/serve/src/otp/socket.rs`.
//! `crates/access/src/otp/validation.rs` has the protocol, `crates/access/src/otp/ledger.rs` the decisions, and
//! `crates/credentials/src/group_commit.rs` the thread that makes them durable before a client is answered.

mod peers;
mod socket;

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use access::otp::ledger::{Client, Ledger, Record};
use access::otp::sync::{self, Verdict};
use access::otp::token::{Last, Moved};
use access::otp::validation::{self, Answer, Asked, Counters, Echo, Level as Wanted, Status, Unsigned};
use access::otp::yubico::Otp;
use config::Config;
use config::types;
use credentials::{GroupCommit, Job, Place, Store, StoreError, job};
use logic::peers::Peer;
use state::State;
use state::events::{Level, RateLimitedEvent};
use state::lock::lock;
use state::validation::{Question, Reply, Validation, Validator};
use zeroize::Zeroizing;

use peers::{News, Peers};
use socket::AuthSocket;

/// Subject of events, and of what is degraded.
const SUBJECT: &str = "otp";

/// Opens and closes the store as the configuration says.
pub struct Doors {
    state: Arc<State>,
    served: Mutex<Option<Served>>,
}

/// What is open.
struct Served {
    settings: types::Otp,
    verifier: Arc<Verifier>,
    _socket: Option<AuthSocket>,
}

impl Doors {
    pub fn new(state: Arc<State>) -> Self {
        Self { state, served: Mutex::new(None) }
    }

    /// Follows a configuration. Blocks on the disk if the store is another one than before.
    pub fn follow(&self, config: &Config) {
        let mut served = lock(&self.served);
        let Some(otp) = &config.otp else {
            *served = None;
            self.state.validation.store(None);
            self.state.restore(SUBJECT);
            return;
        };
        if served.as_ref().is_none_or(|served| served.settings != *otp) {
            // The old one gives its lock and its socket back first.
            *served = None;
            self.state.validation.store(None);
            match self.open(otp) {
                Ok(opened) => {
                    self.state.restore(SUBJECT);
                    *served = Some(opened);
                }
                Err(why) => self.state.degrade(SUBJECT, &why),
            }
        }
        let validation = |served: &Served| Validation {
            listeners: otp.answering.clone(),
            validator: served.verifier.clone(),
        };
        self.state.validation.store(served.as_ref().map(validation).map(Arc::new));
    }

    /// Closes the store for another process.
    pub fn close(&self) {
        self.state.validation.store(None);
        *lock(&self.served) = None;
    }

    fn open(&self, otp: &types::Otp) -> Result<Served, String> {
        let place = Place { directory: otp.store.clone(), key_file: otp.key_file.clone() };
        let store = Store::open(place).map_err(|error| error.to_string())?;
        let count = store.ledger().tokens().count();
        let known = peers::known(store.ledger());
        let commits = GroupCommit::start(store).map_err(|error| format!("cannot start a thread: {error}"))?;
        let message = format!("store {} with {}", otp.store.display(), text::units::count(count, "token"));
        self.state.events.record(Level::Info, SUBJECT, message);
        let peers = Arc::new(Peers::start(&otp.validators, &known, &commits, &self.state));
        let socket = otp.auth_socket.as_deref();
        let socket =
            socket.map(|path| AuthSocket::start(path, commits.clone(), self.state.clone())).transpose();
        let socket = socket.map_err(|error| format!("otp.socket: {error}"))?;
        let (state, busy_told) = (self.state.clone(), RateLimitedEvent::default());
        let verifier = Verifier { commits, state, peers, settings: otp.clone(), busy_told };
        Ok(Served { settings: otp.clone(), verifier: Arc::new(verifier), _socket: socket })
    }
}

/// Answers for the tokens of a store.
pub struct Verifier {
    commits: GroupCommit,
    state: Arc<State>,
    peers: Arc<Peers>,
    settings: types::Otp,
    busy_told: RateLimitedEvent,
}

/// What the store decided about a request.
struct Decided {
    answer: Answer,
    key: Option<Zeroizing<Vec<u8>>>,
    detail: Option<String>,
    /// What other servers must know.
    news: Option<News>,
}

impl Validator for Verifier {
    fn handle(&self, question: Question, query: &str, from: Option<IpAddr>, reply: Reply) {
        match question {
            Question::Verify => self.verify(query, reply),
            Question::Sync => self.sync(query, from, reply),
        }
    }
}

impl Verifier {
    fn verify(&self, query: &str, reply: Reply) {
        let (echo, asked) = validation::read(query);
        let asked = match asked {
            Ok(asked) => asked,
            Err(status) => return give(reply, &Answer::only(status).text(&echo, now(), None)),
        };
        let (state, commits, peers) = (self.state.clone(), self.commits.clone(), self.peers.clone());
        let percent = match asked.level {
            Wanted::Usual => self.settings.sync_level,
            Wanted::Fast => 1,
            Wanted::Secure => 100,
            Wanted::Percent(percent) => percent,
        };
        let limit = asked.wait.unwrap_or(self.settings.sync_timeout);
        let work = job(
            move |ledger, now| decide(ledger, &asked, now / 1000),
            move |decided: Result<Decided, Arc<StoreError>>| match decided {
                Ok(Decided { mut answer, key, detail, news }) => {
                    state.restore(SUBJECT);
                    if let Some(detail) = detail {
                        tracing::debug!("otp: {detail}");
                    }
                    let tell = move |answer: &Answer| {
                        give(reply, &answer.text(&echo, now(), key.as_deref().map(Vec::as_slice)));
                    };
                    let Some(news) = news.filter(|_| !peers.is_empty()) else { return tell(&answer) };
                    peers.ask(news, percent, limit, commits, move |verdict| {
                        (answer.status, answer.level) = match verdict {
                            Verdict::Agreed(percent) => (Status::Ok, Some(percent)),
                            Verdict::Replayed => (Status::ReplayedOtp, None),
                            Verdict::TooFew(percent) => (Status::NotEnoughAnswers, Some(percent)),
                            Verdict::Wait => (Status::BackendError, None),
                        };
                        if answer.status != Status::Ok {
                            answer.counters = None;
                        }
                        tell(&answer);
                    });
                }
                Err(error) => {
                    state.degrade(SUBJECT, &error.to_string());
                    give(reply, &Answer::only(Status::BackendError).text(&echo, now(), None));
                }
            },
        );
        self.submit(work);
    }

    /// Another server tells what it accepted, and hears what was known here before.
    fn sync(&self, query: &str, from: Option<IpAddr>, reply: Reply) {
        let refuse = |reply, status| give(reply, &Answer::only(status).text(&Echo::default(), now(), None));
        let is_known = from.is_some_and(|ip| self.settings.sync_from.contains(&Peer::Ip((ip, 0).into())));
        if !is_known {
            return refuse(reply, Status::OperationNotAllowed);
        }
        let Ok(told) = sync::read(query) else { return refuse(reply, Status::MissingParameter) };
        let Some(last) = told.last else { return refuse(reply, Status::MissingParameter) };
        let (state, name) = (self.state.clone(), told.name.clone());
        let decide = move |ledger: &mut Ledger, now: u64| {
            let modified = ledger.token(&told.name).and_then(|token| token.used).unwrap_or(0);
            let followed = ledger.follow(&told.name, last, now / 1000);
            let (before, record) = followed.map_or((None, None), |(before, record)| (Some(before), record));
            (before.map(|last| sync::State { name: told.name, last, modified }), Vec::from_iter(record))
        };
        let work = job(decide, move |known: Result<Option<sync::State>, Arc<StoreError>>| match known {
            Ok(Some(before)) => {
                state.restore(SUBJECT);
                give(reply, &before.answer());
            }
            Ok(None) => {
                state.restore(SUBJECT);
                tracing::debug!("otp: another server tells of token {name}, which is not enrolled here");
                refuse(reply, Status::BadOtp);
            }
            Err(error) => {
                state.degrade(SUBJECT, &error.to_string());
                refuse(reply, Status::BackendError);
            }
        });
        self.submit(work);
    }

    /// A reply that is dropped with its job is answered with BACKEND_ERROR.
    fn submit(&self, work: Box<dyn Job>) {
        if self.commits.submit(work).is_err() && self.busy_told.may(self.state.started.elapsed()) {
            self.state.events.record(Level::Warning, SUBJECT, "too many requests wait for the store");
        }
    }
}

fn decide(ledger: &mut Ledger, asked: &Asked, now: u64) -> (Decided, Vec<Record>) {
    let refused =
        |status, key, detail| (Decided { answer: Answer::only(status), key, detail, news: None }, Vec::new());
    let Some(client) = ledger.client(asked.client) else { return refused(Status::NoSuchClient, None, None) };
    let key = match key_of(ledger, client) {
        Ok(key) => key,
        Err(status) => return refused(status, None, None),
    };
    if let Err(status) = asked.prove(key.as_deref().map(Vec::as_slice), Unsigned::Answered) {
        // Not signed with the key: the sender may want to learn what the key signs.
        return refused(status, key, None);
    }
    let otp = match Otp::read(&asked.otp) {
        Ok(otp) => otp,
        Err(why) => return refused(Status::BadOtp, key, Some(why.to_string())),
    };
    match ledger.press(&otp, &asked.nonce, now) {
        Ok((accepted, record)) => {
            let news = match &accepted.moved {
                Moved::Pressed(last) => {
                    Some(News { name: accepted.id, otp: asked.otp.clone(), last: last.clone(), at: now })
                }
                Moved::Counted { .. } | Moved::Stepped { .. } => None,
            };
            let answer =
                Answer { status: Status::Ok, level: None, counters: counters(asked, accepted.moved) };
            (Decided { answer, key, detail: None, news }, vec![record])
        }
        Err(why) => refused(Status::from(&why), key, Some(why.to_string())),
    }
}

/// The key of a client that has one.
fn key_of(ledger: &Ledger, client: &Client) -> Result<Option<Zeroizing<Vec<u8>>>, Status> {
    match client.sealed {
        None => Ok(None),
        Some(_) => ledger.client_key(client).map(Some).ok_or(Status::BackendError),
    }
}

fn counters(asked: &Asked, moved: Moved) -> Option<Last> {
    match (asked.counters, moved) {
        (Counters::Wanted, Moved::Pressed(last)) => Some(last),
        _ => None,
    }
}

/// A client that has gone needs no answer.
fn give(reply: Reply, text: &str) {
    let _ = reply.send(text.to_owned());
}

/// Milliseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
