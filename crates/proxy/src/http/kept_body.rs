//! What was read of a request's body and is kept, so that the request can be sent once more: on another connection, or to
//! another backend. `crates/logic/src/retry.rs` decides whether it is.

use std::cell::Cell;

/// Bytes of a body that are kept at most.
const MOST: usize = 4 * 1024;

/// The bytes of a body that an attempt has read, with their framing.
#[derive(Default)]
pub(super) struct KeptBody {
    bytes: Cell<Vec<u8>>,
    state: Cell<State>,
}

/// Whether a body is kept while it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeping {
    Yes,
    /// The request is never sent again once its body has begun.
    No,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    /// The attempt has taken nothing of the body.
    #[default]
    Untouched,
    /// All that was read is here.
    Kept,
    /// Bytes of the body were read that are not here.
    Lost,
}

impl KeptBody {
    /// Begins with the bytes that were read before the body is sent.
    pub(super) fn begin(&self, keeping: Keeping, first: &[u8]) {
        match keeping {
            Keeping::Yes => {
                self.state.set(State::Kept);
                self.add(first);
            }
            Keeping::No => self.state.set(State::Lost),
        }
    }

    /// Adds bytes that were read.
    pub(super) fn add(&self, more: &[u8]) {
        if self.state.get() != State::Kept {
            return;
        }
        let mut bytes = self.bytes.take();
        match bytes.len() + more.len() > MOST {
            true => self.state.set(State::Lost),
            false => {
                bytes.extend_from_slice(more);
                self.bytes.set(bytes);
            }
        }
    }

    /// Leaves out the last `count` bytes: they follow the body.
    pub(super) fn leave_out(&self, count: usize) {
        let mut bytes = self.bytes.take();
        bytes.truncate(bytes.len().saturating_sub(count));
        self.bytes.set(bytes);
    }

    /// Frees the bytes: the request is not sent again.
    pub(super) fn forget(&self) {
        self.state.set(State::Lost);
        self.bytes.take();
    }

    /// Tests whether the request can no longer be sent whole.
    pub(super) fn is_lost(&self) -> bool {
        self.state.get() == State::Lost
    }

    /// Returns the bytes, if some were taken and all are kept.
    pub(super) fn into_bytes(self) -> Option<Vec<u8>> {
        (self.state.get() == State::Kept).then(|| self.bytes.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_is_kept_up_to_four_kibibytes() {
        let kept = KeptBody::default();
        assert!(!kept.is_lost(), "nothing is missing yet");
        kept.begin(Keeping::Yes, b"first ");
        kept.add(b"second next");
        kept.leave_out(5);
        assert_eq!(kept.into_bytes().as_deref(), Some(&b"first second"[..]));
        let kept = KeptBody::default();
        kept.begin(Keeping::Yes, &[b'x'; MOST]);
        assert!(!kept.is_lost());
        kept.add(b"y");
        kept.add(b"");
        assert!(kept.is_lost() && kept.into_bytes().is_none());
    }

    #[test]
    fn a_body_that_is_not_kept_is_lost_as_soon_as_it_is_taken() {
        let kept = KeptBody::default();
        assert!(!kept.is_lost());
        kept.begin(Keeping::No, b"");
        assert!(kept.is_lost() && kept.into_bytes().is_none());
        assert!(KeptBody::default().into_bytes().is_none(), "its bytes are where they were");
        let kept = KeptBody::default();
        kept.begin(Keeping::Yes, b"body");
        kept.forget();
        assert!(kept.is_lost() && kept.into_bytes().is_none());
    }
}
