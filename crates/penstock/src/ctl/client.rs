//! A client of the control socket: one command per line; the answer is `ok` or `error MESSAGE`, text lines, and a line
//! with a single dot. A text line that starts with a dot is sent with a second one. Used by `cmd/ctl.rs` and by the
//! demo's table. Every wait has a timeout and every answer a size limit.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use access::step_up::NEEDED;
use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use super::link::Link;

#[derive(Debug)]
pub(crate) struct Client {
    stream: Link,
    path: PathBuf,
    timeout: Duration,
    /// Bytes read from the socket; those before `used` are already processed.
    buffer: Vec<u8>,
    used: usize,
    one_time_password: Option<PasswordSource>,
}

/// Asks the user for a one-time password; the error says why there is none.
pub(crate) struct PasswordSource(pub(crate) Box<dyn FnMut() -> Result<String, String> + Send>);

impl fmt::Debug for PasswordSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordSource(..)")
    }
}

/// Answer to a successful command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Text after `ok` on the first line; usually empty.
    pub note: String,
    /// Text lines without their newlines.
    pub lines: Vec<String>,
}

#[derive(Debug)]
pub(crate) enum ClientError {
    /// No file exists at the path.
    NoSocket(PathBuf),
    /// A socket file exists, but no server listens on it.
    NobodyListens(PathBuf),
    /// The file at the path is not a socket.
    NoSocketThere(PathBuf),
    /// This user has no permission to open the socket.
    Forbidden(PathBuf),
    /// The path is too long for a socket address, or contains a zero byte.
    BadPath(PathBuf),
    /// The command does not fit on one line.
    BadCommand(String),
    /// No answer within the timeout.
    Timeout(PathBuf, Duration),
    /// The server closed the connection before the end of its answer.
    ClosedEarly(PathBuf),
    /// The answer does not follow the protocol.
    NotUnderstood(PathBuf, String),
    /// The answer exceeds the size limit.
    TooLong(PathBuf),
    /// The server refused the command; contains the server's message.
    Refused(String),
    /// Another error of the kernel.
    Io(PathBuf, io::Error),
}

impl Client {
    /// Connects. `timeout` limits the connection and each later answer as a whole.
    pub(crate) fn connect(path: &Path, timeout: Duration) -> Result<Self, ClientError> {
        let address = UnixAddr::new(path).map_err(|_| ClientError::BadPath(path.to_owned()))?;
        let stream = connect(&address, timeout).map_err(|error| connect_error(path, timeout, error))?;
        let (buffer, path) = (Vec::new(), path.to_owned());
        Ok(Client { stream: Link::Unix(stream), path, timeout, buffer, used: 0, one_time_password: None })
    }

    /// Goes on with a connection over which an operator has logged in. `name` is that of the server, in messages.
    pub(super) fn over(stream: Link, name: &str, timeout: Duration) -> Self {
        let (buffer, path) = (Vec::new(), PathBuf::from(name));
        Client { stream, path, timeout, buffer, used: 0, one_time_password: None }
    }

    /// Asks `source` for a one-time password when the server wants one for a change.
    pub(crate) fn with_password_source(self, source: PasswordSource) -> Self {
        Self { one_time_password: Some(source), ..self }
    }

    pub(crate) fn without_password_source(self) -> Self {
        Self { one_time_password: None, ..self }
    }

    /// Sends one command and waits for its complete answer.
    pub(crate) fn ask(&mut self, command: &str) -> Result<Answer, ClientError> {
        match self.ask_once(command) {
            Err(ClientError::Refused(message)) if message.starts_with(NEEDED) => {
                self.give_password(message)?;
                self.ask_once(command)
            }
            answer => answer,
        }
    }

    /// Gives the server a one-time password. `refusal` is what it said without one.
    fn give_password(&mut self, refusal: String) -> Result<(), ClientError> {
        let Some(PasswordSource(source)) = &mut self.one_time_password else {
            return Err(ClientError::Refused(refusal));
        };
        let typed = source().map_err(ClientError::Refused)?;
        // In quotes: a code may have blanks.
        let typed: String = typed.chars().filter(|char| !char.is_whitespace() && *char != '"').collect();
        self.ask_once(&format!("otp \"{typed}\"")).map(drop)
    }

