//! Serves `protocol = "dsr"` on packet sockets: one task for each address of a listener, in one worker.
//!
//! 1. A batch of frames is taken from a ring (`crates/sys/src/packet.rs`); the filter of the socket has left out others.
//! 2. `crates/logic/src/dsr.rs` decides about each; those for backends get their Ethernet address and are sent with one
//!    system call from where they are. Questions who has the address are answered.
//! 3. Or a program in the kernel does all that, and the socket receives the questions alone:
//!    `crates/proxy/src/dsr/kernel.rs` tells it what it must know, and counts what it does.
//! 4. Ten times a second, and when a backend's health changes, `crates/proxy/src/dsr/backends.rs` tells the decision which
//!    backends there are; `crates/proxy/src/dsr/look_up.rs` looks up their Ethernet addresses, and
//!    `crates/proxy/src/dsr/neighbour_socket.rs` asks before they change. `crates/proxy/src/dsr/link.rs` follows the network interface,
//!    and `crates/proxy/src/dsr/machine.rs` what else of this machine keeps packets from the service.
//! 5. `crates/proxy/src/dsr/tunnel.rs` sends what is to travel in other packets, and tells clients what is too long for that.
//! 6. `crates/proxy/src/dsr/probe.rs` asks backends whether they accept the address, and `crates/proxy/src/dsr/report.rs`
//!    tells operators how the service stands; `crates/proxy/src/dsr/trace.rs` shows them packets.
//! 7. `crates/proxy/src/dsr/tarpit.rs` answers for addresses that no machine has.
//! 8. Where no packet can be had, connections and datagrams are taken by `crates/proxy/src/accept.rs` and
//!    `crates/proxy/src/udp.rs`, and `crates/proxy/src/dsr/proxied.rs` tells operators so.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::types::DsrSettings;
use logic::dsr::holding::Holding;
use logic::dsr::owner::Ownership;
use logic::dsr::path::task_failed;
use logic::dsr::{Director, Progress, Rules, Service, Verdict, rewrite};
use state::data_path::DataPath;
use state::dsr::Question;
use state::ending::Ending;
use state::events::Level;
use state::listen::BoundKey;
use state::metrics::ListenerCounters;
use sys::interfaces::Link;
use sys::packet::{FrameBatch, Interface, PacketSocket, SLOTS, send_frame};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use crate::accept::CloseSignal;
use crate::snapshot::{HashKey, ListenerPlan};
use crate::worker::{Current, Worker};

mod backends;
mod kernel;
mod link;
mod link_watch;
mod look_up;
mod machine;
mod neighbour;
mod neighbour_socket;
mod neighbour_watch;
mod next_hop;
mod ownership;
mod packets;
mod path;
mod probe;
pub(crate) mod proxied;
mod report;
mod ring;
mod sending;
mod service;
mod sockets;
mod tarpit;
mod tarpit_socket;
mod totals;
mod trace;
mod tracer;
mod tunnel;
mod tunnels;

use backends::Gauges;
use link_watch::LinkWatch;
use neighbour_socket::Claims;
use neighbour_watch::NeighbourWatch;
use packets::Sending;
use path::{Kernel, Path};
use service::others;
use sockets::{Frames, Probes};
use tarpit_socket::TarpitSocket;
use totals::Totals;
use tracer::Tracer;
use tunnels::Tunnels;

/// How often the backends are looked at.
const TICK: Duration = Duration::from_millis(100);

/// Every so many ticks the interface and all Ethernet addresses are looked at, too.
const TICKS_OF_ALL: u32 = 10;

/// Every so many ticks the network is asked whether another machine has the address.
const TICKS_OF_RARE: u32 = 100;

/// How much is looked at in a tick.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    /// What operators and checks change.
    Usual,
    /// Once a second: also the interface and all Ethernet addresses.
    Second,
    /// Every ten seconds: also what should not change.
    Rare,
}

