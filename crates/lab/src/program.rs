//! The interpreter of the hosts' commands, in this process.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hosts::fleet::{script as sent, watcher};
use russh::server::Msg;
use russh::{ChannelWriteHalf, Sig};
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;

use crate::call::{Call, Ended};
use crate::flood::Flood;
use crate::host::Host;
use crate::script::{self, Join, Piece, Sink, Step, Word};
use crate::sftp::Sftp;
use ssh::signal;

pub(crate) struct Stdin {
    pub feed: mpsc::UnboundedReceiver<Bytes>,
    pub taken: Arc<AtomicU64>,
}

impl Stdin {
    async fn next(&mut self) -> Option<Bytes> {
        let bytes = self.feed.recv().await?;
        self.taken.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Some(bytes)
    }

    /// Waits for a line, as a watcher does. The end of the input ends the connection, which other code detects.
    async fn told_to_end(&mut self) {
        while let Some(bytes) = self.feed.recv().await {
            if bytes.contains(&b'\n') {
                return;
            }
        }
        std::future::pending().await
    }
}

pub(crate) struct Program<'a> {
    pub host: &'a Host,
    pub write: ChannelWriteHalf<Msg>,
    stdin: Stdin,
    environment: HashMap<String, String>,
    status: u32,
}

/// Next action of the interpreter after a simple command.
enum Next {
    Status(u32),
    Exit(u32),
    Killed(Sig),
}

/// The client has closed the channel or the connection.
struct ClientClosed;

impl From<russh::Error> for ClientClosed {
    fn from(_: russh::Error) -> Self {
        Self
    }
}

impl<'a> Program<'a> {
    pub(crate) fn new(
        host: &'a Host,
        write: ChannelWriteHalf<Msg>,
        stdin: Stdin,
        given: Vec<(String, String)>,
    ) -> Self {
        let own = [("HOSTNAME", host.name.as_str()), ("HOME", "/"), ("USER", "lab"), ("SHELL", "/bin/sh")];
        let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self { host, write, stdin, environment: own.into_iter().chain(given).collect(), status: 0 }
    }

    pub(crate) async fn call(&mut self, call: Call) -> Ended {
        let next = match call {
            Call::Command(text) => self.command(&text).await,
            Call::Shell => self.stdin_script().await,
        };
        match next {
            Ok(Next::Status(status) | Next::Exit(status)) => Ended::Status(status),
            Ok(Next::Killed(signal)) => Ended::Signal(signal),
            Err(ClientClosed) => Ended::Left,
        }
    }

    /// Runs a command, which may be wrapped in a watcher. The host has no processes that need a watcher: it prints the
    /// mark of a watcher, and obeys the requests to one.
    async fn command(&mut self, text: &[u8]) -> Result<Next, ClientClosed> {
        let Some(watched) = std::str::from_utf8(text).ok().and_then(watcher::unwrap) else {
            return self.script(text).await;
        };
        self.print(Sink::Stdout, watched.mark).await?;
        let command = watched.command.as_bytes();
        if watched.input == watcher::Input::Sent {
            return match sent::end_of(&watched.command) {
                Some(end) => self.sent_script(end).await,
                None => self.script(command).await,
            };
        }
        let nothing = Stdin { feed: mpsc::unbounded_channel().1, taken: Arc::clone(&self.stdin.taken) };
        let mut watched = std::mem::replace(&mut self.stdin, nothing);
        tokio::select! {
            next = self.script(command) => next,
            () = watched.told_to_end() => Ok(Next::Killed(Sig::TERM)),
        }
    }

    /// Runs the script on standard input, for `sh`, `sh -s` and an empty command.
    async fn stdin_script(&mut self) -> Result<Next, ClientClosed> {
        match self.whole_stdin().await? {
            Some(text) => self.script(&text).await,
            None => Ok(Next::Status(2)),
        }
    }

