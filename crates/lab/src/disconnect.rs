//! Ends a connection with a message of the server.

use tokio::sync::Notify;

/// A message that would damage a terminal: it clears the screen, sets the title and colours, rings the bell, moves the
/// cursor back, and reverses the direction of text.
pub const HOSTILE_DISCONNECT: &str =
    "good\u{1b}[2J\u{1b}]0;title\u{7} \u{1b}[31mbye\u{8}\u{8}\r\u{202e}evil\u{9b}1m\nlab000 -> all is well\n";

/// Asks the library to end a connection with a message: before the log-in a session has no handle of its own.
#[derive(Default)]
pub(crate) struct DisconnectHandle {
    pub wanted: Notify,
    pub queued: Notify,
}
