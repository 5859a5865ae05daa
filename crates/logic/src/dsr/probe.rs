//! Whether a backend accepts the VIP: a probe goes to it with the VIP as destination, on the way of the packets of clients.
//! A check of the backend's own address says nothing of that: a server without the VIP on its loopback passes it, and the
//! packets of its clients end there.
//!
//! A TCP service is asked by a SYN, and by an HTTP request if its pool's check is one
//! (`crates/logic/src/dsr/probe/exchange.rs`); a UDP service by the datagram of that check, if that is one. Interval, timeout,
//! rise and fall are those of that check, which goes on beside: both must pass. [`Prober`] decides who is asked when, and
//! what the replies mean; `crates/logic/src/dsr/probe/frames.rs` has the frames, `crates/proxy/src/dsr/probe.rs` the socket.
//!
//! The SYN to one backend always has the same sequence number. If our RST was lost, and the server still waits for the
//! end of the handshake, it sees the same SYN again, and answers it.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::Transports;
use super::packet::{Mac, Transport};
use super::tunnel::Mode;
use crate::health::{Cause, Check, Event, Health, PassiveRule, Rule, Source, State, Verdict, VerdictOutcome};

mod exchange;
mod frames;
mod hear;
#[cfg(test)]
mod tests;

pub use exchange::Back;
use exchange::Exchange;
pub use frames::{Ends, Reply, Said};
pub use hear::{Addressed, Heard};

/// How a service is probed, beside a check of its pool; `None`: it is not.
pub fn transport(transports: Transports, check: &Check) -> Option<Transport> {
    let asks_by_datagram = matches!(check, Check::Dns { .. } | Check::Datagram { .. });
    match transports {
        Transports::Udp => asks_by_datagram.then_some(Transport::Udp),
        Transports::TcpAndUdp if asks_by_datagram => Some(Transport::Udp),
        Transports::Tcp | Transports::TcpAndUdp => Some(Transport::Tcp),
    }
}

/// A probe that is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    Syn { sequence: u32 },
    Datagram(Vec<u8>),
}

/// A point in time, on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub now: Instant,
    pub at: SystemTime,
}

/// What a verdict has changed. A backend that is down already goes down again when it is for another reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub backend: Arc<str>,
    pub event: Event,
    /// Why, for operators.
    pub cause: Cause,
}

/// The probes of one service.
#[derive(Debug)]
pub struct Prober {
    check: Check,
    transport: Transport,
    rule: Rule,
    vip: IpAddr,
    mode: Mode,
    backends: HashMap<Arc<str>, Probed>,
    /// The backend that was asked last with each number of a DNS question. Its question may have ended.
    ids: HashMap<u16, Arc<str>>,
}

#[derive(Debug)]
struct Probed {
    health: Health,
    /// Sequence number of each SYN to it.
    sequence: u32,
    asked: Option<Asked>,
    /// The last exchange, whose verdict is known.
    tail: Option<Exchange>,
    own: OwnAddress,
    /// Whether operators were told that it is silent.
    told: OwnAddress,
}

/// What the check of the pool says of a backend's own address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnAddress {
    #[default]
    Answers,
    Fails,
}

/// A probe without a verdict.
#[derive(Debug)]
struct Asked {
    since: Instant,
    to: Mac,
    port: u16,
    /// Number of the DNS question.
    id: u16,
    /// The HTTP request, once the connection is there.
    exchange: Option<Exchange>,
    /// Something else came back.
    wrong: Wrong,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    No,
    Yes,
}

/// Failed traffic is not seen here.
const PASSIVE: PassiveRule = PassiveRule { failures: 0, ..PassiveRule::DEFAULT };

impl Prober {
    pub fn new(check: Check, transport: Transport, rule: Rule, vip: IpAddr) -> Self {
        Self {
            check,
            transport,
            rule,
            vip,
            mode: Mode::default(),
            backends: HashMap::new(),
            ids: HashMap::new(),
        }
    }

    /// Sets how packets go to the backends.
    pub fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Takes the settings of a reload. Returns whether they ask in the same way; if not, a new prober is needed.
    pub fn adopt(
        &mut self,
        check: &Check,
        transport: Transport,
        rule: Rule,
        vip: IpAddr,
        now: Instant,
    ) -> bool {
        if (&self.check, self.transport, self.vip) != (check, transport, vip) {
            return false;
        }
        if self.rule != rule {
            self.rule = rule;
            for probed in self.backends.values_mut() {
                probed.health.adopt(Some(rule), PASSIVE, now, 0.0);
            }
        }
        true
    }

