//! The engine of a tunnel: a connection to its host, on which streams are opened in both directions.

use std::pin::Pin;
use std::sync::Arc;

use hosts::fleet::ending::{Failure, Phase, Reason, Remote};
use hosts::tunnel::plan::{Endpoint, Forward, Listen, Tunnel};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A stream in both directions; `shutdown` ends our direction and leaves the other open.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

pub trait Engine: Send + Sync {
    /// Connects and logs in. The caller creates the listeners on this machine; `links` is the private directory of the
    /// run.
    fn connect<'a>(
        &'a self,
        tunnel: &'a Tunnel,
        own: &'a std::path::Path,
        run: &'a str,
    ) -> Boxed<'a, Result<Arc<dyn Link>, Failure>>;
}

pub trait Link: Send + Sync {
    /// Asks the host to connect to `to`.
    fn open<'a>(&'a self, to: &'a Endpoint) -> Boxed<'a, Result<Box<dyn Duplex>, Failure>>;
    /// Asks the host to listen for a remote forward.
    fn listen<'a>(&'a self, forward: &'a Forward) -> Boxed<'a, Result<Incoming, Failure>>;
    fn closed(&self) -> Boxed<'_, Failure>;
    fn close(&self) -> Boxed<'_, ()>;
}

/// Connections that the host accepts for a remote forward.
pub struct Incoming {
    /// Address at which the host listens, with the port that it chose.
    pub at: Listen,
    pub streams: mpsc::Receiver<Box<dyn Duplex>>,
}

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
        remote: Remote::NotStarted,
    }
}

pub(crate) fn said(failure: &Failure) -> String {
    match &failure.advice {
        Some(advice) => format!("{} ({advice})", failure.detail),
        None => failure.detail.clone(),
    }
}
