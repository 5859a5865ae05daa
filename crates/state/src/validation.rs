//! What listeners answer for the validation server of one-time passwords. `crates/serve/src/otp.rs` has the tokens; workers
//! know only who to ask.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

/// Longest time to wait for an answer: more than a client may ask for.
const LIMIT: Duration = Duration::from_secs(35);

/// Answer without an answer.
const NONE: &str = "status=BACKEND_ERROR\r\n\r\n";

/// What a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Whether an OTP is good.
    Verify,
    /// Another validation server tells what it accepted.
    Sync,
}

impl Question {
    /// The question of a path; `None` for a path that belongs to backends.
    #[must_use]
    pub fn of(path: &str) -> Option<Self> {
        match path {
            "/wsapi/2.0/verify" => Some(Self::Verify),
            "/wsapi/2.0/sync" => Some(Self::Sync),
            _ => None,
        }
    }
}

/// Who knows the tokens.
pub trait Validator: Send + Sync {
    /// Answers the query of a request, at once or later. It does not block. A reply that is dropped is an error.
    fn handle(&self, question: Question, query: &str, from: Option<IpAddr>, reply: Reply);

    /// Judges what a user typed, by the tokens that the user owns. It does not block. A reply that is dropped is
    /// [`Proof::Unable`].
    fn prove(&self, user: String, typed: String, reply: oneshot::Sender<Proof>);
}

/// What a one-time password was worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// It was that of this token, and is used up.
    Good(String),
    /// It was not, for this reason, which the user does not learn.
    Bad(String),
    /// The store cannot be asked.
    Unable,
}

/// Takes the text of an answer.
pub type Reply = oneshot::Sender<String>;

/// Listeners that answer, and who to ask.
pub struct Validation {
    /// Names of the listeners.
    pub listeners: HashSet<Arc<str>>,
    /// Who knows the tokens.
    pub validator: Arc<dyn Validator>,
}

impl Validation {
    /// Judges what a user typed.
    pub async fn prove(&self, user: String, typed: String) -> Proof {
        let (reply, told) = oneshot::channel();
        self.validator.prove(user, typed, reply);
        match timeout(LIMIT, told).await {
            Ok(Ok(proof)) => proof,
            Ok(Err(_)) | Err(_) => Proof::Unable,
        }
    }

    /// Returns the text of the answer to a request.
    pub async fn answer(&self, question: Question, query: &str, from: Option<IpAddr>) -> String {
        let (reply, told) = oneshot::channel();
        self.validator.handle(question, query, from, reply);
        match timeout(LIMIT, told).await {
            Ok(Ok(text)) => text,
            Ok(Err(_)) | Err(_) => NONE.to_owned(),
        }
    }
}
