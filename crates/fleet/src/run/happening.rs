//! The events of a command on a host, as an engine reports them.

use bytes::Bytes;
use hosts::fleet::ending::{Ending, Phase, Remote};

#[derive(Debug)]
pub enum HostEvent {
    Phase(Phase),
    Output(Stream, Bytes),
    Ended(Ending),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// Facts about a command that this program has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    /// Phase that the command had reached.
    pub(super) phase: Phase,
    /// Whether the server confirmed the end of the command.
    pub(super) remote: Remote,
    /// Bytes of output that were received and discarded.
    pub(super) thrown_away: u64,
}
