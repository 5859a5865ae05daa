//! A key at this machine that responds to challenges, asked by the programs of Yubico: `ykchalresp`, and `ykinfo` for its serial
//! number. No shell runs them, and nothing of the program that logs the user in reaches them: neither environment nor descriptors.

use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::ask::Asked;
use crate::ffi;
use crate::secret::Secret;

/// Time for one response: a key that wants to be touched waits for 15 s.
const LIMIT: Duration = Duration::from_secs(20);

/// Longest text that a program prints.
const LONGEST: usize = 256;

/// Digits of a response.
const RESPONSE: usize = 40;

/// Permission bits of others than the owner that let them write.
const WRITE_OF_OTHERS: u32 = 0o022;

/// Asks the key for its responses to the challenge of this log-in and to that of the next one.
pub(crate) fn respond(program: &Path, asked: &Asked) -> io::Result<[Secret; 2]> {
    Ok([response(program, asked, &asked.challenge)?, response(program, asked, &asked.next)?])
}

fn response(program: &Path, asked: &Asked, challenge: &str) -> io::Result<Secret> {
    let text = run(program, &[asked.slot.option(), "-x", challenge], LIMIT)?;
    let is_whole = text.len() == RESPONSE && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match is_whole {
        true => Ok(text),
        false => Err(io::Error::other("it prints no response: 40 hexadecimal digits on one line")),
    }
}

/// The serial number of the key.
pub(crate) fn serial(program: &Path) -> io::Result<Secret> {
    let text = run(program, &["-s", "-q"], LIMIT)?;
    match text.parse::<u32>() {
        Ok(_) => Ok(text),
        Err(_) => Err(io::Error::other("it prints no serial number")),
    }
}

/// Runs a program to its end, and returns the line that it prints, without its end.
pub(crate) fn run(program: &Path, arguments: &[&str], limit: Duration) -> io::Result<Secret> {
    let facts = fs::metadata(program)?;
    if facts.uid() != 0 && facts.uid() != ffi::own_user() || facts.mode() & WRITE_OF_OTHERS != 0 {
        let why = format!("others may write to it (chown root {0}; chmod go-w {0})", program.display());
        return Err(io::Error::other(why));
    }
    let until = Instant::now() + limit;
    // In place of a pipe, whose reading has no limit.
    let (mut ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().current_dir("/");
    command.stdin(Stdio::null()).stdout(OwnedFd::from(theirs)).stderr(Stdio::null());
    ffi::alone_for(&mut command, limit);
    let mut child = command.spawn()?;
    // It has the other end as well.
    drop(command);
    let text = read(&mut ours, until, limit)?;
    // It has ended, or does so when its time is over. The program that logs the user in may have taken its end, and with it the
    // status: then what it printed counts.
    let failed = child.wait().ok().filter(|status| !status.success());
    match failed {
        Some(status) => Err(io::Error::other(format!("it failed ({status}): is the key there?"))),
        None => Ok(text),
    }
}

fn read(stream: &mut UnixStream, until: Instant, limit: Duration) -> io::Result<Secret> {
    // With room for all: a vector that grows leaves copies behind.
    let mut bytes = Vec::with_capacity(2 * LONGEST);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let late = || io::Error::other(format!("it does not end within {} s", limit.as_secs()));
        if left.is_zero() {
            return Err(late());
        }
        stream.set_read_timeout(Some(left))?;
        let mut part = [0; LONGEST];
        let count = match stream.read(&mut part) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(late()),
            read => read?,
        };
        bytes.extend_from_slice(&part[..count]);
        ffi::wipe(&mut part);
        if bytes.len() > LONGEST {
            return Err(io::Error::other(format!("it prints more than {LONGEST} bytes")));
        }
        if count == 0 {
            break;
        }
    }
    if bytes.ends_with(b"\n") {
        bytes.pop();
    }
    String::from_utf8(bytes).map(Secret::new).map_err(|_| io::Error::other("it prints no text"))
}
