//! Small UDP packets of many flows at a constant rate, also if some are lost (an open loop): written to a packet
//! socket, so that a packet costs little more than its way. What arrives is counted by the network interfaces of the
//! machines where the ways end.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::SocketAddrV4;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use sys::packet::{PacketSocket, SLOTS, send_frames};

use super::gauge::{Gauge, Phase};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Network interface that sends the packets.
    pub interface: String,
    /// Ethernet address of that interface.
    pub from: [u8; 6],
    /// Ethernet address of the next hop: of the balancer, or of the server if there is none.
    pub to: [u8; 6],
    /// Destination of all packets.
    pub destination: SocketAddrV4,
    pub flows: u16,
    /// Packets per second.
    pub rate: f64,
    /// Interfaces where packets arrive.
    pub ends: Vec<End>,
}

/// A network interface, in the namespace of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub pid: i32,
    pub interface: String,
}

/// Figure of the packets that were sent, per second.
pub const OFFERED: &str = "offered";

/// Figure of the packets that arrived, as a share of those that were sent.
pub const SHARE: &str = "share";

impl Load {
    /// Runs through the gauge's window. A packet that arrived is a unit.
    pub fn run(&self, gauge: &Gauge) -> io::Result<()> {
        let frames = self.frames();
        let mut sender = Sender::open(&self.interface, &frames)?;
        self.await_arrival(&mut sender)?;
        let batch = (self.rate * INTERVAL.as_secs_f64()).ceil().clamp(1.0, BATCH as f64) as usize;
        let mut pace = Pace::new(self.rate, Instant::now());
        let mut begin = Counts::default();
        loop {
            let now = Instant::now();
            match gauge.phase() {
                Phase::WarmUp if gauge.advance(now) == Phase::Open => {
                    begin = Counts { sent: sender.sent, arrived: self.arrived()?.iter().sum() };
                    // What was due while the meters were read is left out.
                    pace = Pace::new(self.rate, Instant::now());
                }
                Phase::Open if gauge.is_due(now) => break,
                _ => {}
            }
            match pace.due(now, batch) {
                Due::Now => sender.send(batch)?,
                Due::In(time) => thread::sleep(time),
            }
        }
        let arrived: u64 = self.arrived()?.iter().sum();
        let (sent, arrived) = (sender.sent - begin.sent, arrived.saturating_sub(begin.arrived));
        gauge.units(arrived);
        gauge.advance(Instant::now());
        let seconds = gauge.tally().seconds;
        gauge.figure(OFFERED, sent as f64 / seconds);
        gauge.figure(SHARE, arrived as f64 / (sent as f64).max(1.0));
        Ok(())
    }

    /// Sends a few packets until some have arrived at each end: what is in between may have to find the next machine.
    fn await_arrival(&self, sender: &mut Sender<'_>) -> io::Result<()> {
        let start = Instant::now();
        let before = self.arrived()?;
        loop {
            sender.send(BATCH)?;
            thread::sleep(FIRST_INTERVAL);
            let enough = |(now, before): (&u64, &u64)| now.saturating_sub(*before) >= FIRST;
            if self.arrived()?.iter().zip(&before).all(enough) {
                return Ok(());
            }
            if start.elapsed() > FIRST_LIMIT {
                let what = format!("no packets arrived within {} s", FIRST_LIMIT.as_secs());
                return Err(io::Error::new(ErrorKind::TimedOut, what));
            }
        }
    }

    /// Packets that each end has received since its start.
    fn arrived(&self) -> io::Result<Vec<u64>> {
        self.ends.iter().map(End::received).collect()
    }

    fn frames(&self) -> Vec<[u8; FRAME]> {
        (0..self.flows).map(|flow| self.frame(flow)).collect()
    }

    /// The shortest frame, all of whose checksums are there.
    fn frame(&self, flow: u16) -> [u8; FRAME] {
        let mut frame = [b'x'; FRAME];
        let [ip, udp]: [usize; 2] = [14, 34];
        frame[..6].copy_from_slice(&self.to);
        frame[6..12].copy_from_slice(&self.from);
        frame[12..ip].copy_from_slice(&[8, 0]);
        let length = (FRAME - ip) as u16;
        let [high, low] = length.to_be_bytes();
        // Version and length of the header, identification, fragments (none allowed), time to live, UDP.
        frame[ip..ip + 12].copy_from_slice(&[0x45, 0, high, low, 0, 0, 0x40, 0, 64, 17, 0, 0]);
        // Few flows of many clients: addresses for tests of benchmarks (RFC 2544), ports above those of services.
        let [client, port] = [flow % CLIENTS, flow / CLIENTS];
        frame[ip + 12..ip + 16].copy_from_slice(&[198, 18, 0, client as u8 + 1]);
        frame[ip + 16..udp].copy_from_slice(&self.destination.ip().octets());
        let sum = checksum(&frame[ip..udp]);
        frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
        frame[udp..udp + 2].copy_from_slice(&(10_000 + port * 7).to_be_bytes());
        frame[udp + 2..udp + 4].copy_from_slice(&self.destination.port().to_be_bytes());
        frame[udp + 4..udp + 6].copy_from_slice(&(length - 20).to_be_bytes());
        // UDP over IPv4 may go without a checksum (RFC 768).
        frame[udp + 6..udp + 8].fill(0);
        frame
    }
}

impl End {
    fn received(&self) -> io::Result<u64> {
        let file = format!("/proc/{}/net/dev", self.pid);
        received_by(&fs::read_to_string(&file)?, &self.interface)
            .ok_or_else(|| io::Error::other(format!("{file} has no {}", self.interface)))
    }
}

