//! The validation server of listeners: `/wsapi/2.0/verify` for clients, `/wsapi/2.0/sync` for other servers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use access::otp::ledger::{Client, Ledger, Record};
use access::otp::sync::{self, Verdict};
use access::otp::token::{Last, Moved, Refusal};
use access::otp::validation::{self, Answer, Asked, Counters, Echo, Level as Wanted, Status, Unsigned};
use access::otp::yubico::Otp;
use config::types;
use credentials::{StoreError, job};
use logic::peers::Peer;
use state::validation::{Proof, Question, Reply, Validator};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use zeroize::Zeroizing;

use super::judge::judge;
use super::passwords::Passwords;
use super::peers::{News, Peers};
use super::refusals::{Asker, Refusals, Why};
use super::tokens::Tokens;

/// Answers for the tokens of a store.
pub(super) struct Verifier {
    pub(super) tokens: Arc<Tokens>,
    pub(super) peers: Arc<Peers>,
    pub(super) refusals: Arc<Refusals>,
    /// The users of `users`, which say who was revoked.
    pub(super) passwords: Arc<Passwords>,
    pub(super) settings: types::Otp,
    pub(super) runtime: Handle,
}

/// What the store decided about a request.
struct Decided {
    answer: Answer,
    key: Option<Zeroizing<Vec<u8>>>,
    why: Option<Why>,
    /// What is good here.
    good: Option<Good>,
}

/// An OTP that is good here, and used up.
struct Good {
    /// What other servers must know.
    news: News,
    owner: Option<String>,
}

/// Where an answer goes, and what it needs.
struct Answering {
    answer: Answer,
    asker: Asker,
    echo: Echo,
    key: Option<Zeroizing<Vec<u8>>>,
    refusals: Arc<Refusals>,
    reply: Reply,
}

impl Answering {
    fn give(self) {
        give(self.reply, &self.answer.text(&self.echo, now(), self.key.as_deref().map(Vec::as_slice)));
    }

    fn refuse(self, status: Status, why: &Why) {
        let (asker, refusals) = (self.asker.clone(), self.refusals.clone());
        Self { answer: Answer::only(status), ..self }.give();
        refusals.tell(&asker, why);
    }

    /// Answers as soon as the other servers have.
    fn ask(self, peers: &Peers, news: News, percent: u8, limit: Duration) {
        if peers.is_empty() {
            return self.give();
        }
        let token = news.state.name.clone();
        peers.ask(news, percent, limit, move |verdict| {
            let (status, level) = match verdict {
                Verdict::Agreed(percent) => (Status::Ok, Some(percent)),
                Verdict::Replayed => (Status::ReplayedOtp, None),
                Verdict::TooFew(percent) => (Status::NotEnoughAnswers, Some(percent)),
                Verdict::Wait => (Status::BackendError, None),
            };
            let mut answering = self;
            answering.answer.level = level;
            if status == Status::Ok {
                return answering.give();
            }
            let (asker, refusals) = (answering.asker.clone(), answering.refusals.clone());
            (answering.answer.status, answering.answer.counters) = (status, None);
            answering.give();
            refusals.tell(&asker, &Why::Others { token, verdict });
        });
    }
}

impl Validator for Verifier {
    fn handle(&self, question: Question, query: &str, from: Option<IpAddr>, reply: Reply) {
        match question {
            Question::Verify => self.verify(query, from, reply),
            Question::Sync => self.sync(query, from, reply),
        }
    }