    /// Reads standard input to its end. Says so and returns `None` if it is too long for a script.
    async fn whole_stdin(&mut self) -> Result<Option<Vec<u8>>, ClientClosed> {
        let mut text = Vec::new();
        while let Some(bytes) = self.stdin.next().await {
            if text.len() + bytes.len() > LONGEST_SCRIPT {
                self.complain(2, "sh: a script of more than 1 MiB").await?;
                return Ok(None);
            }
            text.extend_from_slice(&bytes);
        }
        Ok(Some(text))
    }

    /// Runs the script of `penstock run --script` on standard input, if it arrives up to its last line `end`.
    async fn sent_script(&mut self, end: &str) -> Result<Next, ClientClosed> {
        let Some(text) = self.whole_stdin().await? else { return Ok(Next::Status(2)) };
        match text.trim_ascii_end().strip_suffix(end.as_bytes()) {
            Some(script) => self.script(script).await,
            None => self.complain(126, "sh: the script was truncated on its way").await,
        }
    }

    async fn script(&mut self, text: &[u8]) -> Result<Next, ClientClosed> {
        let steps = match script::parse(text) {
            Ok(steps) => steps,
            Err(error) => return self.complain(2, &format!("sh: {error}")).await,
        };
        for step in steps {
            let runs = match step.join {
                Join::Always => true,
                Join::AfterSuccess => self.status == 0,
                Join::AfterFailure => self.status != 0,
            };
            if runs {
                match self.step(&step).await? {
                    Next::Status(status) => self.status = status,
                    end => return Ok(end),
                }
            }
        }
        Ok(Next::Status(self.status))
    }

    async fn step(&mut self, step: &Step) -> Result<Next, ClientClosed> {
        let words: Vec<Vec<u8>> = step.words.iter().map(|word| self.expand(word)).collect();
        let Some((name, rest)) = words.split_first() else { return Ok(Next::Status(0)) };
        let name = String::from_utf8_lossy(name).into_owned();
        let first = rest.first().map(|word| String::from_utf8_lossy(word).into_owned());
        let number = |default: u64| first.as_deref().map_or(Some(default), |word| word.parse::<u64>().ok());
        if let Some((variable, value)) = name.split_once('=')
            && rest.is_empty()
        {
            self.environment.insert(variable.to_owned(), value.to_owned());
            return Ok(Next::Status(0));
        }
        let program = name.rsplit('/').next().unwrap_or(&name);
        match program {
            "true" | ":" => {}
            "false" => return Ok(Next::Status(1)),
            "exec" if !rest.is_empty() => {
                let replacing = Step { words: step.words[1..].to_vec(), ..step.clone() };
                return Ok(match Box::pin(self.step(&replacing)).await? {
                    Next::Status(status) => Next::Exit(status),
                    end => end,
                });
            }
            "exec" => {}
            "exit" => {
                let status = number(u64::from(self.status)).and_then(|status| u32::try_from(status).ok());
                return Ok(Next::Exit(status.unwrap_or(2)));
            }
            "echo" => {
                let (rest, end) = match rest.first() {
                    Some(word) if word == b"-n" => (&rest[1..], &b""[..]),
                    _ => (rest, &b"\n"[..]),
                };
                let mut line = rest.join(&b' ');
                line.extend_from_slice(end);
                self.print(step.stdout, line).await?;
            }
            "printf" => {
                let Some((format, rest)) = rest.split_first() else {
                    return self.complain(2, "printf: a format is missing").await;
                };
                let text = printf(format, rest);
                self.print(step.stdout, text).await?;
            }
            "cat" if !rest.is_empty() => return self.cat(step, rest).await,
            "cat" => {
                while let Some(bytes) = self.stdin.next().await {
                    self.print(step.stdout, bytes).await?;
                }
            }
            "wc" => {
                let mut total = 0;
                while let Some(bytes) = self.stdin.next().await {
                    total += bytes.len();
                }
                self.print(step.stdout, format!("{total}\n")).await?;
            }
            "hostname" => self.print(step.stdout, format!("{}\n", self.host.name)).await?,
            "uname" => {
                let text = match first.as_deref() {
                    Some("-n") => format!("{}\n", self.host.name),
                    Some("-a") => format!("Linux {} 6.1.0-lab #1 SMP x86_64 GNU/Linux\n", self.host.name),
                    Some("-r") => "6.1.0-lab\n".to_owned(),
                    Some("-sr" | "-rs") => "Linux 6.1.0-lab\n".to_owned(),
                    _ => "Linux\n".to_owned(),
                };
                self.print(step.stdout, text).await?;
            }
            "uptime" => self.print(step.stdout, self.uptime()).await?,
            "date" => {
                let now = jiff::Timestamp::now().strftime("%a %b %e %H:%M:%S UTC %Y\n").to_string();
                self.print(step.stdout, now).await?;
            }
            "whoami" => self.print(step.stdout, "lab\n").await?,
            "id" => self.print(step.stdout, "uid=1000(lab) gid=1000(lab) groups=1000(lab)\n").await?,
            "pwd" => self.print(step.stdout, "/\n").await?,
            "env" => {
                let mut lines: Vec<_> =
                    self.environment.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
                lines.sort_unstable();
                self.print(step.stdout, lines.concat()).await?;
            }
            "cd" | "export" | "set" | "umask" => {}
            "sleep" => match first.as_deref().unwrap_or("").parse::<f64>() {
                Ok(seconds) if (0.0..1e9).contains(&seconds) => {
                    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
                }
                _ => return self.complain(1, "sleep: how many seconds?").await,
            },
            "flood" => {
                let seed = rest.get(1).map(|word| String::from_utf8_lossy(word).parse::<u64>());
                let seed = seed.unwrap_or(Ok(self.host.seed()));
                let (Some(bytes), Ok(seed)) = (number(1024 * 1024), seed) else {
                    return self.complain(2, "flood: BYTES [SEED]").await;
                };
                for piece in Flood::new(bytes, seed) {
                    self.print(step.stdout, piece).await?;
                }
            }
            "kill-self" => {
                let name = first.unwrap_or_else(|| "TERM".to_owned());
                return match signal::named(&name) {
                    Some(signal) => Ok(Next::Killed(signal)),
                    None => self.complain(2, "kill-self: a signal such as TERM, KILL, SEGV").await,
                };
            }
            "sh" | "bash" => return self.shell(first.as_deref(), rest).await,
            _ => {
                let text =
                    format!("sh: {}: not found", String::from_utf8_lossy(name.as_bytes()).escape_default());
                return self.complain_to(step.stderr, 127, &text).await;
            }
        }
        Ok(Next::Status(0))
    }

