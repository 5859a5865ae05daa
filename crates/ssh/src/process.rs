//! A command that runs on a host.

use std::sync::Arc;

use bytes::Bytes;
use logic::fleet::ending::{Core, Ending, Failure, Phase, Reason, Remote};
use russh::client::Msg;
use russh::{Channel, ChannelMsg, Sig};

use crate::handler::Shared;
use crate::target::Target;
use crate::trouble;

/// How a command is started.
#[derive(Debug, Clone, Default)]
pub struct Exec {}

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
pub struct Process {
    channel: Channel<Msg>,
    target: Arc<Target>,
    shared: Arc<Shared>,
    phase: Phase,
    ending: Option<Ending>,
    over: bool,
}

impl Process {
    pub(crate) fn new(channel: Channel<Msg>, target: Arc<Target>, shared: Arc<Shared>) -> Self {
        Self { channel, target, shared, phase: Phase::Start, ending: None, over: false }
    }

    /// The next event; `None` after [`Event::Ended`].
    pub async fn next(&mut self) -> Option<Event> {
        if self.over {
            return None;
        }
        loop {
            match self.channel.wait().await {
                Some(ChannelMsg::Success) if self.phase == Phase::Start => {
                    self.phase = Phase::Run;
                    return Some(Event::Started);
                }
                Some(ChannelMsg::Failure) if self.phase == Phase::Start => {
                    self.over = true;
                    let mut refused = trouble::failure(
                        Phase::Start,
                        Reason::ChannelRefused,
                        format!("{} refused to run the command", self.target.name),
                    );
                    refused.remote = Remote::NeverStarted;
                    return Some(Event::Ended(Ending::Failed(refused)));
                }
                Some(ChannelMsg::Data { data }) => return Some(Event::Stdout(data)),
                Some(ChannelMsg::ExtendedData { data, ext: 1 }) => return Some(Event::Stderr(data)),
                Some(ChannelMsg::ExitStatus { exit_status }) => {
                    self.ending = Some(Ending::Exited(exit_status))
                }
                Some(ChannelMsg::ExitSignal { signal_name, core_dumped, .. }) => {
                    self.ending = Some(Ending::Signalled {
                        signal: signal_word(&signal_name),
                        core: if core_dumped { Core::Dumped } else { Core::None },
                    });
                }
                Some(ChannelMsg::Close) | None => {
                    self.over = true;
                    let ending = self.ending.take().unwrap_or_else(|| Ending::Failed(self.no_status()));
                    return Some(Event::Ended(ending));
                }
                Some(_) => {}
            }
        }
    }

    /// Writes to the command's standard input; waits while the other side does not read.
    ///
    /// # Errors
    /// The command or the connection has ended.
    pub async fn write(&mut self, data: &[u8]) -> Result<(), Failure> {
        self.channel.data(data).await.map_err(|fault| trouble::of(self.phase, &fault, &self.target))
    }

    /// Ends the command's standard input.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn finish_stdin(&mut self) -> Result<(), Failure> {
        self.channel.eof().await.map_err(|fault| trouble::of(self.phase, &fault, &self.target))
    }

    /// Sends a signal, such as `TERM`, to the command (RFC 4254 section 6.9). The server does not say whether it obeyed.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn signal(&mut self, name: &str) -> Result<(), Failure> {
        let signal = match name {
            "TERM" => Sig::TERM,
            "KILL" => Sig::KILL,
            "INT" => Sig::INT,
            "HUP" => Sig::HUP,
            "QUIT" => Sig::QUIT,
            "USR1" => Sig::USR1,
            other => Sig::Custom(other.to_owned()),
        };
        self.channel.signal(signal).await.map_err(|fault| trouble::of(self.phase, &fault, &self.target))
    }

    fn no_status(&self) -> Failure {
        match self.shared.ended.borrow().clone() {
            Some(mut failure) => {
                failure.phase = self.phase;
                failure.remote = Remote::Unknown;
                failure
            }
            None => trouble::failure(
                self.phase,
                Reason::NoStatus,
                format!("{} closed the channel without saying how the command ended", self.target.name),
            ),
        }
    }
}

fn signal_word(signal: &Sig) -> String {
    match signal {
        Sig::ABRT => "ABRT",
        Sig::ALRM => "ALRM",
        Sig::FPE => "FPE",
        Sig::HUP => "HUP",
        Sig::ILL => "ILL",
        Sig::INT => "INT",
        Sig::KILL => "KILL",
        Sig::PIPE => "PIPE",
        Sig::QUIT => "QUIT",
        Sig::SEGV => "SEGV",
        Sig::TERM => "TERM",
        Sig::USR1 => "USR1",
        Sig::Custom(name) => name,
    }
    .to_owned()
}
