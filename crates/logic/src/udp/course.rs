//! Whether a flow stays at its backend: by what the backend has let it hear, and by what others know of the backend.

use std::time::{Duration, Instant};

use crate::balance::{Admission, Availability};

/// Where the next datagram of a flow goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// To the backend of the flow.
    Stays,
    /// To another backend, if one takes it.
    Moves,
}

/// Whether the backend of a flow is still in the configuration that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    Configured,
    /// No check looks at it any more.
    Removed,
}

/// What a flow hears of its backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    Open,
    /// It has not replied to a datagram for some time.
    Silent,
    /// It has refused a datagram since its last reply (ICMP port unreachable).
    RefusedUs,
}

/// When a backend without a check counts as silent. A client asks again about then.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// Replies and refusals of the backend of one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hearing {
    /// Nothing was sent since the last reply.
    #[default]
    Quiet,
    /// A datagram was sent then, and no reply came since.
    Asked(Instant),
    Refused,
}

impl Hearing {
    pub fn handle_sent(&mut self, now: Instant) {
        if *self == Self::Quiet {
            *self = Self::Asked(now);
        }
    }

    pub fn handle_reply(&mut self) {
        *self = Self::Quiet;
    }

    pub fn handle_refusal(&mut self) {
        *self = Self::Refused;
    }

    pub fn answers(self, now: Instant) -> Answers {
        match self {
            Self::Asked(since) if now.saturating_duration_since(since) >= SILENT_AFTER => Answers::Silent,
            Self::Quiet | Self::Asked(_) => Answers::Open,
            Self::Refused => Answers::RefusedUs,
        }
    }
}

impl Course {
    /// A flow leaves a backend that is down or has refused it. It stays at one that an operator drains, while that one
    /// replies. A missing reply counts only there, and where no check tells that the backend is down: a client could cause
    /// it.
    pub fn of(health: Availability, answers: Answers, membership: Membership, admission: Admission) -> Self {
        match (health, answers, membership) {
            (Availability::Unavailable | Availability::Denied | Availability::Standby, _, _)
            | (_, Answers::RefusedUs, _)
            | (_, Answers::Silent, Membership::Removed) => Self::Moves,
            (_, Answers::Silent, _) if admission == Admission::Draining => Self::Moves,
            // A half-open backend keeps the flows that it has.
            (Availability::Available | Availability::OnTrial, Answers::Open, _)
            | (Availability::Available | Availability::OnTrial, Answers::Silent, Membership::Configured) => {
                Self::Stays
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_leaves_a_backend_that_is_down_or_refuses_it() {
        use Answers::{Open, RefusedUs};
        let configured =
            |health, answers| Course::of(health, answers, Membership::Configured, Admission::Ready);
        assert_eq!(configured(Availability::Available, Open), Course::Stays);
        assert_eq!(configured(Availability::Unavailable, Open), Course::Moves);
        assert_eq!(configured(Availability::Available, RefusedUs), Course::Moves);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any instant will do as the start of a test")]
    fn a_flow_leaves_a_backend_without_a_check_or_that_drains_when_it_does_not_reply_for_a_second() {
        let now = Instant::now();
        let mut hearing = Hearing::default();
        let course = |hearing: Hearing, after, membership| {
            let answers = hearing.answers(now + after);
            let ready = Course::of(Availability::Available, answers, membership, Admission::Ready);
            let drains =
                Course::of(Availability::Available, answers, Membership::Configured, Admission::Draining);
            assert_eq!(drains == Course::Moves, answers == Answers::Silent);
            ready
        };
        let removed = |hearing, after| course(hearing, after, Membership::Removed);
        assert_eq!(removed(hearing, Duration::from_secs(900)), Course::Stays, "nothing was asked");
        hearing.handle_sent(now);
        hearing.handle_sent(now + SILENT_AFTER / 2);
        assert_eq!(removed(hearing, SILENT_AFTER / 2), Course::Stays);
        assert_eq!(removed(hearing, SILENT_AFTER), Course::Moves);
        assert_eq!(course(hearing, SILENT_AFTER, Membership::Configured), Course::Stays, "its check decides");
        hearing.handle_reply();
        assert_eq!(removed(hearing, SILENT_AFTER), Course::Stays);
    }
}