    /// Forgets all backends but these.
    pub fn retain(&mut self, names: &HashSet<&str>) {
        self.backends.retain(|name, _| names.contains(&**name));
    }

    /// Health of a backend at the VIP; `None` if it was never asked.
    pub fn health(&self, name: &str) -> Option<&Health> {
        self.backends.get(name).map(|probed| &probed.health)
    }

    /// Whether probes keep flows from a backend.
    pub fn is_down(&self, name: &str) -> bool {
        self.health(name).is_some_and(|health| health.state() == State::Down)
    }

    /// Whether a backend has passed its probes.
    pub fn is_up(&self, name: &str) -> bool {
        self.health(name).is_some_and(|health| health.state() == State::Up)
    }

    /// Whether the last probe of a backend has failed.
    pub fn is_failing(&self, name: &str) -> bool {
        let last = self.health(name).and_then(|health| health.verdicts().next());
        last.is_some_and(|verdict| verdict.outcome == VerdictOutcome::Fail)
    }

    /// Whether a backend is to be asked now.
    pub fn is_due(&self, name: &str, now: Instant) -> bool {
        self.backends.get(name).is_none_or(|probed| {
            probed.asked.is_none() && probed.health.poll_probe().is_some_and(|due| now >= due)
        })
    }

    /// The probe of a backend, if it is due. `random` is new each time.
    pub fn ask(
        &mut self,
        name: &Arc<str>,
        to: Mac,
        port: u16,
        now: Instant,
        random: u64,
    ) -> Option<Question> {
        let new = || Probed {
            // The first one at once: without it packets may go to a backend that does not take them.
            health: Health::new(Some(self.rule), PASSIVE, now, 0.0),
            sequence: random as u32,
            asked: None,
            tail: None,
            own: OwnAddress::default(),
            told: OwnAddress::default(),
        };
        if !self.backends.contains_key(name) {
            self.backends.insert(name.clone(), new());
        }
        if !self.is_due(name, now) {
            return None;
        }
        let id = match self.check {
            Check::Dns { .. } if self.transport == Transport::Udp => {
                let id = self.free_id((random >> 32) as u16);
                self.ids.insert(id, name.clone());
                id
            }
            _ => 0,
        };
        let probed = self.backends.get_mut(name)?;
        probed.health.handle_probe_start(now);
        probed.asked = Some(Asked { since: now, to, port, id, exchange: None, wrong: Wrong::No });
        probed.tail = None;
        Some(match &self.check {
            _ if self.transport == Transport::Tcp => Question::Syn { sequence: probed.sequence },
            Check::Dns { name } => Question::Datagram(name.question(id)),
            Check::Datagram { send, .. } => Question::Datagram(send.to_vec()),
            Check::Tcp | Check::Http { .. } => Question::Syn { sequence: probed.sequence },
        })
    }

    /// A number that no open question has.
    fn free_id(&self, first: u16) -> u16 {
        let asked = |id: u16| self.backends.get(self.ids.get(&id)?)?.asked.as_ref();
        let is_used = |id: u16| asked(id).is_some_and(|asked| asked.id == id);
        // Few are used at a time.
        (0..=u16::MAX).map(|step| first.wrapping_add(step)).find(|id| !is_used(*id)).unwrap_or(first)
    }

    /// Takes a reply that is a verdict.
    fn handle(&mut self, reply: &Reply<'_>, moment: Moment, jitter: f64) -> Option<Change> {
        let check = &self.check;
        let is_open = |probed: &Probed| probed.asked.as_ref().is_some_and(|asked| asked.port == reply.port);
        let is_from = |probed: &Probed| probed.asked.as_ref().is_some_and(|asked| asked.to == reply.from);
        let acknowledges = |probed: &Probed, number: u32| number == probed.sequence.wrapping_add(1);
        let is_answer = |probed: &Probed, datagram: &[u8]| match (check, &probed.asked) {
            (Check::Dns { name }, Some(asked)) => name.is_answered_by(asked.id, datagram),
            (Check::Datagram { expect, .. }, Some(_)) => is_from(probed) && datagram.starts_with(expect),
            _ => false,
        };
        let belongs = |probed: &Probed| match reply.said {
            Said::Accepted(number) | Said::Refused(number) => acknowledges(probed, number),
            Said::Unreachable | Said::SentOn | Said::Rejected => is_from(probed),
            Said::Datagram(datagram) => is_answer(probed, datagram),
            Said::Segment { .. } => false,
        };
        let found = self.backends.iter_mut().find(|(_, probed)| is_open(probed) && belongs(probed));
        let Some((name, probed)) = found else {
            if let Said::Datagram(_) = reply.said {
                let asked = self.backends.values_mut().filter(|probed| is_from(probed));
                asked.filter_map(|probed| probed.asked.as_mut()).for_each(|asked| asked.wrong = Wrong::Yes);
            }
            return None;
        };
        let vip = SocketAddr::new(self.vip, reply.port);
        let cause = match reply.said {
            Said::Accepted(_) | Said::Datagram(_) | Said::Segment { .. } => Cause::Passed,
            Said::Refused(_) => Cause::VipRefused(vip),
            Said::Unreachable if self.transport == Transport::Udp => Cause::VipRefused(vip),
            Said::SentOn => Cause::VipSentOn(vip),
            // Where no process listens, TCP answers with RST.
            Said::Unreachable | Said::Rejected => Cause::VipRejected(vip),
        };
        judge(name, probed, cause, moment, jitter)
    }

