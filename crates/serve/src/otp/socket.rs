//! The socket on which PAM modules ask whether what a user typed is good: one line of JSON each way.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use access::otp::ledger::{Accepted, Ledger, Record};
use access::otp::token::Refusal;
use access::otp::yubico::Otp;
use credentials::{GroupCommit, StoreError, job};
use nix::unistd::{User, geteuid};
use serde::Deserialize;
use state::State;
use state::events::Level;
use state::listen::SocketPath;
use state::lock::lock;
use sys::peer::Credentials;
use sys::socket::{ListenUnixError, listen_unix};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Everyone may ask: the kernel says who it is.
const MODE: u32 = 0o666;

/// Time for one question.
const LIMIT: Duration = Duration::from_secs(5);

/// Longest question.
const LONGEST: u64 = 8192;

/// Connections at once, of all and of one user that is not root.
const CONNECTIONS: usize = 128;
const OF_ONE_USER: usize = 8;

/// Pause after a failed accept, for example when descriptors are exhausted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

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
    pub(super) fn start(path: &Path, commits: GroupCommit, state: Arc<State>) -> Result<Self, String> {
        let (listener, file) = listen_unix(path, MODE).map_err(|error: ListenUnixError| error.to_string())?;
        let listener = listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener));
        let listener = listener.map_err(|error| error.to_string())?;
        let door = Arc::new(Door { commits, state, open: Mutex::default() });
        Ok(Self { task: tokio::spawn(accept(listener, door)), _file: SocketPath(file) })
    }
}

struct Door {
    commits: GroupCommit,
    state: Arc<State>,
    /// Open connections of each user.
    open: Mutex<HashMap<u32, usize>>,
}

/// A place among the connections of a user.
struct Slot {
    door: Arc<Door>,
    user: u32,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut open = lock(&self.door.open);
        if let Some(count) = open.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.user);
            }
        }
    }
}

/// What a module asks.
#[derive(Debug, Deserialize)]
struct Question {
    user: String,
    #[serde(default)]
    service: String,
    #[serde(default)]
    from: String,
    otp: String,
    /// Public names of which the OTP must have one.
    keys: Option<Vec<String>>,
}

/// What it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Good,
    Bad,
    NoToken,
    Unable,
}

impl Said {
    fn line(self) -> &'static str {
        match self {
            Self::Good => "{\"result\":\"good\"}\n",
            Self::Bad => "{\"result\":\"bad\"}\n",
            Self::NoToken => "{\"result\":\"no-token\"}\n",
            Self::Unable => "{\"result\":\"unable\"}\n",
        }
    }
}

async fn accept(listener: UnixListener, door: Arc<Door>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let Ok(peer) = sys::peer::credentials(&stream) else { continue };
                let Some(slot) = slot(&door, peer) else { continue };
                tokio::spawn(async move {
                    // Who asks too slowly is closed.
                    let _ = timeout(LIMIT, serve(stream, peer, &slot.door)).await;
                });
            }
            Err(error) => {
                door.state.events.record(Level::Warning, "otp.socket", format!("cannot accept: {error}"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn slot(door: &Arc<Door>, peer: Credentials) -> Option<Slot> {
    let mut open = lock(&door.open);
    let all: usize = open.values().sum();
    let own = open.entry(peer.uid).or_default();
    let most = if is_trusted(peer) { CONNECTIONS } else { OF_ONE_USER };
    if *own >= most || all >= CONNECTIONS {
        if *own == 0 {
            open.remove(&peer.uid);
        }
        return None;
    }
    *own += 1;
    drop(open);
    Some(Slot { door: door.clone(), user: peer.uid })
}

/// Root, and the user of this process, may ask about every user.
fn is_trusted(peer: Credentials) -> bool {
    peer.uid == 0 || peer.uid == geteuid().as_raw()
}

async fn serve(stream: UnixStream, peer: Credentials, door: &Door) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    BufReader::new(read.take(LONGEST)).read_line(&mut line).await?;
    let said = match serde_json::from_str::<Question>(&line) {
        Ok(question) if line.ends_with('\n') => answer(question, peer, door).await,
        _ => Said::Unable,
    };
    write.write_all(said.line().as_bytes()).await
}

async fn answer(question: Question, peer: Credentials, door: &Door) -> Said {
    let Question { user, service, from, otp, keys } = question;
    let plain = text::terminal::plain;
    let who = format!(
        "{} ({}{})",
        plain(&user),
        plain(&service),
        if from.is_empty() { String::new() } else { format!(" from {}", plain(&from)) }
    );
    if !is_trusted(peer) {
        let name = user.clone();
        // It may ask a directory service.
        let own = tokio::task::spawn_blocking(move || User::from_name(&name)).await;
        let is_own = matches!(own, Ok(Ok(Some(own))) if own.uid.as_raw() == peer.uid);
        if !is_own || keys.is_some() {
            tracing::warn!(subject = "otp", "{who}: user {} may not ask about another user", peer.uid);
            return Said::Unable;
        }
    }
    let (tell, told) = oneshot::channel();
    let nonce = format!("pam{:032x}", fastrand::u128(..));
    let decide =
        move |ledger: &mut Ledger, now: u64| judge(ledger, &user, &otp, keys.as_deref(), &nonce, now / 1000);
    let work = job(decide, move |result: Result<Result<Accepted, Refusal>, Arc<StoreError>>| {
        drop(tell.send(result))
    });
    if door.commits.submit(work).is_err() {
        return Said::Unable;
    }
    let told = told.await;
    if matches!(told, Ok(Ok(_))) {
        door.state.restore("otp");
    }
    match told {
        Ok(Ok(Ok(accepted))) => {
            tracing::info!(subject = "otp", "{who}: good, by token {}", plain(&accepted.id));
            Said::Good
        }
        Ok(Ok(Err(why))) => {
            tracing::warn!(subject = "otp", "{who}: refused: {}", plain(&why.to_string()));
            if why == Refusal::NoToken { Said::NoToken } else { Said::Bad }
        }
        Ok(Err(error)) => {
            door.state.degrade("otp", &error.to_string());
            Said::Unable
        }
        Err(_) => Said::Unable,
    }
}

fn judge(
    ledger: &mut Ledger,
    user: &str,
    typed: &str,
    keys: Option<&[String]>,
    nonce: &str,
    now: u64,
) -> (Result<Accepted, Refusal>, Vec<Record>) {
    let judged = match keys {
        None if ledger.of_owner(user).next().is_none() => Err(Refusal::NoToken),
        None => ledger.prove(user, typed, nonce, now),
        Some(keys) => match Otp::read(typed) {
            Ok(otp) if keys.contains(&otp.name) => ledger.press(&otp, nonce, now),
            Ok(otp) => Err(Refusal::NotTheirs { id: otp.name }),
            Err(_) => Err(Refusal::NotAnOtp),
        },
    };
    match judged {
        Ok((accepted, record)) => (Ok(accepted), vec![record]),
        Err(why) => (Err(why), Vec::new()),
    }
}
