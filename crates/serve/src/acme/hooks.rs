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
use tokio::sync::oneshot;

use super::fault::Fault;
use super::helper::{Action, Helper, Reply, Request, line};

/// Time beyond the limit of a command in which the helper ends it and answers.
const MORE: Duration = Duration::from_secs(15);

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Result<(), String>>>>>;

/// The helper, for all orders.
#[derive(Default)]
pub struct Hooks {
    commands: Vec<Vec<String>>,
    /// `None` without a helper.
    to: Option<tokio::sync::Mutex<OwnedWriteHalf>>,
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
        Ok(Self { commands, to: Some(tokio::sync::Mutex::new(to)), waiting, next: AtomicU64::new(0) })
    }

    async fn ask(&self, command: &DnsCommand, action: Action, name: &str, value: &str) -> Result<(), String> {
        let gone = || "the helper that runs it has ended: restart penstock".to_owned();
        let number = self.commands.iter().position(|known| *known == command.words).ok_or_else(gone)?;
        let to = self.to.as_ref().ok_or_else(gone)?;
        let id = self.next.fetch_add(1, Relaxed);
        let (sender, answer) = oneshot::channel();
        lock(&self.waiting).insert(id, sender);
        let (limit, name, value) = (command.limit, name.to_owned(), value.to_owned());
        let request = Request { id, command: number, limit, action, name, value };
        let sent = match line(&request) {
            Ok(line) => to.lock().await.write_all(&line).await,
            Err(error) => Err(error),
        };
        let result = match sent {
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

/// The records that one order has added with a command.
pub(super) struct CommandRecords<'a> {
    hooks: &'a Hooks,
    command: &'a DnsCommand,
    added: Vec<(String, String)>,
}

impl<'a> CommandRecords<'a> {
    pub(super) fn new(hooks: &'a Hooks, command: &'a DnsCommand) -> Self {
        Self { hooks, command, added: Vec::new() }
    }

    /// Adds the record that proves control of a name.
    pub(super) async fn add(&mut self, name: &str, value: String) -> Result<(), Fault> {
        let name = format!("_acme-challenge.{}.", name.trim_start_matches("*."));
        let result = self.hooks.ask(self.command, Action::Present, &name, &value).await;
        // It is removed even if the command failed: the command may have added it.
        self.added.push((name, value));
        result.map_err(|why| self.fault("add the record", why))
    }

    /// Removes all records that were added. A record that cannot be removed does not stop the removal of the others; the first
    /// error is returned.
    pub(super) async fn remove(&mut self) -> Result<(), Fault> {
        let mut result = Ok(());
        for (name, value) in std::mem::take(&mut self.added) {
            let removed = self.hooks.ask(self.command, Action::Cleanup, &name, &value).await;
            result = result.and(removed.map_err(|why| self.fault("remove the record", why)));
        }
        result
    }

    fn fault(&self, doing: &'static str, why: String) -> Fault {
        Fault::Command { program: self.command.words.first().cloned().unwrap_or_default(), doing, why }
    }
}
