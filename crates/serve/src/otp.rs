//! The store of one-time-password tokens in a running server: opened when the configuration names it, and asked by listeners.
//!
//! `crates/access/src/otp/validation.rs` has the protocol, `crates/access/src/otp/ledger.rs` the decisions, and
//! `crates/credentials/src/desk.rs` the thread that makes them durable before anybody is answered.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use access::otp::ledger::{Client, Ledger, Record};
use access::otp::token::{Last, Moved};
use access::otp::validation::{self, Answer, Asked, Counters, Echo, Status, Unsigned};
use access::otp::yubico::Otp;
use config::Config;
use config::types;
use credentials::{Desk, Place, Store, StoreError, job};
use state::State;
use state::events::Level;
use state::lock::lock;
use state::validation::{Question, Reply, Validation, Validator};
use zeroize::Zeroizing;

/// Subject of events, and of what is degraded.
const SUBJECT: &str = "otp";

/// Opens and closes the store as the configuration says.
pub struct Doors {
    state: Arc<State>,
    served: Mutex<Option<(Place, Arc<Verifier>)>>,
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
        let place = Place { directory: otp.store.clone(), key_file: otp.key_file.clone() };
        if served.as_ref().is_none_or(|(before, _)| *before != place) {
            // The old one gives its lock back first.
            *served = None;
            self.state.validation.store(None);
            match self.open(&place) {
                Ok(verifier) => {
                    self.state.restore(SUBJECT);
                    *served = Some((place, verifier));
                }
                Err(why) => self.state.degrade(SUBJECT, &why),
            }
        }
        let validation = served.as_ref().map(|(_, verifier)| self.validation(otp, verifier));
        self.state.validation.store(validation.map(Arc::new));
    }

    fn open(&self, place: &Place) -> Result<Arc<Verifier>, String> {
        let store = Store::open(place.clone()).map_err(|error| error.to_string())?;
        let count = store.ledger().tokens().count();
        let desk = Desk::start(store).map_err(|error| format!("cannot start a thread: {error}"))?;
        let message =
            format!("store {} with {}", place.directory.display(), text::units::count(count, "token"));
        self.state.events.record(Level::Info, SUBJECT, message);
        Ok(Arc::new(Verifier { desk, state: self.state.clone() }))
    }

    fn validation(&self, otp: &types::Otp, verifier: &Arc<Verifier>) -> Validation {
        Validation { listeners: otp.answering.clone(), validator: verifier.clone() }
    }
}

/// Answers for the tokens of a store.
pub struct Verifier {
    desk: Desk,
    state: Arc<State>,
}

/// What the store decided about a request.
struct Decided {
    answer: Answer,
    key: Option<Zeroizing<Vec<u8>>>,
    detail: Option<String>,
}

impl Validator for Verifier {
    fn handle(&self, question: Question, query: &str, _from: Option<IpAddr>, reply: Reply) {
        match question {
            Question::Verify => self.verify(query, reply),
            Question::Sync => drop(reply.send(Answer::only(Status::OperationNotAllowed).text(
                &Echo::default(),
                now(),
                None,
            ))),
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
        let state = self.state.clone();
        let deed = job(
            move |ledger, now| decide(ledger, &asked, now / 1000),
            move |decided: Result<Decided, Arc<StoreError>>| match decided {
                Ok(Decided { answer, key, detail }) => {
                    state.restore(SUBJECT);
                    if let Some(detail) = detail {
                        tracing::debug!("otp: {detail}");
                    }
                    give(reply, &answer.text(&echo, now(), key.as_deref().map(Vec::as_slice)));
                }
                Err(error) => {
                    state.degrade(SUBJECT, &error.to_string());
                    give(reply, &Answer::only(Status::BackendError).text(&echo, now(), None));
                }
            },
        );
        // A reply that is dropped with its job is answered with BACKEND_ERROR.
        if self.desk.submit(deed).is_err() {
            self.state.events.record(Level::Warning, SUBJECT, "too many requests wait for the store");
        }
    }
}

fn decide(ledger: &mut Ledger, asked: &Asked, now: u64) -> (Decided, Vec<Record>) {
    let refused = |status, key, detail| (Decided { answer: Answer::only(status), key, detail }, Vec::new());
    let Some(client) = ledger.client(asked.client) else { return refused(Status::NoSuchClient, None, None) };
    let key = match key_of(ledger, client) {
        Ok(key) => key,
        Err(status) => return refused(status, None, None),
    };
    if let Err(status) = asked.prove(key.as_deref().map(Vec::as_slice), Unsigned::Answered) {
        // Not signed with the key: whoever sent this may want to learn what it signs.
        return refused(status, key, None);
    }
    let otp = match Otp::read(&asked.otp) {
        Ok(otp) => otp,
        Err(why) => return refused(Status::BadOtp, key, Some(why.to_string())),
    };
    match ledger.press(&otp, &asked.nonce, now) {
        Ok((accepted, record)) => {
            let answer =
                Answer { status: Status::Ok, level: None, counters: counters(asked, accepted.moved) };
            (Decided { answer, key, detail: None }, vec![record])
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
