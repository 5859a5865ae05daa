//! One client over the network, from its connection to its log-in; then `crates/serve/src/control/session.rs` has it. On the
//! wire all wrong log-ins look alike; the log has the reason.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use access::backoff::Wait;
use access::policy::Subject;
use access::sasl::gs2::{Channel, TLS_EXPORTER};
use access::sasl::smtp::{self, Command, Greeting, LONGEST_LINE, NoCommand, TlsOffer};
use access::sasl::{Login, Offer, Refusal, Step};
use access::users::{Secret, Users};
use access::{ChannelBinding, Identity, Mechanism};
use base64ct::{Base64, Encoding};
use config::types::{RemoteControl, TlsStart};
use logic::client_slots::{ClientActivity, ClientDecision};
use state::ending::{Ending, TlsFault};
use state::events::Level;
use sys::gssapi::Accepted;
use text::terminal::line;
use tls::Refused;
use tls::operator::Established;
use tls::plain::Plain;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::super::client::{Admitted, Origin, PeerCredentials, RemoteOperator, Shared};
use super::super::mail;
use super::super::session::Session;
use super::super::stream::Stream;
use super::kerberos;
use crate::client_slots::ClientSlot;
use crate::logins::{Rules, unix_time};

/// Time limit of a log-in, from the connection on; a person may type a password meanwhile.
const LOG_IN_TIME: Duration = Duration::from_secs(60);

/// Wrong log-ins after which the connection is closed.
const WRONG: u32 = 3;

/// Lines that are no commands, after which the connection is closed.
const FAULTS: u32 = 10;

/// Random bytes of a nonce.
const NONCE: usize = 24;

const NAME: &str = "penstock";
const GREETING: &str = "220 penstock control: log in\r\n";
const FAILED: &str = "535 5.7.8 authentication failed\r\n";
const LATER: &str = "454 4.7.0 too many wrong log-ins: try again later\r\n";
const CLOSING: &str = "421 4.7.0 too many mistakes\r\n";

/// The connection ends.
enum Over {
    /// The client has gone, or was told why it must.
    Gone,
    /// It has sent a line that is too long.
    TooLong,
}

pub(super) async fn run(shared: Arc<Shared>, stream: TcpStream, peer: SocketAddr, slot: Arc<ClientSlot>) {
    slot.set(ClientActivity::Waiting);
    // An IPv4 address that came to an IPv6 socket has the form that other lines have.
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    // Answers are short, and each is waited for.
    let _ = stream.set_nodelay(true);
    match timeout(LOG_IN_TIME, log_in(&shared, stream, peer, &slot)).await {
        Ok(Ok((admitted, stream, input))) => {
            Session::new(shared, admitted, stream, slot).with_input(input).run().await;
        }
        Ok(Err(Over::TooLong)) => {
            let message = format!("{}: a client refused: its line is too long", peer.ip());
            shared.front.state.events.record(Level::Warning, "access", message);
            shared.logins.wrong(peer.ip(), None);
        }
        Ok(Err(Over::Gone)) | Err(_) => {}
    }
}