    /// The backend whose SYN a reply acknowledges.
    fn acknowledged(&self, reply: &Reply<'_>) -> Option<Arc<str>> {
        let (Said::Accepted(number) | Said::Refused(number)) = reply.said else { return None };
        let is_it = |probed: &Probed| {
            probed.asked.as_ref().is_some_and(|asked| asked.port == reply.port)
                && number == probed.sequence.wrapping_add(1)
        };
        self.backends.iter().find(|(_, probed)| is_it(probed)).map(|(name, _)| name.clone())
    }

    /// Backends whose probes [`Self::expire`] will end.
    pub fn overdue(&self, now: Instant) -> Vec<Arc<str>> {
        let limit = self.rule.timeout;
        let is_over = |asked: &Asked| now.saturating_duration_since(asked.since) >= limit;
        let over = self.backends.iter().filter(|(_, probed)| probed.asked.as_ref().is_some_and(is_over));
        over.map(|(name, _)| name.clone()).collect()
    }

    /// Sets what is known of a backend's own address: a machine that is off does not lack the VIP alone.
    pub fn set_own(&mut self, name: &str, own: OwnAddress) {
        if let Some(probed) = self.backends.get_mut(name) {
            probed.own = own;
        }
    }

    /// Ends all probes without a verdict: without a link no answer of a backend can arrive.
    pub fn forget_asked(&mut self) {
        self.backends.values_mut().for_each(|probed| probed.asked = None);
    }

    /// Ends one probe that has got no reply in time.
    pub fn expire(&mut self, moment: Moment, jitter: f64) -> Expired {
        let limit = self.rule.timeout;
        let is_over = |asked: &Asked| moment.now.saturating_duration_since(asked.since) >= limit;
        let found = self.backends.iter_mut().find(|(_, probed)| probed.asked.as_ref().is_some_and(is_over));
        let Some((name, probed)) = found else { return Expired::None };
        let cause = match &probed.asked {
            Some(Asked { wrong: Wrong::Yes, .. }) => Cause::WrongReply,
            Some(Asked { exchange: Some(_), .. }) => Cause::NoAnswer { after: limit },
            asked => {
                let vip = SocketAddr::new(self.vip, asked.as_ref().map_or(0, |asked| asked.port));
                match probed.own {
                    OwnAddress::Answers => Cause::NoVip { vip, after: limit, mode: self.mode },
                    OwnAddress::Fails => Cause::Silent { vip, after: limit },
                }
            }
        };
        Expired::One(judge(name, probed, cause, moment, jitter))
    }
}

/// What [`Prober::expire`] has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expired {
    /// A probe, with what its end changes. There may be more.
    One(Option<Change>),
    None,
}

fn judge(
    name: &Arc<str>,
    probed: &mut Probed,
    cause: Cause,
    Moment { now, at }: Moment,
    jitter: f64,
) -> Option<Change> {
    let took = probed.asked.take().map_or(Duration::ZERO, |asked| now.saturating_duration_since(asked.since));
    let outcome = if cause == Cause::Passed { VerdictOutcome::Pass } else { VerdictOutcome::Fail };
    let verdict = Verdict { at, source: Source::Probe, outcome, cause: cause.clone(), took };
    let event = probed.health.handle_probe(verdict, now, jitter);
    let own = match cause {
        Cause::Silent { .. } => OwnAddress::Fails,
        _ => OwnAddress::Answers,
    };
    // Which of the two it is may come out later.
    let is_down = probed.health.state() == State::Down && cause != Cause::Passed;
    let event = event.or((is_down && own != probed.told).then_some(Event::WentDown))?;
    probed.told = own;
    Some(Change { backend: name.clone(), event, cause })
}
