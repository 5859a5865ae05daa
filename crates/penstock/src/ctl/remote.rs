//! The log-in of a control client over the network: the grammar of SMTP (RFC 4954), SASL of `access::sasl`.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use access::Mechanism;
use access::sasl::bearer;
use access::sasl::gs2::{BindingFlag, Header, TLS_EXPORTER, TokenForm};
use access::sasl::krb5;
use access::sasl::scram::{Client as Scram, ScramError};
use access::sasl::smtp;
use access::users::Secret;
use base64ct::{Base64, Encoding};
use sys::gssapi::{Initiator, Library, Progress};
use tls::control_client::{ConnectError, Connection, Settings};
use zeroize::Zeroizing;

use super::client::Client;
use super::link::Link;
use crate::output::{complain, plain};

/// Where the server is, and who logs in.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) tls: Settings,
    pub(crate) start: Start,
    /// For passwords.
    pub(crate) user: Option<String>,
    /// Whether a ticket may log in.
    pub(crate) tickets: Tickets,
    /// First part of the name of the service in Kerberos.
    pub(crate) service: String,
    /// Instead of a password.
    pub(crate) token: Option<Secret>,
    /// `None`: the best that the server offers and the client can.
    pub(crate) mechanism: Option<Mechanism>,
}

/// What a ticket of Kerberos is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tickets {
    /// Log in as the user of the ticket.
    OfAnyone,
    /// Log in as `user` only.
    OfUser,
    /// Not used: the operator named a password.
    Unused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    Implicit,
    StartTls,
}

/// Why a log-in failed. Hosts are in the form that the user has named.
#[derive(Debug)]
pub(crate) enum LogInError {
    NoAddress(String, io::Error),
    Connect(String, io::Error),
    Tls(ConnectError),
    Ended(String, io::Error),
    /// What answers does not speak the grammar.
    Other(String, String),
    NoMechanism {
        host: String,
        offered: String,
        hint: &'static str,
    },
    Refused(String, String),
    Scram(String, ScramError),
    /// The server accepts the log-in without the proof that it knows the password or has the key of its Kerberos service.
    NotProved(String),
    Kerberos(String),
    /// The server refused the Kerberos ticket with which the client asked to log in as this user.
    NotOfUser(String, String, String),
    NoUser,
    /// There is no password, and why no ticket has logged in.
    Password(String, Option<String>),
}

impl fmt::Display for LogInError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAddress(host, why) => write!(f, "cannot find {host}: {why}"),
            Self::Connect(host, why) => write!(f, "cannot connect to {host}: {why}"),
            Self::Tls(why @ ConnectError::Handshake { source, .. })
                if matches!(
                    source.kind(),
                    io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe
                ) =>
            {
                write!(
                    f,
                    "{why}\n  hint: after several wrong log-ins a server closes at once for a time; its log says why"
                )
            }
            Self::Tls(why @ ConnectError::Handshake { .. }) => write!(
                f,
                "{why}\n  hint: --ca FILE names the CA of the server's certificate or that certificate itself, --server-name NAME the \
                 name in it; --starttls is for a server with tls-start = \"starttls\""
            ),
            Self::Tls(why) => why.fmt(f),
            Self::Ended(host, why)
                if matches!(why.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                write!(
                    f,
                    "no answer from {host} in time\n  hint: --timeout waits longer; --starttls is only for a server with tls-start = \
                 \"starttls\""
                )
            }
            Self::Ended(host, why) => write!(
                f,
                "the connection to {host} ended: {why}\n  hint: after several wrong log-ins a server closes at once for a \
                 time, and a log-in has 60 s; its log says why"
            ),
            Self::Other(host, said) => {
                write!(f, "{host} is no control listener of penstock: it said \"{said}\"")
            }
            Self::NoMechanism { host, offered, hint } => {
                write!(f, "{host} offers no mechanism that can be used here: {offered}\n  hint: {hint}")
            }
            Self::Refused(host, said) => {
                write!(f, "{host} refused the log-in: {said}\n  hint: the server's log has the reason")
            }
            Self::NotProved(host) => {
                write!(
                    f,
                    "{host} lets this user in without a proof of who it is itself: it may be an impostor"
                )
            }
            Self::Scram(host, why) => write!(f, "the log-in at {host} failed: {why}"),
            Self::Kerberos(why) => {
                write!(f, "Kerberos: {why}\n  hint: {}", hint(why))
            }
            Self::NotOfUser(host, user, said) => write!(
                f,
                "{host} refused the log-in: {said}\n  hint: the server's log has the reason; the ticket must be one of {user} \
                 (klist shows it), or --password-file FILE has a password of {user}"
            ),
            Self::NoUser => f.write_str("--user NAME is missing, and the variable USER too"),
            Self::Password(why, None) => f.write_str(why),
            Self::Password(why, Some(ticket)) => {
                write!(f, "{why}\n  hint: no ticket logs in either: Kerberos: {ticket}; {}", hint(ticket))
            }
        }
    }
}

