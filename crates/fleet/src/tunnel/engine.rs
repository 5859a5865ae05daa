//! What carries a tunnel: a connection to its host, on which streams are opened both ways.

use std::pin::Pin;
use std::sync::Arc;

use logic::fleet::ending::{Failure, Phase, Reason, Remote};
use logic::tunnel::plan::{Endpoint, Forward, Listen, Tunnel};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

/// A future without a name.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A stream in both directions; `shutdown` ends ours and leaves theirs open.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Opens connections to hosts.
pub trait Engine: Send + Sync {
    /// Connects and logs in. What listens on our side is made elsewhere; `links` is what the run calls its own directory.
    fn connect<'a>(
        &'a self,
        tunnel: &'a Tunnel,
        own: &'a std::path::Path,
        run: &'a str,
    ) -> Boxed<'a, Result<Arc<dyn Link>, Failure>>;
}

/// One connection.
pub trait Link: Send + Sync {
    /// Lets the host connect to `to`.
    fn open<'a>(&'a self, to: &'a Endpoint) -> Boxed<'a, Result<Box<dyn Duplex>, Failure>>;
    /// Lets the host listen for a remote forward.
    fn listen<'a>(&'a self, forward: &'a Forward) -> Boxed<'a, Result<Incoming, Failure>>;
    /// Waits for the end of the connection.
    fn closed(&self) -> Boxed<'_, Failure>;
    /// Ends it.
    fn close(&self) -> Boxed<'_, ()>;
}

/// What the host accepts for a remote forward.
pub struct Incoming {
    /// Where it listens in the end.
    pub at: Listen,
    /// Each connection.
    pub streams: mpsc::Receiver<Box<dyn Duplex>>,
}

/// A failure with its parts.
pub(crate) fn failure(
    phase: Phase,
    reason: Reason,
    detail: impl Into<String>,
    advice: Option<&str>,
) -> Failure {
    Failure {
        phase,
        reason,
        detail: detail.into(),
        advice: advice.map(str::to_owned),
        remote: Remote::NeverStarted,
    }
}

/// A failure in one line.
pub(crate) fn said(failure: &Failure) -> String {
    match &failure.advice {
        Some(advice) => format!("{} ({advice})", failure.detail),
        None => failure.detail.clone(),
    }
}
