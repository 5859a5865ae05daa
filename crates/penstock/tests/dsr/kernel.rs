//! The programs for the kernel decide as the process does about the same frames: those of `kernel/named.rs`, cut at
//! every length, and many that are made at random. And they are what their source says.

use std::process::Command;
use std::time::{Duration, Instant};

use logic::dsr::quic::{QuicId, ServerId};
use logic::dsr::tunnel::{Frames, Offload, Tunnel, Unfit, Way, encapsulate};
use logic::dsr::{Backend, Director, Rules, Service, Standing, Transports, Verdict, image, rewrite};
use sys::bpf::{Hook, Look, Program, Tried};
use testing::tools::{self, Root};

mod answers;
mod edges;
mod every;
mod frames;
mod named;
mod quic;
mod random;
mod ten;

use frames::{ACK, FIN, OWN, SYN, TCP, UDP, client, plain, vip};
use named::named;
use random::Random;

const KEY: [u64; 2] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
const NAMES: [&str; 6] = ["b0", "b1", "b2", "b3", "b4", "b5"];

fn service(is_v6: bool, transports: Transports) -> Service {
    Service { vip: vip(is_v6), port: 80, transports }
}

/// The decision of this process, and the programs that must not differ from it.
struct Pair {
    director: Director,
    programs: [Program; 2],
    table: u32,
    compared: usize,
    out: Vec<u8>,
}

impl Pair {
    fn new(service: Service) -> Self {
        let rules = Rules {
            flows: 100_000,
            tcp_idle: Duration::from_secs(3600),
            udp_idle: Duration::from_secs(3600),
        };
        let mut director = Director::new(service, rules, KEY, Instant::now());
        director.set_backends(&open());
        (0..NAMES.len()).for_each(|at| assert!(director.set_mac(NAMES[at], mac(at))));
        Self::of(director)
    }

    /// The same with tunnels that have room for packets of this length.
    fn tunnelled(service: Service, room: u16) -> Self {
        let mut pair = Self::new(service);
        pair.director.set_room(Some(room));
        let is_v6 = service.vip.is_ipv6();
        for (at, name) in NAMES.into_iter().enumerate() {
            let ends = [200, 100 + at as u8].map(|number| client(is_v6, number));
            pair.director.set_tunnel(name, Tunnel::new(ends[0], ends[1]));
        }
        pair.draw();
        pair
    }

    /// The same with numbers of backends in connection ids of QUIC: that of each is its place.
    fn with_numbers(mut self, place: QuicId) -> Self {
        self.director.set_quic_id(Some(place));
        self.name();
        self.draw();
        self
    }

    fn name(&mut self) {
        let Some(place) = self.director.quic_id() else { return };
        for (at, name) in NAMES.into_iter().enumerate() {
            let id = [vec![0x0a; usize::from(place.length()) - 1], vec![at as u8]].concat();
            self.director.set_server_id(name, ServerId::new(&id));
        }
    }

    fn of(director: Director) -> Self {
        let programs = [Hook::Tc, Hook::Xdp].map(|hook| Program::load(hook, 100_000, None).unwrap());
        let mut pair = Self { director, programs, table: 0, compared: 0, out: vec![0; 4096] };
        pair.draw();
        pair
    }

    /// Tells the programs what is known.
    fn draw(&mut self) {
        self.table ^= 1;
        let table = self.director.table();
        let ids = self.director.id_table();
        assert_eq!(ids.left_out, []);
        for program in &self.programs {
            let shared = program.shared();
            shared.set_service(&self.director.service_words(OWN));
            self.director.backend_words().enumerate().for_each(|(at, words)| shared.set_backend(at, &words));
            shared.set_taken(&self.director.taken_words());
            shared.set_table(self.table as usize, &table);
            shared.set_ids(self.table as usize, &ids.words);
            shared.switch(image::switch(self.table));
        }
    }

