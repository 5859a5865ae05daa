//! Asks a person for a passphrase, by the rules of ssh(1): on the controlling terminal, or with the program of
//! `SSH_ASKPASS`. A passphrase never comes from an argument or the environment.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use nix::sys::signal::{Signal, raise};
use nix::sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr};
use thiserror::Error;
use zeroize::Zeroizing;

/// Asks a person. The caller uses a separate thread, with one question at a time.
pub trait Ask: Send + Sync {
    /// Asks the question and blocks until the answer.
    ///
    /// # Errors
    /// There is no way to ask, or the person refused to answer.
    fn ask(&self, question: &Question) -> Result<Zeroizing<String>, AskError>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// One line that ends in `: `, safe to print on a terminal.
    pub text: String,
    pub answer: Answered,
}

/// Visibility of the answer while a person types it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    Unseen,
    Seen,
}

/// Reason why there is no answer.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum AskError {
    /// There is no terminal and no program to ask with.
    #[error("there is no terminal to ask on, and no program in SSH_ASKPASS")]
    NoPrompt,
    /// The person refused to answer.
    #[error("it was cancelled at the prompt")]
    Cancelled,
    /// An error occurred while asking.
    #[error("{0}")]
    Failed(String),
}

/// Refuses every question: for services, and for runs that must not wait for a person.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoPrompt;

impl Ask for NoPrompt {
    fn ask(&self, _: &Question) -> Result<Zeroizing<String>, AskError> {
        Err(AskError::NoPrompt)
    }
}

/// Asks the person at this terminal or desktop.
#[derive(Debug, Clone)]
pub struct UserPrompt {
    program: PathBuf,
    wish: Wish,
    desktop: Desktop,
    terminal: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Unsaid,
    Never,
    Prefer,
    Force,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Desktop {
    Here,
    Absent,
}

impl UserPrompt {
    /// Reads the settings from the environment of this process.
    #[must_use]
    pub fn from_environment() -> Self {
        Self::from_variables(&|name| std::env::var_os(name))
    }

