//! Chooses the backend of one session from the facts about its pool. The data path and `penstock ctl why` both call
//! [`Question::select`]: they cannot give different answers.

use smallvec::SmallVec;

use super::{Availability, Balancer, Candidate, Choice, Identities, Tried};
use crate::acl::Verdict;
use crate::health::State;

text::meanings! {
    /// Whether the operator allows a backend to take new sessions.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Admission {
        /// New sessions may come.
        Ready = "ready",
        /// No new sessions; open sessions continue.
        Draining = "draining",
    }
}

/// Behaviour while no backend of a pool is healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllDown {
    /// Use all backends as if they were up, and report the pool as degraded.
    FailOpen,
    /// HTTP: 503 page; TCP: close.
    ErrorPage,
}

/// Facts about one backend on which the choice depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    pub health: State,
    /// The operator's decision.
    pub admission: Admission,
    /// Effective weight, in the unit of [`Candidate::weight`].
    pub weight: u32,
    /// Weight without slow start, in the same unit.
    pub full_weight: u32,
    pub in_flight: u32,
    pub limit: Option<u32>,
    /// Number of sessions from which on only clients come in that the backend has served before.
    pub soft_limit: Option<u32>,
    /// What its access list says of the client.
    pub verdict: Verdict,
    /// See [`priority::keep_lowest`](super::priority::keep_lowest).
    pub priority: u32,
    /// See [`Candidate::latency`].
    pub latency: u32,
    /// Sessions that it may still get while it is half-open; without meaning in other states.
    pub trials: u32,
}

impl Standing {
    /// Whether it is half-open, and has all the sessions that it may have then.
    pub fn is_on_trial(&self) -> bool {
        self.health == State::HalfOpen && self.trials == 0
    }

    fn candidate(self, unhealthy: Unhealthy) -> Candidate {
        let healthy = self.health.availability() == Availability::Available;
        let available = match self.admission == Admission::Ready && (healthy || unhealthy == Unhealthy::Used)
        {
            true if self.verdict == Verdict::Deny => Availability::Denied,
            true if self.is_on_trial() => Availability::OnTrial,
            true => Availability::Available,
            false => Availability::Unavailable,
        };
        Candidate {
            weight: self.weight,
            in_flight: self.in_flight,
            limit: self.soft_limit.into_iter().chain(self.limit).min(),
            available,
            latency: self.latency,
        }
    }
}

/// Whether backends that are down or ejected take sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unhealthy {
    Excluded,
    /// No backend is healthy, and the pool fails open.
    Used,
}

/// The backends of a pool as the choice sees them.
pub type Candidates = SmallVec<[Candidate; 8]>;

/// Returns the candidates, and whether those that are not healthy are among them. `standings` reads the facts anew each
/// time.
pub fn candidates<I: Iterator<Item = Standing>>(
    standings: impl Fn() -> I,
    all_down: AllDown,
) -> (Candidates, Unhealthy) {
    let mut candidates = Candidates::new();
    let unhealthy = gather(&mut candidates, standings, all_down);
    (candidates, unhealthy)
}

/// Like [`candidates`], but puts them into an empty list: to return one costs copies of it.
#[inline]
pub fn gather<I: Iterator<Item = Standing>>(
    candidates: &mut Candidates,
    standings: impl Fn() -> I,
    all_down: AllDown,
) -> Unhealthy {
    for one in standings() {
        candidates.push(one.candidate(Unhealthy::Excluded));
    }
    if all_down == AllDown::ErrorPage || any_could_take(candidates) {
        return Unhealthy::Excluded;
    }
    candidates.clear();
    candidates.extend(standings().map(|one| one.candidate(Unhealthy::Used)));
    Unhealthy::Used
}

fn any_could_take(candidates: &[Candidate]) -> bool {
    candidates.iter().any(Candidate::could_take)
}

/// Inputs of the choice, other than the balancer and chance.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    pub candidates: &'a [Candidate],
    pub identities: &'a Identities,
    /// Hash of the value that the pool's hash key names.
    pub key: u64,
    /// Backend that the sticky table has for the client.
    pub remembered: Option<Remembered>,
    /// Backends that failed in this session.
    pub tried: &'a Tried,
}

/// The backend that a client had before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// Index of the backend.
    pub backend: usize,
    /// Its [`Standing::limit`]: the soft limit and priorities do not count for its own clients.
    pub limit: Option<u32>,
}

/// What becomes of a session that needs a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The backend that the client had before.
    Remembered(usize),
    /// The backend that the policy chose.
    Picked(usize),
    /// All suitable backends are at their limit, or half-open with all their sessions on trial: the session waits in the
    /// queue.
    AllBusy,
    /// The session has tried all backends that are available.
    AllTried,
    /// No backend is available.
    Unavailable,
    /// No backend is available to this client: access lists deny it.
    Denied,
}

impl Selection {
    /// Index of the backend, if there is one.
    pub fn backend(self) -> Option<usize> {
        match self {
            Selection::Remembered(index) | Selection::Picked(index) => Some(index),
            Selection::AllBusy | Selection::AllTried | Selection::Unavailable | Selection::Denied => None,
        }
    }
}

impl Question<'_> {
    /// Chooses a backend. Only `balancer` changes. `random` is a new random number.
    pub fn select(&self, balancer: &mut Balancer, random: u64) -> Selection {
        if !any_could_take(self.candidates) {
            let any = |availability| {
                let mut all = self.candidates.iter().enumerate();
                all.any(|(at, one)| {
                    one.weight > 0 && one.available == availability && !self.tried.contains(at)
                })
            };
            return match any(Availability::OnTrial) {
                true => Selection::AllBusy,
                false if any(Availability::Denied) => Selection::Denied,
                false => Selection::Unavailable,
            };
        }
        if let Some(index) = self.known() {
            return Selection::Remembered(index);
        }
        match balancer.pick(self.candidates, self.identities, self.key, self.tried, random) {
            Choice::Backend(index) => Selection::Picked(index),
            Choice::AllBusy => Selection::AllBusy,
            Choice::NoneAvailable => Selection::AllTried,
        }
    }

    /// Returns the backend that the client had before, if it takes another session of it.
    pub fn known(&self) -> Option<usize> {
        let Remembered { backend, limit } = self.remembered?;
        let one = self.candidates.get(backend)?;
        let is_able = match one.available {
            Availability::Available | Availability::Standby => one.weight > 0,
            Availability::Unavailable | Availability::Denied | Availability::OnTrial => false,
        };
        let has_room = limit.is_none_or(|limit| one.in_flight < limit);
        (is_able && has_room && !self.tried.contains(backend)).then_some(backend)
    }
}
