use config::{Environment, Source as Text};
use logic::discovery::{Found, Rank};

use super::*;

fn config(pool: &str) -> Config {
    let text = format!("[listener.web]\nbind = '127.0.0.1:0'\npool = 'app'\n[pool.app]\n{pool}\n");
    let source = Text { name: "test".to_owned(), text };
    let loaded = config::load(&source, &Environment::default());
    loaded.unwrap_or_else(|faults| panic!("{faults:?}")).config
}

fn backends(config: &Config) -> Vec<String> {
    let shown = |backend: &config::types::Backend| {
        let config::types::Backend { address, weight, priority, standing, .. } = backend;
        format!("{address} {weight} {priority} {standing:?}")
    };
    config.pools[0].backends.iter().map(shown).collect()
}

fn told(name: &str, addresses: &[&str]) -> Told {
    let name = match name.strip_prefix("srv:") {
        Some(owner) => DnsName::Services { owner: owner.to_owned() },
        None => DnsName::Addresses { host: name.to_owned(), port: 80 },
    };
    let found = addresses.iter().map(|address| Found {
        address: address.parse().unwrap(),
        rank: Rank { weight: 3, priority: 1 },
        target: None,
    });
    let answer = Answer { found: found.collect(), unknown: Vec::new(), left_out: 0 };
    Told { key: ("app".into(), name), found: Ok(answer), took: Duration::ZERO }
}

/// A discoverer of names that are never looked up: the test gives the answers.
fn silent(config: &Config) -> Discoverer {
    let mut discoverer = Discoverer::new(Arc::new(State::new(1)));
    for name in names(&config.pools[0]) {
        let (interval, _) = watch::channel(Duration::from_secs(1));
        let mut entry = Entry::new(interval);
        entry.source = config.pools[0].source_address.ours();
        discoverer.entries.insert(("app".into(), name.clone()), entry);
    }
    discoverer
}

#[tokio::test]
async fn a_name_is_replaced_by_its_backends_with_its_settings_once_it_is_looked_up() {
    let config = config("backends = ['10.0.0.9:80', { address = 'dns:localhost:80', weight = 2 }]");
    let mut discoverer = Discoverer::new(Arc::new(State::new(1)));
    assert_eq!(backends(&discoverer.expand(&config)), ["10.0.0.9:80 1 0 Here", "dns:localhost:80 2 0 Here"]);
    discoverer.begin(&config).await;
    let found = backends(&discoverer.expand(&config));
    assert_eq!(found[0], "10.0.0.9:80 1 0 Here");
    assert!(found.contains(&"localhost@127.0.0.1:80 2 0 Here".to_owned()), "{found:?}");
    discoverer.keep_only(&self::config("backends = ['10.0.0.9:80']"));
    assert!(discoverer.entries.is_empty());
}

#[test]
fn weights_are_multiplied_and_priorities_added_and_a_backend_is_there_once() {
    let config = config(
        "backends = [{ address = 'srv:app', weight = 2, priority = 5, max-connections = 7 }, 'dns:app:80']",
    );
    let mut discoverer = silent(&config);
    assert_eq!(discoverer.take(told("srv:app", &["10.0.0.1:80", "10.0.0.2:81"])), Change::Backends);
    assert_eq!(discoverer.take(told("app", &["10.0.0.1:80"])), Change::Backends);
    let expanded = discoverer.expand(&config);
    assert_eq!(backends(&expanded), ["app@10.0.0.1:80 6 6 Here", "app@10.0.0.2:81 6 6 Here"]);
    assert_eq!(expanded.pools[0].backends[1].max_connections, Some(7));
}

#[test]
fn an_address_that_one_name_has_lost_is_a_backend_of_the_other_name_that_has_it() {
    let config = config("backends = [{ address = 'srv:app', weight = 2, priority = 5 }, 'dns:app:80']");
    let mut discoverer = silent(&config);
    discoverer.take(told("srv:app", &["10.0.0.1:80", "10.0.0.2:81"]));
    discoverer.take(told("app", &["10.0.0.1:80"]));
    discoverer.take(told("srv:app", &["10.0.0.2:81"]));
    let found = backends(&discoverer.expand(&config));
    assert_eq!(found, ["app@10.0.0.1:80 3 1 Here", "app@10.0.0.2:81 6 6 Here"]);
    discoverer.take(told("app", &["10.0.0.3:80"]));
    let found = backends(&discoverer.expand(&config));
    assert_eq!(
        found,
        ["app@10.0.0.1:80 6 6 Leaving", "app@10.0.0.2:81 6 6 Here", "app@10.0.0.3:80 3 1 Here"]
    );
}

#[test]
fn within_what_is_served_a_name_gets_no_further_backend_but_a_new_name_has_all_of_its_own() {
    let before = config("backends = ['dns:app:80']");
    let mut discoverer = silent(&before);
    let unresolved = discoverer.expand(&before);
    discoverer.take(told("app", &["10.0.0.1:80"]));
    let served = discoverer.expand(&before);
    discoverer.take(told("app", &["10.0.0.1:80", "10.0.0.2:80"]));
    assert_eq!(backends(&discoverer.expand_within(&before, &served)), ["app@10.0.0.1:80 3 1 Here"]);
    assert_eq!(backends(&discoverer.expand_within(&before, &unresolved)), ["dns:app:80 1 0 Here"]);
    let other = config("backends = ['10.0.0.9:80']");
    let all = ["app@10.0.0.1:80 3 1 Here", "app@10.0.0.2:80 3 1 Here"];
    assert_eq!(backends(&discoverer.expand_within(&before, &other)), all);
}

