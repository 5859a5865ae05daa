//! Keys at this machine that respond to challenges (`crates/access/src/otp/challenge.rs`): a PAM module is told what to ask the key
//! of a user, and comes back with the responses. Nothing is remembered between the two: the store has both challenges.
//!
//! A response is checked outside of the thread of the store, because that costs milliseconds. The store then takes it only if the
//! key was not asked anything else since.

use std::sync::Arc;

use access::otp::challenge::{Challenge, Expected, Response, Turn};
use access::otp::token::Refusal;
use credentials::StoreError;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::refusals::Why;
use super::tokens::Tokens;

/// Checks at once.
const AT_ONCE: usize = 2;

pub(super) struct Keys {
    tokens: Arc<Tokens>,
    slots: Semaphore,
}

/// What a key has responded.
pub(super) struct Responded {
    pub(super) challenge: Challenge,
    pub(super) response: Response,
    /// Response to the challenge of the next log-in.
    pub(super) next: Response,
}

/// Why a key proves nothing.
pub(super) enum Fault {
    Refused(Refusal),
    /// It cannot be told.
    Unable(String),
}

impl Fault {
    pub(super) fn why(self, user: &str) -> Why {
        match self {
            Self::Refused(Refusal::NoToken) => Why::Other(format!(
                "the user has no key that responds to challenges (penstock otp enrol challenge-response --user {user})"
            )),
            Self::Refused(why) => Why::Refused { token: None, why },
            Self::Unable(why) => Why::Other(why),
        }
    }
}

impl From<Refusal> for Fault {
    fn from(why: Refusal) -> Self {
        Self::Refused(why)
    }
}

impl Keys {
    pub(super) fn new(tokens: Arc<Tokens>) -> Self {
        Self { tokens, slots: Semaphore::new(AT_ONCE) }
    }

    /// The line that tells a module what to ask the key of a user.
    pub(super) async fn ask(&self, user: &str, serial: Option<u32>) -> Result<String, Fault> {
        let user = user.to_owned();
        let asked = self.tokens.decide(move |ledger, _| {
            let asked = ledger.ask_key(&user, serial).map(|exchange| {
                let (slot, now, next) = (u8::from(exchange.slot), &exchange.challenge, &exchange.next);
                format!("{{\"slot\":{slot},\"challenge\":\"{}\",\"next\":\"{}\"}}\n", now.text(), next.text())
            });
            (asked, Vec::new())
        });
        Ok(asked.await.map_err(|error| self.failed(&error))??)
    }

    /// Judges what a key of a user has responded. Returns the name of its token.
    pub(super) async fn judge(&self, user: &str, responded: Responded) -> Result<String, Fault> {
        let Responded { challenge, response, next } = responded;
        let owner = user.to_owned();
        let asked = self.tokens.decide(move |ledger, _| (ledger.asked_key(&owner, &challenge), Vec::new()));
        let (id, exchange) = asked.await.map_err(|error| self.failed(&error))??;
        let unable = |error: &dyn std::fmt::Display| Fault::Unable(error.to_string());
        let (salt, after) = (credentials::random(), credentials::random());
        let salt = salt.map_err(|error| unable(&error))?;
        let after = Challenge::new(after.map_err(|error| unable(&error))?);
        let slot = self.slots.acquire().await.map_err(|error| unable(&error))?;
        let expected = exchange.expected.clone();
        let checked = spawn_blocking(move || expected.is(&response).then(|| Expected::of(&next, salt))).await;
        drop(slot);
        let Some(expected) = checked.map_err(|error| unable(&error))? else {
            return Err(Refusal::WrongResponse { id }.into());
        };
        let (user, turn) = (user.to_owned(), Turn { expected, next: after });
        let turned = self.tokens.decide(move |ledger, now| {
            match ledger.turn_key(&user, &id, &exchange, turn, now / 1000) {
                Ok((accepted, record)) => (Ok(accepted.id), vec![record]),
                Err(why) => (Err(why), Vec::new()),
            }
        });
        let id = turned.await.map_err(|error| self.failed(&error))??;
        self.tokens.works();
        Ok(id)
    }

    fn failed(&self, error: &StoreError) -> Fault {
        self.tokens.failed(error);
        Fault::Unable(format!("BACKEND_ERROR: {error}"))
    }
}
