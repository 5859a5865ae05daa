//! What replies lead to: a verdict, and what is sent back to the server.

use std::sync::Arc;

use super::exchange::{self, Back, Came, Exchange};
use super::frames::{Reply, Said};
use super::{Change, Moment, Probed, Prober, judge};
use crate::dsr::packet::Transport;
use crate::health::Cause;

/// A segment of ours and the backend that it is for; without a name it goes where the reply came from.
pub type Addressed = (Option<Arc<str>>, Back);

/// What a reply leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    pub change: Option<Change>,
    /// What is to be sent.
    pub back: Option<Addressed>,
}

impl Prober {
    /// Takes a reply. Replies that belong to no probe change nothing. `jitter`, from 0 to 1, spreads the probes.
    pub fn hear(&mut self, reply: &Reply<'_>, moment: Moment, jitter: f64) -> Heard {
        match reply.said {
            Said::Segment { acknowledged, payload, is_last } => {
                let came = Came { sequence: reply.sequence, payload, is_last };
                self.hear_segment((reply.port, acknowledged), &came, moment, jitter)
            }
            Said::Refused(acknowledged) if self.is_in_exchange(reply, acknowledged) => {
                let change = self.end_exchange(reply, acknowledged, moment, jitter);
                Heard { change, back: None }
            }
            Said::Accepted(acknowledged) => match self.begin_exchange(reply, acknowledged) {
                Some(back) => Heard { change: None, back: Some(back) },
                None => {
                    // The server waits for the end of the handshake, also of one that the check does not wait for any more.
                    let name = self.acknowledged(reply);
                    let back = Some((name, Back::Reset { sequence: acknowledged }));
                    Heard { change: self.handle(reply, moment, jitter), back }
                }
            },
            _ => Heard { change: self.handle(reply, moment, jitter), back: None },
        }
    }

    /// The connection that was asked for is there: the request goes out, also again. `None`: there is none to ask.
    fn begin_exchange(&mut self, reply: &Reply<'_>, acknowledged: u32) -> Option<Addressed> {
        if self.transport != Transport::Tcp {
            return None;
        }
        let name = self.acknowledged(reply)?;
        let asked = self.backends.get_mut(&name)?.asked.as_mut()?;
        if asked.exchange.is_none() {
            let numbers = [acknowledged, reply.sequence.wrapping_add(1)];
            asked.exchange = Exchange::begin(&self.check, &name, numbers);
        }
        let back = asked.exchange.as_ref()?.ask();
        Some((Some(name), back))
    }

    fn is_in_exchange(&self, reply: &Reply<'_>, acknowledged: u32) -> bool {
        self.backends.values().any(|probed| probed.is_reset(reply, acknowledged))
    }

    /// A server has reset the connection before its answer was whole.
    fn end_exchange(
        &mut self,
        reply: &Reply<'_>,
        acknowledged: u32,
        moment: Moment,
        jitter: f64,
    ) -> Option<Change> {
        let (name, probed) =
            self.backends.iter_mut().find(|(_, probed)| probed.is_reset(reply, acknowledged))?;
        judge(name, probed, Cause::ClosedEarly, moment, jitter)
    }

    fn hear_segment(
        &mut self,
        (port, acknowledged): (u16, u32),
        came: &Came<'_>,
        moment: Moment,
        jitter: f64,
    ) -> Heard {
        let is_it = |exchange: &Exchange| exchange.is_acknowledged_by(acknowledged);
        for (name, probed) in &mut self.backends {
            let asked = probed.asked.as_mut().filter(|asked| asked.port == port);
            let open = asked.and_then(|asked| asked.exchange.as_mut()).filter(|it| is_it(it));
            let Some(exchange) = open.or(probed.tail.as_mut().filter(|it| is_it(it))) else { continue };
            let (verdict, back) = exchange.take(came);
            let is_over = matches!(back, Some(Back::Reset { .. }));
            let back = back.map(|back| (Some(name.clone()), back));
            let change = verdict.and_then(|cause| {
                probed.tail = probed.asked.as_mut().and_then(|asked| asked.exchange.take());
                judge(name, probed, cause, moment, jitter)
            });
            if is_over {
                probed.tail = None;
            }
            return Heard { change, back };
        }
        // A connection of an earlier probe, whose end was lost: without it the server does not see the new SYN.
        let left = self.backends.iter().find(|(_, probed)| {
            let is_open =
                probed.asked.as_ref().is_some_and(|asked| asked.port == port && asked.exchange.is_none());
            let beyond = acknowledged.wrapping_sub(probed.sequence.wrapping_add(1));
            is_open && beyond <= exchange::LONGEST as u32
        });
        let back = left.map(|(name, _)| (Some(name.clone()), Back::Reset { sequence: acknowledged }));
        Heard { change: None, back }
    }
}

impl Probed {
    /// Whether a RST ends the open exchange with it.
    fn is_reset(&self, reply: &Reply<'_>, acknowledged: u32) -> bool {
        let asked = self.asked.as_ref().filter(|asked| asked.port == reply.port);
        let exchange = asked.and_then(|asked| asked.exchange.as_ref());
        exchange.is_some_and(|exchange| exchange.is_reset_by(reply.sequence, acknowledged))
    }
}
