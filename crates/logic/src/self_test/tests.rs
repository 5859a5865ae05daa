use super::facts::{Descriptors, Holder, IoUring, Ipv6, Kernel, Limits, Measured, Port, Resolver, Server};
use super::*;
use crate::finding::State;
use crate::rings::WantedRings;

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

const NOW: u64 = 1_800_000_000;
const DAYS: u64 = 24 * 3600;

/// A machine on which all is well, with a server.
fn good() -> Facts {
    Facts {
        binary: Binary { path: "/usr/bin/penstock".into(), version: "1.2.0", open_to: OpenTo::Owner },
        configuration: Some(Configuration { file: "/etc/penstock/penstock.toml".into(), faults: Vec::new() }),
        server: Some(Server { process: 7, version: "1.2.0".into() }),
        user: User { name: "penstock".into(), standing: Standing::Exists, named_by: NamedBy::Configuration },
        capabilities: vec![Needed { name: "CAP_NET_BIND_SERVICE", why: "ports", given: Given::Yes }],
        kernel: Kernel {
            release: "6.12.1-amd64".into(),
            landlock: Some(6),
            seccomp: true,
            ktls: false,
            bpf: true,
            bpf_use: Use::NotNeeded,
            io_uring: IoUring { disabled: Some(0), fault: None, wanted: WantedRings::IfAllowed },
        },
        limits: Limits {
            descriptors: Descriptors { hard: 1 << 20, measured: Measured::Server, connections: None },
            listen_queue: Some(4096),
            backlog: 4096,
            tracked: None,
        },
        clock: Clock { now: at(NOW), written: Some(at(NOW - 30 * DAYS)), kept: Some(Kept::Yes) },
        resolver: Resolver { servers: vec!["192.0.2.53".into()], names: vec![("app.internal".into(), None)] },
        ipv6: Ipv6 { kernel: true, address: true, named_by: Vec::new() },
        certificates: vec![Certificate {
            section: "listener.web".into(),
            name: "a.example".into(),
            not_before: at(NOW - 9 * DAYS),
            not_after: at(NOW + 81 * DAYS),
        }],
        ports: vec![Port {
            key: "listener.web.bind".into(),
            address: ":443".into(),
            protocol: "tcp",
            number: 443,
            holder: Some(Holder::Process { name: "penstock".into(), process: 7 }),
            refused: None,
        }],
        gssapi: Gssapi { fault: Some("it is missing".into()), use_: Use::NotNeeded },
    }
}

/// The only fault after a change of the good machine, as its check, its text and its first command.
#[track_caller]
fn only_fault(change: impl FnOnce(&mut Facts)) -> (&'static str, String, String) {
    let mut facts = good();
    change(&mut facts);
    let faults: Vec<_> = judge(&facts).into_iter().filter(Finding::is_fault).collect();
    let [fault] = &faults[..] else { panic!("{faults:#?}") };
    assert!(!fault.mend.is_empty(), "{fault:?} does not say what to do");
    (fault.check, fault.text.clone(), fault.mend[0].clone())
}

#[test]
fn a_machine_on_which_all_is_well_has_no_fault_and_nothing_unknown() {
    let found = judge(&good());
    assert!(found.iter().all(|finding| finding.state == State::Ok), "{found:#?}");
    assert!(found.iter().all(|finding| !finding.text.contains('\n')), "{found:#?}");
}

#[test]
fn each_fault_is_told_alone_with_what_mends_it() {
    let told = only_fault(|facts| facts.binary.open_to = OpenTo::Others);
    assert_eq!((told.0, &*told.2), ("binary", "chmod go-w /usr/bin/penstock"));
    let told = only_fault(|facts| facts.server = Some(Server { process: 7, version: "1.1.0".into() }));
    assert!(told.1.contains("process 7 serves with version 1.1.0") && told.2.contains("restart"), "{told:?}");
    let told = only_fault(|facts| facts.user.standing = Standing::StaysRoot("it may not use /run/x".into()));
    assert_eq!(told.1, "a server that root starts stays root: it may not use /run/x");
    let told = only_fault(|facts| facts.user.standing = Standing::Missing);
    assert!(told.1.contains("the start is refused") && told.2.starts_with("useradd --system"), "{told:?}");
    let told = only_fault(|facts| facts.capabilities[0].given = Given::Bounded);
    assert!(told.2.contains("--cap-add NET_BIND_SERVICE"), "{told:?}");
    assert_eq!(only_fault(|facts| facts.kernel.landlock = None).0, "landlock");
    assert_eq!(only_fault(|facts| facts.kernel.seccomp = false).0, "seccomp");
    assert_eq!(only_fault(|facts| facts.limits.descriptors.hard = 1024).0, "descriptors");
    let told = only_fault(|facts| facts.limits.descriptors.connections = Some(600_000));
    assert!(told.1.contains("1048576 descriptors only") && told.2.contains("LimitNOFILE"), "{told:?}");
    let told = only_fault(|facts| facts.limits.listen_queue = Some(128));
    assert!(told.2.starts_with("sysctl -w net.core.somaxconn=4096"), "{told:?}");
    let told = only_fault(|facts| facts.limits.tracked = Some((60_000, 65_536)));
    assert!(told.1.contains("60000 of 65536") && told.2.ends_with("=262144"), "{told:?}");
    let told =
        only_fault(|facts| facts.resolver.names.push(("db.internal".into(), Some("no such name".into()))));
    assert!(told.1.contains("db.internal: no such name") && !told.1.contains("app.internal"), "{told:?}");
    let told =
        only_fault(|facts| facts.ipv6 = Ipv6 { kernel: false, address: false, named_by: vec!["k".into()] });
    assert_eq!(told.0, "ipv6");
    assert_eq!(only_fault(|facts| facts.gssapi.use_ = Use::Needed).0, "gssapi");
    let told = only_fault(|facts| {
        facts.kernel.bpf = false;
        facts.kernel.bpf_use = Use::Needed;
    });
    assert_eq!(told.2, "mount -t bpf bpf /sys/fs/bpf");
    let told = only_fault(|facts| {
        facts.kernel.io_uring.disabled = Some(2);
        facts.kernel.io_uring.wanted = WantedRings::Asked;
    });
    assert_eq!(told.0, "io-uring");
}

