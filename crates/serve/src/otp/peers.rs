//! Validation servers that keep their counters in step: each tells the others what it accepted, and before it says that an OTP is
//! good, as many of them as the configuration or the client asks for must say that it is news.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use access::otp::ledger::Ledger;
use access::otp::sync::{self, Poll, Verdict};
use access::otp::token::{Kind, Last};
use bytes::Bytes;
use credentials::{GroupCommit, job};
use http::Request;
use http::header::HOST;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use state::State;
use state::lock::lock;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Time limit of one message.
const LIMIT: Duration = Duration::from_secs(5);

/// Largest answer in bytes.
const LARGEST: usize = 4096;

/// Connections to one server that are kept.
const KEPT: usize = 32;

/// Time between two attempts to tell a server what it missed.
const AGAIN: Duration = Duration::from_secs(1);

/// The longest such time, for a server that stays away.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// Messages of one attempt.
const AT_ONCE: usize = 500;

/// The other servers.
#[derive(Debug)]
pub(super) struct Peers {
    all: Vec<Arc<Peer>>,
    runtime: Handle,
    catching_up: Vec<JoinHandle<()>>,
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.catching_up.iter().for_each(JoinHandle::abort);
    }
}

/// What was accepted here and must be known elsewhere.
#[derive(Clone, Debug)]
pub(super) struct News {
    pub(super) name: String,
    pub(super) otp: String,
    pub(super) last: Last,
    pub(super) at: u64,
}

impl News {
    fn state(&self) -> sync::State {
        sync::State { name: self.name.clone(), last: Some(self.last.clone()), modified: self.at }
    }
}

#[derive(Debug)]
struct Peer {
    address: SocketAddr,
    idle: Mutex<Vec<SendRequest<Empty<Bytes>>>>,
    /// What it was not told yet, by token.
    missed: Mutex<BTreeMap<String, News>>,
}

/// Why a server does not know something yet.
#[derive(Debug)]
enum Untold {
    /// It does not answer.
    Away(String),
    /// It answers something else.
    Refused(String),
}

fn away(error: impl ToString) -> Untold {
    Untold::Away(error.to_string())
}

impl Peers {
    /// Begins to tell the servers all that this one knows. Call it in the runtime.
    pub(super) fn start(
        addresses: &[SocketAddr],
        known: &BTreeMap<String, News>,
        commits: &GroupCommit,
        state: &Arc<State>,
    ) -> Self {
        let peer = |address: &SocketAddr| {
            let (idle, missed) = (Mutex::default(), Mutex::new(known.clone()));
            Arc::new(Peer { address: *address, idle, missed })
        };
        let all: Vec<_> = addresses.iter().map(peer).collect();
        let catch_up =
            |peer: &Arc<Peer>| tokio::spawn(catch_up(peer.clone(), commits.clone(), state.clone()));
        let catching_up = all.iter().map(catch_up).collect();
        Self { all, runtime: Handle::current(), catching_up }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Asks all servers, and tells the verdict as soon as it is certain, at the latest after `limit`.
    pub(super) fn ask(
        &self,
        news: News,
        percent: u8,
        limit: Duration,
        commits: GroupCommit,
        tell: impl FnOnce(Verdict) + Send + 'static,
    ) {
        let mut poll = Poll::new(news.last.clone(), self.all.len(), percent);
        let (answers, mut answered) = mpsc::channel(self.all.len().max(1));
        for peer in &self.all {
            let (peer, news, answers, commits) =
                (peer.clone(), news.clone(), answers.clone(), commits.clone());
            self.runtime.spawn(async move {
                let answer = peer.tell(&news).await.ok();
                match &answer {
                    Some(state) => follow(&commits, state),
                    None => peer.missed(news),
                }
                // The request that waited may have its answer already.
                let _ = answers.send(answer).await;
            });
        }
        drop(answers);
        self.runtime.spawn(async move {
            let heard = async {
                while poll.verdict() == Verdict::Wait {
                    let Some(answer) = answered.recv().await else { break };
                    poll.handle(answer.as_ref());
                }
            };
            // At the limit, what was heard until then counts.
            let _ = timeout(limit, heard).await;
            tell(poll.end());
        });
    }
}

/// What this server accepted last of each key.
pub(super) fn known(ledger: &Ledger) -> BTreeMap<String, News> {
    let news = |token: &access::otp::token::Token| match &token.kind {
        Kind::Yubico { last: Some(last) } => Some((
            token.id.clone(),
            News {
                name: token.id.clone(),
                otp: token.id.clone(),
                last: last.clone(),
                at: token.used.unwrap_or(token.enrolled),
            },
        )),
        _ => None,
    };
    ledger.tokens().filter_map(news).collect()
}

impl Peer {
    fn missed(&self, news: News) {
        let mut missed = lock(&self.missed);
        match missed.get(&news.name) {
            Some(newer) if newer.last.counter() >= news.last.counter() => {}
            _ => drop(missed.insert(news.name.clone(), news)),
        }
    }

