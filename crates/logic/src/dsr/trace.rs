//! Traces: what is decided about each frame of a service, for an operator who looks at packets
//! (`penstock ctl dsr trace`), and which frames the operator wants to see.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use super::explain::{Decision, Found};
use super::flows::Class;
use super::packet::{self, Content, Flow, Packet, Segment, shown};
use super::tunnel::{self, Cutting, Offload, Unfit, Way};
use super::{BackendId, Director, Dropped, Mac};
use crate::peers::{Peer, PeerSet};

text::words! {
    /// What becomes of a frame.
    pub enum Traced: "verdict" {
        Forwarded = "forwarded",
        Dropped = "dropped",
        Passed = "passed",
        Answered = "answered",
        Tarpitted = "tarpitted",
    }
}

/// Words that [`Wanted::verdict`] may be: verdicts, and reasons of drops.
pub fn verdicts() -> Vec<&'static str> {
    let reasons = Dropped::meanings().into_iter().map(|(word, _)| word);
    Traced::WORDS.iter().copied().chain(reasons).collect()
}

/// Which frames an operator wants to see; `None` is all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub from: Option<PeerSet>,
    /// NAME of `[listener.NAME]`, or an address as in `bind`.
    pub service: Option<String>,
    pub backend: Option<String>,
    /// One of [`verdicts`].
    pub verdict: Option<String>,
}

impl Wanted {
    pub fn has_service(&self, listener: &str, address: &str) -> bool {
        self.service.as_ref().is_none_or(|wanted| wanted == listener || wanted == address)
    }

    pub fn has(&self, told: &Told) -> bool {
        let is_from = |set: &PeerSet| {
            told.client.is_some_and(|client| set.contains(&Peer::Ip(SocketAddr::new(client, 0))))
        };
        self.from.as_ref().is_none_or(is_from)
            && self.backend.as_ref().is_none_or(|wanted| told.backend.as_ref() == Some(wanted))
            && self.verdict.as_ref().is_none_or(|wanted| {
                wanted == told.verdict.as_str() || told.reason.is_some_and(|reason| wanted == reason)
            })
    }
}

/// What is told of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub verdict: Traced,
    /// Why it was dropped.
    pub reason: Option<&'static str>,
    /// Who sent the packet; of an ICMP error, whose flow it is about.
    pub client: Option<IpAddr>,
    pub backend: Option<String>,
    /// The verdict and its rule, in a sentence.
    pub sentence: String,
}

impl Told {
    /// A frame that the tarpit has answered.
    pub fn tarpitted(frame: &[u8]) -> Self {
        let client = packet::parse(frame).and_then(|packet| client(&packet.content));
        Self::new(Traced::Tarpitted, client, "answered by the tarpit: no machine has the address")
    }

    /// The same on a machine that is not the owner of the address: it answers no question for it.
    #[must_use]
    pub fn on_standby(self) -> Self {
        match self.verdict {
            Traced::Answered => Self {
                verdict: Traced::Passed,
                sentence:
                    "passed over: it asks who has the address of the service, and this machine is on standby"
                        .to_owned(),
                ..self
            },
            _ => self,
        }
    }

    /// The same of a packet that has no tunnel to its backend, or does not fit into it.
    fn refused(self, why: Dropped, sentence: String) -> Self {
        Self { verdict: Traced::Dropped, reason: Some(why.word()), sentence, ..self }
    }

    fn new(verdict: Traced, client: Option<IpAddr>, sentence: impl Into<String>) -> Self {
        Self { verdict, reason: None, client, backend: None, sentence: sentence.into() }
    }

    fn decided(client: IpAddr, decision: Decision, about: &str) -> Self {
        let told = |verdict| Self::new(verdict, Some(client), format!("{}{about}", decision.sentence()));
        match &decision {
            Decision::Forward { backend, .. } => {
                Self { backend: Some(backend.clone()), ..told(Traced::Forwarded) }
            }
            Decision::NoEthernetAddress { backend } => Self {
                backend: Some(backend.clone()),
                reason: Some(Dropped::NoBackend.word()),
                ..told(Traced::Dropped)
            },
            Decision::Drop(why) => Self { reason: Some(why.word()), ..told(Traced::Dropped) },
        }
    }
}

/// Where flows are remembered.
#[derive(Clone, Copy, Debug)]
pub enum Memory<'a> {
    Here(Instant),
    /// By a program in the kernel: the value of the flow's entry there, and the program's clock. The program has seen the
    /// frame already.
    Kernel {
        entry: Option<&'a [u8]>,
        now: u64,
    },
}

impl Director {
    /// The flow that a frame of this service is about.
    pub fn flow_of(&self, frame: &[u8]) -> Option<Flow> {
        match packet::parse(frame)?.content {
            Content::Segment(Segment { flow, .. }) | Content::Error(flow) if self.is_ours(&flow) => {
                Some(flow)
            }
            _ => None,
        }
    }

