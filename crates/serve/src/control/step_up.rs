//! One-time passwords for changes over the network (`step-up` of `[control]`): asks the store of tokens, and remembers who has given
//! a good one. `crates/access/src/step_up.rs` decides for how long that is enough. A client learns whether its password was good
//! and no more; the events have the reason.

use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use access::policy::Subject;
use access::step_up::{NEEDED, StepUps};
use config::types::RemoteControl;
use logic::client_slots::Party;
use state::State;
use state::events::Level;
use state::lock::lock;
use state::validation::Proof;
use text::terminal::line;

use super::framing;
use crate::logins::{Logins, Standing};

/// Longest password in bytes.
const LONGEST: usize = 128;

/// Answer to a client whose one-time password is refused. It is the same for every reason, so that it helps no guess.
const NOT_GOOD: &str = "the one-time password is not good";

/// That an operator must give a one-time password before a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// Time for which one is enough.
    lasts: Duration,
    /// The user whose tokens count; `None`: the file of users has none for this operator.
    user: Option<String>,
}

impl Rule {
    /// `None`: the operator needs none.
    pub(super) fn of(remote: &RemoteControl, subject: &Subject, standing: &Standing) -> Option<Self> {
        let step_up = remote.step_up.as_ref().filter(|it| !standing.is_among(subject, &it.except))?;
        Some(Self { lasts: step_up.lasts, user: standing.user.clone() })
    }
}

/// Who has given a one-time password lately.
#[derive(Debug, Default)]
pub(super) struct Proved(Mutex<StepUps<Party>>);

/// Whether a password was good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Good,
    Wrong,
    /// It was not looked at.
    NotJudged,
}

impl Proved {
    /// The refusal of a change for which a password is missing.
    pub(super) fn lacks_password(&self, rule: &Rule, subject: &Subject, from: IpAddr) -> Option<String> {
        let party = Party::source(from);
        let proved = lock(&self.0);
        (!proved.is_fresh(&party, subject, rule.lasts, Instant::now()))
            .then(|| format!("{NEEDED} for changes: `otp PASSWORD` gives it (penstock ctl asks for it)"))
    }

    /// Judges a password of an operator at an address. Returns the framed answer.
    pub(super) async fn take_password(
        &self,
        (state, logins): (&State, &Logins),
        rule: Option<&Rule>,
        (subject, from): (&Subject, IpAddr),
        typed: &str,
    ) -> (Vec<u8>, Outcome) {
        let Some(rule) = rule else {
            return (framing::answer("no one-time password is needed"), Outcome::NotJudged);
        };
        let guess = guess_of(subject);
        if logins.wait(from, &guess).is_some() {
            let message = "too many wrong one-time passwords or log-ins: try again later";
            return (framing::refusal(message, ""), Outcome::NotJudged);
        }
        let tell = |level, message: String| {
            state.events.record(level, "access", format!("{from}: {subject}: {message}"));
        };
        let proof = match &rule.user {
            None => Proof::Bad("the file of users has no user for it, whose tokens could count".to_owned()),
            Some(_) if typed.is_empty() || typed.len() > LONGEST => {
                Proof::Bad("it is empty or too long".to_owned())
            }
            Some(user) => match state.validation.load_full() {
                Some(validation) => validation.prove(user.clone(), typed.to_owned()).await,
                None => Proof::Unable,
            },
        };
        match proof {
            Proof::Good(token) => {
                let party = Party::source(from);
                lock(&self.0).proved(&party, subject, Instant::now());
                logins.right(from, &guess);
                let lasts = rule.lasts.as_secs();
                let token = line(&token);
                tell(
                    Level::Info,
                    format!("one-time password of token {token} was good: changes for {lasts} s"),
                );
                let answer = format!("the one-time password was good: changes are allowed for {lasts} s");
                (framing::answer(&answer), Outcome::Good)
            }
            Proof::Bad(why) => {
                tell(Level::Warning, format!("one-time password refused: {}", line(&why)));
                logins.wrong(from, Some(&guess));
                (framing::refusal(NOT_GOOD, ""), Outcome::Wrong)
            }
            Proof::Unable => {
                tell(Level::Warning, "one-time password not judged: the store cannot be asked".to_owned());
                let message = "one-time passwords cannot be judged now, so nothing can be changed";
                (framing::refusal(message, "  hint: penstock ctl status says why\n"), Outcome::NotJudged)
            }
        }
    }
}

/// Under which guesses at one-time passwords count: who makes them has the right password of the log-in, which must not forgive
/// them. No token has such a name.
fn guess_of(subject: &Subject) -> Subject {
    Subject::Token(format!("one-time password of {subject}"))
}
