use super::*;

const RULE: OutlierRule =
    OutlierRule { errors: Some(50), slowness: Some(300), window: Duration::from_secs(10), least: 10 };

fn seen(sessions: u64, errors: u64, millis: u64) -> Option<Seen> {
    let response = Some(Duration::from_millis(millis));
    Some(Seen { sessions, errors, timed: sessions, response })
}

fn slow(rule: &OutlierRule, backends: &[Option<Seen>]) -> Vec<bool> {
    judge(rule, backends).iter().map(|cause| matches!(cause, Some(Cause::Slow { .. }))).collect()
}

#[test]
fn the_share_of_errors_counts_from_the_least_number_of_sessions_on() {
    let of = |sessions, errors| judge(&RULE, &[seen(sessions, errors, 1)])[0].clone();
    assert_eq!(of(10, 4), None);
    let window = RULE.window;
    assert_eq!(of(10, 5), Some(Cause::ErrorRate { errors: 5, sessions: 10, window }));
    assert_eq!(of(9, 9), None, "too few");
    assert_eq!(of(0, 0), None);
    let none = OutlierRule { least: 0, ..RULE };
    assert_eq!(judge(&none, &[seen(0, 0, 1)]), [None]);
    let off = OutlierRule { errors: None, ..RULE };
    assert_eq!(judge(&off, &[seen(10, 10, 1)]), [None]);
    let huge = Some(Seen { sessions: u64::MAX, errors: u64::MAX, timed: 0, response: None });
    assert!(judge(&RULE, &[huge])[0].is_some());
}

#[test]
fn a_backend_is_slow_beside_the_median_of_the_others() {
    assert_eq!(slow(&RULE, &[seen(10, 0, 10), seen(10, 0, 30)]), [false, true]);
    assert_eq!(slow(&RULE, &[seen(10, 0, 10), seen(10, 0, 29)]), [false, false]);
    let all = [seen(10, 0, 10), seen(10, 0, 12), seen(10, 0, 100), seen(10, 0, 11)];
    assert_eq!(slow(&RULE, &all), [false, false, true, false]);
    let half = [seen(10, 0, 10), seen(10, 0, 100), seen(10, 0, 10), seen(10, 0, 100)];
    assert_eq!(slow(&RULE, &half), [false, true, false, true], "the others' median is one of the fast");
}

#[test]
fn nobody_is_slow_alone_or_among_unknown_ones_or_within_microseconds() {
    assert_eq!(slow(&RULE, &[seen(10, 0, 900)]), [false]);
    assert_eq!(slow(&RULE, &[None, seen(10, 0, 900)]), [false, false]);
    assert_eq!(slow(&RULE, &[seen(9, 0, 10), seen(10, 0, 900)]), [false, false], "nine tell nothing");
    assert_eq!(slow(&RULE, &[seen(10, 0, 10), seen(9, 0, 900)]), [false, false]);
    assert_eq!(slow(&RULE, &[seen(10, 0, 0), seen(10, 0, 4)]), [false, false]);
    let off = OutlierRule { slowness: None, ..RULE };
    assert_eq!(slow(&off, &[seen(10, 0, 10), seen(10, 0, 900)]), [false, false]);
}

#[test]
fn the_last_one_and_those_above_the_largest_share_stay() {
    let rest = |all, serving, ejected| Rest { all, serving, ejected, fallback: Fallback::None };
    assert_eq!(Gate::of(rest(3, 2, 0), 100), Gate::Open);
    assert_eq!(Gate::of(rest(3, 0, 2), 100), Gate::LastOne);
    assert_eq!(Gate::of(Rest { fallback: Fallback::Configured, ..rest(3, 0, 2) }, 100), Gate::Open);
    assert_eq!(Gate::of(rest(4, 3, 0), 50), Gate::Open);
    assert_eq!(Gate::of(rest(4, 2, 1), 50), Gate::Open);
    assert_eq!(Gate::of(rest(4, 1, 2), 50), Gate::MostAreOut);
    assert_eq!(Gate::of(rest(3, 2, 0), 1), Gate::Open, "one may be out in any case");
    assert_eq!(Gate::of(rest(3, 1, 1), 1), Gate::MostAreOut);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "any instant will do as the start of a test")]
fn a_window_has_what_was_counted_within_it_and_a_bounded_memory() {
    let began = Instant::now();
    let mut window = Window::new(Duration::from_secs(10));
    assert_eq!(*window.slide(began, 0_u64), 0);
    for tick in 1..10_000_u64 {
        let now = began + Duration::from_millis(tick * 100);
        let start = *window.slide(now, tick);
        let within = tick - start;
        assert!(within <= 110, "{within} ticks are more than the window and one slice");
        assert!(within >= tick.min(100), "{within} ticks of {tick}");
        assert!(window.kept.len() <= SLICES as usize + 2);
    }
    window.clear();
    assert_eq!(*window.slide(began + Duration::from_secs(2000), 7), 7);
}
