//! Tells another server what it missed: the changes after the last one that it was told. Each change has a number that the store
//! keeps (`crates/access/src/otp/ledger.rs`), and so does how far each server was told: a restart tells nothing twice.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use access::otp::record::Told;
use access::otp::sync::{Known, State as TokenState};
use access::otp::token::Token;
use state::State;
use state::lock::lock;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::link::Untold;
use super::{Peer, follow};
use crate::otp::tokens::Tokens;

/// Time between two attempts.
const AGAIN: Duration = Duration::from_secs(1);

/// The longest such time, for a server that stays away.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// Changes of one attempt, and messages at once.
const ROUND: usize = 500;
const AT_ONCE: usize = 16;

/// Tokens that the server lacks of which it is told again in one attempt.
const LACKING: usize = 250;

/// What a server knows.
#[derive(Debug)]
struct Progress {
    told: Told,
    /// As the store has it, for the next process.
    stored: Told,
    /// Tokens that it does not have, with the change that it could not be told.
    lacking: BTreeMap<String, u64>,
    /// Of these, the one that it was told of last.
    told_again: String,
}

/// What became of one attempt.
#[derive(Debug)]
enum Done {
    /// There is more to tell.
    Part,
    All,
    Faulty(String),
}

/// A change of a token.
type Change = (u64, TokenState);