    /// Prints files of the host's own directory, which `put` and SFTP write to. Paths start in the home directory, `/`.
    async fn cat(&mut self, step: &Step, names: &[Vec<u8>]) -> Result<Next, ClientClosed> {
        let files = Sftp::new(self.host.files.clone());
        let mut status = 0;
        for name in names {
            let name = String::from_utf8_lossy(name);
            match files.regular(name.strip_prefix("~/").unwrap_or(&name)).await {
                Ok(mut file) => {
                    let mut piece = vec![0; 32 << 10];
                    // The output of a file ends at a read error.
                    while let Ok(length @ 1..) = file.read(&mut piece).await {
                        self.print(step.stdout, piece[..length].to_vec()).await?;
                    }
                }
                Err(why) => {
                    status = 1;
                    self.print(step.stderr, format!("cat: {}: {why}\n", name.escape_default())).await?;
                }
            }
        }
        Ok(Next::Status(status))
    }

    async fn shell(&mut self, first: Option<&str>, rest: &[Vec<u8>]) -> Result<Next, ClientClosed> {
        let next = match (first, rest.get(1)) {
            (None | Some("-s"), _) => Box::pin(self.stdin_script()).await?,
            (Some("-c"), Some(text)) => Box::pin(self.script(text)).await?,
            _ => return self.complain(2, "sh: only -s and -c COMMAND are understood").await,
        };
        // `exit` ends the nested script only.
        Ok(match next {
            Next::Exit(status) => Next::Status(status),
            next => next,
        })
    }

