use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use config::types::{BackendAddress, Sticky};
use logic::balance::StickyKey;
use logic::health::{
    Cause, Health, PassiveRule, Rule, Source, State as HealthState, Verdict, VerdictOutcome,
};
use logic::transaction::{Ledger, Memory, Now, Operator, Resumed};
use proptest::prelude::*;

use super::changes::Changes;
use super::clients::Clients;
use super::traffic::{Restored, Traffic};
use super::*;
use crate::lock::lock;
use crate::{Admission, BackendState, Drain, State};

const SECOND: Duration = Duration::from_secs(1);

const STICKY: Sticky = Sticky { entries: 1000, ttl: Duration::from_secs(3600), ipv6_prefix: 64 };

/// A state with listener `web` and pool `app` of the backends with these ports.
fn state(ports: &[u16]) -> State {
    let state = State::new(2);
    let (known, pool): (_, Arc<str>) = (state.known(), "app".into());
    state.keep_listener(&known.listener(&"web".into()));
    state.keep_pool(&pool, &known.pool(&pool));
    state.keep_sticky(&pool, STICKY, &known.sticky(&pool, STICKY));
    for port in ports {
        let address = BackendAddress::Ip(([10, 0, 0, 1], *port).into());
        let health = || Health::new(Some(Rule::DEFAULT), PassiveRule::DEFAULT, Instant::now(), 0.5);
        state.keep_backend(&known.backend(&pool, &address, health));
    }
    state
}

fn backend(state: &State, port: u16) -> Arc<BackendState> {
    lock(&state.backends)[&("app".into(), format!("10.0.0.1:{port}"))].clone()
}

/// What an earlier process may have known.
fn used() -> State {
    let state = state(&[1, 2, 3]);
    let listener = state.known().listener(&"web".into());
    listener.counters.of(1).sessions.add(7);
    listener.counters.of(0).statuses[4].add(2);
    listener.counters.of(1).latency.observe(SECOND);
    listener.count_ending(1, "no-route");
    state.reloads_refused.store(3, Relaxed);
    state.known().pool(&"app".into()).fallback_sessions.store(5, Relaxed);
    let [one, two, three] = [1, 2, 3].map(|port| backend(&state, port));
    one.counters.of(1).grpc_statuses[16].add(4);
    one.set_admission(Admission::Draining);
    one.note_drain(Drain { by: "uid 0 (pid 7)".into(), at: SystemTime::now() - 60 * SECOND, until: None });
    two.set_weight_override(Some(0));
    let verdict = Verdict {
        at: SystemTime::now(),
        source: Source::Traffic,
        outcome: VerdictOutcome::Fail,
        cause: Cause::ConnectFailed("\"strange\"\u{7}".into()),
        took: SECOND,
    };
    assert!(three.lock_health().handle_traffic_failure(9, verdict, Instant::now()).is_some());
    let table = state.known().sticky(&"app".into(), STICKY);
    for n in 0..700_u32 {
        let client = StickyKey::from(IpAddr::from(n.to_be_bytes()));
        lock(&table).remember(client, [&one, &two, &three][n as usize % 3].identity, Instant::now());
    }
    let six = StickyKey::from("2001:db8::5".parse::<IpAddr>().unwrap());
    lock(&table).remember(six, two.identity, Instant::now());
    state
}

fn changes() -> Memory {
    let now = Now { wall: SystemTime::now(), monotonic: Instant::now() };
    let mut ledger = Ledger::new("zero");
    let by = Operator { uid: 0, name: Some("root".into()), pid: None, login: None };
    ledger.changed("one", by, "set one".into(), now);
    ledger.memory()
}

fn files() -> [(Kind, Vec<u8>); 3] {
    let state = used();
    [
        (Kind::Traffic, seal(Kind::Traffic, &Traffic::gather(&state)).unwrap()),
        (Kind::Clients, seal(Kind::Clients, &Clients::gather(&state)).unwrap()),
        (Kind::Changes, seal(Kind::Changes, &Changes::of(&changes(), millis(SystemTime::now()))).unwrap()),
    ]
}

