//! Whose lines a writer thread writes.

/// What the lines of a log are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lines {
    Sessions,
    /// Each begins with its severity, as `<6>` ([`logic::syslog::severity_of`]).
    Events,
}

impl Lines {
    /// Section of the configuration, and what is degraded while nothing can be written.
    pub(super) fn subject(self) -> &'static str {
        match self {
            Self::Sessions => "access-log",
            Self::Events => "events",
        }
    }

    /// MSGID of syslog messages (RFC 5424 section 6.2.7).
    pub(super) fn message_id(self) -> &'static str {
        match self {
            Self::Sessions => "access",
            Self::Events => "event",
        }
    }
}
