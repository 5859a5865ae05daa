//! Flows of a UDP listener under floods from forged addresses, with backends that fail: the table stays bounded, flows
//! whose client has spoken after a reply stay, each datagram has one fate, and an idle flow ends within its time.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use logic::balance::{Admission, Availability, Prefixes};
use logic::udp::{
    AfterReply, Arrival, Course, Ended, FlowId, FlowKey, FlowTable, Hearing, Membership, Progress, Replies,
    Rules,
};

/// SplitMix64: a seed names a run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

struct Backend {
    health: Availability,
    /// No process listens: it answers with ICMP.
    refuses: bool,
}

#[derive(Debug)]
struct Flow {
    backend: usize,
    hearing: Hearing,
}

/// What became of the datagrams of clients.
#[derive(Debug, Default)]
struct Fates {
    forwarded: u64,
    refused: u64,
    no_backend: u64,
}

struct World {
    now: Instant,
    rules: Rules,
    table: FlowTable<Flow>,
    backends: Vec<Backend>,
    random: Random,
    fates: Fates,
    begun: u64,
    ended: u64,
    /// When each flow was last active, as this test knows it.
    active: HashMap<FlowKey, Instant>,
}

impl World {
    fn new(seed: u64, rules: Rules) -> Self {
        #[expect(clippy::disallowed_methods, reason = "any instant will do as the start of a simulation")]
        let now = Instant::now();
        let backend = || Backend { health: Availability::Available, refuses: false };
        Self {
            now,
            rules,
            table: FlowTable::new(rules, now),
            backends: (0..3).map(|_| backend()).collect(),
            random: Random(seed),
            fates: Fates::default(),
            begun: 0,
            ended: 0,
            active: HashMap::new(),
        }
    }

    fn choose(&mut self, not: Option<usize>) -> Option<usize> {
        let open: Vec<usize> = (0..self.backends.len())
            .filter(|at| self.backends[*at].health == Availability::Available && Some(*at) != not)
            .collect();
        let at = self.random.below(open.len().max(1) as u64) as usize;
        open.get(at).copied()
    }

    /// A datagram of a client; returns its flow if it was forwarded.
    fn send(&mut self, client: SocketAddr) -> Option<FlowId> {
        let key = FlowKey { sender: client, local: None, told: None };
        let id = match self.table.handle_datagram(&key, self.now) {
            Arrival::Known(id) => self.known(id),
            Arrival::Refused(_) => {
                self.fates.refused += 1;
                return None;
            }
            new => {
                if let Arrival::NewAfter(id) = new {
                    let ended = self.table.remove(id).unwrap();
                    assert!(ended.missing > 0);
                    self.gone(&ended);
                }
                let Some(backend) = self.choose(None) else {
                    self.fates.no_backend += 1;
                    return None;
                };
                if let Arrival::NewInPlaceOf(id) = new {
                    let ended = self.table.remove(id).unwrap();
                    assert_ne!(ended.progress, Progress::Established);
                    self.gone(&ended);
                }
                self.begun += 1;
                self.table.insert(key, Flow { backend, hearing: Hearing::default() }, self.now)
            }
        };
        self.active.insert(key, self.now);
        self.fates.forwarded += 1;
        let flow = self.table.get_mut(id).unwrap();
        if self.backends[flow.backend].refuses {
            flow.hearing.handle_refusal();
        }
        Some(id)
    }

    fn known(&mut self, id: FlowId) -> FlowId {
        let Flow { backend, hearing } = *self.table.get_mut(id).unwrap();
        let answers = hearing.answers(self.now);
        if Course::of(self.backends[backend].health, answers, Membership::Configured, Admission::Ready)
            == Course::Moves
            && let Some(other) = self.choose(Some(backend))
        {
            *self.table.get_mut(id).unwrap() = Flow { backend: other, hearing: Hearing::default() };
        }
        id
    }

    fn reply(&mut self, id: FlowId) {
        let Some(key) = self.table.key(id) else { return };
        self.active.insert(key, self.now);
        if self.table.handle_replies(id, 1, self.now) == AfterReply::Ends {
            let ended = self.table.remove(id).unwrap();
            self.gone(&ended);
        }
    }

    fn gone(&mut self, ended: &Ended<Flow>) {
        self.ended += 1;
        self.active.remove(&ended.key);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        while let Some(ended) = self.table.expire(self.now) {
            let idle = self.now - self.active[&ended.key];
            assert!(idle >= self.rules.idle, "ended after {idle:?}");
            self.gone(&ended);
        }
    }

    fn check(&self, sent: u64) {
        assert!(self.table.len() <= self.rules.flows);
        assert!(self.table.sources() <= self.table.len());
        let Fates { forwarded, refused, no_backend } = self.fates;
        assert_eq!(forwarded + refused + no_backend, sent, "each datagram has one fate");
        assert_eq!(self.begun - self.ended, self.table.len() as u64);
        // One tick of the wheel is a 120th of the timeout.
        let latest = self.rules.idle + self.rules.idle / 60 + Duration::from_millis(20);
        let longest = self.active.values().map(|active| self.now - *active).max().unwrap_or_default();
        assert!(longest <= latest, "a flow is idle for {longest:?}");
    }
}