/// Reads a file as a start does, and uses what it says.
fn take(kind: Kind, bytes: &[u8]) -> Result<(), Unusable> {
    let state = state(&[1, 2, 3]);
    match kind {
        Kind::Traffic => {
            let kept: Traffic = unseal(kind, bytes)?;
            kept.restore(&state, &Clock::now(kept.at));
            Traffic::gather(&state);
        }
        Kind::Clients => {
            let kept: Clients = unseal(kind, bytes)?;
            kept.restore(&state, &Clock::now(kept.at));
        }
        Kind::Changes => {
            let kept: Changes = unseal(kind, bytes)?;
            let clock = Clock::now(kept.at);
            let now = Now { wall: clock.wall, monotonic: clock.monotonic };
            let mut ledger = Ledger::new("zero");
            ledger.resume(kept.memory(&clock), now);
            ledger.unsaved();
        }
    }
    Ok(())
}

#[test]
fn what_was_counted_since_a_time_is_added_to_what_another_process_has() {
    let counted = |state: &State, sessions: u64| {
        let listener = state.known().listener(&"web".into());
        state.keep_listener(&listener);
        listener.counters.of(0).sessions.add(sessions);
        listener.count_endings(0, "no-route", sessions);
        state.panics.fetch_add(sessions, Relaxed);
    };
    let (old, new) = (State::new(1), State::new(2));
    counted(&old, 5);
    let before = Traffic::gather(&old);
    assert_eq!(before.counted_since(&before), None);
    counted(&old, 3);
    let more = Traffic::gather(&old).counted_since(&before).unwrap();
    counted(&new, 1);
    more.add(&new);
    let listener = new.known().listener(&"web".into());
    assert_eq!(listener.counters.sum(|block| &block.sessions), 4);
    assert_eq!((listener.endings()["no-route"], new.panics.load(Relaxed)), (4, 4));
}

#[test]
fn counters_health_and_marks_come_back() {
    let bytes = seal(Kind::Traffic, &Traffic::gather(&used())).unwrap();
    let kept: Traffic = unseal(Kind::Traffic, &bytes).unwrap();
    let state = state(&[1, 2, 3]);
    let restored = kept.restore(&state, &Clock::now(kept.at));
    assert_eq!(restored, Restored { drained: 1, weights: 1, out: 1 });
    let listener = state.known().listener(&"web".into());
    assert_eq!(listener.counters.sum(|block| &block.sessions), 7);
    assert_eq!(listener.counters.sum(|block| &block.statuses[4]), 2);
    assert_eq!(listener.counters.sum_latency(|block| &block.latency).longest_micros, 1_000_000);
    assert_eq!(listener.endings().get("no-route"), Some(&1));
    assert_eq!(state.reloads_refused.load(Relaxed), 3);
    assert_eq!(state.known().pool(&"app".into()).fallback_sessions.load(Relaxed), 5);
    let [one, two, three] = [1, 2, 3].map(|port| backend(&state, port));
    assert_eq!(one.counters.sum(|block| &block.grpc_statuses[16]), 4);
    assert_eq!((one.admission(), one.drain().unwrap().by), (Admission::Draining, "uid 0 (pid 7)".into()));
    assert_eq!(two.weight_override(), Some(0));
    assert_eq!(three.health_state(), HealthState::Ejected);
    let cause = |state: &State| {
        let backend = backend(state, 3);
        let health = backend.lock_health();
        health.verdicts().next().unwrap().cause.to_string()
    };
    let once = cause(&state);
    assert_eq!(once, "connect failed: \"strange\"\\u{7}");
    let again = Traffic::gather(&state);
    let third = super::tests::state(&[1, 2, 3]);
    again.restore(&third, &Clock::now(again.at));
    assert_eq!(cause(&third), once, "a second restart changes no text");
}