    fn ask_once(&mut self, command: &str) -> Result<Answer, ClientError> {
        let deadline = Some(Instant::now() + self.timeout);
        self.send(command, deadline)?;
        let note = self.read_status(deadline)?;
        let mut lines = Vec::new();
        let mut bytes = 0;
        while let Some(line) = self.read_text_line(deadline)? {
            bytes += line.len() + 1;
            if bytes > MAX_ANSWER {
                return Err(ClientError::TooLong(self.path.clone()));
            }
            lines.push(line);
        }
        Ok(Answer { note, lines })
    }

    /// Sends a command whose answer continues until one side ends it, and passes each line to `each`. The timeout
    /// applies only to the first line.
    pub(crate) fn follow<E: From<ClientError>>(
        &mut self,
        command: &str,
        mut each: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.begin(command) {
            Err(ClientError::Refused(message)) if message.starts_with(NEEDED) => {
                self.give_password(message)?;
                self.begin(command)?;
            }
            begun => begun?,
        }
        loop {
            match self.read_text_line(None) {
                Ok(Some(line)) => each(&line)?,
                Ok(None) | Err(ClientError::ClosedEarly(_)) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn begin(&mut self, command: &str) -> Result<(), ClientError> {
        let deadline = Some(Instant::now() + self.timeout);
        self.send(command, deadline)?;
        self.read_status(deadline).map(drop)
    }

    fn send(&mut self, command: &str, deadline: Option<Instant>) -> Result<(), ClientError> {
        if command.is_empty() || command.chars().any(char::is_control) {
            return Err(ClientError::BadCommand(command.to_owned()));
        }
        let left = self.time_left(deadline)?;
        self.stream.set_write_timeout(left).map_err(|error| self.io_error(error))?;
        let line = format!("{command}\n");
        match self.stream.write_all(line.as_bytes()) {
            Ok(()) => Ok(()),
            // The server may refuse and close before it reads the command: its answer is then more useful than EPIPE.
            Err(error) if is_closed(&error) => Ok(()),
            Err(error) => Err(self.io_error(error)),
        }
    }

    /// Reads the first line: returns the note after `ok`, or the server's refusal.
    fn read_status(&mut self, deadline: Option<Instant>) -> Result<String, ClientError> {
        let line = self.read_line(deadline)?;
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            "ok" => Ok(rest.to_owned()),
            "error" => Err(ClientError::Refused(self.whole_refusal(rest, deadline))),
            _ => Err(ClientError::NotUnderstood(self.path.clone(), line)),
        }
    }

    /// Reads a refusal with its text lines, such as the faults of a configuration.
    fn whole_refusal(&mut self, message: &str, deadline: Option<Instant>) -> String {
        let mut text = message.to_owned();
        // A server that refuses may close at once: use the lines that arrived.
        while let Ok(Some(line)) = self.read_text_line(deadline) {
            if text.len() > MAX_LINE {
                break;
            }
            text.push('\n');
            text.push_str(&line);
        }
        text
    }

    /// Reads the next text line; `None` at the dot that ends the answer.
    fn read_text_line(&mut self, deadline: Option<Instant>) -> Result<Option<String>, ClientError> {
        let line = self.read_line(deadline)?;
        match line.strip_prefix('.') {
            Some("") => Ok(None),
            Some(stuffed) => Ok(Some(stuffed.to_owned())),
            None => Ok(Some(line)),
        }
    }

    fn read_line(&mut self, deadline: Option<Instant>) -> Result<String, ClientError> {
        let mut searched = self.used;
        loop {
            if let Some(at) = self.buffer[searched..].iter().position(|byte| *byte == b'\n') {
                let end = searched + at;
                let line = &self.buffer[self.used..end];
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                let line = String::from_utf8_lossy(line).into_owned();
                self.used = end + 1;
                return Ok(line);
            }
            if self.buffer.len() - self.used > MAX_LINE {
                return Err(ClientError::TooLong(self.path.clone()));
            }
            self.buffer.drain(..self.used);
            self.used = 0;
            searched = self.buffer.len();
            self.fill(deadline)?;
        }
    }

    /// Reads at least one byte into the buffer.
    fn fill(&mut self, deadline: Option<Instant>) -> Result<(), ClientError> {
        let mut chunk = [0; 16 * 1024];
        loop {
            let left = self.time_left(deadline)?;
            self.stream.set_read_timeout(left).map_err(|error| self.io_error(error))?;
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(ClientError::ClosedEarly(self.path.clone())),
                Ok(count) => {
                    self.buffer.extend_from_slice(&chunk[..count]);
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_closed(&error) => return Err(ClientError::ClosedEarly(self.path.clone())),
                Err(error) => return Err(self.io_error(error)),
            }
        }
    }

    fn time_left(&self, deadline: Option<Instant>) -> Result<Option<Duration>, ClientError> {
        let Some(deadline) = deadline else { return Ok(None) };
        match deadline.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => Ok(Some(left)),
            _ => Err(ClientError::Timeout(self.path.clone(), self.timeout)),
        }
    }

    fn io_error(&self, error: io::Error) -> ClientError {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                ClientError::Timeout(self.path.clone(), self.timeout)
            }
            _ => ClientError::Io(self.path.clone(), error),
        }
    }
}