    #[must_use]
    pub fn from_variables(variable: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        let wish = match set("SSH_ASKPASS_REQUIRE").map(|word| word.to_ascii_lowercase()) {
            Some(word) if word == "never" => Wish::Never,
            Some(word) if word == "prefer" => Wish::Prefer,
            Some(word) if word == "force" => Wish::Force,
            _ => Wish::Unsaid,
        };
        let here = set("DISPLAY").or_else(|| set("WAYLAND_DISPLAY")).is_some();
        Self {
            program: set("SSH_ASKPASS").map_or_else(|| PathBuf::from("/usr/bin/ssh-askpass"), PathBuf::from),
            wish,
            desktop: if here { Desktop::Here } else { Desktop::Absent },
            terminal: PathBuf::from("/dev/tty"),
        }
    }
}

impl Ask for UserPrompt {
    fn ask(&self, question: &Question) -> Result<Zeroizing<String>, AskError> {
        let program_may = match self.wish {
            Wish::Force => true,
            Wish::Never => false,
            Wish::Prefer | Wish::Unsaid => self.desktop == Desktop::Here,
        };
        let program_first = program_may && matches!(self.wish, Wish::Force | Wish::Prefer);
        if !program_first {
            let open = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(nix::libc::O_NOCTTY | nix::libc::O_CLOEXEC)
                .open(&self.terminal);
            match open {
                Ok(terminal) => return ask_on(terminal, question),
                Err(_) if program_may => {}
                Err(_) => return Err(AskError::NoPrompt),
            }
        }
        ask_program(&self.program, question)
    }
}

/// The terminal whose echo is off, and its earlier settings.
static QUIET: Mutex<Option<(File, Termios)>> = Mutex::new(None);

/// Restores the settings of the terminal while a question is open. A process that ends without an answer calls this
/// function: the thread that waits for the answer cannot be stopped. After a signal that kills the process at once, the
/// settings stay changed.
pub fn restore_terminal() {
    let quiet = QUIET.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((mut terminal, before)) = quiet {
        let _ = tcsetattr(&terminal, SetArg::TCSAFLUSH, &before);
        let _ = terminal.write_all(b"\n");
    }
}

/// Restores the terminal on drop, with or without an answer.
struct Quiet {
    terminal: File,
}

impl Drop for Quiet {
    fn drop(&mut self) {
        restore_terminal();
    }
}

/// Asks on a terminal. Ctrl-C is read as a byte, so that no signal can end the process while the echo is off; the
/// function raises the signal after it has restored the terminal.
fn ask_on(terminal: File, question: &Question) -> Result<Zeroizing<String>, AskError> {
    let failed = |doing: &str, error: &dyn std::fmt::Display| {
        AskError::Failed(format!("{doing} the terminal failed: {error}"))
    };
    let before = tcgetattr(&terminal).map_err(|error| failed("asking", &error))?;
    let mut during = before.clone();
    during.local_flags.remove(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG);
    during.control_chars[SpecialCharacterIndices::VMIN as usize] = 1;
    during.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
    let kept = terminal.try_clone().map_err(|error| failed("asking", &error))?;
    *QUIET.lock().unwrap_or_else(PoisonError::into_inner) = Some((kept, before));
    let mut quiet = Quiet { terminal };
    tcsetattr(&quiet.terminal, SetArg::TCSAFLUSH, &during).map_err(|error| failed("silencing", &error))?;
    quiet.terminal.write_all(question.text.as_bytes()).map_err(|error| failed("writing to", &error))?;
    let mut line = Zeroizing::new(Vec::with_capacity(LONGEST_ANSWER));
    loop {
        let mut byte = [0_u8];
        match quiet.terminal.read(&mut byte) {
            Ok(0) => return Err(AskError::Cancelled),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed("reading from", &error)),
        }
        match byte[0] {
            b'\r' | b'\n' => break,
            CTRL_C => {
                drop(quiet);
                let _ = raise(Signal::SIGINT);
                return Err(AskError::Cancelled);
            }
            CTRL_D if line.is_empty() => return Err(AskError::Cancelled),
            CTRL_U => line.clear(),
            BACKSPACE | DELETE => while line.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {},
            byte if line.len() < LONGEST_ANSWER => line.push(byte),
            _ => return Err(AskError::Failed(format!("the answer is longer than {LONGEST_ANSWER} bytes"))),
        }
        if question.answer == Answered::Seen && byte[0] >= b' ' && byte[0] != DELETE {
            let _ = quiet.terminal.write_all(&byte);
        }
    }
    text_of(line)
}

/// Runs the askpass program with the question as its argument. The first line of its output is the answer; an exit
/// status other than 0 means that the person refused.
fn ask_program(program: &std::path::Path, question: &Question) -> Result<Zeroizing<String>, AskError> {
    let shown = program.display();
    let mut child = Command::new(program)
        .arg(&question.text)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => AskError::NoPrompt,
            _ => AskError::Failed(format!("starting {shown}, which SSH_ASKPASS names, failed: {error}")),
        })?;
    let mut line = Zeroizing::new(Vec::with_capacity(LONGEST_ANSWER + 2));
    let read = match child.stdout.take() {
        Some(output) => output.take(LONGEST_ANSWER as u64 + 2).read_to_end(&mut line),
        None => Ok(0),
    };
    let status = child.wait();
    match (read, status) {
        (Ok(_), Ok(status)) if status.success() => {}
        (Ok(_), Ok(_)) => return Err(AskError::Cancelled),
        (Err(error), _) | (_, Err(error)) => {
            return Err(AskError::Failed(format!("asking with {shown} failed: {error}")));
        }
    }
    let end = line.iter().position(|byte| matches!(byte, b'\r' | b'\n')).unwrap_or(line.len());
    if end > LONGEST_ANSWER {
        return Err(AskError::Failed(format!("the answer of {shown} is longer than {LONGEST_ANSWER} bytes")));
    }
    line.truncate(end);
    text_of(line)
}

