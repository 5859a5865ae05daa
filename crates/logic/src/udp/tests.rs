use super::*;

const IDLE: Duration = Duration::from_secs(30);

fn rules(flows: usize, per_source: usize) -> Rules {
    Rules { flows, per_source, sources: Prefixes { ipv4: 32, ipv6: 64 }, idle: IDLE, replies: Replies::Any }
}

fn key(client: &str) -> FlowKey {
    FlowKey { sender: client.parse().unwrap(), local: None, told: None }
}

/// A table, and a function that sends a datagram of a client; the client is also the value of its flow.
fn send(table: &mut FlowTable<String>, client: &str, now: Instant) -> Arrival {
    let arrival = table.handle_datagram(&key(client), now);
    match arrival {
        Arrival::Known(_) | Arrival::Refused(_) => return arrival,
        Arrival::New => {}
        Arrival::NewInPlaceOf(id) | Arrival::NewAfter(id) => drop(table.remove(id).unwrap()),
    }
    table.insert(key(client), client.to_owned(), now);
    arrival
}

fn id(table: &FlowTable<String>, client: &str) -> FlowId {
    FlowId(table.ids[&key(client)])
}

#[expect(clippy::disallowed_methods, reason = "any instant will do as the start of a test")]
fn start() -> Instant {
    Instant::now()
}

#[test]
fn a_full_table_gives_up_the_unanswered_flow_that_was_silent_for_longest_before_an_answered_one() {
    let now = start();
    let mut table = FlowTable::new(rules(3, 10), now);
    for client in ["192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1"] {
        assert_eq!(send(&mut table, client, now), Arrival::New);
    }
    let answered = id(&table, "192.0.2.1:1");
    table.handle_replies(answered, 1, now);
    // The second one speaks again, so the third one was silent for longest.
    send(&mut table, "192.0.2.2:1", now);
    let third = id(&table, "192.0.2.3:1");
    assert_eq!(send(&mut table, "192.0.2.4:1", now), Arrival::NewInPlaceOf(third));
    let second = id(&table, "192.0.2.2:1");
    assert_eq!(send(&mut table, "192.0.2.5:1", now), Arrival::NewInPlaceOf(second));
    assert_eq!(id(&table, "192.0.2.1:1"), answered);
    assert_eq!(table.len(), 3);
}

/// Where backends answer everything, a forged address gets an answer as well, and it does not speak again.
#[test]
fn answered_flows_give_way_after_unanswered_ones_until_their_client_speaks_after_a_reply() {
    let now = start();
    let mut table = FlowTable::new(rules(3, 10), now);
    for client in ["192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1"] {
        send(&mut table, client, now);
        let flow = id(&table, client);
        table.handle_replies(flow, 1, now);
    }
    send(&mut table, "192.0.2.1:1", now);
    let second = id(&table, "192.0.2.2:1");
    // A reply counts as activity.
    table.handle_replies(second, 5, now);
    let third = id(&table, "192.0.2.3:1");
    assert_eq!(send(&mut table, "192.0.2.4:1", now), Arrival::NewInPlaceOf(third));
    let fourth = id(&table, "192.0.2.4:1");
    assert_eq!(send(&mut table, "192.0.2.5:1", now), Arrival::NewInPlaceOf(fourth), "it has no reply");
    let fifth = id(&table, "192.0.2.5:1");
    for flow in [second, fifth] {
        table.handle_replies(flow, 1, now);
    }
    for client in ["192.0.2.2:1", "192.0.2.5:1"] {
        send(&mut table, client, now);
        let flow = id(&table, client);
        table.handle_replies(flow, 1, now);
    }
    assert_eq!(send(&mut table, "192.0.2.6:1", now), Arrival::Refused(Refused::Table));
    assert_eq!(table.first_to_yield(now), None);
}

