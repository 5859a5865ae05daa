use super::*;

const OWN: Mac = [2, 0, 0, 0, 0, 1];
const OLD: Mac = [2, 0, 0, 0, 0, 2];
const NEW: Mac = [2, 0, 0, 0, 0, 3];
const BACKEND: &str = "10.0.0.2:80";

fn ips() -> [IpAddr; 2] {
    ["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()]
}

struct Clock(Instant, Changes);

impl Clock {
    #[allow(clippy::disallowed_methods, reason = "a time must begin somewhere")]
    fn new() -> Self {
        Self(Instant::now(), Changes::default())
    }

    fn see(&mut self, ip: IpAddr, used: Option<Mac>, found: Mac, after: u64) -> Step {
        self.1.see((BACKEND, ip), used, (found, OWN), self.0 + Duration::from_millis(after))
    }
}

/// The answer of a machine for its own address.
fn answer(ip: IpAddr, mac: Mac) -> Vec<u8> {
    owner::answer(&packet::Question { target: ip, asker: ip_of_asker(ip), asker_mac: OWN }, mac)
}

fn ip_of_asker(ip: IpAddr) -> IpAddr {
    if ip.is_ipv4() { [10, 0, 0, 9].into() } else { "fd00::9".parse().unwrap() }
}

#[test]
fn a_claim_is_not_taken_while_the_earlier_machine_answers() {
    for ip in ips() {
        let mut clock = Clock::new();
        assert_eq!(clock.see(ip, None, OLD, 0), Step::Take);
        let Step::Ask(question) = clock.see(ip, Some(OLD), NEW, 1000) else { panic!("{ip}") };
        assert_eq!(question[..12], [OLD, OWN].concat(), "to the earlier machine alone");
        assert_eq!(question[12..], owner::probe(ip, OWN)[12..]);
        assert_eq!(clock.see(ip, Some(OLD), NEW, 1100), Step::Keep);
        // What others say is no answer of it.
        clock.1.take(&answer(ip, NEW));
        let mut forged = answer(ip, OLD);
        forged[6..12].copy_from_slice(&NEW);
        clock.1.take(&forged);
        clock.1.take(&answer(ip_of_asker(ip), OLD));
        (0..forged.len()).for_each(|length| clock.1.take(&forged[..length]));
        assert_eq!(clock.1.disputes().count(), 0);
        clock.1.take(&answer(ip, OLD));
        let dispute = Dispute { machine: ip, holder: OLD, other: NEW };
        assert_eq!(clock.1.disputes().collect::<Vec<_>>(), [(BACKEND, dispute)]);
        for second in 2..60 {
            assert!(matches!(clock.see(ip, Some(OLD), NEW, 1000 * second), Step::Ask(_)), "{second}");
            clock.1.take(&answer(ip, OLD));
        }
        // The kernel believes the right one again.
        assert_eq!(clock.see(ip, Some(OLD), OLD, 60_000), Step::Take);
        clock.1.expire(clock.0 + Duration::from_millis(88_999));
        assert_eq!(clock.1.disputes().count(), 1);
        clock.1.expire(clock.0 + Duration::from_millis(89_000));
        assert!(!clock.1.is_asking() && !clock.1.is_open(BACKEND));
    }
}

#[test]
fn a_change_is_taken_once_the_earlier_machine_is_silent_and_told() {
    for ip in ips() {
        let mut clock = Clock::new();
        assert_eq!(clock.see(ip, None, OLD, 0), Step::Take);
        for at in [0, 200, 400] {
            assert!(matches!(clock.see(ip, Some(OLD), NEW, at), Step::Ask(_)), "{at}");
        }
        assert_eq!(clock.see(ip, Some(OLD), NEW, 599), Step::Keep);
        assert_eq!(clock.see(ip, Some(OLD), NEW, 600), Step::Replace(OLD));
        assert_eq!(clock.see(ip, Some(NEW), NEW, 700), Step::Take);
        // One that has answered may leave, too.
        assert!(matches!(clock.see(ip, Some(NEW), OLD, 800), Step::Ask(_)));
        clock.1.take(&answer(ip, NEW));
        for at in [1000, 2000, 3000] {
            assert!(matches!(clock.see(ip, Some(NEW), OLD, at), Step::Ask(_)), "{at}");
        }
        assert_eq!(clock.see(ip, Some(NEW), OLD, 4000), Step::Replace(NEW));
        assert!(!clock.1.is_asking());
        // It was withdrawn in between.
        assert_eq!(clock.see(ip, None, NEW, 9000), Step::Replace(OLD));
        // That of an earlier process is asked as well.
        clock.1.clear();
        assert!(matches!(clock.see(ip, Some(NEW), OLD, 9100), Step::Ask(_)));
        clock.1.forget(BACKEND);
        assert!(!clock.1.is_asking());
    }
}

#[test]
fn another_router_on_the_way_is_taken_at_once() {
    let [ip, other] = [ips()[0], [10, 0, 0, 254].into()];
    let mut clock = Clock::new();
    assert_eq!(clock.see(ip, None, OLD, 0), Step::Take);
    assert_eq!(clock.see(other, Some(OLD), NEW, 100), Step::Replace(OLD));
    assert_eq!(clock.see(other, Some(NEW), NEW, 200), Step::Take);
    assert_eq!(clock.see(ip, Some(NEW), NEW, 300), Step::Take, "a machine with both addresses");
}