/// Packets that an interface has received (proc_pid_net(5)): the second column after its name.
fn received_by(text: &str, interface: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.trim_start().split_once(':'));
    let (_, columns) = lines.find(|(name, _)| *name == interface)?;
    columns.split_whitespace().nth(1)?.parse().ok()
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    sent: u64,
    arrived: u64,
}

/// Sends frames, one after the other, again and again.
struct Sender<'a> {
    socket: PacketSocket,
    frames: &'a [[u8; FRAME]],
    next: usize,
    sent: u64,
}

impl<'a> Sender<'a> {
    fn open(interface: &str, frames: &'a [[u8; FRAME]]) -> io::Result<Self> {
        let socket = PacketSocket::new().map_err(io::Error::other)?;
        socket.bind(interface, &[NOTHING]).map_err(io::Error::other)?;
        Ok(Sender { socket, frames, next: 0, sent: 0 })
    }

    /// Sends `count` frames. One that the interface does not take is lost, as on the way.
    fn send(&mut self, count: usize) -> io::Result<()> {
        let mut left = count;
        while left > 0 {
            let frames = self.frames[self.next..].iter().take(left).map(|frame| &frame[..]);
            let sent = match send_frames(self.socket.as_fd(), frames) {
                Ok(sent) => sent,
                Err(error) if is_full(&error) => 1,
                Err(error) => return Err(error),
            };
            self.next = (self.next + sent) % self.frames.len();
            self.sent += sent as u64;
            left -= sent;
        }
        Ok(())
    }
}

/// When frames are due.
#[derive(Debug)]
struct Pace {
    rate: f64,
    start: Instant,
    given: u64,
}

#[derive(Debug, PartialEq)]
enum Due {
    /// A batch.
    Now,
    In(Duration),
}

impl Pace {
    fn new(rate: f64, start: Instant) -> Self {
        Pace { rate, start, given: 0 }
    }

    /// Whether a batch is due, which is then taken as sent. After a long delay, the frames of that time are left out: a
    /// burst would measure buffers.
    fn due(&mut self, now: Instant, batch: usize) -> Due {
        let wanted = self.given + batch as u64;
        let at = self.start + Duration::from_secs_f64(wanted as f64 / self.rate);
        let left = at.saturating_duration_since(now);
        if left > Duration::ZERO {
            return Due::In(left);
        }
        self.given = wanted;
        if now.duration_since(at) > LATE {
            (self.start, self.given) = (now, 0);
        }
        Due::Now
    }
}

/// Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

/// Whether an interface, or a receiver behind it, has no room for a frame.
fn is_full(error: &io::Error) -> bool {
    error.kind() == ErrorKind::WouldBlock || error.raw_os_error() == Some(Errno::ENOBUFS as i32)
}

/// The shortest Ethernet frame, without its check sequence.
const FRAME: usize = 60;

/// Filter that accepts no frame.
const NOTHING: (u16, u8, u8, u32) = (0x06, 0, 0, 0);

/// Source addresses.
const CLIENTS: u16 = 250;

/// Most frames that are sent together, with a few system calls.
const BATCH: usize = 2 * SLOTS;

/// Time between two batches of packets. Network cards delay their interrupts by as much (`ethtool -C`, rx-usecs), so receivers
/// know such batches.
const INTERVAL: Duration = Duration::from_micros(200);

/// Longest delay after which all frames are still sent.
const LATE: Duration = Duration::from_millis(2);

/// Packets that must have arrived before the measurement.
const FIRST: u64 = 32;
const FIRST_INTERVAL: Duration = Duration::from_millis(10);
const FIRST_LIMIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> Load {
        Load {
            interface: "eth0".to_owned(),
            from: [2, 0, 0, 0, 0, 12],
            to: [2, 0, 0, 0, 0, 13],
            destination: "10.77.0.100:80".parse().unwrap(),
            flows: 5_000,
            rate: 1e3,
            ends: Vec::new(),
        }
    }

    #[test]
    fn every_flow_has_its_own_frame_with_a_right_checksum() {
        let frames = load().frames();
        let mut flows: Vec<_> = frames.iter().map(|frame| frame[26..36].to_vec()).collect();
        flows.sort();
        flows.dedup();
        assert_eq!(flows.len(), 5_000);
        for frame in &frames {
            assert_eq!(checksum(&frame[14..34]), 0, "{frame:?}");
            assert_eq!(frame[..14], [2, 0, 0, 0, 0, 13, 2, 0, 0, 0, 0, 12, 8, 0]);
        }
        // A header of Wikipedia's article on the checksum.
        let header =
            [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        assert_eq!(checksum(&header), 0xb861);
    }

    #[test]
    fn frames_are_due_at_their_rate_and_not_after_a_long_delay() {
        let start = Instant::now();
        let at = |micros| start + Duration::from_micros(micros);
        let mut pace = Pace::new(1e5, start);
        assert_eq!(pace.due(at(0), 20), Due::In(Duration::from_micros(200)));
        assert_eq!(pace.due(at(200), 20), Due::Now);
        assert_eq!(pace.due(at(1_000), 20), Due::Now);
        assert_eq!(pace.due(at(1_000), 20), Due::Now);
        // What was due in the rest of the second is left out.
        assert_eq!(pace.due(at(1_000_000), 20), Due::Now);
        assert_eq!(pace.due(at(1_000_000), 20), Due::In(Duration::from_micros(200)));
    }

    #[test]
    fn the_packets_of_an_interface_are_read() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets errs|bytes packets\n    lo: 1 2 3\n  eth0: 61026    1013    0\n";
        assert_eq!(received_by(text, "eth0"), Some(1013));
        assert_eq!(received_by(text, "eth1"), None);
    }
}
