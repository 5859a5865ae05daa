//! Decides whether a failed request may be sent to another backend: never if it could be executed twice.

/// Whether executing a request twice has the same effect as once (RFC 9110 section 9.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idempotence {
    Idempotent,
    NotIdempotent,
}

impl Idempotence {
    /// Idempotence of a method (RFC 9110 section 9.2.2), case-sensitive. An unknown method is not idempotent.
    pub fn of(method: impl AsRef<[u8]>) -> Self {
        match method.as_ref() {
            b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE" | b"PUT" | b"DELETE" => Idempotence::Idempotent,
            _ => Idempotence::NotIdempotent,
        }
    }
}

/// Progress of an attempt when it failed, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// No byte was sent to the backend: the connection or the wait in the queue failed.
    NothingSent,
    /// Bytes of the request may have reached the backend. Its body, if it has one, is kept whole.
    RequestSent,
    /// Body bytes from the client were forwarded and not kept: the request cannot be sent again.
    BodyConsumed,
    /// The client has received bytes of the final response.
    ResponseStarted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Send the request to a backend that was not tried yet.
    RetryElsewhere,
    /// Answer the client with an error, or close the connection if a response has begun.
    GiveUp,
}

/// Decides after a failed attempt. `attempts_so_far` includes it; `retries_allowed` excludes the first attempt.
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

/// Whether another backend of the pool could take a request now, or after a wait in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    Room,
    NoRoom,
}

/// What a request does that waits at a backend which was judged down or ejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenDown {
    /// It goes to another backend at once.
    Move,
    /// It waits for the response, up to the limit for such waits: it could be executed twice, or has nowhere to go.
    Wait,
}

/// Decides for a request whose backend was judged down while it waits. `attempts_so_far` includes this one.
pub fn when_down(
    idempotence: Idempotence,
    progress: Progress,
    attempts_so_far: u32,
    retries_allowed: u32,
    elsewhere: Elsewhere,
) -> WhenDown {
    match (decide(idempotence, progress, attempts_so_far, retries_allowed), elsewhere) {
        (Decision::RetryElsewhere, Elsewhere::Room) => WhenDown::Move,
        _ => WhenDown::Wait,
    }
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
    fn a_request_leaves_a_backend_that_is_down_if_it_may_be_repeated_and_has_somewhere_to_go() {
        let at = |idempotence, progress, elsewhere| when_down(idempotence, progress, 1, 2, elsewhere);
        assert_eq!(at(Idempotent, Progress::RequestSent, Elsewhere::Room), WhenDown::Move);
        assert_eq!(at(Idempotent, Progress::RequestSent, Elsewhere::NoRoom), WhenDown::Wait);
        assert_eq!(at(NotIdempotent, Progress::NothingSent, Elsewhere::Room), WhenDown::Move);
        assert_eq!(at(NotIdempotent, Progress::RequestSent, Elsewhere::Room), WhenDown::Wait);
        assert_eq!(at(Idempotent, Progress::BodyConsumed, Elsewhere::Room), WhenDown::Wait);
        let spent = when_down(Idempotent, Progress::RequestSent, 3, 2, Elsewhere::Room);
        assert_eq!(spent, WhenDown::Wait);
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