#[test]
fn io_uring_that_is_forbidden_is_a_fault_only_where_it_was_asked_for() {
    let io_uring = |disabled, fault: Option<&str>, wanted| {
        let mut facts = good();
        facts.kernel.io_uring = IoUring { disabled, fault: fault.map(str::to_owned), wanted };
        let found = judge(&facts).into_iter().find(|finding| finding.check == "io-uring").unwrap();
        (found.state, found.text)
    };
    for (disabled, fault, why) in
        [(Some(1), None, "switched off"), (None, Some("the kernel refuses it"), "the kernel refuses it")]
    {
        let (state, text) = io_uring(disabled, fault, WantedRings::IfAllowed);
        assert!(state == State::Ok && text.contains(why) && text.contains("served by epoll"), "{text}");
        let (state, text) = io_uring(disabled, fault, WantedRings::Asked);
        assert!(state == State::Fault && text.contains(why), "{text}");
        let (state, text) = io_uring(disabled, fault, WantedRings::None);
        assert!(state == State::Ok && text.contains("may be switched off"), "{text}");
    }
    let (state, text) = io_uring(Some(0), None, WantedRings::Asked);
    assert!(state == State::Ok && text.contains("can be used"), "{text}");
}

#[test]
fn a_clock_that_is_behind_its_own_program_is_wrong_and_one_that_no_program_keeps_is_unknown() {
    let told = only_fault(|facts| facts.clock.written = Some(at(NOW + 40 * DAYS)));
    assert!(told.0 == "clock" && told.1.contains("40 d"), "{told:?}");
    let mut facts = good();
    // Rounding, and time zones.
    facts.clock.written = Some(at(NOW + 3600));
    facts.clock.kept = Some(Kept::No);
    let found = judge(&facts).into_iter().find(|finding| finding.check == "clock").unwrap();
    assert_eq!(found.state, State::Unknown);
}

#[test]
fn a_certificate_is_a_fault_before_and_after_its_time_and_two_weeks_before_its_end() {
    for (not_before, not_after, says) in [
        (NOW - 90 * DAYS, NOW - 2 * DAYS, "has expired 2 d"),
        (NOW - 90 * DAYS, NOW + 13 * DAYS, "expires in 13 d"),
        (NOW + 2 * DAYS, NOW + 90 * DAYS, "valid in 2 d"),
    ] {
        let told = only_fault(|facts| {
            (facts.certificates[0].not_before, facts.certificates[0].not_after) =
                (at(not_before), at(not_after));
        });
        assert!(
            told.1.contains(says) && told.1.contains("listener.web") && told.1.contains("a.example"),
            "{told:?}"
        );
    }
}

#[test]
fn a_port_of_another_process_is_named_with_that_process() {
    let told = only_fault(|facts| {
        facts.ports[0].holder = Some(Holder::Process { name: "nginx".into(), process: 99 });
    });
    assert!(told.1.contains("tcp :443 is taken by nginx (process 99)"), "{told:?}");
    // The server has ended, and its number belongs to another process.
    let told = only_fault(|facts| facts.server = None);
    assert!(told.1.contains("taken by penstock (process 7)"), "{told:?}");
    let told = only_fault(|facts| (facts.server, facts.ports[0].holder) = (None, Some(Holder::Hidden)));
    assert!(told.2.contains("sport = :443"), "{told:?}");
    let told = only_fault(|facts| {
        (facts.ports[0].holder, facts.ports[0].refused) = (None, Some("no such address".into()));
    });
    assert!(told.1.contains("tcp :443 cannot be had") && told.1.ends_with("no such address"), "{told:?}");
    let mut facts = good();
    facts.ports[0].holder = Some(Holder::Hidden);
    let states: Vec<_> =
        judge(&facts).into_iter().filter(|it| it.check == "port").map(|it| it.state).collect();
    assert_eq!(states, [State::Unknown]);
}
