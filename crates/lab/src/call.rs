//! The request of a client in a channel, and how the channel ended.

use russh::Sig;

#[derive(Debug)]
pub(crate) enum Call {
    Command(Vec<u8>),
    /// `shell`: the script comes on standard input.
    Shell,
}

#[derive(Debug)]
pub(crate) enum Ended {
    Status(u32),
    Signal(Sig),
    /// The channel closes without an exit status.
    Untold,
    /// The client closed the channel or the connection first. A real host would let the process run on.
    Left,
}