#[test]
fn a_new_flow_costs_one_other_at_most_however_many_limits_it_meets() {
    let now = start();
    let mut table = FlowTable::new(rules(10, 10), now);
    for client in ["192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1"] {
        send(&mut table, client, now);
    }
    let (first, second) = (id(&table, "192.0.2.1:1"), id(&table, "192.0.2.2:1"));
    let mut free = Place::Free;
    assert_eq!((free.claim(&table, now), free.claim(&table, now), free.owed()), (Some(first), None, None));
    let mut taken = Place::InPlaceOf(second);
    assert_eq!(
        (taken.claim(&table, now), taken.claim(&table, now), taken.owed()),
        (Some(second), None, None)
    );
    let mut unclaimed = Place::InPlaceOf(second);
    assert_eq!(
        (unclaimed.owed(), unclaimed.owed(), unclaimed.claim(&table, now)),
        (Some(second), None, None)
    );
    assert_eq!(Place::Free.owed(), None);
}

#[test]
fn a_source_at_its_limit_loses_its_own_flows_only() {
    let now = start();
    let mut table = FlowTable::new(rules(100, 2), now);
    send(&mut table, "192.0.2.9:1", now);
    for port in 1..=2 {
        assert_eq!(send(&mut table, &format!("[2001:db8::{port}]:{port}"), now), Arrival::New);
    }
    let first = id(&table, "[2001:db8::1]:1");
    assert_eq!(send(&mut table, "[2001:db8::3]:3", now), Arrival::NewInPlaceOf(first), "one /64, one source");
    assert_eq!(send(&mut table, "[2001:db8:0:1::1]:1", now), Arrival::New, "another /64");
    for client in ["[2001:db8::2]:2", "[2001:db8::3]:3"] {
        let flow = id(&table, client);
        table.handle_replies(flow, 1, now);
        send(&mut table, client, now);
    }
    assert_eq!(send(&mut table, "[2001:db8::4]:4", now), Arrival::Refused(Refused::Source));
    assert_eq!(table.sources(), 3);
}

#[test]
fn clients_behind_a_proxy_have_flows_of_their_own_and_are_the_sources() {
    let now = start();
    let mut table = FlowTable::new(rules(100, 2), now);
    let destination = "192.0.2.53:53".parse().unwrap();
    let behind = |client: &str| {
        let told = Some(Told { client: client.parse().unwrap(), destination });
        FlowKey { told, ..key("10.0.0.1:5000") }
    };
    for client in ["192.0.2.1:1", "192.0.2.1:2", "192.0.2.2:1", "192.0.2.3:1"] {
        assert_eq!(table.handle_datagram(&behind(client), now), Arrival::New, "{client}");
        table.insert(behind(client), client.to_owned(), now);
        assert!(matches!(table.handle_datagram(&behind(client), now), Arrival::Known(_)));
    }
    assert!(matches!(table.handle_datagram(&behind("192.0.2.1:3"), now), Arrival::NewInPlaceOf(_)));
    assert_eq!((table.len(), table.sources()), (4, 3));
}

#[test]
fn a_flow_ends_with_the_last_reply_that_is_due() {
    let now = start();
    let mut table = FlowTable::new(Rules { replies: Replies::Exactly(2), ..rules(10, 10) }, now);
    send(&mut table, "192.0.2.1:1", now);
    let Arrival::Known(flow) = send(&mut table, "192.0.2.1:1", now) else { panic!() };
    table.handle_further(flow, 2);
    assert!(table.is_any_reply_due());
    for count in [1, 4, 2] {
        assert_eq!(table.handle_replies(flow, count, now), AfterReply::Continues);
    }
    assert_eq!(table.handle_replies(flow, 1, now), AfterReply::Ends);
    assert!(!table.is_any_reply_due());
    let ended = table.remove(flow).unwrap();
    assert_eq!((ended.progress, ended.missing, table.len(), table.sources()), (Progress::Answered, 0, 0, 0));
}

