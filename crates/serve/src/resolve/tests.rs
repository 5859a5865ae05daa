use std::collections::VecDeque;
use std::sync::Mutex;

use logic::health::State as HealthState;
use state::lock::lock;

use super::*;
use crate::per_backend::FIRST_LIMIT;
use crate::report::fixture;

const POOL: &str = "backends = ['app.test:80', '127.0.0.1:1']\nresolve-interval = '50ms'";

/// Answers of the look-up, in order; the last one repeats.
struct Script(Mutex<VecDeque<Answer>>);

#[derive(Clone)]
enum Answer {
    Addresses(&'static [&'static str]),
    Fault,
    Silence,
}

impl Lookup for Script {
    fn lookup(
        &self,
        _: &str,
        port: u16,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>> {
        let mut script = lock(&self.0);
        let answer = if script.len() > 1 { script.pop_front() } else { script.front().cloned() };
        Box::pin(async move {
            match answer {
                Some(Answer::Addresses(list)) => {
                    Ok(list.iter().map(|address| SocketAddr::new(address.parse().unwrap(), port)).collect())
                }
                Some(Answer::Silence) => std::future::pending().await,
                _ => Err(io::Error::other("no such host")),
            }
        })
    }
}

struct Bench {
    state: Arc<State>,
    backend: Arc<BackendState>,
    resolver: Resolver,
}

fn start(answers: impl IntoIterator<Item = Answer>) -> Bench {
    let front = fixture::front(POOL);
    let snapshot = front.snapshot.load();
    let script = Script(Mutex::new(answers.into_iter().collect()));
    let mut resolver = Resolver::with_lookup(front.state.clone(), Arc::new(script));
    resolver.reconcile(&snapshot);
    Bench { state: front.state.clone(), backend: snapshot.pools[0].backends[0].state.clone(), resolver }
}

async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if is_so() {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

fn addresses(backend: &BackendState) -> Vec<String> {
    backend.addresses.load().iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn the_first_look_up_is_done_when_first_returns() {
    let bench = start([Answer::Addresses(&["127.0.0.9", "::1", "127.0.0.9"])]);
    bench.resolver.first().await;
    assert_eq!(addresses(&bench.backend), ["127.0.0.9:80", "[::1]:80"]);
    assert_eq!(bench.backend.health_state(), HealthState::Unchecked);
    assert!(bench.state.degraded().is_empty());
}

#[tokio::test]
async fn a_name_without_address_is_down_and_degraded_alone_and_comes_back() {
    let bench = start([Answer::Fault, Answer::Addresses(&["127.0.0.9"])]);
    bench.resolver.first().await;
    assert_eq!(bench.backend.health_state(), HealthState::Down);
    let degraded = bench.state.degraded();
    assert_eq!(degraded[0].0, "pool.app.app.test:80");
    assert!(degraded[0].1.contains("no such host"), "{degraded:?}");
    let backend = bench.backend.clone();
    eventually("it resolves", || backend.health_state() == HealthState::Unchecked).await;
    assert_eq!(addresses(&bench.backend), ["127.0.0.9:80"]);
    assert!(bench.state.degraded().is_empty());
}

#[tokio::test]
async fn a_failure_later_keeps_the_last_good_addresses() {
    let bench = start([Answer::Addresses(&["127.0.0.9"]), Answer::Fault]);
    eventually("it fails", || !bench.state.degraded().is_empty()).await;
    assert_eq!(addresses(&bench.backend), ["127.0.0.9:80"]);
    assert_eq!(bench.backend.health_state(), HealthState::Unchecked);
}

#[tokio::test]
async fn a_mere_rotation_stores_nothing() {
    let rotations: [&[&str]; 3] =
        [&["127.0.0.1", "127.0.0.2"], &["127.0.0.2", "127.0.0.1"], &["127.0.0.2", "127.0.0.3"]];
    let bench = start(rotations.map(Answer::Addresses));
    bench.resolver.first().await;
    let first = bench.backend.addresses.load_full();
    eventually("a change arrives", || !Arc::ptr_eq(&first, &bench.backend.addresses.load_full())).await;
    assert_eq!(addresses(&bench.backend), ["127.0.0.2:80", "127.0.0.3:80"]);
}

#[tokio::test]
async fn a_dead_resolver_does_not_hold_the_start() {
    let bench = start([Answer::Silence]);
    let start = Instant::now();
    bench.resolver.first().await;
    assert!(start.elapsed() >= FIRST_LIMIT && start.elapsed() < LOOKUP_LIMIT);
    eventually("it is said", || !bench.state.degraded().is_empty()).await;
    assert_eq!(bench.backend.health_state(), HealthState::Down);
}

#[tokio::test]
async fn a_backend_that_is_gone_is_not_spoken_of_any_more() {
    let mut bench = start([Answer::Fault]);
    bench.resolver.first().await;
    assert_eq!(bench.state.degraded().len(), 1);
    bench.resolver.reconcile(&fixture::snapshot(&bench.state, "backends = ['127.0.0.1:1']"));
    assert!(bench.state.degraded().is_empty());
    assert!(bench.resolver.tasks.is_empty());
}

#[tokio::test]
async fn the_system_knows_localhost() {
    let found = SystemLookup.lookup("localhost", 80).await.unwrap();
    assert!(found.iter().all(|address| address.ip().is_loopback()) && !found.is_empty(), "{found:?}");
}