async fn log_in(
    shared: &Shared,
    stream: TcpStream,
    peer: SocketAddr,
    slot: &ClientSlot,
) -> Result<(Admitted, Stream, Vec<u8>), Over> {
    let snapshot = shared.front.snapshot.load_full();
    // A reload without the section leaves the socket open: it was bound at the start.
    let (Some(terminator), Some(remote)) = (&snapshot.control_tls, snapshot.config.remote_control()) else {
        return Err(Over::Gone);
    };
    let plain = match remote.start {
        TlsStart::Implicit => Plain::Tcp(stream),
        TlsStart::StartTls => until_tls(Plain::Tcp(stream)).await?,
    };
    let Established { stream, name, exporter } =
        tls::operator::accept(terminator, plain).await.map_err(|refused| {
            tracing::debug!(%peer, ending = ?refused.ending, "control: no TLS");
            tell_untrusted(shared, peer, &refused);
            Over::Gone
        })?;
    let channel = Channel::default();
    let channel = match exporter {
        Some(data) => channel.with(TLS_EXPORTER, data.to_vec()),
        None => channel,
    };
    let replays = kerberos::replays(snapshot.config.process.state_directory.as_deref());
    let known = if replays.is_some() { Replays::Known } else { Replays::Unknown };
    let tokens = match shared.logins.users(remote.users.as_deref()).await {
        Ok(users) if !users.has_tokens() => Tokens::None,
        // Of a file that cannot be used it is not known: who has a token learns what is wrong by using it.
        _ => Tokens::Some,
    };
    let offer = offer(shared, remote, channel, name, (known, tokens));
    let wire = Wire { stream, input: Vec::new() };
    let mut conversation = Conversation { shared, remote, peer, slot, offer, replays, wire };
    if remote.start == TlsStart::Implicit {
        conversation.wire.send(GREETING).await?;
    }
    let admitted = conversation.until_logged_in().await?;
    let Wire { stream, input } = conversation.wire;
    Ok((admitted, Stream::Tls(stream), input))
}

/// Records that the certificate of a client was refused. What else ends a handshake, each scanner causes.
fn tell_untrusted(shared: &Shared, peer: SocketAddr, refused: &Refused) {
    let Ending::TlsFailed(TlsFault::Client(fault)) = refused.ending else { return };
    let state = &shared.front.state;
    if shared.logins.untrusted.may(state.started.elapsed()) {
        let of = refused.certificate.as_deref().map_or(String::new(), |of| format!(" {}", line(of)));
        let message = format!(
            "{}: a client refused (TLS): its certificate{of}: {}; more of these are not told for a minute",
            peer.ip(),
            fault.word()
        );
        state.events.record(Level::Warning, "access", message);
    }
}

/// Whether tokens that were seen are known, so that one which is not bound to its connection can be used once only.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Replays {
    Known,
    Unknown,
}

/// Whether the file of users has bearer tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tokens {
    Some,
    None,
}

/// What works on this connection, of what the configuration allows.
fn offer(
    shared: &Shared,
    remote: &RemoteControl,
    channel: Channel,
    external: Option<String>,
    (replays, tokens): (Replays, Tokens),
) -> Offer {
    shared.kerberos.announce(Some(remote), &shared.front.state);
    let has_kerberos = shared.kerberos.is_there(remote);
    let works = |mechanism: &Mechanism| match mechanism {
        Mechanism::External => external.is_some(),
        Mechanism::ScramSha256 => remote.users.is_some(),
        Mechanism::ScramSha256Plus => remote.users.is_some() && !channel.is_empty(),
        Mechanism::Gs2Krb5 => has_kerberos && replays == Replays::Known,
        Mechanism::Gs2Krb5Plus => has_kerberos && !channel.is_empty(),
        Mechanism::Bearer => tokens == Tokens::Some,
        Mechanism::OneTimePassword => false,
    };
    let mechanisms = remote.mechanisms.iter().copied().filter(works).collect();
    Offer { mechanisms, channel, external }
}

/// Speaks without encryption until the client begins TLS. Nothing that it has said before counts afterwards.
async fn until_tls(plain: Plain) -> Result<Plain, Over> {
    let mut wire = Wire { stream: plain, input: Vec::new() };
    wire.send(GREETING).await?;
    for _ in 0..FAULTS {
        let line = wire.line().await?;
        let answer = match smtp::command(&line) {
            Ok(Command::Hello(Greeting::Extended)) => smtp::capabilities(NAME, TlsOffer::Offered, &[]),
            Ok(Command::Hello(Greeting::Plain)) => format!("250 {NAME}\r\n"),
            // An attacker in the middle may have put bytes behind the command that would count as encrypted.
            Ok(Command::StartTls) if !wire.input.is_empty() => {
                wire.send("554 5.5.0 bytes behind STARTTLS\r\n").await?;
                return Err(Over::Gone);
            }
            Ok(Command::StartTls) => {
                wire.send("220 2.0.0 begin TLS\r\n").await?;
                return Ok(wire.stream);
            }
            Ok(Command::Noop | Command::Reset) => mail::FINE.to_owned(),
            Ok(Command::Quit) => {
                wire.send(mail::BYE).await?;
                return Err(Over::Gone);
            }
            Ok(Command::Auth { .. }) => {
                "538 5.7.11 no client logs in without encryption: STARTTLS\r\n".to_owned()
            }
            Err(NoCommand::Arguments | NoCommand::NotBase64) => "501 5.5.4 wrong arguments\r\n".to_owned(),
            Err(NoCommand::Unknown) => "530 5.7.0 begin TLS first: STARTTLS\r\n".to_owned(),
        };
        wire.send(&answer).await?;
    }
    wire.send(CLOSING).await?;
    Err(Over::Gone)
}