/// Who reads an event of a change looks for the backends of it.
#[test]
fn an_event_says_a_change_when_it_is_served_and_not_before() {
    let config = config("backends = ['dns:app:80']");
    let mut discoverer = silent(&config);
    let state = discoverer.state.clone();
    let said = || state.events.last(9).into_iter().map(|event| event.message).collect::<Vec<_>>();
    discoverer.take(told("app", &["10.0.0.1:80", "10.0.0.2:80"]));
    discoverer.take(told("app", &["10.0.0.1:80"]));
    let served = |discoverer: &Discoverer| {
        let expanded = Arc::new(discoverer.expand(&config));
        crate::reload::build(expanded, &discoverer.state, &tls::Shared::default(), None)
    };
    let snapshot = served(&discoverer);
    assert_eq!(said(), [""; 0]);
    discoverer.note(Served::Is);
    assert!(said().concat().contains("gets no new sessions"), "{:?}", said());
    assert_eq!(discoverer.forget_idle(&snapshot), Change::Backends);
    assert!(!said().concat().contains("removed"), "{:?}", said());
    discoverer.note(Served::Not);
    assert!(!said().concat().contains("removed"), "{:?}", said());
    discoverer.note(Served::Is);
    assert!(said().concat().contains("removed: 10.0.0.2:80"), "{:?}", said());
    // A list of what was never served does not grow.
    for number in 1..200 {
        discoverer.take(told("app", &[&format!("10.0.1.{number}:80")]));
    }
    assert_eq!(discoverer.untold.len(), MOST_UNTOLD);
    discoverer.note(Served::Is);
    let first = state.events.last(MOST_UNTOLD + 1).into_iter().next().unwrap();
    assert_eq!((&*first.subject, &*first.message), (DISCOVERY, "135 earlier changes are not listed"));
}

#[test]
fn a_configuration_that_is_not_served_leaves_nothing_behind() {
    let before = config("backends = ['dns:app:80']");
    let mut discoverer = silent(&before);
    discoverer.take(told("app", &["10.0.0.1:80"]));
    let refused = config("backends = ['dns:app:80']\nsource-address = '10.0.0.5'");
    for entry in discoverer.entries.values_mut() {
        entry.set(&refused.pools[0]);
        assert!(entry.source.is_some());
    }
    discoverer.back_to(&before);
    assert!(discoverer.entries.values().all(|entry| entry.source.is_none()));
    assert_eq!(discoverer.take(told("app", &["10.0.0.1:80"])), Change::Backends, "it tries again");
}

#[test]
fn an_answer_without_a_usable_address_is_a_failure_and_keeps_the_backends() {
    let config = config("backends = ['dns:app:80']\nsource-address = '10.0.0.5'");
    let mut discoverer = silent(&config);
    let state = discoverer.state.clone();
    assert_eq!(discoverer.take(told("app", &["0.0.0.0:80"])), Change::None);
    assert!(state.degraded()[0].1.contains("no server can be at 0.0.0.0:80"), "{:?}", state.degraded());
    assert_eq!(discoverer.take(told("app", &["[2001:db8::1]:80"])), Change::None);
    assert!(state.degraded()[0].1.contains("source-address"), "{:?}", state.degraded());
    assert_eq!(discoverer.take(told("app", &["10.0.0.1:80", "[2001:db8::1]:80"])), Change::Backends);
    assert!(state.degraded().is_empty());
    for bad in [&["0.0.0.0:80"] as &[&str], &[]] {
        assert_eq!(discoverer.take(told("app", bad)), Change::None);
        assert!(state.degraded()[0].1.contains("keeping the last 1 backend"), "{:?}", state.degraded());
    }
    assert_eq!(backends(&discoverer.expand(&config)), ["app@10.0.0.1:80 3 1 Here"]);
}

#[test]
fn a_backend_that_the_dns_does_not_have_any_more_leaves_and_is_gone_when_idle() {
    let config = config("backends = ['dns:app:80']");
    let mut discoverer = silent(&config);
    discoverer.take(told("app", &["10.0.0.1:80", "10.0.0.2:80"]));
    assert_eq!(discoverer.take(told("app", &["10.0.0.1:80"])), Change::Backends, "one miss");
    let expanded = discoverer.expand(&config);
    assert_eq!(backends(&expanded)[1], "app@10.0.0.2:80 3 1 Leaving");
    let snapshot = crate::reload::build(Arc::new(expanded), &discoverer.state, &tls::Shared::default(), None);
    let leaving = &snapshot.pools[0].backends[1].state;
    assert_eq!(leaving.admission(), state::Admission::Draining);
    leaving.in_flight.store(1, Relaxed);
    assert_eq!(discoverer.forget_idle(&snapshot), Change::None);
    leaving.in_flight.store(0, Relaxed);
    assert_eq!(discoverer.forget_idle(&snapshot), Change::Backends);
    assert_eq!(backends(&discoverer.expand(&config)), ["app@10.0.0.1:80 3 1 Here"]);
}

#[test]
fn an_answer_for_a_name_that_was_removed_is_ignored() {
    let mut discoverer = silent(&config("backends = ['dns:app:80']"));
    assert_eq!(discoverer.take(told("other", &["10.0.0.1:80"])), Change::None);
}
