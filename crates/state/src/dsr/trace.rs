//! Traces of packets of `dsr` services, for operators: each service looks whether there is one, and gives it the frames
//! that it wants, each with what was decided about it. Without a trace nothing is done.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use logic::dsr::trace::{Told, Traced, Wanted};
use logic::pcapng::frames;
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;

use crate::lock::lock;
use crate::pipe::{Pipe, Taken};

/// Traces at a time, of this process.
pub const MOST: usize = 4;

/// The traces of this process.
#[derive(Debug)]
pub struct Traces(watch::Sender<Vec<Arc<Trace>>>);

impl Default for Traces {
    fn default() -> Self {
        Self(watch::Sender::new(Vec::new()))
    }
}

/// One trace, as services see it.
#[derive(Debug)]
pub struct Trace {
    wanted: Wanted,
    pipe: Pipe,
    /// Names of interfaces whose descriptions are in the file.
    interfaces: Mutex<Vec<String>>,
    /// Packets that are still wanted.
    left: AtomicU64,
    /// Packets that did not reach the service, because it could not look at all of them.
    missed: AtomicU64,
}

/// A trace, as its operator has it. It ends when this is dropped.
#[derive(Debug)]
pub struct Tracing {
    traces: watch::Sender<Vec<Arc<Trace>>>,
    trace: Arc<Trace>,
    packets: Receiver<Vec<u8>>,
}

impl Traces {
    /// Starts a trace of at most so many packets. `None`: there are [`MOST`] already.
    pub fn start(&self, wanted: Wanted, packets: u64) -> Option<Tracing> {
        let (pipe, taken) = Pipe::new();
        let trace = Arc::new(Trace {
            wanted,
            pipe,
            interfaces: Mutex::default(),
            left: AtomicU64::new(packets),
            missed: AtomicU64::new(0),
        });
        let is_started = self.0.send_if_modified(|all| {
            let has_room = all.len() < MOST;
            if has_room {
                all.push(trace.clone());
            }
            has_room
        });
        is_started.then(|| Tracing { traces: self.0.clone(), trace, packets: taken })
    }

    /// Wakes a service when a trace begins or ends.
    pub fn follow(&self) -> watch::Receiver<Vec<Arc<Trace>>> {
        self.0.subscribe()
    }

    /// The traces that want packets of a service.
    pub fn of(&self, listener: &str, address: &str) -> Vec<Arc<Trace>> {
        let all = self.0.borrow();
        all.iter().filter(|trace| trace.wanted.has_service(listener, address)).cloned().collect()
    }
}

impl Trace {
    /// Records a frame, if it is wanted.
    pub fn record(&self, interface: &str, frame: &[u8], told: &Told, comment: &str) {
        if !self.wanted.has(told) || self.left.load(Relaxed) == 0 {
            return;
        }
        let Some(number) = self.number(interface) else { return };
        let taken = self.pipe.send(|out| frames::frame(out, number, SystemTime::now(), frame, comment));
        if taken == Taken::Yes {
            // Workers that record at the same time may send a few more, which the operator leaves out.
            let _ = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        }
    }

    /// Whether packets are wanted that are for nothing of this service, which the filter of its sockets leaves out.
    pub fn wants_passed(&self) -> bool {
        self.wanted.verdict.as_deref() == Some(Traced::Passed.as_str())
    }

    /// Counts packets that the service could not look at.
    pub fn miss(&self, packets: u64) {
        self.missed.fetch_add(packets, Relaxed);
    }

    /// Number of an interface in the file, which has its description then.
    fn number(&self, interface: &str) -> Option<u32> {
        let mut known = lock(&self.interfaces);
        let at = match known.iter().position(|name| name == interface) {
            Some(at) => at,
            None => {
                // Under the lock, so that no frame is before the description.
                let taken = self.pipe.send(|out| frames::interface(out, interface));
                if taken == Taken::No {
                    return None;
                }
                known.push(interface.to_owned());
                known.len() - 1
            }
        };
        u32::try_from(at).ok()
    }
}

impl Tracing {
    /// The next packet, or the description of an interface.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        let packets = self.packets.recv().await?;
        self.trace.pipe.took(packets.len());
        Some(packets)
    }

    /// Takes no more packets; [`Self::next`] returns those that wait, and then `None`.
    pub fn close(&mut self) {
        self.packets.close();
    }

    /// Bytes that were left out because the operator was too slow.
    pub fn left_out(&self) -> u64 {
        self.trace.pipe.left_out()
    }

    /// Packets that services could not look at.
    pub fn missed(&self) -> u64 {
        self.trace.missed.load(Relaxed)
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        self.traces.send_modify(|all| all.retain(|trace| !Arc::ptr_eq(trace, &self.trace)));
    }
}

#[cfg(test)]
mod tests {
    use logic::dsr::trace::Traced;

    use super::*;

    fn told(verdict: Traced) -> Told {
        Told { verdict, reason: None, client: None, backend: None, sentence: "because".to_owned() }
    }

    #[tokio::test]
    async fn two_traces_get_what_each_wants_up_to_its_limit_and_an_end_is_seen() {
        let traces = Traces::default();
        let mut changes = traces.follow();
        let wanted = |word: &str| Wanted { verdict: Some(word.to_owned()), ..Wanted::default() };
        let mut first = traces.start(wanted("dropped"), 2).unwrap();
        let mut second =
            traces.start(Wanted { service: Some("web".to_owned()), ..Wanted::default() }, 9).unwrap();
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        assert_eq!((traces.of("web", "192.0.2.1:80").len(), traces.of("dns", "192.0.2.1:53").len()), (2, 1));
        for trace in traces.of("web", "192.0.2.1:80") {
            for verdict in [Traced::Dropped, Traced::Forwarded, Traced::Dropped, Traced::Dropped] {
                trace.record("eth0", &[7; 60], &told(verdict), "comment");
            }
            trace.miss(3);
        }
        for (tracing, packets) in [(&mut first, 2), (&mut second, 4)] {
            tracing.close();
            let mut all = Vec::new();
            while let Some(more) = tracing.next().await {
                all.extend(more);
            }
            assert_eq!((logic::pcapng::packets(&all), tracing.missed()), (packets, 3));
        }
        let others: Vec<_> = (2..MOST).map(|_| traces.start(Wanted::default(), 1).unwrap()).collect();
        assert!(traces.start(Wanted::default(), 1).is_none());
        drop((first, second, others));
        assert!(changes.has_changed().unwrap() && traces.of("web", "").is_empty());
    }
}