    /// Tells what is decided about a frame. To be asked before [`Self::handle`], which changes what is remembered.
    /// `offload` is what the kernel has left to be done with the frame.
    pub fn tell(&mut self, frame: &[u8], own: Mac, memory: Memory<'_>, offload: &Offload) -> Told {
        let told = self.tell_decided(frame, own, memory);
        match (self.room, &told.backend) {
            (Some(room), Some(backend)) if told.verdict == Traced::Forwarded => {
                let way = self.tunnel_of(backend).map(|tunnel| Way { own, to: own, tunnel, room });
                let Some(way) = way else {
                    let sentence = format!("dropped: there is no way to {backend}");
                    return told.refused(Dropped::NoBackend, sentence);
                };
                let is_cut_by_kernel = matches!(memory, Memory::Kernel { .. }) && offload.cut != Cutting::No;
                match tunnel::check(frame, offload, &way) {
                    Ok(()) => told,
                    // The program counts what it cannot let the kernel cut in one place.
                    Err(Unfit::TooLong) if !is_cut_by_kernel => {
                        let sentence = format!(
                            "dropped: it does not fit into the tunnel to {backend}, which has room for {room} bytes"
                        );
                        told.refused(Dropped::TooLong, sentence)
                    }
                    Err(_) => {
                        let sentence = format!(
                            "dropped: it cannot be cut into packets that fit into the tunnel to {backend}"
                        );
                        told.refused(Dropped::NotSegmented, sentence)
                    }
                }
            }
            _ => told,
        }
    }

    fn tell_decided(&mut self, frame: &[u8], own: Mac, memory: Memory<'_>) -> Told {
        let Some(packet) = packet::parse(frame) else {
            return Told::new(
                Traced::Passed,
                None,
                "passed over: it is malformed, or nothing that a service takes",
            );
        };
        if packet.source == own {
            return Told::new(Traced::Passed, None, "passed over: this machine sent it");
        }
        let named = match packet.content {
            Content::Segment(Segment { flow, .. }) => self.named(frame, &flow),
            _ => None,
        };
        self.tell_packet(&packet, named, own, memory)
    }

    fn tell_packet(
        &mut self,
        packet: &Packet,
        named: Option<BackendId>,
        own: Mac,
        memory: Memory<'_>,
    ) -> Told {
        let vip = self.service.vip;
        match packet.content {
            Content::Segment(segment) if self.is_ours(&segment.flow) => {
                let Segment { flow, begins, .. } = segment;
                // The client uses a port again whose connection has ended.
                let found =
                    self.found(&flow, memory).filter(|found| !(begins && found.class == Class::Closing));
                let about = if segment.fragment.is_some() { "; the first of several fragments" } else { "" };
                Told::decided(flow.client, self.decide(&flow, named, found.as_ref()), about)
            }
            Content::Error(flow) if self.is_ours(&flow) => {
                let found = self.found(&flow, memory);
                Told::decided(
                    flow.client,
                    self.decide(&flow, None, found.as_ref()),
                    "; an ICMP error about the flow",
                )
            }
            Content::LaterFragment(key) if key.destination == vip => {
                let told = |verdict, sentence: &str| Told::new(verdict, Some(key.source), sentence);
                let Memory::Here(now) = memory else {
                    return told(
                        Traced::Passed,
                        "a later fragment: it follows the first one, or is passed over if it overtook it",
                    );
                };
                let held =
                    self.fragments.lookup(&key, now).filter(|(id, turn)| self.ring.is_turn(*id, *turn));
                match held
                    .map(|(id, _)| (self.ring.name(id).unwrap_or_default().to_owned(), self.ring.mac(id)))
                {
                    Some((backend, Some(to))) => {
                        let sentence =
                            format!("forwarded to {backend} at {}: it follows its first fragment", shown(to));
                        Told { backend: Some(backend), ..told(Traced::Forwarded, &sentence) }
                    }
                    Some((backend, None)) => Told::decided(
                        key.source,
                        Decision::NoEthernetAddress { backend },
                        "; a later fragment",
                    ),
                    None => told(Traced::Passed, "passed over: a fragment whose first one was not seen"),
                }
            }
            Content::Question(question) if question.asker == vip && question.asker_mac != own => {
                let asker = shown(question.asker_mac);
                let sentence = format!("the machine {asker} names the address of the service as its own");
                Told::new(Traced::Passed, None, sentence)
            }
            Content::Question(question) if question.target == vip => {
                let asker = Some(question.asker);
                Told::new(Traced::Answered, asker, "answered: it asks who has the address of the service")
            }
            Content::Claim { address, mac } if address == vip => {
                let sentence = format!("the machine {} claims the address of the service", shown(mac));
                Told::new(Traced::Passed, None, sentence)
            }
            content => Told::new(Traced::Passed, client(&content), "passed over: it is not for this service"),
        }
    }

    fn found(&self, flow: &Flow, memory: Memory<'_>) -> Option<Found> {
        match memory {
            Memory::Here(now) => {
                let (backend, class) = self.flows.lookup(flow)?;
                Some(Found { backend, class, silent: self.flows.silent(flow, now) })
            }
            Memory::Kernel { entry, now } => self.remembered(entry?, now),
        }
    }
}

fn client(content: &Content) -> Option<IpAddr> {
    match content {
        Content::Segment(segment) => Some(segment.flow.client),
        Content::Error(flow) => Some(flow.client),
        Content::LaterFragment(key) => Some(key.source),
        Content::Question(question) => Some(question.asker),
        Content::Claim { .. } => None,
    }
}
