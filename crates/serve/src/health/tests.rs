use logic::health::Cause;
use proxy::front::Front;
use tokio::net::TcpListener;

use super::*;
use crate::report::fixture;

const CHECKED: &str = "health = { tcp = true, interval = '200ms', timeout = '200ms', rise = 2, fall = 3 }";

struct Bench {
    front: Arc<Front>,
    checker: Checker,
}

fn start(pool: &str) -> Bench {
    let front = fixture::front(pool);
    let mut checker = Checker::new(front.state.clone());
    checker.reconcile(&front.snapshot.load());
    Bench { front, checker }
}

impl Bench {
    fn backend(&self, at: usize) -> Arc<BackendState> {
        self.front.snapshot.load().pools[0].backends[at].state.clone()
    }

    fn reload(&mut self, pool: &str) {
        let snapshot = fixture::snapshot(&self.front.state, pool);
        self.checker.reconcile(&snapshot);
        self.front.snapshot.store(Arc::new(snapshot));
    }

    fn said(&self, what: &str) -> bool {
        self.front.state.events.last(1000).iter().any(|event| event.message.contains(what))
    }

    /// Counts failed sessions as a worker does.
    fn fail_traffic(&self, at: usize, failures: u32) {
        let backend = self.backend(at);
        backend.failures.store(failures, Relaxed);
        *lock(&backend.last_failure) = Some(Cause::ConnectRefused);
        backend.publish_health(HealthState::Ejected, Instant::now());
        backend.wake_health.notify_one();
    }
}

async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

#[tokio::test]
async fn a_backend_goes_down_and_comes_back_and_both_are_said() {
    // At this address no other test gets the port meanwhile.
    let listener = TcpListener::bind("127.0.0.77:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let bench = start(&format!("backends = ['{address}']\n{CHECKED}"));
    let backend = bench.backend(0);
    eventually("up", || backend.health_state() == HealthState::Up).await;
    drop(listener);
    eventually("down", || backend.health_state() == HealthState::Down).await;
    assert!(bench.said("down: connect refused (3 checks in a row)"));
    eventually("said loudly", || !bench.front.state.degraded().is_empty()).await;
    let expected = ("pool.app".to_owned(), "no healthy backend: answering 503".to_owned());
    assert_eq!(bench.front.state.degraded(), [expected]);
    let _listener = TcpListener::bind(address).await.unwrap();
    eventually("up again", || backend.health_state() == HealthState::Up).await;
    eventually("restored", || bench.front.state.degraded().is_empty()).await;
    assert!(bench.said("up again after "));
    assert!(backend.up_for(Instant::now()).is_some(), "its slow start has begun");
}

#[tokio::test]
async fn one_that_hangs_does_not_delay_the_others() {
    let hanging = TcpListener::bind("127.0.0.1:0").await.unwrap().into_std().unwrap();
    let mut bench = start("backends = ['127.0.0.1:1']");
    let pool = format!(
        "backends = ['{}', '127.0.0.1:2']\nhealth = {{ http = '/', interval = '30ms', timeout = '30ms' }}",
        hanging.local_addr().unwrap()
    );
    let mut snapshot = fixture::snapshot(&bench.front.state, &pool);
    // This check interval exceeds the limit in configuration files, so that the check still runs when the test ends.
    let plan = Arc::get_mut(&mut snapshot.pools[0]).expect("the new snapshot has no other owner");
    plan.settings.health.as_mut().expect("as configured").rule.timeout = Duration::from_secs(3600);
    bench.checker.reconcile(&snapshot);
    bench.front.snapshot.store(Arc::new(snapshot));
    let (first, second) = (bench.backend(0), bench.backend(1));
    eventually("the second is down", || second.health_state() == HealthState::Down).await;
    eventually("checked again and again", || second.lock_health().verdicts().count() > 5).await;
    assert_eq!(first.health_state(), HealthState::Unchecked);
}

#[tokio::test]
async fn an_ejection_by_traffic_is_recorded_and_ends_after_its_time() {
    let bench =
        start("backends = ['127.0.0.1:1', '127.0.0.1:2']\npassive = { failures = 5, ejection = '200ms' }");
    let backend = bench.backend(0);
    bench.fail_traffic(0, 5);
    eventually("recorded", || backend.lock_health().state() == HealthState::Ejected).await;
    eventually("said", || bench.said("ejected: connect refused (5 failures of traffic in a row)")).await;
    assert_eq!(backend.lock_health().verdicts().next().unwrap().source, Source::Traffic);
    eventually("readmitted", || backend.health_state() == HealthState::Unchecked).await;
    assert_eq!(backend.failures.load(Relaxed), 0);
    assert!(bench.said("readmitted after "));
    assert_eq!(bench.backend(1).health_state(), HealthState::Unchecked);
}

#[tokio::test]
async fn checks_end_the_first_ejection_and_not_the_one_after_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let bench =
        start(&format!("backends = ['{address}']\npassive = {{ failures = 5, ejection = '1h' }}\n{CHECKED}"));
    let backend = bench.backend(0);
    eventually("up", || backend.health_state() == HealthState::Up).await;
    bench.fail_traffic(0, 5);
    eventually("readmitted", || bench.said("readmitted after")).await;
    bench.fail_traffic(0, 5);
    eventually("ejected again", || backend.lock_health().state() == HealthState::Ejected).await;
    let before = backend.lock_health().verdicts().count();
    eventually("more checks", || backend.lock_health().verdicts().count() >= (before + 4).min(16)).await;
    assert_eq!(backend.health_state(), HealthState::Ejected);
}