/// Pause after a panic: its cause may be there still, and events have a limit.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// Serves one address until it is closed. When the function returns, the socket is closed.
pub(crate) async fn run(
    worker: Rc<Worker>,
    key: BoundKey,
    socket: PacketSocket,
    path: DataPath,
    close_signal: Rc<CloseSignal>,
) {
    let path = Rc::new(Path::new(path));
    path.tell(&worker, &key);
    worker.accepting.set(worker.accepting.get() + 1);
    let events = &worker.front.state.events;
    let subject = format!("listener.{}", key.listener);
    #[expect(deprecated, reason = "its successor is unsafe; `PacketSocket` keeps the one descriptor it owns")]
    let watched = AsyncFd::with_interest(socket, Interest::READABLE);
    match watched {
        Ok(socket) => {
            let socket = Rc::new(socket);
            loop {
                let at = (socket.clone(), path.clone());
                let serving = serve(worker.clone(), key.clone(), at, close_signal.clone());
                match tokio::task::spawn_local(serving).await {
                    Ok(Ok(())) => break,
                    Ok(Err(error)) => {
                        let message = format!("{} is no longer served: {error}", key.bind);
                        events.record(Level::Error, &*subject, message);
                        break;
                    }
                    Err(error) if error.is_panic() => {
                        events.record(
                            Level::Error,
                            &*subject,
                            task_failed(&key.bind, path.rung(), AFTER_PANIC),
                        );
                        tokio::select! {
                            biased;
                            () = close_signal.closed() => break,
                            () = tokio::time::sleep(AFTER_PANIC) => {}
                        }
                    }
                    Err(_) => break,
                }
            }
        }
        Err(error) => {
            events.record(
                Level::Error,
                subject,
                format!("packets to {} cannot be received: {error}", key.bind),
            );
        }
    }
    path.close(&worker, &key);
    worker.accepting.set(worker.accepting.get() - 1);
}

/// Forwards the packets for one address in `bind`.
struct Server {
    worker: Rc<Worker>,
    key: BoundKey,
    socket: Rc<Frames>,
    path: Rc<Path>,
    /// The program that forwards packets, if it is not this process.
    kernel: Option<Kernel>,
    /// The last snapshot with this listener.
    known: Current,
    plan: Arc<ListenerPlan>,
    director: Director,
    batch: FrameBatch,
    /// `None` while it is gone.
    interface: Option<Interface>,
    /// The interface before the socket is bound anew.
    earlier: Option<Interface>,
    /// The group of questions about an IPv6 address.
    group: Option<UdpSocket>,
    /// Whether the address is announced and answered for.
    holding: Holding,
    /// Link of the interface: without it nothing is known of backends.
    link: Link,
    link_watch: LinkWatch,
    neighbours: NeighbourWatch,
    /// All Ethernet addresses are to be looked up.
    all_due: bool,
    claims: Claims,
    gauges: Gauges,
    probes: Probes,
    totals: Totals,
    tracer: Tracer,
    tunnels: Tunnels,
    sending: Sending,
    tarpit: TarpitSocket,
    /// Where operators ask, and what they have asked.
    desk: mpsc::Sender<Question>,
    questions: mpsc::Receiver<Question>,
    ticks: u32,
    /// `None` before the first look.
    ownership: Option<Ownership>,
}

async fn serve(
    worker: Rc<Worker>,
    key: BoundKey,
    (socket, path): (Rc<Frames>, Rc<Path>),
    close_signal: Rc<CloseSignal>,
) -> io::Result<()> {
    let now = Instant::now();
    let known = worker.current();
    // A listener that a reload has removed already is not opened by it.
    let Some(plan) = known.listeners.get(&key.listener).cloned() else { return Ok(()) };
    let Some((service, rules)) = plan.settings.dsr().and_then(|settings| described(settings, &key)) else {
        return Ok(());
    };
    let hash_key = hash_key(&worker, &plan);
    let mut director = Director::new(service, rules, hash_key, now);
    director.set_room(tunnels::room_of(&plan, service.vip));
    director.set_others(others(&known, &plan, service));
    director.set_quic_id(plan.settings.dsr().and_then(|settings| settings.quic_id));
    let kernel = Kernel::new(&path, &mut director);
    let (desk, questions) = mpsc::channel(state::dsr::WAITING);
    let mut server = Server {
        director,
        path,
        kernel,
        batch: FrameBatch::default(),
        interface: None,
        earlier: None,
        group: None,
        holding: Holding::default(),
        link: Link::Up,
        link_watch: LinkWatch::default(),
        neighbours: NeighbourWatch::open()?,
        all_due: true,
        claims: Claims::default(),
        gauges: Gauges::default(),
        probes: Probes::default(),
        totals: Totals::default(),
        tracer: Tracer::new(worker.front.state.services.traces()),
        tunnels: Tunnels::default(),
        sending: Sending::default(),
        tarpit: TarpitSocket::default(),
        desk,
        questions,
        ticks: 0,
        ownership: None,
        worker,
        key,
        socket,
        known,
        plan,
    };
    server.run(&close_signal).await
}