    fn prove(&self, user: String, typed: String, reply: oneshot::Sender<Proof>) {
        let nonce = format!("ctl{:032x}", fastrand::u128(..));
        let (tokens, peers) = (self.tokens.clone(), self.peers.clone());
        let (percent, limit) = (self.settings.sync_level, self.settings.sync_timeout);
        let decide = move |ledger: &mut Ledger, now: u64| {
            let now = now / 1000;
            match judge(ledger, &user, &typed, None, &nonce, now) {
                Ok((accepted, record)) => (Ok(News::of(accepted, &typed, now)), vec![record]),
                Err(why) => (Err(why), Vec::new()),
            }
        };
        // A client that has gone needs no answer.
        let tell = |proof| drop(reply.send(proof));
        let finish = move |judged: Result<Result<News, Refusal>, Arc<StoreError>>| match judged {
            Ok(Ok(news)) => {
                tokens.works();
                let token = news.state.name.clone();
                if peers.is_empty() {
                    return tell(Proof::Good(token));
                }
                peers.ask(news, percent, limit, move |verdict| match verdict {
                    Verdict::Agreed(_) => tell(Proof::Good(token)),
                    Verdict::Replayed => {
                        tell(Proof::Bad(format!("token {token}: another server has accepted it before")));
                    }
                    Verdict::TooFew(_) | Verdict::Wait => tell(Proof::Unable),
                });
            }
            Ok(Err(why)) => tell(Proof::Bad(why.to_string())),
            Err(error) => {
                tokens.failed(&error);
                tell(Proof::Unable);
            }
        };
        self.tokens.submit(job(decide, finish));
    }
}

impl Verifier {
    fn verify(&self, query: &str, from: Option<IpAddr>, reply: Reply) {
        let (echo, asked) = validation::read(query);
        let asked = match asked {
            Ok(asked) => asked,
            Err(status) => {
                self.refusals.tell(&Asker::Unnamed { from }, &Why::NoQuestion);
                return give(reply, &Answer::only(status).text(&echo, now(), None));
            }
        };
        let percent = match asked.level {
            Wanted::Usual => self.settings.sync_level,
            Wanted::Fast => 1,
            Wanted::Secure => 100,
            Wanted::Percent(percent) => percent,
        };
        let limit = asked.wait.unwrap_or(self.settings.sync_timeout);
        let (tokens, peers, refusals) = (self.tokens.clone(), self.peers.clone(), self.refusals.clone());
        let client = asked.client;
        let (passwords, users, runtime) =
            (self.passwords.clone(), self.settings.users.clone(), self.runtime.clone());
        let finish = move |decided: Result<Decided, Arc<StoreError>>| match decided {
            Ok(Decided { answer, key, why, good }) => {
                tokens.works();
                let asker = Asker::Client { id: client, from };
                if let Some(why) = &why {
                    refusals.tell(&asker, why);
                }
                if let Some(key) = &key {
                    tokens.learn(client, key);
                }
                let answering = Answering { answer, asker, echo, key, refusals, reply };
                let Some(Good { news, owner }) = good else { return answering.give() };
                let Some((owner, users)) = owner.zip(users) else {
                    return answering.ask(&peers, news, percent, limit);
                };
                // The OTP is used up all the same, and other servers are told of it later.
                runtime.spawn(async move {
                    match passwords.revoked(Some(&users), &owner).await {
                        Ok(None) => answering.ask(&peers, news, percent, limit),
                        Ok(Some(date)) => {
                            let token = news.state.name;
                            let why = format!(
                                "BAD_OTP: token {token} is of {owner}: the user was revoked on {date} (penstock user list)"
                            );
                            answering.refuse(Status::BadOtp, &Why::Other(why));
                        }
                        Err(why) => {
                            let why = Why::Other(format!("BACKEND_ERROR: {why}"));
                            answering.refuse(Status::BackendError, &why);
                        }
                    }
                });
            }
            Err(error) => {
                tokens.failed(&error);
                let key = tokens.key(client);
                let answer = Answer::only(Status::BackendError);
                give(reply, &answer.text(&echo, now(), key.as_deref().map(Vec::as_slice)));
            }
        };
        self.tokens.submit(job(move |ledger, now| decide(ledger, &asked, now / 1000), finish));
    }