#[test]
fn an_idle_flow_ends_after_its_timeout_and_activity_of_either_side_delays_it() {
    let mut now = start();
    let mut table = FlowTable::new(rules(10, 10), now);
    assert_eq!(table.poll_timeout(), None);
    for client in ["192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1"] {
        send(&mut table, client, now);
    }
    let replied = id(&table, "192.0.2.3:1");
    now += IDLE - Duration::from_secs(1);
    send(&mut table, "192.0.2.2:1", now);
    table.handle_replies(replied, 1, now);
    let mut ended = Vec::new();
    let begin = now;
    while let Some(due) = table.poll_timeout() {
        now = now.max(due);
        while let Some(flow) = table.expire(now) {
            ended.push((flow.value, now - begin));
        }
    }
    let whole = IDLE + Duration::from_secs(1);
    assert_eq!(ended.len(), 3);
    let (first, after) = &ended[0];
    assert!(first == "192.0.2.1:1" && (1..3).contains(&after.as_secs()), "{ended:?}");
    assert!(ended[1..].iter().all(|(_, after)| (IDLE..whole).contains(after)), "{ended:?}");
}

#[test]
fn a_shorter_timeout_applies_to_flows_that_are_there() {
    let now = start();
    let mut table = FlowTable::new(rules(10, 10), now);
    send(&mut table, "192.0.2.1:1", now);
    table.set_rules(Rules { idle: Duration::from_secs(2), ..rules(10, 10) }, now);
    assert!(table.expire(now + Duration::from_secs(1)).is_none());
    assert!(table.expire(now + Duration::from_secs(3)).is_some());
}

#[test]
fn a_wheel_that_stood_still_for_days_ends_what_is_due_and_keeps_what_is_not() {
    let begin = start();
    let mut wheel = Wheel::new(IDLE, begin);
    for day in 1..40_u64 {
        let now = begin + Duration::from_secs(day * 86_400 + day);
        wheel.arm(1, now - Duration::from_secs(1));
        wheel.arm(2, now + IDLE);
        assert_eq!((wheel.take_due(now), wheel.take_due(now)), (Some(1), None));
        let later = now + IDLE + Duration::from_secs(1);
        assert_eq!((wheel.take_due(later), wheel.take_due(later)), (Some(2), None));
    }
}

#[test]
fn an_empty_table_gives_its_memory_back() {
    let now = start();
    let mut table = FlowTable::new(rules(5_000, 5_000), now);
    for port in 1..4_000 {
        send(&mut table, &format!("192.0.2.1:{port}"), now);
    }
    assert_eq!(table.drain().count(), 3_999);
    assert_eq!((table.flows.capacity(), table.ids.capacity(), table.poll_timeout()), (0, 0, None));
    send(&mut table, "192.0.2.1:1", now);
    assert!(table.expire(now + 2 * IDLE).is_some());
}

#[test]
fn a_refused_flow_with_replies_due_ends_soon_unless_its_client_asks_again() {
    let now = start();
    let rules = Rules { replies: Replies::Exactly(1), ..rules(3, 10) };
    let mut table = FlowTable::new(rules, now);
    for client in ["192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1"] {
        send(&mut table, client, now);
    }
    for client in ["192.0.2.1:1", "192.0.2.2:1"] {
        let refused = id(&table, client);
        table.handle_refusal(refused, now + Duration::from_millis(1));
    }
    // It goes to another backend, and its reply is due anew.
    send(&mut table, "192.0.2.2:1", now + Duration::from_secs(1));
    assert_eq!(table.expire(now + Duration::from_secs(5)), None);
    let ended = table.expire(now + ASKED_AGAIN + Duration::from_secs(1)).unwrap();
    assert_eq!((ended.value.as_str(), ended.missing), ("192.0.2.1:1", 1));
    assert_eq!(table.expire(now + ASKED_AGAIN + Duration::from_secs(1)), None);
    assert_eq!(table.len(), 2);
    while table.expire(now + 2 * IDLE).is_some() {}
    assert!(table.is_empty());
    // A flow of any number of replies goes on.
    let later = now + 3 * IDLE;
    table.set_rules(Rules { replies: Replies::Any, ..rules }, later);
    send(&mut table, "192.0.2.1:1", later);
    let refused = id(&table, "192.0.2.1:1");
    table.handle_refusal(refused, later);
    assert_eq!(table.expire(later + IDLE / 2), None);
}