    async fn tell(&self, news: &News) -> Result<sync::State, Untold> {
        match timeout(LIMIT, self.exchange(news)).await {
            Ok(answer) => answer,
            Err(_) => Err(Untold::Away(format!("no answer within {} s", LIMIT.as_secs()))),
        }
    }

    async fn exchange(&self, news: &News) -> Result<sync::State, Untold> {
        let request = || {
            let path = news.state().request(&news.otp);
            let request = Request::get(path).header(HOST, self.address.to_string());
            request.body(Empty::new()).map_err(away)
        };
        // A connection that was kept may be closed by now: the message may be told twice.
        let idle = lock(&self.idle).pop();
        if let Some(mut kept) = idle
            && let Ok(state) = self.on(&mut kept, request()?).await
        {
            self.keep(kept);
            return Ok(state);
        }
        let tcp = TcpStream::connect(self.address).await.map_err(away)?;
        let _ = tcp.set_nodelay(true);
        let (mut sender, connection) = handshake(TokioIo::new(tcp)).await.map_err(away)?;
        // It ends with the sender.
        tokio::spawn(async move { drop(connection.await) });
        let state = self.on(&mut sender, request()?).await?;
        self.keep(sender);
        Ok(state)
    }

    async fn on(
        &self,
        sender: &mut SendRequest<Empty<Bytes>>,
        request: Request<Empty<Bytes>>,
    ) -> Result<sync::State, Untold> {
        sender.ready().await.map_err(away)?;
        let answer = sender.send_request(request).await.map_err(away)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), LARGEST).collect().await.map_err(away)?;
        let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        sync::read_answer(&text).ok_or_else(|| {
            let said = text.lines().find_map(|line| line.strip_prefix("status="));
            Untold::Refused(format!("it refuses ({}, HTTP {status})", said.unwrap_or("no status").trim()))
        })
    }

    fn keep(&self, sender: SendRequest<Empty<Bytes>>) {
        let mut idle = lock(&self.idle);
        if idle.len() < KEPT && !sender.is_closed() {
            idle.push(sender);
        }
    }
}

/// Takes over what another server knows better.
fn follow(commits: &GroupCommit, theirs: &sync::State) {
    let Some(last) = theirs.last.clone() else { return };
    let name = theirs.name.clone();
    let decide = move |ledger: &mut Ledger, now: u64| {
        let record = ledger.follow(&name, last, now / 1000).and_then(|(_, record)| record);
        ((), record.into_iter().collect())
    };
    // If it fails, the next answer tells it again.
    let _ = commits.submit(job(decide, drop));
}

/// Tells a server what it missed, as long as this process has it among its peers.
async fn catch_up(peer: Arc<Peer>, commits: GroupCommit, state: Arc<State>) {
    let subject = format!("otp.peers.{}", peer.address);
    let mut pause = AGAIN;
    loop {
        let missed: Vec<News> = lock(&peer.missed).values().take(AT_ONCE).cloned().collect();
        let mut fault = None;
        for news in missed {
            match peer.tell(&news).await {
                Ok(theirs) => {
                    follow(&commits, &theirs);
                    let mut missed = lock(&peer.missed);
                    if missed.get(&news.name).is_some_and(|now| now.last.counter() <= news.last.counter()) {
                        missed.remove(&news.name);
                    }
                }
                // A token that is not enrolled there does not keep the others from it.
                Err(Untold::Refused(why)) => fault = Some(format!("token {}: {why}", news.name)),
                Err(Untold::Away(why)) => {
                    fault = Some(why);
                    break;
                }
            }
        }
        match fault {
            None => {
                state.restore(&subject);
                pause = AGAIN;
            }
            Some(why) => {
                state.degrade(&subject, &why);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        tokio::time::sleep(pause).await;
    }
}