struct Conversation<'a> {
    shared: &'a Shared,
    remote: &'a RemoteControl,
    peer: SocketAddr,
    slot: &'a ClientSlot,
    offer: Offer,
    /// File of the tokens of Kerberos that were seen.
    replays: Option<PathBuf>,
    wire: Wire<Box<tokio_rustls::server::TlsStream<Plain>>>,
}

/// How a log-in ended that gave no client.
enum NotIn {
    /// The client knows nothing of the reason.
    Wrong,
    /// The client has broken the grammar, or has given up.
    Fault(&'static str),
    MustWait,
}

impl Conversation<'_> {
    async fn until_logged_in(&mut self) -> Result<Admitted, Over> {
        let (mut faults, mut wrong) = (0, 0);
        while faults < FAULTS && wrong < WRONG {
            let line = self.wire.line().await?;
            let answer = match smtp::command(&line) {
                Ok(Command::Hello(Greeting::Extended)) => {
                    smtp::capabilities(NAME, TlsOffer::Not, &self.offer.mechanisms)
                }
                Ok(Command::Hello(Greeting::Plain)) => format!("250 {NAME}\r\n"),
                Ok(Command::StartTls) => "503 5.5.1 TLS has begun\r\n".to_owned(),
                Ok(Command::Noop | Command::Reset) => mail::FINE.to_owned(),
                Ok(Command::Quit) => {
                    self.wire.send(mail::BYE).await?;
                    return Err(Over::Gone);
                }
                Ok(Command::Auth { mechanism, initial }) => {
                    self.slot.set(ClientActivity::Working);
                    let tried = self.authenticate(&mechanism, initial).await?;
                    if self.slot.set(ClientActivity::Waiting) == ClientDecision::GivesWay {
                        return Err(Over::Gone);
                    }
                    match tried {
                        Ok(admitted) => {
                            let answer =
                                format!("235 2.7.0 {}, role {}\r\n", admitted.who, admitted.who.role);
                            self.wire.send(&answer).await?;
                            return Ok(admitted);
                        }
                        Err(NotIn::Wrong) => {
                            wrong += 1;
                            FAILED.to_owned()
                        }
                        Err(NotIn::MustWait) => {
                            self.wire.send(LATER).await?;
                            return Err(Over::Gone);
                        }
                        Err(NotIn::Fault(answer)) => {
                            faults += 1;
                            answer.to_owned()
                        }
                    }
                }
                Err(fault) => {
                    faults += 1;
                    match fault {
                        NoCommand::Arguments | NoCommand::NotBase64 => {
                            "501 5.5.2 wrong arguments\r\n".to_owned()
                        }
                        NoCommand::Unknown => "530 5.7.0 log in first: AUTH\r\n".to_owned(),
                    }
                }
            };
            self.wire.send(&answer).await?;
        }
        self.wire.send(CLOSING).await?;
        Err(Over::Gone)
    }