    fn backends(&mut self, backends: &[Backend<'_>]) {
        self.director.set_backends(backends);
        self.name();
        self.draw();
    }

    /// Asks all of them. The process sees only frames to its interface without a tag.
    #[track_caller]
    fn compare(&mut self, frame: &[u8]) -> Tried {
        let is_ours = frame.get(..6) == Some(&OWN) && !matches!(frame[12..14], [0x81, 0] | [0x88, 0xa8]);
        let verdict = match is_ours {
            true => self.director.handle(frame, OWN, Instant::now()),
            false => Verdict::Pass,
        };
        let mut expected = frame.to_vec();
        let mut expects = match verdict {
            Verdict::Pass | Verdict::Answer(_) | Verdict::Conflict(_) => [Tried::Passed; 2],
            Verdict::Drop(_) => [Tried::Dropped; 2],
            Verdict::Forward { to, .. } => {
                rewrite(&mut expected, OWN, to);
                [Tried::Sent; 2]
            }
        };
        if let (Verdict::Forward { backend, to, .. }, Some(room)) = (verdict, self.director.room()) {
            let tunnel = self.director.tunnel(backend).unwrap();
            let (way, mut frames) = (Way { own: OWN, to, tunnel, room }, Frames::default());
            expected = frame.to_vec();
            match encapsulate(frame, &Offload::default(), &way, &mut frames) {
                Ok(()) => expected = frames.waiting().next().unwrap().to_vec(),
                // The process tells the client: behind the driver it has seen the frame already.
                Err(Unfit::TooLong) => expects = [Tried::Dropped, Tried::Passed],
                Err(Unfit::NotSegmented) => panic!("{frame:02x?}"),
            }
        }
        // Behind the driver the kernel tries out no frame without a whole header.
        let least = match frame[12..14] {
            [8, 0] => 34,
            [0x86, 0xdd] => 54,
            _ => 15,
        };
        let first = usize::from(frame.len() < least);
        let programs = self.programs.iter_mut().zip(["tc", "xdp"]).zip(expects);
        for ((program, name), expects) in programs.skip(first) {
            let (tried, length) = program.try_out(frame, &mut self.out).unwrap();
            assert_eq!((tried, &self.out[..length]), (expects, &*expected), "{name}: {frame:02x?}");
        }
        self.compared += 1;
        expects[0]
    }

    /// The programs count what they do.
    fn check_counters(&self) {
        let counted = self.programs.each_ref().map(|program| program.shared().counted());
        assert_eq!(counted[0], counted[1]);
        let tallied = (0..NAMES.len()).map(|at| self.programs[0].shared().tallied(at));
        let (bytes, began) =
            tallied.fold((0, 0), |(bytes, began), one| (bytes + one.bytes, began + one.began));
        assert_eq!((bytes, began), (counted[0].bytes, counted[0].began));
    }
}

fn mac(backend: usize) -> [u8; 6] {
    [2, 0, 0, 0, 1, backend as u8]
}

fn open() -> Vec<Backend<'static>> {
    NAMES.map(|name| Backend { name, weight: 1, standing: Standing::Open }).to_vec()
}

#[test]
fn the_programs_decide_as_the_process_does_about_frames_of_every_kind_and_length() {
    if tools::root("loads programs into the kernel") == Root::LeftOut {
        return;
    }
    let (mut compared, mut golden) = (0, 0);
    for is_v6 in [false, true] {
        let mut pair = Pair::new(service(is_v6, Transports::TcpAndUdp));
        for (name, frame, expected) in named(is_v6) {
            golden += 1;
            assert_eq!(pair.compare(&frame), expected, "{name}: {frame:02x?}");
        }
        for (_, frame, _) in named(is_v6) {
            (15..frame.len()).for_each(|length| {
                pair.compare(&frame[..length]);
            });
        }
        pair.check_counters();
        compared += pair.compared;
        for transports in [Transports::Tcp, Transports::Udp] {
            let mut pair = Pair::new(service(is_v6, transports));
            named(is_v6).iter().for_each(|(_, frame, _)| {
                pair.compare(frame);
            });
            compared += pair.compared;
        }
    }
    println!("{compared} frames, {golden} with a verdict that is written down");
    assert!(compared > 5000 && golden >= 200, "{compared}, {golden}");
}

