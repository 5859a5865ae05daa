use super::*;

const DAY: Duration = Duration::from_secs(86_400);

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn held(from: SystemTime, lifetime: Duration) -> HeldCertificate {
    HeldCertificate { validity: Validity { from, until: from + lifetime }, suggested: None, place: 0.0 }
}

#[test]
fn without_a_suggestion_a_certificate_is_renewed_after_two_thirds_of_its_time() {
    let from = at(1_000_000);
    let next = Progress::default().next(from, Some(held(from, DAY * 90)));
    assert_eq!(next, Next { at: from + DAY * 60, reason: Reason::Age });
    let spread = HeldCertificate { place: 1.0, ..held(from, DAY * 90) };
    assert_eq!(Progress::default().next(from, Some(spread)).at, from + DAY * 60 - DAY * 90 / 20);
}

#[test]
fn a_suggestion_counts_but_never_beyond_nine_tenths_of_the_time() {
    let from = at(1_000_000);
    let window = |start: Duration, end: Duration| Some(Window { start: from + start, end: from + end });
    let of = |suggested| HeldCertificate { suggested, place: 0.5, ..held(from, DAY * 90) };
    let next = |suggested| Progress::default().next(from, Some(of(suggested)));
    assert_eq!(next(window(DAY * 10, DAY * 12)), Next { at: from + DAY * 11, reason: Reason::Suggested });
    assert_eq!(next(window(DAY * 200, DAY * 300)).at, from + DAY * 81);
}

#[test]
fn a_window_in_the_past_is_due_at_once_but_not_again_and_again() {
    let start = at(1_000_000);
    let past = Some(Window { start: start - DAY, end: start - DAY / 2 });
    let mut progress = Progress::default();
    let (mut now, mut orders) = (start, 0);
    while now < start + DAY * 10 {
        let held = HeldCertificate { suggested: past, place: 0.5, ..held(now, DAY * 90) };
        let next = progress.next(now, Some(held));
        if next.at <= now {
            progress.issued(now);
            orders += 1;
        }
        now += Duration::from_secs(600);
    }
    assert!((40..=82).contains(&orders), "two in six hours at most: {orders}");
}

#[test]
fn waits_grow_and_stay_below_what_authorities_count() {
    let (start, mut progress) = (at(1_000_000), Progress::default());
    let (mut now, mut tries) = (start, Vec::new());
    while now < start + DAY * 2 {
        tries.push(now.duration_since(start).unwrap());
        progress.failed(now, OrderFailure::Refused, None, 0.0);
        now = progress.next(now, None).at;
    }
    let in_first_hour = tries.iter().filter(|at| **at < Duration::from_secs(3600)).count();
    assert!(in_first_hour <= 4, "{tries:?}");
    assert!(tries.len() >= 8, "it does not give up: {tries:?}");
}

#[test]
fn an_authority_that_cannot_be_reached_is_tried_soon_and_then_every_quarter_of_an_hour() {
    let (start, mut progress) = (at(1_000_000), Progress::default());
    progress.failed(start, OrderFailure::Unavailable, None, 0.0);
    assert_eq!(progress.next(start, None).at, start + Duration::from_secs(5));
    for _ in 0..40 {
        progress.failed(start, OrderFailure::Unavailable, None, 1.0);
    }
    assert_eq!(progress.next(start, None).at, start + Duration::from_secs(900) * 5 / 4);
}

#[test]
fn what_the_authority_asks_for_is_kept_within_bounds_also_over_a_restart() {
    let (start, mut progress) = (at(1_000_000), Progress::default());
    progress.failed(start, OrderFailure::Refused, Some(DAY), 0.0);
    assert_eq!(progress.next(start, None).at, start + DAY);
    assert_eq!(progress.resumed().next(start, None).at, start + DAY);
    progress.failed(start, OrderFailure::Refused, Some(DAY * 1000), 0.0);
    assert_eq!(progress.next(start, None).at, start + LONGEST_PAUSE);
}

#[test]
fn after_a_restart_a_failure_is_tried_again_within_minutes_and_no_more_than_five_times_an_hour() {
    let (start, mut progress) = (at(1_000_000), Progress::default());
    let (mut now, mut tries) = (start, 0);
    while now < start + Duration::from_secs(3600) {
        // A process that restarts every ten seconds.
        progress = progress.resumed();
        if progress.next(now, None).at <= now {
            tries += 1;
            progress.failed(now, OrderFailure::Refused, None, 0.0);
        }
        now += Duration::from_secs(10);
    }
    assert!((4..=7).contains(&tries), "{tries}");
}

#[test]
fn a_clock_that_was_set_back_does_not_stop_orders_for_years() {
    let (future, mut progress) = (at(2_000_000_000), Progress::default());
    progress.failed(future, OrderFailure::Refused, None, 0.0);
    progress.issued = [Some(future), Some(future)];
    let now = at(1_000_000_000);
    assert_eq!(progress.next(now, None).at, now);
    let old = held(now - DAY * 80, DAY * 90);
    assert!(progress.next(now, Some(old)).at <= now);
}

#[test]
fn polls_keep_to_what_the_authority_asks_within_a_minute_and_a_day() {
    let (long, short) = (DAY * 90, Duration::from_secs(300));
    assert_eq!(poll_again(None, long), DAY / 4);
    assert_eq!(poll_again(Some(Duration::from_secs(1)), long), Duration::from_secs(60));
    assert_eq!(poll_again(Some(DAY * 30), long), DAY);
    assert_eq!(poll_again(Some(DAY), short), Duration::from_secs(60));
}