#[test]
fn a_flow_that_has_just_begun_to_wait_keeps_its_place_while_it_is_one_of_few() {
    let mut now = start();
    let mut table = FlowTable::new(rules(8, 10), now);
    for number in 1..=6 {
        let client = format!("192.0.2.{number}:1");
        send(&mut table, &client, now);
        let flow = id(&table, &client);
        table.handle_replies(flow, 1, now);
    }
    for client in ["192.0.2.7:1", "192.0.2.8:1"] {
        send(&mut table, client, now);
    }
    now += GRACE - Duration::from_millis(1);
    // Two of eight wait: an answered one gives way. Then three wait, and the first of them does.
    let (answered, waiting) = (id(&table, "192.0.2.1:1"), id(&table, "192.0.2.7:1"));
    assert_eq!(send(&mut table, "192.0.2.9:1", now), Arrival::NewInPlaceOf(answered));
    assert_eq!(send(&mut table, "192.0.2.10:1", now), Arrival::NewInPlaceOf(waiting));
    for client in ["192.0.2.9:1", "192.0.2.10:1"] {
        let flow = id(&table, client);
        table.handle_replies(flow, 1, now);
    }
    // It has waited for longer than that.
    now += Duration::from_millis(1);
    let waiting = id(&table, "192.0.2.8:1");
    assert_eq!(send(&mut table, "192.0.2.11:1", now), Arrival::NewInPlaceOf(waiting));
}

#[test]
fn a_lost_reply_does_not_keep_a_flow_whose_later_datagrams_are_answered() {
    let mut now = start();
    let rules = Rules { replies: Replies::Exactly(1), ..rules(10, 10) };
    let mut table = FlowTable::new(rules, now);
    // The first reply is lost, and each later one comes at once.
    send(&mut table, "192.0.2.1:1", now);
    for second in 1.. {
        now += Duration::from_secs(1);
        assert!(matches!(send(&mut table, "192.0.2.1:1", now), Arrival::Known(_)));
        let flow = id(&table, "192.0.2.1:1");
        if table.handle_replies(flow, 1, now) == AfterReply::Ends {
            assert!((6..=12).contains(&second), "{second} s");
            break;
        }
        assert!(second < 20, "it never ends");
    }
    let flow = id(&table, "192.0.2.1:1");
    assert_eq!(table.remove(flow).unwrap().missing, 1);
    // Replies that come in another order than that of their datagrams are none that are lost.
    for _ in 0..5 {
        send(&mut table, "192.0.2.2:1", now);
    }
    let flow = id(&table, "192.0.2.2:1");
    assert_eq!(table.handle_replies(flow, 4, now), AfterReply::Continues);
    assert_eq!(table.handle_replies(flow, 1, now), AfterReply::Ends);
    assert_eq!(table.remove(flow).unwrap().missing, 0);
}

#[test]
fn a_flow_whose_client_asks_on_and_gets_nothing_ends_with_the_next_datagram() {
    let now = start();
    let after = |seconds| now + Duration::from_secs(seconds);
    let exactly = Rules { replies: Replies::Exactly(1), ..rules(10, 10) };
    let mut table = FlowTable::new(exactly, now);
    for second in 0..6 {
        send(&mut table, "192.0.2.1:1", after(second));
    }
    let first = id(&table, "192.0.2.1:1");
    assert_eq!(table.handle_datagram(&key("192.0.2.1:1"), after(6)), Arrival::NewAfter(first));
    let ended = table.remove(first).unwrap();
    assert_eq!((ended.progress, ended.missing), (Progress::Unanswered, 6));
    // A client that is silent keeps what it waits for, and where any number of replies may come, none is missing.
    send(&mut table, "192.0.2.2:1", now);
    let second = id(&table, "192.0.2.2:1");
    assert_eq!(table.handle_replies(second, 1, after(29)), AfterReply::Ends);
    let mut table = FlowTable::new(rules(10, 10), now);
    for second in 0..20 {
        assert_ne!(send(&mut table, "192.0.2.1:1", after(second)), Arrival::NewAfter(FlowId(0)));
    }
}
