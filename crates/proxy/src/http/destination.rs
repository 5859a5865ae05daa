//! Where a listener sends a request, before a backend is chosen. The data path and `penstock ctl why` both ask here.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use config::types::{HttpSettings, RedirectToHttps};
use logic::acl::{AccessList, Verdict};
use logic::balance::HashKey;
use logic::bandwidth::Bandwidth;
use logic::http1::forward;
use logic::http1::request::RequestHead;
use logic::peers::Peer;
use logic::route::{
    Action, Decision, Facts, HeaderEdits, Location, PathAmbiguity, PoolId, RedirectStatus, Respond,
    RouteTable,
};
use state::acme::Challenges;
use state::validation::{Question, Validation};

/// What becomes of a request.
pub enum Destination<'a> {
    /// A backend of this pool gets it, with the route's changes of its head and its limits.
    Pool(PoolId, &'a HeaderEdits, Option<&'a Bandwidth>),
    /// An ACME authority validates a name.
    AcmeChallenge(Arc<str>),
    /// The validation server of one-time passwords answers it.
    Validation(Arc<Validation>, Question),
    RedirectToHttps(u16),
    Redirect(RedirectStatus, &'a Location),
    /// The route answers by itself, with its changes of responses.
    Respond(&'a Respond, &'a HeaderEdits),
    NoRoute,
    /// An access list denies the client.
    Denied,
    /// The client's source exceeds `request-rate`: the time after which its next request is admitted.
    TooMany(Duration),
    Ambiguous(PathAmbiguity),
    /// It was to go to this pool, but has passed through Penstock processes too often.
    Loop(PoolId),
}

/// How a request arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    InTheClear,
    OverTls,
}

/// Inputs of the decision.
#[derive(Clone, Copy)]
pub struct RouteQuestion<'a> {
    pub settings: &'a HttpSettings,
    pub routes: &'a RouteTable,
    pub challenges: &'a Challenges,
    /// The validation server, if there is one.
    pub validation: &'a ArcSwapOption<Validation>,
    /// Name of the listener.
    pub listener: &'a str,
    pub arrived: Arrived,
    pub peer: Peer,
    /// Verdict of the listener's access list on the client.
    pub standing: Verdict,
    /// Pool for clients that the listener denies.
    pub denied_pool: Option<PoolId>,
    /// Bytes of the head.
    pub head: &'a [u8],
    pub request: &'a RequestHead,
}

impl<'a> RouteQuestion<'a> {
    /// `count` counts the request at its source, and says how long the source must wait if it has sent too many.
    pub fn destination(&self, count: impl FnOnce() -> Result<(), Duration>) -> Destination<'a> {
        if self.arrived == Arrived::InTheClear
            && let Some(answer) = self.challenges.answer(self.request.path(self.head))
        {
            return Destination::AcmeChallenge(answer);
        }
        if let Err(wait) = count() {
            return Destination::TooMany(wait);
        }
        if let RedirectToHttps::Port(port) = self.settings.redirect_to_https {
            return Destination::RedirectToHttps(port);
        }
        if let Some((validation, question)) = self.validation() {
            return Destination::Validation(validation, question);
        }
        let destination = self.route();
        match destination {
            Destination::Pool(pool, ..) if self.request.hops.count() >= self.settings.hops => {
                Destination::Loop(pool)
            }
            _ => destination,
        }
    }

    /// A client that the listener denies gets no answer of the validation server either.
    fn validation(&self) -> Option<(Arc<Validation>, Question)> {
        let question = Question::of(self.request.path(self.head))?;
        let validation = self.validation.load_full()?;
        let is_answered = self.standing == Verdict::Permit && validation.listeners.contains(self.listener);
        is_answered.then_some((validation, question))
    }

    fn route(&self) -> Destination<'a> {
        static NO_EDITS: HeaderEdits = HeaderEdits { request: Vec::new(), response: Vec::new() };
        if self.standing == Verdict::Deny {
            // A reload may have removed the pool while the client was connected.
            return match self.denied_pool {
                Some(pool) => Destination::Pool(pool, &NO_EDITS, None),
                None => Destination::Denied,
            };
        }
        if let (&[], Some(pool)) = (self.routes.routes(), self.routes.fallback()) {
            return Destination::Pool(pool, &NO_EDITS, None); // nothing to decide, and nothing to be known for it
        }
        self.with_facts(|facts| match self.routes.decide(facts) {
            Decision::Route(route) if self.is_denied_by(route.acl.as_deref()) => Destination::Denied,
            Decision::Route(route) => match &route.action {
                Action::Pool(pool) => Destination::Pool(*pool, &route.edits, route.bandwidth.as_ref()),
                Action::Redirect { status, location } => Destination::Redirect(*status, location),
                Action::Respond(respond) => Destination::Respond(respond, &route.edits),
            },
            Decision::Fallback(pool) => Destination::Pool(pool, &NO_EDITS, None),
            Decision::NoRoute => Destination::NoRoute,
            Decision::Ambiguous(ambiguity) => Destination::Ambiguous(ambiguity),
        })
    }

    /// Returns the client that the request comes from, behind trusted proxies. `None` if they do not tell it.
    pub fn client_behind_proxies(&self) -> Option<Peer> {
        forward::client_behind(self.head, self.request, self.peer, &self.settings.trusted_proxies)
    }

    fn is_denied_by(&self, acl: Option<&AccessList>) -> bool {
        let Some(acl) = acl else { return false };
        self.client_behind_proxies().is_none_or(|client| acl.verdict(&client) == Verdict::Deny)
    }

    /// Gives `act` the parts of the request that routing depends on.
    pub fn with_facts<T>(&self, act: impl FnOnce(&Facts<'_>) -> T) -> T {
        let (head, request) = (self.head, self.request);
        let host = lower(text(request.host.of(head)));
        let lookup = request.lookup(head);
        act(&Facts { host: &host, path: request.path(head), method: request.method(head), headers: &lookup })
    }
}

/// Converts to a string: hosts and paths are visible ASCII once parsed.
pub(super) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

pub(super) fn lower(host: &str) -> Cow<'_, str> {
    match host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(host.to_ascii_lowercase()),
        false => Cow::Borrowed(host),
    }
}

/// Hash of the value in a request that the pool's hash key names.
pub fn key(hash_key: &HashKey, client: Peer, head: &[u8], request: &RequestHead) -> u64 {
    let header = |name: &str| request.header(head, name);
    hash_key.hash(client.ip(), || lower(text(request.host.of(head))), || request.path(head), header)
}
