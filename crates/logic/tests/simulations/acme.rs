//! Years of certificates under authorities that fail, suggest and restrict, with processes that restart and clocks that
//! jump. Seeded: a failing seed is printed and fails again.
use std::time::{Duration, SystemTime};

use logic::acme::{HeldCertificate, LONGEST_PAUSE, OrderFailure, Progress, Reason, Validity, Window};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// splitmix64: small, and the same everywhere.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn fraction(&mut self) -> f64 {
        self.next() as f64 / u64::MAX as f64
    }
}

/// When the authority works.
#[derive(Clone, Copy, PartialEq)]
enum Weather {
    Fine,
    Away,
    Refusing,
}

fn simulate(seed: u64) {
    let mut chance = Chance(seed);
    let lifetime = DAY * [6, 45, 90][chance.below(3) as usize];
    let (mut now, mut progress, mut held): (_, _, Option<HeldCertificate>) =
        (SystemTime::UNIX_EPOCH + DAY * 20_000, Progress::default(), None);
    let end = now + lifetime * 8;
    let (mut weather, mut until) = (Weather::Fine, now);
    let mut fine_since = now;
    let (mut orders, mut refused): (Vec<SystemTime>, Vec<SystemTime>) = (Vec::new(), Vec::new());
    while now < end {
        if now >= until {
            weather =
                [Weather::Fine, Weather::Fine, Weather::Away, Weather::Refusing][chance.below(4) as usize];
            until = now + lifetime.mul_f64(chance.fraction() / 3.0);
            fine_since = now;
        }
        if chance.below(200) == 0 {
            progress = progress.resumed();
        }
        let next = progress.next(now, held);
        assert!(next.at <= now + lifetime.max(LONGEST_PAUSE), "seed {seed}: {next:?} at {now:?}");
        if next.at <= now {
            if let Some(held) = held {
                let due = next.reason == Reason::Suggested || now >= held.validity.from + lifetime * 6 / 10;
                assert!(due, "seed {seed}: ordered too early at {now:?}");
            }
            match weather {
                Weather::Fine => {
                    progress.issued(now);
                    orders.push(now);
                    let validity = Validity { from: now, until: now + lifetime };
                    let start = now + lifetime.mul_f64(chance.fraction() * 1.2);
                    let suggested = Window { start, end: start + DAY };
                    let place = chance.fraction();
                    held = Some(HeldCertificate {
                        validity,
                        suggested: (chance.below(3) > 0).then_some(suggested),
                        place,
                    });
                }
                Weather::Away => progress.failed(now, OrderFailure::Unavailable, None, chance.fraction()),
                Weather::Refusing => {
                    refused.push(now);
                    let asked = (chance.below(3) == 0).then(|| HOUR * chance.below(60) as u32);
                    progress.failed(now, OrderFailure::Refused, asked, chance.fraction());
                }
            }
        }
        if let Some(held) = held {
            let late = now > held.validity.until;
            let had_time = weather == Weather::Fine && now > fine_since + LONGEST_PAUSE + HOUR;
            assert!(!(late && had_time), "seed {seed}: expired at {now:?} though the authority is there");
        }
        now += MINUTE * (1 + chance.below(30) as u32);
    }
    let most = |times: &[SystemTime], within: Duration| {
        let count =
            |from: &SystemTime| times.iter().filter(|at| (*from..*from + within).contains(at)).count();
        times.iter().map(count).max().unwrap_or_default()
    };
    assert!(most(&refused, HOUR) <= 7, "seed {seed}: {} in an hour", most(&refused, HOUR));
    assert!(most(&orders, DAY) <= 9, "seed {seed}: {} in a day", most(&orders, DAY));
}

#[test]
fn certificates_stay_valid_and_authorities_are_not_pestered() {
    for seed in 0..300 {
        simulate(seed);
    }
}
