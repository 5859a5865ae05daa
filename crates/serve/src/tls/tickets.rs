//! The keys of session tickets. A session that a client resumes brings along who the client has proved to be, and nobody
//! asks again: so tickets are good only where the same is asked of clients as where they were given out.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use rustls::crypto::aws_lc_rs;
use rustls::server::ProducesTickets;

use super::sha256::Digest;
use crate::state::lock;

/// What is asked of clients, hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Asked(pub(super) Digest);

impl Asked {
    /// No certificate.
    pub(super) const NOTHING: Self = Self([0; 32]);
}

/// All ticket keys, over reloads: those in use stay, so that tickets given out before stay good.
#[derive(Default)]
pub(super) struct Tickets {
    kept: Mutex<HashMap<Asked, Weak<dyn ProducesTickets>>>,
}

impl Tickets {
    /// Keys of their own for each thing that may be asked. `None`: without randomness for keys sessions are not resumed;
    /// everything else works.
    pub(super) fn of(&self, asked: Asked) -> Option<Arc<dyn ProducesTickets>> {
        let mut kept = lock(&self.kept);
        if let Some(tickets) = kept.get(&asked).and_then(Weak::upgrade) {
            return Some(tickets);
        }
        let tickets: Arc<dyn ProducesTickets> = Arc::new(Bounded(aws_lc_rs::Ticketer::new().ok()?));
        kept.retain(|_, tickets| tickets.strong_count() > 0);
        kept.insert(asked, Arc::downgrade(&tickets));
        Some(tickets)
    }
}

/// A ticket holds the certificates that the client sent, and its length is a number of 16 bits: a client with a very long
/// chain gets none.
struct Bounded(Arc<dyn ProducesTickets>);

const MOST: usize = 16 * 1024;

impl fmt::Debug for Bounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ProducesTickets for Bounded {
    fn enabled(&self) -> bool {
        self.0.enabled()
    }

    fn lifetime(&self) -> u32 {
        self.0.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        if plain.len() > MOST { None } else { self.0.encrypt(plain) }
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.0.decrypt(cipher)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_good_where_the_same_is_asked_and_nowhere_else() {
        let tickets = Tickets::default();
        let (asked, other) = (Asked([1; 32]), Asked([2; 32]));
        let own = tickets.of(asked).unwrap();
        let ticket = own.encrypt(b"session").unwrap();
        assert_eq!(tickets.of(asked).unwrap().decrypt(&ticket).as_deref(), Some(&b"session"[..]));
        for foreign in [other, Asked::NOTHING] {
            assert_eq!(tickets.of(foreign).unwrap().decrypt(&ticket), None);
        }
        drop(own);
        assert_eq!(tickets.of(asked).unwrap().decrypt(&ticket), None, "keys that nobody uses are gone");
    }

    #[test]
    fn a_session_that_fits_no_ticket_gets_none() {
        let tickets = Tickets::default().of(Asked::NOTHING).unwrap();
        assert!(tickets.encrypt(&[0; MOST]).is_some());
        assert!(tickets.encrypt(&[0; MOST + 1]).is_none());
    }
}