#[test]
fn the_programs_put_packets_into_others_as_the_process_does() {
    if tools::root("loads programs into the kernel") == Root::LeftOut {
        return;
    }
    for is_v6 in [false, true] {
        let service = service(is_v6, Transports::TcpAndUdp);
        let mut pair = Pair::tunnelled(service, 300);
        for (name, frame, expected) in named(is_v6) {
            assert_eq!(pair.compare(&frame), expected, "{name}: {frame:02x?}");
        }
        for (_, frame, _) in named(is_v6) {
            (15..frame.len()).for_each(|length| {
                pair.compare(&frame[..length]);
            });
        }
        pair.check_counters();
        // The packet has its own type of service, and may be one byte too long.
        for class in 0..=255 {
            let mut frame = plain(is_v6, TCP, 1, 1000, 80, ACK);
            match is_v6 {
                true => frame[14..16].copy_from_slice(&[0x60 | class >> 4, class << 4]),
                false => frame[15] = class,
            }
            assert_eq!(pair.compare(&frame), Tried::Sent);
        }
        let filled = [plain(is_v6, UDP, 1, 1000, 80, 0), vec![0; 20]].concat();
        assert_eq!(pair.compare(&filled), Tried::Sent, "what fills up the frame stays behind");
        let frame = plain(is_v6, TCP, 1, 1000, 80, ACK);
        let length = frame.len() as u16 - 14;
        assert_eq!(Pair::tunnelled(service, length).compare(&frame), Tried::Sent);
        assert_eq!(Pair::tunnelled(service, length - 1).compare(&frame), Tried::Dropped);
        // Another way to a backend, and none.
        let ends = [201, 99].map(|number| client(is_v6, number));
        NAMES.iter().for_each(|name| pair.director.set_tunnel(name, Tunnel::new(ends[0], ends[1])));
        pair.draw();
        assert_eq!(pair.compare(&frame), Tried::Sent);
        NAMES.iter().for_each(|name| pair.director.set_tunnel(name, None));
        pair.draw();
        for program in &mut pair.programs {
            assert_eq!(program.try_out(&frame, &mut pair.out).unwrap(), (Tried::Dropped, frame.len()));
        }
    }
}

#[test]
fn the_programs_follow_drained_and_lost_backends_as_the_process_does() {
    if tools::root("loads programs into the kernel") == Root::LeftOut {
        return;
    }
    let mut pair = Pair::new(service(false, Transports::Tcp));
    let all = |pair: &mut Pair, flags| {
        (1..1500)
            .for_each(|port| assert_eq!(pair.compare(&plain(false, TCP, 1, port, 80, flags)), Tried::Sent));
    };
    all(&mut pair, SYN);
    let mut backends = open();
    backends[2].standing = Standing::Draining;
    pair.backends(&backends);
    all(&mut pair, ACK);
    backends[3].standing = Standing::Down;
    backends[4].weight = 7;
    pair.backends(&backends);
    all(&mut pair, ACK);
    // It comes back; its flows have gone elsewhere and stay there.
    backends[3].standing = Standing::Open;
    pair.backends(&backends[1..]);
    all(&mut pair, ACK);
    all(&mut pair, FIN);
    all(&mut pair, SYN);
    // A new one, whose Ethernet address is not known yet.
    let more: Vec<_> = backends
        .iter()
        .copied()
        .chain([Backend { name: "b6", weight: 3, standing: Standing::Open }])
        .collect();
    pair.backends(&more);
    all(&mut pair, ACK);
    (1500..2500).for_each(|port| {
        pair.compare(&plain(false, TCP, 1, port, 80, ACK));
    });
    assert!(pair.director.set_mac("b6", mac(6)));
    pair.draw();
    (1500..2500).for_each(|port| {
        pair.compare(&plain(false, TCP, 1, port, 80, ACK));
    });
    assert!(pair.director.set_mac("b6", mac(7)), "another card");
    pair.draw();
    all(&mut pair, ACK);
    backends.iter_mut().for_each(|backend| backend.standing = Standing::Down);
    pair.backends(&backends);
    assert_eq!(pair.compare(&plain(false, TCP, 1, 5, 80, SYN)), Tried::Dropped);
    pair.programs.iter().for_each(|program| program.shared().stop());
    for program in &mut pair.programs {
        let frame = plain(false, TCP, 1, 5, 80, SYN);
        assert_eq!(program.try_out(&frame, &mut pair.out).unwrap(), (Tried::Passed, frame.len()));
    }
}