    async fn authenticate(
        &mut self,
        mechanism: &str,
        initial: Option<Vec<u8>>,
    ) -> Result<Result<Admitted, NotIn>, Over> {
        let mut login = match Login::begin(mechanism, &self.offer) {
            Ok(login) => login,
            Err(refusal) => {
                self.refused(None, &line(mechanism), &refusal);
                return Ok(Err(NotIn::Fault("504 5.5.4 this mechanism is not offered\r\n")));
            }
        };
        let external = self.offer.external.clone().filter(|_| login.mechanism() == Mechanism::External);
        let mut claimed = external.map(Subject::Certificate);
        let mut step = match initial {
            Some(message) => login.response(&message),
            // The client speaks first in every mechanism.
            None => Ok(Step::Challenge(Vec::new())),
        };
        let mut has_spoken = false;
        let refusal = loop {
            step = match step {
                Ok(Step::Challenge(challenge)) => {
                    self.wire.send(&smtp::challenge(&challenge)).await?;
                    has_spoken |= !challenge.is_empty();
                    // A client that is silent here may lose its slot, as one that has not begun.
                    if self.slot.set(ClientActivity::Waiting) == ClientDecision::GivesWay {
                        return Err(Over::Gone);
                    }
                    let line = self.wire.line().await?;
                    self.slot.set(ClientActivity::Working);
                    // Its address may have guessed over other connections while this one waited.
                    if let Some(subject) = &claimed
                        && let Some(wait @ Wait::OfSource(_)) =
                            self.shared.logins.wait(self.peer.ip(), subject)
                    {
                        self.tell_wait(subject, wait);
                        return Ok(Err(NotIn::MustWait));
                    }
                    smtp::response(&line).and_then(|message| login.response(&message))
                }
                Ok(Step::NeedsCredential(user)) => {
                    let subject = Subject::User(user.clone());
                    if let Some(wait) = self.shared.logins.wait(self.peer.ip(), &subject) {
                        self.tell_wait(&subject, wait);
                        return Ok(Err(NotIn::MustWait));
                    }
                    claimed = Some(subject);
                    self.credential(&mut login, &user).await
                }
                Ok(Step::NeedsToken(token)) => login.token(self.token(&token).await),
                Ok(Step::NeedsContext { token, application_data }) => {
                    let accepted = self.shared.kerberos.accept(
                        (self.remote, &self.shared.front.state),
                        self.replays.clone(),
                        token,
                        application_data,
                    );
                    match accepted.await {
                        Ok(Accepted { principal, flags, token }) => {
                            claimed = Some(Subject::Principal(principal.clone()));
                            login.context(principal, flags, token)
                        }
                        Err(why) => Err(Refusal::Gssapi(why)),
                    }
                }
                Ok(Step::Done(identity)) => return Ok(self.admit(&identity).await),
                Err(refusal) => break refusal,
            };
        };
        self.refused(claimed.as_ref(), login.mechanism().name(), &refusal);
        Ok(Err(match refusal {
            Refusal::Cancelled => NotIn::Fault("501 5.7.0 given up\r\n"),
            Refusal::NotBase64 if !has_spoken => NotIn::Fault("501 5.5.2 this is no Base64\r\n"),
            _ => NotIn::Wrong,
        }))
    }

    /// Counts a log-in that went wrong, and records why.
    fn refused(&self, claimed: Option<&Subject>, mechanism: &str, why: &Refusal) {
        if let Refusal::NotJudged(why) = why {
            return self.tell_unusable(why);
        }
        let name = claimed.map(Subject::name);
        let who = name.map_or("a client".to_owned(), |name| format!("\"{}\"", line(name)));
        self.record(Level::Warning, &format!("{who} refused ({mechanism}): {}", line(&why.to_string())));
        self.shared.logins.wrong(self.peer.ip(), claimed);
    }

    async fn users(&self) -> Result<Arc<Users>, Refusal> {
        self.shared.logins.users(self.remote.users.as_deref()).await.map_err(Refusal::NotJudged)
    }

    /// The name of a token, if it is known and has not ended.
    async fn token(&self, text: &str) -> Result<String, Refusal> {
        let secret: Secret = text.parse().map_err(|_| Refusal::UnknownToken)?;
        let users = self.users().await?;
        let token = users.token(&secret).ok_or(Refusal::UnknownToken)?;
        match token.has_ended(unix_time()) {
            true => Err(Refusal::EndedToken(token.name.clone())),
            false => Ok(token.name.clone()),
        }
    }