    /// Another server tells what it accepted, and hears what was known here before.
    fn sync(&self, query: &str, from: Option<IpAddr>, reply: Reply) {
        let refuse = |reply, status| give(reply, &Answer::only(status).text(&Echo::default(), now(), None));
        let is_known = from.is_some_and(|ip| self.settings.sync_from.contains(&Peer::Ip((ip, 0).into())));
        if !is_known {
            self.refusals.tell(&Asker::Server { from }, &Why::OtherServer);
            return refuse(reply, Status::OperationNotAllowed);
        }
        let told = sync::read(query).ok().and_then(|told| Some((told.last.clone()?, told)));
        let Some((last, told)) = told else {
            self.refusals.tell(&Asker::Server { from }, &Why::NoQuestion);
            return refuse(reply, Status::MissingParameter);
        };
        let (tokens, refusals, name) = (self.tokens.clone(), self.refusals.clone(), told.name.clone());
        let decide = move |ledger: &mut Ledger, now: u64| {
            let modified = ledger.token(&told.name).and_then(|token| token.used).unwrap_or(0);
            let followed = ledger.follow(&told.name, last, now / 1000);
            let (before, record) = followed.map_or((None, None), |(before, record)| (Some(before), record));
            let state = before.map(|last| sync::State { name: told.name, last, modified });
            (state.map(|state| (state, ledger.changes())), Vec::from_iter(record))
        };
        type Before = Option<(sync::State, u64)>;
        let finish = move |known: Result<Before, Arc<StoreError>>| match known {
            Ok(Some((before, changes))) => {
                tokens.works();
                give(reply, &before.answer(changes));
            }
            Ok(None) => {
                tokens.works();
                refusals.tell(&Asker::Server { from }, &Why::NotHere { token: name });
                refuse(reply, Status::BadOtp);
            }
            Err(error) => {
                tokens.failed(&error);
                refuse(reply, Status::BackendError);
            }
        };
        self.tokens.submit(job(decide, finish));
    }
}

fn decide(ledger: &mut Ledger, asked: &Asked, now: u64) -> (Decided, Vec<Record>) {
    let refused = |status, key, why| {
        (Decided { answer: Answer::only(status), key, why: Some(why), good: None }, Vec::new())
    };
    let Some(client) = ledger.client(asked.client) else {
        return refused(Status::NoSuchClient, None, Why::NoClient);
    };
    let Ok(key) = key_of(ledger, client) else {
        return refused(Status::BackendError, None, Why::SealedClient);
    };
    if let Err(status) = asked.prove(key.as_deref().map(Vec::as_slice), Unsigned::Answered) {
        // Not signed with the key: the sender may want to learn what the key signs.
        return refused(status, key, Why::WrongSignature);
    }
    let otp = match Otp::read(&asked.otp) {
        Ok(otp) => otp,
        Err(_) => return refused(Status::BadOtp, key, Why::Refused { token: None, why: Refusal::NotAnOtp }),
    };
    match ledger.press(&otp, &asked.nonce, now) {
        Ok((accepted, record)) => {
            let counters = counters(asked, &accepted.moved);
            let owner = accepted.owner.clone();
            let good = Some(Good { news: News::of(accepted, &asked.otp, now), owner });
            let answer = Answer { status: Status::Ok, level: None, counters };
            (Decided { answer, key, why: None, good }, vec![record])
        }
        Err(why) => refused(Status::from(&why), key, Why::Refused { token: Some(otp.name), why }),
    }
}

/// The key of a client that has one. The error: it does not open.
fn key_of(ledger: &Ledger, client: &Client) -> Result<Option<Zeroizing<Vec<u8>>>, ()> {
    match client.sealed {
        None => Ok(None),
        Some(_) => ledger.client_key(client).map(Some).ok_or(()),
    }
}

fn counters(asked: &Asked, moved: &Moved) -> Option<Last> {
    match (asked.counters, moved) {
        (Counters::Wanted, Moved::Pressed(last)) => Some(last.clone()),
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