#[test]
fn a_drain_for_a_time_goes_on_for_the_rest_of_it() {
    let before = state(&[1]);
    let until = Some(Instant::now() + 60 * SECOND);
    backend(&before, 1).note_drain(Drain { by: "ann".into(), at: SystemTime::now(), until });
    let bytes = seal(Kind::Traffic, &Traffic::gather(&before)).unwrap();
    let kept: Traffic = unseal(Kind::Traffic, &bytes).unwrap();
    let clock = Clock::now(kept.at);
    let after = |passed: Duration| {
        let state = state(&[1]);
        let restored = kept.restore(&state, &Clock { wall: clock.wall + passed, ..clock });
        assert_eq!(restored.drained, usize::from(backend(&state, 1).drain().is_some()));
        (backend(&state, 1).admission(), backend(&state, 1).drain().and_then(|drain| drain.until))
    };
    let left = |until: Option<Instant>| until.unwrap().duration_since(clock.monotonic).as_secs_f64().round();
    let (admission, until) = after(20 * SECOND);
    assert_eq!((admission, left(until)), (Admission::Draining, 40.0));
    assert_eq!(after(61 * SECOND), (Admission::Ready, None), "it ended while no process ran");
    let behind = Clock { wall: clock.wall - 1000 * SECOND, ..clock };
    let state = state(&[1]);
    kept.restore(&state, &behind);
    let one = backend(&state, 1);
    assert_eq!(left(one.drain().unwrap().until), 60.0, "a clock that is behind gives it no more time");
    assert_eq!(one.end_drain(clock.monotonic + 59 * SECOND), None);
    assert_eq!(one.end_drain(clock.monotonic + 61 * SECOND).unwrap().by, "ann");
    assert_eq!((one.admission(), one.end_drain(clock.monotonic + 61 * SECOND)), (Admission::Ready, None));
}

#[test]
fn clients_keep_their_backends_and_what_is_not_configured_is_dropped() {
    let bytes = seal(Kind::Clients, &Clients::gather(&used())).unwrap();
    let kept: Clients = unseal(Kind::Clients, &bytes).unwrap();
    let restore = |ports: &[u16], clock: &Clock| {
        let state = state(ports);
        let count = kept.restore(&state, clock);
        let table = state.known().sticky(&"app".into(), STICKY);
        let of = |text: &str| {
            let key = StickyKey::from(text.parse::<IpAddr>().unwrap());
            let identity = lock(&table).peek(key, Instant::now()).map(|(identity, _)| identity)?;
            let all = lock(&state.backends);
            all.values().find(|backend| backend.identity == identity).map(|backend| backend.name.to_string())
        };
        (count, of("0.0.2.187"), of("2001:db8::77"))
    };
    let clock = Clock::now(kept.at);
    let (one, two) = (Some("10.0.0.1:1".to_owned()), Some("10.0.0.1:2".to_owned()));
    assert_eq!(restore(&[1, 2, 3], &clock), (701, one.clone(), two.clone()));
    assert_eq!(restore(&[2], &clock), (234, None, two.clone()), "backends 1 and 3 are gone");
    let late = Clock { wall: clock.wall + 3700 * SECOND, ..clock };
    assert_eq!(restore(&[1, 2, 3], &late).0, 0, "their time is over");
    let early = Clock { wall: clock.wall - 3700 * SECOND, ..clock };
    assert_eq!(restore(&[1, 2, 3], &early), (701, one, two), "the clock went back: no time has passed");
}

#[test]
fn tables_are_kept_up_to_a_limit_with_the_latest_clients() {
    let state = state(&[1]);
    let sticky = Sticky { entries: 1_000_000, ..STICKY };
    let table = state.known().sticky(&"app".into(), sticky);
    state.keep_sticky(&"app".into(), sticky, &table);
    let identity = backend(&state, 1).identity;
    let most = u32::try_from(clients::MOST).unwrap();
    for n in 0..most + 500 {
        lock(&table).remember(StickyKey::from(IpAddr::from(n.to_be_bytes())), identity, Instant::now());
    }
    let bytes = seal(Kind::Clients, &Clients::gather(&state)).unwrap();
    assert!(bytes.len() < MOST_BYTES);
    let text = String::from_utf8(bytes).unwrap();
    assert!(text.contains(&format!("\"{}\"", IpAddr::from((most + 499).to_be_bytes()))));
    assert!(!text.contains("\"0.0.0.9\""));
}

#[test]
fn changes_come_back() {
    let bytes = &files()[2].1;
    let kept: Changes = unseal(Kind::Changes, bytes).unwrap();
    let clock = Clock::now(kept.at);
    let now = Now { wall: clock.wall, monotonic: clock.monotonic };
    let mut ledger = Ledger::new("zero");
    assert_eq!(ledger.resume(kept.memory(&clock), now), Resumed::Dropped { changes: 1, number: 2 });
    assert_eq!(ledger.history().get(1).unwrap().by.as_ref().unwrap().name.as_deref(), Some("root"));
}

