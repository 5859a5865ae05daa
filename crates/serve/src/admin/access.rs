//! Who may read what at the admin listener (`access` of `[admin]`): bearer tokens, and over TLS passwords (`Basic`, RFC 7617), with the
//! roles that the file of users gives. Without `access` every client that reaches the listener may read.
//!
//! `Negotiate` (RFC 4559) is not offered: HTTP has no place for the channel bindings of GS2, so a ticket that it carries could be
//! relayed, or put behind another header.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use access::backoff::Wait;
use access::policy::{Policy, Role, Subject};
use access::sasl::{Credential, bearer::bearer, prepare};
use access::users::Secret;
use axum::http::header::{AUTHORIZATION, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use base64ct::{Base64, Encoding};
use config::types::{Admin, AdminAccess};
use logic::client_slots::Party;
use proxy::front::Front;
use state::events::Level;
use state::lock::lock;
use text::terminal::line;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use zeroize::Zeroizing;

use crate::logins::{Logins, Rules, unix_time};

/// Passwords that are computed at the same time: each takes some tens of milliseconds of a core.
const COMPUTED: usize = 2;

/// Passwords that were good, so that a client which asks every few seconds costs one computation.
const REMEMBERED: usize = 256;

/// Time for which a further log-in of a client is not told.
const TOLD: Duration = Duration::from_secs(3600);

/// Clients whose log-ins were told lately.
const MOST_TOLD: usize = 4096;

/// How a client has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Door {
    pub(super) from: IpAddr,
    pub(super) channel: Channel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channel {
    Plain,
    Tls,
}

pub(super) struct Gate {
    front: Arc<Front>,
    logins: Arc<Logins>,
    /// `[admin]` of the last configuration that had it: the listener stays when the section goes.
    settings: Mutex<Option<Admin>>,
    computing: Semaphore,
    /// By the name of the user: the digest of the password, and the credential that it was good for.
    good: Mutex<HashMap<String, ([u8; 32], Credential)>>,
    /// Key of those digests.
    key: [u8; 32],
    told: Mutex<HashMap<(Party, Subject), Instant>>,
}

/// Who a client is, or why it is refused.
enum Said {
    Subject(Subject),
    /// Nothing: it is asked to log in.
    Nothing,
    Wrong(Option<Subject>, String),
    MustWait(Duration),
    /// The file of users cannot be used: nothing is known of the client, and it is not held against it.
    Unable(String),
}

impl Gate {
    pub(super) fn new(front: Arc<Front>, logins: Arc<Logins>) -> Self {
        Self {
            front,
            logins,
            settings: Mutex::default(),
            computing: Semaphore::new(COMPUTED),
            good: Mutex::default(),
            // Without random bytes no password is remembered.
            key: access::random().unwrap_or_default(),
            told: Mutex::default(),
        }
    }

    /// Lets a client read a page, or says what it must do first.
    pub(super) async fn check(
        &self,
        page: fn(&AdminAccess) -> Option<Role>,
        door: Door,
        headers: &HeaderMap,
    ) -> Result<(), Response> {
        let snapshot = self.front.snapshot.load_full();
        let admin = {
            let mut last = lock(&self.settings);
            if let Some(admin) = &snapshot.config.admin {
                *last = Some(admin.clone());
            }
            last.clone()
        };
        let Some(admin) = admin else { return Ok(()) };
        let Some(needed) = page(&admin.access) else { return Ok(()) };
        let nobody = Policy::default();
        let policy = snapshot.config.remote_control().map_or(&nobody, |remote| &remote.policy);
        let subject = match self.who(&admin, door, headers).await {
            Said::Subject(subject) => subject,
            Said::Nothing => return Err(challenge(door, "log in")),
            Said::MustWait(wait) => return Err(later(wait)),
            Said::Unable(why) => {
                let state = &self.front.state;
                if self.logins.unusable.may(state.started.elapsed()) {
                    let message = format!(
                        "{}: admin: no log-in can be judged: {why}; more of these are not told for a minute",
                        door.from
                    );
                    state.events.record(Level::Error, "access", message);
                }
                return Err(unable());
            }
            Said::Wrong(subject, why) => {
                let who = subject.as_ref().map_or("a client".to_owned(), |it| line(&it.to_string()));
                let message = format!("{}: admin: {who} refused: {}", door.from, line(&why));
                self.front.state.events.record(Level::Warning, "access", message);
                self.logins.wrong(door.from, subject.as_ref());
                return Err(challenge(door, "log-in failed"));
            }
        };
        let standing = self.logins.standing(Rules { users: admin.users.as_deref(), policy }, &subject).await;
        let reason = standing.granted.reason;
        match standing.granted.role {
            Some(role) if role >= needed => {
                self.logins.right(door.from, &subject);
                self.tell(door, &subject, &reason);
                Ok(())
            }
            _ => {
                let message =
                    format!("{}: admin: {subject} refused: it needs the role {needed}; {reason}", door.from);
                self.front.state.events.record(Level::Warning, "access", message);
                let body = format!("this needs the role {needed}\n");
                Err((StatusCode::FORBIDDEN, body).into_response())
            }
        }
    }

    async fn who(&self, admin: &Admin, door: Door, headers: &HeaderMap) -> Said {
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let (value, more) = (given.next(), given.next());
        let Some(value) = value else { return Said::Nothing };
        if self.logins.is_held_off(door.from) {
            return Said::MustWait(Duration::from_secs(60));
        }
        let value = match value.to_str() {
            Ok(value) if more.is_none() => Zeroizing::new(value.to_owned()),
            _ => return Said::Wrong(None, "it sends a malformed Authorization, or several".to_owned()),
        };
        if let Some(token) = bearer(&value) {
            return self.of_token(admin, token).await;
        }
        let basic = value.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"));
        match basic {
            Some(_) if door.channel == Channel::Plain => Said::Wrong(
                None,
                "it has sent a password without encryption: change that password".to_owned(),
            ),
            Some((_, coded)) => self.of_password(admin, door, coded.trim()).await,
            None => Said::Wrong(None, "it wants neither Bearer nor Basic".to_owned()),
        }
    }

    async fn of_token(&self, admin: &Admin, token: &str) -> Said {
        let Ok(secret) = token.parse::<Secret>() else {
            return Said::Wrong(None, "what it sends is no token".to_owned());
        };
        let users = match self.logins.users(admin.users.as_deref()).await {
            Ok(users) => users,
            Err(why) => return Said::Unable(why),
        };
        match users.token(&secret) {
            None => Said::Wrong(None, "the token is not known".to_owned()),
            Some(token) if token.has_ended(unix_time()) => {
                Said::Wrong(None, format!("the token {} has ended", token.name))
            }
            Some(token) => Said::Subject(Subject::Token(token.name.clone())),
        }
    }

    async fn of_password(&self, admin: &Admin, door: Door, coded: &str) -> Said {
        let malformed = || Said::Wrong(None, "it sends malformed credentials".to_owned());
        let Ok(decoded) = Base64::decode_vec(coded).map(Zeroizing::new) else { return malformed() };
        let Ok(text) = std::str::from_utf8(&decoded) else { return malformed() };
        let Some((name, password)) = text.split_once(':') else { return malformed() };
        let Ok(name) = prepare(name) else { return malformed() };
        let subject = Subject::User(name.into_owned());
        if let Some(Wait::OfSource(wait) | Wait::OfName(wait)) = self.logins.wait(door.from, &subject) {
            return Said::MustWait(wait);
        }
        let users = match self.logins.users(admin.users.as_deref()).await {
            Ok(users) => users,
            Err(why) => return Said::Unable(why),
        };
        let credential = self.logins.credential(&users, subject.name());
        let digest = self.digest(subject.name(), password);
        if let (Ok(credential), Some((known, of))) = (&credential, lock(&self.good).get(subject.name()))
            && (known, of) == (&digest, credential)
        {
            return Said::Subject(subject);
        }
        let Ok(_permit) = self.computing.acquire().await else { return malformed() };
        // Its address may have guessed over other connections while this one waited.
        if let Some(Wait::OfSource(wait)) = self.logins.wait(door.from, &subject) {
            return Said::MustWait(wait);
        }
        let password = Zeroizing::new(password.to_owned());
        // An unknown user costs what a known one does.
        let is_known = credential.is_ok();
        let computed = spawn_blocking(move || {
            let (Ok(credential) | Err(credential)) = credential;
            credential.is_of(&password).then_some(credential)
        });
        match computed.await {
            Ok(Some(credential)) if is_known => {
                self.remember(subject.name(), digest, credential);
                Said::Subject(subject)
            }
            Ok(_) if is_known => Said::Wrong(Some(subject), "wrong password".to_owned()),
            Ok(_) => Said::Wrong(Some(subject), "there is no user of this name with a password".to_owned()),
            Err(error) => Said::Wrong(None, error.to_string()),
        }
    }

    fn digest(&self, name: &str, password: &str) -> [u8; 32] {
        access::sasl::keyed_digest(&self.key, &[name, password])
    }

    fn remember(&self, name: &str, digest: [u8; 32], credential: Credential) {
        let mut good = lock(&self.good);
        if self.key == [0; 32] {
            return;
        }
        if good.len() >= REMEMBERED {
            good.clear();
        }
        good.insert(name.to_owned(), (digest, credential));
    }

    /// Tells of a log-in, of each client once in a while: a monitor logs in every few seconds.
    fn tell(&self, door: Door, subject: &Subject, reason: &str) {
        let (key, now) = ((Party::source(door.from), subject.clone()), Instant::now());
        let mut told = lock(&self.told);
        if told.get(&key).is_some_and(|at| now.saturating_duration_since(*at) < TOLD) {
            return;
        }
        if told.len() >= MOST_TOLD {
            told.clear();
        }
        told.insert(key, now);
        drop(told);
        let message = format!(
            "{}: admin: {subject} logged in: {reason}; more of these are not told for an hour",
            door.from
        );
        self.front.state.events.record(Level::Info, "access", message);
    }
}

/// Asks a client to log in. `Basic` is named over TLS only.
fn challenge(door: Door, why: &str) -> Response {
    let mut response = (StatusCode::UNAUTHORIZED, format!("{why}: send a bearer token\n")).into_response();
    let headers = response.headers_mut();
    headers.append(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"penstock\""));
    if door.channel == Channel::Tls {
        let basic = "Basic realm=\"penstock\", charset=\"UTF-8\"";
        headers.append(WWW_AUTHENTICATE, HeaderValue::from_static(basic));
    }
    response
}

fn unable() -> Response {
    let text = "log-ins cannot be judged now: the server's log says why\n";
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

fn later(wait: Duration) -> Response {
    let seconds = HeaderValue::from(wait.as_secs() + 1);
    (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, seconds)], "too many wrong log-ins: try again later\n")
        .into_response()
}
