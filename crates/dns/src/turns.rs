//! Who may open a socket: a process whose clients share its descriptors counts them before they are opened.

use std::pin::Pin;

/// The account of a process for its sockets.
pub trait Turns: Send + Sync {
    /// Waits until sockets for one question may be opened. They count as open until the result is dropped.
    fn turn(&self) -> Pin<Box<dyn Future<Output = Box<dyn Send>> + Send + '_>>;
}

/// The account of a process that has few sockets.
pub struct Unlimited;

impl Turns for Unlimited {
    fn turn(&self) -> Pin<Box<dyn Future<Output = Box<dyn Send>> + Send + '_>> {
        Box::pin(async { Box::new(()) as Box<dyn Send> })
    }
}
