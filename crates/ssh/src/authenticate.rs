//! User authentication (RFC 4252): the order in which keys are offered, the server's answers, and their meaning.
//! Penstock first asks the server about a key, and signs only if the server accepts the key: so no person must touch a
//! key or type a passphrase without need.
//!
//! # The path of a log-in
//!
//! 1. `crates/ssh/src/client.rs` has a connection to a host whose identity is proved, and calls
//!    `crates/ssh/src/authenticate.rs` with the host's `KeyPlan` (`crates/ssh/src/keys/plan.rs`).
//! 2. `crates/ssh/src/authenticate/candidate.rs` puts the keys in order. `crates/ssh/src/keys.rs` reads each file once
//!    for all connections (one file: `crates/ssh/src/keys/file.rs`; its faults: `crates/ssh/src/keys/fault.rs`).
//!    `crates/ssh/src/agent.rs` asks the agents.
//! 3. Penstock asks the server about each key. For the key that the server accepts,
//!    `crates/ssh/src/authenticate/sign.rs` makes the signature. Only then does `crates/ssh/src/keys/ask.rs` ask for a
//!    passphrase, on its own thread, once for all connections.
//! 4. Every step is an `Attempt` (`crates/ssh/src/authenticate/attempt.rs`); `crates/ssh/src/authenticate/verdict.rs`
//!    makes one failure, with advice, of the steps of a log-in that failed.

mod attempt;
mod candidate;
mod patience;
mod sign;
mod verdict;

use std::sync::Arc;
use std::time::Duration;

use hosts::fleet::ending::Failure;
use jiff::Timestamp;
use russh::client::{AuthResult, Handle, KeyboardInteractiveAuthResponse};
use russh::keys::HashAlg;
use zeroize::Zeroizing;

use crate::handler::{Handler, Shared};
use crate::keys::{Answered, Keys, Method, Question};
use crate::target::Target;
pub use attempt::{Answer, Attempt, Source, What};
use candidate::{Candidate, Offer, With};
use patience::QuestionTimeout;
use sign::{SignFault, Signing};
use text::terminal::escaped;

/// The key that the server accepted, and all steps of the log-in.
#[derive(Debug, Clone, Default)]
pub(crate) struct Login {
    /// Name of the key for the user: a file, or the comment of an agent's key. Empty if the server asked for no proof.
    pub(crate) key: String,
    pub(crate) attempts: Vec<Attempt>,
}

/// Callback for each step of a log-in.
pub type AttemptObserver = dyn Fn(&Attempt) + Send + Sync;

/// Logs in to `target`, whose identity is proved. `connect_timeout` limits the wait for the server's answers, not the
/// time in which a person types or touches a key.
///
/// # Errors
/// The server accepted no key, or a key could not be used.
pub(crate) async fn authenticate(
    handle: &mut Handle<Handler>,
    target: &Target,
    keys: &Keys,
    shared: &Shared,
    listener: Option<&AttemptObserver>,
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
    listener: Option<&'a AttemptObserver>,
    attempts: Vec<Attempt>,
    /// Methods that the server named in its last answer.
    methods: Option<Vec<&'static str>>,
    /// Hash for signatures with RSA keys; `None` before the first query, `Some(None)` if the server supports only
    /// SHA-1.
    rsa: Option<Option<HashAlg>>,
}

/// Next step after the server's answer to one offer of a key, a certificate or a password.
enum Next {
    Done,
    Further,
    Over,
}

impl Dialogue<'_> {
    /// Returns the name of the accepted key. If `None`, `attempts` has the reason.
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
        // The request `none` costs a round trip, and some servers count it as an attempt: so it is sent only if there
        // is no key to ask about, or if a listener wants every step.
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

    /// Returns true if the server may accept the method. Before the server has named its methods, it may accept any.
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
        let patience = QuestionTimeout::new(self.limit());
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
            // The public key is known only after the file is opened.
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
        let patience = QuestionTimeout::new(self.limit());
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

    /// Returns the hash for signatures with RSA keys; `None` if the server supports only SHA-1.
    async fn rsa_hash(&mut self) -> Option<HashAlg> {
        if self.rsa.is_none() {
            // The server announces its algorithms right after the key exchange (RFC 8308 section 2.4), or not at all.
            let said = tokio::time::timeout(EXTENSIONS_COME, self.handle.best_supported_rsa_hash()).await;
            self.rsa = Some(match said {
                Ok(Ok(Some(hash))) => hash,
                _ => Some(HashAlg::Sha512),
            });
        }
        self.rsa.flatten()
    }

    /// Lets a person answer the server's questions (keyboard-interactive).
    async fn interactive(&mut self) -> Next {
        let patience = QuestionTimeout::new(self.limit());
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
                let text = format!("{}: {}", self.target.name, escaped(prompt.prompt.trim_end(), 200));
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
            let patience = QuestionTimeout::new(self.limit());
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
                // The library reports "no methods" if the connection has ended.
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

    /// Waits up to [`REASON_COMES`] for the reason why the connection has ended.
    async fn hung_up(&self) -> Answer {
        let mut ended = self.shared.ended.subscribe();
        let why = tokio::time::timeout(REASON_COMES, ended.wait_for(Option::is_some)).await;
        let why = why.ok().and_then(Result::ok).and_then(|failure| failure.clone());
        Answer::HungUp(why.map(|failure| escaped(&failure.detail, 200)))
    }

    fn limit(&self) -> Duration {
        self.target.connect_timeout
    }
}

/// State of a log-in with one key: whether penstock has sent a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signed {
    Not,
    Once,
}

const EXTENSIONS_COME: Duration = Duration::from_millis(200);
const REASON_COMES: Duration = Duration::from_secs(1);
/// Maximum number of rounds of questions, and of questions in one round, from a server to a person.
const ROUNDS: usize = 10;
const PROMPTS: usize = 10;
