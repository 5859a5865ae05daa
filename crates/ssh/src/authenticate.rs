//! Proving who we are (RFC 4252): which keys are offered in which order, what the server said to each, and what that
//! means. A key is asked about first, and signs only when the server wants it: no touch, no passphrase for nothing.
//!
//! # The path of a log-in
//!
//! 1. `crates/ssh/src/client.rs` has a connection to a host whose identity is proved, and calls
//!    `crates/ssh/src/authenticate.rs` with the host's `KeyPlan` (`crates/ssh/src/keys/plan.rs`).
//! 2. `crates/ssh/src/authenticate/candidate.rs` puts keys in order. Files are read once for all connections by
//!    `crates/ssh/src/keys.rs` (one file: `crates/ssh/src/keys/file.rs`; what is wrong with it: `crates/ssh/src/keys/fault.rs`);
//!    agents are asked by `crates/ssh/src/agent.rs`.
//! 3. The server is asked about each key. For the one it wants, `crates/ssh/src/authenticate/sign.rs` makes the signature: only
//!    then is a passphrase asked (`crates/ssh/src/keys/ask.rs`), on a thread of its own, once for all who wait.
//! 4. Every step is an `crates/ssh/src/authenticate/attempt.rs`; `crates/ssh/src/authenticate/verdict.rs` sums up those of a
//!    log-in that failed, with what to do.

mod attempt;
mod candidate;
mod patience;
mod sign;
mod verdict;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use logic::fleet::ending::Failure;
use russh::client::{AuthResult, Handle, KeyboardInteractiveAuthResponse};
use russh::keys::HashAlg;
use zeroize::Zeroizing;

use crate::handler::{Handler, Shared};
use crate::harmless::harmless;
use crate::keys::{Answered, Keys, Method, Question};
use crate::target::Target;
pub use attempt::{Answer, Attempt, Source, What};
use candidate::{Candidate, Offer, With};
use patience::Patience;
use sign::{SignFault, Signing};

/// Which key the server accepted, and all that came before.
#[derive(Debug, Clone, Default)]
pub(crate) struct Login {
    /// As the user knows it: a file, or the comment of an agent's key. Empty: the server wanted no proof.
    pub(crate) key: String,
    /// Every step.
    pub(crate) attempts: Vec<Attempt>,
}

/// Someone who is told each step of a log-in as it happens.
pub type Narrator = dyn Fn(&Attempt) + Send + Sync;

/// Logs in to `target`, whose identity has been proved. The server's answers are waited for as long as
/// `connect_timeout` says; people are not hurried.
///
/// # Errors
/// None of our keys was accepted, or one could not be used.
pub(crate) async fn authenticate(
    handle: &mut Handle<Handler>,
    target: &Target,
    keys: &Keys,
    shared: &Shared,
    listener: Option<&Narrator>,
) -> Result<Login, Failure> {
    let mut dialogue =
        Dialogue { handle, target, keys, shared, listener, attempts: Vec::new(), methods: None, rsa: None };
    match dialogue.run().await {
        Some(key) => Ok(Login { key, attempts: dialogue.attempts }),
        None => Err(verdict::failure(target, &dialogue.attempts)),
    }
}

struct Dialogue<'a> {
    handle: &'a mut Handle<Handler>,
    target: &'a Target,
    keys: &'a Keys,
    shared: &'a Shared,
    listener: Option<&'a Narrator>,
    attempts: Vec<Attempt>,
    /// The methods that the server named last.
    methods: Option<Vec<&'static str>>,
    /// What RSA keys sign with here, once asked: `Some(None)` is only SHA-1.
    rsa: Option<Option<HashAlg>>,
}

/// What the answer to one offer means for the next.
enum Next {
    Done,
    Further,
    Over,
}