impl Server {
    async fn run(&mut self, close_signal: &CloseSignal) -> io::Result<()> {
        let socket = self.socket.clone();
        self.use_ring();
        let mut health = self.worker.front.state.health_changes.subscribe();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let state = self.worker.front.state.clone();
        let mut given_up = std::pin::pin!(state.services.start_confirmation.given_up());
        // Frames in a row that could not be received.
        let mut faults = 0;
        loop {
            let (probing, tracing) = (self.probes.socket(), self.tracer.socket());
            let tarpit = self.tarpit.socket();
            let answered = self.neighbours.answered();
            tokio::select! {
                biased;
                () = close_signal.closed() => return Ok(()),
                () = &mut given_up => return Ok(()),
                _ = tick.tick() => self.tick(Instant::now()),
                () = answered.notified() => {
                    self.take_neighbours(Instant::now());
                    self.tell_program();
                }
                // This has a sender of its own.
                Some(question) = self.questions.recv() => self.answer(question),
                guard = sockets::replies(&probing) => self.take_replies(guard, Instant::now()),
                // The sender lives as long as the state.
                _ = self.tracer.changes.changed() => self.follow_traces(),
                // The sender lives as long as the state.
                _ = health.changed() => {
                    self.set_backends(Instant::now());
                    self.tell_program();
                }
                guard = socket.readable() => {
                    let mut guard = guard?;
                    match guard.try_io(|socket| self.batch.receive(socket.get_ref().as_fd())) {
                        Ok(Ok(count)) => {
                            faults = 0;
                            self.handle(count, Instant::now());
                            self.send(close_signal).await?;
                            self.send_tunnelled(close_signal).await?;
                            self.count_sent();
                            if count == SLOTS {
                                // Other clients of the worker have their turn before the next batch.
                                tokio::task::yield_now().await;
                            }
                        }
                        // The interface is down or gone: the next tick sees it.
                        Ok(Err(error)) if is_gone(&error, socket.get_ref()) => tokio::time::sleep(TICK).await,
                        // The kernel has no virtio form for the offload of a frame. It has dropped that one alone.
                        Ok(Err(_)) => {
                            self.drop_packets(1, Ending::PacketLost);
                            faults += 1;
                            if faults == SLOTS {
                                faults = 0;
                                tokio::task::yield_now().await;
                            }
                        }
                        Err(_nothing_there) => {}
                    }
                }
                guard = sockets::replies(&tracing) => self.take_traced(guard),
                guard = sockets::replies(&tarpit) => self.take_tarpit_frames(guard, Instant::now()),
            }
        }
    }

    /// Follows the newest snapshot. A listener that it does not have is served by the last one that has it.
    fn refresh(&mut self) {
        let current = self.worker.current();
        if Rc::ptr_eq(&current, &self.known) {
            return;
        }
        if let Some(plan) = current.listeners.get(&self.key.listener).cloned()
            && let Some((service, rules)) = plan.settings.dsr().and_then(|it| described(it, &self.key))
        {
            let known = |server: &Self| server.settings().map(|it| (it.interface.clone(), it.mode));
            let before = (self.director.service(), known(self));
            self.director.set(service, rules, hash_key(&self.worker, &plan));
            (self.plan, self.known) = (plan, current);
            self.director.set_others(others(&self.known, &self.plan, service));
            self.director.set_quic_id(self.settings().and_then(|settings| settings.quic_id));
            if before != (service, known(self)) {
                // Bound again with another filter, or to another interface.
                self.earlier = self.interface.take();
                self.director.set_room(tunnels::room_of(&self.plan, service.vip));
            }
        }
    }

    fn settings(&self) -> Option<&DsrSettings> {
        self.plan.settings.dsr()
    }

    fn counters(&self) -> &ListenerCounters {
        self.plan.state.counters.of(self.worker.index)
    }

    fn subject(&self) -> String {
        format!("listener.{}.{}", self.key.listener, self.key.bind)
    }

