use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use logic::health::{Cause, Health, PassiveRule, Source, Verdict, VerdictOutcome};
use state::State;

use super::*;

fn config(text: &str) -> Arc<Config> {
    let source = config::Source { name: "test".to_owned(), text: text.to_owned() };
    let loaded =
        config::load(&source, &config::Environment::default()).unwrap_or_else(|faults| panic!("{faults:?}"));
    Arc::new(loaded.config)
}

fn checked() -> Arc<Config> {
    config(
        "[listener.web]\nbind = '127.0.0.1:0'\nprotocol = 'http'\npool = 'app'\n\
         [pool.app]\nbackends = ['127.0.0.1:1']\nbalance = 'sticky'\n\
         health = { tcp = true, interval = '200ms', timeout = '200ms', rise = 1, fall = 1 }\n",
    )
}

/// Has no health checks, one backend more, another size of the sticky table, and TLS with missing files.
fn changed(directory: &Path) -> Arc<Config> {
    let directory = directory.display();
    config(&format!(
        "[listener.web]\nbind = '127.0.0.1:0'\nprotocol = 'http'\npool = 'app'\n\
         [listener.safe]\nbind = '127.0.0.1:0'\nprotocol = 'http'\npool = 'app'\n\
         tls = {{ certificates = '{directory}/certificates', ticket-keys = '{directory}/tickets', \
         client-certificates = {{ ca = '{directory}/clients.pem' }} }}\n\
         [pool.app]\nbackends = ['127.0.0.1:1', '127.0.0.1:2']\nbalance = 'sticky'\nsticky = {{ entries = 10 }}\n\
         [pool.new]\nbackends = ['127.0.0.1:3']\ntls = {{ server-name = 'b.example', ca = '{directory}/ca.pem' }}\n"
    ))
}

/// Formats all comparable parts of a snapshot, and whether the state holds the same objects.
fn shown(snapshot: &Snapshot, state: &State) -> String {
    let known = state.known();
    let mut all = format!("{} {:p}\n", snapshot.generation, snapshot.config);
    let mut listeners: Vec<_> = snapshot.listeners.values().collect();
    listeners.sort_by_key(|plan| plan.settings.name.clone());
    for plan in listeners {
        let kept = Arc::as_ptr(&plan.state) == Arc::as_ptr(&known.listener(&plan.settings.name));
        let stores: Vec<_> = plan.tls.iter().flat_map(|tls| tls.stores()).map(|it| it.faults()).collect();
        all += &format!("{:?} {:?} {kept} {stores:?}\n", plan.settings, plan.routes);
    }
    for (at, plan) in snapshot.pools.iter().enumerate() {
        let name = &plan.settings.name;
        assert_eq!(snapshot.pool(PoolId(at)).id, plan.id);
        let queue = Arc::as_ptr(&plan.queue) == Arc::as_ptr(&known.queue(name));
        let table = plan
            .sticky
            .as_ref()
            .map(|table| Arc::as_ptr(table) == Arc::as_ptr(&known.sticky(name, plan.settings.sticky)));
        all +=
            &format!("{:?} {:?} {queue} {table:?} {}\n", plan.settings, plan.identities, plan.tls.is_some());
        for backend in &plan.backends {
            let state = &backend.state;
            let kept = Arc::as_ptr(state) == Arc::as_ptr(&known.backend(name, &state.address, new_health));
            let health = state.lock_health();
            let health = format!("{:?} {:?}", health.state(), health.poll_timeout().is_some());
            let tls = (backend.tls.is_some(), backend.http2.is_some());
            all += &format!("{:?} {} {kept} {health} {tls:?}\n", backend.settings, state.name);
        }
    }
    all
}

fn new_health() -> Health {
    Health::new(None, PassiveRule::DEFAULT, Instant::now(), 0.0)
}

/// Formats every part of the state that a snapshot could change.
fn kept(state: &State, served: &Snapshot) -> String {
    let messages: Vec<_> = state.events.last(1000).into_iter().map(|event| event.message).collect();
    format!("{messages:?} {:?}\n{}", state.degraded(), shown(served, state))
}

#[test]
fn a_snapshot_that_is_compiled_is_the_same_each_time_and_changes_nothing_until_it_is_adopted() {
    let directory = tempfile::tempdir().unwrap();
    let (state, tls) = (State::new(2), tls::Shared::default());
    let first = checked();
    let served = compile(first.clone(), &Facts::read(&first, &state, &tls, None));
    adopt(&served, &state, &tls);
    let verdict = Verdict {
        at: SystemTime::UNIX_EPOCH,
        source: Source::Probe,
        outcome: VerdictOutcome::Fail,
        cause: Cause::ConnectRefused,
        took: Duration::ZERO,
    };
    served.pools[0].backends[0].state.lock_health().handle_probe(verdict, Instant::now(), 0.0);

    let before = kept(&state, &served);
    let config = changed(directory.path());
    let facts = Facts::read(&config, &state, &tls, Some(&served));
    let (one, other) = (compile(config.clone(), &facts), compile(config, &facts));
    assert_eq!(shown(&one, &state), shown(&other, &state));
    assert_eq!(kept(&state, &served), before, "a snapshot that is not adopted changes nothing");

    adopt(&one, &state, &tls);
    let after = kept(&state, &one);
    assert_ne!(shown(&one, &state), shown(&other, &state), "what is new is kept now");
    for part in ["it is not checked any more", "ca.pem", "certificates", "tickets", "clients.pem"] {
        assert!(after.contains(part), "{part}: {after}");
    }
    assert!(one.pools[0].backends[0].state.lock_health().poll_timeout().is_none(), "it is not checked now");
    let again = compile(one.config.clone(), &Facts::read(&one.config, &state, &tls, Some(&one)));
    assert!(Arc::ptr_eq(&again.pools[0].queue, &one.pools[0].queue));
    assert!(Arc::ptr_eq(&again.pools[0].backends[1].state, &one.pools[0].backends[1].state));
    assert!(Arc::ptr_eq(again.pools[0].sticky.as_ref().unwrap(), one.pools[0].sticky.as_ref().unwrap()));
}