impl Dialogue<'_> {
    /// The key that was accepted; None: it is in `attempts` why there is none.
    async fn run(&mut self) -> Option<String> {
        let plan = &self.target.keys;
        let mut candidates = Vec::new();
        if plan.public_key == Method::On {
            let (found, attempts) =
                candidate::gather(self.keys, plan, &self.target.user, Timestamp::now()).await;
            candidates = found;
            for attempt in attempts {
                self.note(attempt);
            }
        }
        // Asking for the methods costs a round trip, and a try on some servers: only when there is no better question
        if candidates.is_empty() || self.listener.is_some() {
            match self.ask_for_methods().await {
                Next::Done => return Some(String::new()),
                Next::Over => return None,
                Next::Further => {}
            }
        }
        for candidate in candidates {
            if !self.server_takes("publickey") {
                break;
            }
            match self.offer(&candidate).await {
                Next::Done => return Some(candidate.name()),
                Next::Over => return None,
                Next::Further => {}
            }
        }
        if plan.interactive == Method::On
            && self.server_takes("keyboard-interactive")
            && let Next::Done = self.interactive().await
        {
            return Some("keyboard-interactive".to_owned());
        }
        None
    }

    /// Until the server has named its methods, it may take any.
    fn server_takes(&self, method: &str) -> bool {
        self.methods.as_ref().is_none_or(|methods| methods.contains(&method))
    }

    fn note(&mut self, attempt: Attempt) {
        if let Some(listener) = self.listener {
            listener(&attempt);
        }
        self.attempts.push(attempt);
    }

    async fn ask_for_methods(&mut self) -> Next {
        let patience = Patience::new(self.limit());
        let asked = self.handle.authenticate_none(self.target.user.clone());
        let answer = match patience.wait(asked).await {
            None => Answer::Silent(self.limit()),
            Some(Err(_)) => self.hung_up().await,
            Some(Ok(result)) => self.answer_of(result, Signed::Not).await,
        };
        self.conclude(What::Methods, Source::Nothing, answer)
    }

    async fn offer(&mut self, candidate: &Candidate) -> Next {
        let (what, source) = (candidate.what(), candidate.source());
        let offer = match &candidate.offer {
            Some(offer) => offer.clone(),
            // Whose key it is shows only when it is open
            None => match self.open_blind(candidate).await {
                Ok(offer) => offer,
                Err(answer) => return self.conclude(what, source, answer),
            },
        };
        let what = if what == What::File { offer.what() } else { what };
        if let Some(bits) = offer.rsa_bits().filter(|bits| *bits < self.target.algorithms.rsa_bits) {
            let least = self.target.algorithms.rsa_bits;
            let why = format!("it has {bits} bits, and RequiredRSASize asks for {least}: use an Ed25519 key");
            return self.conclude(what, source, Answer::NotOffered(why));
        }
        let hash = match offer.is_rsa() {
            false => None,
            true => match self.rsa_hash().await {
                Some(hash) => Some(hash),
                None => {
                    let why = "the server takes RSA keys only with SHA-1 signatures, which can be forged: use an \
                               Ed25519 key, or update the server";
                    return self.conclude(what, source, Answer::NotOffered(why.to_owned()));
                }
            },
        };
        if !self.target.keys.accepts(&offer.algorithm(hash)) {
            let why = format!("PubkeyAcceptedAlgorithms has no {}", offer.algorithm(hash));
            return self.conclude(what, source, Answer::NotOffered(why));
        }
        let patience = Patience::new(self.limit());
        let binding = self.handle.agent_session_binding().cloned();
        let mut signing = Signing {
            with: &candidate.with,
            keys: self.keys,
            algorithm: offer.signature_algorithm(hash),
            hash,
            binding: binding.as_ref(),
            patience: &patience,
            signed: Signed::Not,
        };
        let user = self.target.user.clone();
        let result = match offer.clone() {
            Offer::Key(key) => {
                patience.wait(self.handle.authenticate_publickey_with(user, key, hash, &mut signing)).await
            }
            Offer::Certificate(certificate) => {
                let certificate = Arc::unwrap_or_clone(certificate);
                let asked = self.handle.authenticate_certificate_with(user, certificate, hash, &mut signing);
                patience.wait(asked).await
            }
        };
        let signed = signing.signed;
        let answer = match result {
            None => Answer::Silent(self.limit()),
            Some(Ok(result)) => self.answer_of(result, signed).await,
            Some(Err(SignFault::Key(fault))) => {
                Answer::Unusable { why: fault.fault.to_string(), advice: fault.advice() }
            }
            Some(Err(SignFault::Agent(fault))) => {
                Answer::Unusable { why: fault.to_string(), advice: Some(fault.advice()) }
            }
            Some(Err(SignFault::Twice)) => {
                Answer::HungUp(Some("it asked for two signatures where one is due".to_owned()))
            }
            Some(Err(SignFault::Gone)) => self.hung_up().await,
        };
        if matches!(answer, Answer::Accepted | Answer::Partial { .. }) {
            self.keys.note_worked(offer.fingerprint());
        }
        self.conclude(what, source, answer)
    }

    async fn open_blind(&self, candidate: &Candidate) -> Result<Offer, Answer> {
        let With::File(file) = &candidate.with else {
            return Err(Answer::NotOffered("its public half is not known".to_owned()));
        };
        let unusable = |fault: crate::keys::KeyFault| Answer::Unusable {
            why: fault.fault.to_string(),
            advice: fault.advice(),
        };
        self.keys.open(file).await.map(|key| Offer::Key(key.public_key().clone())).map_err(unusable)
    }

    /// What RSA keys sign with here. None: only SHA-1.
    async fn rsa_hash(&mut self) -> Option<HashAlg> {
        if self.rsa.is_none() {
            // The server says so right after the key exchange (RFC 8308 section 2.4), or never
            let said = tokio::time::timeout(EXTENSIONS_COME, self.handle.best_supported_rsa_hash()).await;
            self.rsa = Some(match said {
                Ok(Ok(Some(hash))) => hash,
                _ => Some(HashAlg::Sha512),
            });
        }
        self.rsa.flatten()
    }

    /// Answers of a person to the server's questions, where the configuration wants that.
    async fn interactive(&mut self) -> Next {
        let patience = Patience::new(self.limit());
        let begun = self.handle.authenticate_keyboard_interactive_start(self.target.user.clone(), None);
        let mut result = patience.wait(begun).await;
        for _ in 0..ROUNDS {
            let prompts = match result {
                Some(Ok(KeyboardInteractiveAuthResponse::InfoRequest { prompts, .. })) => prompts,
                _ => break,
            };
            if prompts.len() > PROMPTS {
                let why = format!("it asked {} questions at once", prompts.len());
                return self.conclude(What::Interactive, Source::Nothing, Answer::HungUp(Some(why)));
            }
            let mut answers: Vec<Zeroizing<String>> = Vec::new();
            for prompt in prompts {
                let text = format!("{}: {}", self.target.name, harmless(prompt.prompt.trim_end(), 200));
                let answer = if prompt.echo { Answered::Seen } else { Answered::Unseen };
                match self.keys.ask(Question { text: format!("{text} "), answer }).await {
                    Ok(answer) => answers.push(answer),
                    Err(error) => {
                        let answer = Answer::Unusable { why: error.to_string(), advice: None };
                        return self.conclude(What::Interactive, Source::Nothing, answer);
                    }
                }
            }
            let answers = answers.iter().map(|answer| answer.to_string()).collect();
            let patience = Patience::new(self.limit());
            result = patience.wait(self.handle.authenticate_keyboard_interactive_respond(answers)).await;
        }
        let answer = match result {
            None => Answer::Silent(self.limit()),
            Some(Err(_)) => self.hung_up().await,
            Some(Ok(KeyboardInteractiveAuthResponse::Success)) => Answer::Accepted,
            Some(Ok(KeyboardInteractiveAuthResponse::Failure { remaining_methods, partial_success })) => {
                let result = AuthResult::Failure { remaining_methods, partial_success };
                self.answer_of(result, Signed::Not).await
            }
            Some(Ok(KeyboardInteractiveAuthResponse::InfoRequest { .. })) => {
                Answer::HungUp(Some(format!("it asked more than {ROUNDS} times")))
            }
        };
        self.conclude(What::Interactive, Source::Nothing, answer)
    }

    fn conclude(&mut self, what: What, source: Source, answer: Answer) -> Next {
        let next = match &answer {
            Answer::Accepted => Next::Done,
            Answer::HungUp(_) | Answer::Silent(_) => Next::Over,
            Answer::Partial { next } | Answer::Refused { next } | Answer::RefusedSigned { next } => {
                self.methods = Some(next.clone());
                Next::Further
            }
            Answer::NotOffered(_) | Answer::Unusable { .. } | Answer::Holds(_) => Next::Further,
        };
        self.note(Attempt { what, source, answer });
        next
    }

    async fn answer_of(&self, result: AuthResult, signed: Signed) -> Answer {
        match result {
            AuthResult::Success => Answer::Accepted,
            AuthResult::Failure { remaining_methods, partial_success } => {
                // The library says "no methods" for a connection that is gone
                if remaining_methods.is_empty() {
                    return self.hung_up().await;
                }
                let next = remaining_methods.iter().map(<&'static str>::from).collect();
                match (partial_success, signed) {
                    (true, _) => Answer::Partial { next },
                    (false, Signed::Not) => Answer::Refused { next },
                    (false, Signed::Once) => Answer::RefusedSigned { next },
                }
            }
        }
    }

    /// The connection is gone: waits a moment for the reason.
    async fn hung_up(&self) -> Answer {
        let mut ended = self.shared.ended.subscribe();
        let why = tokio::time::timeout(REASON_COMES, ended.wait_for(Option::is_some)).await;
        let why = why.ok().and_then(Result::ok).and_then(|failure| failure.clone());
        Answer::HungUp(why.map(|failure| harmless(&failure.detail, 200)))
    }

    fn limit(&self) -> Duration {
        self.target.connect_timeout
    }
}

/// Whether a signature was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signed {
    Not,
    Once,
}

const EXTENSIONS_COME: Duration = Duration::from_millis(200);
const REASON_COMES: Duration = Duration::from_millis(300);
/// Rounds of questions, and questions in a round, that a server may put to a person.
const ROUNDS: usize = 10;
const PROMPTS: usize = 10;
