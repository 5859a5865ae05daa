//! A command that runs on a host.

use std::sync::Arc;

use bytes::Bytes;
use logic::fleet::ending::{Core, Ending, Failure, Phase, Reason, Remote};
use logic::fleet::verdict;
use russh::client::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use tokio::sync::watch;

use crate::handler::Shared;
use crate::signal;
use crate::stream::close_later;
use crate::trouble::{advised, failure};
use crate::wire::Line;

/// How a command is started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exec {
    /// Variables to set; servers refuse most (`AcceptEnv`), silently.
    pub environment: Vec<(String, String)>,
    /// A terminal to run it in; without one standard output and error stay apart.
    pub terminal: Option<Terminal>,
}

/// A terminal as a remote command sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terminal {
    /// The value of `TERM`.
    pub kind: String,
    /// Its width in characters.
    pub columns: u32,
    /// Its height in lines.
    pub rows: u32,
}

/// What a command does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The server says that it runs.
    Started,
    /// From its standard output.
    Stdout(Bytes),
    /// From its standard error.
    Stderr(Bytes),
    /// The last event.
    Ended(Ending),
}

/// A running command. Nothing is read from the network while its events are not taken, but for a small buffer.
///
/// Dropping it closes the channel; the command may then go on (see [`Process::end`]).
pub struct Process {
    pub(crate) reading: ChannelReadHalf,
    pub(crate) channel: Arc<ChannelWriteHalf<Msg>>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) phase: Phase,
    /// How the command itself ended.
    pub(crate) ending: Option<Ending>,
    /// Nothing more comes from it, nor from what it started.
    silent: bool,
    /// True once no more events will come.
    pub(crate) over: watch::Sender<bool>,
    _line: Arc<Line>,
}

/// The standard input of a command, to be written while its events are read.
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

    /// The next event; `None` after [`Event::Ended`]. May be dropped and called again without losing anything.
    ///
    /// A command has ended when its output has: like OpenSSH's client this waits for what it started and left behind,
    /// for as long as that holds its standard output or error open. Nothing is cut off. Whoever has a limit of time learns
    /// from [`Process::ended_itself`] what he waits for.
    pub async fn next(&mut self) -> Option<Event> {
        if *self.over.borrow() {
            return None;
        }
        loop {
            let message = if self.ending.is_some() && self.silent {
                match tokio::time::timeout(CLOSING, self.reading.wait()).await {
                    Ok(message) => message,
                    Err(_) => {
                        close_later(&self.channel, None, None);
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
                    // The connection is gone; why comes a moment later.
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

    /// How the command itself ended, which is known before [`Event::Ended`] while something that it started holds its
    /// output open.
    #[must_use]
    pub fn ended_itself(&self) -> Option<&Ending> {
        self.ending.as_ref()
    }

    /// Its standard input.
    #[must_use]
    pub fn stdin(&self) -> Stdin {
        Stdin {
            channel: Arc::clone(&self.channel),
            shared: Arc::clone(&self.shared),
            over: self.over.subscribe(),
        }
    }

    /// Writes to its standard input; waits while the other side does not read. While it waits no events are taken, so
    /// where the command may answer much, write through [`Process::stdin`] beside reading.
    ///
    /// # Errors
    /// The command or the connection has ended.
    pub async fn write(&mut self, data: &[u8]) -> Result<(), Failure> {
        self.stdin().write(Bytes::copy_from_slice(data)).await
    }

    /// Ends its standard input.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn finish_stdin(&mut self) -> Result<(), Failure> {
        self.stdin().finish().await
    }

    /// Sends a signal, such as `TERM`, to the command and all it started (RFC 4254 section 6.9). The server does not say
    /// whether it obeyed; OpenSSH does not for commands that its configuration forces.
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
                Reason::NoStatus,
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
        refused.remote = Remote::NeverStarted;
        refused
    }

    async fn lost(&self) -> Failure {
        self.shared.why(self.phase, &russh::Error::Disconnect).await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.over.send_replace(true) {
            close_later(&self.channel, None, None);
        }
    }
}

impl Stdin {
    /// Writes; waits while the other side does not read.
    ///
    /// # Errors
    /// The command or the connection has ended.
    pub async fn write(&mut self, data: Bytes) -> Result<(), Failure> {
        let mut ended = self.shared.ended.subscribe();
        let sent = tokio::select! {
            sent = self.channel.data_bytes(data) => sent,
            // Nobody opens the window of a channel that is closed.
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

    /// Ends it.
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

/// How long a server may take to close a channel on which nothing more comes.
const CLOSING: std::time::Duration = std::time::Duration::from_secs(2);
