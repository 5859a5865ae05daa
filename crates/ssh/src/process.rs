//! Commands on a host: their start, output, input and end.

use std::sync::Arc;

use bytes::Bytes;
use hosts::fleet::ending::{Core, Ending, Failure, Phase, Reason, Remote};
use hosts::fleet::verdict;
use russh::client::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use tokio::sync::watch;

use crate::handler::Shared;
use crate::signal;
use crate::stream::close_later;
use crate::trouble::{advised, failure};
use crate::wire::Line;

/// Options for the start of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exec {
    /// Environment variables to set. Servers silently refuse most of them (`AcceptEnv`).
    pub environment: Vec<(String, String)>,
    /// Terminal for the command. Without a terminal, standard output and standard error stay separate.
    pub terminal: Option<Terminal>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terminal {
    /// Value of `TERM`.
    pub kind: String,
    /// Width in characters.
    pub columns: u32,
    /// Height in lines.
    pub rows: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The server confirmed the start of the command.
    Started,
    Stdout(Bytes),
    Stderr(Bytes),
    Ended(Ending),
}

/// A running command. While the caller takes no events, the connection reads nothing from the network beyond a small
/// buffer.
///
/// The drop closes the channel; the command may go on running (see [`Process::end`]).
pub struct Process {
    pub(crate) reading: ChannelReadHalf,
    pub(crate) channel: Arc<ChannelWriteHalf<Msg>>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) phase: Phase,
    /// Exit status or other end of the command itself.
    pub(crate) ending: Option<Ending>,
    /// True after the end of the output of the command and of all processes that it started.
    silent: bool,
    /// True after the last event.
    pub(crate) over: watch::Sender<bool>,
    _line: Arc<Line>,
}

/// Standard input of a command. It can be written while the events of the command are read.
#[derive(Clone)]
pub struct Stdin {
    channel: Arc<ChannelWriteHalf<Msg>>,
    shared: Arc<Shared>,
    over: watch::Receiver<bool>,
}

impl Process {
    pub(crate) fn new(channel: Channel<Msg>, shared: Arc<Shared>, line: Arc<Line>) -> Self {
        let (reading, channel) = channel.split();
        Self {
            reading,
            channel: Arc::new(channel),
            shared,
            phase: Phase::Start,
            ending: None,
            silent: false,
            over: watch::Sender::new(false),
            _line: line,
        }
    }

    /// Waits for the next event; `None` after [`Event::Ended`]. The future can be dropped without loss of an event.
    ///
    /// Like OpenSSH's client, the function waits until the output has ended: processes that the command left behind may
    /// hold standard output or standard error open after the command's own end. A caller with a time limit finds out by
    /// [`Process::ended_itself`] that the command itself has ended.
    pub async fn next(&mut self) -> Option<Event> {
        if *self.over.borrow() {
            return None;
        }
        loop {
            let message = if self.ending.is_some() && self.silent {
                match tokio::time::timeout(CLOSING, self.reading.wait()).await {
                    Ok(message) => message,
                    Err(_) => {
                        close_later(&self.channel, None, None, None);
                        return Some(self.finish());
                    }
                }
            } else {
                self.reading.wait().await
            };
            match message {
                Some(ChannelMsg::Success) if self.phase == Phase::Start => {
                    self.phase = Phase::Run;
                    return Some(Event::Started);
                }
                Some(ChannelMsg::Failure) if self.phase == Phase::Start => {
                    self.ending = Some(Ending::Failed(self.refused()));
                    return Some(self.finish());
                }
                Some(ChannelMsg::Data { data }) => return Some(Event::Stdout(data)),
                Some(ChannelMsg::ExtendedData { data, ext: 1 }) => return Some(Event::Stderr(data)),
                Some(ChannelMsg::ExitStatus { exit_status }) => {
                    self.ending = Some(Ending::Exited(exit_status));
                }
                Some(ChannelMsg::ExitSignal { signal_name, core_dumped, .. }) => {
                    self.ending = Some(Ending::Signalled {
                        signal: signal::word(&signal_name),
                        core: if core_dumped { Core::Dumped } else { Core::None },
                    });
                }
                Some(ChannelMsg::Eof) => self.silent = true,
                Some(ChannelMsg::Close) => return Some(self.finish()),
                None => {
                    // The connection has ended; the reason follows a moment later.
                    match &self.ending {
                        None => self.ending = Some(Ending::Failed(self.lost().await)),
                        Some(ending) if !self.silent => {
                            let ended = verdict::title(ending);
                            let lost = self.lost().await;
                            let detail = format!(
                                "{}; the command had ended ({ended}), but the end of its output had not come: that may be \
                                 cut",
                                lost.detail
                            );
                            let lost = Failure { detail, remote: Remote::Ended, ..lost };
                            self.ending = Some(Ending::Failed(lost));
                        }
                        Some(_) => {}
                    }
                    return Some(self.finish());
                }
                Some(_) => {}
            }
        }
    }

