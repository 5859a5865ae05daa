//! Connects to a host once and records each step: the way, the host's identity, the keys that were tried, and advice.
//! No command is run on the host.

use std::sync::{Arc, Mutex, PoisonError};

use hosts::fleet::ending::{Failure, Phase};
use hosts::ssh::key::PublicKey;

use crate::authenticate::{Answer, Attempt, What};
use crate::client::Client;
use crate::facts::Facts;
use crate::judge::{BoxFuture, HostVerifier, Offered, Place, Verdict};
use crate::keys::Keys;
use crate::target::Target;

/// All steps of one connection, in the order of time.
#[derive(Debug)]
pub struct Explanation {
    /// Steps; the steps of jump hosts come first.
    pub steps: Vec<Step>,
    /// The facts after a successful log-in, or the failure.
    pub outcome: Result<Facts, Failure>,
    /// Further advice, besides the advice of the failure; most likely first.
    pub hints: Vec<String>,
}

#[derive(Debug, Clone)]
pub enum Step {
    /// The target itself (not a jump host) has entered this phase.
    Phase(Phase),
    /// A host showed a key, and the judge has decided.
    Identity {
        host: String,
        place: Place,
        offered: Offered,
        verdict: Verdict,
    },
    Handshake {
        host: String,
        facts: Box<Facts>,
    },
    /// One step of the log-in to the host of the last handshake.
    Attempt(Attempt),
}

/// Connects, logs in and closes the connection, and returns all steps.
pub async fn explain(judge: Arc<dyn HostVerifier>, keys: Arc<Keys>, target: &Target) -> Explanation {
    let steps = Steps::default();
    let judge = Arc::new(Watched { judge, steps: steps.clone() });
    let (tells, tried) = (steps.clone(), steps.clone());
    let client = Client::new(judge, keys)
        .watching(Arc::new(move |host: &str, facts: &Facts| {
            tells.add(Step::Handshake { host: host.to_owned(), facts: Box::new(facts.clone()) });
        }))
        .narrating(Arc::new(move |attempt: &Attempt| tried.add(Step::Attempt(attempt.clone()))));
    let result = client.connect(target, &|phase| steps.add(Step::Phase(phase))).await;
    let outcome = match result {
        Ok(session) => {
            let facts = session.facts();
            session.close().await;
            Ok(facts)
        }
        Err(failure) => Err(failure),
    };
    let steps = steps.take();
    let hints = if outcome.is_err() { hints(&steps, target) } else { Vec::new() };
    Explanation { steps, outcome, hints }
}

/// Returns advice that the steps of a failed log-in suggest.
fn hints(steps: &[Step], target: &Target) -> Vec<String> {
    let mut hints = Vec::new();
    let attempts = steps.iter().filter_map(|step| match step {
        Step::Attempt(attempt) => Some(attempt),
        _ => None,
    });
    let mut was_asked = false;
    for attempt in attempts.clone() {
        was_asked = true;
        if attempt.what == What::AgentKeys && attempt.answer == Answer::Holds(0) {
            hints.push(
                "the agent holds no key, or is locked: `ssh-add -l` tells, `ssh-add FILE` adds one, `ssh-add -X` unlocks"
                    .to_owned(),
            );
        }
    }
    if was_asked && target.keys.agent.is_none() {
        hints.push("no agent was asked: SSH_AUTH_SOCK is not set, or IdentityAgent is none".to_owned());
    }
    let offered = attempts.filter(|attempt| matches!(attempt.answer, Answer::Refused { .. })).count();
    if offered > MOST_TRIES {
        hints.push(
            "many keys were refused before: OpenSSH hangs up after 6 (MaxAuthTries); IdentityFile and IdentitiesOnly yes \
             offer the right one first"
                .to_owned(),
        );
    }
    hints
}

#[derive(Clone, Default)]
struct Steps(Arc<Mutex<Vec<Step>>>);

impl Steps {
    fn add(&self, step: Step) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(step);
    }

    fn take(&self) -> Vec<Step> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A judge that records the verdicts of another judge.
struct Watched {
    judge: Arc<dyn HostVerifier>,
    steps: Steps,
}

impl HostVerifier for Watched {
    fn wanted(&self, name: &str) -> Vec<String> {
        self.judge.wanted(name)
    }

    fn judge<'a>(&'a self, name: &'a str, at: &'a Place, offered: &'a Offered) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let verdict = self.judge.judge(name, at, offered).await;
            self.steps.add(Step::Identity {
                host: name.to_owned(),
                place: at.clone(),
                offered: offered.clone(),
                verdict: verdict.clone(),
            });
            verdict
        })
    }

    fn announced(&self, name: &str, keys: Vec<PublicKey>) {
        self.judge.announced(name, keys);
    }
}

/// Number of refused keys that is close to the limit of servers (MaxAuthTries).
const MOST_TRIES: usize = 4;