    fn tick(&mut self, now: Instant) {
        let round = match self.ticks {
            ticks if ticks.is_multiple_of(TICKS_OF_RARE) => Round::Rare,
            ticks if ticks.is_multiple_of(TICKS_OF_ALL) => Round::Second,
            _ => Round::Usual,
        };
        let is_all = round != Round::Usual;
        self.ticks = self.ticks.wrapping_add(1);
        self.refresh();
        if is_all || self.interface.is_none() {
            self.follow_interface(round);
        }
        self.look_at_machine(round, now);
        self.follow_ownership(now);
        // Operators drain and weigh backends.
        self.set_backends(now);
        self.claims.receive(now);
        self.look_up_neighbours(round, now);
        self.tell_claims();
        self.tell_program();
        self.count_kernel(round);
        self.director.expire(now);
        self.probe(round, now);
        self.look_at_losses();
        self.tick_tarpit(round, now);
        self.announce(now);
        self.gauges.show(&self.director);
        if is_all {
            // Told when the trace began, if it fails.
            let _ = self.follow_tap();
            self.look_at_driver();
            self.publish();
        }
    }

    /// Decides about the first frames of the batch.
    fn handle(&mut self, count: usize, now: Instant) {
        let Some(Interface { mac, .. }) = self.interface else { return };
        self.tunnels.frames.clear();
        self.sending.clear();
        let (mut began, mut passed) = (0, 0);
        for slot in 0..count {
            if self.batch.frame(slot).is_empty() {
                self.drop_packets(1, Ending::PacketLost);
                continue;
            }
            if self.tracer.is_on() && self.kernel.is_none() {
                self.trace(slot, mac, now);
            }
            if self.kernel.is_some() && self.is_long(slot) {
                self.refuse_long(slot, mac, now);
                continue;
            }
            match self.director.handle(self.batch.frame(slot), mac, now) {
                // A copy from before the socket had its filter.
                Verdict::Pass | Verdict::Drop(_) | Verdict::Forward { .. } if self.kernel.is_some() => {}
                Verdict::Pass => passed += 1,
                Verdict::Drop(why) => self.drop_packets(1, Ending::Packet(why)),
                Verdict::Forward { backend, to, flow } => {
                    let frames = if self.director.room().is_some() {
                        let before = self.tunnels.frames.count();
                        if !self.tunnel(slot, backend, [mac, to], now) {
                            continue;
                        }
                        self.tunnels.frames.count() - before
                    } else {
                        rewrite(self.batch.frame_mut(slot), mac, to);
                        self.batch.add(slot);
                        1
                    };
                    self.sending.add(backend, self.batch.frame(slot).len() as u64, flow, frames);
                    began += u64::from(flow == Progress::Began);
                }
                Verdict::Answer(_) if !self.holding.answers() => {}
                Verdict::Answer(frame) => {
                    // Who asked asks again.
                    let _ = send_frame(self.socket.get_ref().as_fd(), &frame);
                    self.totals.answered += 1;
                }
                Verdict::Conflict(other) => self.take_claim(other, now),
            }
        }
        self.totals.passed += passed;
        let counters = self.counters();
        counters.packets_passed.add(passed);
        counters.sessions.add(began);
    }

    /// Counts packets that are not forwarded.
    fn drop_packets(&mut self, count: u64, why: Ending) {
        self.totals.drop(count, &why);
        self.counters().packets_dropped.add(count);
        self.plan.state.count_endings(self.worker.index, why.word(), count);
    }
}

/// Whether an error of a receive call is about the interface, and not about one frame.
fn is_gone(error: &io::Error, socket: &PacketSocket) -> bool {
    error.kind() == io::ErrorKind::NetworkDown || !matches!(socket.interface(), Ok(Some(_)))
}

fn hash_key(worker: &Worker, plan: &ListenerPlan) -> [u64; 2] {
    plan.hash_key.as_ref().and_then(HashKey::get).unwrap_or(worker.front.state.hash_key)
}

fn described(settings: &DsrSettings, key: &BoundKey) -> Option<(Service, Rules)> {
    let vip = key.bind.vip()?;
    let service = Service { vip: vip.ip(), port: vip.port(), transports: settings.transports };
    let rules = Rules { flows: settings.max_flows, tcp_idle: settings.tcp_idle, udp_idle: settings.udp_idle };
    Some((service, rules))
}