/// Connects with a timeout: the kernel blocks connect(2) while the server's accept queue is full.
fn connect(address: &UnixAddr, timeout: Duration) -> nix::Result<UnixStream> {
    let fd = socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let millis = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX).max(1);
    socket::setsockopt(&fd, sockopt::SendTimeout, &TimeVal::milliseconds(millis))?;
    loop {
        match socket::connect(fd.as_raw_fd(), address) {
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
            Ok(()) => return Ok(UnixStream::from(fd)),
        }
    }
}

fn connect_error(path: &Path, timeout: Duration, error: Errno) -> ClientError {
    let path = path.to_owned();
    match error {
        Errno::ENOENT | Errno::ENOTDIR => ClientError::NoSocket(path),
        Errno::ECONNREFUSED if is_something_else(&path) => ClientError::NoSocketThere(path),
        Errno::ECONNREFUSED => ClientError::NobodyListens(path),
        Errno::EACCES | Errno::EPERM => ClientError::Forbidden(path),
        Errno::EAGAIN => ClientError::Timeout(path, timeout),
        other => ClientError::Io(path, other.into()),
    }
}

/// Detects a file that is not a socket: the kernel returns the same error as for a socket without a server (unix(7)).
fn is_something_else(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| !found.file_type().is_socket())
}

/// The unit of the package has it.
const PRIVATE_TMP: &str = "; a service of systemd may have a /tmp of its own (PrivateTmp=): give its socket another directory, such as /run/penstock";

fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof)
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSocket(path) => write!(
                f,
                "no control socket at {}\n  hint: is the server running, and does its configuration have [control] \
                 socket = \"{0}\" (without a file: serve --control {0})? another path: --socket PATH, or --config FILE to \
                 take it from there{1}",
                path.display(),
                if path.starts_with("/tmp") { PRIVATE_TMP } else { "" }
            ),
            Self::NobodyListens(path) => write!(
                f,
                "no server listens on {}\n  hint: the server has ended and left the socket behind; start it again (what it forwarded for dsr \
                 listeners may go on in the kernel: penstock doctor dsr)",
                path.display()
            ),
            Self::NoSocketThere(path) => write!(f, "{} is no socket\n  hint: check the path", path.display()),
            Self::Forbidden(path) => write!(
                f,
                "no permission to open {}\n  hint: run this as root or as the user that the server runs as, or have control.operators name you",
                path.display()
            ),
            Self::BadPath(path) => write!(
                f,
                "{} cannot be the path of a socket\n  hint: at most 107 bytes fit, none of them zero",
                path.display()
            ),
            Self::BadCommand(command) => {
                write!(
                    f,
                    "{command:?} cannot be sent\n  hint: a command is one line without control characters"
                )
            }
            Self::Timeout(path, after) => write!(
                f,
                "no answer on {} within {} s\n  hint: the server may be stopped or overloaded; --timeout waits longer; a change \
                 may still be made: look before you ask for it again",
                path.display(),
                after.as_secs_f32()
            ),
            Self::ClosedEarly(path) => write!(
                f,
                "the server closed {} before the end of its answer\n  hint: it may have ended just now; its log says why, and \
                 whether a change was made",
                path.display()
            ),
            Self::NotUnderstood(path, line) => {
                let shown: String = line.chars().take(60).collect();
                write!(
                    f,
                    "what answers on {} is not a penstock control socket: it said {shown:?}\n  hint: check the path",
                    path.display()
                )
            }
            Self::TooLong(path) => {
                write!(f, "the answer on {} has no end\n  hint: check that the path is right", path.display())
            }
            Self::Refused(message) => f.write_str(message),
            Self::Io(path, _) => write!(f, "cannot talk to {}", path.display()),
        }
    }
}

impl std::error::Error for ClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(_, source) => Some(source),
            _ => None,
        }
    }
}

/// Longest accepted line in bytes; JSON answers are one line.
const MAX_LINE: usize = 16 * 1024 * 1024;

/// Longest accepted answer in bytes.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

#[cfg(test)]
mod tests;