fn text_of(mut line: Zeroizing<Vec<u8>>) -> Result<Zeroizing<String>, AskError> {
    match String::from_utf8(std::mem::take(&mut *line)) {
        Ok(text) => Ok(Zeroizing::new(text)),
        Err(error) => {
            drop(Zeroizing::new(error.into_bytes()));
            Err(AskError::Failed("the answer is not UTF-8".to_owned()))
        }
    }
}

/// Maximum length of an answer, as in OpenSSH. The buffer has this capacity from the start: if it grew, a copy of the
/// secret would stay in memory.
const LONGEST_ANSWER: usize = 1023;
const CTRL_C: u8 = 0x03;
const CTRL_D: u8 = 0x04;
const BACKSPACE: u8 = 0x08;
const CTRL_U: u8 = 0x15;
const DELETE: u8 = 0x7f;

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> Question {
        Question { text: "passphrase: ".to_owned(), answer: Answered::Unseen }
    }

    fn person(directory: &std::path::Path, script: &str, variables: &[(&str, &str)]) -> UserPrompt {
        let program = directory.join("ask");
        testing::tools::executable(&program, &format!("#!/bin/sh\n{script}\n"));
        let mut person = UserPrompt::from_variables(&|name| match name {
            "SSH_ASKPASS" => Some(program.clone().into()),
            _ => variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into()),
        });
        person.terminal = directory.join("no-terminal");
        person
    }

    #[test]
    fn a_program_is_asked_as_ssh_asks_it() {
        let directory = tempfile::tempdir().unwrap();
        let ask = |script, variables| {
            person(directory.path(), script, variables).ask(&question()).map(|answer| answer.to_string())
        };
        let echo = "echo \"got $1\"; echo more";
        assert_eq!(ask(echo, &[("SSH_ASKPASS_REQUIRE", "force")]), Ok("got passphrase: ".to_owned()));
        assert_eq!(ask(echo, &[("DISPLAY", ":0")]), Ok("got passphrase: ".to_owned()));
        assert_eq!(ask(echo, &[("SSH_ASKPASS_REQUIRE", "prefer")]), Err(AskError::NoPrompt), "no desktop");
        assert_eq!(
            ask(echo, &[("DISPLAY", ":0"), ("SSH_ASKPASS_REQUIRE", "never")]),
            Err(AskError::NoPrompt)
        );
        assert_eq!(ask("echo no; exit 1", &[("SSH_ASKPASS_REQUIRE", "force")]), Err(AskError::Cancelled));
        let endless = ask("exec yes | tr -d '\\n'", &[("SSH_ASKPASS_REQUIRE", "force")]);
        assert!(matches!(endless, Err(AskError::Failed(_) | AskError::Cancelled)), "{endless:?}");
    }

    #[test]
    fn a_terminal_is_asked_unseen_and_left_as_it_was() {
        let pty = nix::pty::openpty(None, None).unwrap();
        let mut master = File::from(pty.master);
        let slave = File::from(pty.slave);
        let before = tcgetattr(&slave).unwrap();
        let asked = slave.try_clone().unwrap();
        let answer = std::thread::spawn(move || ask_on(asked, &question()));
        let mut prompt = [0; 12];
        master.read_exact(&mut prompt).unwrap();
        assert_eq!(&prompt, b"passphrase: ");
        master.write_all("wrong\x15sesamé\x7fx\r".as_bytes()).unwrap();
        assert_eq!(*answer.join().unwrap().unwrap(), "sesamx");
        assert_eq!(tcgetattr(&slave).unwrap().local_flags, before.local_flags);
        let mut newline = [0; 2];
        master.read_exact(&mut newline).unwrap();
        assert_eq!(&newline, b"\r\n", "nothing of the answer was echoed");
    }
}