#[test]
fn what_is_not_a_file_of_this_version_is_named() {
    let [(kind, bytes), ..] = files();
    let text = String::from_utf8(bytes.clone()).unwrap();
    let with = |from: &str, to: &str| take(kind, text.replacen(from, to, 1).as_bytes()).unwrap_err();
    assert_eq!(take(kind, b""), Err(Unusable::Foreign));
    assert_eq!(take(kind, &[0xff; 5000]), Err(Unusable::Foreign));
    assert_eq!(with("penstock-state", "other"), Unusable::Foreign);
    assert_eq!(with(" 1 traffic", " 2 traffic"), Unusable::Newer(2));
    assert!(with(" 1 traffic", " x traffic").to_string().contains("no format"));
    assert!(take(Kind::Clients, &bytes).unwrap_err().to_string().contains("another kind"));
    assert!(take(kind, &bytes[..bytes.len() - 1]).unwrap_err().to_string().contains("a part is missing"));
    assert!(with("\"sessions\":7", "\"sessions\":8").to_string().contains("checksum"));
    let unknown = seal(kind, &serde_json::json!({ "at": 1, "more": 2 })).unwrap();
    assert!(take(kind, &unknown).unwrap_err().to_string().contains("unknown field `more`"));
    let deep = "[".repeat(100_000);
    let sealed = format!("penstock-state 1 traffic {} {}\n{deep}", deep.len(), digest(deep.as_bytes()));
    assert!(matches!(take(kind, sealed.as_bytes()), Err(Unusable::NotUnderstood(_))));
}

/// A value of JSON with some number, text or list changed to something extreme.
fn extreme(value: &mut serde_json::Value, at: &mut usize, choice: u8) {
    use serde_json::Value;
    if let Value::Object(map) = value {
        return map.values_mut().for_each(|inner| extreme(inner, at, choice));
    }
    if let Value::Array(list) = value {
        list.iter_mut().for_each(|inner| extreme(inner, at, choice));
    }
    if *at == 0 {
        *value = match choice % 6 {
            0 => u64::MAX.into(),
            1 => 0.into(),
            2 => Value::Null,
            3 => "\u{0}\u{1b}[2J".into(),
            4 => serde_json::json!([]),
            _ => (-1).into(),
        };
    }
    *at = at.wrapping_sub(1);
}

#[test]
fn a_format_that_no_version_writes_is_damage() {
    for (kind, bytes) in files() {
        let changed = String::from_utf8(bytes).unwrap().replacen("penstock-state 1 ", "penstock-state 0 ", 1);
        assert!(take(kind, changed.as_bytes()).is_err(), "{}", kind.file());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn a_changed_byte_is_noticed_and_no_bytes_panic(which in 0..3_usize, at in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let (kind, mut bytes) = files()[which].clone();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(take(kind, &bytes).is_err(), "byte {}", at);
        prop_assert!(take(kind, &bytes[..at]).is_err());
    }

    #[test]
    fn no_value_panics_where_the_checksum_is_right(which in 0..3_usize, at in any::<prop::sample::Index>(), choice in any::<u8>()) {
        let (kind, bytes) = files()[which].clone();
        let start = bytes.iter().position(|byte| *byte == b'\n').unwrap();
        let mut value: serde_json::Value = serde_json::from_slice(&bytes[start..]).unwrap();
        extreme(&mut value, &mut at.index(200), choice);
        let _ = take(kind, &seal(kind, &value).unwrap());
    }

    #[test]
    fn no_text_panics(kind in 0..3_usize, text in "\\PC{0,300}") {
        let kind = Kind::ALL[kind];
        let line = format!("{text}\n");
        let sealed = format!("penstock-state 1 {} {} {}\n{line}", kind.word(), line.len(), digest(line.as_bytes()));
        prop_assert!(take(kind, sealed.as_bytes()).is_err());
        prop_assert!(take(kind, text.as_bytes()).is_err());
    }
}