/// What to do about a failure that the library of Kerberos tells.
fn hint(why: &str) -> &'static str {
    if why.contains("not found in Kerberos database") {
        return "the service is named by --kerberos-service and by --host, in full as the server's keytab has it, and an address has no service";
    }
    if why.contains("Cannot contact any KDC") {
        return "the KDC must be reached for the ticket of this service: /etc/krb5.conf names it";
    }
    "kinit gets a ticket; klist shows it"
}

impl From<ConnectError> for LogInError {
    fn from(error: ConnectError) -> Self {
        Self::Tls(error)
    }
}

impl Remote {
    fn shown(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Connects and logs in. `password` is asked for when it is needed.
    pub(crate) fn log_in(
        &self,
        timeout: Duration,
        password: &mut dyn FnMut() -> Result<String, String>,
    ) -> Result<Client, LogInError> {
        let tcp = self.connect(timeout)?;
        let mut answers = Answers { link: tcp, buffer: Vec::new(), host: self.shown(), limit: timeout };
        if self.start == Start::StartTls {
            answers.expect("220")?;
            answers.ask("EHLO ctl", "250")?;
            answers.ask("STARTTLS", "220")?;
        }
        let tls = Connection::shake_hands(answers.link, &self.tls)?;
        let exporter = tls.exporter();
        let mut answers = Answers { link: tls, buffer: Vec::new(), host: self.shown(), limit: timeout };
        if self.start == Start::Implicit {
            answers.expect("220")?;
        }
        let offered = answers.ask("EHLO ctl", "250")?;
        let offered =
            offered.iter().find_map(|line| line.get(4..)?.strip_prefix("AUTH ")).unwrap_or_default();
        let mut refused: Option<String> = None;
        for mechanism in self.choose(offered, exporter.is_some())? {
            match mechanism {
                Mechanism::External => drop(answers.ask("AUTH EXTERNAL =", "235")?),
                Mechanism::Bearer => self.bearer(&mut answers)?,
                Mechanism::Gs2Krb5 | Mechanism::Gs2Krb5Plus => {
                    match self.ticket(mechanism, exporter) {
                        Ok(ticket) => match (self.kerberos(&mut answers, mechanism, ticket), &self.user) {
                            (Err(LogInError::Refused(host, said)), Some(user))
                                if self.tickets == Tickets::OfUser =>
                            {
                                return Err(LogInError::NotOfUser(host, user.clone(), said));
                            }
                            (done, _) => done?,
                        },
                        // There is no ticket, or no library: another mechanism may do.
                        Err(why) => {
                            refused = Some(why);
                            continue;
                        }
                    }
                }
                _ => {
                    let user = self.user.as_deref().ok_or(LogInError::NoUser)?;
                    let ticket = refused.take();
                    if let Some(why) = ticket.as_ref().filter(|why| why.contains("expired")) {
                        complain(&format!("note: Kerberos: {}; a password logs in instead\n", plain(why)));
                    }
                    let password = password().map_err(|why| LogInError::Password(why, ticket))?;
                    let flag = self.flag(mechanism == Mechanism::ScramSha256Plus, exporter.as_ref());
                    self.scram(&mut answers, mechanism, flag, (user, &password))?;
                }
            }
            return Ok(Client::over(Link::Tls(answers.link), &self.shown(), timeout));
        }
        Err(LogInError::Kerberos(refused.unwrap_or_default()))
    }

    fn connect(&self, timeout: Duration) -> Result<TcpStream, LogInError> {
        let addresses = (self.host.as_str(), self.port).to_socket_addrs();
        let addresses = addresses.map_err(|error| LogInError::NoAddress(self.host.clone(), error))?;
        let deadline = Instant::now() + timeout;
        let mut failed = io::Error::from(io::ErrorKind::NotFound);
        for address in addresses {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            match TcpStream::connect_timeout(&address, left) {
                Ok(tcp) => {
                    let set = tcp
                        .set_nodelay(true)
                        .and_then(|()| tcp.set_read_timeout(Some(timeout)))
                        .and_then(|()| tcp.set_write_timeout(Some(timeout)));
                    set.map_err(|error| LogInError::Connect(self.shown(), error))?;
                    return Ok(tcp);
                }
                Err(error) => failed = error,
            }
        }
        Err(LogInError::Connect(self.shown(), failed))
    }

    /// Mechanisms that the server offers and this client can, the best first.
    fn choose(&self, offered: &str, can_bind: bool) -> Result<Vec<Mechanism>, LogInError> {
        let is_offered = |mechanism: &Mechanism| offered.split(' ').any(|name| name == mechanism.name());
        let works = |mechanism: &Mechanism| match mechanism {
            Mechanism::External => self.tls.identity.is_some(),
            Mechanism::Gs2Krb5 | Mechanism::Gs2Krb5Plus
                if self.tickets == Tickets::Unused && self.mechanism.is_none() =>
            {
                false
            }
            Mechanism::ScramSha256Plus | Mechanism::Gs2Krb5Plus => can_bind,
            // A client that can bind and is offered it must do so.
            Mechanism::Gs2Krb5 => {
                self.mechanism.is_some() || !can_bind || !is_offered(&Mechanism::Gs2Krb5Plus)
            }
            Mechanism::ScramSha256 => {
                self.mechanism.is_some() || !can_bind || !is_offered(&Mechanism::ScramSha256Plus)
            }
            // A token says that its owner wants to use it.
            Mechanism::Bearer => true,
            Mechanism::OneTimePassword => false,
        };
        let works = |mechanism: &Mechanism| {
            self.token.is_some() == (*mechanism == Mechanism::Bearer) && works(mechanism)
        };
        let wanted = MECHANISMS.into_iter().filter(|one| self.mechanism.is_none_or(|wanted| wanted == *one));
        let found: Vec<_> = wanted.filter(is_offered).filter(works).collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let hint = match self.mechanism {
            Some(_) => "without --mechanism the best one is taken",
            None if self.token.is_some() => {
                "penstock user token add makes tokens, in the file that [control] users of the server's configuration names"
            }
            None => {
                "the server's configuration has [control] users and mechanisms; EXTERNAL needs --certificate"
            }
        };
        Err(LogInError::NoMechanism { host: self.shown(), offered: offered.to_owned(), hint })
    }

    /// What the client says of channel bindings, and the data of them.
    fn flag(&self, is_plus: bool, exporter: Option<&[u8; 32]>) -> (BindingFlag, Vec<u8>) {
        match exporter {
            Some(data) if is_plus => (BindingFlag::Uses(TLS_EXPORTER.to_owned()), data.to_vec()),
            // The server notices if an attacker has taken its -PLUS mechanism from the list.
            Some(_) if self.mechanism.is_none() => (BindingFlag::NotOffered, Vec::new()),
            _ => (BindingFlag::Cannot, Vec::new()),
        }
    }

    /// Makes the first message of GS2-KRB5 of a ticket of this user, which the library may have to get first.
    fn ticket(&self, mechanism: Mechanism, exporter: Option<[u8; 32]>) -> Result<Ticket, String> {
        let library = Library::load()?;
        let (flag, data) = self.flag(mechanism == Mechanism::Gs2Krb5Plus, exporter.as_ref());
        let authzid = self.user.clone().filter(|_| self.tickets == Tickets::OfUser);
        let header = Header { form: TokenForm::Standard, flag, authzid };
        let bindings = Some(&data[..]).filter(|data| !data.is_empty());
        let service = format!("{}@{}", self.service, self.host);
        let mut initiator = library
            .initiate(&service, krb5::INITIATOR_FLAGS, &krb5::application_data(&header, bindings))
            .map_err(|error| error.to_string())?;
        let first = initiator.step(None).map_err(|error| error.to_string())?;
        let message = krb5::First::encode(&header, &first.token).map_err(|error| error.to_string())?;
        Ok(Ticket { initiator, message })
    }

    fn kerberos(
        &self,
        answers: &mut Answers<Connection>,
        mechanism: Mechanism,
        ticket: Ticket,
    ) -> Result<(), LogInError> {
        let Ticket { mut initiator, message } = ticket;
        let token = answers.challenge(&format!("AUTH {mechanism} {}", Base64::encode_string(&message)))?;
        let last = initiator.step(Some(&token)).map_err(|error| LogInError::Kerberos(error.to_string()))?;
        if last.progress != Progress::Complete || last.flags & krb5::MUTUAL == 0 {
            return Err(LogInError::Kerberos("the server has not proved who it is".to_owned()));
        }
        answers.ask("", "235").map(drop)
    }

    fn bearer(&self, answers: &mut Answers<Connection>) -> Result<(), LogInError> {
        let token = self.token.as_ref().map(Secret::text).unwrap_or_default();
        let message = Zeroizing::new(Base64::encode_string(&bearer::encode(&token)));
        let line = Zeroizing::new(format!("AUTH {} {}", Mechanism::Bearer, *message));
        match answers.ask(&line, "235") {
            // It has said why in JSON, and now waits for a sign that this was read (RFC 7628 section 3.2.3).
            Err(LogInError::Refused(_, said)) if said.starts_with("334") => {
                answers.ask("AQ==", "235").map(drop)
            }
            answer => answer.map(drop),
        }
    }

    fn scram(
        &self,
        answers: &mut Answers<Connection>,
        mechanism: Mechanism,
        (flag, data): (BindingFlag, Vec<u8>),
        (user, password): (&str, &str),
    ) -> Result<(), LogInError> {
        let failed = |error| LogInError::Scram(self.shown(), error);
        let random = access::random::<24>()
            .ok_or_else(|| LogInError::Password("the system gives no random bytes".to_owned(), None))?;
        let client = Scram::new(user, None, flag, &data, &Base64::encode_string(&random)).map_err(failed)?;
        let first = Base64::encode_string(client.first.as_bytes());
        let challenge = answers.challenge(&format!("AUTH {mechanism} {first}"))?;
        let awaiting = client.respond(&challenge, password).map_err(failed)?;
        let last = answers.challenge(&Base64::encode_string(awaiting.last.as_bytes()))?;
        awaiting.verify(&last).map_err(failed)?;
        answers.ask("", "235").map(drop)
    }
}

/// Mechanisms of this client, the best first.
pub(crate) const MECHANISMS: [Mechanism; 6] = [
    Mechanism::External,
    Mechanism::Gs2Krb5Plus,
    Mechanism::ScramSha256Plus,
    Mechanism::Gs2Krb5,
    Mechanism::ScramSha256,
    Mechanism::Bearer,
];

/// A context that waits for the answer of the server.
struct Ticket {
    initiator: Initiator,
    message: Vec<u8>,
}

/// Longest answer before the log-in has succeeded.
const LONGEST: usize = smtp::LONGEST_LINE;

/// A connection whose other end answers in the grammar of SMTP.
struct Answers<L> {
    link: L,
    buffer: Vec<u8>,
    host: String,
    /// Time of an answer, however many reads it takes.
    limit: Duration,
}

impl<L: Read + Write> Answers<L> {
    /// Sends a line; the answer must have this code.
    fn ask(&mut self, line: &str, code: &str) -> Result<Vec<String>, LogInError> {
        self.send(line)?;
        self.expect(code)
    }