    fn expand(&self, word: &Word) -> Vec<u8> {
        let mut text = Vec::new();
        for piece in word {
            match piece {
                Piece::Text(piece) => text.extend_from_slice(piece),
                Piece::Variable(name) if name == "?" => {
                    text.extend_from_slice(self.status.to_string().as_bytes())
                }
                Piece::Variable(name) => {
                    text.extend_from_slice(self.environment.get(name).map_or("", String::as_str).as_bytes());
                }
            }
        }
        text
    }

    /// A line that differs for each host and for each call.
    fn uptime(&self) -> String {
        let now = jiff::Timestamp::now();
        let up = 1 + self.host.number % 400;
        let load = fastrand::u32(5..150);
        format!(
            " {} up {up} days, {:2}:{:02},  1 user,  load average: {}.{:02}, 0.{:02}, 0.{:02}\n",
            now.strftime("%H:%M:%S"),
            now.as_second() / 3600 % 24,
            now.as_second() / 60 % 60,
            load / 100,
            load % 100,
            fastrand::u32(5..60),
            fastrand::u32(5..40),
        )
    }

    async fn print(&self, sink: Sink, bytes: impl Into<Bytes>) -> Result<(), ClientClosed> {
        match sink {
            Sink::Stdout => self.write.data_bytes(bytes).await?,
            Sink::Stderr => self.write.extended_data_bytes(STDERR, bytes).await?,
            Sink::Nowhere => {}
        }
        Ok(())
    }

    /// Prints all pieces, until the client has closed the channel.
    pub(crate) async fn print_all(&self, sink: Sink, pieces: impl IntoIterator<Item = Bytes>) -> Ended {
        for piece in pieces {
            if self.print(sink, piece).await.is_err() {
                return Ended::Left;
            }
        }
        Ended::Status(0)
    }

    async fn complain(&self, status: u32, text: &str) -> Result<Next, ClientClosed> {
        self.complain_to(Sink::Stderr, status, text).await
    }

    async fn complain_to(&self, sink: Sink, status: u32, text: &str) -> Result<Next, ClientClosed> {
        self.print(sink, format!("{text}\n")).await?;
        Ok(Next::Status(status))
    }
}

/// Formats `%s`, `%d`, `%%`, `\n`, `\t`, `\r`, `\\`, `\0`, `\xHH` and octal escapes, which can produce any byte.
fn printf(format: &[u8], arguments: &[Vec<u8>]) -> Vec<u8> {
    let mut arguments = arguments.iter();
    let mut out = Vec::new();
    let mut rest = format;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        match (byte, after.first()) {
            (b'%', Some(b's' | b'd')) => {
                out.extend_from_slice(arguments.next().map_or(&b""[..], Vec::as_slice));
                rest = &after[1..];
            }
            (b'%', Some(b'%')) => {
                out.push(b'%');
                rest = &after[1..];
            }
            (b'\\', Some(escape)) => {
                rest = &after[1..];
                match escape {
                    b'n' => out.push(b'\n'),
                    b't' => out.push(b'\t'),
                    b'r' => out.push(b'\r'),
                    b'x' => out.push(digits(&mut rest, 16, 2)),
                    b'0'..=b'7' => {
                        rest = after;
                        out.push(digits(&mut rest, 8, 3));
                    }
                    other => out.push(*other),
                }
            }
            _ => out.push(*byte),
        }
    }
    out
}

/// Parses up to `most` digits at the start of `rest`.
fn digits(rest: &mut &[u8], radix: u32, most: usize) -> u8 {
    let mut value: u32 = 0;
    for _ in 0..most {
        let Some((byte, after)) = rest.split_first() else { break };
        let Some(digit) = char::from(*byte).to_digit(radix) else { break };
        value = value * radix + digit;
        *rest = after;
    }
    value as u8
}

const STDERR: u32 = 1;

const LONGEST_SCRIPT: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printf_makes_any_byte() {
        assert_eq!(printf(b"a\\x1b[31m\\033%s%%\\n", &[b"x".to_vec()]), b"a\x1b[31m\x1bx%\n");
        assert_eq!(printf(b"\\xff\\0\\", &[]), b"\xff\0\\");
    }
}
