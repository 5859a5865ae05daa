//! Why the attempts of a session failed, in four bytes: every open session has them, and a record of every past one.

use crate::health::Cause;

text::meanings! {
    /// Why an attempt at a backend failed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Fault {
        /// It refused the connection: no process listens there.
        Refused = "refused",
        /// It did not answer the attempt to connect in time.
        ConnectTimeout = "connect-timeout",
        /// It could not be connected to for another reason.
        Unreachable = "unreachable",
        /// TLS or HTTP/2 with it failed.
        Handshake = "handshake",
        /// It closed or reset the connection before its response.
        Closed = "closed",
        /// It did not respond in time.
        Timeout = "timeout",
        /// It was judged down while it had the session.
        Down = "down",
        /// Its response was not valid.
        BadResponse = "bad-response",
        /// It cannot serve such a request.
        Unsuitable = "unsuitable",
        /// It closed its HTTP/2 connection before it took the request, or refused the stream.
        NotProcessed = "not-processed",
        /// It ended, or stopped, in the middle of its response.
        Aborted = "aborted",
        /// Penstock had no descriptor, memory or port for the connection.
        Ours = "no-resources",
    }
}

const ALL: [Fault; 12] = [
    Fault::Refused,
    Fault::ConnectTimeout,
    Fault::Unreachable,
    Fault::Handshake,
    Fault::Closed,
    Fault::Timeout,
    Fault::Down,
    Fault::BadResponse,
    Fault::Unsuitable,
    Fault::NotProcessed,
    Fault::Aborted,
    Fault::Ours,
];

impl Fault {
    pub fn of(cause: &Cause) -> Self {
        match cause {
            Cause::ConnectRefused | Cause::SocketMissing => Self::Refused,
            Cause::ConnectTimeout { .. } => Self::ConnectTimeout,
            Cause::Tls(_) | Cause::Http2(_) => Self::Handshake,
            Cause::NoAnswer { .. } | Cause::NoReply { .. } => Self::Timeout,
            Cause::ClosedEarly => Self::Closed,
            Cause::BadResponse(_) | Cause::HttpStatus(_) | Cause::WrongReply => Self::BadResponse,
            _ => Self::Unreachable,
        }
    }

    /// The fault with this word. `None` for one of a later version.
    pub fn named(word: &str) -> Option<Self> {
        ALL.into_iter().find(|fault| fault.word() == word)
    }

    /// What the backend did, for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Refused => "refused the connection",
            Self::ConnectTimeout => "did not answer the attempt to connect in time",
            Self::Unreachable => "could not be connected to",
            Self::Handshake => "failed in the TLS or HTTP/2 handshake",
            Self::Closed => "closed or reset the connection before its response",
            Self::Timeout => "did not respond in time",
            Self::Down => "was judged down while it had the session",
            Self::BadResponse => "gave a response that is not valid",
            Self::Unsuitable => "cannot serve such a request",
            Self::NotProcessed => {
                "closed its HTTP/2 connection before it took the request, or refused the stream"
            }
            Self::Aborted => "ended, or stopped, in the middle of its response",
            Self::Ours => "was not connected to: Penstock had no descriptor, memory or port for it",
        }
    }
}

/// The first three failed attempts, and the last one. Each has the cause plus one in its low half, 0 for none, and the
/// index of the backend in its high half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failed([u8; SLOTS]);

const SLOTS: usize = 4;

/// A backend of another pool, or with an index that has no room.
const UNKNOWN: u8 = 15;

impl Failed {
    /// Notes that the attempt at the backend with this index failed.
    pub fn note(&mut self, backend: usize, fault: Fault) {
        let slot = self.0.iter().position(|slot| *slot == 0).unwrap_or(SLOTS - 1);
        let backend = u8::try_from(backend).map_or(UNKNOWN, |backend| backend.min(UNKNOWN));
        self.0[slot] = backend << 4 | (fault as u8 + 1);
    }

    /// The session goes to another pool, in which the indices mean other backends.
    pub fn leave_pool(&mut self) {
        self.0.iter_mut().filter(|slot| **slot != 0).for_each(|slot| *slot |= UNKNOWN << 4);
    }

    pub fn is_empty(&self) -> bool {
        self.0[0] == 0
    }

    /// The attempts in their order. The index is `None` for a backend of another pool, or beyond the first 15.
    pub fn iter(&self) -> impl Iterator<Item = (Option<usize>, Fault)> + '_ {
        self.0.iter().map_while(|slot| {
            let fault = *ALL.get(usize::from(slot & 15).checked_sub(1)?)?;
            let backend = slot >> 4;
            Some(((backend != UNKNOWN).then_some(usize::from(backend)), fault))
        })
    }

    /// The words of the causes, with commas.
    pub fn list(&self) -> String {
        self.iter().map(|(_, fault)| fault.word()).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_room_in_four_bits() {
        assert!(ALL.len() < 16);
    }

    #[test]
    fn the_first_three_and_the_last_are_kept_in_four_bytes() {
        assert_eq!(size_of::<Failed>(), 4);
        let mut failed = Failed::default();
        assert!(failed.is_empty() && failed.list().is_empty());
        for (at, fault) in ALL.into_iter().enumerate() {
            assert_eq!(fault as usize, at, "ALL has the order of the variants");
            failed.note(at + 12, fault);
        }
        assert_eq!(failed.list(), "refused,connect-timeout,unreachable,no-resources");
        let backends: Vec<_> = failed.iter().map(|(backend, _)| backend).collect();
        assert_eq!(backends, [Some(12), Some(13), Some(14), None]);
        let words = failed.list();
        assert!(words.split(',').all(|word| Fault::named(word).is_some_and(|fault| fault.word() == word)));
        assert_eq!(Fault::named("of-a-later-version"), None);
        failed.leave_pool();
        assert!(failed.iter().all(|(backend, _)| backend.is_none()));
    }
}
