//! `penstock bench-ssh`: our SSH engine as a client of `penstock bench ciphers`. Users do not call it: it verifies one
//! host by one given key, and transfers standard input or output.

use std::fs;
use std::future::ready;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use clap::Args;
use hosts::fleet::ending::{Ending, Failure as Stopped, Reason};
use hosts::ssh::key::PublicKey;
use nix::fcntl::{FcntlArg, fcntl};
use ssh::{
    BoxFuture, Client, Event, Exec, HostVerifier, KeyPlan, Keys, Offered, Place, Process, Purpose, Target,
    Verdict,
};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use crate::output::Failure;

/// Transfer bytes through one SSH session
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The server
    #[arg(long)]
    address: SocketAddr,
    /// User name for the log-in
    #[arg(long)]
    user: String,
    /// Our private key
    #[arg(long)]
    identity: PathBuf,
    /// The server's public host key
    #[arg(long)]
    host_key: PathBuf,
    /// The only cipher to offer
    #[arg(long)]
    cipher: Option<String>,
    /// Command for the server
    command: String,
}

/// Runs the command, with standard input if that is a pipe, and exits with its exit status.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let known = fs::read_to_string(&arguments.host_key)?;
    let known: PublicKey = known.parse().map_err(io::Error::other)?;
    let ending = runtime.block_on(carry(arguments, known))?;
    match ending {
        Ending::Exited(0) => Ok(()),
        ending => Err(io::Error::other(format!("the command ended with {ending:?}")).into()),
    }
}

async fn carry(arguments: &Arguments, known: PublicKey) -> Result<Ending, Failure> {
    let mut target = Target::new("bench", &arguments.user);
    target.addresses.known = vec![arguments.address.ip()];
    target.port = arguments.address.port();
    target.keys = KeyPlan::of_file(arguments.identity.clone());
    target.algorithms.ciphers = arguments.cipher.iter().cloned().collect();
    target.purpose = Purpose::Bulk;
    let client = Client::new(Arc::new(Only(known)), Arc::new(Keys::new()));
    let session = client.connect(&target, &|_| {}).await.map_err(stopped)?;
    let mut process = session.exec(&arguments.command, &Exec::default()).await.map_err(stopped)?;
    // With the default pipe size of 64 KiB, reader and writer would constantly wait for each other.
    for end in [io::stdin().as_fd(), io::stdout().as_fd()] {
        let _ = fcntl(end, FcntlArg::F_SETPIPE_SZ(PIPE));
    }
    // Read pipes asynchronously, without threads, to be comparable with ssh.
    match pipe::Receiver::from_owned_fd(io::stdin().as_fd().try_clone_to_owned()?) {
        Ok(input) => feed(&process, input).await?,
        Err(_) => process.finish_stdin().await.map_err(stopped)?,
    }
    let output = pipe::Sender::from_owned_fd(io::stdout().as_fd().try_clone_to_owned()?).ok();
    let mut batch = Vec::new();
    loop {
        // Write all received packets at once: waking the reader for every packet would cost both sides more.
        let event = tokio::select! {
            biased;
            event = process.next(), if batch.len() < MOST_AT_ONCE => event,
            () = ready(()), if !batch.is_empty() => {
                write(output.as_ref(), &batch).await?;
                batch.clear();
                continue;
            }
        };
        match event {
            Some(Event::Stdout(data)) => batch.push(data),
            Some(Event::Ended(ending)) => {
                write(output.as_ref(), &batch).await?;
                return Ok(ending);
            }
            Some(_) => {}
            None => {
                return Err(io::Error::other("the server closed the session without an exit status").into());
            }
        }
    }
}

/// Writes all bytes, or discards them if standard output is not a pipe.
async fn write(output: Option<&pipe::Sender>, batch: &[Bytes]) -> io::Result<()> {
    let Some(output) = output else { return Ok(()) };
    let mut slices: Vec<_> = batch.iter().map(|data| IoSlice::new(data)).collect();
    let mut left = &mut slices[..];
    // Removes empty slices, so that `left` is empty if there is nothing to write.
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        output.writable().await?;
        match output.try_write_vectored(left) {
            Ok(count) => IoSlice::advance_slices(&mut left, count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn feed(process: &Process, mut input: pipe::Receiver) -> Result<(), Failure> {
    let mut stdin = process.stdin();
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(CHUNK);
        match input.read_buf(&mut buffer).await? {
            0 => return stdin.finish().await.map_err(stopped),
            _ => stdin.write(buffer.split().freeze()).await.map_err(stopped)?,
        }
    }
}

/// Largest number of bytes read from standard input at once.
const CHUNK: usize = 256 * 1024;
/// Largest number of packets per write.
const MOST_AT_ONCE: usize = 16;
/// Largest pipe size for an unprivileged process (/proc/sys/fs/pipe-max-size).
const PIPE: i32 = 1 << 20;

fn stopped(failure: Stopped) -> Failure {
    io::Error::other(failure.detail).into()
}

/// Host verifier that accepts one key.
struct Only(PublicKey);

impl HostVerifier for Only {
    fn wanted(&self, _: &str) -> Vec<String> {
        vec![self.0.algorithm().to_owned()]
    }

    fn judge<'a>(&'a self, _: &'a str, _: &'a Place, offered: &'a Offered) -> BoxFuture<'a, Verdict> {
        let verdict = match offered {
            Offered::Key(key) if *key == self.0 => Verdict::Accepted { note: None },
            _ => Verdict::Refused {
                reason: Reason::KeyChanged,
                message: "the server has another key than --host-key says".to_owned(),
                advice: String::new(),
            },
        };
        Box::pin(std::future::ready(verdict))
    }

    fn announced(&self, _: &str, _: Vec<PublicKey>) {}
}
