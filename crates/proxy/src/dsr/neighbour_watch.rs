//! Ethernet addresses of backends, asked for where no packet waits for the answer: the kernel gives them under the lock of all
//! changes to network interfaces (RTNL), which such a change may hold for long.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use logic::dsr::Mac;
use logic::dsr::tunnel::Tunnel;
use state::lock::lock;
use sys::neighbour::{Changed, Neighbour, Neighbours, Notices};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, spawn_blocking};

use super::next_hop::{Next, Travel, next};

/// A backend whose Ethernet address is looked up.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) name: Arc<str>,
    pub(super) ip: IpAddr,
    pub(super) asks: Asks,
}

/// Whether the kernel is to ask a machine of which it knows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    Yes,
    /// It was asked a moment ago.
    No,
}

/// What the kernel knows of the way to a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) name: Arc<str>,
    pub(super) ip: IpAddr,
    pub(super) next: Next,
    pub(super) tunnel: Option<Tunnel>,
    pub(super) mac: Option<Mac>,
}

/// Asks one question about all backends at a time.
pub(super) struct NeighbourWatch {
    neighbours: Arc<Mutex<Neighbours>>,
    notices: Notices,
    question: Option<(JoinHandle<()>, Instant)>,
    answer: Arc<Mutex<Vec<Found>>>,
    answered: Arc<Notify>,
}

impl NeighbourWatch {
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self {
            neighbours: Arc::new(Mutex::new(Neighbours::open()?)),
            notices: Notices::open()?,
            question: None,
            answer: Arc::default(),
            answered: Arc::default(),
        })
    }

    /// Asks on this interface from now on. An answer about another one has no receiver.
    pub(super) fn use_interface(&mut self, interface: &str) -> io::Result<()> {
        let mut neighbours = Neighbours::open()?;
        neighbours.use_interface(interface)?;
        (self.neighbours, self.answer) = (Arc::new(Mutex::new(neighbours)), Arc::default());
        self.question = None;
        Ok(())
    }

    /// Since when a question waits for its answer; `None`: the next one may be asked.
    pub(super) fn waits(&self, now: Instant) -> Option<Duration> {
        let (task, since) = self.question.as_ref()?;
        (!task.is_finished()).then(|| now.saturating_duration_since(*since))
    }

    /// Asks about these backends. To be called while none waits.
    pub(super) fn ask(&mut self, wanted: Vec<Wanted>, travel: Travel, interface: u32, now: Instant) {
        let (neighbours, answer) = (self.neighbours.clone(), self.answer.clone());
        let answered = self.answered.clone();
        let task = spawn_blocking(move || {
            let found = look_up(&mut lock(&neighbours), wanted, travel, interface);
            lock(&answer).extend(found);
            answered.notify_one();
        });
        self.question = Some((task, now));
    }

    /// Wakes who waits for an answer.
    pub(super) fn answered(&self) -> Arc<Notify> {
        self.answered.clone()
    }

    /// Answers that have come.
    pub(super) fn take(&mut self) -> Vec<Found> {
        std::mem::take(&mut *lock(&self.answer))
    }

    /// Machines whose entries the kernel has changed since the last look.
    pub(super) fn changed(&self, interface: u32) -> Changed {
        self.notices.changed(interface)
    }
}

fn look_up(neighbours: &mut Neighbours, wanted: Vec<Wanted>, travel: Travel, interface: u32) -> Vec<Found> {
    let one = |Wanted { name, ip, asks }| {
        let (next, tunnel) = next(neighbours, ip, travel, interface);
        let mac = next.machine().and_then(|machine| match neighbours.look_up(machine, interface) {
            Ok(Neighbour::Reachable(mac)) => Some(mac),
            Ok(Neighbour::Old(mac)) => {
                neighbours.ask(machine);
                Some(mac)
            }
            Ok(Neighbour::Unknown) | Err(_) => {
                if asks == Asks::Yes {
                    neighbours.ask(machine);
                }
                None
            }
        });
        Found { name, ip, next, tunnel, mac }
    };
    wanted.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_answer_comes_later_and_one_question_waits_at_a_time() {
        let mut watch = NeighbourWatch::open().unwrap();
        let now = Instant::now();
        assert_eq!(watch.waits(now), None);
        // The kernel has the lock for as long as it wants.
        let (neighbours, answer) = (watch.neighbours.clone(), watch.answer.clone());
        let held = lock(&neighbours);
        let ip: IpAddr = [192, 0, 2, 77].into();
        let wanted = Wanted { name: "b".into(), ip, asks: Asks::No };
        watch.ask(vec![wanted], Travel::AsTheyAre, 1, now);
        assert_eq!(watch.waits(now + Duration::from_secs(7)), Some(Duration::from_secs(7)));
        assert_eq!(watch.take(), []);
        drop(held);
        watch.question.take().unwrap().0.await.unwrap();
        let found = Found { name: "b".into(), ip, next: Next::Itself(ip), tunnel: None, mac: None };
        assert_eq!(watch.take(), [found]);
        assert!(watch.waits(now).is_none() && lock(&answer).is_empty());
    }
}
