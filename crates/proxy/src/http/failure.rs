//! Why an attempt at a backend gave the client no response: what may be done about it, and what client, log and health get.

use std::time::Duration;

use logic::attempts::Fault;
use logic::health::Cause;
use logic::http1::refusal::Refusal;
use logic::http1::response::ResponseFault;
use logic::retry::Progress;
use state::ending::Ending;

use super::body::Broken;
use super::moving::Lost;
use crate::connect::{ConnectFault, Freshness};
use crate::http2::rules::{Processing, Unprocessed};

/// Whether the client has received bytes of the final response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    Nothing,
    Started,
}

/// Reason why an attempt gave the client no response.
#[derive(Debug)]
pub(super) enum Failure {
    Connect(ConnectFault),
    /// The backend closed before its response.
    Closed {
        answered: Answered,
        progress: Progress,
    },
    /// The backend did not process the request, and said so (RFC 9113 section 8.7).
    NotProcessed {
        why: Unprocessed,
        progress: Progress,
    },
    /// The backend violated HTTP/2 before its response.
    Violated {
        progress: Progress,
    },
    /// The backend did not respond in time.
    TimedOut {
        after: Duration,
        progress: Progress,
    },
    /// The backend was judged down or ejected before its response.
    Lost {
        lost: Lost,
        progress: Progress,
    },
    /// The backend's response is not valid HTTP.
    Fault {
        fault: ResponseFault,
        progress: Progress,
    },
    /// The client's request body could not be read to its end, and there is no response yet.
    Client(Broken),
    /// The client's request cannot be expressed in HTTP/2, for this reason.
    Unrepresentable(Refusal),
    /// The client asked for a WebSocket, which the backend does not take over HTTP/2.
    NoWebSockets,
}

impl Failure {
    /// The failure of a backend that ended before its response head was complete.
    pub(super) fn closed(processing: Processing, answered: Answered, progress: Progress) -> Self {
        match processing {
            Processing::Unrepresentable(refusal) => Self::Unrepresentable(refusal),
            Processing::NoWebSockets => Self::NoWebSockets,
            Processing::NotProcessed(why) => Self::NotProcessed {
                why,
                // What was sent had no effect. It can only be sent again if it is still there.
                progress: match progress {
                    Progress::RequestSent => Progress::NothingSent,
                    other => other,
                },
            },
            Processing::Violated => Self::Violated { progress },
            Processing::Unknown => Self::Closed { answered, progress },
        }
    }

    /// Tests whether the backend may have closed a kept connection before the request was sent, or leaves it.
    pub(super) fn is_stale(&self, freshness: Freshness) -> bool {
        let is_closed =
            matches!(self, Self::Closed { answered: Answered::Nothing, .. } | Self::NotProcessed { .. });
        freshness == Freshness::Kept && is_closed
    }

    /// Tests whether the backend leaves the connection without having looked at the request: it may serve it on another.
    pub(super) fn is_left(&self) -> bool {
        matches!(self, Self::NotProcessed { why: Unprocessed::Leaving, .. })
    }

    /// Returns how far the attempt had come.
    pub(super) fn progress(&self) -> Progress {
        match self {
            Self::Connect(_) | Self::Unrepresentable(_) | Self::NoWebSockets => Progress::NothingSent,
            Self::Closed { progress, .. }
            | Self::NotProcessed { progress, .. }
            | Self::Violated { progress }
            | Self::TimedOut { progress, .. }
            | Self::Lost { progress, .. }
            | Self::Fault { progress, .. } => *progress,
            Self::Client(_) => Progress::BodyConsumed,
        }
    }

    /// Why the attempt failed, in a word.
    pub(super) fn fault(&self) -> Fault {
        match self {
            Self::Connect(fault) => fault.word(),
            Self::Closed { .. } => Fault::Closed,
            Self::NotProcessed { .. } => Fault::NotProcessed,
            Self::TimedOut { .. } | Self::Lost { lost: Lost::TimedOut, .. } => Fault::Timeout,
            Self::Lost { lost: Lost::Moved, .. } => Fault::Down,
            Self::Fault { .. } | Self::Violated { .. } => Fault::BadResponse,
            Self::Client(_) | Self::Unrepresentable(_) | Self::NoWebSockets => Fault::Unsuitable,
        }
    }

    /// Returns the failure of the backend. `None` if the error says nothing about the backend.
    pub(super) fn blame(&self) -> Option<Cause> {
        match self {
            Self::Connect(ConnectFault::Backend(cause)) => Some(cause.clone()),
            Self::Connect(ConnectFault::Ours(_) | ConnectFault::NoDescriptors(_))
            | Self::Client(_)
            | Self::Lost { .. }
            | Self::Unrepresentable(_)
            | Self::NoWebSockets => None,
            Self::Closed { .. } | Self::NotProcessed { .. } => Some(Cause::ClosedEarly),
            Self::Violated { .. } => Some(violation()),
            Self::TimedOut { after, .. } => Some(Cause::NoAnswer { after: *after }),
            Self::Fault { fault, .. } => Some(Cause::BadResponse(fault.to_string())),
        }
    }

    /// Returns status, message and ending for the client.
    pub(super) fn answer(&self) -> (u16, &'static str, Ending) {
        match self {
            Self::Connect(ConnectFault::Backend(Cause::ConnectTimeout { .. })) => {
                (504, "The server behind this address could not be reached in time.", Ending::ConnectFailed)
            }
            Self::Connect(_) => {
                (502, "The server behind this address could not be reached.", Ending::ConnectFailed)
            }
            Self::Closed { .. } => (
                502,
                "The server behind this address closed the connection without an answer.",
                Ending::BackendClosed,
            ),
            Self::NotProcessed { .. } => (
                502,
                "The server behind this address closed the connection before it took the request.",
                Ending::BackendClosed,
            ),
            Self::TimedOut { .. } => {
                (504, "The server behind this address did not answer in time.", Ending::BackendTimeout)
            }
            Self::Lost { .. } => {
                (504, "The server behind this address has stopped answering.", Ending::BackendDown)
            }
            Self::Fault { .. } | Self::Violated { .. } => (
                502,
                "The server behind this address gave an answer that cannot be passed on.",
                Ending::BadResponse,
            ),
            Self::Client(_) => (400, "The request was cut short.", Ending::ClientClosed),
            Self::Unrepresentable(refusal) => (refusal.status(), unfit(*refusal), Ending::Refused(*refusal)),
            Self::NoWebSockets => (
                502,
                "The server behind this address does not take WebSockets over HTTP/2.",
                Ending::NoWebSockets,
            ),
        }
    }
}

/// What the health of a backend gets for a violation of HTTP/2.
pub(super) fn violation() -> Cause {
    Cause::BadResponse("it violated HTTP/2".to_owned())
}

/// Tells the client why its request cannot be sent over HTTP/2.
fn unfit(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::WebSocketKey => {
            "The request for a WebSocket needs exactly one Sec-WebSocket-Key: 16 bytes in base64."
        }
        _ => "The target of the request holds characters that are not allowed in a URL: write them as %XX.",
    }
}