    fn challenge(&mut self, line: &str) -> Result<Vec<u8>, LogInError> {
        let answer = match self.ask(line, "334") {
            Err(LogInError::Refused(host, said)) if said.starts_with("235") => {
                return Err(LogInError::NotProved(host));
            }
            answer => answer?,
        };
        let text = answer.first().and_then(|line| line.get(4..)).unwrap_or_default();
        Base64::decode_vec(text).map_err(|_| LogInError::Other(self.host.clone(), text.to_owned()))
    }

    fn send(&mut self, line: &str) -> Result<(), LogInError> {
        let sent = self.link.write_all(format!("{line}\r\n").as_bytes()).and_then(|()| self.link.flush());
        sent.map_err(|error| LogInError::Ended(self.host.clone(), error))
    }

    /// Reads an answer, of one line or of several.
    fn expect(&mut self, code: &str) -> Result<Vec<String>, LogInError> {
        let mut lines = Vec::new();
        let until = Instant::now() + self.limit;
        loop {
            let line = self.line(until)?;
            let has_more = line.as_bytes().get(3) == Some(&b'-');
            let has_code = line.len() >= 3 && line.as_bytes()[..3].iter().all(u8::is_ascii_digit);
            if !has_code || lines.len() > 100 {
                return Err(LogInError::Other(self.host.clone(), line.chars().take(60).collect()));
            }
            lines.push(line);
            if has_more {
                continue;
            }
            return match lines.last() {
                Some(last) if last.starts_with(code) => Ok(lines),
                last => {
                    let last = last.cloned().unwrap_or_default();
                    Err(LogInError::Refused(self.host.clone(), last))
                }
            };
        }
    }