/// Goes on as long as this process has the server among its peers.
pub(super) async fn catch_up(peer: Arc<Peer>, tokens: Arc<Tokens>, state: Arc<State>) {
    let subject = format!("otp.peers.{}", peer.name);
    let mut pause = AGAIN;
    let mut progress = begin(&peer, &tokens).await;
    loop {
        match progress.round(&peer, &tokens).await {
            Done::Part => continue,
            Done::All => {
                state.restore(&subject);
                pause = AGAIN;
            }
            Done::Faulty(why) => {
                state.degrade(&subject, &why);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        sleep(pause).await;
    }
}

/// Waits for the store, which says what the server knows.
async fn begin(peer: &Peer, tokens: &Tokens) -> Progress {
    loop {
        let name = peer.name.clone();
        if let Ok(told) = tokens.decide(move |ledger, _| (ledger.told(&name), Vec::new())).await {
            return Progress { told, stored: told, lacking: BTreeMap::new(), told_again: String::new() };
        }
        sleep(AGAIN).await;
    }
}

impl Progress {
    async fn round(&mut self, peer: &Arc<Peer>, tokens: &Tokens) -> Done {
        let after = self.told.through;
        let page = tokens.decide(move |ledger, _| {
            let changes = ledger.changed_after(after).take(ROUND);
            let changes = changes.map(|(change, token)| (change, state_of(token))).collect::<Vec<Change>>();
            ((changes, ledger.changes()), Vec::new())
        });
        // A store that fails has a subject of its own.
        let Ok((changes, latest)) = page.await else { return Done::All };
        let is_all = changes.len() < ROUND;
        let end = if is_all { latest } else { changes.last().map_or(latest, |(change, _)| *change) };
        let told_at_once = lock(&peer.at_once).clone();
        let left: Vec<_> = changes.into_iter().filter(|(change, _)| !told_at_once.contains(change)).collect();
        let fault = self.tell(peer, tokens, &left, end).await;
        lock(&peer.at_once).retain(|change| *change > self.told.through);
        let fault = match fault {
            None if is_all => self.tell_again(peer, tokens).await,
            other => other,
        };
        self.store(peer, tokens).await;
        match fault {
            Some(why) => Done::Faulty(why),
            None if is_all && self.told.through >= end => Done::All,
            None => Done::Part,
        }
    }

    /// Tells changes, after which the server knows all up to `end`. Returns what did not work.
    async fn tell(
        &mut self,
        peer: &Arc<Peer>,
        tokens: &Tokens,
        changes: &[Change],
        end: u64,
    ) -> Option<String> {
        let mut fault = None;
        // The first one alone: its answer says whether the server has lost what it was told.
        let (first, rest) = changes.split_at(changes.len().min(1));
        for (at, part) in [first].into_iter().chain(rest.chunks(AT_ONCE)).enumerate() {
            for (change, name, answer) in tell(peer, part).await {
                match answer {
                    Ok(known) => {
                        if at == 0 && self.was_set_back(&known) {
                            lock(&peer.at_once).clear();
                            return None;
                        }
                        self.lacking.remove(&name);
                        follow(tokens, &known.state);
                    }
                    // A token that is not enrolled there does not keep the others from it.
                    Err(Untold::Refused(why)) => {
                        fault.get_or_insert_with(|| format!("token {name}: {why}"));
                        self.lacking.insert(name, change);
                    }
                    Err(Untold::Away(why)) => return Some(why),
                }
            }
            self.told.through = part.last().map_or(self.told.through, |(change, _)| *change);
        }
        self.told.through = end;
        fault
    }

    /// Whether a server has fewer changes than it had: then it is told all again.
    fn was_set_back(&mut self, known: &Known) -> bool {
        let Some(theirs) = known.changes else { return false };
        let is_back = theirs < self.told.theirs;
        self.told = Told { through: if is_back { 0 } else { self.told.through }, theirs };
        is_back
    }

    /// Tells of some tokens that the server lacked. Those may have been enrolled there since.
    async fn tell_again(&mut self, peer: &Arc<Peer>, tokens: &Tokens) -> Option<String> {
        if self.lacking.is_empty() {
            return None;
        }
        let behind = (Bound::Excluded(&*self.told_again), Bound::Unbounded);
        let names = self.lacking.range::<str, _>(behind).chain(&self.lacking);
        let names: Vec<_> =
            names.take(LACKING.min(self.lacking.len())).map(|(name, _)| name.clone()).collect();
        self.told_again = names.last().cloned().unwrap_or_default();
        let asked = names.clone();
        let states = tokens.decide(move |ledger, _| {
            let states = asked.iter().filter_map(|name| ledger.token(name)).map(state_of);
            (states.collect::<Vec<TokenState>>(), Vec::new())
        });
        let states = states.await.ok()?;
        // One that is gone here needs not be told.
        for name in names.iter().filter(|name| states.iter().all(|state| state.name != **name)) {
            self.lacking.remove(name);
        }
        let mut fault = None;
        let states: Vec<Change> = states.into_iter().map(|state| (0, state)).collect();
        for part in states.chunks(AT_ONCE) {
            for (_, name, answer) in tell(peer, part).await {
                match answer {
                    Ok(known) => {
                        self.lacking.remove(&name);
                        follow(tokens, &known.state);
                    }
                    Err(Untold::Refused(why)) => {
                        fault.get_or_insert_with(|| format!("token {name}: {why}"));
                    }
                    Err(Untold::Away(why)) => return Some(why),
                }
            }
        }
        fault
    }

    /// Remembers how far the server was told. Of a token that it lacks it is told again by the next process.
    async fn store(&mut self, peer: &Peer, tokens: &Tokens) {
        let lacking = self.lacking.values().min().map(|change| change.saturating_sub(1));
        let through = lacking.map_or(self.told.through, |lacking| lacking.min(self.told.through));
        let told = Told { through, theirs: self.told.theirs };
        if through == self.stored.through {
            return;
        }
        let name = peer.name.clone();
        let stored = tokens.decide(move |ledger, _| ((), ledger.tell(&name, told).into_iter().collect()));
        if stored.await.is_ok() {
            self.stored = told;
        }
    }
}

/// Tells all of these at once. The answers come in the order of the changes.
async fn tell(peer: &Arc<Peer>, changes: &[Change]) -> Vec<(u64, String, Result<Known, Untold>)> {
    let mut messages = JoinSet::new();
    for (change, state) in changes.iter().cloned() {
        let peer = peer.clone();
        messages.spawn(async move {
            let answer = peer.link.tell(&state, &state.name).await;
            (change, state.name, answer)
        });
    }
    let mut answers = messages.join_all().await;
    answers.sort_by_key(|(change, ..)| *change);
    answers
}

/// The state of a token, for other servers.
fn state_of(token: &Token) -> TokenState {
    let modified = token.used.unwrap_or(token.enrolled);
    TokenState { name: token.id.clone(), last: token.position(), modified }
}