#[tokio::test]
async fn a_worker_that_ejects_by_an_old_rule_is_put_right() {
    let bench = start("backends = ['127.0.0.1:1']\npassive = 'off'");
    let backend = bench.backend(0);
    bench.fail_traffic(0, 5);
    eventually("put right", || backend.health_state() == HealthState::Unchecked).await;
}

#[tokio::test]
async fn the_last_one_that_a_worker_left_in_place_stays_whoever_wakes_its_task() {
    let bench =
        start("backends = ['127.0.0.1:1', '127.0.0.1:2']\npassive = { failures = 5, ejection = '1h' }");
    let (last, other) = (bench.backend(0), bench.backend(1));
    last.failures.store(50, Relaxed);
    last.wake_health.notify_one();
    bench.fail_traffic(1, 5);
    eventually("the other is ejected", || other.lock_health().state() == HealthState::Ejected).await;
    assert_eq!(last.lock_health().state(), HealthState::Unchecked);
    assert_eq!(last.health_state(), HealthState::Unchecked);
}

#[tokio::test]
async fn a_pool_says_whether_it_fails_open_or_is_merely_drained() {
    let bench = start(
        "backends = ['127.0.0.1:1', '127.0.0.1:2']\nwhen-all-down = 'fail-open'\npassive = { failures = 1, ejection = '1h' }",
    );
    let reason =
        || bench.front.state.degraded().first().map(|(_, reason)| reason.clone()).unwrap_or_default();
    for at in [0, 1] {
        bench.backend(at).set_admission(Admission::Draining);
        bench.backend(at).wake_health.notify_one();
    }
    eventually("drained", || reason() == "every healthy backend is drained or has weight 0").await;
    bench.fail_traffic(0, 1);
    bench.fail_traffic(1, 1);
    eventually("open", || reason() == "no healthy backend: failing open, all of them get sessions").await;
}

#[tokio::test]
async fn a_reload_keeps_health_and_starts_and_ends_checks() {
    let mut bench = start(&format!("backends = ['127.0.0.1:2']\n{CHECKED}"));
    let backend = bench.backend(0);
    eventually("down", || backend.health_state() == HealthState::Down).await;
    bench.reload(&format!("backends = ['127.0.0.1:2', '127.0.0.1:1']\n{CHECKED}"));
    assert!(Arc::ptr_eq(&backend, &bench.backend(0)));
    assert_eq!(backend.health_state(), HealthState::Down);
    let second = bench.backend(1);
    eventually("the new one is checked", || second.lock_health().verdicts().count() > 0).await;
    bench.reload("backends = ['127.0.0.1:1']");
    assert_eq!(bench.checker.tasks.len(), 1);
    eventually("its last check is over", || Arc::strong_count(&backend) == 2).await;
    assert_eq!(second.health_state(), HealthState::Unchecked, "not known without checks");
}

#[tokio::test]
async fn a_backend_that_a_reload_brings_back_by_ending_its_checks_is_said() {
    let mut bench = start(&format!("backends = ['127.0.0.1:1']\n{CHECKED}"));
    eventually("it is down", || bench.backend(0).health_state() == HealthState::Down).await;
    bench.reload("backends = ['127.0.0.1:1']");
    assert_eq!(bench.backend(0).health_state(), HealthState::Unchecked);
    assert!(bench.said("readmitted: it is not checked any more"));
}