    /// Returns the end of the command itself. It is known before [`Event::Ended`] if another process still holds the
    /// output open.
    #[must_use]
    pub fn ended_itself(&self) -> Option<&Ending> {
        self.ending.as_ref()
    }

    #[must_use]
    pub fn stdin(&self) -> Stdin {
        Stdin {
            channel: Arc::clone(&self.channel),
            shared: Arc::clone(&self.shared),
            over: self.over.subscribe(),
        }
    }

    /// Writes to the standard input of the command, and waits while the command does not read. No events are read
    /// meanwhile: if the command may write much output, write through [`Process::stdin`] in parallel with reading.
    ///
    /// # Errors
    /// The command or the connection has ended.
    pub async fn write(&mut self, data: &[u8]) -> Result<(), Failure> {
        self.stdin().write(Bytes::copy_from_slice(data)).await
    }

    /// Closes the standard input of the command.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn finish_stdin(&mut self) -> Result<(), Failure> {
        self.stdin().finish().await
    }

    /// Sends a signal, such as `TERM`, to the command and its processes (RFC 4254 section 6.9). The server does not
    /// report the effect; OpenSSH ignores signals to commands that its configuration forces.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn signal(&mut self, name: &str) -> Result<(), Failure> {
        match self.channel.signal(signal::any(name)).await {
            Ok(()) => Ok(()),
            Err(fault) => Err(self.shared.why(self.phase, &fault).await),
        }
    }

    fn finish(&mut self) -> Event {
        self.over.send_replace(true);
        let ending = match &self.ending {
            Some(ending) => ending.clone(),
            None => Ending::Failed(failure(
                self.phase,
                Reason::NoExitStatus,
                format!("{} closed the channel without saying how the command ended", self.shared.name),
            )),
        };
        self.ending = Some(ending.clone());
        Event::Ended(ending)
    }

    pub(crate) fn refused(&self) -> Failure {
        let mut refused = advised(
            Phase::Start,
            Reason::ChannelRefused,
            format!("{} logged us in, but refused to run the command", self.shared.name),
            "look at the options of our key in authorized_keys there, and at its sshd_config",
        );
        refused.remote = Remote::NotStarted;
        refused
    }

    async fn lost(&self) -> Failure {
        self.shared.why(self.phase, &russh::Error::Disconnect).await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.over.send_replace(true) {
            close_later(&self.channel, None, None, None);
        }
    }
}

impl Stdin {
    /// Writes data, and waits while the command does not read.
    ///
    /// # Errors
    /// The command or the connection has ended.
    pub async fn write(&mut self, data: Bytes) -> Result<(), Failure> {
        let mut ended = self.shared.ended.subscribe();
        let sent = tokio::select! {
            sent = self.channel.data_bytes(data) => sent,
            // After the channel is closed, the server sends no further window, so the write would wait for ever.
            _ = self.over.wait_for(|over| *over) => Err(russh::Error::WrongChannel),
            _ = ended.wait_for(Option::is_some) => Err(russh::Error::Disconnect),
        };
        match sent {
            Ok(()) => Ok(()),
            Err(russh::Error::WrongChannel) => Err(failure(
                Phase::Run,
                Reason::ChannelRefused,
                format!("the command on {} ended without reading all its input", self.shared.name),
            )),
            Err(fault) => Err(self.shared.why(Phase::Run, &fault).await),
        }
    }

    /// Closes the standard input.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn finish(&mut self) -> Result<(), Failure> {
        match self.channel.eof().await {
            Ok(()) => Ok(()),
            Err(fault) => Err(self.shared.why(Phase::Run, &fault).await),
        }
    }
}

/// Maximum wait for the close of a channel after the end of its output.
const CLOSING: std::time::Duration = std::time::Duration::from_secs(2);