#[test]
fn the_programs_forget_silent_flows_and_the_process_counts_the_others() {
    if tools::root("loads programs into the kernel") == Root::LeftOut {
        return;
    }
    let mut pair = Pair::new(service(false, Transports::TcpAndUdp));
    (1..300).for_each(|port| {
        pair.compare(&plain(false, TCP, 1, port, 80, SYN));
    });
    (1..100).for_each(|port| {
        pair.compare(&plain(false, UDP, 1, port, 80, 0));
    });
    let count = |director: &Director, program: &Program| {
        let (mut look, mut counts, now) = (Look::new(64), vec![0_u32; NAMES.len()], sys::bpf::coarse_now());
        loop {
            let is_end = program.shared().look_at_flows(&mut look, |known| {
                if let Some(backend) = director.owner(known, now) {
                    counts[backend.number()] += 1;
                }
            });
            if is_end.unwrap() {
                return counts;
            }
        }
    };
    let flows: Vec<_> = pair.director.backends().map(|(_, _, flows)| flows).collect();
    for program in &pair.programs {
        assert_eq!(count(&pair.director, program), flows);
    }
    assert_eq!(flows.iter().sum::<u32>(), 299 + 99);
    // Each flow of UDP is silent for too long at once.
    let rules = Rules { flows: 1000, tcp_idle: Duration::from_secs(3600), udp_idle: Duration::ZERO };
    pair.director.set(service(false, Transports::TcpAndUdp), rules, KEY);
    let program = &pair.programs[0];
    assert_eq!(count(&pair.director, program).iter().sum::<u32>(), 299);
    let before = program.shared().counted().began;
    program.shared().set_service(&pair.director.service_words(OWN));
    for _ in 0..3 {
        pair.programs[0].try_out(&plain(false, UDP, 1, 5, 80, 0), &mut pair.out).unwrap();
    }
    assert_eq!(pair.programs[0].shared().counted().began, before + 3, "each one begins a flow");
}

/// Frames that are compared; `PENSTOCK_DSR_CASES` asks for another number.
const CASES: usize = 100_000;

#[test]
fn the_programs_decide_as_the_process_does_about_frames_made_at_random() {
    if tools::root("loads programs into the kernel") == Root::LeftOut {
        return;
    }
    let cases = std::env::var("PENSTOCK_DSR_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(CASES);
    let (mut random, began, mut sent, mut dropped) = (Random(0x2545_f491_4f6c_dd1d), Instant::now(), 0, 0);
    let mut compared = 0;
    while compared < cases {
        // Each part takes less time than a flow is remembered.
        let is_v6 = random.is_one_of(2);
        let mut service = service(is_v6, Transports::TcpAndUdp);
        if random.is_one_of(3) {
            service.port = 0;
        }
        let mut pair = match random.is_one_of(2) {
            true => Pair::new(service),
            false => Pair::tunnelled(service, 40 + random.below(60) as u16),
        };
        pair.director.set_others(vec![(7, Transports::Udp), (81, Transports::Tcp)]);
        let place = QuicId::new(random.below(4) as u8, 1 + random.below(8) as u8);
        let mut pair = if random.is_one_of(2) { pair.with_numbers(place.unwrap()) } else { pair };
        pair.draw();
        for case in 0..25_000.min(cases - compared) {
            if case % 10_000 == 9_999 {
                let backends = random.backends();
                pair.backends(&backends);
            }
            let frame = match pair.director.quic_id().filter(|_| random.is_one_of(3)) {
                Some(place) => quic::random(&mut random, is_v6, place),
                None => random.frame(is_v6),
            };
            match pair.compare(&frame) {
                Tried::Sent => sent += 1,
                Tried::Dropped => dropped += 1,
                Tried::Passed => {}
            }
        }
        pair.check_counters();
        compared += pair.compared;
    }
    println!("{compared} frames in {:?}: {sent} sent, {dropped} dropped", began.elapsed());
    assert!(sent > compared / 4, "{sent} of {compared}");
}

#[test]
fn the_programs_were_built_from_the_source_beside_them() {
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../sys/bpf");
    let output = Command::new("sha256sum").args(["--check", "dsr.bpf.record"]).current_dir(kept).output();
    let output = output.unwrap();
    assert!(output.status.success(), "sh crates/sys/bpf/build.sh makes them anew: {output:?}");
}

#[test]
fn the_programs_are_what_their_source_says() {
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../sys/bpf");
    let directory = tempfile::tempdir().unwrap();
    for name in ["build.sh", "dsr.bpf.c", "answers.bpf.h"] {
        std::fs::copy(format!("{kept}/{name}"), directory.path().join(name)).unwrap();
    }
    let output = Command::new("sh").arg(directory.path().join("build.sh")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for name in ["dsr-tc.bpf.o", "dsr-xdp.bpf.o", "dsr.bpf.record"] {
        let built = std::fs::read(directory.path().join(name)).unwrap();
        assert!(
            built == std::fs::read(format!("{kept}/{name}")).unwrap(),
            "{name}: sh crates/sys/bpf/build.sh makes it anew"
        );
    }
}
