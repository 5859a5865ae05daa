//! Asks the helper (`crates/serve/src/acme/helper.rs`) to run a command of dns-01, and waits for the answer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use config::types::DnsCommand;
use state::lock::lock;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{mpsc, oneshot};

use super::fault::Fault;
use super::helper::{Action, Helper, Reply, Request, line};

/// Time beyond the limit of a command in which the helper ends it and answers.
const MORE: Duration = Duration::from_secs(15);

/// Lines that wait to be written; an order waits for room.
const LINES: usize = 64;

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Result<(), String>>>>>;

/// The helper, for all orders.
#[derive(Default)]
pub struct Hooks {
    commands: Vec<Vec<String>>,
    /// Lines for the helper; `None` without one. A task of its own writes them: an order that is aborted cuts no line.
    to: Option<mpsc::Sender<Vec<u8>>>,
    waiting: Waiting,
    next: AtomicU64,
}

impl Hooks {
    /// Must be called on a tokio runtime.
    pub fn new(helper: Helper) -> std::io::Result<Self> {
        let Helper { commands, stream } = helper;
        let Some(stream) = stream else { return Ok(Self::default()) };
        stream.set_nonblocking(true)?;
        let (from, to) = UnixStream::from_std(stream)?.into_split();
        let waiting = Waiting::default();
        let heard = waiting.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(from).lines();
            while let Ok(Some(text)) = lines.next_line().await {
                let Ok(Reply { id, result }) = serde_json::from_str(&text) else { break };
                if let Some(answer) = lock(&heard).remove(&id) {
                    // An order that was ended waits no more.
                    let _ = answer.send(result);
                }
            }
            lock(&heard).clear();
        });
        let (sender, lines) = mpsc::channel(LINES);
        tokio::spawn(write(lines, to));
        Ok(Self { commands, to: Some(sender), waiting, next: AtomicU64::new(0) })
    }

    async fn ask(&self, command: &DnsCommand, action: Action, name: &str, value: &str) -> Result<(), String> {
        let gone = || "the helper that runs it has ended: restart penstock".to_owned();
        let number = self.commands.iter().position(|known| *known == command.words).ok_or_else(gone)?;
        let to = self.to.as_ref().ok_or_else(gone)?;
        let id = self.next.fetch_add(1, Relaxed);
        let (limit, name, value) = (command.limit, name.to_owned(), value.to_owned());
        let request = Request { id, command: number, limit, action, name, value };
        let line = line(&request).map_err(|error| error.to_string())?;
        let (sender, answer) = oneshot::channel();
        lock(&self.waiting).insert(id, sender);
        let result = match to.send(line).await {
            Ok(()) => tokio::time::timeout(command.limit + MORE, answer).await,
            Err(_) => Ok(Ok(Err(gone()))),
        };
        lock(&self.waiting).remove(&id);
        match result {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(gone()),
            Err(_) => Err("the helper that runs it does not answer: restart penstock".to_owned()),
        }
    }
}

/// Writes lines to the helper until it ends.
async fn write(mut lines: mpsc::Receiver<Vec<u8>>, mut to: OwnedWriteHalf) {
    while let Some(line) = lines.recv().await {
        if to.write_all(&line).await.is_err() {
            return;
        }
    }
}

/// The command of a section.
pub(super) struct HookCommand {
    hooks: Arc<Hooks>,
    command: DnsCommand,
}

/// A record that a command adds and removes.
#[derive(Clone)]
pub(super) struct Hooked {
    name: String,
    value: String,
}

impl Hooked {
    /// The record that proves control of a name.
    pub(super) fn new(name: &str, value: String) -> Self {
        Self { name: format!("_acme-challenge.{}.", name.trim_start_matches("*.")), value }
    }
}

impl HookCommand {
    pub(super) fn new(hooks: Arc<Hooks>, command: DnsCommand) -> Self {
        Self { hooks, command }
    }

    pub(super) async fn add(&self, record: &Hooked) -> Result<(), Fault> {
        let result = self.hooks.ask(&self.command, Action::Present, &record.name, &record.value).await;
        result.map_err(|why| self.fault("add the record", why))
    }

    pub(super) async fn remove(&self, record: &Hooked) -> Result<(), Fault> {
        let result = self.hooks.ask(&self.command, Action::Cleanup, &record.name, &record.value).await;
        result.map_err(|why| self.fault("remove the record", why))
    }

    fn fault(&self, doing: &'static str, why: String) -> Fault {
        Fault::Command { program: self.command.words.first().cloned().unwrap_or_default(), doing, why }
    }
}