    fn line(&mut self, until: Instant) -> Result<String, LogInError> {
        let ended = |error| LogInError::Ended(self.host.clone(), error);
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            if self.buffer.len() > LONGEST {
                return Err(LogInError::Other(self.host.clone(), "a line without an end".to_owned()));
            }
            if Instant::now() >= until {
                return Err(ended(io::ErrorKind::TimedOut.into()));
            }
            let mut chunk = [0; 4096];
            match self.link.read(&mut chunk) {
                Ok(0) => return Err(ended(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ended(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    enum Server {
        Says(&'static [u8]),
        /// It sends a byte now and then, and never ends its line.
        NeverEnds,
    }

    impl Read for Server {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            match self {
                Self::Says(said) => said.read(into),
                Self::NeverEnds => (&b"2"[..]).read(into),
            }
        }
    }

    impl Write for Server {
        fn write(&mut self, from: &[u8]) -> io::Result<usize> {
            Ok(from.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn answers(link: Server, limit: Duration) -> Answers<Server> {
        Answers { link, buffer: Vec::new(), host: "gw1".to_owned(), limit }
    }

    #[test]
    fn an_answer_that_does_not_end_in_time_is_given_up_though_bytes_come() {
        let error = answers(Server::NeverEnds, Duration::ZERO).expect("220").unwrap_err().to_string();
        assert!(error.starts_with("no answer from gw1 in time"), "{error}");
    }

    #[test]
    fn a_server_that_says_yes_without_a_proof_is_told_as_an_impostor() {
        let challenge =
            |said: &'static [u8]| answers(Server::Says(said), Duration::from_secs(60)).challenge("AUTH x");
        let error = challenge(b"235 2.7.0 user:ann\r\n").unwrap_err().to_string();
        assert!(error.contains("may be an impostor"), "{error}");
        let error = challenge(b"535 5.7.8 no\r\n").unwrap_err().to_string();
        assert!(error.contains("refused the log-in: 535 5.7.8 no"), "{error}");
        assert_eq!(challenge(b"334 YWJj\r\n").ok(), Some(b"abc".to_vec()));
    }
}
