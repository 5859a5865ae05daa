//! From backends to clients: collects the replies of ready flows in one batch, and sends it.

use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Instant;

use logic::pcapng::From;
use logic::peers::Peer;
use logic::udp::{AfterReply, FlowId};
use nix::errno::Errno;
use nix::sys::epoll::{EpollEvent, EpollTimeout};
use state::ending::Ending;
use sys::datagram::{Addresses, SLOTS};
use tokio::io::unix::AsyncFd;

use super::flow::{End, Memory};
use super::sockets::OwnedEpoll;
use super::tap::Whose;
use super::{Left, Server, clear};
use crate::arrival::canonical;
use crate::connect;
use crate::upstream;

/// Ready flows that are looked at before clients are.
const FLOWS_AT_ONCE: usize = 64;

/// With so many replies relayed, a turn goes on with the datagrams of clients, and looks at no further flow. Four batches, where a
/// turn takes one of clients: in most protocols a server sends more than its client.
const REPLIES_AT_ONCE: usize = 4 * SLOTS;

impl Server {
    /// Relays replies that wait in the sockets of flows: [`REPLIES_AT_ONCE`], and what is left of the last batch.
    pub(super) fn relay_replies(
        &mut self,
        watched: &AsyncFd<Rc<OwnedEpoll>>,
        now: Instant,
    ) -> io::Result<Left> {
        let mut events = [EpollEvent::empty(); FLOWS_AT_ONCE];
        let count = match self.epoll.0.wait(&mut events, EpollTimeout::ZERO) {
            Err(Errno::EINTR) => return Ok(Left::Perhaps),
            count => count?,
        };
        let mut left = if count < FLOWS_AT_ONCE { Left::Nothing } else { Left::Perhaps };
        let events = &mut events[..count];
        // The kernel may report the flows in the same order each turn, and the first ones may have replies enough for the whole turn.
        if count > 1 {
            events.rotate_left(fastrand::usize(..count));
        }
        let mut relayed = 0;
        for event in events {
            match self.sockets.flow_of(event.data()) {
                Some(_) if relayed >= REPLIES_AT_ONCE => left = Left::Perhaps,
                Some(flow) => {
                    let (replies, more) = self.collect(flow, now);
                    relayed += replies;
                    left = left.max(more);
                }
                // Those that rest are looked at in each turn, see `note_told`.
                None => self.sockets.close_resting(event.data()),
            }
        }
        self.send_collected();
        if count < FLOWS_AT_ONCE {
            self.sockets.note_told(now);
        }
        if left == Left::Nothing {
            clear(watched);
        }
        Ok(left)
    }

    /// Receives the replies of one flow into the free slots of the batch. Returns their number, and whether it may have more.
    fn collect(&mut self, id: FlowId, now: Instant) -> (usize, Left) {
        let Some(key) = self.table.key(id) else { return (0, Left::Nothing) };
        if self.collected == SLOTS {
            self.send_collected();
        }
        let first = self.collected;
        // The last reply that is due ends the flow: the kernel need not look for another one.
        let most = self.table.most_replies(id).min(SLOTS - first);
        let Some(flow) = self.table.get_mut(id) else { return (0, Left::Nothing) };
        let count = match self.batch.receive(flow.socket.as_fd(), first..first + most, Addresses::Known) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return (0, Left::Nothing),
            Err(error) => {
                if let Some(cause) = connect::udp_cause(&error) {
                    self.note_refusal(id, cause, now);
                    self.table.handle_refusal(id, now);
                }
                return (0, Left::Perhaps);
            }
        };
        flow.hearing.handle_reply();
        let started = flow.outcome.started();
        flow.outcome.first_byte.get_or_insert_with(|| now.saturating_duration_since(started));
        flow.outcome.note_answered();
        let bytes: usize = (first..first + count).map(|slot| self.batch.datagram(slot).len()).sum();
        flow.outcome.bytes_out += bytes as u64;
        let whose = Whose { listener: &self.key.listener, key: &key, bound: self.bound };
        let captures = &self.worker.front.state.captures;
        flow.tapping.record(captures, whose, From::Server, &self.batch, first..first + count);
        let memory = std::mem::replace(&mut flow.memory, Memory::Told);
        if let Some((pool, index)) = flow.backend() {
            let backend = &pool.backends[index].state;
            upstream::note_answer(&self.worker, pool, index, 0);
            if memory == Memory::Due {
                upstream::remember(pool, Peer::Ip(canonical(key.client())), backend, now);
            }
        }
        self.collected += count;
        for slot in first..first + count {
            self.batch.address(slot, key.sender, key.local);
        }
        let after = self.table.handle_replies(id, count as u32, now);
        if after == AfterReply::Ends
            && let Some(ended) = self.table.remove(id)
        {
            self.finish(ended, End::Complete);
            return (count, Left::Nothing);
        }
        (count, if count < most { Left::Nothing } else { Left::Perhaps })
    }

    fn send_collected(&mut self) {
        let socket = self.socket.clone();
        let (mut next, end) = (0, std::mem::take(&mut self.collected));
        while next < end {
            match self.batch.send_to(socket.get_ref().as_fd(), next..end) {
                Ok(sent) => {
                    self.counters().datagrams_out.add(sent as u64);
                    next += sent;
                }
                Err(_) => {
                    self.drop_datagrams(1, Ending::NotSent);
                    next += 1;
                }
            }
        }
    }
}