    async fn credential(&self, login: &mut Login, user: &str) -> Result<Step, Refusal> {
        let users = self.users().await?;
        let credential = self.shared.logins.credential(&users, user);
        let random = access::random::<NONCE>().ok_or(Refusal::NoRandom)?;
        login.credential(credential.as_ref(), &Base64::encode_string(&random))
    }

    /// Decides whether an operator who has proved who he is may do anything.
    async fn admit(&self, identity: &Identity) -> Result<Admitted, NotIn> {
        let subject = Subject::of(identity);
        // Read before the rights, so that a newer configuration is noticed.
        let generation = self.shared.front.state.generation.load(Relaxed);
        let rules = Rules { users: self.remote.users.as_deref(), policy: &self.remote.policy };
        let granted = self.shared.logins.standing(rules, &subject).await.granted;
        let bound = match identity.channel {
            ChannelBinding::Bound => "bound to its connection",
            ChannelBinding::Unbound => "not bound to its connection",
        };
        let how = format!("{subject} logged in ({}, {bound})", identity.mechanism);
        let Some(role) = granted.role else {
            self.record(Level::Warning, &format!("{how} and was refused: {}", granted.reason));
            // Without the file of users it is not known what it may do.
            if self.users().await.is_ok() {
                self.shared.logins.wrong(self.peer.ip(), Some(&subject));
            }
            return Err(NotIn::Wrong);
        };
        self.shared.logins.right(self.peer.ip(), &subject);
        self.record(Level::Info, &format!("{how}: {}", granted.reason));
        let login = Some(subject.to_string().into());
        let who = PeerCredentials { uid: u32::MAX, name: None, pid: None, login, role };
        Ok(Admitted {
            who,
            origin: Origin::Remote(RemoteOperator { subject, from: self.peer.ip() }),
            generation,
        })
    }

    fn tell_wait(&self, subject: &Subject, wait: Wait) {
        let (whose, wait) = match wait {
            Wait::OfSource(wait) => ("its address", wait),
            Wait::OfName(wait) => ("this name", wait),
        };
        let state = &self.shared.front.state;
        if self.shared.refused.may(state.started.elapsed()) {
            let (user, wait) = (line(subject.name()), wait.as_secs_f32());
            let message = format!(
                "\"{user}\" must wait for {wait:.0} s: too many wrong log-ins of {whose}; more of these are not told for a minute"
            );
            self.record(Level::Warning, &message);
        }
    }

    fn tell_unusable(&self, why: &str) {
        if self.shared.logins.unusable.may(self.shared.front.state.started.elapsed()) {
            let message = format!("no log-in can be judged: {why}; more of these are not told for a minute");
            self.record(Level::Error, &message);
        }
    }

    fn record(&self, level: Level, message: &str) {
        self.shared.front.state.events.record(level, "access", format!("{}: {message}", self.peer.ip()));
    }
}

/// A connection, line by line.
struct Wire<S> {
    stream: S,
    /// Bytes behind the last line.
    input: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    /// Reads a line without its end.
    async fn line(&mut self) -> Result<Vec<u8>, Over> {
        let mut searched = 0;
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.input[searched..]) {
                let mut line: Vec<u8> = self.input.drain(..=searched + end).collect();
                line.pop();
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
                return Ok(line);
            }
            searched = self.input.len();
            if searched > LONGEST_LINE {
                self.send("500 5.5.6 this line is too long\r\n").await?;
                return Err(Over::TooLong);
            }
            match self.stream.read_buf(&mut self.input).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return Err(Over::Gone),
            }
        }
    }

    async fn send(&mut self, text: &str) -> Result<(), Over> {
        let sent = async {
            self.stream.write_all(text.as_bytes()).await?;
            self.stream.flush().await
        };
        sent.await.map_err(|_| Over::Gone)
    }
}