fn rules(flows: usize, per_source: usize, replies: Replies) -> Rules {
    let sources = Prefixes { ipv4: 32, ipv6: 64 };
    Rules { flows, per_source, sources, idle: Duration::from_secs(10), replies }
}

fn client(network: u8, number: u64) -> SocketAddr {
    let [.., a, b, c] = number.to_be_bytes();
    (Ipv4Addr::new(network, a, b, c), 5000 + (number % 7) as u16).into()
}

#[test]
fn a_million_forged_sources_take_no_established_flow_and_no_more_room_than_there_is() {
    let mut world = World::new(1, rules(2_000, 100, Replies::Any));
    let friends: Vec<SocketAddr> = (0..500).map(|number| client(10, number)).collect();
    let flows: Vec<FlowId> = friends.iter().map(|friend| world.send(*friend).unwrap()).collect();
    for (friend, flow) in friends.iter().zip(&flows) {
        world.reply(*flow);
        world.send(*friend);
    }
    let mut sent = 2 * friends.len() as u64;
    for wave in 0..1_000 {
        for number in 0..1_000 {
            let forged = world.send(client(172, wave * 1_000 + number)).unwrap();
            // Half of the waves are answered, as servers of the DNS answer.
            if wave % 2 == 0 {
                world.reply(forged);
            }
        }
        sent += 1_000;
        let friend = world.random.below(500) as usize;
        assert_eq!(world.send(friends[friend]), Some(flows[friend]), "the same flow as before the flood");
        world.reply(flows[friend]);
        sent += 1;
        world.pass(Duration::from_millis(8));
        world.check(sent);
    }
    assert!(friends.iter().all(|friend| world.send(*friend).is_some()));
}

#[test]
fn flows_of_a_few_sources_stay_within_their_limit_and_leave_room_for_others() {
    let mut world = World::new(7, rules(1_000, 50, Replies::Any));
    for port in 1..=10_000_u16 {
        let crowd = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1 + (port % 4) as u8), port));
        if let Some(flow) = world.send(crowd) {
            world.reply(flow);
            world.send(crowd);
        }
    }
    assert_eq!(world.table.len(), 4 * 50);
    assert!(world.send(client(10, 1)).is_some());
    world.check(10_000 + 4 * 50 + 1);
}

#[test]
fn over_random_lives_each_datagram_has_one_fate_and_each_flow_ends_in_time() {
    for seed in 0..300 {
        let mut world = World::new(seed, rules(40, 4, Replies::Any));
        let replies = [Replies::Any, Replies::Exactly(1), Replies::Exactly(0), Replies::Exactly(3)];
        world.rules.replies = replies[(seed % 4) as usize];
        world.table.set_rules(world.rules, world.now);
        let (mut sent, mut open) = (0, Vec::new());
        for _ in 0..2_000 {
            match world.random.below(20) {
                0 => {
                    let at = world.random.below(3) as usize;
                    let up = world.random.below(3) > 0;
                    let refuses = world.random.below(4) == 0;
                    let health = if up { Availability::Available } else { Availability::Unavailable };
                    world.backends[at] = Backend { health, refuses };
                }
                1 => {
                    let time = Duration::from_millis(world.random.below(4_000));
                    world.pass(time);
                }
                2..=8 if !open.is_empty() => {
                    let at = world.random.below(open.len() as u64) as usize;
                    let flow = open.swap_remove(at);
                    world.reply(flow);
                }
                _ => {
                    let number = world.random.below(120);
                    sent += 1;
                    open.extend(world.send(client(10, number)));
                }
            }
            world.check(sent);
        }
        world.pass(Duration::from_secs(60));
        assert!(world.table.is_empty() && world.table.poll_timeout().is_none());
        world.check(sent);
    }
}

#[test]
fn the_flows_of_a_backend_that_goes_down_move_with_their_next_datagram_and_stay_if_there_is_no_other() {
    let mut world = World::new(3, rules(1_000, 1_000, Replies::Any));
    let clients: Vec<SocketAddr> = (0..300).map(|number| client(10, number)).collect();
    let flows: Vec<FlowId> = clients.iter().map(|client| world.send(*client).unwrap()).collect();
    let on = |world: &mut World, at| {
        flows.iter().filter(|flow| world.table.get_mut(**flow).unwrap().backend == at).count()
    };
    assert!(on(&mut world, 0) > 50);
    world.backends[0].health = Availability::Unavailable;
    for client in &clients {
        world.send(*client);
    }
    assert_eq!(on(&mut world, 0), 0);
    // One that refuses loses its flows after the datagram that it refused.
    world.backends[1].refuses = true;
    for client in &clients {
        world.send(*client);
    }
    assert!(on(&mut world, 1) > 0);
    for client in &clients {
        world.send(*client);
    }
    assert_eq!(on(&mut world, 2), 300);
    world.backends[1].health = Availability::Unavailable;
    world.backends[2].health = Availability::Unavailable;
    clients.iter().for_each(|client| assert!(world.send(*client).is_some()));
    assert_eq!(on(&mut world, 2), 300, "they stay, because no other backend takes them");
    world.check(4 * 300 + 300);
}
