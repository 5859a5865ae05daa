//! Whether a request that failed may be sent to another backend: never if it could then be done twice.

/// Whether doing a request twice is the same as doing it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idempotence {
    /// It is.
    Idempotent,
    /// It may not be.
    NotIdempotent,
}

impl Idempotence {
    /// By method (RFC 9110 section 9.2.2), in its own case. An unknown method is not idempotent.
    pub fn of(method: &str) -> Self {
        match method {
            "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE" => Idempotence::Idempotent,
            _ => Idempotence::NotIdempotent,
        }
    }
}

/// How far an attempt had come when it failed. Ordered: later means further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// No byte of the request was given to the backend: connecting failed, or waiting in the queue.
    NothingSent,
    /// Bytes of the request may have reached the backend.
    RequestSent,
    /// Body bytes were taken from the client and are gone: the request cannot be sent again.
    BodyConsumed,
    /// Bytes of the final response went to the client.
    ResponseStarted,
}

/// What to do after an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Send the request to a backend that was not tried yet.
    RetryElsewhere,
    /// Answer the client with an error, or end the connection if a response has begun.
    GiveUp,
}

/// Decides. `attempts_so_far` counts the one that failed; `retries_allowed` counts those after the first.
pub fn decide(
    idempotence: Idempotence,
    progress: Progress,
    attempts_so_far: u32,
    retries_allowed: u32,
) -> Decision {
    let harmless = match progress {
        Progress::NothingSent => true,
        Progress::RequestSent => idempotence == Idempotence::Idempotent,
        Progress::BodyConsumed | Progress::ResponseStarted => false,
    };
    if harmless && attempts_so_far <= retries_allowed { Decision::RetryElsewhere } else { Decision::GiveUp }
}

#[cfg(test)]
mod tests {
    use super::*;

    use Decision::{GiveUp, RetryElsewhere};
    use Idempotence::{Idempotent, NotIdempotent};

    #[test]
    fn only_what_cannot_be_done_twice_is_retried() {
        let table = [
            (Progress::NothingSent, RetryElsewhere, RetryElsewhere),
            (Progress::RequestSent, RetryElsewhere, GiveUp),
            (Progress::BodyConsumed, GiveUp, GiveUp),
            (Progress::ResponseStarted, GiveUp, GiveUp),
        ];
        for (progress, idempotent, other) in table {
            assert_eq!(decide(Idempotent, progress, 1, 2), idempotent, "{progress:?}");
            assert_eq!(decide(NotIdempotent, progress, 1, 2), other, "{progress:?}");
        }
    }

    #[test]
    fn retries_end_at_their_number() {
        for (attempts, retries, expected) in
            [(1, 0, GiveUp), (1, 1, RetryElsewhere), (2, 1, GiveUp), (3, 3, RetryElsewhere), (4, 3, GiveUp)]
        {
            assert_eq!(decide(Idempotent, Progress::NothingSent, attempts, retries), expected);
        }
        assert_eq!(decide(Idempotent, Progress::NothingSent, u32::MAX, u32::MAX - 1), GiveUp);
    }

    #[test]
    fn methods_are_idempotent_as_the_rfc_says_and_in_their_own_case() {
        for method in ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"] {
            assert_eq!(Idempotence::of(method), Idempotent, "{method}");
        }
        for method in ["POST", "PATCH", "CONNECT", "get", "PROPFIND", ""] {
            assert_eq!(Idempotence::of(method), NotIdempotent, "{method}");
        }
    }
}
